//! Sessions: open, keep alive.

use pando_types::limits::SESSIONS_MAX;
use pando_types::request::Response;
use pando_types::{Errno, ErrorKind, FsError, SessionId, ShardId};

use crate::replicas::Replicas;

/// What a client is told to wait when there are too many sessions, in milliseconds: some may end meanwhile.
const TOO_MANY_WAIT_MS: u64 = 1000;

pub(super) async fn open(here: &Replicas) -> Result<Response, FsError> {
    let shard = here.led(ShardId(0))?;
    if shard.sessions.len() >= SESSIONS_MAX {
        let detail = format!("{SESSIONS_MAX} sessions are open already");
        return Err(FsError { kind: ErrorKind::Throttled(TOO_MANY_WAIT_MS), errno: Errno::EAGAIN, detail });
    }
    shard.open_session().await.map(Response::Session)
}

pub(super) async fn keep_alive(here: &Replicas, session: SessionId) -> Result<Response, FsError> {
    here.led(ShardId(0))?.keep_alive(session).await.map(|()| Response::Done)
}
