//! The committed content of an open file, as far as it is known: extents and inline bytes at one version.
//!
//! Not here: what was written since (`state.rs`). Invariants: everything in the map is of one version; what is not known is
//! asked for, never taken for a hole; at most [`EXTENTS_KEPT_MAX`] extents and one page more are kept.

use std::collections::BTreeMap;

use pando_types::Extent;
use pando_types::command::CommitContent;
use pando_types::request::Content;

use crate::file::ranges::RangeSet;

/// Extents kept of one file: 1 TiB in large blocks, about 5 MB of memory.
const EXTENTS_KEPT_MAX: usize = 64 << 10;

/// What is committed at an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Not known: ask for the page at this offset.
    Unknown,
    /// This extent, from the offset on.
    Stored(Extent),
    /// Inline bytes up to here (excluded).
    Inline(u64),
    /// Zeros up to here (excluded).
    Hole(u64),
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ContentMap {
    version: u64,
    inline: Vec<u8>,
    extents: BTreeMap<u64, Extent>,
    known: RangeSet,
}

impl ContentMap {
    /// The content of a file that was just made.
    pub(crate) fn empty(version: u64) -> ContentMap {
        let mut map = ContentMap { version, ..ContentMap::default() };
        map.known.insert(0, u64::MAX);
        map
    }

    /// The version that the map is of.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Inline bytes.
    pub(crate) fn inline(&self) -> &[u8] {
        &self.inline
    }

    /// Forgets everything: the content is of `version` now.
    pub(crate) fn forget(&mut self, version: u64) {
        *self = ContentMap { version, ..ContentMap::default() };
    }

    /// Takes a page that was asked for at `from`. A newer version replaces the map; an older one is ignored.
    pub(crate) fn take(&mut self, from: u64, page: &Content) {
        if page.attr.version < self.version {
            return;
        }
        if page.attr.version > self.version || self.extents.len() > EXTENTS_KEPT_MAX {
            self.forget(page.attr.version);
        }
        self.inline.clone_from(&page.inline);
        let to = match page.extents.last() {
            Some(last) if page.more => last.end(),
            _ => u64::MAX,
        };
        for extent in &page.extents {
            self.put(*extent);
        }
        self.known.insert(from, to);
    }

    /// What is committed at `at`.
    pub(crate) fn find(&self, at: u64) -> Found {
        let Some(known_end) = self.known.end_of(at) else { return Found::Unknown };
        if let Some(extent) = self.extents.range(..=at).next_back().and_then(|(_, e)| e.clip(at, u64::MAX)) {
            return Found::Stored(extent);
        }
        let next = self.extents.range(at + 1..).next().map_or(u64::MAX, |(&start, _)| start).min(known_end);
        match self.inline.len() as u64 {
            inline if at < inline => Found::Inline(next.min(inline)),
            _ => Found::Hole(next),
        }
    }

    /// Carries out a commit of this client, as the metadata server did, which made it `version`.
    pub(crate) fn apply(&mut self, version: u64, cut: Option<u64>, punched: &RangeSet, content: &CommitContent) {
        self.version = version;
        if let Some(cut) = cut {
            self.hide(cut, u64::MAX);
            self.inline.truncate(usize::try_from(cut).unwrap_or(usize::MAX));
            self.known.insert(cut, u64::MAX);
        }
        for (from, to) in punched.iter() {
            self.hide(from, to);
            self.known.insert(from, to);
        }
        match content {
            CommitContent::Extents(extents) => extents.iter().for_each(|e| {
                self.put(*e);
                self.known.insert(e.offset, e.end());
            }),
            CommitContent::Inline(bytes) => {
                *self = ContentMap { inline: bytes.clone(), ..ContentMap::empty(version) };
            }
        }
    }

    /// Makes a range read as zeros.
    fn hide(&mut self, from: u64, to: u64) {
        self.remove(from, to);
        let end = (self.inline.len() as u64).min(to);
        if from < end {
            self.inline[from as usize..end as usize].fill(0);
        }
    }

    fn put(&mut self, extent: Extent) {
        self.remove(extent.offset, extent.end());
        self.extents.insert(extent.offset, extent);
    }

    fn remove(&mut self, from: u64, to: u64) {
        while let Some((&start, &extent)) = self.extents.range(..to).next_back() {
            if extent.end() <= from || from >= to {
                return;
            }
            self.extents.remove(&start);
            for rest in [extent.clip(0, from), extent.clip(to, u64::MAX)].into_iter().flatten() {
                self.extents.insert(rest.offset, rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::testing::attr;
    use pando_types::{InodeId, SegmentId, SessionId};

    fn extent(offset: u64, length: u64, segment: u64) -> Extent {
        Extent { offset, length, segment: SegmentId { session: SessionId(1), sequence: segment }, segment_offset: 0 }
    }

    #[test]
    fn a_page_that_is_not_loaded_is_unknown_and_not_a_hole() {
        let mut map = ContentMap::default();
        let mut page =
            Content { attr: attr(InodeId(9)), inline: Vec::new(), extents: vec![extent(0, 10, 1)], more: true };
        page.attr.version = 3;
        map.take(0, &page);
        assert_eq!(map.find(4), Found::Stored(extent(0, 10, 1).clip(4, 10).unwrap()));
        assert_eq!(map.find(10), Found::Unknown);
        map.take(10, &Content { extents: vec![extent(20, 5, 2)], more: false, ..page.clone() });
        assert_eq!(map.find(10), Found::Hole(20));
        assert_eq!(map.find(25), Found::Hole(u64::MAX));
        let old = Content { attr: attr(InodeId(9)), extents: vec![], ..page.clone() };
        map.take(0, &old);
        assert!(matches!(map.find(0), Found::Stored(_)), "an older page is ignored");
        page.attr.version = 4;
        page.extents = vec![extent(5, 5, 7)];
        map.take(0, &page);
        assert_eq!(map.find(0), Found::Hole(5));
        assert_eq!(map.find(20), Found::Unknown, "a newer version replaces all");
    }

    #[test]
    fn a_punched_hole_does_not_reveal_inline_bytes() {
        let mut map = ContentMap::empty(1);
        map.apply(2, None, &RangeSet::default(), &CommitContent::Inline(vec![7; 100]));
        assert_eq!(map.find(0), Found::Inline(100));
        let mut punched = RangeSet::default();
        punched.insert(10, 20);
        map.apply(3, Some(50), &punched, &CommitContent::Extents(vec![extent(5000, 10, 1)]));
        assert_eq!(&map.inline()[..50], [&[7u8; 10][..], &[0; 10], &[7; 30]].concat());
        assert_eq!(map.find(50), Found::Hole(5000));
    }
}
