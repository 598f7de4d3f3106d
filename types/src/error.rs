//! Errors as they travel, and the errno that a system call reports. Decided here alone.

use serde::{Deserialize, Serialize};

use crate::shard_map::ShardMap;

/// A Linux errno value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $value:literal),+ $(,)?) => {
        #[allow(missing_docs)]
        impl Errno {
            $(pub const $name: Errno = Errno($value);)+
        }

        impl std::fmt::Debug for Errno {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.0 {
                    $($value => f.write_str(stringify!($name)),)+
                    other => write!(f, "errno {other}"),
                }
            }
        }
    };
}

// Linux, generic ABI (x86_64, aarch64): asm-generic/errno-base.h and errno.h.
errnos! {
    EPERM = 1, ENOENT = 2, EINTR = 4, EIO = 5, ENXIO = 6, E2BIG = 7, EBADF = 9, EAGAIN = 11, ENOMEM = 12, EACCES = 13,
    EBUSY = 16, EEXIST = 17, EXDEV = 18, ENODEV = 19, ENOTDIR = 20, EISDIR = 21, EINVAL = 22, ENOTTY = 25, ETXTBSY = 26,
    EFBIG = 27, ENOSPC = 28, EROFS = 30, EMLINK = 31, ERANGE = 34, ENAMETOOLONG = 36, ENOSYS = 38, ENOTEMPTY = 39,
    ELOOP = 40, ENODATA = 61, EOPNOTSUPP = 95, ETIMEDOUT = 110, ESTALE = 116, EDQUOT = 122,
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for Errno {}

/// What a caller should do about an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorKind {
    /// The request cannot be granted; report the errno.
    User,
    /// Ask the shard's owner of this newer map.
    Redirect(Box<ShardMap>),
    /// Over a limit: wait this many milliseconds, then retry.
    Throttled(u64),
    /// No leader, starting or stopping: retry with backoff.
    Unavailable,
    /// The session has ended: open a new one; unfinished operations are lost.
    Stale,
    /// Stored data is damaged; reading it again will not help.
    Corrupt,
    /// A defect of Pando; the detail belongs in a report.
    Bug,
}

/// An error on the wire and at every crate's edge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{detail} ({errno})")]
pub struct FsError {
    /// What to do about it.
    pub kind: ErrorKind,
    /// What a system call reports when nothing else can be done.
    pub errno: Errno,
    /// A sentence for a person, without secrets.
    pub detail: String,
}

impl FsError {
    /// A refusal with an errno that says it all.
    pub fn user(errno: Errno) -> FsError {
        FsError { kind: ErrorKind::User, errno, detail: "the request was refused".into() }
    }

    /// Retry later, elsewhere or both.
    pub fn unavailable(detail: impl Into<String>) -> FsError {
        FsError { kind: ErrorKind::Unavailable, errno: Errno::EIO, detail: detail.into() }
    }

    /// The client's session is not known any more.
    pub fn stale(detail: impl Into<String>) -> FsError {
        FsError { kind: ErrorKind::Stale, errno: Errno::ESTALE, detail: detail.into() }
    }

    /// Stored bytes are not what was written.
    pub fn corrupt(detail: impl Into<String>) -> FsError {
        FsError { kind: ErrorKind::Corrupt, errno: Errno::EIO, detail: detail.into() }
    }

    /// A broken invariant of Pando itself.
    pub fn bug(detail: impl Into<String>) -> FsError {
        FsError { kind: ErrorKind::Bug, errno: Errno::EIO, detail: detail.into() }
    }
}

impl From<Errno> for FsError {
    fn from(errno: Errno) -> FsError {
        FsError::user(errno)
    }
}
