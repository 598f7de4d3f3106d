//! The directory that is mounted on: fit for it, freed after a crash, and found in the kernel's lists.
//!
//! Not here: the FUSE session. Invariant: nothing is detached but a mount whose daemon is gone, or the one asked for.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

/// Why a directory cannot be mounted or unmounted; one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// No such directory.
    #[error("{path} does not exist; create it with mkdir first")]
    Missing {
        /// Where.
        path: PathBuf,
    },
    /// Something else.
    #[error("{path} is not a directory; name an empty directory to mount on")]
    NotADirectory {
        /// Where.
        path: PathBuf,
    },
    /// What is in it would be hidden.
    #[error("{path} is not empty; name an empty directory to mount on")]
    NotEmpty {
        /// Where.
        path: PathBuf,
    },
    /// There is a live mount.
    #[error("something is mounted on {path} already; unmount it or name another directory")]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// It cannot be looked at.
    #[error("cannot look into {path}: {source}; check its permissions")]
    Unreadable {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel or fusermount3 refused.
    #[error("cannot mount on {path}: {source}; check that /dev/fuse exists and that you are root or have fusermount3")]
    Refused {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel or fusermount3 did not let go.
    #[error("cannot unmount {path}: {reason}; see with `fuser -m` who uses it")]
    Unmount {
        /// Where.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Dead mounts may lie one over another, after several crashes.
const DEAD_MOUNTS_MAX: usize = 16;
/// A mount is busy for a moment when something (a file indexer) has just looked at it.
const BUSY_TRIES: usize = 5;
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// Makes sure that a directory can be mounted on; frees it if a crashed daemon left a dead mount there.
pub(crate) fn prepare(path: &Path) -> Result<(), MountError> {
    for _ in 0..DEAD_MOUNTS_MAX {
        if !is_dead(path) {
            break;
        }
        tracing::warn!(path = %path.display(), "freeing a mount point whose daemon is gone");
        detach(path)?;
    }
    let path_buf = || path.to_path_buf();
    let unreadable = |source| MountError::Unreadable { path: path_buf(), source };
    let meta = match std::fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(MountError::Missing { path: path_buf() }),
        meta => meta.map_err(unreadable)?,
    };
    if !meta.is_dir() {
        return Err(MountError::NotADirectory { path: path_buf() });
    }
    if find_fuse(path).is_some() {
        return Err(MountError::InUse { path: path_buf() });
    }
    match std::fs::read_dir(path).map_err(unreadable)?.next() {
        None => Ok(()),
        Some(_) => Err(MountError::NotEmpty { path: path_buf() }),
    }
}

/// "Transport endpoint is not connected": a FUSE mount without its daemon.
fn is_dead(path: &Path) -> bool {
    std::fs::metadata(path).is_err_and(|e| e.raw_os_error() == Some(Errno::ENOTCONN as i32))
}

/// Unmounts; a mount that stays in use, or whose daemon is gone, is detached: it vanishes from the tree at once, and for good
/// when its last user ends. No error if nothing is mounted there.
pub fn unmount(path: &Path) -> Result<(), MountError> {
    for _ in 0..BUSY_TRIES {
        match umount2(path, MntFlags::empty()) {
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            Err(Errno::EBUSY) => std::thread::sleep(BUSY_PAUSE),
            Err(_) => break,
        }
    }
    detach(path)
}

fn detach(path: &Path) -> Result<(), MountError> {
    match umount2(path, MntFlags::MNT_DETACH) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
        Err(Errno::EPERM) => {}
        Err(e) => return Err(MountError::Unmount { path: path.to_path_buf(), reason: e.to_string() }),
    }
    // Not root: the set-user-id helper may.
    let output = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(path).output();
    let reason = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(e) => format!("fusermount3: {e}"),
    };
    Err(MountError::Unmount { path: path.to_path_buf(), reason })
}

/// The device (`major:minor`) of the uppermost FUSE mount at a path, which is not touched: asking a mount may block.
pub(crate) fn find_fuse(path: &Path) -> Option<String> {
    let path = absolute(path)?;
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let mut found = None;
    for line in table.split(|b| *b == b'\n') {
        if let Some((device, _, kind)) = parse(line).filter(|(_, at, _)| *at == path) {
            found = kind.starts_with(b"fuse").then_some(device);
        }
    }
    found
}

/// The absolute path, the last component itself not looked at: on a mount it would be a request to the daemon.
fn absolute(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Some(std::fs::canonicalize(parent).ok()?.join(name)),
        _ => Some(path),
    }
}

/// Device, mount point and type of a line of mountinfo: `ID PARENT MAJ:MIN ROOT POINT OPTIONS ... - TYPE SOURCE OPTIONS`.
fn parse(line: &[u8]) -> Option<(String, PathBuf, Vec<u8>)> {
    let mut words = line.split(|b| *b == b' ');
    let device = String::from_utf8(words.nth(2)?.to_vec()).ok()?;
    let point = unescape(words.nth(1)?);
    words.find(|w| *w == b"-")?;
    Some((device, PathBuf::from(OsString::from_vec(point)), words.next()?.to_vec()))
}

/// Space, tab, newline and backslash are written as three octal digits.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, tail @ ..] = rest {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// The path in a form for messages and comparisons.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    absolute(path).unwrap_or_else(|| PathBuf::from(OsString::from_vec(path.as_os_str().as_bytes().to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_line_is_understood() {
        let line = br"36 35 0:52 / /mnt/a\040b\134c rw,nosuid shared:1 master:2 - fuse.pando pando rw,user_id=0";
        let (device, point, kind) = parse(line).unwrap();
        assert_eq!((device.as_str(), kind.as_slice()), ("0:52", &b"fuse.pando"[..]));
        assert_eq!(point, Path::new(r"/mnt/a b\c"));
        assert!(parse(b"").is_none());
    }

    #[test]
    fn only_an_empty_directory_will_do() {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path()).unwrap();
        assert!(matches!(prepare(&dir.path().join("absent")), Err(MountError::Missing { .. })));
        let file = dir.path().join("file");
        std::fs::write(&file, b"x").unwrap();
        assert!(matches!(prepare(&file), Err(MountError::NotADirectory { .. })));
        let error = prepare(dir.path()).unwrap_err();
        assert!(matches!(error, MountError::NotEmpty { .. }));
        assert!(!error.to_string().contains('\n'));
    }

    #[test]
    fn unmounting_what_is_not_mounted_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        if nix::unistd::geteuid().is_root() {
            unmount(dir.path()).unwrap();
        }
        assert_eq!(find_fuse(dir.path()), None);
    }
}
