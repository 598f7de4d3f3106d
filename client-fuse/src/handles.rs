//! Open directories: a cursor by name under offsets that stay valid while entries come and go.
//!
//! Offsets count the entries of this listing: 1 is after `.`, 2 after `..`, 3 after the first name. An entry that is there from
//! the first to the last read is listed once, since each page begins after the last name of the one before. Going back
//! (seekdir) inside the current page is exact; further back a page is read again from the nearest mark and entries are counted
//! from there. Offset 0 (rewinddir) begins anew.
//! Invariants: memory per handle is one page and [`MARKS_MAX`] names; attributes are never older than the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use pando_types::limits::DIR_ENTRIES_PER_PAGE_MAX;
use pando_types::request::DirectoryEntry;
use pando_types::{Attr, FileKind, FileName, FsError, InodeId};
use tokio::sync::Mutex;

use crate::volume::Volume;

/// Remembered beginnings of pages; beyond, every second one is dropped. One directory of a million names needs this many.
const MARKS_MAX: usize = 1024;
/// Entries fetched for the first listing with attributes: what fits into the 32 KiB that glibc reads at once.
const PLUS_ENTRIES_FIRST: usize = 192;
/// Offset of the first name.
const DOTS: u64 = 2;

/// One entry for the kernel.
pub(crate) struct Listed<'a> {
    pub(crate) inode: InodeId,
    pub(crate) kind: FileKind,
    pub(crate) name: &'a [u8],
    /// Where to go on after it.
    pub(crate) next: u64,
    /// Known if it was asked for; never for `.` and `..`.
    pub(crate) attr: Option<&'a Attr>,
}

/// The directories that are open.
pub(crate) struct Directories {
    open: DashMap<u64, Arc<Mutex<Listing>>>,
    next: AtomicU64,
}

impl Directories {
    pub(crate) fn new() -> Directories {
        Directories { open: DashMap::new(), next: AtomicU64::new(1) }
    }

    /// Opens a directory; the number is its handle.
    pub(crate) fn open(&self, inode: InodeId) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.insert(handle, Arc::new(Mutex::new(Listing::new(inode))));
        handle
    }

    pub(crate) fn find(&self, handle: u64) -> Option<Arc<Mutex<Listing>>> {
        self.open.get(&handle).map(|l| l.clone())
    }

    pub(crate) fn close(&self, handle: u64) {
        self.open.remove(&handle);
    }
}

/// The state of one open directory.
pub(crate) struct Listing {
    pub(crate) inode: InodeId,
    page: Page,
    marks: Vec<Mark>,
    plus_entries: usize,
}

/// Consecutive entries.
#[derive(Default)]
struct Page {
    begin: Mark,
    entries: Vec<DirectoryEntry>,
    /// No names follow.
    end: bool,
    /// Fetched by this request, with attributes.
    fresh_plus: bool,
}

/// The entry with number `index` is the first one after the name `after`.
#[derive(Default, Clone)]
struct Mark {
    index: u64,
    after: Option<FileName>,
}

impl Page {
    fn end_index(&self) -> u64 {
        self.begin.index + self.entries.len() as u64
    }

    fn contains(&self, index: u64) -> bool {
        (self.begin.index..self.end_index()).contains(&index)
    }

    /// The mark of an entry of the page, or of the one after its last.
    fn mark(&self, index: u64) -> Option<Mark> {
        let at = index.checked_sub(self.begin.index)? as usize;
        match at {
            0 => Some(self.begin.clone()),
            _ => self.entries.get(at - 1).map(|e| Mark { index, after: Some(e.name.clone()) }),
        }
    }
}

impl Listing {
    fn new(inode: InodeId) -> Listing {
        Listing { inode, page: Page::default(), marks: vec![Mark::default()], plus_entries: PLUS_ENTRIES_FIRST }
    }

