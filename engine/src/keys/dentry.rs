//! Dentry: (parent, name) -> inode and its kind.
//!
//! Key: parent, name. Value: version, kind, inode, birth u64. The kind repeats the inode's, so that a listing needs no inode.

use pando_types::{FileKind, FileName, Generation, InodeId};

use super::layout::{Fields, VERSION};
use super::{KeyKind, of_inode, owner};
use crate::error::Corrupt;

/// The value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dentry {
    /// What the name means.
    pub inode: InodeId,
    /// What that is.
    pub kind: FileKind,
    /// Generation of the last write.
    pub birth: Generation,
}

/// The key.
pub fn key(parent: InodeId, name: &FileName) -> Vec<u8> {
    let mut key = of_inode(KeyKind::Dentry, parent, name.as_bytes().len());
    key.extend_from_slice(name.as_bytes());
    key
}

/// What all keys of a directory's entries begin with.
pub fn prefix(parent: InodeId) -> Vec<u8> {
    of_inode(KeyKind::Dentry, parent, 0)
}

/// Directory and name of a key.
pub fn parse(key: &[u8]) -> Result<(InodeId, FileName), Corrupt> {
    let (parent, name) = owner(key)?;
    let name = FileName::new(name)
        .map_err(|_| Corrupt(format!("directory {parent} has an invalid name \"{}\"", name.escape_ascii())))?;
    Ok((parent, name))
}

impl Dentry {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(18);
        value.extend_from_slice(&[VERSION, self.kind as u8]);
        value.extend_from_slice(&self.inode.0.to_le_bytes());
        value.extend_from_slice(&self.birth.0.to_le_bytes());
        value
    }

    /// Reads a value.
    pub fn decode(bytes: &[u8]) -> Result<Dentry, Corrupt> {
        let mut fields = Fields::value("dentry", bytes)?;
        let kind = fields.u8()?;
        let kind = FileKind::from_byte(kind).ok_or_else(|| Corrupt(format!("dentry record has kind {kind}")))?;
        let dentry = Dentry { kind, inode: InodeId(fields.u64()?), birth: Generation(fields.u64()?) };
        fields.end()?;
        Ok(dentry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden() {
        let name = FileName::new(b"ab").unwrap();
        assert_eq!(key(InodeId(1), &name), [0, 0, 0, 0, 0x21, 0, 0, 0, 0, 0, 0, 0, 1, b'a', b'b']);
        let dentry = Dentry { inode: InodeId(2), kind: FileKind::Directory, birth: Generation(3) };
        assert_eq!(dentry.encode(), [1, 2, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn round_trip(parent: u64, inode: u64, kind in 1u8..8, birth: u64, name in proptest::collection::vec(1u8..47, 1..255)) {
            prop_assume!(name != b"." && name != b"..");
            let name = FileName::new(&name).unwrap();
            prop_assert_eq!(parse(&key(InodeId(parent), &name)).unwrap(), (InodeId(parent), name));
            let dentry = Dentry { inode: InodeId(inode), kind: FileKind::from_byte(kind).unwrap(), birth: Generation(birth) };
            prop_assert_eq!(Dentry::decode(&dentry.encode()).unwrap(), dentry);
        }

        #[test]
        fn any_bytes_decode_or_are_corrupt(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = (parse(&bytes), Dentry::decode(&bytes));
        }
    }
}
