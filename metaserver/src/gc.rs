//! Background collection on the leader: orphans, dead segments, leaked segments. Bounded batches, rate limited.
//!
//! The engine's effects say at once what there is to do; a scan, at the start and then now and again, finds what was missed.
//! Not here: deciding that something is garbage (the state does). Invariant: losing this task at any point loses no work
//! and no data: whatever it does is done again or found done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pando_engine::Effect;
use pando_segments::Store;
use pando_types::request::Collected;
use pando_types::{FsError, ShardId};
use tokio::sync::{Mutex, mpsc};
use tracing::{info, warn};

use crate::peers::Nodes;
use crate::shard::Shard;

mod orphans;
mod segments;

/// How often the state is scanned for missed work.
const SCAN_INTERVAL: Duration = Duration::from_secs(60);
/// How often the store is listed for leaked segments.
const LEAK_INTERVAL: Duration = Duration::from_secs(3600);
/// The first listing waits until the clients of before a restart have come back or have run out.
const LEAK_FIRST: Duration = Duration::from_millis(2 * pando_types::limits::SESSION_TTL_MS);
/// Effects taken at once.
const EFFECTS_PER_ROUND: usize = 1024;
/// Effects gather for this long, so that a batch is worth its log entry.
const GATHER: Duration = Duration::from_millis(20);
/// Longest pause between two batches.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Collects the garbage of one shard.
pub struct Collector {
    shard: Arc<Shard>,
    nodes: Arc<Nodes>,
    store: Store,
    /// One listing of the store at a time.
    listing: Mutex<()>,
}

/// How fast: in the background collection takes half of the time, on request all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    Background,
    Now,
}

impl Pace {
    /// Waits after a batch that began then.
    async fn pause(self, begun: Instant) {
        if self == Pace::Background {
            tokio::time::sleep(begun.elapsed().min(PAUSE_MAX)).await;
        }
    }
}

impl Collector {
    /// A collector that does nothing by itself.
    pub fn new(shard: Arc<Shard>, nodes: Arc<Nodes>, store: Store) -> Collector {
        Collector { shard, nodes, store, listing: Mutex::default() }
    }

    /// Collects everything there is now; `None` when a collection is under way already.
    pub async fn collect_now(&self) -> Option<Result<Collected, FsError>> {
        let alone = self.listing.try_lock().ok()?;
        let collected = self.collect(Pace::Now).await;
        drop(alone);
        Some(collected)
    }

    async fn collect(&self, pace: Pace) -> Result<Collected, FsError> {
        let orphans = orphans::collect_all(&self.shard, pace).await?;
        let dead_segments = segments::collect_dead(&self.shard, &self.store, pace).await?;
        let (leaked_segments, objects) = match self.shard.id {
            ShardId(0) => segments::collect_leaked(&self.nodes, &self.shard, &self.store, pace).await?,
            _ => (0, 0),
        };
        Ok(Collected { orphans, dead_segments, leaked_segments, objects })
    }

    /// Does what effects ask for and what scans find; runs until it is dropped or the effects end.
    pub async fn run(self: Arc<Self>, mut effects: mpsc::Receiver<Effect>) {
        let mut scans = tokio::time::interval(SCAN_INTERVAL);
        scans.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut batch = Vec::with_capacity(EFFECTS_PER_ROUND);
        loop {
            let result = tokio::select! {
                taken = effects.recv_many(&mut batch, EFFECTS_PER_ROUND) => {
                    if taken == 0 {
                        return;
                    }
                    tokio::time::sleep(GATHER).await;
                    while batch.len() < EFFECTS_PER_ROUND && let Ok(more) = effects.try_recv() {
                        batch.push(more);
                    }
                    let batch = std::mem::take(&mut batch);
                    if self.shard.group.is_leader() { self.perform(batch).await } else { Ok(()) }
                }
                _ = scans.tick() => if self.shard.group.is_leader() { self.scan().await } else { Ok(()) },
            };
            if let Err(error) = result {
                warn!(shard = %self.shard.id, %error, "garbage is left for later");
            }
        }
    }

    async fn perform(&self, effects: Vec<Effect>) -> Result<(), FsError> {
        let (mut orphans, mut dead, mut closed) = (Vec::new(), Vec::new(), false);
        for effect in effects {
            match effect {
                Effect::OrphanFree(inode) => orphans.push(inode),
                Effect::SegmentDead(segment) => dead.push(segment),
                Effect::SessionOpened(session) => self.shard.sessions.insert(session),
                Effect::SessionClosed(session) => {
                    self.shard.sessions.remove(session);
                    closed = true;
                }
                // Taken note of by each replica as it was applied.
                Effect::ShardMapChanged | Effect::Split(_) => {}
            }
        }
        let left = orphans::reclaim(&self.shard, orphans, Pace::Background).await?;
        if left || closed {
            orphans::collect_all(&self.shard, Pace::Background).await?;
        }
        segments::delete_dead(&self.shard, &self.store, dead, Pace::Background).await.map(|_| ())
    }

    async fn scan(&self) -> Result<(), FsError> {
        orphans::collect_all(&self.shard, Pace::Background).await?;
        segments::collect_dead(&self.shard, &self.store, Pace::Background).await.map(|_| ())
    }

    /// Looks for leaked segments of all shards now and again, where shard 0 is led; runs until it is dropped.
    pub async fn run_leaks(self: Arc<Self>) {
        tokio::time::sleep(LEAK_FIRST).await;
        loop {
            if self.shard.id == ShardId(0) && self.shard.group.is_leader() {
                let _alone = self.listing.lock().await;
                match segments::collect_leaked(&self.nodes, &self.shard, &self.store, Pace::Background).await {
                    Ok((0, _)) => {}
                    Ok((leaked, objects)) => info!(leaked, objects, "deleted segments that nothing refers to"),
                    Err(error) => warn!(%error, "leaked segments are left for later"),
                }
            }
            tokio::time::sleep(LEAK_INTERVAL).await;
        }
    }
}
