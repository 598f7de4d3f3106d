//! What happens in the background: memory is given back, old bytes are committed, leftovers are removed.
//!
//! Invariants: the tasks end when the files they serve are gone; a wait for memory always has somebody who makes room.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use pando_types::limits::INODES_PER_RECLAIM_MAX;
use pando_types::{InodeId, SegmentId};
use tokio::sync::{Notify, mpsc};

use crate::file::Files;
use crate::file::metadata::Metadata;

/// Bytes that are given back at a time.
const STEP_BYTES: u64 = 4 << 20;
/// How often a shortage that nothing could be done about is looked at again.
const SHORTAGE_INTERVAL: Duration = Duration::from_millis(50);
/// How often files are looked at for bytes that were left lying.
const OLD_INTERVAL: Duration = Duration::from_secs(1);
/// A file that is not written any more is committed after this long, as other file systems write back,
const IDLE_TIME_MAX: Duration = Duration::from_secs(5);
/// and one that is written all the time after this long.
const DIRTY_TIME_MAX: Duration = Duration::from_secs(30);
/// Inodes that wait to be released; more are released by the end of the session.
const ORPHANS_MAX: usize = 1 << 20;
/// Wait before another try to release inodes.
const RELEASE_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the tasks.
pub(crate) fn start(files: &Arc<Files>, unused: mpsc::Receiver<SegmentId>) {
    tokio::spawn(make_room(Arc::downgrade(files)));
    tokio::spawn(commit_old(Arc::downgrade(files)));
    tokio::spawn(delete_unused(Arc::downgrade(files), unused));
    tokio::spawn(release(Arc::downgrade(files)));
}

async fn make_room(files: Weak<Files>) {
    let Some(budget) = files.upgrade().map(|f| f.budget.clone()) else { return };
    loop {
        let _ = tokio::time::timeout(OLD_INTERVAL, budget.pressure.notified()).await;
        while budget.is_short() {
            let Some(files) = files.upgrade() else { return };
            if !files.give_back() {
                tokio::time::sleep(SHORTAGE_INTERVAL).await;
            }
        }
        if files.strong_count() == 0 {
            return;
        }
    }
}

impl Files {
    /// Gives back what is only there to be fast, else sends what is dirty on its way to the store. False if there is nothing.
    fn give_back(self: &Arc<Self>) -> bool {
        if self.chunks.shrink(STEP_BYTES) > 0 {
            return true;
        }
        let dirtiest = self.table.all().into_iter().max_by_key(|file| file.with(|state| state.dirty_bytes()));
        let Some(file) = dirtiest else { return false };
        let sealed = file.with(|state| state.seal_all());
        let any = !sealed.is_empty();
        self.store_blocks(&file, sealed);
        any
    }

    fn old(&self, now: Instant) -> Vec<Arc<super::open_file::OpenFile>> {
        let is_old = |(first, last): (Instant, Instant)| {
            now.duration_since(last) > IDLE_TIME_MAX || now.duration_since(first) > DIRTY_TIME_MAX
        };
        let files = self.table.all().into_iter().filter(|f| !f.is_clean() && !f.is_failing());
        let files = files.filter(|f| f.with(|state| !state.lost && state.changed.is_some_and(is_old)));
        files.filter(|f| !self.table.is_orphan(f.inode)).collect()
    }
}

/// Commits what nobody has asked to be committed for long: logs that stay open.
async fn commit_old(files: Weak<Files>) {
    loop {
        tokio::time::sleep(OLD_INTERVAL).await;
        let Some(files) = files.upgrade() else { return };
        let crowded = files.table.all().into_iter().filter(|f| !f.is_failing() && f.with(|state| state.is_crowded()));
        for file in crowded.chain(files.old(Instant::now())).collect::<Vec<_>>() {
            let files = files.clone();
            // Failures are told to the handles.
            tokio::spawn(async move { files.commit(&file).await });
        }
    }
}

/// Deletes segments whose bytes were overwritten or cut off before they were committed.
async fn delete_unused(files: Weak<Files>, mut unused: mpsc::Receiver<SegmentId>) {
    while let Some(segment) = unused.recv().await {
        let Some(store) = files.upgrade().map(|f| f.store.clone()) else { return };
        if let Err(error) = store.delete(segment).await {
            tracing::debug!(%segment, %error, "an unused segment is left to the collector");
        }
    }
}

/// Inodes without a name that are not open any more: the metadata server is told, many at once.
#[derive(Default)]
pub(crate) struct Orphans {
    waiting: Mutex<Vec<InodeId>>,
    more: Arc<Notify>,
}

impl Orphans {
    /// Will be released soon.
    pub(crate) fn release(&self, inode: InodeId) {
        let mut waiting = self.lock();
        if waiting.len() < ORPHANS_MAX {
            waiting.push(inode);
            self.more.notify_one();
        }
    }

    /// Releases all now; false if some are left.
    pub(crate) async fn flush(&self, metadata: &dyn Metadata) -> bool {
        let mut all = std::mem::take(&mut *self.lock());
        all.sort_by_key(|inode| metadata.shard(*inode));
        let mut left = Vec::new();
        for shard in all.chunk_by(|a, b| metadata.shard(*a) == metadata.shard(*b)) {
            for batch in shard.chunks(INODES_PER_RECLAIM_MAX) {
                if let Err(error) = metadata.release_orphans(batch.to_vec()).await {
                    tracing::debug!(%error, "closed nameless inodes could not be released yet");
                    left.extend_from_slice(batch);
                }
            }
        }
        let done = left.is_empty();
        self.lock().extend(left);
        done
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<InodeId>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn release(files: Weak<Files>) {
    let Some(more) = files.upgrade().map(|f| f.orphans.more.clone()) else { return };
    loop {
        let _ = tokio::time::timeout(RELEASE_INTERVAL, more.notified()).await;
        let Some(files) = files.upgrade() else { return };
        let any = !files.orphans.lock().is_empty();
        if any && !files.orphans.flush(&*files.metadata).await {
            tokio::time::sleep(RELEASE_INTERVAL).await;
        }
    }
}
