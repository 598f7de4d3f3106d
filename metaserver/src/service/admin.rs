//! What operators and mounts ask of the whole cluster.

use pando_engine::read;
use pando_types::limits::SEGMENTS_PER_REQUEST_MAX;
use pando_types::request::{NodeStatus, Request, Response, Status, Totals};
use pando_types::shard_map::ShardMap;
use pando_types::{Errno, ErrorKind, FsError, SegmentId, ShardId};
use tokio::sync::Mutex;

use super::placement;
use crate::replicas::Replicas;

/// What a client is told to wait while the same long work is under way for another, in milliseconds.
const BUSY_WAIT_MS: u64 = 500;

pub(super) async fn totals(here: &Replicas, shard: ShardId) -> Result<Response, FsError> {
    let shard = here.led(shard)?;
    shard.read(|view| read::totals(view, shard.id)).await.map(Response::Totals)
}

pub(super) async fn fsck(here: &Replicas, shard: ShardId, checking: &Mutex<()>) -> Result<Response, FsError> {
    let shard = here.led(shard)?;
    let _alone = checking.try_lock().map_err(|_| busy("a check"))?;
    let id = shard.id;
    shard.read_long(move |view| pando_engine::fsck(view, id)).await.map(Response::Fsck)
}

pub(super) async fn segments_in_use(
    here: &Replicas,
    shard: ShardId,
    segments: Vec<SegmentId>,
) -> Result<Response, FsError> {
    if segments.len() > SEGMENTS_PER_REQUEST_MAX {
        return Err(FsError::user(Errno::E2BIG));
    }
    let shard = here.led(shard)?;
    shard.segments_in_use(&segments).await.map(Response::Segments)
}

pub(super) async fn collect(here: &Replicas, shard: ShardId) -> Result<Response, FsError> {
    let shard = here.led(shard)?;
    let collector = here.collector(shard.id).ok_or_else(|| FsError::unavailable("the server is stopping"))?;
    match collector.collect_now().await {
        Some(collected) => collected.map(Response::Collected),
        None => Err(busy("a collection")),
    }
}

pub(super) async fn status(here: &Replicas) -> Result<Response, FsError> {
    let shard = here.led(ShardId(0))?;
    let sessions = shard.read(|view| Ok(read::sessions(view, shard.id)?.len())).await?;
    let map = here.hinted_map()?;
    let (nodes, mut problems) = placement::nodes(here, &map).await;
    let shard_map = with_leaders(map, &nodes);
    let mut totals = Totals::default();
    let asked = shard_map.shards.iter().map(|shard| async move { (shard.id, here.totals(shard.id).await) });
    for (id, found) in futures::future::join_all(asked).await {
        match found {
            Ok(found) => (totals.inodes, totals.bytes) = (totals.inodes + found.inodes, totals.bytes + found.bytes),
            Err(error) => problems.push(format!("shard {id} does not answer: {}", error.detail)),
        }
    }
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

/// The map with those as leaders who say so themselves.
fn with_leaders(map: ShardMap, nodes: &[NodeStatus]) -> ShardMap {
    let led = nodes.iter().flat_map(|node| node.replicas.iter().flatten().map(|replica| (node.id, replica)));
    let led = led.filter(|(node, replica)| replica.leader == Some(*node));
    led.fold(map, |map, (node, replica)| map.led_by(replica.shard, Some(node)))
}

impl Replicas {
    /// A shard's totals, wherever it is led.
    pub(crate) async fn totals(&self, shard: ShardId) -> Result<Totals, FsError> {
        let answer = match self.led(shard) {
            Ok(_) => totals(self, shard).await,
            Err(_) => self.ask_shard(shard, Request::Totals { shard }).await,
        };
        match answer? {
            Response::Totals(totals) => Ok(totals),
            other => Err(FsError::bug(format!("totals were answered with {other:?}"))),
        }
    }
}

fn busy(what: &str) -> FsError {
    let detail = format!("{what} is under way already");
    FsError { kind: ErrorKind::Throttled(BUSY_WAIT_MS), errno: Errno::EBUSY, detail }
}
