//! `pando umount DIR`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::mounts::{self, Process, Unmounted};

/// Between two looks whether the process has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Unmount, and wait until everything written is stored
#[derive(Debug, clap::Args)]
pub struct Umount {
    /// Where it is mounted
    #[arg(value_name = "DIR")]
    mountpoint: PathBuf,
    /// Take the mount point away even while processes use it; they keep what they have open until they close it
    #[arg(long)]
    force: bool,
    /// Seconds to wait for the process that served it
    #[arg(long, value_name = "SECONDS", default_value_t = 300, env = "PANDO_UMOUNT_TIMEOUT")]
    timeout: u64,
}

/// Runs the verb.
pub fn run(args: &Umount) -> anyhow::Result<ExitCode> {
    // A hung mount answers no question about itself, so with `force` none is asked.
    let point = if args.force { std::path::absolute(&args.mountpoint)? } else { mounts::absolute(&args.mountpoint)? };
    let mount = match mounts::at(&point)? {
        Some(mount) if mount.is_pando() => mount,
        Some(mount) => bail!("{} is a mount of {}, not of Pando; use `umount {0}`", point.display(), mount.kind),
        None => bail!("nothing is mounted at {}; `findmnt -t fuse.pando` lists what is", point.display()),
    };
    let server = mount.server();
    let detach = args.force || mounts::is_dead(&point);
    if mounts::unmount(&point, detach)? == Unmounted::Busy {
        bail!("{} is busy: {}", point.display(), mounts::busy(&point));
    }
    if let Some(server) = server {
        wait_for_end(&server, &point, Duration::from_secs(args.timeout))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn wait_for_end(server: &Process, point: &Path, time_max: Duration) -> anyhow::Result<()> {
    let start = Instant::now();
    while server.lives() {
        if start.elapsed() > time_max {
            bail!(
                "{} is unmounted, but process {} that served it still stores data after {} s; wait for it to end",
                point.display(),
                server.pid,
                time_max.as_secs()
            );
        }
        sleep(LOOK_INTERVAL);
    }
    Ok(())
}
