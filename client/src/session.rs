//! The client's registration: op ids for changes, and which replies have arrived. One session for all shards: it is opened with
//! shard 0 and joins each shard that the client writes to.
//!
//! Not here: sending (`retry.rs`). Invariants: no two operations of a session share a sequence; the sequences in progress
//! span at most [`SESSION_WINDOW_OPS`], so the server's record of their replies is bounded; a session that was found
//! stale by any shard is never used again, so that no shard knows it again after it has forgotten it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use pando_types::limits::SESSION_WINDOW_OPS;
use pando_types::{FsError, OpId, SegmentId, SessionId, ShardId, SlotId};
use tokio::sync::Notify;

/// A registration.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    /// The shards that know of it.
    joined: RwLock<BTreeSet<ShardId>>,
    window: Mutex<Window>,
    /// An operation has ended.
    freed: Notify,
    ended: AtomicBool,
    segments: AtomicU64,
}

struct Window {
    next: u64,
    in_progress: BTreeSet<u64>,
}

impl Window {
    /// Everything below has been answered.
    fn acked(&self) -> u64 {
        self.in_progress.first().copied().unwrap_or(self.next)
    }
}

/// An operation in progress; dropping it acknowledges its reply.
pub(crate) struct Op {
    session: Arc<Session>,
    sequence: u64,
}

impl Session {
    /// One that shard 0 knows.
    pub(crate) fn new(id: SessionId) -> Arc<Session> {
        let window = Mutex::new(Window { next: 1, in_progress: BTreeSet::new() });
        let (ended, segments) = (AtomicBool::new(false), AtomicU64::new(0));
        let joined = RwLock::new(BTreeSet::from([ShardId(0)]));
        Arc::new(Session { id, joined, window, freed: Notify::new(), ended, segments })
    }

    /// Takes the next op id; waits, until `deadline` at most, while the window is full.
    pub(crate) async fn begin(self: &Arc<Self>, deadline: Instant) -> Result<Op, FsError> {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if let Some(op) = self.try_begin() {
                return Ok(op);
            }
            if tokio::time::timeout_at(deadline.into(), freed).await.is_err() {
                return Err(FsError::unavailable("too many changes are waiting for the metadata server"));
            }
        }
    }

    fn try_begin(self: &Arc<Self>) -> Option<Op> {
        let mut window = self.lock();
        let sequence = window.next;
        if sequence - window.acked() >= SESSION_WINDOW_OPS {
            return None;
        }
        window.next += 1;
        window.in_progress.insert(sequence);
        Some(Op { session: self.clone(), sequence })
    }

    /// A name for an object with bytes of files of this slot, never given before.
    pub(crate) fn segment_id(&self, slot: SlotId) -> SegmentId {
        SegmentId::new(self.id, slot, self.segments.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(crate) fn has_joined(&self, shard: ShardId) -> bool {
        self.joined.read().unwrap_or_else(PoisonError::into_inner).contains(&shard)
    }

    pub(crate) fn joined(&self, shard: ShardId) {
        self.joined.write().unwrap_or_else(PoisonError::into_inner).insert(shard);
    }

    /// A server does not know it any more.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Op {
    pub(crate) fn id(&self) -> OpId {
        OpId { session: self.session.id, sequence: self.sequence }
    }

    /// Every reply of the session below this has arrived.
    pub(crate) fn acked(&self) -> u64 {
        self.session.lock().acked()
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        self.session.lock().in_progress.remove(&self.sequence);
        self.session.freed.notify_waiters();
    }
}

/// The live session.
#[derive(Default)]
pub(crate) struct Sessions {
    live: RwLock<Option<Arc<Session>>>,
    /// Held while one is opened or joins a shard, so that many operations open one session.
    pub(crate) opening: tokio::sync::Mutex<()>,
}

impl Sessions {
    pub(crate) fn live(&self) -> Option<Arc<Session>> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        live.as_ref().filter(|s| !s.has_ended()).cloned()
    }

    pub(crate) fn opened(&self, session: Arc<Session>) {
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = Some(session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn acked_is_the_oldest_in_progress() {
        let session = Session::new(SessionId(4));
        let deadline = Instant::now() + Duration::from_secs(5);
        let first = session.begin(deadline).await.unwrap();
        let second = session.begin(deadline).await.unwrap();
        assert_eq!(second.id().sequence, first.id().sequence + 1);
        assert_eq!(second.acked(), first.id().sequence);
        let id = second.id().sequence;
        drop(first);
        assert_eq!(second.acked(), id);
    }

    #[tokio::test]
    async fn the_window_is_never_exceeded() {
        let session = Session::new(SessionId(4));
        let soon = Instant::now() + Duration::from_millis(20);
        let mut ops = Vec::new();
        for _ in 0..SESSION_WINDOW_OPS {
            ops.push(session.begin(soon).await.unwrap());
        }
        assert!(session.begin(soon).await.is_err());
        // A later one that ends does not help: the span counts, not the number.
        ops.pop();
        assert!(session.begin(soon).await.is_err());
        let waiting = tokio::spawn({
            let session = session.clone();
            async move { session.begin(Instant::now() + Duration::from_secs(20)).await.map(|op| op.id().sequence) }
        });
        tokio::task::yield_now().await;
        ops.remove(0);
        assert_eq!(waiting.await.unwrap().unwrap(), SESSION_WINDOW_OPS + 1);
    }
}
