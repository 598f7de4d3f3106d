//! The vocabulary of Pando: ids, names, attributes, commands, requests, errors and limits.
//!
//! Pure values and their codec. Not here: clocks, randomness, files, sockets, locks.
//! Invariant: a value of a checked type ([`FileName`], [`XattrName`]) is valid by construction, also after decoding.

pub mod attr;
pub mod codec;
pub mod command;
pub mod epoch;
pub mod error;
pub mod extent;
pub mod hash;
pub mod ids;
pub mod intent;
pub mod limits;
pub mod name;
pub mod request;
pub mod shard_map;

pub use attr::{Attr, FileKind, Timestamp};
pub use command::{Command, Envelope, LogEntry, Reply};
pub use epoch::{Generation, MapEpoch};
pub use error::{Errno, ErrorKind, FsError};
pub use extent::{Extent, FileRange};
pub use ids::{InodeId, NodeId, OpId, SegmentId, SessionId, ShardId, SlotId};
pub use name::{FileName, XattrName};
