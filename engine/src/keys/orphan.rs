//! Orphan: an inode without a name, and the session that holds it open; and the index of orphans by holder.
//!
//! Record: key inode; value version, holder u64 (0: nobody), birth u64. Index: key slot, holder u64, inode u64; value version.
//! An orphan is free when its holder is nobody or a session that has ended: ending a session touches no orphan.

use pando_types::{Generation, InodeId, SessionId, SlotId};

use super::layout::{Fields, VERSION};
use super::{KeyKind, of_inode, prefix, split};
use crate::error::Corrupt;

/// The value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Orphan {
    /// Who has it open; [`SessionId::LEADER`] is nobody.
    pub holder: SessionId,
    /// Generation of the last write.
    pub birth: Generation,
}

/// The record's key.
pub fn key(inode: InodeId) -> Vec<u8> {
    of_inode(KeyKind::Orphan, inode, 0)
}

/// The index's key.
pub fn index_key(holder: SessionId, inode: InodeId) -> Vec<u8> {
    let mut key = index_prefix(inode.slot(), holder);
    key.extend_from_slice(&inode.0.to_be_bytes());
    key
}

/// What the index keys of a slot's orphans of a holder begin with.
pub fn index_prefix(slot: SlotId, holder: SessionId) -> Vec<u8> {
    prefix(slot.0, KeyKind::OrphanOf, holder.0, 8)
}

/// The index's value.
pub fn index_value() -> Vec<u8> {
    vec![VERSION]
}

/// Holder and inode of an index key.
pub fn parse_index(key: &[u8]) -> Result<(SessionId, InodeId), Corrupt> {
    let (_, _, holder, rest) = split(key)?;
    let mut fields = Fields::key("orphan index", rest);
    let inode = fields.key_inode()?;
    fields.end()?;
    Ok((SessionId(holder), inode))
}

impl Orphan {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = vec![VERSION];
        value.extend_from_slice(&self.holder.0.to_le_bytes());
        value.extend_from_slice(&self.birth.0.to_le_bytes());
        value
    }

    /// Reads a value.
    pub fn decode(bytes: &[u8]) -> Result<Orphan, Corrupt> {
        let mut fields = Fields::value("orphan", bytes)?;
        let orphan = Orphan { holder: SessionId(fields.u64()?), birth: Generation(fields.u64()?) };
        fields.end()?;
        Ok(orphan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden() {
        assert_eq!(key(InodeId(2)), [0, 0, 0, 0, 0x25, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(
            index_key(SessionId(3), InodeId::new(SlotId(1), 2)),
            [0, 0, 0, 1, 0x28, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0x10, 0, 0, 0, 0, 2]
        );
        let orphan = Orphan { holder: SessionId(3), birth: Generation(4) };
        assert_eq!(orphan.encode(), [1, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(index_value(), [1]);
    }

    proptest! {
        #[test]
        fn round_trip(holder: u64, inode: u64, birth: u64) {
            let key = index_key(SessionId(holder), InodeId(inode));
            prop_assert_eq!(parse_index(&key).unwrap(), (SessionId(holder), InodeId(inode)));
            let orphan = Orphan { holder: SessionId(holder), birth: Generation(birth) };
            prop_assert_eq!(Orphan::decode(&orphan.encode()).unwrap(), orphan);
        }

        #[test]
        fn any_bytes_decode_or_are_corrupt(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = (parse_index(&bytes), Orphan::decode(&bytes));
        }
    }
}
