//! Bytes of segments in memory: fetched ahead of a reader, or just written. Segments never change, so neither do these.
//!
//! Not here: what is fetched ahead (`prefetch.rs`). Invariants: every chunk is granted by the budget, all of them at most the
//! cache's share; a chunk is fetched once however many wait for it; chunks that were read to their end go first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pando_segments::SegmentError;
use pando_types::SegmentId;
use tokio::sync::watch;

use crate::file::dirty::Run;
use crate::file::sealed::Place;
use crate::memory::budget::{Budget, Grant, Purpose};

/// A chunk that nobody has touched for this long makes room for others; before, it waits for its reader.
const IDLE_TIME: Duration = Duration::from_secs(5);
/// Runs smaller than this are not worth a chunk when they are many: the table costs as much as they do.
const RUNS_KEPT_MAX: usize = 32;

/// A chunk's bytes, once they are there.
type Fetched = Option<Result<Bytes, SegmentError>>;

/// See the module.
pub(crate) struct Chunks {
    state: Mutex<State>,
    budget: Arc<Budget>,
    share: u64,
}

#[derive(Default)]
struct State {
    chunks: BTreeMap<(SegmentId, u64), Chunk>,
    /// Use order -> chunk. Negative: read to its end, may go at once.
    order: BTreeMap<i64, (SegmentId, u64)>,
    clock: i64,
    bytes: u64,
}

struct Chunk {
    length: u64,
    used: i64,
    touched: Instant,
    fetched: watch::Receiver<Fetched>,
    _grant: Grant,
}

impl Chunk {
    fn new(length: u64, fetched: watch::Receiver<Fetched>, grant: Grant) -> Chunk {
        Chunk { length, used: 0, touched: Instant::now(), fetched, _grant: grant }
    }
}

/// A chunk that holds a wanted byte.
pub(crate) struct Found {
    /// Offset of the chunk in the segment's data.
    pub(crate) start: u64,
    /// Its bytes.
    pub(crate) length: u64,
    fetched: watch::Receiver<Fetched>,
}

/// A chunk that nobody else fetches.
pub(crate) struct Fetching {
    chunks: Arc<Chunks>,
    key: (SegmentId, u64),
    fetched: watch::Sender<Fetched>,
    done: bool,
}

impl Chunks {
    /// An empty cache that takes at most `share` bytes of the budget.
    pub(crate) fn new(budget: Arc<Budget>, share: u64) -> Arc<Chunks> {
        Arc::new(Chunks { state: Mutex::default(), budget, share })
    }

    /// The chunk that holds the byte at `at` of a segment's data. `to`: it is about to be read up to there.
    pub(crate) fn find(&self, segment: SegmentId, at: u64, to: u64) -> Option<Found> {
        let mut state = self.lock();
        let (&key, chunk) = state.chunks.range(..=(segment, at)).next_back()?;
        let (length, end) = (chunk.length, key.1 + chunk.length);
        if key.0 != segment || end <= at {
            return None;
        }
        let fetched = chunk.fetched.clone();
        state.touch(key, to >= end);
        Some(Found { start: key.1, length, fetched })
    }

    /// Where the first chunk after `at` begins.
    pub(crate) fn next_start(&self, segment: SegmentId, at: u64) -> Option<u64> {
        let state = self.lock();
        let (key, _) = state.chunks.range((segment, at + 1)..).next()?;
        (key.0 == segment).then_some(key.1)
    }

    /// Makes room for a chunk and reserves it. `None` if it is there already, or there is no memory for it.
    pub(crate) fn begin(self: &Arc<Self>, segment: SegmentId, start: u64, length: u64) -> Option<Fetching> {
        if self.find(segment, start, start).is_some() || !self.make_room(length) {
            return None;
        }
        let grant = self.budget.try_take(Purpose::Keep, length)?;
        let (sender, fetched) = watch::channel(None);
        let key = (segment, start);
        self.lock().put(key, Chunk::new(length, fetched, grant))?;
        Some(Fetching { chunks: self.clone(), key, fetched: sender, done: false })
    }

    /// Keeps bytes that were just stored, in place of fetching them again soon.
    pub(crate) fn keep(&self, place: Place, runs: Vec<(u64, Run)>, mut grant: Grant) {
        if runs.len() > RUNS_KEPT_MAX || self.budget.is_short() || !self.make_room(grant.bytes()) {
            return;
        }
        // The memory of the pages, shared out over their runs.
        let each = grant.bytes() / runs.len().max(1) as u64;
        let mut state = self.lock();
        for (at, run) in runs {
            let length = run.data.len() as u64;
            let (_, fetched) = watch::channel(Some(Ok(run.data)));
            let chunk = Chunk::new(length, fetched, grant.split(each.max(1)));
            let _ = state.put((place.segment, place.base + at), chunk);
        }
    }

    /// Gives back at least `bytes` if there are as many; the bytes given back.
    pub(crate) fn shrink(&self, bytes: u64) -> u64 {
        self.drop_oldest(bytes, |_| true)
    }

