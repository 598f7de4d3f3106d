//! Files that are being executed through the mount.
//!
//! The kernel refuses to open a running program for writing, but it sends the truncation of `O_TRUNC` with the open, before it
//! checks: without this table the program would be emptied, killed by its next page fault, and the caller told ETXTBSY.
//! Invariant: an inode is in the table as long as a handle that was opened to execute it lives.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pando_types::{Errno, InodeId};
use tokio::time::Instant;

/// Set in the flags of an open by exec (Linux, `__FMODE_EXEC`).
const FMODE_EXEC: i32 = 0x20;
/// The release of a program that has just ended is sent after its parent was told so: a truncation waits this long for it.
const RELEASE_TIME_MAX: Duration = Duration::from_millis(200);
const POLL: Duration = Duration::from_millis(1);

/// Handle -> inode.
#[derive(Default)]
pub(crate) struct Running(Mutex<HashMap<u64, InodeId>>);

impl Running {
    /// A handle was opened with these flags.
    pub(crate) fn opened(&self, handle: u64, inode: InodeId, flags: i32) {
        if flags & FMODE_EXEC != 0 {
            self.lock().insert(handle, inode);
        }
    }

    /// A handle is gone.
    pub(crate) fn released(&self, handle: u64) {
        self.lock().remove(&handle);
    }

    /// Returns once the inode may be truncated. ETXTBSY if it runs.
    pub(crate) async fn may_truncate(&self, inode: InodeId) -> Result<(), Errno> {
        let deadline = Instant::now() + RELEASE_TIME_MAX;
        while self.lock().values().any(|running| *running == inode) {
            if Instant::now() >= deadline {
                return Err(Errno::ETXTBSY);
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, InodeId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_running_program_is_not_truncated_and_one_that_ended_is() {
        let running = Running::default();
        running.opened(1, InodeId(7), FMODE_EXEC);
        running.opened(2, InodeId(8), 0);
        assert_eq!(running.may_truncate(InodeId(7)).await, Err(Errno::ETXTBSY));
        assert_eq!(running.may_truncate(InodeId(8)).await, Ok(()), "it is only read");
        let end = async {
            tokio::time::sleep(RELEASE_TIME_MAX / 2).await;
            running.released(1);
        };
        let (truncated, ()) = tokio::join!(running.may_truncate(InodeId(7)), end);
        assert_eq!(truncated, Ok(()), "its release was on its way");
    }
}
