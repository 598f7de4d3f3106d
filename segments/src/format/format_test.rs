//! The layout of segments: what is written reads back, and every damaged byte is noticed.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::writer::{COALESCE_BELOW_BYTES, Writer};

const ID: SegmentId = SegmentId { session: SessionId(0x0102), sequence: 0x0304 };

fn sealed(writer: Writer, id: SegmentId) -> (Vec<u8>, u64) {
    let (parts, length) = writer.finish();
    let mut object = parts.concat();
    object.extend_from_slice(&encode_seal(id));
    (object, length)
}

fn decode(id: SegmentId, object: &[u8]) -> Result<(Checks, Vec<Owner>), FormatError> {
    let tail = &object[object.len().saturating_sub(TAIL_BYTES_MAX)..];
    let checks = decode_tail(id, tail, object.len() as u64)?;
    let range = checks.owners_range();
    let owners = decode_owners(&checks, &object[range.start as usize..range.end as usize])?;
    Ok((checks, owners))
}

fn small() -> Vec<u8> {
    let mut writer = Writer::new();
    writer.push_slice(InodeId(0x1112), 0x2122, b"hello ");
    writer.push_slice(InodeId(0x1112), 0x2128, b"world");
    writer.push_slice(InodeId(0x31), 0, b"!");
    sealed(writer, ID).0
}

/// A format that was once released stays readable: these bytes are never edited. They were made by another program.
#[test]
fn golden_bytes_of_version_1() {
    let golden = "68656c6c6f20776f726c6421\
        12110000000000002221000000000000000000000b000000\
        310000000000000000000000000000000b00000001000000\
        7757cb49\
        0c000000000000000200000001000000afceacbaca0159930000000009f5bf5f\
        0201000000000000040300000000000000000000d1cbc0120100000050534547";
    let hex: String = small().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, golden);
}

#[test]
fn crc32c_is_the_usual_one() {
    assert_eq!(crc32c::crc32c(b"123456789"), 0xE306_9283, "RFC 3720, B.4, and everyone else");
}

#[test]
fn an_empty_segment_reads_back() {
    let (object, length) = sealed(Writer::new(), ID);
    assert_eq!((length, object.len()), (0, TRAILER_BYTES + SEAL_BYTES));
    let (checks, owners) = decode(ID, &object).unwrap();
    assert_eq!((checks.data_length, owners), (0, vec![]));
}

#[test]
fn the_largest_segment_fits_in_one_tail() {
    let mut writer = Writer::new();
    writer.push(InodeId(1), 0, Bytes::from(vec![5; SEGMENT_BYTES_MAX]));
    let (object, length) = sealed(writer, ID);
    let (checks, owners) = decode(ID, &object).unwrap();
    assert_eq!((length, checks.crcs.len(), owners.len()), (SEGMENT_BYTES_MAX as u64, 256, 1));
    assert_eq!(checks.verify(0, &object[..SEGMENT_BYTES_MAX]), Ok(()));
}

