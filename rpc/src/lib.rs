//! Moving requests and answers between processes over TCP.
//!
//! Not here: what a request means (the metaserver), when to retry (the client), transport security (a later issue; until
//! then a server listens on the loopback interface unless its owner allows more).
//! Invariants: no bytes from a peer make a process fail or take more memory than the limits allow; every wait ends.

use std::io;

use pando_types::codec::DecodeError;
use pando_types::{Errno, ErrorKind, FsError};

mod deadline;
mod fault;
mod frame;
mod local;
mod pool;
mod server;

pub use deadline::Deadline;
pub use fault::{Faults, Rates};
pub use local::Local;
pub use pool::Pool;
pub use server::{Handler, Server};

/// Why a message could not be moved.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    /// No server there, or it does not let us in.
    #[error("cannot connect to {address}: {source}; is the metadata server running there?")]
    Connect {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The other side speaks another version.
    #[error(
        "{address} speaks rpc version {theirs}, this program version {ours}; run the same version of Pando on both sides"
    )]
    Version {
        /// Who.
        address: String,
        /// Its version.
        theirs: u16,
        /// Ours.
        ours: u16,
    },
    /// The other side is some other program.
    #[error("what listens at {address} is not a Pando metadata server; check the address")]
    NotPando {
        /// Where.
        address: String,
    },
    /// No answer in time; the request may or may not have been carried out.
    #[error("no answer from {address} within {waited_ms} ms")]
    TimedOut {
        /// Who.
        address: String,
        /// How long, in milliseconds.
        waited_ms: u64,
    },
    /// The connection ended before the answer; the request may or may not have been carried out.
    #[error("the connection to {address} ended before the answer came")]
    Disconnected {
        /// Who.
        address: String,
    },
    /// A message is larger than a frame may be.
    #[error("a message of {bytes} bytes is larger than a frame may be")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The answer could not be read.
    #[error("the answer of {address} cannot be read: {source}")]
    Damaged {
        /// Who.
        address: String,
        /// Why.
        source: DecodeError,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose another address or stop what uses it")]
    Bind {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// Refused to listen where other machines could connect.
    #[error(
        "{address} is not a loopback address, and connections are not protected yet; set allow_remote only on a network you trust"
    )]
    NotLoopback {
        /// Where.
        address: String,
    },
}

impl From<RpcError> for FsError {
    fn from(error: RpcError) -> FsError {
        let detail = error.to_string();
        let kind = match error {
            RpcError::Connect { .. } | RpcError::TimedOut { .. } | RpcError::Disconnected { .. } => {
                return FsError::unavailable(detail);
            }
            RpcError::TooLarge { .. } | RpcError::Damaged { .. } => ErrorKind::Bug,
            RpcError::Version { .. }
            | RpcError::NotPando { .. }
            | RpcError::Bind { .. }
            | RpcError::NotLoopback { .. } => ErrorKind::User,
        };
        FsError { kind, errno: Errno::EIO, detail }
    }
}
