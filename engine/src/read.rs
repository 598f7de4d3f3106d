//! Reads over a [`View`](crate::View): one applied state, nothing staged.
//!
//! Not here: permission checks (the kernel's and the client's), leases. Invariant: a read never writes.

mod admin;
mod content;
mod directory;
mod inode;
mod xattr;

pub use admin::{
    dead_segments, decided, free_orphans, half, removed_shards, segments_in_use, sessions, shard_map, shards, slots,
    totals,
};
pub use content::{content, readlink};
pub use directory::{Found, lookup, parent, readdir};
pub use inode::getattr;
pub use xattr::{getxattr, listxattr};
