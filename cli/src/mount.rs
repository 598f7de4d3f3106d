//! `pando mount META DIR`: a mount alone.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use crate::front::{Front, Ready, program};
use crate::mountpoint::Mountpoint;
use crate::stop::Stop;
use crate::{daemon, data, wait};

/// Mount a running cluster
#[derive(Debug, clap::Args)]
pub struct Mount {
    /// Address of a metadata server, HOST:PORT
    #[arg(value_name = "META", env = "PANDO_META")]
    meta: String,
    /// Where to mount: an empty directory, or a new name
    #[arg(value_name = "DIR", env = "PANDO_MOUNTPOINT")]
    mountpoint: PathBuf,
    #[command(flatten)]
    front: Front,
    /// Log of a mount in the background
    #[arg(long, value_name = "FILE", env = "PANDO_LOG_FILE")]
    log: Option<PathBuf>,
}

/// Runs the verb.
pub fn run(args: &Mount, as_json: bool) -> anyhow::Result<ExitCode> {
    if args.front.daemon && !daemon::is_child() {
        return daemon::start();
    }
    if args.front.daemon {
        daemon::leave_terminal()?;
    }
    let log = match &args.log {
        Some(log) => std::path::absolute(log)?,
        None => data::default_folder()?.join("mount.log"),
    };
    let point = Mountpoint::check(&args.mountpoint)?;
    let shown = point.path().display();
    let ready = Ready {
        text: format!(
            "pando is ready at {shown} (metadata server {}); stop it with `{} umount {shown}`",
            args.meta,
            program()
        ),
        json: json!({ "ready": true, "mountpoint": point.path().to_string_lossy(), "address": args.meta, "pid": std::process::id() }),
        as_json,
        log,
    };
    wait(async {
        let mut stop = Stop::listen()?;
        args.front.serve(&args.meta, None, &point, &ready, &mut stop).await
    })?;
    Ok(ExitCode::SUCCESS)
}
