//! Inode: attributes in a fixed layout, then inline data or a link's target.
//!
//! Key: inode. Value: version, kind, mode u16, nlink, uid, gid, rdev u32, xattrs u16, flags, 0, size, allocated, atime, mtime, ctime,
//! content version, parent, birth u64, tail. `parent` is the directory of the first dentry (of a file with several
//! links, the others have back-links); of an orphan 0. Invariant: `allocated` = bytes of extents + bytes of inline data.

use pando_types::attr::MODE_BITS;
use pando_types::{Attr, FileKind, Generation, InodeId, Timestamp};

use super::layout::{Fields, VERSION};
use super::{KeyKind, of_inode};
use crate::error::Corrupt;

/// There is an access ACL among the xattrs.
pub const HAS_ACCESS_ACL: u8 = 1;
/// There is a default ACL among the xattrs.
pub const HAS_DEFAULT_ACL: u8 = 2;

const HEAD_BYTES: usize = 88;

/// The fixed part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// What it is.
    pub kind: FileKind,
    /// The 12 bits of `MODE_BITS`.
    pub mode: u32,
    /// Links; directories: 2 and one per subdirectory.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Number of xattr records.
    pub xattrs: u16,
    /// `HAS_*` bits.
    pub flags: u8,
    /// Bytes; directories: entries.
    pub size: u64,
    /// Bytes of extents and inline data.
    pub allocated: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Raised with each change of content.
    pub version: u64,
    /// Directory of the first dentry.
    pub parent: InodeId,
    /// Generation of the last write.
    pub birth: Generation,
}

/// The whole record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// The fixed part.
    pub head: Head,
    /// Inline data of a file, target of a symbolic link.
    pub tail: Vec<u8>,
}

/// The key.
pub fn key(inode: InodeId) -> Vec<u8> {
    of_inode(KeyKind::Inode, inode, 0)
}

impl Head {
    /// A new inode with one link, of this time and generation; the rest is 0.
    pub fn new(kind: FileKind, now: Timestamp, birth: Generation) -> Head {
        Head {
            kind,
            mode: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            xattrs: 0,
            flags: 0,
            size: 0,
            allocated: 0,
            atime: now,
            mtime: now,
            ctime: now,
            version: 1,
            parent: InodeId(0),
            birth,
        }
    }

    /// Reads the fixed part; the tail is the rest.
    pub fn decode(bytes: &[u8]) -> Result<(Head, &[u8]), Corrupt> {
        let mut fields = Fields::value("inode", bytes)?;
        let kind = fields.u8()?;
        let kind = FileKind::from_byte(kind).ok_or_else(|| Corrupt(format!("inode record has kind {kind}")))?;
        let head = Head {
            kind,
            mode: u32::from(fields.u16()?) & MODE_BITS,
            nlink: fields.u32()?,
            uid: fields.u32()?,
            gid: fields.u32()?,
            rdev: fields.u32()?,
            xattrs: fields.u16()?,
            flags: fields.u16()? as u8,
            size: fields.u64()?,
            allocated: fields.u64()?,
            atime: Timestamp(fields.i64()?),
            mtime: Timestamp(fields.i64()?),
            ctime: Timestamp(fields.i64()?),
            version: fields.u64()?,
            parent: InodeId(fields.u64()?),
            birth: Generation(fields.u64()?),
        };
        Ok((head, fields.rest()))
    }

    /// As a system call sees it.
    pub fn attr(&self, inode: InodeId) -> Attr {
        Attr {
            inode,
            kind: self.kind,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            allocated: self.allocated,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            version: self.version,
        }
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

impl Inode {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let head = &self.head;
        let mut value = Vec::with_capacity(HEAD_BYTES + self.tail.len());
        value.extend_from_slice(&[VERSION, head.kind as u8]);
        value.extend_from_slice(&((head.mode & MODE_BITS) as u16).to_le_bytes());
        for field in [head.nlink, head.uid, head.gid, head.rdev] {
            value.extend_from_slice(&field.to_le_bytes());
        }
        value.extend_from_slice(&head.xattrs.to_le_bytes());
        value.extend_from_slice(&[head.flags, 0]);
        value.extend_from_slice(&head.size.to_le_bytes());
        value.extend_from_slice(&head.allocated.to_le_bytes());
        for time in [head.atime, head.mtime, head.ctime] {
            value.extend_from_slice(&time.0.to_le_bytes());
        }
        value.extend_from_slice(&head.version.to_le_bytes());
        value.extend_from_slice(&head.parent.0.to_le_bytes());
        value.extend_from_slice(&head.birth.0.to_le_bytes());
        debug_assert_eq!(value.len(), HEAD_BYTES);
        value.extend_from_slice(&self.tail);
        value
    }

    /// Reads a value.
    pub fn decode(bytes: &[u8]) -> Result<Inode, Corrupt> {
        let (head, tail) = Head::decode(bytes)?;
        Ok(Inode { head, tail: tail.to_vec() })
    }

    /// Bytes that lie in the inode itself; a link's target counts as none.
    pub fn inline_bytes(&self) -> u64 {
        if self.head.kind == FileKind::File { self.tail.len() as u64 } else { 0 }
    }

    /// Whether there are extents.
    pub fn has_extents(&self) -> bool {
        self.head.allocated > self.inline_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Inode {
        Inode {
            head: Head {
                kind: FileKind::File,
                mode: 0o4755,
                nlink: 1,
                uid: 2,
                gid: 3,
                rdev: 4,
                xattrs: 5,
                flags: HAS_ACCESS_ACL,
                size: 6,
                allocated: 7,
                atime: Timestamp(8),
                mtime: Timestamp(-1),
                ctime: Timestamp(10),
                version: 11,
                parent: InodeId(12),
                birth: Generation(13),
            },
            tail: b"hi".to_vec(),
        }
    }

    #[test]
    fn golden() {
        assert_eq!(key(InodeId(0x0000_1000_0000_0005)), [0, 0, 0, 1, 0x20, 0, 0, 0x10, 0, 0, 0, 0, 5]);
        let expected: Vec<u8> = [
            &[1, 1, 0xed, 0x09, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 1, 0][..],
            &[6, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0],
            &[255; 8],
            &[10, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 13, 0, 0, 0, 0, 0, 0, 0],
            b"hi",
        ]
        .concat();
        assert_eq!(sample().encode(), expected);
    }

    proptest! {
        #[test]
        fn round_trip(kind in 1u8..8, mode in 0u32..=0o7777, words: [u32; 4], longs: [u64; 8], xattrs: u16, flags in 0u8..4,
                      tail in proptest::collection::vec(any::<u8>(), 0..64)) {
            let head = Head {
                kind: FileKind::from_byte(kind).unwrap(), mode, nlink: words[0], uid: words[1], gid: words[2], rdev: words[3],
                xattrs, flags, size: longs[0], allocated: longs[1], atime: Timestamp(longs[2] as i64), mtime: Timestamp(longs[3] as i64),
                ctime: Timestamp(longs[4] as i64), version: longs[5], parent: InodeId(longs[6]), birth: Generation(longs[7]),
            };
            let inode = Inode { head, tail };
            prop_assert_eq!(Inode::decode(&inode.encode()).unwrap(), inode);
        }

        #[test]
        fn any_bytes_decode_or_are_corrupt(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = Inode::decode(&bytes);
        }
    }
}
