//! End to end: real `pando` processes, real mounts, real programs. One binary, a module per area.
//!
//! Each test asserts what a user would notice. Tests that only need a file system run against a plain folder too
//! (`PANDO_E2E_DIR=DIR`), which shows that they ask what ext4 does. Needs root for device nodes, other users and mounts.

#![allow(clippy::unwrap_used)]

mod crash;
mod failover;
mod faults;
mod lifecycle;
mod posix_attrs;
mod posix_io;
mod posix_locks;
mod posix_names;
mod posix_range;
mod programs;
mod s3;
mod shards;
mod suites;
mod wiring;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use pando_tests::pando::Pando;

/// A folder of the caller's own on the shared mount.
pub struct Place {
    pando: Arc<Pando>,
    pub dir: PathBuf,
}

impl Place {
    pub fn new(name: &str) -> Place {
        let pando = Pando::shared();
        let dir = pando.path(name);
        std::fs::create_dir(&dir).unwrap();
        Place { pando, dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Standing on an ordinary file system, not on Pando.
    pub fn is_plain(&self) -> bool {
        self.pando.is_plain()
    }
}

/// Asserts that a call was refused with this errno.
#[track_caller]
pub fn refused<T>(result: io::Result<T>, errno: i32) {
    match result {
        Ok(_) => panic!("succeeded instead of {}", io::Error::from_raw_os_error(errno)),
        Err(error) => assert_eq!(error.raw_os_error(), Some(errno), "{error}"),
    }
}

/// Asserts equality of file content with a message that fits a terminal.
#[track_caller]
pub fn same(got: &[u8], want: &[u8]) {
    if let Some(difference) = pando_tests::bytes::difference(got, want) {
        panic!("{difference}");
    }
}