    /// Drops chunks in their order as long as they may go and `bytes` are not reached.
    fn drop_oldest(&self, bytes: u64, may_go: impl Fn(&Chunk) -> bool) -> u64 {
        let mut freed = 0;
        let mut gone = Vec::new();
        let mut state = self.lock();
        while freed < bytes {
            let Some((&used, &key)) = state.order.first_key_value() else { break };
            if !state.chunks.get(&key).is_none_or(&may_go) {
                break;
            }
            state.order.remove(&used);
            if let Some(chunk) = state.chunks.remove(&key) {
                state.bytes -= chunk.length;
                freed += chunk.length;
                gone.push(chunk);
            }
        }
        drop(state);
        freed
    }

    fn make_room(&self, length: u64) -> bool {
        if length > self.share {
            return false;
        }
        let over = (self.lock().bytes + length).saturating_sub(self.share);
        // What was fetched ahead and not read yet stays: the reader comes.
        over == 0 || self.drop_oldest(over, |chunk| chunk.used < 0 || chunk.touched.elapsed() > IDLE_TIME) >= over
    }

    fn remove(&self, key: (SegmentId, u64)) {
        let mut state = self.lock();
        if let Some(chunk) = state.chunks.remove(&key) {
            state.bytes -= chunk.length;
            state.order.remove(&chunk.used);
            drop(state);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn touch(&mut self, key: (SegmentId, u64), finished: bool) {
        self.clock += 1;
        // Finished chunks go in the order of reading, before all others.
        let used = if finished { i64::MIN + self.clock } else { self.clock };
        if let Some(chunk) = self.chunks.get_mut(&key) {
            self.order.remove(&chunk.used);
            chunk.used = used;
            chunk.touched = Instant::now();
            self.order.insert(used, key);
        }
    }

    /// `None`, and nothing done, if the chunk is there already.
    fn put(&mut self, key: (SegmentId, u64), chunk: Chunk) -> Option<()> {
        if self.chunks.contains_key(&key) {
            return None;
        }
        self.bytes += chunk.length;
        self.chunks.insert(key, chunk);
        self.touch(key, false);
        Some(())
    }
}

impl Found {
    /// The chunk's bytes; waits while they are fetched, bounded by the store's own retries. `None` if the fetch was cut off.
    pub(crate) async fn bytes(mut self) -> Option<Result<Bytes, SegmentError>> {
        let fetched = self.fetched.wait_for(Option::is_some).await.ok()?;
        fetched.clone()
    }
}

impl Fetching {
    /// Tells everybody who waits. A failure is not kept.
    pub(crate) fn finish(mut self, result: Result<Bytes, SegmentError>) {
        self.done = result.is_ok();
        self.fetched.send_replace(Some(result));
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        if !self.done {
            self.chunks.remove(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_types::SessionId;

    fn segment(n: u64) -> SegmentId {
        SegmentId { session: SessionId(1), sequence: n }
    }

    #[tokio::test]
    async fn a_chunk_is_fetched_once_and_many_get_it() {
        let budget = Budget::new(1000, 100);
        let chunks = Chunks::new(budget.clone(), 300);
        let fetching = chunks.begin(segment(1), 100, 50).unwrap();
        assert!(chunks.begin(segment(1), 100, 50).is_none());
        assert!(chunks.find(segment(1), 99, 99).is_none() && chunks.find(segment(2), 120, 120).is_none());
        assert_eq!(chunks.next_start(segment(1), 0), Some(100));
        let waiting = tokio::spawn(chunks.find(segment(1), 149, 149).unwrap().bytes());
        fetching.finish(Ok(Bytes::from(vec![7; 50])));
        assert_eq!(waiting.await.unwrap().unwrap().unwrap().len(), 50);
        let failing = chunks.begin(segment(1), 200, 50).unwrap();
        drop(failing);
        assert!(chunks.find(segment(1), 200, 200).is_none(), "a fetch that was cut off leaves nothing");
        assert_eq!(budget.usage().0, 50);
    }

    #[tokio::test]
    async fn keeps_within_its_share_and_drops_what_was_read_first() {
        let budget = Budget::new(1000, 100);
        let chunks = Chunks::new(budget.clone(), 300);
        for n in 0..3 {
            assert!(chunks.begin(segment(9), 0, 301).is_none(), "larger than the share");
            chunks.begin(segment(n), 0, 100).unwrap().finish(Ok(Bytes::from(vec![0; 100])));
        }
        assert!(chunks.begin(segment(3), 0, 100).is_none(), "the others wait for their readers");
        assert!(chunks.find(segment(2), 0, 100).is_some(), "read to its end");
        chunks.begin(segment(3), 0, 100).unwrap().finish(Ok(Bytes::from(vec![0; 100])));
        assert!(chunks.find(segment(2), 0, 0).is_none() && chunks.find(segment(0), 0, 0).is_some());
        assert_eq!(budget.usage().0, 300);
        assert_eq!(chunks.shrink(u64::MAX), 300);
        assert_eq!(budget.usage().0, 0);
    }
}
