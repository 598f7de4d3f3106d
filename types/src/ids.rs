//! Identifiers as types, never bare integers.
//!
//! Invariant: an inode id is slot (high 20 bits) and sequence (low 44 bits); it is never reused.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        pub struct $name(pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// Names a file, directory or other object for ever: slot (20 bits) and sequence (44 bits).
    InodeId(u64)
);
id!(
    /// The unit of placement inside an inode id; only the low 20 bits are used.
    SlotId(u32)
);
id!(
    /// A Raft group and the slots it owns.
    ShardId(u32)
);
id!(
    /// A metadata server process.
    NodeId(u64)
);
id!(
    /// A client's registration with a shard. 0 is the shard's own leader, whose commands are not deduplicated.
    SessionId(u64)
);

impl InodeId {
    /// Bits of the sequence part.
    pub const SEQUENCE_BITS: u32 = 44;
    /// The root directory: slot 0, sequence 1, as FUSE wants it.
    pub const ROOT: InodeId = InodeId(1);

    /// Joins a slot and a sequence; the sequence must fit in 44 bits.
    pub fn new(slot: SlotId, sequence: u64) -> InodeId {
        assert!(sequence < 1 << Self::SEQUENCE_BITS, "a slot's inode sequence has 44 bits");
        InodeId((u64::from(slot.0) << Self::SEQUENCE_BITS) | sequence)
    }

    /// The slot that holds this inode's records.
    pub fn slot(self) -> SlotId {
        SlotId((self.0 >> Self::SEQUENCE_BITS) as u32)
    }

    /// The number within the slot.
    pub fn sequence(self) -> u64 {
        self.0 & ((1 << Self::SEQUENCE_BITS) - 1)
    }
}

impl SlotId {
    /// Number of slots there are.
    pub const COUNT: u32 = 1 << 20;
}

impl SessionId {
    /// The shard's own leader.
    pub const LEADER: SessionId = SessionId(0);
}

/// Names one operation of one client, for deduplication over retries and fail-overs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OpId {
    /// Whose operation.
    pub session: SessionId,
    /// Increases by one with each operation of the session.
    pub sequence: u64,
}

/// Names an immutable object of the store: the session that wrote it, and slot (high 20 bits) and number within the session.
/// All of its bytes are of files of that slot, so that whoever holds the slot knows alone whether it is still needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentId {
    /// The session that wrote it; its end makes unreferenced segments collectable.
    pub session: SessionId,
    /// Slot and number; unique within the session.
    pub sequence: u64,
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.session.0, self.sequence)
    }
}

impl SegmentId {
    /// Bits of the number within a session.
    pub const NUMBER_BITS: u32 = 44;

    /// A segment for files of a slot; the number must fit in 44 bits.
    pub fn new(session: SessionId, slot: SlotId, number: u64) -> SegmentId {
        assert!(number < 1 << Self::NUMBER_BITS, "a session's segment number has 44 bits");
        SegmentId { session, sequence: (u64::from(slot.0) << Self::NUMBER_BITS) | number }
    }

    /// The slot of its files.
    pub fn slot(self) -> SlotId {
        SlotId((self.sequence >> Self::NUMBER_BITS) as u32)
    }

    /// The inverse of `Display`.
    pub fn parse(text: &str) -> Option<SegmentId> {
        let (session, sequence) = text.split_once('-')?;
        let hex = |s: &str| (!s.starts_with('+')).then(|| u64::from_str_radix(s, 16).ok()).flatten();
        Some(SegmentId { session: SessionId(hex(session)?), sequence: hex(sequence)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_id_keeps_its_parts() {
        let id = InodeId::new(SlotId(SlotId::COUNT - 1), 77);
        assert_eq!((id.slot(), id.sequence()), (SlotId(SlotId::COUNT - 1), 77));
        assert_eq!(InodeId::ROOT, InodeId::new(SlotId(0), 1));
    }

    #[test]
    fn a_segment_id_reads_back() {
        let id = SegmentId { session: SessionId(0x1f), sequence: 0xabc };
        assert_eq!(SegmentId::parse(&id.to_string()), Some(id));
        assert_eq!(SegmentId::new(SessionId(1), SlotId(7), 9).slot(), SlotId(7));
        for bad in ["", "1", "-", "x-1", "1-+2"] {
            assert_eq!(SegmentId::parse(bad), None, "{bad}");
        }
    }
}
