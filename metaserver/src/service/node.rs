//! What nodes ask of each other: messages of the Raft groups, replicas to be started and stopped.
//!
//! Invariant: a node of another cluster is refused before anything is looked at.

use pando_raft::PeerError;
use pando_types::request::Response;
use pando_types::{Errno, ErrorKind, FsError, ShardId};

use crate::replicas::Replicas;

pub(super) async fn raft(here: &Replicas, cluster: &str, shard: ShardId, message: &[u8]) -> Result<Response, FsError> {
    check(here, cluster)?;
    here.receive(shard, message).await.map(Response::Raft).map_err(|error| match error {
        PeerError::Unreachable(detail) => FsError::unavailable(detail),
        PeerError::TimedOut => FsError::unavailable(error.to_string()),
    })
}

pub(super) async fn start_replica(here: &Replicas, cluster: &str, shard: ShardId) -> Result<Response, FsError> {
    check(here, cluster)?;
    here.start_new(shard).await.map_err(|e| FsError::unavailable(e.to_string()))?;
    Ok(Response::Done)
}

pub(super) async fn stop_replica(
    here: &Replicas,
    cluster: &str,
    shard: ShardId,
    members_at: u64,
) -> Result<Response, FsError> {
    check(here, cluster)?;
    here.stop(shard, members_at).await?;
    Ok(Response::Done)
}

fn check(here: &Replicas, cluster: &str) -> Result<(), FsError> {
    if cluster == here.cluster.id() {
        return Ok(());
    }
    let detail = "this node is of another cluster; check the addresses of both".to_owned();
    Err(FsError { kind: ErrorKind::User, errno: Errno::EPERM, detail })
}
