//! The mount: Pando as a directory of this machine, through FUSE.
//!
//! Not here: caching of bytes, commits, retries (pando-client). Kernel -> `adapter.rs` -> `fs.rs` -> client.
//! Invariants: no request waits longer than the client's retry deadline; fuser's types stay in `adapter.rs`, `convert.rs` and `mount.rs`.

mod adapter;
mod convert;
mod fs;
mod handles;
mod inodes;
mod mount;
mod mountpoint;
mod running;
mod volume;

pub use mount::{MountOptions, Mounted, mount};
pub use mountpoint::{MountError, unmount};
