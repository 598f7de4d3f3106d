//! The single-node metadata engine: deterministic, synchronous, pure but for its key-value store.
//!
//! A log entry goes in, replies and effects come out, one write batch goes to the store ([`Engine::apply`]).
//! Not here: consensus, clocks, randomness, sockets, and whatever a leader does about an [`Effect`].
//! Invariant: the same entries, in whatever batches, give the same bytes in the store.

pub mod acl;
pub mod effect;
pub mod engine;
pub mod error;
pub mod fsck;
pub mod keys;
pub mod kv;
pub mod locks;
pub mod read;

#[cfg(test)]
#[path = "harness_test.rs"]
mod harness;
mod ops;
mod txn;

pub use effect::Effect;
pub use engine::{Applied, Engine, rehearse};
pub use error::{Corrupt, EngineError, ReadError};
pub use fsck::fsck;
pub use kv::{Batch, Kv, KvError, View};
pub use locks::Locks;
