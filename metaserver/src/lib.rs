//! A metadata server node: glue and policy between rpc, Raft, the engine and the object store.
//!
//! Not here: what a command does (engine), consensus (raft), file bytes (clients and the store).
//! Invariants: a change is answered only after its log entry is durable and applied; a read sees every change answered
//! before it; effects outside the state are performed by the leader alone.

mod cluster;
pub mod config;
pub mod data_dir;
mod gc;
mod intents;
mod peers;
mod placement;
mod propose;
mod read;
mod replicas;
mod server;
mod service;
mod sessions;
mod shard;
mod tasks;

pub use config::{Config, ConfigError};
pub use data_dir::DataDirError;
pub use server::{Server, ServerError};
pub use shard::ShardError;
