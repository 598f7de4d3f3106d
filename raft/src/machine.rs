//! What a group drives: a deterministic state that applies payloads and can be copied whole.
//!
//! Not here: what a payload means. Invariant kept by implementors: the mark given with a batch is stored atomically
//! with the batch's effects, and [`Machine::applied`] is the mark of the last batch that the state contains.

use std::error::Error;

use bytes::Bytes;

/// Failure of a machine. It halts that replica of the group, never the process.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct MachineError(#[source] Box<dyn Error + Send + Sync>);

impl MachineError {
    /// Wraps the cause: an error, a `String` or a `&str`.
    pub fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> MachineError {
        MachineError(cause.into())
    }
}

/// Makes durable everything that was applied before it was created; runs on another thread while batches are applied.
pub type Flusher = Box<dyn FnOnce() -> Result<(), MachineError> + Send>;

/// A replicated state. All calls of one machine come one at a time.
pub trait Machine: Send + 'static {
    /// The mark stored with the last batch; `None` for a state that has never applied or read anything.
    fn applied(&self) -> Option<Vec<u8>>;

    /// Applies the payloads in order and stores `mark` with them, atomically. One reply for each payload.
    ///
    /// `payloads` may be empty: then only the mark advances. Readers see the effects when this returns; they need not
    /// be durable yet. Should take about a millisecond at most.
    fn apply(&mut self, mark: &[u8], payloads: &[Bytes]) -> Result<Vec<Bytes>, MachineError>;

    /// Makes everything applied durable. The log may be purged up to there afterwards.
    fn flush(&mut self) -> Result<(), MachineError>;

    /// The same as [`Machine::flush`] as work for another thread, so that applying goes on meanwhile. `None`: not offered.
    fn flusher(&mut self) -> Option<Flusher> {
        None
    }

    /// A consistent copy of the state as of now, read lazily while further batches are applied.
    fn write_image(&mut self) -> Result<Box<dyn ImageSource>, MachineError>;

    /// Replaces the whole state by the image's chunks and stores `mark`.
    ///
    /// After an error or a crash in the middle the call is repeated with the same image before anything else is applied.
    fn read_image(
        &mut self,
        mark: &[u8],
        chunks: &mut dyn Iterator<Item = Result<Bytes, MachineError>>,
    ) -> Result<(), MachineError>;
}

/// The chunks of an image, in order. They arrive at [`Machine::read_image`] cut as they were made.
pub trait ImageSource: Send {
    /// The next chunk, of at most 4 MiB; `None` after the last.
    fn next(&mut self) -> Result<Option<Bytes>, MachineError>;
}
