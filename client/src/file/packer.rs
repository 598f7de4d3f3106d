//! Group commit: files that are closed at the same time share a segment and one commit.
//!
//! Not here: what a file has to commit (`state.rs`). While batches are on their way the next one gathers; nobody waits for
//! company. Invariants: a batch fits in one segment and one command, and is of one slot; at most [`FLIGHTS_MAX`] batches
//! of a lane are on their way; every item gets one outcome.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pando_segments::{Store, Writer};
use pando_types::command::{Commit, CommitContent, FileCommit, NewSegment};
use pando_types::limits::{
    ENTRY_BYTES_MAX, EXTENTS_PER_COMMIT_MAX, FILES_PER_COMMIT_MAX, OWNERS_PER_SEGMENT_MAX, SEGMENT_BYTES_MAX,
};
use pando_types::{Attr, Errno, Extent, FsError, InodeId, SlotId};
use tokio::sync::oneshot;

use crate::file::metadata::Metadata;
use crate::file::sealed::{Block, Place};
use crate::file::state::TakeOff;

/// Batches of one lane on their way: one is stored while the other is committed.
const FLIGHTS_MAX: usize = 2;
/// Bytes of a command that its items may fill; what one item needs beside its inline bytes and extents is in [`ITEM_BYTES`].
const COMMAND_BYTES_MAX: usize = ENTRY_BYTES_MAX / 2;
/// Encoded size of an item without inline bytes and extents, at most; punched ranges are counted as extents.
const ITEM_BYTES: usize = 128;
/// Encoded size of an extent, at most.
const EXTENT_BYTES: usize = 64;

/// Items wait apart if they wait for different things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// Nothing more to store: inline bytes, attributes, blocks that are stored already.
    Plain,
    /// Blocks that are still to be stored, together.
    Packed,
}

/// What became of an item.
pub(crate) enum Outcome {
    /// Committed.
    Landed(Landed),
    /// Not committed: the metadata server refused this file.
    Refused(Errno),
    /// Not committed, or nobody knows.
    Failed(FsError),
}

/// A commit that was carried out.
pub(crate) struct Landed {
    /// The file afterwards.
    pub(crate) attr: Attr,
    /// What was committed.
    pub(crate) content: CommitContent,
    /// Where the blocks of a packed item are now.
    pub(crate) packed: Vec<(Arc<Block>, Place)>,
}

struct Item {
    inode: InodeId,
    take_off: TakeOff,
    outcome: oneshot::Sender<Outcome>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Item>,
    flights: usize,
}

/// See the module.
pub(crate) struct Packer {
    metadata: Arc<dyn Metadata>,
    store: Store,
    queues: Mutex<HashMap<(SlotId, Lane), Queue>>,
}

impl Packer {
    pub(crate) fn new(metadata: Arc<dyn Metadata>, store: Store) -> Arc<Packer> {
        Arc::new(Packer { metadata, store, queues: Mutex::default() })
    }

    /// Commits one file, together with whatever else waits. Bounded by the deadlines of store and metadata calls.
    pub(crate) async fn submit(self: &Arc<Self>, inode: InodeId, take_off: TakeOff, lane: Lane) -> Outcome {
        let (sender, outcome) = oneshot::channel();
        let key = (inode.slot(), lane);
        self.lock().entry(key).or_default().waiting.push_back(Item { inode, take_off, outcome: sender });
        self.start_batch(key);
        outcome.await.unwrap_or_else(|_| Outcome::Failed(FsError::bug("a commit was dropped")))
    }

    /// Sends the next batch if there is one and a place for it.
    fn start_batch(self: &Arc<Self>, key: (SlotId, Lane)) {
        let batch = {
            let mut queues = self.lock();
            let Some(queue) = queues.get_mut(&key) else { return };
            if queue.waiting.is_empty() || queue.flights >= FLIGHTS_MAX {
                return;
            }
            queue.flights += 1;
            next_batch(&mut queue.waiting)
        };
        let packer = self.clone();
        tokio::spawn(async move {
            let landing = Landing { packer: &packer, key };
            packer.fly(batch, key.1).await;
            drop(landing);
            packer.start_batch(key);
        });
    }

    async fn fly(&self, batch: Vec<Item>, lane: Lane) {
        let placed = match lane {
            Lane::Plain => batch.into_iter().map(|item| (item, Vec::new())).collect(),
            Lane::Packed => match self.store_together(batch).await {
                Ok(placed) => placed,
                Err((batch, error)) => {
                    for item in batch {
                        item.settle(Outcome::Failed(error.clone()));
                    }
                    return;
                }
            },
        };
        self.commit(placed).await;
    }

    /// Stores the blocks of all items in one segment.
    async fn store_together(&self, batch: Vec<Item>) -> Result<Vec<(Item, Packed)>, (Vec<Item>, FsError)> {
        let Some(inode) = batch.first().map(|item| item.inode) else { return Ok(Vec::new()) };
        let id = match self.metadata.segment_id(inode).await {
            Ok(id) => id,
            Err(error) => return Err((batch, error)),
        };
        let mut writer = Writer::new();
        let mut bases = Vec::new();
        for item in &batch {
            for block in &item.take_off.blocks {
                bases.push(writer.data_length());
                for run in block.runs().unwrap_or_default() {
                    writer.push(item.inode, run.offset, run.data);
                }
            }
        }
        let (object, length) = writer.finish();
        if let Err(error) = self.store.put(id, object).await {
            return Err((batch, error.into()));
        }
        let mut bases = bases.into_iter();
        let place = |item: Item| {
            let blocks = item.take_off.blocks.iter().cloned();
            let packed =
                blocks.zip(bases.by_ref()).map(|(block, base)| (block, Place { segment: id, base, length })).collect();
            (item, packed)
        };
        Ok(batch.into_iter().map(place).collect())
    }

