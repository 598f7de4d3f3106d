//! The state of an open file: what is committed, as far as it is known, and over it what was written here since.
//!
//! Pure: no waiting, no clock, no store. Not here: when to commit and how (`flush.rs`), fetching bytes (`reader.rs`).
//! Layers, the first that has a byte decides: dirty pages, sealed blocks, pending cuts and punches (and those of the commit
//! in flight), committed content. Invariants: what was written is read at once; a commit in flight is either landed or
//! turned back; bytes of a lost state are never committed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use pando_types::command::{AttrChange, CommitContent, FileCommit};
use pando_types::limits::{BLOCK_BYTES_SMALL, INLINE_BYTES_MAX};
use pando_types::request::Content;
use pando_types::{Attr, Extent, FileRange, InodeId, SegmentId, Timestamp};
use tokio::sync::mpsc;

use crate::file::content::{ContentMap, Found};
use crate::file::dirty::{DirtyMap, block_of};
use crate::file::pending::Pending;
use crate::file::sealed::{Block, Piece, Progress, SealedMap};
use crate::memory::budget::{Budget, Grant};

/// Runs in one block, so that its extents always fit in one commit.
pub(crate) const RUNS_PER_BLOCK_MAX: usize = 1024;
/// Pieces beyond which a file is committed though nobody asked, so that the list stays bounded.
pub(crate) const PIECES_MAX: usize = 8 << 10;
/// Punched ranges beyond which the same happens.
pub(crate) const PUNCHES_MAX: usize = 512;

/// Where a range of the file comes from.
#[derive(Clone)]
pub(crate) enum Source {
    /// Dirty pages.
    Dirty,
    /// A sealed block.
    Sealed(Piece),
    /// A committed extent.
    Stored(Extent),
    /// Committed inline bytes.
    Inline,
    /// Nothing: zeros.
    Hole,
}

/// The page of the content map at this offset has to be fetched first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Missing(pub(crate) u64);

/// What a commit shall hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Blocks sealed up to this one,
    pub(crate) sequence: u64,
    /// whole ones of together at most so many pieces (at least one block's),
    pub(crate) pieces_max: usize,
    /// and at least this size if the file has it.
    pub(crate) size: u64,
}

impl Wanted {
    /// Everything.
    pub(crate) const ALL: Wanted = Wanted { sequence: u64::MAX, pieces_max: usize::MAX, size: u64::MAX };
}

/// A commit ready to be sent.
pub(crate) struct TakeOff {
    /// Its content is filled in from `pieces` when they all have a place, unless it is inline.
    pub(crate) commit: FileCommit,
    /// In file order.
    pub(crate) pieces: Vec<Piece>,
    /// The blocks of the pieces.
    pub(crate) blocks: Vec<Arc<Block>>,
}

struct Flight {
    pending: Pending,
    /// Blocks sealed up to here are in it.
    sequence: u64,
}

/// See the module.
pub(crate) struct State {
    inode: InodeId,
    attr: Attr,
    content: ContentMap,
    dirty: DirtyMap,
    sealed: SealedMap,
    pending: Pending,
    flight: Option<Flight>,
    sequence: u64,
    unused: Option<mpsc::Sender<SegmentId>>,
    /// When the oldest and newest uncommitted changes were made.
    pub(crate) changed: Option<(Instant, Instant)>,
    /// Pending bytes were lost: nothing more is committed until the file is emptied.
    pub(crate) lost: bool,
}

impl State {
    /// A file of which only attributes are known; a `new` one is known to be empty.
    pub(crate) fn new(attr: Attr, new: bool, budget: &Arc<Budget>, unused: Option<mpsc::Sender<SegmentId>>) -> State {
        let mut content = ContentMap::empty(attr.version);
        if !new {
            content.forget(attr.version);
        }
        State {
            inode: attr.inode,
            attr,
            content,
            dirty: DirtyMap::new(budget),
            sealed: SealedMap::default(),
            pending: Pending::default(),
            flight: None,
            sequence: 0,
            unused,
            changed: None,
            lost: false,
        }
    }

    /// The size as it is seen here.
    pub(crate) fn size(&self) -> u64 {
        let before = self.flight.as_ref().map_or(self.attr.size, |f| f.pending.size_after(self.attr.size));
        self.pending.size_after(before)
    }

    /// Nothing waits to be committed: dirty or sealed bytes always come with something pending.
    pub(crate) fn is_clean(&self) -> bool {
        self.flight.is_none() && self.pending.is_empty()
    }

    /// Attributes wait to be committed.
    pub(crate) fn has_pending_attributes(&self) -> bool {
        self.pending.change != AttrChange::default()
    }

