//! Many Raft groups on one node: propose, read fence, restart, image shipping.
//!
//! Knows nothing of inodes: a [`Machine`] applies opaque payloads. The consensus library is fenced in here; none of
//! its types leave this crate, and everything it stores is written in formats of our own (`log/records.rs`, `mark.rs`).
//!
//! Invariants:
//! - a proposal is answered only after a majority has it on disk and the local machine has applied it;
//! - the log is never purged above what the machine has made durable;
//! - after a failed write or fsync of the log nothing is accepted until restart.

mod applier;
mod error;
mod group;
mod host;
mod image;
mod limits;
mod log;
mod machine;
mod mark;
mod raft_types;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "testing_test.rs"]
mod testing;
mod transport;

pub use error::{ProposeError, RaftError};
pub use group::Group;
pub use host::{Host, Options, SyncFault};
pub use machine::{Flusher, ImageSource, Machine, MachineError};
pub use transport::{PeerAnswer, PeerError, Peers, Solo};