    async fn commit(&self, placed: Vec<(Item, Packed)>) {
        let mut commit = Commit { files: Vec::new(), segments: Vec::new() };
        let mut sent = Vec::new();
        for (item, packed) in placed {
            match file_commit(&item, &packed) {
                Some((file, segments)) => {
                    commit.files.push(file);
                    commit.segments.extend(segments);
                    sent.push((item, packed));
                }
                None => item.settle(Outcome::Failed(FsError::bug("a block to be committed has no place"))),
            }
        }
        commit.segments.sort_by_key(|s| s.id);
        commit.segments.dedup_by_key(|s| s.id);
        let contents: Vec<_> = commit.files.iter().map(|f| f.content.clone()).collect();
        let result = match sent.is_empty() {
            true => return,
            false => self.metadata.commit(commit).await,
        };
        match result {
            Ok(results) if results.len() == sent.len() => {
                for (((item, packed), content), result) in sent.into_iter().zip(contents).zip(results) {
                    item.settle(match result {
                        Ok(attr) => Outcome::Landed(Landed { attr, content, packed }),
                        Err(errno) => Outcome::Refused(errno),
                    });
                }
            }
            Ok(_) => sent.into_iter().for_each(|(item, _)| {
                item.settle(Outcome::Failed(FsError::bug("the metadata server answered for other files")));
            }),
            Err(error) => sent.into_iter().for_each(|(item, _)| item.settle(Outcome::Failed(error.clone()))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(SlotId, Lane), Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The places of an item's blocks in a shared segment.
type Packed = Vec<(Arc<Block>, Place)>;

/// Frees the place of a batch, also if it panicked.
struct Landing<'a> {
    packer: &'a Packer,
    key: (SlotId, Lane),
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        let mut queues = self.packer.lock();
        if let Some(queue) = queues.get_mut(&self.key) {
            queue.flights -= 1;
            if queue.flights == 0 && queue.waiting.is_empty() {
                queues.remove(&self.key);
            }
        }
    }
}

impl Item {
    fn settle(self, outcome: Outcome) {
        // Whoever waited may have gone away.
        let _ = self.outcome.send(outcome);
    }

    fn data_bytes(&self) -> usize {
        self.take_off.blocks.iter().map(|b| b.length as usize).sum()
    }

    fn extents(&self) -> usize {
        self.take_off.pieces.len() + self.take_off.commit.punch.len()
    }

    fn command_bytes(&self) -> usize {
        let inline = match &self.take_off.commit.content {
            CommitContent::Inline(bytes) => bytes.len(),
            CommitContent::Extents(_) => 0,
        };
        ITEM_BYTES + inline + self.extents() * EXTENT_BYTES
    }
}

/// As many items, from the first on, as fit together; at least one.
fn next_batch(waiting: &mut VecDeque<Item>) -> Vec<Item> {
    let (mut batch, mut data, mut extents, mut command): (Vec<Item>, _, _, _) = (Vec::new(), 0, 0, 0);
    while let Some(item) = waiting.front() {
        data += item.data_bytes();
        extents += item.extents();
        command += item.command_bytes();
        let full = batch.len() == FILES_PER_COMMIT_MAX
            || data > SEGMENT_BYTES_MAX
            || extents > EXTENTS_PER_COMMIT_MAX.min(OWNERS_PER_SEGMENT_MAX)
            || command > COMMAND_BYTES_MAX;
        if full && !batch.is_empty() {
            break;
        }
        batch.extend(waiting.pop_front());
    }
    batch
}

/// The item's part of the command, and the segments that it refers to. `None` if a block is stored nowhere.
fn file_commit(item: &Item, packed: &Packed) -> Option<(FileCommit, Vec<NewSegment>)> {
    let mut commit = item.take_off.commit.clone();
    let mut segments = Vec::new();
    if let CommitContent::Extents(extents) = &mut commit.content {
        for piece in &item.take_off.pieces {
            let shared =
                packed.iter().find(|(block, _)| block.sequence == piece.block.sequence).map(|(_, place)| *place);
            let place = shared.or_else(|| piece.block.place())?;
            if shared.is_none() {
                piece.block.offer();
            }
            push_joined(extents, piece.extent(place));
            segments.push(NewSegment { id: place.segment, length: place.length });
        }
    }
    Some((commit, segments))
}

/// Appends an extent, as part of the last one if it goes on where that ends.
fn push_joined(extents: &mut Vec<Extent>, extent: Extent) {
    match extents.last_mut() {
        Some(last)
            if last.end() == extent.offset
                && last.segment == extent.segment
                && last.segment_offset + last.length == extent.segment_offset =>
        {
            last.length += extent.length;
        }
        _ => extents.push(extent),
    }
}
