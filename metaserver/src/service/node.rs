//! What nodes ask of each other: messages of the Raft groups, replicas to be started and stopped.
//!
//! Invariant: a node of another cluster is refused before anything is looked at.

use pando_engine::keys::slots::Slots;
use pando_raft::PeerError;
use pando_types::intent::IntentId;
use pando_types::request::Response;
use pando_types::{Command, Errno, ErrorKind, FsError, ShardId, SlotId};

use crate::replicas::Replicas;

pub(super) async fn raft(here: &Replicas, cluster: &str, shard: ShardId, message: &[u8]) -> Result<Response, FsError> {
    check(here, cluster)?;
    here.receive(shard, message).await.map(Response::Raft).map_err(|error| match error {
        PeerError::Unreachable(detail) => FsError::unavailable(detail),
        PeerError::TimedOut => FsError::unavailable(error.to_string()),
    })
}

/// Another shard's change takes part here.
pub(super) async fn take_part(
    here: &Replicas,
    cluster: &str,
    shard: ShardId,
    command: Command,
) -> Result<Response, FsError> {
    check(here, cluster)?;
    if !matches!(command, Command::Prepare { .. } | Command::Finish { .. }) {
        return Err(FsError::user(Errno::EPERM));
    }
    here.led(shard)?.proposer.propose_own(command).await.map(Response::Reply)
}

pub(super) async fn outcome(
    here: &Replicas,
    cluster: &str,
    asking: ShardId,
    intent: IntentId,
) -> Result<Response, FsError> {
    check(here, cluster)?;
    here.outcome(intent, asking).await.map(Response::Steps)
}

pub(super) async fn start_replica(
    here: &Replicas,
    cluster: &str,
    shard: ShardId,
    slots: Vec<(SlotId, SlotId)>,
) -> Result<Response, FsError> {
    check(here, cluster)?;
    here.start_new(shard, &Slots::of(slots)).await?;
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
