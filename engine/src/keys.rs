//! The table of record kinds and how a key is put together.
//!
//! Key = slot (u32 BE) | kind (u8) | id (u64 BE) | rest; values begin with a version byte. Records of the shard itself lie in the
//! slot number [`SHARD_SLOT`], which no inode has, with the shard as id; everything about a slot's files lies in the slot, so
//! that a slot changes hands without being touched. In a slot, all inodes come before all
//! dentries and these before extents: `ls -l` touches two runs of neighbours, and a tree's bulk (extents) lies apart.
//! Invariants: byte values are never reused; a record's file owns its key and value and shows golden bytes.

use pando_types::{InodeId, ShardId, SlotId};

use crate::error::Corrupt;

pub mod backlink;
pub mod counter;
pub mod dentry;
pub mod extent;
pub mod inode;
pub mod intent;
pub mod layout;
pub mod op_result;
pub mod orphan;
pub mod removed;
pub mod segment;
pub mod session;
pub mod shard;
pub mod shard_map;
pub mod slots;
pub mod usage;
pub mod xattr;

/// The slot part of keys of shard records; not a slot of inodes.
pub const SHARD_SLOT: u32 = u32::MAX;

/// Bytes of a key up to and including the id.
pub const PREFIX_BYTES: usize = 13;

/// What a key's record is. 0 and 255 stay unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum KeyKind {
    /// Next inode sequence of a slot.
    Counter = 0x10,
    /// Inodes and bytes of a slot.
    Usage = 0x11,
    /// Attributes, inline data or link target.
    Inode = 0x20,
    /// (parent, name) -> inode.
    Dentry = 0x21,
    /// File range -> segment.
    Extent = 0x22,
    /// Extended attribute.
    Xattr = 0x23,
    /// Dentry beyond the first of a file with several links.
    Backlink = 0x24,
    /// Nameless inode and its holder.
    Orphan = 0x25,
    /// Live bytes of a segment.
    Segment = 0x26,
    /// A segment without live bytes, to be deleted.
    DeadSegment = 0x27,
    /// Orphans by holder.
    OrphanOf = 0x28,
    /// Clock, generation, session counter and totals of a shard.
    State = 0x40,
    /// The mark of the last applied batch.
    Applied = 0x41,
    /// A client's registration.
    Session = 0x42,
    /// Replies of a session that the client may still ask for.
    OpResult = 0x43,
    /// Slots, shards and nodes; of shard 0 alone.
    ShardMap = 0x47,
    /// The slots that the shard owns.
    Slots = 0x48,
    /// What a change of several shards has locked.
    Intent = 0x49,
    /// What a change of several shards, decided here, has left to others.
    Decided = 0x4a,
    /// The shard's replica here was removed: what is left of it goes.
    Removed = 0x4b,
}

impl KeyKind {
    /// Every kind, in key order.
    pub const ALL: [KeyKind; 20] = {
        use KeyKind::*;
        [
            Counter,
            Usage,
            Inode,
            Dentry,
            Extent,
            Xattr,
            Backlink,
            Orphan,
            Segment,
            DeadSegment,
            OrphanOf,
            State,
            Applied,
            Session,
            OpResult,
            ShardMap,
            Slots,
            Intent,
            Decided,
            Removed,
        ]
    };

