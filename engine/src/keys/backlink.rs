//! Back-link: one per dentry of a file beyond the first, whose directory the inode itself names.
//!
//! Key: inode, parent u64, name. Value: version, birth u64. Invariant: there are `nlink - 1` of them.

use pando_types::{FileName, Generation, InodeId};

use super::layout::{Fields, VERSION};
use super::{KeyKind, of_inode, owner};
use crate::error::Corrupt;

/// The key.
pub fn key(inode: InodeId, parent: InodeId, name: &FileName) -> Vec<u8> {
    let mut key = of_inode(KeyKind::Backlink, inode, 8 + name.as_bytes().len());
    key.extend_from_slice(&parent.0.to_be_bytes());
    key.extend_from_slice(name.as_bytes());
    key
}

/// What all keys of an inode's back-links begin with.
pub fn prefix(inode: InodeId) -> Vec<u8> {
    of_inode(KeyKind::Backlink, inode, 0)
}

/// Inode, parent and name of a key.
pub fn parse(key: &[u8]) -> Result<(InodeId, InodeId, FileName), Corrupt> {
    let (inode, rest) = owner(key)?;
    let mut fields = Fields::key("back-link", rest);
    let parent = fields.key_inode()?;
    let name = FileName::new(fields.rest())
        .map_err(|_| Corrupt(format!("inode {inode} has a back-link with an invalid name")))?;
    Ok((inode, parent, name))
}

/// The value.
pub fn encode(birth: Generation) -> Vec<u8> {
    let mut value = vec![VERSION];
    value.extend_from_slice(&birth.0.to_le_bytes());
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden() {
        let name = FileName::new(b"x").unwrap();
        assert_eq!(key(InodeId(2), InodeId(1), &name)[4..], *b"\x24\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x01x");
        assert_eq!(encode(Generation(3)), [1, 3, 0, 0, 0, 0, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn round_trip(inode: u64, parent: u64, name in proptest::collection::vec(48u8..=255, 1..255)) {
            let name = FileName::new(&name).unwrap();
            let back = parse(&key(InodeId(inode), InodeId(parent), &name)).unwrap();
            prop_assert_eq!(back, (InodeId(inode), InodeId(parent), name));
        }

        #[test]
        fn any_bytes_decode_or_are_corrupt(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse(&bytes);
        }
    }
}
