//! Written bytes that can still change: pages that grow with use, and which of their bytes were written.
//!
//! Not here: bytes on their way to the store (`sealed.rs`), memory (the caller brings the grant that [`DirtyMap::need`] asks for).
//! Invariants: every dirty byte lies in a page; a page holds at most [`PAGE_BYTES`]; the memory of all pages is covered by
//! the map's grant.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pando_types::limits::{BLOCK_BYTES_LARGE, BLOCK_BYTES_SMALL, CHECKSUM_BLOCK_BYTES, SMALL_BLOCKS_UNTIL};

use crate::file::ranges::RangeSet;
use crate::memory::budget::{Budget, Grant};

/// Unit of allocation: what one checksum of a segment covers, so that whole pages are checksummed without a copy.
pub(crate) const PAGE_BYTES: u64 = CHECKSUM_BLOCK_BYTES as u64;
/// Smallest allocation.
const PAGE_BYTES_MIN: u64 = 512;
/// What a page costs beside its bytes: its places in the maps.
const PAGE_OVERHEAD_BYTES: u64 = 256;

/// A run of written bytes at a file offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    /// File offset of the first byte.
    pub(crate) offset: u64,
    /// The bytes.
    pub(crate) data: Bytes,
}

/// The block of a file that contains `offset`: `(first byte, bytes)`.
pub(crate) fn block_of(offset: u64) -> (u64, u64) {
    let size = if offset < SMALL_BLOCKS_UNTIL { BLOCK_BYTES_SMALL } else { BLOCK_BYTES_LARGE } as u64;
    (offset / size * size, size)
}

/// Bytes `[start, start + data.len())` of the page; what lies between written ranges is filler.
struct Page {
    start: u64,
    data: Vec<u8>,
}

/// See the module.
pub(crate) struct DirtyMap {
    pages: BTreeMap<u64, Page>,
    written: RangeSet,
    grant: Grant,
}

impl DirtyMap {
    pub(crate) fn new(budget: &Arc<Budget>) -> DirtyMap {
        DirtyMap { pages: BTreeMap::new(), written: RangeSet::default(), grant: Grant::none(budget) }
    }

    /// The written ranges.
    pub(crate) fn written(&self) -> &RangeSet {
        &self.written
    }

    /// Memory, in bytes, that writing `[offset, offset + length)` takes in addition.
    pub(crate) fn need(&self, offset: u64, length: u64) -> u64 {
        parts(offset, length).map(|part| self.need_of(&part)).sum()
    }

    fn need_of(&self, part: &Part) -> u64 {
        match self.pages.get(&part.page) {
            None => capacity(part.from, part.to) + PAGE_OVERHEAD_BYTES,
            Some(page) if part.from < page.start => {
                capacity(part.from, part.to.max(page.end())).max(page.capacity()) - page.capacity()
            }
            Some(page) if part.to > page.start + page.capacity() => capacity(page.start, part.to) - page.capacity(),
            Some(_) => 0,
        }
    }

