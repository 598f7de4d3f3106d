//! The engine's errors. A refused operation is a reply and not among them.

use pando_types::Errno;

use crate::kv::KvError;

/// A stored record is not what was written, or two records contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("stored metadata is damaged: {0}; run `pando fsck`")]
pub struct Corrupt(pub String);

/// Why a batch could not be applied. The shard replica must halt: its state may be behind its log.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The store failed.
    #[error("the state store failed: {0}")]
    Kv(#[from] KvError),
    /// The state contradicts itself.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// An earlier batch failed.
    #[error("this replica has halted after an earlier error; restart it to recover from the log")]
    Halted,
}

/// Why a read gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// What the system call reports.
    #[error("refused: {0}")]
    Refused(Errno),
    /// The state contradicts itself.
    #[error("{0}")]
    Corrupt(String),
    /// The store failed.
    #[error("the state store failed: {0}")]
    Kv(#[from] KvError),
}

impl From<Errno> for ReadError {
    fn from(errno: Errno) -> ReadError {
        ReadError::Refused(errno)
    }
}

impl From<Corrupt> for ReadError {
    fn from(corrupt: Corrupt) -> ReadError {
        ReadError::Corrupt(corrupt.to_string())
    }
}
