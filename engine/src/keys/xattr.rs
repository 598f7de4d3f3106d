//! Extended attribute, POSIX ACLs included (in Linux's xattr form).
//!
//! Key: inode, name. Value: version, birth u64, bytes.

use pando_types::{Generation, InodeId, XattrName};

use super::layout::{Fields, VERSION};
use super::{KeyKind, of_inode, owner};
use crate::error::Corrupt;

/// The key.
pub fn key(inode: InodeId, name: &[u8]) -> Vec<u8> {
    let mut key = of_inode(KeyKind::Xattr, inode, name.len());
    key.extend_from_slice(name);
    key
}

/// What all keys of an inode's attributes begin with.
pub fn prefix(inode: InodeId) -> Vec<u8> {
    of_inode(KeyKind::Xattr, inode, 0)
}

/// Inode and name of a key.
pub fn parse(key: &[u8]) -> Result<(InodeId, XattrName), Corrupt> {
    let (inode, name) = owner(key)?;
    let name = XattrName::new(name).map_err(|_| Corrupt(format!("inode {inode} has an xattr with an invalid name")))?;
    Ok((inode, name))
}

/// The value.
pub fn encode(bytes: &[u8], birth: Generation) -> Vec<u8> {
    let mut value = Vec::with_capacity(9 + bytes.len());
    value.push(VERSION);
    value.extend_from_slice(&birth.0.to_le_bytes());
    value.extend_from_slice(bytes);
    value
}

/// The attribute's bytes, without copying them.
pub fn decode(mut value: Vec<u8>) -> Result<Vec<u8>, Corrupt> {
    let mut fields = Fields::value("xattr", &value)?;
    fields.u64()?;
    let head = value.len() - fields.rest().len();
    value.drain(..head);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden() {
        assert_eq!(key(InodeId(1), b"user.a")[4..], *b"\x23\0\0\0\0\0\0\0\x01user.a");
        assert_eq!(encode(b"v", Generation(2)), [1, 2, 0, 0, 0, 0, 0, 0, 0, b'v']);
    }

    proptest! {
        #[test]
        fn round_trip(inode: u64, name in proptest::collection::vec(1u8..=255, 1..255),
                      bytes in proptest::collection::vec(any::<u8>(), 0..99), birth: u64) {
            let name = XattrName::new(&name).unwrap();
            prop_assert_eq!(parse(&key(InodeId(inode), name.as_bytes())).unwrap(), (InodeId(inode), name));
            prop_assert_eq!(decode(encode(&bytes, Generation(birth))).unwrap(), bytes);
        }

        #[test]
        fn any_bytes_decode_or_are_corrupt(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = (parse(&bytes), decode(bytes));
        }
    }
}
