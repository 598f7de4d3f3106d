//! Open handles: what the front end holds, and which failures each has been told.
//!
//! Not here: the state of the file behind it (`state.rs`), shared by all handles of the inode.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pando_types::{Attr, FsError};

use crate::file::open_file::OpenFile;

/// Names an open handle of a client; never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleId(pub u64);

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenMode {
    /// It may be read.
    pub read: bool,
    /// It may be written.
    pub write: bool,
    /// It is emptied; committed together with what is written next.
    pub truncate: bool,
    /// Every write goes to the end.
    pub append: bool,
    /// The kernel keeps no pages for this handle.
    pub direct: bool,
    /// Emptying it clears suid and sgid.
    pub kill_privileges: bool,
}

/// An opened file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// For reads, writes and the close.
    pub handle: HandleId,
    /// Pages that the kernel has of this file are still right.
    pub keep_cache: bool,
    /// Attributes at the open.
    pub attr: Attr,
}

/// What [`crate::Client::seek`] looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTo {
    /// Bytes that were written.
    Data,
    /// A hole, or the end of the file.
    Hole,
}

/// An open handle.
pub(crate) struct Handle {
    pub(crate) file: Arc<OpenFile>,
    pub(crate) mode: OpenMode,
    /// Number of the last failure that this handle was told of.
    told: AtomicU64,
}

impl Handle {
    /// A handle that knows of the failures so far: they were not its own.
    pub(crate) fn new(file: Arc<OpenFile>, mode: OpenMode) -> Handle {
        let told = AtomicU64::new(file.failures());
        Handle { file, mode, told }
    }

    /// Tells a failure of the file that this handle has not been told of.
    pub(crate) fn tell(&self) -> Result<(), FsError> {
        self.file.tell(&self.told)
    }

    /// The failure being returned by the caller counts as told.
    pub(crate) fn telling<T>(&self, result: Result<T, FsError>) -> Result<T, FsError> {
        if result.is_err() {
            self.told.fetch_max(self.file.failures(), Ordering::Relaxed);
        }
        result
    }
}
