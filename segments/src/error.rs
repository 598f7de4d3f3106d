//! What can go wrong with segments, each in one sentence that says what to do.
//!
//! Invariant: no message holds a secret; of what a store answers, only its error code is kept.

use pando_types::{Errno, ErrorKind, FsError, SegmentId};

use crate::format::FormatError;

/// Why a segment or the store cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// The store's address cannot be used.
    #[error("the object store `{url}` cannot be used: {why}; give file:///ABSOLUTE/DIRECTORY or s3://BUCKET[/PREFIX]")]
    Address {
        /// As configured.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// The store's directory is not there.
    #[error("the object store's directory {path} does not exist; create it, mount its disk, or name another one")]
    NoDirectory {
        /// The directory.
        path: String,
    },
    /// The store's directory or bucket cannot be written or read.
    #[error("the object store {store} refuses access ({why}); grant this user or key read and write access to it")]
    Forbidden {
        /// The store's address.
        store: String,
        /// The error code.
        why: String,
    },
    /// No credentials to sign requests with.
    #[error(
        "there are no usable S3 credentials ({why}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write \
         a profile into ~/.aws/credentials"
    )]
    NoCredentials {
        /// What was found instead.
        why: String,
    },
    /// The store does not know the credentials.
    #[error(
        "the object store {store} does not accept the credentials ({why}); check AWS_ACCESS_KEY_ID, \
         AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the profile in ~/.aws/credentials"
    )]
    Credentials {
        /// The store's address.
        store: String,
        /// The error code.
        why: String,
    },
    /// The bucket does not exist.
    #[error("the bucket of {store} does not exist; create it, or name another one")]
    NoBucket {
        /// The store's address.
        store: String,
    },
    /// The bucket is elsewhere.
    #[error("the bucket of {store} is in another region ({why}); set AWS_REGION to the bucket's region")]
    Region {
        /// The store's address.
        store: String,
        /// The error code.
        why: String,
    },
    /// The store does not answer.
    #[error("the object store {store} does not answer ({why}); check its endpoint, the network and that it runs")]
    Unreachable {
        /// The store's address.
        store: String,
        /// What happened.
        why: String,
    },
    /// No space.
    #[error("the object store {store} is full; free space there, or move it to a larger disk")]
    Full {
        /// The store's address.
        store: String,
    },
    /// Something referred-to is not in the store.
    #[error(
        "segment {segment} is missing from the object store {store}; restore it from a backup, or delete the \
         files that need it"
    )]
    Missing {
        /// The segment.
        segment: SegmentId,
        /// The store's address.
        store: String,
    },
    /// The stored bytes are not what was written.
    #[error(
        "segment {segment} in the object store {store} is damaged: {why}; restore it from a backup, or delete \
         the files that need it"
    )]
    Corrupt {
        /// The segment.
        segment: SegmentId,
        /// The store's address.
        store: String,
        /// What is wrong with it.
        why: String,
    },
    /// Written by a later Pando.
    #[error("segment {segment} cannot be read: {why}; upgrade Pando here")]
    Version {
        /// The segment.
        segment: SegmentId,
        /// What is wrong with it.
        why: FormatError,
    },
    /// Anything else that the store said.
    #[error("the object store {store} failed ({why}); see its own log, then try again")]
    Failed {
        /// The store's address.
        store: String,
        /// The error code.
        why: String,
        /// Whether the same request may well succeed a little later.
        transient: bool,
    },
}

impl SegmentError {
    /// Whether the same request may well succeed a little later.
    pub fn is_transient(&self) -> bool {
        matches!(self, SegmentError::Unreachable { .. } | SegmentError::Failed { transient: true, .. })
    }
}

impl From<SegmentError> for FsError {
    fn from(error: SegmentError) -> FsError {
        let detail = error.to_string();
        match error {
            SegmentError::Missing { .. } | SegmentError::Corrupt { .. } => FsError::corrupt(detail),
            SegmentError::Full { .. } => FsError { kind: ErrorKind::User, errno: Errno::ENOSPC, detail },
            _ => FsError::unavailable(detail),
        }
    }
}