    /// Bytes written and not sealed.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty.written().bytes()
    }

    /// So many pieces have gathered that the file must be committed.
    pub(crate) fn is_crowded(&self) -> bool {
        self.sealed.len() > PIECES_MAX || self.pending.punched.len() > PUNCHES_MAX
    }

    /// So many that writers wait for it.
    pub(crate) fn is_overcrowded(&self) -> bool {
        self.sealed.len() > 3 * PIECES_MAX / 2 || self.pending.punched.len() > 2 * PUNCHES_MAX
    }

    /// The committed version that is known.
    pub(crate) fn version(&self) -> u64 {
        self.attr.version
    }

    /// Attributes as they are seen here, over committed ones.
    pub(crate) fn show(&self, mut attr: Attr, now: Timestamp) -> Attr {
        let committed = attr.allocated;
        if let Some(flight) = &self.flight {
            flight.pending.show(&mut attr, now);
        }
        self.pending.show(&mut attr, now);
        let cut = self.pending.cut.unwrap_or(u64::MAX);
        attr.allocated = committed.min(cut) + self.dirty.written().bytes() + self.sealed.bytes();
        attr
    }

    /// The attributes last seen, as they are now.
    pub(crate) fn attr(&self, now: Timestamp) -> Attr {
        self.show(self.attr.clone(), now)
    }

    /// Committed attributes were seen. While a commit is in flight its own answer says more.
    pub(crate) fn observe(&mut self, attr: &Attr) {
        if self.flight.is_some() || attr.version < self.attr.version {
            return;
        }
        if attr.version > self.attr.version && attr.version != self.content.version() {
            self.content.forget(attr.version);
        }
        if attr.version > self.attr.version || attr.ctime >= self.attr.ctime {
            self.attr = attr.clone();
        }
    }

    /// A page of the content map was fetched for `from`.
    pub(crate) fn take_page(&mut self, from: u64, page: &Content) {
        self.observe(&page.attr);
        self.content.take(from, page);
    }

    /// The content map is of no use: it names a segment that is gone.
    pub(crate) fn forget_content(&mut self) {
        self.content.forget(self.attr.version);
    }

    /// Memory needed for a write.
    pub(crate) fn need(&self, offset: u64, length: u64) -> u64 {
        self.dirty.need(offset, length)
    }

    /// Takes written bytes.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8], grant: Grant, now: Timestamp, kill_privileges: bool) {
        self.dirty.write(offset, data, grant);
        self.pending.write(offset + data.len() as u64, now, kill_privileges);
    }

    /// Sets the size. Emptying a file that had lost bytes makes it whole again.
    pub(crate) fn truncate(&mut self, size: u64, now: Timestamp, kill_privileges: bool) {
        self.lost &= size != 0;
        self.dirty.remove(size, u64::MAX);
        self.sealed.remove(size, u64::MAX);
        self.pending.truncate(size, self.size(), now, kill_privileges);
    }

    /// Makes a range zeros, within the size.
    pub(crate) fn punch(&mut self, from: u64, to: u64, now: Timestamp) {
        let to = to.min(self.size());
        if from >= to {
            return;
        }
        self.dirty.remove(from, to);
        self.sealed.remove(from, to);
        self.pending.punch(from, to, now, false);
    }

    /// Makes the size at least this.
    pub(crate) fn grow(&mut self, size: u64, now: Timestamp) {
        if size > self.size() {
            self.truncate(size, now, false);
        }
    }

    /// Sets attributes.
    pub(crate) fn set(&mut self, change: &AttrChange, now: Timestamp) {
        self.pending.set(change, now);
    }

    /// The source of the bytes at `at` and where it ends, `end` at most. `at` lies within the size.
    pub(crate) fn source(&self, at: u64, end: u64) -> Result<(Source, u64), Missing> {
        let written = self.dirty.written();
        if let Some(to) = written.end_of(at) {
            return Ok((Source::Dirty, to.min(end)));
        }
        let mut end = end.min(written.next_start(at).unwrap_or(u64::MAX));
        if let Some(piece) = self.sealed.find(at) {
            let to = end.min(at + piece.length);
            return Ok((Source::Sealed(Piece { length: to - at, ..piece }), to));
        }
        end = end.min(self.sealed.next_start(at).unwrap_or(u64::MAX));
        let flight = self.flight.as_ref().map(|f| &f.pending);
        for pending in [Some(&self.pending), flight].into_iter().flatten() {
            match pending.cut {
                Some(cut) if at >= cut => return Ok((Source::Hole, end)),
                Some(cut) => end = end.min(cut),
                None => {}
            }
            if let Some(to) = pending.punched.end_of(at) {
                return Ok((Source::Hole, end.min(to)));
            }
            end = end.min(pending.punched.next_start(at).unwrap_or(u64::MAX));
        }
        if at >= self.attr.size {
            return Ok((Source::Hole, end));
        }
        self.committed_source(at, end.min(self.attr.size))
    }

    fn committed_source(&self, at: u64, end: u64) -> Result<(Source, u64), Missing> {
        match self.content.find(at) {
            Found::Unknown => Err(Missing(at)),
            Found::Stored(extent) => {
                let to = end.min(extent.end());
                Ok((Source::Stored(Extent { length: to - at, ..extent }), to))
            }
            Found::Inline(to) => Ok((Source::Inline, to.min(end))),
            Found::Hole(to) => Ok((Source::Hole, to.min(end))),
        }
    }

    /// Appends a range of dirty pages.
    pub(crate) fn copy_dirty(&self, from: u64, to: u64, out: &mut Vec<u8>) {
        self.dirty.copy(from, to, out);
    }

    /// Appends a range of the inline bytes.
    pub(crate) fn copy_inline(&self, from: u64, to: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.content.inline()[from as usize..to as usize]);
    }

    /// Seals the blocks within `[from, to)` that have been written completely, or that have too many runs.
    pub(crate) fn seal_full(&mut self, from: u64, to: u64) -> Vec<Arc<Block>> {
        let mut sealed = Vec::new();
        let mut at = block_of(from).0;
        while at < to {
            let (start, size) = block_of(at);
            if self.dirty.written().contains(start, start + size) {
                sealed.extend(self.seal(start, start + size, size));
            }
            at = start + size;
        }
        if self.dirty.written().len() >= RUNS_PER_BLOCK_MAX {
            sealed.extend(self.seal(0, u64::MAX, BLOCK_BYTES_SMALL as u64));
        }
        sealed
    }

    /// Seals everything dirty, in blocks of the size that the file has there.
    pub(crate) fn seal_all(&mut self) -> Vec<Arc<Block>> {
        let mut sealed = Vec::new();
        while let Some(first) = self.dirty.written().first() {
            // A large block only where it is full, as for a stream; random writers have small ones.
            let (start, size) = block_of(first);
            let full = self.dirty.written().contains(start, start + size);
            let (end, bytes) = if full { (start + size, size) } else { (u64::MAX, BLOCK_BYTES_SMALL as u64) };
            match self.seal(first, end, bytes) {
                Some(block) => sealed.push(block),
                None => break,
            }
        }
        sealed
    }

    fn seal(&mut self, from: u64, to: u64, bytes_max: u64) -> Option<Arc<Block>> {
        let page = from / crate::file::dirty::PAGE_BYTES * crate::file::dirty::PAGE_BYTES;
        let (runs, grant) = self.dirty.take(page, to, bytes_max, RUNS_PER_BLOCK_MAX);
        if runs.is_empty() {
            return None;
        }
        self.sequence += 1;
        let block = Block::new(self.sequence, runs, grant, self.unused.clone());
        self.sealed.insert(&block);
        Some(block)
    }

    /// Blocks that still have a piece, in the order of sealing.
    pub(crate) fn sealed_blocks(&self) -> Vec<Arc<Block>> {
        self.sealed.blocks()
    }

    /// The last block that was sealed.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The content changes with the next commit, not only attributes.
    pub(crate) fn has_pending_content(&self) -> bool {
        self.pending.content
    }

    /// The whole content, if it is small enough to live in the inode and all of it is at hand.
    pub(crate) fn inline(&self) -> Option<Vec<u8>> {
        let size = self.size();
        if size > INLINE_BYTES_MAX as u64 || self.flight.is_some() {
            return None;
        }
        let mut bytes = Vec::with_capacity(size as usize);
        while (bytes.len() as u64) < size {
            let at = bytes.len() as u64;
            match self.source(at, size).ok()? {
                (Source::Dirty, to) => self.dirty.copy(at, to, &mut bytes),
                (Source::Inline, to) => self.copy_inline(at, to, &mut bytes),
                (Source::Hole, to) => bytes.resize(to as usize, 0),
                (Source::Sealed(piece), _) => {
                    piece.block.bytes(piece.at, piece.length)?.iter().for_each(|b| bytes.extend_from_slice(b));
                }
                (Source::Stored(_), _) => return None,
            }
        }
        Some(bytes)
    }

    /// The content to be committed inline would include committed bytes that were not written here.
    pub(crate) fn inline_needs_base(&self) -> bool {
        let size = self.size();
        if size > INLINE_BYTES_MAX as u64 || !self.pending.content || self.flight.is_some() {
            return false;
        }
        let mut at = 0;
        while at < size {
            match self.source(at, size) {
                Ok((Source::Inline, _)) | Err(_) => return true,
                Ok((_, to)) => at = to,
            }
        }
        false
    }

    /// Starts a commit. Without it, `None`: there is nothing to commit.
    pub(crate) fn take_off(&mut self, wanted: &Wanted, inline: Option<Vec<u8>>) -> Option<TakeOff> {
        let sequence = self.last_that_fits(wanted);
        let pieces: Vec<_> = self.sealed.iter().filter(|p| p.block.sequence <= sequence).cloned().collect();
        let blocks: Vec<_> = self.sealed.blocks().into_iter().filter(|b| b.sequence <= sequence).collect();
        let whole = self.dirty.written().is_empty() && pieces.len() == self.sealed.len();
        let mut pending = std::mem::take(&mut self.pending);
        if !whole {
            // What was written meanwhile stays pending, and the size that it needs.
            let change = AttrChange { mtime: pending.change.mtime, ..AttrChange::default() };
            self.pending = Pending { change, grown: pending.grown, content: true, ..Pending::default() };
            let end = pieces.iter().map(|p| p.offset + p.length).max().unwrap_or(0);
            pending.grown = pending.grown.min(end.max(wanted.size));
        }
        if pending.is_empty() && pieces.is_empty() {
            return None;
        }
        pending.content |= !pieces.is_empty();
        let commit = self.file_commit(&pending, inline);
        self.flight = Some(Flight { pending, sequence });
        Some(TakeOff { commit, pieces, blocks })
    }

    /// The last block that still fits, at least the first.
    fn last_that_fits(&self, wanted: &Wanted) -> u64 {
        let mut counts = BTreeMap::<u64, usize>::new();
        for piece in self.sealed.iter().filter(|p| p.block.sequence <= wanted.sequence) {
            *counts.entry(piece.block.sequence).or_default() += 1;
        }
        let (mut sum, mut last) = (0, 0);
        for (sequence, pieces) in counts {
            sum += pieces;
            if last != 0 && sum > wanted.pieces_max {
                break;
            }
            last = sequence;
        }
        last
    }

    fn file_commit(&self, pending: &Pending, inline: Option<Vec<u8>>) -> FileCommit {
        let range = |(from, to): (u64, u64)| FileRange { offset: from, length: to - from };
        let (inode, size, change) = (self.inode, pending.grown, pending.change);
        match inline {
            Some(bytes) => {
                let size = bytes.len() as u64;
                let content = CommitContent::Inline(bytes);
                FileCommit { inode, cut: pending.cut, punch: Vec::new(), content, size, change }
            }
            None => {
                let punch = pending.punched.iter().map(range).collect();
                let content = CommitContent::Extents(Vec::new());
                FileCommit { inode, cut: pending.cut, punch, content, size, change }
            }
        }
    }

    /// The commit in flight was carried out.
    pub(crate) fn land(&mut self, attr: Attr, content: &CommitContent) {
        let Some(flight) = self.flight.take() else { return };
        let expected = self.attr.version + u64::from(flight.pending.content);
        let seen_already = flight.pending.content && self.content.version() == attr.version;
        if self.content.version() == self.attr.version && attr.version == expected {
            self.content.apply(attr.version, flight.pending.cut, &flight.pending.punched, content);
        } else if !seen_already {
            self.content.forget(attr.version);
        }
        self.attr = attr;
        self.sealed.remove_blocks(flight.sequence);
        if self.is_clean() {
            self.changed = None;
        }
    }

    /// The commit in flight was not carried out, or nobody knows. Its blocks stay if they are all still in memory and
    /// are stored anew; else the bytes are lost.
    pub(crate) fn turn_back(&mut self) {
        let Some(flight) = self.flight.take() else { return };
        let later = std::mem::replace(&mut self.pending, flight.pending);
        self.pending.merge(later);
        let at_hand = |b: &Arc<Block>| b.sequence > flight.sequence || b.progress() != Progress::Stored;
        if !self.sealed.blocks().iter().all(at_hand) {
            self.lose();
        }
    }

    /// Drops everything that is not committed: the file is what it was, and stays so until it is emptied.
    pub(crate) fn lose(&mut self) {
        self.discard();
        self.lost = true;
    }

    /// Drops everything that is not committed.
    pub(crate) fn discard(&mut self) {
        self.pending = Pending::default();
        self.flight = None;
        self.dirty.clear();
        self.sealed.clear();
        self.content.forget(self.attr.version);
        self.changed = None;
    }

    /// Remembers when something changed.
    pub(crate) fn touch(&mut self, now: Instant) {
        self.changed = Some(self.changed.map_or((now, now), |(first, _)| (first, now)));
    }
}

#[cfg(test)]
#[path = "state/state_test.rs"]
mod tests;