    /// Takes bytes. `grant` covers what [`DirtyMap::need`] said.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8], grant: Grant) {
        self.grant.merge(grant);
        for part in parts(offset, data.len() as u64) {
            let at = (part.page * PAGE_BYTES + part.from - offset) as usize;
            let bytes = &data[at..at + (part.to - part.from) as usize];
            let page = self.pages.entry(part.page).or_insert_with(|| Page {
                start: part.from,
                data: Vec::with_capacity(capacity(part.from, part.to) as usize),
            });
            page.put(part.from, bytes);
        }
        self.written.insert(offset, offset + data.len() as u64);
    }

    /// Appends the written bytes `[from, to)` to `out`; all of them must have been written.
    pub(crate) fn copy(&self, from: u64, to: u64, out: &mut Vec<u8>) {
        for part in parts(from, to - from) {
            let page = self.pages.get(&part.page).expect("a written byte lies in a page");
            out.extend_from_slice(&page.data[(part.from - page.start) as usize..(part.to - page.start) as usize]);
        }
    }

    /// Forgets what was written in `[from, to)`, and the memory of pages that are not needed any more.
    pub(crate) fn remove(&mut self, from: u64, to: u64) {
        if self.written.is_empty() || from >= to {
            return;
        }
        self.written.remove(from, to);
        let last = if to == u64::MAX { u64::MAX } else { to.div_ceil(PAGE_BYTES) };
        let unused: Vec<u64> = self
            .pages
            .range(from / PAGE_BYTES..last)
            .map(|(&page, _)| page)
            .filter(|&page| !self.has_written(page))
            .collect();
        for page in unused {
            self.drop_page(page);
        }
    }

    fn has_written(&self, page: u64) -> bool {
        let (from, to) = (page * PAGE_BYTES, (page + 1).saturating_mul(PAGE_BYTES));
        self.written.end_of(from).is_some() || self.written.next_start(from).is_some_and(|start| start < to)
    }

    fn drop_page(&mut self, page: u64) -> Option<(Page, Grant)> {
        let page = self.pages.remove(&page)?;
        let grant = self.grant.split(page.capacity() + PAGE_OVERHEAD_BYTES);
        Some((page, grant))
    }

    /// Moves the written bytes of pages that begin in `[from, to)` out, at most `bytes_max` (at least a page's) and
    /// `ranges_max` ranges (more if one page has more): the runs in order, and their memory. Both bounds are page bounds.
    pub(crate) fn take(&mut self, from: u64, to: u64, bytes_max: u64, ranges_max: usize) -> (Vec<Run>, Grant) {
        let mut grant = self.grant.split(0);
        let (mut runs, mut bytes, mut ranges) = (Vec::new(), 0, 0);
        let first = from.div_ceil(PAGE_BYTES);
        let last = if to == u64::MAX { u64::MAX } else { to.div_ceil(PAGE_BYTES) };
        while let Some(page) = self.pages.range(first..last).next().map(|(&page, _)| page) {
            let written = self.written_in(page);
            let in_page: u64 = written.iter().map(|(from, to)| to - from).sum();
            if !runs.is_empty() && (bytes + in_page > bytes_max || ranges + written.len() > ranges_max) {
                break;
            }
            bytes += in_page;
            ranges += written.len();
            let Some((content, memory)) = self.drop_page(page) else { break };
            grant.merge(memory);
            let base = page * PAGE_BYTES + content.start;
            let data = Bytes::from(content.data);
            for (from, to) in written {
                self.written.remove(from, to);
                runs.push(Run { offset: from, data: data.slice((from - base) as usize..(to - base) as usize) });
            }
        }
        (runs, grant)
    }

    fn written_in(&self, page: u64) -> Vec<(u64, u64)> {
        let (mut at, end) = (page * PAGE_BYTES, (page + 1).saturating_mul(PAGE_BYTES));
        let mut written = Vec::new();
        while at < end {
            if let Some(to) = self.written.end_of(at) {
                written.push((at, to.min(end)));
                at = to;
            }
            match self.written.next_start(at) {
                Some(next) => at = next,
                None => break,
            }
        }
        written
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.pages.clear();
        self.written = RangeSet::default();
        let all = self.grant.bytes();
        drop(self.grant.split(all));
    }
}

impl Page {
    fn end(&self) -> u64 {
        self.start + self.data.len() as u64
    }

    fn capacity(&self) -> u64 {
        self.data.capacity() as u64
    }

    fn put(&mut self, from: u64, bytes: &[u8]) {
        let to = from + bytes.len() as u64;
        if from < self.start {
            self.grow_down(from, to);
        } else if to > self.start + self.capacity() {
            let more = capacity(self.start, to) as usize - self.data.len();
            self.data.reserve_exact(more);
        }
        let at = (from - self.start) as usize;
        let overlap = bytes.len().min(self.data.len().saturating_sub(at));
        if at > self.data.len() {
            self.data.resize(at, 0);
        }
        self.data[at..at + overlap].copy_from_slice(&bytes[..overlap]);
        self.data.extend_from_slice(&bytes[overlap..]);
    }

    fn grow_down(&mut self, from: u64, to: u64) {
        let size = capacity(from, to.max(self.end())).max(self.capacity()) as usize;
        let mut data = Vec::with_capacity(size);
        data.resize((self.start - from) as usize, 0);
        data.extend_from_slice(&self.data);
        *self = Page { start: from, data };
    }
}

/// A range inside one page.
struct Part {
    page: u64,
    from: u64,
    to: u64,
}

/// The parts of `[offset, offset + length)` by page.
fn parts(offset: u64, length: u64) -> impl Iterator<Item = Part> {
    let end = offset + length;
    let pages = offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
    pages.map(move |page| {
        let base = page * PAGE_BYTES;
        Part { page, from: offset.max(base) - base, to: end.min(base + PAGE_BYTES) - base }
    })
}

