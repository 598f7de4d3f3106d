//! What operators and mounts ask of the whole cluster.

use pando_engine::read;
use pando_types::limits::SEGMENTS_PER_REQUEST_MAX;
use pando_types::request::{Response, Status};
use pando_types::{Errno, ErrorKind, FsError, SegmentId, ShardId};
use tokio::sync::Mutex;

use super::placement;
use crate::replicas::Replicas;

/// What a client is told to wait while the same long work is under way for another, in milliseconds.
const BUSY_WAIT_MS: u64 = 500;

pub(super) async fn totals(here: &Replicas) -> Result<Response, FsError> {
    let shard = here.led(ShardId(0))?;
    shard.read(|view| read::totals(view, shard.id)).await.map(Response::Totals)
}

pub(super) async fn fsck(here: &Replicas, checking: &Mutex<()>) -> Result<Response, FsError> {
    let shard = here.led(ShardId(0))?;
    let _alone = checking.try_lock().map_err(|_| busy("a check"))?;
    let id = shard.id;
    shard.read_long(move |view| pando_engine::fsck(view, id)).await.map(Response::Fsck)
}

pub(super) async fn segments_in_use(here: &Replicas, segments: Vec<SegmentId>) -> Result<Response, FsError> {
    if segments.len() > SEGMENTS_PER_REQUEST_MAX {
        return Err(FsError::user(Errno::E2BIG));
    }
    let shard = here.led(ShardId(0))?;
    shard.read(|view| read::segments_in_use(view, shard.id, &segments)).await.map(Response::Segments)
}

pub(super) async fn collect(here: &Replicas) -> Result<Response, FsError> {
    let shard = here.led(ShardId(0))?;
    let collector = here.collector(shard.id).ok_or_else(|| FsError::unavailable("the server is stopping"))?;
    match collector.collect_now().await {
        Some(collected) => collected.map(Response::Collected),
        None => Err(busy("a collection")),
    }
}

pub(super) async fn status(here: &Replicas) -> Result<Response, FsError> {
    let shard = here.led(ShardId(0))?;
    let (totals, sessions) =
        shard.read(|view| Ok((read::totals(view, shard.id)?, read::sessions(view, shard.id)?.len()))).await?;
    let shard_map = here.hinted_map()?;
    let (nodes, problems) = placement::nodes(here, &shard_map).await;
    Ok(Response::Status(Status {
        shard_map,
        sessions: sessions as u64,
        totals,
        applied: shard.group.applied_index(),
        leader: here.cluster.node,
        nodes,
        problems,
        version: env!("CARGO_PKG_VERSION").into(),
    }))
}

fn busy(what: &str) -> FsError {
    let detail = format!("{what} is under way already");
    FsError { kind: ErrorKind::Throttled(BUSY_WAIT_MS), errno: Errno::EBUSY, detail }
}