    /// Gives entries from `offset` on to `emit` until it says that it is full, or a page's worth. `dots` is `.` and `..`.
    pub(crate) async fn read<V: Volume>(
        &mut self,
        volume: &V,
        offset: u64,
        plus: bool,
        dots: [InodeId; 2],
        emit: &mut (impl FnMut(Listed<'_>) -> bool + Send),
    ) -> Result<(), FsError> {
        if offset == 0 {
            self.page = Page::default();
            self.marks.truncate(1);
        }
        for (at, name) in [(0, &b"."[..]), (1, b"..")] {
            let (kind, inode) = (FileKind::Directory, dots[at as usize]);
            if offset <= at && emit(Listed { inode, kind, name, next: at + 1, attr: None }) {
                return Ok(());
            }
        }
        let index = offset.max(DOTS) - DOTS;
        let result = self.go_to(volume, index, plus).await;
        if result.is_ok() {
            self.emit_page(index, plus, emit);
        }
        self.page.fresh_plus = false;
        // What was given before the failure counts; the next request fails if this one is not empty.
        if offset < DOTS { Ok(()) } else { result }
    }

    fn emit_page(&mut self, index: u64, plus: bool, emit: &mut impl FnMut(Listed<'_>) -> bool) {
        let skip = index.saturating_sub(self.page.begin.index) as usize;
        for (at, entry) in self.page.entries.iter().enumerate().skip(skip) {
            let next = self.page.begin.index + at as u64 + 1 + DOTS;
            let (inode, kind, name) = (entry.inode, entry.kind, entry.name.as_bytes());
            if emit(Listed { inode, kind, name, next, attr: entry.attr.as_ref() }) {
                if plus {
                    self.plus_entries = (at - skip) + (at - skip) / 8 + 8;
                }
                break;
            }
        }
        for entry in &mut self.page.entries {
            entry.attr = None;
        }
    }

    /// Makes the page contain an entry, or be the last.
    async fn go_to<V: Volume>(&mut self, volume: &V, index: u64, plus: bool) -> Result<(), FsError> {
        let is_usable = |page: &Page| {
            let at_end = page.end && index >= page.end_index() && page.begin.index <= index;
            at_end || (page.contains(index) && (page.fresh_plus || !plus))
        };
        if is_usable(&self.page) {
            return Ok(());
        }
        let mut from = match self.page.mark(index) {
            Some(mark) => mark,
            None => self.nearest_mark(index),
        };
        loop {
            let wants_plus = plus && from.index == index;
            self.fetch(volume, from, wants_plus).await?;
            if is_usable(&self.page) {
                return Ok(());
            }
            let onward = if self.page.contains(index) { index } else { self.page.end_index() };
            from = self.page.mark(onward).unwrap_or_default();
        }
    }

    async fn fetch<V: Volume>(&mut self, volume: &V, from: Mark, plus: bool) -> Result<(), FsError> {
        let limit = if plus { self.plus_entries } else { DIR_ENTRIES_PER_PAGE_MAX };
        let limit = limit.clamp(8, DIR_ENTRIES_PER_PAGE_MAX) as u32;
        let page = volume.readdir(self.inode, from.after.clone(), plus, limit).await?;
        if plus && page.entries.iter().any(|e| e.attr.is_none()) {
            return Err(FsError::bug("a directory page lacks the attributes that were asked for"));
        }
        let end = page.end || page.entries.is_empty();
        self.remember(&from);
        self.page = Page { begin: from, entries: page.entries, end, fresh_plus: plus };
        Ok(())
    }

    fn remember(&mut self, mark: &Mark) {
        if self.marks.last().is_some_and(|last| last.index >= mark.index) {
            return;
        }
        if self.marks.len() >= MARKS_MAX {
            let mut keep = false;
            self.marks.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.marks.push(mark.clone());
    }

    fn nearest_mark(&self, index: u64) -> Mark {
        let at = self.marks.partition_point(|m| m.index <= index);
        at.checked_sub(1).and_then(|at| self.marks.get(at)).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
#[path = "handles/handles_test.rs"]
mod tests;