/// Bytes to allocate so that `[from, to)` of a page fits: a power of two, so that growing is cheap, within the page.
fn capacity(from: u64, to: u64) -> u64 {
    (to - from).next_power_of_two().max(PAGE_BYTES_MIN).min(PAGE_BYTES - from).max(to - from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::testing::Random;
    use crate::memory::budget::Purpose;

    fn write(map: &mut DirtyMap, budget: &Arc<Budget>, offset: u64, data: &[u8]) {
        let grant = budget.try_take(Purpose::Keep, map.need(offset, data.len() as u64)).unwrap();
        map.write(offset, data, grant);
        let memory: u64 = map.pages.values().map(|p| p.capacity() + PAGE_OVERHEAD_BYTES).sum();
        assert_eq!(map.grant.bytes(), memory, "every allocated byte is granted, and no other");
    }

    #[test]
    fn holds_what_was_written_and_accounts_for_it() {
        let budget = Budget::new(1 << 30, 1);
        let mut random = Random::new(3);
        for _ in 0..50 {
            let size = 3 * PAGE_BYTES;
            let mut map = DirtyMap::new(&budget);
            let mut reference = vec![None; size as usize];
            for _ in 0..40 {
                let from = random.below(size);
                let longest = 1 << random.below(18);
                let length = 1 + random.below((size - from).min(longest));
                if random.below(5) == 0 {
                    map.remove(from, from + length);
                    reference[from as usize..(from + length) as usize].fill(None);
                    continue;
                }
                let data = random.bytes(length as usize);
                write(&mut map, &budget, from, &data);
                for (at, byte) in data.iter().enumerate() {
                    reference[from as usize + at] = Some(*byte);
                }
            }
            for (from, to) in map.written().iter().collect::<Vec<_>>() {
                let mut out = Vec::new();
                map.copy(from, to, &mut out);
                let want: Option<Vec<u8>> = reference[from as usize..to as usize].iter().copied().collect();
                assert_eq!(Some(out), want);
            }
            let (runs, grant) = map.take(0, u64::MAX, u64::MAX, usize::MAX);
            let mut taken = vec![None; size as usize];
            for run in runs {
                for (at, byte) in run.data.iter().enumerate() {
                    taken[run.offset as usize + at] = Some(*byte);
                }
            }
            assert!(taken == reference);
            assert!(map.written().is_empty() && map.pages.is_empty() && map.grant.bytes() == 0);
            drop(grant);
            assert_eq!(budget.usage().0, 0);
        }
    }

    #[test]
    fn a_small_file_costs_little_and_a_stream_costs_its_size() {
        let budget = Budget::new(1 << 30, 1);
        let mut map = DirtyMap::new(&budget);
        write(&mut map, &budget, 0, b"hello");
        assert!(budget.usage().0 < 1024);
        map.clear();
        for n in 0..1024 {
            write(&mut map, &budget, n * 4096, &[1; 4096]);
        }
        assert!(budget.usage().0 <= (4 << 20) + 64 * PAGE_OVERHEAD_BYTES);
        let (runs, _grant) = map.take(0, 1 << 20, u64::MAX, usize::MAX);
        assert_eq!(runs.iter().map(|r| r.data.len()).sum::<usize>(), 1 << 20);
        assert_eq!(map.written().bytes(), 3 << 20);
    }

    #[test]
    fn takes_no_more_than_asked() {
        let budget = Budget::new(1 << 30, 1);
        let mut map = DirtyMap::new(&budget);
        for n in 0..10 {
            write(&mut map, &budget, n * PAGE_BYTES, &[1; 100]);
        }
        let (runs, _grant) = map.take(0, u64::MAX, 350, 100);
        assert_eq!(runs.len(), 3);
        let (runs, _grant) = map.take(0, u64::MAX, u64::MAX, 2);
        assert_eq!(runs.len(), 2);
        assert_eq!(map.written().len(), 5);
    }

    #[test]
    fn blocks_grow_with_the_offset() {
        assert_eq!(block_of((4 << 20) + 1), (4 << 20, 4 << 20));
        assert_eq!(block_of((64 << 20) - 1), (60 << 20, 4 << 20));
        assert_eq!(block_of(64 << 20), (64 << 20, 16 << 20));
        assert_eq!(block_of((81 << 20) + 5), (80 << 20, 16 << 20));
    }
}
