//! A directory as object store: what is asked of the file system beyond object_store.
//!
//! Invariants: the 256 hash folders exist, durably, before the first put, so that a put makes one file durable and
//! nothing else; they can be entered by their owner alone, since segments hold bytes of files of every mode.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use object_store::local::LocalFileSystem;

use super::classify::classify_io;
use crate::error::SegmentError;

/// Opens the store in `root`, and makes the cluster's folders.
pub(super) fn open(root: &Path, cluster: &str) -> Result<LocalFileSystem, SegmentError> {
    let store = root.display().to_string();
    match fs::metadata(root) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => {
            let why = "it is not a directory".to_owned();
            return Err(SegmentError::Address { url: format!("file://{store}"), why });
        }
        Err(e) => return Err(classify_io(&e, &store)),
    }
    make_folders(root, cluster).map_err(|e| classify_io(&e, &store))?;
    let opened = LocalFileSystem::new_with_prefix(root).map_err(|_| SegmentError::NoDirectory { path: store })?;
    Ok(opened.with_fsync(true))
}

fn make_folders(root: &Path, cluster: &str) -> io::Result<()> {
    let folder = root.join(cluster);
    if make(&folder)? {
        File::open(root)?.sync_all()?;
    }
    let mut made = false;
    for hash in 0..=u8::MAX {
        made |= make(&folder.join(format!("{hash:02x}")))?;
    }
    if made {
        File::open(&folder)?.sync_all()?;
    }
    Ok(())
}

/// Makes a directory; false if it was there.
fn make(path: &Path) -> io::Result<bool> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(e),
    }
}

/// Bytes of the file system that `root` is on: all, and free to an ordinary user.
pub(super) fn space(root: &Path) -> Option<(u64, u64)> {
    let found = nix::sys::statvfs::statvfs(root).ok()?;
    let unit = found.fragment_size() as u64;
    Some(((found.blocks() as u64).saturating_mul(unit), (found.blocks_available() as u64).saturating_mul(unit)))
}

/// Removes what puts that were cut off by a crash have left: object_store writes `NAME#N` and renames it, and neither
/// lists nor deletes such files later. Answers how many there were.
pub(super) fn sweep_unfinished(folder: &Path, older_than: Duration) -> io::Result<u64> {
    let now = SystemTime::now();
    let mut swept = 0;
    for hash in 0..=u8::MAX {
        let Some(entries) = found(fs::read_dir(folder.join(format!("{hash:02x}"))))? else { continue };
        for entry in entries {
            let path = entry?.path();
            if is_unfinished(&path) && age(&path, now)? >= Some(older_than) && found(fs::remove_file(&path))?.is_some()
            {
                swept += 1;
            }
        }
    }
    Ok(swept)
}

fn is_unfinished(path: &Path) -> bool {
    let suffix = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.split_once('#'));
    suffix.is_some_and(|(_, number)| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// How long ago a file was last written; none if it is gone.
fn age(path: &Path, now: SystemTime) -> io::Result<Option<Duration>> {
    let Some(meta) = found(fs::symlink_metadata(path))? else { return Ok(None) };
    Ok(Some(now.duration_since(meta.modified()?).unwrap_or_default()))
}

fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}