#[test]
fn another_name_another_version_and_another_size_are_refused() {
    let object = small();
    let other = SegmentId { sequence: 9, ..ID };
    assert_eq!(decode(other, &object).unwrap_err(), FormatError::Damaged("another segment lies under its name"));
    let mut newer = object.clone();
    let at = newer.len() - 8;
    newer[at] = 2;
    assert_eq!(decode(ID, &newer).unwrap_err(), FormatError::Version { found: 2 });
    assert!(decode_tail(ID, &object, object.len() as u64 + 1).is_err());
    for cut in 0..object.len() {
        assert!(decode(ID, &object[..cut]).is_err(), "cut to {cut} bytes");
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let object = small();
    for bit in 0..object.len() * 8 {
        let mut spoiled = object.clone();
        spoiled[bit / 8] ^= 1 << (bit % 8);
        let found = decode(ID, &spoiled).map(|(checks, _)| checks.verify(0, &spoiled[..12]));
        // Four bytes of the seal are unused, and covered all the same.
        assert!(!matches!(found, Ok(Ok(()))), "bit {bit}");
    }
}

/// Slices on both sides of the coalescing threshold and of the checksum block.
fn slices() -> impl Strategy<Value = Vec<(u64, u64, usize, u8)>> {
    let length = prop_oneof![
        0usize..200,
        COALESCE_BELOW_BYTES - 2..COALESCE_BELOW_BYTES + 2,
        CHECKSUM_BLOCK_BYTES - 2..CHECKSUM_BLOCK_BYTES + 2,
        0usize..300_000
    ];
    prop::collection::vec((0u64..3, 0u64..4, length, any::<u8>()), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_pushed_reads_back(slices in slices(), sequence: u64) {
        let id = SegmentId { session: SessionId(7), sequence };
        let mut writer = Writer::new();
        let mut data = Vec::new();
        // The file position of every data byte, by hand.
        let mut positions = Vec::new();
        let mut next = [0u64; 3];
        for (inode, gap, length, fill) in slices {
            let bytes: Vec<u8> = (0..length).map(|i| fill.wrapping_add(i as u8)).collect();
            let offset = next[inode as usize] + gap * 10;
            next[inode as usize] = offset + length as u64;
            prop_assert_eq!(writer.push(InodeId(inode), offset, Bytes::from(bytes.clone())), data.len() as u64);
            positions.extend((0..length as u64).map(|i| (inode, offset + i)));
            data.extend(bytes);
        }
        let (object, length) = sealed(writer, id);
        prop_assert_eq!(&object[..length as usize], &data[..]);
        let (checks, owners) = decode(id, &object).unwrap();
        prop_assert_eq!(checks.data_length, data.len() as u64);
        let found: Vec<_> = owners
            .iter()
            .flat_map(|o| (0..u64::from(o.length)).map(move |i| (o.inode.0, o.file_offset + i)))
            .collect();
        prop_assert_eq!(found, positions);
        prop_assert!(owners.windows(2).all(|o| o[0].segment_offset + o[0].length == o[1].segment_offset));
        prop_assert_eq!(checks.verify(0, &data), Ok(()));
        for block in 0..checks.crcs.len() {
            let start = block * CHECKSUM_BLOCK_BYTES;
            let mut bytes = data[start..data.len().min(start + CHECKSUM_BLOCK_BYTES)].to_vec();
            prop_assert_eq!(checks.verify(start as u64, &bytes), Ok(()));
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            prop_assert_eq!(checks.verify(start as u64, &bytes), Err(block as u64));
        }
    }

    #[test]
    fn hostile_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..4096), object_bytes: u64) {
        let tail = &bytes[bytes.len().saturating_sub(TAIL_BYTES_MAX)..];
        let _ = decode_tail(ID, tail, object_bytes);
        let _ = decode_tail(ID, tail, bytes.len() as u64);
    }

    /// Numbers that are impossible, under checksums that are right.
    #[test]
    fn hostile_numbers_do_not_panic(
        data_length in prop_oneof![any::<u64>(), 0u64..70_000],
        owner_count in prop_oneof![any::<u32>(), 0u32..4],
        check_count in prop_oneof![any::<u32>(), 0u32..4],
        owners in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>()), 0..4),
    ) {
        let owners: Vec<_> = owners.into_iter().map(|(inode, file_offset, segment_offset, length)| Owner {
            inode: InodeId(inode), file_offset, segment_offset, length,
        }).collect();
        let mut object = encode_footer(data_length, &owners, &[1, 2]);
        let at = object.len() - TRAILER_BYTES;
        object[at + 8..at + 12].copy_from_slice(&owner_count.to_le_bytes());
        object[at + 12..at + 16].copy_from_slice(&check_count.to_le_bytes());
        let crc = crc32c::crc32c(&object[at..at + 28]);
        object[at + 28..].copy_from_slice(&crc.to_le_bytes());
        object.extend_from_slice(&encode_seal(ID));
        for object_bytes in [object.len() as u64, (object.len() as u64).wrapping_add(data_length), u64::MAX] {
            if let Ok(checks) = decode_tail(ID, &object, object_bytes) {
                let _ = decode_owners(&checks, &object);
                let table = &object[..(owners.len() * OWNER_BYTES).min(object.len())];
                if let Ok(read) = decode_owners(&checks, table) {
                    prop_assert!(read.iter().all(|o| u64::from(o.segment_offset) + u64::from(o.length) <= data_length));
                }
            }
        }
    }
}
