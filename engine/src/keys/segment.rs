//! Segment accounting: live bytes of each segment, and segments that are dead.
//!
//! Live: key (slot, session, sequence u64); value version, length, live, birth u64. Dead: the same key under its own kind; value
//! version, length u64. Invariants: live = sum of the extents in it, never 0; a segment is live or dead, not both.

use pando_types::{Generation, SegmentId, SessionId};

use super::layout::{Fields, VERSION};
use super::{KeyKind, prefix, split};
use crate::error::Corrupt;

/// The live record's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Bytes of data in the object.
    pub length: u64,
    /// Bytes that extents refer to.
    pub live: u64,
    /// Generation of the last write.
    pub birth: Generation,
}

/// The live record's key.
pub fn key(id: SegmentId) -> Vec<u8> {
    slot_key(KeyKind::Segment, id)
}

fn slot_key(kind: KeyKind, id: SegmentId) -> Vec<u8> {
    let mut key = prefix(id.slot().0, kind, id.session.0, 8);
    key.extend_from_slice(&id.sequence.to_be_bytes());
    key
}

/// The dead record's key.
pub fn dead_key(id: SegmentId) -> Vec<u8> {
    slot_key(KeyKind::DeadSegment, id)
}

/// The dead record's value.
pub fn encode_dead(length: u64) -> Vec<u8> {
    let mut value = vec![VERSION];
    value.extend_from_slice(&length.to_le_bytes());
    value
}

/// Length of a dead record's value.
pub fn decode_dead(bytes: &[u8]) -> Result<u64, Corrupt> {
    let mut fields = Fields::value("dead segment", bytes)?;
    let length = fields.u64()?;
    fields.end()?;
    Ok(length)
}

/// Segment of a live or dead record's key.
pub fn parse(key: &[u8]) -> Result<SegmentId, Corrupt> {
    let (slot, _, session, rest) = split(key)?;
    let mut fields = Fields::key("segment", rest);
    let id = SegmentId { session: SessionId(session), sequence: fields.key_u64()? };
    fields.end()?;
    if id.slot().0 == slot {
        Ok(id)
    } else {
        Err(Corrupt(format!("segment {id} lies in another slot than its id says")))
    }
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
    use pando_types::SlotId;
    use proptest::prelude::*;

    #[test]
    fn golden() {
        let id = SegmentId::new(SessionId(2), SlotId(1), 3);
        let rest = [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0x10, 0, 0, 0, 0, 3];
        let head = |kind| [0, 0, 0, 1, kind];
        assert_eq!(key(id), [&head(0x26)[..], &rest].concat());
        assert_eq!(dead_key(id), [&head(0x27)[..], &rest].concat());
        let segment = Segment { length: 4, live: 5, birth: Generation(6) };
        assert_eq!(segment.encode(), [1, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encode_dead(9), [1, 9, 0, 0, 0, 0, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn round_trip(session: u64, sequence: u64, numbers: [u64; 3]) {
            let id = SegmentId { session: SessionId(session), sequence };
            prop_assert_eq!(parse(&dead_key(id)).unwrap(), id);
            prop_assert_eq!(decode_dead(&encode_dead(numbers[0])).unwrap(), numbers[0]);
            let segment = Segment { length: numbers[0], live: numbers[1], birth: Generation(numbers[2]) };
            prop_assert_eq!(Segment::decode(&segment.encode()).unwrap(), segment);
        }

        #[test]
        fn any_bytes_decode_or_are_corrupt(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = (parse(&bytes), Segment::decode(&bytes), decode_dead(&bytes));
        }
    }
}
