//! The layout of a segment: an immutable object of many files' bytes that describes itself.
//!
//! Not here: where objects are stored ([`crate::store`]), when they are read ([`crate::reader`]).
//!
//! All integers are little-endian. A segment is
//!
//! ```text
//! data     data_length bytes
//! owners   owner_count x { inode u64, file_offset u64, segment_offset u32, length u32 }      24 bytes each
//! checks   check_count x CRC32C u32, one for each 64 KiB of data (the last may be shorter)
//! trailer  data_length u64, owner_count u32, check_count u32, owners_crc u32, checks_crc u32,
//!          zero u32, crc u32 (CRC32C of the 28 bytes before it)                               32 bytes
//! seal     session u64, sequence u64, zero u32, crc u32 (CRC32C of the 20 bytes before it),
//!          version u32, magic "PSEG"                                                          32 bytes
//! ```
//!
//! The writer makes everything up to the trailer; the store adds the seal, since the same bytes may have to be stored
//! again under another name. The seal is what catches an object that lies under a wrong name.
//!
//! Invariants: the four lengths add up to the object's size; owners lie in the data, in order, without overlap; the
//! checks and everything after them fit in the last [`TAIL_BYTES_MAX`] bytes, so that one read of a fixed size finds
//! all that a reader needs. Decoding never panics and allocates no more than the bytes it was given.
//! A version, once released, is never changed: a new layout is a new version, with golden bytes of its own.

use bytes::{Buf, BufMut};
use pando_types::limits::{CHECKSUM_BLOCK_BYTES, OWNERS_PER_SEGMENT_MAX, SEGMENT_BYTES_MAX};
use pando_types::{InodeId, SegmentId, SessionId};

/// The layout's version.
pub const VERSION: u32 = 1;
/// The last four bytes of every segment.
pub const MAGIC: [u8; 4] = *b"PSEG";
/// Bytes of one entry of the owner table.
pub const OWNER_BYTES: usize = 24;
/// Bytes of the trailer.
pub const TRAILER_BYTES: usize = 32;
/// Bytes of the seal.
pub const SEAL_BYTES: usize = 32;
/// Most bytes of checks, trailer and seal together.
pub const TAIL_BYTES_MAX: usize = SEGMENT_BYTES_MAX.div_ceil(CHECKSUM_BLOCK_BYTES) * 4 + TRAILER_BYTES + SEAL_BYTES;

const _: () = assert!(SEGMENT_BYTES_MAX <= u32::MAX as usize, "offsets within a segment have 32 bits");
const _: () = assert!(TAIL_BYTES_MAX <= 4096, "the tail is read with every first touch of a segment");

/// A run of a file's bytes in a segment's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The file, when the segment was written; extents decide whether it still is.
    pub inode: InodeId,
    /// First byte in the file.
    pub file_offset: u64,
    /// First byte in the data.
    pub segment_offset: u32,
    /// Bytes; never 0.
    pub length: u32,
}

/// What a reader needs of a segment: how long the data is, and what its blocks must add up to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checks {
    /// Bytes of data.
    pub data_length: u64,
    /// Entries of the owner table.
    pub owner_count: u32,
    /// CRC32C of the owner table.
    pub owners_crc: u32,
    /// CRC32C of each 64 KiB of data.
    pub crcs: Box<[u32]>,
}

/// Why an object is not a segment that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Written by a later Pando.
    #[error("it has format version {found} and this program reads {VERSION}")]
    Version {
        /// The version found.
        found: u32,
    },
    /// Cut short, overwritten, or not a segment at all.
    #[error("{0}")]
    Damaged(&'static str),
}

impl Checks {
    /// Where the owner table is in the object.
    pub fn owners_range(&self) -> std::ops::Range<u64> {
        self.data_length..self.data_length + u64::from(self.owner_count) * OWNER_BYTES as u64
    }

    /// Bytes of memory that a cached value takes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Checks>() + size_of_val(&*self.crcs)
    }

    /// Whether `blocks`, bytes of the data from a multiple of 64 KiB on and to a multiple or to the end, are what was
    /// written. The answer names the first block that is not.
    pub fn verify(&self, offset: u64, blocks: &[u8]) -> Result<(), u64> {
        let first = (offset / CHECKSUM_BLOCK_BYTES as u64) as usize;
        for (i, block) in blocks.chunks(CHECKSUM_BLOCK_BYTES).enumerate() {
            if self.crcs.get(first + i) != Some(&crc32c::crc32c(block)) {
                return Err((first + i) as u64);
            }
        }
        Ok(())
    }
}

/// Everything of a segment between its data and its seal.
pub fn encode_footer(data_length: u64, owners: &[Owner], crcs: &[u32]) -> Vec<u8> {
    let mut out = Vec::with_capacity(owners.len() * OWNER_BYTES + crcs.len() * 4 + TRAILER_BYTES);
    for owner in owners {
        out.put_u64_le(owner.inode.0);
        out.put_u64_le(owner.file_offset);
        out.put_u32_le(owner.segment_offset);
        out.put_u32_le(owner.length);
    }
    let owners_crc = crc32c::crc32c(&out);
    let checks_from = out.len();
    crcs.iter().for_each(|crc| out.put_u32_le(*crc));
    let checks_crc = crc32c::crc32c(&out[checks_from..]);
    let trailer_from = out.len();
    out.put_u64_le(data_length);
    out.put_u32_le(owners.len() as u32);
    out.put_u32_le(crcs.len() as u32);
    out.put_u32_le(owners_crc);
    out.put_u32_le(checks_crc);
    out.put_u32_le(0);
    let crc = crc32c::crc32c(&out[trailer_from..]);
    out.put_u32_le(crc);
    out
}

