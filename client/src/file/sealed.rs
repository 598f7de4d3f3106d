//! Written bytes that do not change any more: blocks on their way to the store, or stored and not yet committed.
//!
//! Not here: uploading (`writer.rs`), committing (`packer.rs`). Invariants: ranges of the map do not overlap; a block's bytes
//! can be read at any time, from memory until they are stored and from their segment afterwards.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use pando_types::{Extent, SegmentId};
use tokio::sync::{mpsc, watch};

use crate::file::dirty::Run;
use crate::memory::budget::Grant;

/// How far a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// In memory; nobody stores it.
    Resting,
    /// In memory; on its way to a segment of its own.
    Storing,
    /// In its segment.
    Stored,
    /// In memory; the last try to store it failed.
    Failed,
}

/// Where a block's bytes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// The object.
    pub(crate) segment: SegmentId,
    /// Where in the segment's data the block begins.
    pub(crate) base: u64,
    /// Bytes of data in the segment.
    pub(crate) length: u64,
}

/// Runs of one file that are stored together, in order and without gaps.
pub(crate) struct Block {
    /// Order of sealing within the file: later ones lie over earlier ones.
    pub(crate) sequence: u64,
    /// Bytes of data.
    pub(crate) length: u64,
    contents: Mutex<Contents>,
    progress: watch::Sender<Progress>,
    /// Takes the id of a segment that nobody will ever refer to.
    unused: Option<mpsc::Sender<SegmentId>>,
}

struct Contents {
    memory: Option<Memory>,
    place: Option<Place>,
    /// A commit of the segment was tried: it is not this client's to delete.
    offered: bool,
}

struct Memory {
    /// With the offset of each in the block's data.
    runs: Vec<(u64, Run)>,
    /// Counted in the budget as long as this lives.
    grant: Grant,
}

impl Block {
    /// Seals runs.
    pub(crate) fn new(
        sequence: u64,
        runs: Vec<Run>,
        grant: Grant,
        unused: Option<mpsc::Sender<SegmentId>>,
    ) -> Arc<Block> {
        let mut length = 0;
        let place_run = |run: Run| {
            let at = length;
            length += run.data.len() as u64;
            (at, run)
        };
        let runs = runs.into_iter().map(place_run).collect();
        let contents = Contents { memory: Some(Memory { runs, grant }), place: None, offered: false };
        let progress = watch::Sender::new(Progress::Resting);
        Arc::new(Block { sequence, length, contents: Mutex::new(contents), progress, unused })
    }

    /// How far it is.
    pub(crate) fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    /// Moves it on; false if it was not in one of `from`.
    pub(crate) fn advance(&self, from: &[Progress], to: Progress) -> bool {
        self.progress.send_if_modified(|now| {
            let may = from.contains(now);
            if may {
                *now = to;
            }
            may
        })
    }

    /// Waits while it is being stored; bounded by the store's own retries.
    pub(crate) async fn settled(&self) -> Progress {
        let mut watch = self.progress.subscribe();
        match watch.wait_for(|p| *p != Progress::Storing).await {
            Ok(progress) => *progress,
            Err(_) => Progress::Failed, // the sender lives in self
        }
    }

    /// The runs, while they are in memory.
    pub(crate) fn runs(&self) -> Option<Vec<Run>> {
        self.lock().memory.as_ref().map(|m| m.runs.iter().map(|(_, run)| run.clone()).collect())
    }

    /// The bytes are in a segment of their own: the memory is given back.
    pub(crate) fn stored(&self, place: Place) {
        drop(self.put_at(place, false));
    }

    /// The bytes are committed in a segment that they share; their memory is the caller's: the runs with their offsets
    /// in the block.
    pub(crate) fn committed(&self, place: Place) -> Option<(Vec<(u64, Run)>, Grant)> {
        self.put_at(place, true)
    }

    fn put_at(&self, place: Place, offered: bool) -> Option<(Vec<(u64, Run)>, Grant)> {
        let memory = {
            let mut contents = self.lock();
            contents.place = Some(place);
            contents.offered |= offered;
            contents.memory.take()
        };
        self.progress.send_replace(Progress::Stored);
        memory.map(|m| (m.runs, m.grant))
    }

    /// Where it is stored.
    pub(crate) fn place(&self) -> Option<Place> {
        self.lock().place
    }

    /// A commit of its segment is about to be tried.
    pub(crate) fn offer(&self) {
        self.lock().offered = true;
    }

