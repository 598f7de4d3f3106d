//! Extent: a range of a file -> bytes in a segment.
//!
//! Key: inode, file offset u64. Value: version, length, segment session, segment sequence, offset in segment, birth u64.
//! Invariants: extents of a file do not overlap and end within its size.

use pando_types::{Extent, Generation, InodeId, SegmentId, SessionId};

use super::layout::{Fields, VERSION};
use super::{KeyKind, of_inode, owner};
use crate::error::Corrupt;

/// The key.
pub fn key(inode: InodeId, offset: u64) -> Vec<u8> {
    let mut key = of_inode(KeyKind::Extent, inode, 8);
    key.extend_from_slice(&offset.to_be_bytes());
    key
}

/// What all keys of a file's extents begin with.
pub fn prefix(inode: InodeId) -> Vec<u8> {
    of_inode(KeyKind::Extent, inode, 0)
}

/// The value.
pub fn encode(extent: &Extent, birth: Generation) -> Vec<u8> {
    let mut value = Vec::with_capacity(41);
    value.push(VERSION);
    let segment = extent.segment;
    for field in [extent.length, segment.session.0, segment.sequence, extent.segment_offset, birth.0] {
        value.extend_from_slice(&field.to_le_bytes());
    }
    value
}

/// File, extent and birth of a record.
pub fn decode(key: &[u8], value: &[u8]) -> Result<(InodeId, Extent, Generation), Corrupt> {
    let (inode, rest) = owner(key)?;
    let mut place = Fields::key("extent", rest);
    let offset = place.key_u64()?;
    place.end()?;
    let mut fields = Fields::value("extent", value)?;
    let length = fields.u64()?;
    let segment = SegmentId { session: SessionId(fields.u64()?), sequence: fields.u64()? };
    let extent = Extent { offset, length, segment, segment_offset: fields.u64()? };
    let birth = Generation(fields.u64()?);
    fields.end()?;
    if length == 0 || offset.checked_add(length).is_none() || extent.segment_offset.checked_add(length).is_none() {
        return Err(Corrupt(format!("inode {inode} has an impossible extent at {offset}")));
    }
    Ok((inode, extent, birth))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden() {
        let segment = SegmentId { session: SessionId(3), sequence: 4 };
        let extent = Extent { offset: 0x102, length: 2, segment, segment_offset: 5 };
        assert_eq!(key(InodeId(1), 0x102), [0, 0, 0, 0, 0x22, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 2]);
        let mut expected = vec![1];
        for field in [2u8, 3, 4, 5, 6] {
            expected.extend_from_slice(&[field, 0, 0, 0, 0, 0, 0, 0]);
        }
        assert_eq!(encode(&extent, Generation(6)), expected);
    }

    proptest! {
        #[test]
        fn round_trip(inode: u64, offset in 0..1u64 << 62, length in 1..1u64 << 62, session: u64, sequence: u64,
                      segment_offset in 0..1u64 << 62, birth: u64) {
            let segment = SegmentId { session: SessionId(session), sequence };
            let extent = Extent { offset, length, segment, segment_offset };
            let back = decode(&key(InodeId(inode), offset), &encode(&extent, Generation(birth))).unwrap();
            prop_assert_eq!(back, (InodeId(inode), extent, Generation(birth)));
        }

        #[test]
        fn any_bytes_decode_or_are_corrupt(key in proptest::collection::vec(any::<u8>(), 0..30),
                                           value in proptest::collection::vec(any::<u8>(), 0..50)) {
            let _ = decode(&key, &value);
        }
    }
}
