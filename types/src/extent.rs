//! File ranges and where their bytes are.

use serde::{Deserialize, Serialize};

use crate::ids::SegmentId;

/// A half-open range of a file: `[offset, offset + length)`, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileRange {
    /// First byte.
    pub offset: u64,
    /// Bytes; ranges of commands are never empty.
    pub length: u64,
}

impl FileRange {
    /// The first byte after the range.
    pub fn end(self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// A file range whose bytes lie, in order, in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Extent {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The object.
    pub segment: SegmentId,
    /// First byte in the segment's data.
    pub segment_offset: u64,
}

impl Extent {
    /// The file range.
    pub fn range(self) -> FileRange {
        FileRange { offset: self.offset, length: self.length }
    }

    /// The first file byte after the extent.
    pub fn end(self) -> u64 {
        self.range().end()
    }

    /// The part of this extent inside `[from, to)`, if any.
    pub fn clip(self, from: u64, to: u64) -> Option<Extent> {
        let start = self.offset.max(from);
        let end = self.end().min(to);
        (start < end).then(|| Extent {
            offset: start,
            length: end - start,
            segment: self.segment,
            segment_offset: self.segment_offset + (start - self.offset),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SessionId;

    #[test]
    fn clipping_moves_the_segment_offset() {
        let e = Extent {
            offset: 100,
            length: 50,
            segment: SegmentId { session: SessionId(1), sequence: 1 },
            segment_offset: 7,
        };
        assert_eq!(e.clip(110, 120), Some(Extent { offset: 110, length: 10, segment_offset: 17, ..e }));
        assert_eq!(e.clip(0, 1000), Some(e));
        assert_eq!(e.clip(150, 200), None);
        assert_eq!(e.clip(0, 100), None);
    }
}
