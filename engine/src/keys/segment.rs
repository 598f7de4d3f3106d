//! Segment accounting: live bytes per slot, in how many slots a segment is used, and segments that are dead.
//!
//! Live: key (slot of the files, segment session, sequence u64); value version, length, live, birth u64. Use: key (shard, segment);
//! value version, slots u32. Dead: key (shard, segment); value version, slot u32 (of its last use), length u64.
//! Invariants: live = sum of the slot's extents in it, never 0; use = number of live records; a segment is used or dead, not both.

use pando_types::{Generation, SegmentId, ShardId, SlotId};

use super::layout::{Fields, VERSION, push_segment};
use super::{KeyKind, of_shard, prefix};
use crate::error::Corrupt;

/// The live record's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Bytes of data in the object.
    pub length: u64,
    /// Bytes that extents of this slot refer to.
    pub live: u64,
    /// Generation of the last write.
    pub birth: Generation,
}

/// The live record's key.
pub fn key(slot: SlotId, id: SegmentId) -> Vec<u8> {
    let mut key = prefix(slot.0, KeyKind::Segment, id.session.0, 8);
    key.extend_from_slice(&id.sequence.to_be_bytes());
    key
}

fn shard_key(kind: KeyKind, shard: ShardId, id: SegmentId) -> Vec<u8> {
    let mut key = of_shard(kind, shard, 16);
    push_segment(&mut key, id);
    key
}

/// The use record's key.
pub fn use_key(shard: ShardId, id: SegmentId) -> Vec<u8> {
    shard_key(KeyKind::SegmentUse, shard, id)
}

/// The use record's value.
pub fn encode_use(slots: u32) -> Vec<u8> {
    let mut value = vec![VERSION];
    value.extend_from_slice(&slots.to_le_bytes());
    value
}

/// Reads a use record's value.
pub fn decode_use(bytes: &[u8]) -> Result<u32, Corrupt> {
    let mut fields = Fields::value("segment use", bytes)?;
    let slots = fields.u32()?;
    fields.end()?;
    Ok(slots)
}

/// What all dead records of a shard begin with.
pub fn dead_prefix(shard: ShardId) -> Vec<u8> {
    of_shard(KeyKind::DeadSegment, shard, 0)
}

/// The dead record's key.
pub fn dead_key(shard: ShardId, id: SegmentId) -> Vec<u8> {
    shard_key(KeyKind::DeadSegment, shard, id)
}

/// The dead record's value.
pub fn encode_dead(slot: SlotId, length: u64) -> Vec<u8> {
    let mut value = vec![VERSION];
    value.extend_from_slice(&slot.0.to_le_bytes());
    value.extend_from_slice(&length.to_le_bytes());
    value
}

/// Slot and length of a dead record's value.
pub fn decode_dead(bytes: &[u8]) -> Result<(SlotId, u64), Corrupt> {
    let mut fields = Fields::value("dead segment", bytes)?;
    let parts = (SlotId(fields.u32()?), fields.u64()?);
    fields.end()?;
    Ok(parts)
}

/// Segment of a use or dead record's key rest.
pub fn parse_shard_rest(rest: &[u8]) -> Result<SegmentId, Corrupt> {
    let mut fields = Fields::key("segment", rest);
    let id = fields.key_segment()?;
    fields.end()?;
    Ok(id)
}

impl Segment {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(25);
        value.push(VERSION);
        for field in [self.length, self.live, self.birth.0] {
            value.extend_from_slice(&field.to_le_bytes());
        }
        value
    }

    /// Reads a value.
    pub fn decode(bytes: &[u8]) -> Result<Segment, Corrupt> {
        let mut fields = Fields::value("segment", bytes)?;
        let segment = Segment { length: fields.u64()?, live: fields.u64()?, birth: Generation(fields.u64()?) };
        fields.end()?;
        Ok(segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_types::SessionId;
    use proptest::prelude::*;

    #[test]
    fn golden() {
        let id = SegmentId { session: SessionId(2), sequence: 3 };
        assert_eq!(key(SlotId(1), id), [0, 0, 0, 1, 0x26, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3]);
        let rest = [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3];
        let head = |kind| [255, 255, 255, 255, kind, 0, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(use_key(ShardId(7), id), [&head(0x45)[..], &rest].concat());
        assert_eq!(dead_key(ShardId(7), id), [&head(0x46)[..], &rest].concat());
        let segment = Segment { length: 4, live: 5, birth: Generation(6) };
        assert_eq!(segment.encode(), [1, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encode_use(2), [1, 2, 0, 0, 0]);
        assert_eq!(encode_dead(SlotId(1), 9), [1, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn round_trip(session: u64, sequence: u64, slot: u32, numbers: [u64; 3]) {
            let id = SegmentId { session: SessionId(session), sequence };
            let key = dead_key(ShardId(0), id);
            prop_assert_eq!(parse_shard_rest(&key[super::super::PREFIX_BYTES..]).unwrap(), id);
            prop_assert_eq!(decode_dead(&encode_dead(SlotId(slot), numbers[0])).unwrap(), (SlotId(slot), numbers[0]));
            prop_assert_eq!(decode_use(&encode_use(slot)).unwrap(), slot);
            let segment = Segment { length: numbers[0], live: numbers[1], birth: Generation(numbers[2]) };
            prop_assert_eq!(Segment::decode(&segment.encode()).unwrap(), segment);
        }

        #[test]
        fn any_bytes_decode_or_are_corrupt(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = (parse_shard_rest(&bytes), Segment::decode(&bytes), decode_dead(&bytes), decode_use(&bytes));
        }
    }
}
