//! Attributes of an inode, as a system call sees them.

use serde::{Deserialize, Serialize};

use crate::ids::InodeId;

/// Nanoseconds since 1970, UTC; reaches from 1677 to 2262.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Timestamp(pub i64);

/// What an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum FileKind {
    /// A regular file.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A named pipe.
    Fifo = 4,
    /// A socket's name.
    Socket = 5,
    /// A character device.
    CharDevice = 6,
    /// A block device.
    BlockDevice = 7,
}

impl FileKind {
    /// The kind stored as this byte.
    pub fn from_byte(byte: u8) -> Option<FileKind> {
        use FileKind::*;
        [File, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice].into_iter().find(|k| *k as u8 == byte)
    }
}

/// Permission bits and suid, sgid, sticky: the low 12 bits of `st_mode`.
pub const MODE_BITS: u32 = 0o7777;
/// Set-user-id bit.
pub const MODE_SETUID: u32 = 0o4000;
/// Set-group-id bit.
pub const MODE_SETGID: u32 = 0o2000;

/// What `stat` tells, and the content's version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// The inode.
    pub inode: InodeId,
    /// What it is.
    pub kind: FileKind,
    /// The 12 bits of [`MODE_BITS`].
    pub mode: u32,
    /// Hard links; of a directory: 2 and one per subdirectory.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as Linux encodes it for user space.
    pub rdev: u32,
    /// Bytes; of a directory: entries; of a symbolic link: the target's length.
    pub size: u64,
    /// Bytes that the file occupies: its extents and inline data, holes not counted.
    pub allocated: u64,
    /// Last read, as far as it is kept (set by utimensat and creation only).
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Raised with each change of content: page caches of an unchanged version may be kept.
    pub version: u64,
}
