//! Sessions: open, join, keep alive, close.

use pando_types::limits::SESSIONS_MAX;
use pando_types::request::Response;
use pando_types::{Command, Errno, ErrorKind, FsError, MapEpoch, SessionId, ShardId};

use crate::replicas::Replicas;
use crate::shard::Shard;

/// What a client is told to wait when there are too many sessions, in milliseconds: some may end meanwhile.
const TOO_MANY_WAIT_MS: u64 = 1000;

pub(super) async fn open(here: &Replicas) -> Result<Response, FsError> {
    let shard = here.led(ShardId(0))?;
    check_room(&shard)?;
    shard.open_session().await.map(Response::Session)
}

pub(super) async fn join(here: &Replicas, shard: ShardId, session: SessionId) -> Result<Response, FsError> {
    let shard = here.led(shard)?;
    check_room(&shard)?;
    shard.proposer.propose_own(Command::JoinSession { session }).await?;
    shard.sessions.insert(session);
    Ok(Response::Done)
}

fn check_room(shard: &Shard) -> Result<(), FsError> {
    if shard.sessions.len() < SESSIONS_MAX {
        return Ok(());
    }
    let detail = format!("{SESSIONS_MAX} sessions are open already");
    Err(FsError { kind: ErrorKind::Throttled(TOO_MANY_WAIT_MS), errno: Errno::EAGAIN, detail })
}

/// Who keeps a session alive by an old map does not know of new shards, which may know the session: it is told.
pub(super) async fn keep_alive(
    here: &Replicas,
    epoch: MapEpoch,
    shard: ShardId,
    session: SessionId,
) -> Result<Response, FsError> {
    here.check_epoch(epoch)?;
    here.led(shard)?.keep_alive(session).await.map(|()| Response::Done)
}

pub(super) async fn close(here: &Replicas, shard: ShardId, session: SessionId) -> Result<Response, FsError> {
    here.led(shard)?.close_session(session).await.map(|_| Response::Done)
}
