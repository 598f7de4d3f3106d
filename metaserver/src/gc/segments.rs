//! Objects of the store that nothing refers to: dead ones (they lost their last reference) and leaked ones (they never had
//! one: their client died before its commit).
//!
//! Invariants: a dead segment's record goes only after its object; a leaked one goes only when its session has ended, so
//! that no commit can name it any more.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use futures::StreamExt;
use pando_engine::read;
use pando_segments::{SegmentError, Store};
use pando_types::limits::SEGMENTS_PER_REQUEST_MAX;
use pando_types::request::{Request, Response};
use pando_types::{Command, FsError, SegmentId, ShardId, SlotId};
use tracing::warn;

use super::Pace;
use crate::peers::Nodes;
use crate::shard::Shard;

/// Deletions under way at once: a small part of what the store bears.
const DELETES_IN_PARALLEL: usize = 8;
/// What a put that was cut off has left in a local store goes after this time; no put takes so long.
const UNFINISHED_AGE: Duration = Duration::from_secs(3600);

/// Deletes these objects, then their records; returns how many. What the store refuses is left, with a warning.
pub(super) async fn delete_dead(
    shard: &Shard,
    store: &Store,
    dead: Vec<SegmentId>,
    pace: Pace,
) -> Result<u64, FsError> {
    let mut deleted = 0;
    for batch in dead.chunks(SEGMENTS_PER_REQUEST_MAX) {
        let begun = Instant::now();
        let ids: HashSet<SegmentId> = batch.iter().copied().collect();
        let gone = delete(store, ids).await;
        let segments: Vec<_> = batch.iter().filter(|id| gone.contains(id)).copied().collect();
        deleted += segments.len() as u64;
        if !segments.is_empty() {
            shard.proposer.propose_own(Command::ForgetSegments { segments }).await?;
        }
        pace.pause(begun).await;
    }
    Ok(deleted)
}

/// Deletes every dead segment that the state knows; returns how many.
pub(super) async fn collect_dead(shard: &Shard, store: &Store, pace: Pace) -> Result<u64, FsError> {
    let mut deleted = 0;
    loop {
        let dead = shard.read(|view| read::dead_segments(view, shard.id, SEGMENTS_PER_REQUEST_MAX)).await?;
        let found = dead.len() as u64;
        let done = delete_dead(shard, store, dead, pace).await?;
        deleted += done;
        // Those that the store refuses to delete would be found for ever.
        if found == 0 || done < found {
            return Ok(deleted);
        }
    }
}

/// Lists the store and deletes what the metadata neither refers to nor may yet; returns deleted and listed objects.
pub(super) async fn collect_leaked(
    nodes: &Nodes,
    root: &Shard,
    store: &Store,
    pace: Pace,
) -> Result<(u64, u64), FsError> {
    let (mut leaked, mut objects) = (0, 0);
    let mut listed = store.list().chunks(SEGMENTS_PER_REQUEST_MAX);
    while let Some(chunk) = listed.next().await {
        let begun = Instant::now();
        let chunk = chunk.into_iter().collect::<Result<Vec<_>, SegmentError>>()?;
        let ids: Vec<SegmentId> = chunk.into_iter().map(|(id, ..)| id).collect();
        objects += ids.len() as u64;
        let kept = in_use(nodes, root, &ids).await?;
        let mut unused: HashSet<SegmentId> = ids.into_iter().collect();
        kept.iter().for_each(|id| {
            unused.remove(id);
        });
        leaked += delete(store, unused).await.len() as u64;
        pace.pause(begun).await;
    }
    store.sweep_unfinished(UNFINISHED_AGE).await?;
    Ok((leaked, objects))
}

/// Those that must be kept; the shard that owns a segment's slot knows.
async fn in_use(nodes: &Nodes, root: &Shard, ids: &[SegmentId]) -> Result<Vec<SegmentId>, FsError> {
    let map = nodes.map()?;
    let mut by_shard: BTreeMap<ShardId, Vec<SegmentId>> = BTreeMap::new();
    for id in ids {
        // A name that no client gives is kept.
        let owner = map.shard_of(id.slot()).map_or(root.id, |shard| shard.id);
        by_shard.entry(owner).or_default().push(*id);
    }
    let mut kept = Vec::new();
    for (shard, segments) in by_shard {
        if shard == root.id {
            kept.extend(root.segments_in_use(&segments).await?);
            continue;
        }
        match nodes.ask_shard(shard, None, Request::SegmentsInUse { shard, segments }).await? {
            Response::Segments(segments) => kept.extend(segments),
            other => return Err(FsError::bug(format!("a question for segments was answered with {other:?}"))),
        }
    }
    Ok(kept)
}

impl Shard {
    /// Those of the segments that must be kept; all must be of the shard's slots.
    pub(crate) async fn segments_in_use(&self, segments: &[SegmentId]) -> Result<Vec<SegmentId>, FsError> {
        let kept = self.read(|view| read::segments_in_use(view, self.id, segments)).await?;
        let territory = self.territory();
        if segments.iter().any(|id| id.slot().0 < SlotId::COUNT && !territory.slots.has(id.slot())) {
            return Err(FsError::unavailable("these files are being handed to another shard"));
        }
        Ok(kept)
    }
}

/// Deletes objects; returns those that are gone.
async fn delete(store: &Store, ids: HashSet<SegmentId>) -> HashSet<SegmentId> {
    let results = futures::stream::iter(ids)
        .map(|id| async move { (id, store.delete(id).await) })
        .buffer_unordered(DELETES_IN_PARALLEL)
        .collect::<Vec<_>>()
        .await;
    let mut gone = HashSet::new();
    let mut refused = None;
    for (id, result) in results {
        match result {
            Ok(()) => {
                gone.insert(id);
            }
            Err(error) => refused = Some(error),
        }
    }
    if let Some(error) = refused {
        warn!(%error, "some segments could not be deleted yet");
    }
    gone
}
