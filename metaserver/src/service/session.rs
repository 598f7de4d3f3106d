//! Sessions: open, keep alive.

use pando_types::limits::SESSIONS_MAX;
use pando_types::request::Response;
use pando_types::{Errno, ErrorKind, FsError, SessionId};

use super::Service;

/// What a client is told to wait when there are too many sessions, in milliseconds: some may end meanwhile.
const TOO_MANY_WAIT_MS: u64 = 1000;

pub(super) async fn open(service: &Service) -> Result<Response, FsError> {
    if service.shard.sessions.len() >= SESSIONS_MAX {
        let detail = format!("{SESSIONS_MAX} sessions are open already");
        return Err(FsError { kind: ErrorKind::Throttled(TOO_MANY_WAIT_MS), errno: Errno::EAGAIN, detail });
    }
    service.shard.open_session().await.map(Response::Session)
}

pub(super) async fn keep_alive(service: &Service, session: SessionId) -> Result<Response, FsError> {
    service.shard.keep_alive(session).await.map(|()| Response::Done)
}