/// The last bytes of a segment that is stored under this name.
pub fn encode_seal(id: SegmentId) -> [u8; SEAL_BYTES] {
    let mut seal = [0; SEAL_BYTES];
    seal[..8].copy_from_slice(&id.session.0.to_le_bytes());
    seal[8..16].copy_from_slice(&id.sequence.to_le_bytes());
    let crc = crc32c::crc32c(&seal[..20]);
    seal[20..24].copy_from_slice(&crc.to_le_bytes());
    seal[24..28].copy_from_slice(&VERSION.to_le_bytes());
    seal[28..].copy_from_slice(&MAGIC);
    seal
}

/// Reads the end of an object: its last [`TAIL_BYTES_MAX`] bytes, or all of a smaller one. `object_bytes` is the
/// object's size.
pub fn decode_tail(id: SegmentId, tail: &[u8], object_bytes: u64) -> Result<Checks, FormatError> {
    use FormatError::Damaged;
    let (rest, seal) = tail.split_last_chunk::<SEAL_BYTES>().ok_or(Damaged("it is too short to be a segment"))?;
    check_seal(id, seal)?;
    let (rest, trailer) = rest.split_last_chunk::<TRAILER_BYTES>().ok_or(Damaged("its trailer is missing"))?;
    let (covered, crc) = trailer.split_at(TRAILER_BYTES - 4);
    if crc32c::crc32c(covered).to_le_bytes() != crc {
        return Err(Damaged("its trailer is damaged"));
    }
    let mut fields = covered;
    let data_length = fields.get_u64_le();
    let owner_count = fields.get_u32_le();
    let check_count = fields.get_u32_le() as usize;
    let owners_crc = fields.get_u32_le();
    let checks_crc = fields.get_u32_le();
    if data_length > SEGMENT_BYTES_MAX as u64
        || owner_count as usize > OWNERS_PER_SEGMENT_MAX
        || check_count as u64 != data_length.div_ceil(CHECKSUM_BLOCK_BYTES as u64)
    {
        return Err(Damaged("its trailer holds impossible numbers"));
    }
    let footer_bytes = owner_count as usize * OWNER_BYTES + check_count * 4 + TRAILER_BYTES + SEAL_BYTES;
    if data_length + footer_bytes as u64 != object_bytes {
        return Err(Damaged("its size is not what its trailer says"));
    }
    let checks_from = rest.len().checked_sub(check_count * 4).ok_or(Damaged("its checksums are cut off"))?;
    let checks = &rest[checks_from..];
    if crc32c::crc32c(checks) != checks_crc {
        return Err(Damaged("its checksums are damaged"));
    }
    let (words, _) = checks.as_chunks::<4>();
    let crcs = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    Ok(Checks { data_length, owner_count, owners_crc, crcs })
}

fn check_seal(id: SegmentId, seal: &[u8; SEAL_BYTES]) -> Result<(), FormatError> {
    use FormatError::{Damaged, Version};
    if seal[28..] != MAGIC {
        return Err(Damaged("it is cut short or not a segment"));
    }
    let mut fields = &seal[..28];
    let found = SegmentId { session: SessionId(fields.get_u64_le()), sequence: fields.get_u64_le() };
    fields.advance(4);
    let crc = fields.get_u32_le();
    match fields.get_u32_le() {
        VERSION => {}
        found => return Err(Version { found }),
    }
    if crc32c::crc32c(&seal[..20]) != crc {
        return Err(Damaged("its seal is damaged"));
    }
    match found == id {
        true => Ok(()),
        false => Err(Damaged("another segment lies under its name")),
    }
}

/// Reads the owner table; `bytes` is the object's [`Checks::owners_range`].
pub fn decode_owners(checks: &Checks, bytes: &[u8]) -> Result<Vec<Owner>, FormatError> {
    use FormatError::Damaged;
    let (entries, rest) = bytes.as_chunks::<OWNER_BYTES>();
    if entries.len() != checks.owner_count as usize || !rest.is_empty() || crc32c::crc32c(bytes) != checks.owners_crc {
        return Err(Damaged("its owner table is damaged"));
    }
    let mut owners = Vec::with_capacity(entries.len());
    let mut end = 0;
    for entry in entries {
        let mut fields = &entry[..];
        let owner = Owner {
            inode: InodeId(fields.get_u64_le()),
            file_offset: fields.get_u64_le(),
            segment_offset: fields.get_u32_le(),
            length: fields.get_u32_le(),
        };
        if u64::from(owner.segment_offset) < end || owner.length == 0 {
            return Err(Damaged("its owner table is out of order"));
        }
        end = u64::from(owner.segment_offset) + u64::from(owner.length);
        if end > checks.data_length {
            return Err(Damaged("its owner table reaches past the data"));
        }
        owners.push(owner);
    }
    Ok(owners)
}

#[cfg(test)]
#[path = "format/format_test.rs"]
mod tests;
