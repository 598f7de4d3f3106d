//! Background tasks that end with their owner.

use tokio::task::AbortHandle;

/// Background tasks; they end when this is dropped.
pub(crate) struct Tasks(pub Vec<AbortHandle>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}