    /// The kind with this byte.
    pub fn from_byte(byte: u8) -> Option<KeyKind> {
        KeyKind::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Puts a key together; `rest` is the space reserved for what follows.
pub(crate) fn prefix(slot: u32, kind: KeyKind, id: u64, rest: usize) -> Vec<u8> {
    let mut key = Vec::with_capacity(PREFIX_BYTES + rest);
    key.extend_from_slice(&slot.to_be_bytes());
    key.push(kind as u8);
    key.extend_from_slice(&id.to_be_bytes());
    key
}

pub(crate) fn of_inode(kind: KeyKind, inode: InodeId, rest: usize) -> Vec<u8> {
    prefix(inode.slot().0, kind, inode.0, rest)
}

pub(crate) fn of_shard(kind: KeyKind, shard: ShardId, rest: usize) -> Vec<u8> {
    prefix(SHARD_SLOT, kind, u64::from(shard.0), rest)
}

/// The first key after all keys that begin with `prefix`.
pub fn after(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![u8::MAX; PREFIX_BYTES + 1]
}

/// What all keys of a kind in a slot begin with.
pub(crate) fn slot_prefix(slot: SlotId, kind: KeyKind) -> Vec<u8> {
    let mut key = slot.0.to_be_bytes().to_vec();
    key.push(kind as u8);
    key
}

/// Where the records of a shard lie, but for the applied mark: in its slots, then under its own id. Ranges `[from, to)`.
pub fn of_owner(slots: &slots::Slots, shard: ShardId) -> Vec<(Vec<u8>, Vec<u8>)> {
    let runs = slots.runs().iter();
    let mut ranges: Vec<_> =
        runs.map(|(first, last)| (first.0.to_be_bytes().to_vec(), (last.0 + 1).to_be_bytes().to_vec())).collect();
    for kind in KeyKind::ALL
        .into_iter()
        .filter(|kind| *kind >= KeyKind::State && !matches!(kind, KeyKind::Applied | KeyKind::Removed))
    {
        let prefix = of_shard(kind, shard, 0);
        let end = after(&prefix);
        ranges.push((prefix, end));
    }
    ranges
}

/// Every key of the store: `[from, to)`.
pub fn whole() -> (Vec<u8>, Vec<u8>) {
    (Vec::new(), after(&[]))
}

/// A key's slot, kind, id and rest.
pub fn split(key: &[u8]) -> Result<(u32, KeyKind, u64, &[u8]), Corrupt> {
    let damaged = || Corrupt(format!("key \"{}\" is of no known kind", key.escape_ascii()));
    let (prefix, rest) = key.split_at_checked(PREFIX_BYTES).ok_or_else(damaged)?;
    let slot = u32::from_be_bytes(prefix[..4].try_into().expect("four bytes"));
    let kind = KeyKind::from_byte(prefix[4]).ok_or_else(damaged)?;
    let id = u64::from_be_bytes(prefix[5..].try_into().expect("eight bytes"));
    Ok((slot, kind, id, rest))
}

/// The inode of an inode-keyed record.
pub(crate) fn owner(key: &[u8]) -> Result<(InodeId, &[u8]), Corrupt> {
    let (slot, _, id, rest) = split(key)?;
    let inode = InodeId(id);
    if inode.slot() != SlotId(slot) {
        return Err(Corrupt(format!("key \"{}\" lies in another slot than its inode", key.escape_ascii())));
    }
    Ok((inode, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_keep_their_bytes() {
        let bytes: Vec<u8> = KeyKind::ALL.iter().map(|kind| *kind as u8).collect();
        assert_eq!(
            bytes,
            [
                0x10, 0x11, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x40, 0x41, 0x42, 0x43, 0x47, 0x48,
                0x49, 0x4a, 0x4b
            ],
            "byte values are never reused"
        );
        assert!(KeyKind::ALL.iter().all(|kind| KeyKind::from_byte(*kind as u8) == Some(*kind)));
    }

    #[test]
    fn the_end_of_a_prefix_is_after_all_its_keys() {
        assert_eq!(after(&[1, 2]), [1, 3]);
        assert_eq!(after(&[1, 255]), [2]);
        let (from, to) = whole();
        let last = prefix(u32::MAX, KeyKind::ShardMap, u64::MAX, 0);
        assert!(from < last && last < to);
    }

    #[test]
    fn a_key_splits_into_its_parts() {
        let key = prefix(7, KeyKind::Xattr, 9, 0);
        assert_eq!(split(&key).unwrap(), (7, KeyKind::Xattr, 9, &b""[..]));
        assert!(split(&key[..12]).is_err());
        assert!(owner(&key).is_err(), "inode 9 is of slot 0");
    }
}
