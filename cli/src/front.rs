//! A mount that this process serves until it is told to stop or somebody unmounts it.
//!
//! Order of the end: no new calls (unmount), then everything written is committed, then the caller stops its server.
//! Invariant: whatever fails, the mount point is free when this returns.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use pando_client::{Client, ClientConfig, Local};
use pando_client_fuse::MountOptions;
use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::mountpoint::Mountpoint;
use crate::mounts;
use crate::stop::Stop;
use crate::{daemon, log, output, size};

/// A mount answers its first call within this, or something is wrong.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);
/// Users that keep files open may go on with them for so long; whoever stops a service waits 10 s or so before it kills.
const UNMOUNT_TIME_MAX: Duration = Duration::from_secs(4);

/// Settings of a mount.
#[derive(Debug, clap::Args)]
pub struct Front {
    /// Memory for file data on its way, like 512M
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "512M", env = "PANDO_BUFFER_MEMORY")]
    buffer_memory: u64,
    /// Go to the background once the mount answers
    #[arg(long, env = "PANDO_DAEMON")]
    pub daemon: bool,
}

/// What is said when the mount answers.
pub struct Ready {
    /// For people: the first line has the word `ready`.
    pub text: String,
    /// For programs.
    pub json: Value,
    /// Print which.
    pub as_json: bool,
    /// Where a process in the background logs.
    pub log: PathBuf,
}

impl Front {
    /// Connects (to `local`, if the server at `address` is in this process), mounts, says so, waits for the end, unmounts, stores what is left.
    pub async fn serve(
        &self,
        address: &str,
        local: Option<Local>,
        point: &Mountpoint,
        ready: &Ready,
        stop: &mut Stop,
    ) -> anyhow::Result<()> {
        let config = ClientConfig { buffer_bytes: self.buffer_memory, local, ..ClientConfig::default() };
        let client = Client::connect(address, config).await.map_err(|e| anyhow!(e.detail))?;
        let served = self.serve_client(client.clone(), point, ready, stop).await;
        let stored = client.close().await;
        served?;
        stored.map_err(|e| {
            anyhow!("some data could not be stored ({}); those files keep their last stored content", e.detail)
        })
    }

    async fn serve_client(
        &self,
        client: Client,
        point: &Mountpoint,
        ready: &Ready,
        stop: &mut Stop,
    ) -> anyhow::Result<()> {
        let mounted = pando_client_fuse::mount(client, point.create()?, MountOptions::default()).await?;
        let served = async {
            answers(point.path()).await?;
            self.announce(ready)?;
            tokio::select! {
                () = stop.wait() => Ok(()),
                ended = mounted.wait() => ended.map_err(|e| anyhow!("the mount failed ({e}); start it again")),
            }
        };
        let served = served.await;
        let users = mounts::users(point.path());
        if !users.is_empty() {
            let users = mounts::list(&users);
            tracing::warn!("{} is taken away from {users}; what they have written is stored", point.path().display());
        }
        // Longer than this only users that keep files open can make it; the path is free by then.
        let unmounted = timeout(UNMOUNT_TIME_MAX, mounted.unmount()).await.unwrap_or(Ok(()));
        served?;
        Ok(unmounted?)
    }

    fn announce(&self, ready: &Ready) -> anyhow::Result<()> {
        log::serving();
        output::print(ready.as_json, &ready.json, &ready.text)?;
        if self.daemon {
            daemon::detach(&ready.log)?;
        }
        Ok(())
    }
}

/// Waits until the mount answers as any program would see it.
async fn answers(path: &Path) -> anyhow::Result<()> {
    let path = path.to_owned();
    let asked = spawn_blocking(move || std::fs::metadata(&path).map(drop));
    match timeout(ANSWER_TIME_MAX, asked).await {
        Ok(Ok(answer)) => answer.context("the mount does not answer"),
        Ok(Err(_)) | Err(_) => {
            bail!("the mount does not answer within {} s; the log may say why", ANSWER_TIME_MAX.as_secs())
        }
    }
}

/// How a person starts this program: `pando`, or the whole path if that is not found by its name.
pub fn program() -> String {
    let Ok(me) = std::env::current_exe() else { return "pando".into() };
    let found = std::env::var_os("PATH").and_then(|path| {
        let mut candidates = std::env::split_paths(&path).map(|folder| folder.join("pando"));
        candidates.find(|candidate| candidate.is_file())
    });
    match found.and_then(|path| path.canonicalize().ok()) {
        Some(path) if path == me => "pando".into(),
        _ => me.display().to_string(),
    }
}
