//! Drives a machine for the consensus library: batches of entries in, replies out, flushes and images.
//!
//! Not here: what decides when to flush (group/compact.rs), how images travel (image.rs).
//!
//! Invariants:
//! - the mark kept here is the machine's own: both change under one lock;
//! - [`Durable`] is raised only after the machine has flushed that much.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use openraft::Snapshot;
use openraft::storage::{ApplyResponder, EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;

use crate::group::Alive;
use crate::image::{ImageData, Snapshotted, SpooledImage};
use crate::limits::{BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, BATCH_INLINE_BYTES_MAX};
use crate::log::Durable;
use crate::machine::{Machine, MachineError};
use crate::mark::Mark;
use crate::raft_types::{Entry, EntryPayload, ImageMeta, LogId, StoredMembership, Types};

/// When the machine is flushed for the log's sake.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlushPolicy {
    pub entries: u64,
    pub bytes: u64,
}

/// A machine and its position.
struct Inside {
    machine: Option<Box<dyn Machine>>,
    mark: Mark,
    entries_since_flush: u64,
    bytes_since_flush: u64,
}

impl FlushPolicy {
    fn is_due(&self, inside: &Inside) -> bool {
        inside.entries_since_flush >= self.entries || inside.bytes_since_flush >= self.bytes
    }
}

/// A group's machine, shared by its applier, its flushes and its images.
pub(crate) struct State {
    inside: Mutex<Inside>,
    applied_next: AtomicU64,
    durable: Durable,
    policy: FlushPolicy,
    /// Wakes the task that flushes and purges.
    pub flush_due: Notify,
    /// Set when the group has started: from then on images are of the machine as it is.
    running: AtomicBool,
}

impl State {
    /// Takes a machine, makes what it contains durable and reads its position.
    pub fn open(mut machine: Box<dyn Machine>, durable: Durable, policy: FlushPolicy) -> Result<State, MachineError> {
        let mark = match machine.applied() {
            None => Mark::default(),
            Some(bytes) => {
                machine.flush()?;
                Mark::decode(&bytes).map_err(MachineError::new)?
            }
        };
        durable.raise(mark.next_index());
        Ok(State {
            applied_next: AtomicU64::new(mark.next_index()),
            inside: Mutex::new(Inside { machine: Some(machine), mark, entries_since_flush: 0, bytes_since_flush: 0 }),
            durable,
            policy,
            flush_due: Notify::new(),
            running: AtomicBool::new(false),
        })
    }

    /// From now on images are made of the machine as it is.
    pub fn set_running(&self) {
        self.running.store(true, Ordering::Release);
    }

    /// The last applied entry.
    pub fn applied(&self) -> Option<LogId> {
        self.inside().ok().and_then(|inside| inside.mark.applied)
    }

    /// Index of the first entry that is not applied.
    pub fn applied_next(&self) -> u64 {
        self.applied_next.load(Ordering::Acquire)
    }

    /// Index of the first entry that is not known to be durable in the machine.
    pub fn durable_next(&self) -> u64 {
        self.durable.next_index()
    }

    /// Flushes everything applied so far and returns its position. May take long.
    pub fn flush(&self) -> Result<Mark, MachineError> {
        let mut inside = self.inside()?;
        let mark = inside.mark.clone();
        (inside.entries_since_flush, inside.bytes_since_flush) = (0, 0);
        match machine(&mut inside)?.flusher() {
            None => machine(&mut inside)?.flush()?,
            Some(flush) => {
                drop(inside);
                flush()?;
            }
        }
        self.durable.raise(mark.next_index());
        Ok(mark)
    }

    /// Flushes and gives the machine up. Later calls do nothing.
    pub fn close(&self) -> Result<(), MachineError> {
        let Some(mut machine) = self.inside()?.machine.take() else { return Ok(()) };
        machine.flush()
    }

    /// Replaces the state by a spooled image, durably.
    pub fn install(&self, mark: Mark, image: &SpooledImage) -> Result<(), MachineError> {
        let mut inside = self.inside()?;
        let mut chunks = image.chunks()?;
        let machine = machine(&mut inside)?;
        machine.read_image(&mark.encode(), &mut chunks)?;
        machine.flush()?;
        self.durable.raise(mark.next_index());
        self.applied_next.store(mark.next_index(), Ordering::Release);
        inside.mark = mark;
        Ok(())
    }

    fn apply(&self, batch: &Batch) -> Result<Vec<Bytes>, MachineError> {
        let mut inside = self.inside()?;
        let mut mark = inside.mark.clone();
        for entry in &batch.positions {
            mark.advance(entry);
        }
        let replies = machine(&mut inside)?.apply(&mark.encode(), &batch.payloads)?;
        if replies.len() != batch.payloads.len() {
            let counts = format!("{} replies to {} payloads", replies.len(), batch.payloads.len());
            return Err(MachineError::new(counts));
        }
        self.applied_next.store(mark.next_index(), Ordering::Release);
        inside.mark = mark;
        inside.entries_since_flush += batch.positions.len() as u64;
        inside.bytes_since_flush += batch.bytes as u64;
        if self.policy.is_due(&inside) {
            self.flush_due.notify_one();
        }
        Ok(replies)
    }

