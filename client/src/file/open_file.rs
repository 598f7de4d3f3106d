//! An open file: the state that all handles of an inode share, and the failures to tell them.
//!
//! Invariants: the state is never locked across a wait; commits of one inode are made one after the other.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pando_types::{FsError, InodeId};

use crate::file::prefetch::Streams;
use crate::file::state::State;

/// See the module.
pub(crate) struct OpenFile {
    pub(crate) inode: InodeId,
    state: Mutex<State>,
    /// Held while a commit is prepared and made.
    pub(crate) committing: Arc<tokio::sync::Mutex<()>>,
    pub(crate) streams: Mutex<Streams>,
    failure: Mutex<Option<FsError>>,
    failures: AtomicU64,
    /// The last failure that a caller by name (rename, link) was told of.
    pub(crate) told_by_name: AtomicU64,
    /// There was a failure after the last good commit: nothing is tried behind the user's back.
    failing: AtomicBool,
    /// Whether this file is counted in `unsettled`.
    counted: AtomicBool,
    /// Files with something to commit, of the whole client.
    unsettled: Arc<AtomicUsize>,
}

impl OpenFile {
    pub(crate) fn new(inode: InodeId, state: State, unsettled: Arc<AtomicUsize>) -> OpenFile {
        OpenFile {
            inode,
            state: Mutex::new(state),
            committing: Arc::default(),
            streams: Mutex::default(),
            failure: Mutex::default(),
            failures: AtomicU64::new(0),
            told_by_name: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            counted: AtomicBool::new(false),
            unsettled,
        }
    }

    /// Looks at or changes the state.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = act(&mut state);
        let unsettled = !state.is_clean() || state.lost;
        if self.counted.swap(unsettled, Ordering::Relaxed) != unsettled {
            match unsettled {
                true => self.unsettled.fetch_add(1, Ordering::Relaxed),
                false => self.unsettled.fetch_sub(1, Ordering::Relaxed),
            };
        }
        result
    }

    /// Whether there is nothing to commit, and nothing was lost.
    pub(crate) fn is_clean(&self) -> bool {
        !self.counted.load(Ordering::Relaxed)
    }

    /// Failures so far.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Something went wrong in the background or in a commit: every handle will be told.
    pub(crate) fn fail(&self, error: &FsError) {
        tracing::error!(inode = %self.inode, %error, "written bytes could not be committed");
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
        self.failing.store(true, Ordering::Release);
        self.failures.fetch_add(1, Ordering::AcqRel);
    }

    /// A commit was made.
    pub(crate) fn recovered(&self) {
        self.failing.store(false, Ordering::Release);
    }

    /// Whether the last thing tried went wrong.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Acquire)
    }

    /// Returns the last failure if it is newer than what `told` says, and notes that it was told.
    pub(crate) fn tell(&self, told: &AtomicU64) -> Result<(), FsError> {
        let failures = self.failures();
        if told.fetch_max(failures, Ordering::AcqRel) < failures {
            return Err(self.last_failure());
        }
        Ok(())
    }

    /// The last failure.
    pub(crate) fn last_failure(&self) -> FsError {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone().unwrap_or_else(|| FsError::unavailable("bytes written to this file were lost"))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.counted.load(Ordering::Relaxed) {
            self.unsettled.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
