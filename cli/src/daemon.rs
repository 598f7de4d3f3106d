//! A verb in the background: the same command again, in a session of its own, until it says that it is ready.
//!
//! The child's stdout is a pipe to the parent until it is ready, its stderr the parent's: so errors and warnings of the
//! start are seen by whoever started it. Then both become the log.
//! Invariants: the parent returns when the child is ready or has ended; a child whose parent has gone does not stay.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;

/// Set for the child.
const CHILD: &str = "PANDO_IN_BACKGROUND";
/// A log that is larger at a start becomes `.old`.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// Whether this process is the child.
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Starts this command again in the background, and waits until it is ready or has failed.
pub fn start() -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program's own file; run it in the foreground")?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(CHILD, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a process in the background; run it in the foreground")?;
    let mut said = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_string(&mut said).context("cannot hear from the process in the background")?;
    }
    if said.contains("ready") {
        io::stdout().write_all(said.as_bytes()).ok();
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait().context("cannot wait for the process in the background")?;
    match status.code() {
        Some(code) if code != 0 => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        _ => anyhow::bail!(
            "the process in the background ended before it was ready ({status}); run it without --daemon to see why"
        ),
    }
}

/// In the child, first of all: no terminal's signals reach it.
pub fn leave_terminal() -> anyhow::Result<()> {
    nix::unistd::setsid().context("cannot leave the terminal; run it in the foreground")?;
    Ok(())
}

/// In the child, once it is ready: the parent is let go, and what is said from now on goes to the log.
pub fn detach(log: &Path) -> anyhow::Result<()> {
    let file = open_log(log).with_context(|| format!("cannot write the log {}", log.display()))?;
    nix::unistd::dup2_stdout(&file).context("cannot redirect the output to the log")?;
    nix::unistd::dup2_stderr(&file).context("cannot redirect the output to the log")?;
    std::env::set_current_dir("/").context("cannot leave the working directory")
}

fn open_log(log: &Path) -> io::Result<fs::File> {
    if let Some(folder) = log.parent() {
        fs::create_dir_all(folder)?;
    }
    if fs::metadata(log).is_ok_and(|m| m.len() > LOG_BYTES_MAX) {
        let mut old = log.as_os_str().to_owned();
        old.push(".old");
        fs::rename(log, old)?;
    }
    OpenOptions::new().create(true).append(true).open(log)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_log_is_put_aside() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("x/pando.log");
        open_log(&log).and_then(|f| f.set_len(LOG_BYTES_MAX + 1)).expect("made");
        open_log(&log).expect("made again");
        assert_eq!(fs::metadata(&log).expect("there").len(), 0);
        assert_eq!(fs::metadata(dir.path().join("x/pando.log.old")).expect("there").len(), LOG_BYTES_MAX + 1);
    }
}