    /// Whether so much has been applied since the last flush that the log should be purged.
    pub fn is_flush_due(&self) -> bool {
        self.inside().is_ok_and(|inside| self.policy.is_due(&inside))
    }

    fn image(&self) -> Result<Option<Snapshotted>, MachineError> {
        let mut inside = self.inside()?;
        if inside.mark.applied.is_none() || !self.running.load(Ordering::Acquire) {
            return Ok(None);
        }
        let meta = inside.mark.meta();
        let source = machine(&mut inside)?.write_image()?;
        Ok(Some(Snapshot { meta, snapshot: ImageData::Source(source) }))
    }

    fn inside(&self) -> Result<MutexGuard<'_, Inside>, MachineError> {
        let panicked = || MachineError::new("it panicked in an earlier call");
        match self.inside.try_lock() {
            Ok(inside) => Ok(inside),
            Err(TryLockError::Poisoned(_)) => Err(panicked()),
            // A flush or an installation holds it, for long perhaps.
            Err(TryLockError::WouldBlock) => off_workers(|| self.inside.lock().map_err(|_| panicked())),
        }
    }
}

fn machine<'a>(inside: &'a mut MutexGuard<'_, Inside>) -> Result<&'a mut Box<dyn Machine>, MachineError> {
    inside.machine.as_mut().ok_or_else(|| MachineError::new("the group has been shut down"))
}

/// Runs work that may block for a while without holding up the runtime's other tasks.
pub(crate) fn off_workers<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Entries gathered for one call of the machine.
#[derive(Default)]
struct Batch {
    /// The entries, with their payloads taken out.
    positions: Vec<Entry>,
    payloads: Vec<Bytes>,
    bytes: usize,
    /// Who waits, and for which reply; `None` is the empty reply of an entry without payload.
    waiting: Vec<(Option<usize>, ApplyResponder<Types>)>,
}

impl Batch {
    fn push(&mut self, mut entry: Entry, waiter: Option<ApplyResponder<Types>>) {
        let mut reply = None;
        if let EntryPayload::Normal(payload) = &mut entry.payload {
            let payload = std::mem::take(&mut payload.0);
            self.bytes += payload.len();
            reply = Some(self.payloads.len());
            self.payloads.push(payload);
        }
        self.waiting.extend(waiter.map(|waiter| (reply, waiter)));
        self.positions.push(entry);
    }

    fn is_full(&self) -> bool {
        self.positions.len() >= BATCH_ENTRIES_MAX || self.bytes >= BATCH_BYTES_MAX
    }
}

/// The state machine as the consensus library sees it.
pub(crate) struct Applier {
    state: Arc<State>,
    alive: Alive,
}

impl Applier {
    pub fn new(state: Arc<State>, alive: Alive) -> Applier {
        Applier { state, alive }
    }

    fn apply_batch(&self, batch: Batch) -> io::Result<()> {
        let apply = || self.state.apply(&batch).map_err(io::Error::other);
        let replies = if batch.bytes > BATCH_INLINE_BYTES_MAX { off_workers(apply)? } else { apply()? };
        for (reply, waiter) in batch.waiting {
            waiter.send(reply.map(|at| replies[at].clone()).unwrap_or_default());
        }
        Ok(())
    }
}

impl RaftStateMachine<Types> for Applier {
    type SnapshotData = ImageData;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let inside = self.state.inside().map_err(io::Error::other)?;
        Ok((inside.mark.applied, inside.mark.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + Send,
    {
        let mut batch = Batch::default();
        while let Some(item) = entries.next().await {
            let (entry, waiter) = item?;
            batch.push(entry, waiter);
            if batch.is_full() {
                self.apply_batch(std::mem::take(&mut batch))?;
            }
        }
        if batch.positions.is_empty() { Ok(()) } else { self.apply_batch(batch) }
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder { state: self.state.clone(), _alive: self.alive.clone() }
    }

    async fn install_snapshot(&mut self, meta: &ImageMeta, image: ImageData) -> io::Result<()> {
        let ImageData::Spooled(image) = image else {
            return Err(io::Error::other("an image must be received before it is installed"));
        };
        let (state, mark) = (self.state.clone(), Mark::from(meta));
        off_workers(move || {
            state.install(mark, &image).map_err(io::Error::other)?;
            image.remove()
        })
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshotted>> {
        self.state.image().map_err(io::Error::other)
    }
}

/// "Building a snapshot" is a flush: the state itself is what an image is read from.
pub(crate) struct Builder {
    state: Arc<State>,
    _alive: Alive,
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = ImageData;

    async fn build_snapshot(&mut self) -> io::Result<Snapshotted> {
        let mark = off_workers(|| self.state.flush()).map_err(io::Error::other)?;
        Ok(Snapshot { meta: mark.meta(), snapshot: ImageData::Flushed })
    }
}