    /// Bytes `[at, at + length)` of the block's data if they are in memory: `None` when the segment has to be asked.
    pub(crate) fn bytes(&self, at: u64, length: u64) -> Option<Vec<Bytes>> {
        let contents = self.lock();
        let runs = &contents.memory.as_ref()?.runs;
        let first = runs.partition_point(|(start, run)| start + run.data.len() as u64 <= at);
        let mut parts = Vec::new();
        for (start, run) in &runs[first..] {
            let end = start + run.data.len() as u64;
            let (from, to) = (at.max(*start), (at + length).min(end));
            if from >= to {
                break;
            }
            parts.push(run.data.slice((from - start) as usize..(to - start) as usize));
        }
        Some(parts)
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let contents = self.contents.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let (Some(place), false, Some(unused)) = (contents.place, contents.offered, &self.unused) {
            // If the queue is full the segment stays until the session's leftovers are collected.
            let _ = unused.try_send(place.segment);
        }
    }
}

/// A range of a file that lies in a block.
#[derive(Clone)]
pub(crate) struct Piece {
    /// File offset.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// Whose.
    pub(crate) block: Arc<Block>,
    /// Offset in the block's data.
    pub(crate) at: u64,
}

impl Piece {
    /// As an extent, if the block is stored at this place.
    pub(crate) fn extent(&self, place: Place) -> Extent {
        let segment_offset = place.base + self.at;
        Extent { offset: self.offset, length: self.length, segment: place.segment, segment_offset }
    }

    fn end(&self) -> u64 {
        self.offset + self.length
    }

    fn clip(&self, from: u64, to: u64) -> Option<Piece> {
        let (start, end) = (self.offset.max(from), self.end().min(to));
        let at = self.at + start.saturating_sub(self.offset);
        (start < end).then(|| Piece { offset: start, length: end - start, block: self.block.clone(), at })
    }
}

/// File ranges -> blocks. See the module.
#[derive(Default)]
pub(crate) struct SealedMap(BTreeMap<u64, Piece>);

impl SealedMap {
    /// Lays a block's runs over what is there.
    pub(crate) fn insert(&mut self, block: &Arc<Block>) {
        let mut at = 0;
        let mut joined: Option<Piece> = None;
        for run in block.runs().unwrap_or_default() {
            let length = run.data.len() as u64;
            match &mut joined {
                Some(piece) if piece.end() == run.offset => piece.length += length,
                _ => {
                    let next = Piece { offset: run.offset, length, block: block.clone(), at };
                    if let Some(piece) = joined.replace(next) {
                        self.put(piece);
                    }
                }
            }
            at += length;
        }
        if let Some(piece) = joined {
            self.put(piece);
        }
    }

    fn put(&mut self, piece: Piece) {
        self.remove(piece.offset, piece.end());
        self.0.insert(piece.offset, piece);
    }

    /// Cuts `[from, to)` out.
    pub(crate) fn remove(&mut self, from: u64, to: u64) {
        while let Some((&start, piece)) = self.0.range(..to).next_back() {
            if piece.end() <= from || from >= to {
                return;
            }
            let rest = [piece.clip(0, from), piece.clip(to, u64::MAX)];
            self.0.remove(&start);
            for piece in rest.into_iter().flatten() {
                self.0.insert(piece.offset, piece);
            }
        }
    }

    /// The piece that contains `at`, from there on.
    pub(crate) fn find(&self, at: u64) -> Option<Piece> {
        self.0.range(..=at).next_back().and_then(|(_, piece)| piece.clip(at, u64::MAX))
    }

    /// Where the first piece after `at` starts.
    pub(crate) fn next_start(&self, at: u64) -> Option<u64> {
        self.0.range(at + 1..).next().map(|(&start, _)| start)
    }

    /// All pieces in file order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.0.values()
    }

    /// Every block that still has a piece, in the order of sealing.
    pub(crate) fn blocks(&self) -> Vec<Arc<Block>> {
        let blocks: BTreeMap<u64, Arc<Block>> = self.0.values().map(|p| (p.block.sequence, p.block.clone())).collect();
        blocks.into_values().collect()
    }

    /// Drops the pieces of blocks that were sealed at or before `sequence`.
    pub(crate) fn remove_blocks(&mut self, sequence: u64) {
        self.0.retain(|_, piece| piece.block.sequence > sequence);
    }

    /// Number of pieces.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Bytes in the map.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.values().map(|p| p.length).sum()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
