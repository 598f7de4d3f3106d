//! Packs file bytes into a segment.
//!
//! Not here: which bytes go together and when a segment is full enough (the client decides), and storing it.
//!
//! Invariants: every byte is checksummed once, as it comes; slices of [`COALESCE_BELOW_BYTES`] and more are kept as
//! they are, smaller ones are copied together, so that neither large data is copied nor a small slice keeps a large
//! buffer alive; a run that goes on where the last one ended shares its entry in the owner table.

use bytes::{Bytes, BytesMut};
use pando_types::InodeId;
use pando_types::limits::{CHECKSUM_BLOCK_BYTES, OWNERS_PER_SEGMENT_MAX, SEGMENT_BYTES_MAX};

use crate::format::{Owner, encode_footer};

/// Slices below this size are copied together.
pub const COALESCE_BELOW_BYTES: usize = 16 << 10;

/// A segment that is being put together.
#[derive(Debug, Default)]
pub struct Writer {
    /// Finished parts of the object, in order.
    parts: Vec<Bytes>,
    /// Small slices that follow `parts`.
    small: BytesMut,
    length: usize,
    owners: Vec<Owner>,
    /// Checksums of full blocks.
    crcs: Vec<u32>,
    /// Checksum of the block that is not full yet.
    crc: u32,
}

impl Writer {
    /// An empty segment.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Bytes of data so far.
    pub fn data_length(&self) -> u64 {
        self.length as u64
    }

    /// Whether nothing was pushed yet.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Most bytes that the next push may have: 0 when the segment is full.
    pub fn room(&self) -> usize {
        match self.owners.len() < OWNERS_PER_SEGMENT_MAX {
            true => SEGMENT_BYTES_MAX - self.length,
            false => 0,
        }
    }

    /// Appends bytes of a file and says where in the segment's data they are. `data` must fit in [`Writer::room`].
    pub fn push(&mut self, owner: InodeId, file_offset: u64, data: Bytes) -> u64 {
        if data.len() < COALESCE_BELOW_BYTES {
            return self.push_slice(owner, file_offset, &data);
        }
        let at = self.account(owner, file_offset, &data);
        self.flush_small();
        self.parts.push(data);
        at
    }

    /// As [`Writer::push`], for bytes that are not the caller's to keep: they are copied.
    pub fn push_slice(&mut self, owner: InodeId, file_offset: u64, data: &[u8]) -> u64 {
        let at = self.account(owner, file_offset, data);
        self.small.extend_from_slice(data);
        at
    }

    /// The object's parts, all but the seal that [`crate::Store::put`] adds, and the length of the data in bytes.
    pub fn finish(mut self) -> (Vec<Bytes>, u64) {
        self.flush_small();
        if !self.length.is_multiple_of(CHECKSUM_BLOCK_BYTES) {
            self.crcs.push(self.crc);
        }
        self.parts.push(encode_footer(self.length as u64, &self.owners, &self.crcs).into());
        (self.parts, self.length as u64)
    }

    fn account(&mut self, inode: InodeId, file_offset: u64, data: &[u8]) -> u64 {
        assert!(data.len() <= self.room(), "a push must fit in the segment's room");
        let at = self.length;
        self.checksum(data);
        self.length += data.len();
        match self.owners.last_mut() {
            _ if data.is_empty() => {}
            Some(last)
                if last.inode == inode
                    && last.file_offset.checked_add(u64::from(last.length)) == Some(file_offset)
                    && last.segment_offset as usize + last.length as usize == at =>
            {
                last.length += data.len() as u32;
            }
            _ => self.owners.push(Owner { inode, file_offset, segment_offset: at as u32, length: data.len() as u32 }),
        }
        at as u64
    }

    fn checksum(&mut self, mut data: &[u8]) {
        let mut filled = self.length % CHECKSUM_BLOCK_BYTES;
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min(CHECKSUM_BLOCK_BYTES - filled));
            self.crc = crc32c::crc32c_append(self.crc, now);
            filled += now.len();
            if filled == CHECKSUM_BLOCK_BYTES {
                self.crcs.push(std::mem::take(&mut self.crc));
                filled = 0;
            }
            data = later;
        }
    }

    fn flush_small(&mut self) {
        if !self.small.is_empty() {
            self.parts.push(self.small.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data_of(parts: &[Bytes], length: u64) -> Vec<u8> {
        let mut all = parts.concat();
        all.truncate(length as usize);
        all
    }

    #[test]
    fn large_slices_are_not_copied_and_small_ones_are_copied_together() {
        let mut writer = Writer::new();
        let large = Bytes::from(vec![7u8; COALESCE_BELOW_BYTES]);
        for i in 0..3 {
            assert_eq!(writer.push(InodeId(1), i * 100, Bytes::from_static(&[1; 10])), i * 10);
        }
        assert_eq!(writer.push(InodeId(1), 500, large.clone()), 30);
        let (parts, length) = writer.finish();
        assert_eq!(length, 30 + large.len() as u64);
        assert_eq!(parts.len(), 3, "small slices, the large one, the footer");
        assert_eq!(parts[1].as_ptr(), large.as_ptr());
        assert_eq!(data_of(&parts, length), [&[1u8; 30][..], &large[..]].concat());
    }

    #[test]
    fn a_full_segment_has_no_room() {
        let mut writer = Writer::new();
        for i in 0..OWNERS_PER_SEGMENT_MAX as u64 {
            assert!(writer.room() > 0);
            writer.push_slice(InodeId(i), 0, b"x");
        }
        assert_eq!(writer.room(), 0);
        let mut writer = Writer::new();
        writer.push(InodeId(1), 0, Bytes::from(vec![0; SEGMENT_BYTES_MAX]));
        assert_eq!(writer.room(), 0);
    }
}
