//! What operators and mounts ask of the whole node.

use pando_engine::read;
use pando_types::limits::SEGMENTS_PER_REQUEST_MAX;
use pando_types::request::{Response, Status};
use pando_types::{Errno, ErrorKind, FsError, SegmentId};

use super::Service;

/// What a client is told to wait while the same long work is under way for another, in milliseconds.
const BUSY_WAIT_MS: u64 = 500;

pub(super) async fn totals(service: &Service) -> Result<Response, FsError> {
    let shard = service.shard.id;
    service.shard.read(|view| read::totals(view, shard)).await.map(Response::Totals)
}

pub(super) async fn fsck(service: &Service) -> Result<Response, FsError> {
    let _alone = service.checking.try_lock().map_err(|_| busy("a check"))?;
    let shard = service.shard.id;
    service.shard.read_long(move |view| pando_engine::fsck(view, shard)).await.map(Response::Fsck)
}

pub(super) async fn segments_in_use(service: &Service, segments: Vec<SegmentId>) -> Result<Response, FsError> {
    if segments.len() > SEGMENTS_PER_REQUEST_MAX {
        return Err(FsError::user(Errno::E2BIG));
    }
    let shard = service.shard.id;
    service.shard.read(|view| read::segments_in_use(view, shard, &segments)).await.map(Response::Segments)
}

pub(super) async fn collect(service: &Service) -> Result<Response, FsError> {
    match service.collector.collect_now().await {
        Some(collected) => collected.map(Response::Collected),
        None => Err(busy("a collection")),
    }
}

pub(super) async fn status(service: &Service) -> Result<Response, FsError> {
    let shard = &service.shard;
    let (totals, sessions) =
        shard.read(|view| Ok((read::totals(view, shard.id)?, read::sessions(view, shard.id)?.len()))).await?;
    Ok(Response::Status(Status {
        shard_map: service.map()?.clone(),
        sessions: sessions as u64,
        totals,
        applied: shard.group.applied_index(),
        version: env!("CARGO_PKG_VERSION").into(),
    }))
}

fn busy(what: &str) -> FsError {
    let detail = format!("{what} is under way already");
    FsError { kind: ErrorKind::Throttled(BUSY_WAIT_MS), errno: Errno::EBUSY, detail }
}
