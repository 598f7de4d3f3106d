//! Segments: the immutable objects that hold file bytes, and the store that keeps them.
//!
//! [`Writer`] packs bytes into a segment, [`Store`] keeps it in a local directory or in S3 and reads it back, checked.
//! Not here: which segment a file's bytes are in (extents, kept by the metadata servers), when a segment is written
//! (the client) and when it is deleted (the metadata servers' gc). Only this crate knows object_store.
//!
//! Invariants: an object is written once under a name of its own, and nothing depends on conditional puts; what
//! [`Store::read`] returns is what was written, or an error; a put that returned is durable.

pub mod error;
pub mod faults;
pub mod format;
mod reader;
pub mod store;
pub mod writer;

pub use error::SegmentError;
pub use faults::{Fault, Faults, Operation};
pub use format::Owner;
pub use store::{Environment, Listed, RetryPolicy, Store, StoreConfig};
pub use writer::Writer;
