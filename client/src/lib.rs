//! The library under every front end: metadata calls and open files.
//!
//! Not here: FUSE (client-fuse), servers. Invariant: what `lib.rs` exports is all that front ends use.

mod cache;
pub mod client;
mod file;
mod memory;
pub mod meta;
mod retry;
mod router;
mod session;

pub use client::{Client, ClientConfig, Space, Usage};
pub use file::handle::{HandleId, OpenMode, Opened, SeekTo};
pub use meta::{Meta, Renamed, Unlinked};
pub use pando_rpc::Local;
pub use pando_types::request::{NodeChange, NodeStatus, Replica, Status};
pub use pando_types::shard_map::Shard;
pub use pando_types::{NodeId, ShardId};
pub use retry::RetryPolicy;
