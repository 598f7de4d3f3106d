//! Reads over a [`View`](crate::View): one applied state, nothing staged.
//!
//! Not here: permission checks (the kernel's and the client's), leases. Invariant: a read never writes.

mod admin;
mod content;
mod directory;
mod inode;
mod xattr;

pub use admin::{dead_segments, free_orphans, segments_in_use, sessions, shard_map, totals};
pub use content::{content, readlink};
pub use directory::{lookup, parent, readdir};
pub use inode::getattr;
pub use xattr::{getxattr, listxattr};
