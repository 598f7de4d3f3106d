//! The directory to mount at: checked before anything is started, made when all else is ready.
//!
//! Invariants: a directory that holds something, or something else's mount, is left alone; a mount that lost its Pando is
//! freed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::mounts;

/// Mounts on top of each other that are taken away at most; more is no accident of ours.
const DEAD_MOUNTS_MAX: usize = 16;

/// A directory that may be mounted at.
#[derive(Debug)]
pub struct Mountpoint(PathBuf);

impl Mountpoint {
    /// Checks `dir`, which is an empty directory or not there. Frees it if a crash left a mount on it.
    pub fn check(dir: &Path) -> anyhow::Result<Mountpoint> {
        let path = mounts::absolute(dir)?;
        free_dead(&path)?;
        if let Some(mount) = mounts::at(&path)? {
            bail!(
                "{} is in use: {} is mounted there; unmount it with `{} {}`, or mount at another directory",
                path.display(),
                if mount.is_pando() { "a Pando" } else { &mount.kind },
                if mount.is_pando() { "pando umount" } else { "umount" },
                path.display()
            );
        }
        match fs::read_dir(&path) {
            Ok(mut entries) => match entries.next() {
                None => Ok(Mountpoint(path)),
                Some(_) => bail!("{} is not empty; mount at an empty directory or at a new name", path.display()),
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Mountpoint(path)),
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
                bail!("{} is not a directory; mount at an empty directory or at a new name", path.display())
            }
            Err(e) => {
                Err(e).with_context(|| format!("cannot look into {}; mount at a directory of yours", path.display()))
            }
        }
    }

    /// Refuses data that the mount would hide.
    pub fn must_not_hide(&self, data: &Path) -> anyhow::Result<()> {
        match data.starts_with(&self.0) {
            true => bail!(
                "the data {} must not lie below the mount point {}; move one of them",
                data.display(),
                self.0.display()
            ),
            false => Ok(()),
        }
    }

    /// Makes the directory if it is not there.
    pub fn create(&self) -> anyhow::Result<&Path> {
        fs::create_dir_all(&self.0).with_context(|| format!("cannot make the mount point {}", self.0.display()))?;
        Ok(&self.0)
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// Takes away mounts of Pando whose process is gone. Says so.
fn free_dead(path: &Path) -> anyhow::Result<()> {
    for _ in 0..DEAD_MOUNTS_MAX {
        if !mounts::is_dead(path) {
            return Ok(());
        }
        match mounts::at(path)? {
            Some(mount) if mount.is_pando() => mounts::unmount(path, true)?,
            _ => bail!("{} is a dead mount of another file system; free it with `umount -l {0}`", path.display()),
        };
        tracing::warn!("freed {}, where a crash had left a dead mount", path.display());
    }
    bail!("{} has too many dead mounts; free it with `umount -l {0}`", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_or_new_directory_will_do() {
        let dir = tempfile::tempdir().expect("a directory");
        let base = dir.path().canonicalize().expect("it exists");
        let new = Mountpoint::check(&base.join("a/b")).expect("a new name");
        assert!(!base.join("a").exists(), "a check changes nothing");
        assert_eq!(new.create().expect("made"), base.join("a/b"));
        assert!(Mountpoint::check(&base.join("a/b")).is_ok());
        let full = Mountpoint::check(&base.join("a")).expect_err("it holds b").to_string();
        assert!(full.contains("not empty"), "{full}");
        fs::write(base.join("file"), "x").expect("written");
        let file = Mountpoint::check(&base.join("file")).expect_err("a file").to_string();
        assert!(file.contains("not a directory"), "{file}");
        let foreign = Mountpoint::check(Path::new("/proc")).expect_err("procfs").to_string();
        assert!(foreign.contains("proc is mounted there"), "{foreign}");
    }

    #[test]
    fn data_below_the_mount_point_is_refused() {
        let point = Mountpoint(PathBuf::from("/srv/mnt"));
        assert!(point.must_not_hide(Path::new("/srv/mnt/data")).is_err());
        assert!(point.must_not_hide(Path::new("/srv/mnt2")).is_ok());
    }
}
