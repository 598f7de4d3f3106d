//! Sessions of a batch: who is registered, and which operations already have a reply.
//!
//! Invariant: of a session, the replies of `[acked, acked + SESSION_WINDOW_OPS)` that were given are known; no others are needed.

use std::collections::BTreeMap;

use pando_types::limits::SESSION_WINDOW_OPS;
use pando_types::{OpId, Reply, SessionId, codec};

use super::Txn;
use crate::error::{Corrupt, EngineError};
use crate::keys::op_result::{self, OpResults};
use crate::keys::session::{self, Session};
use crate::keys::{PREFIX_BYTES, after};
use crate::kv::View;

/// Sessions per shard: what fits below the shard in a session id.
const SESSIONS_MAX: u64 = 1 << 32;

#[derive(Default)]
pub(super) struct Cache {
    sessions: BTreeMap<SessionId, Dirty<Option<Session>>>,
    results: BTreeMap<(SessionId, u64), Dirty<OpResults>>,
}

struct Dirty<T> {
    value: T,
    dirty: bool,
}

/// What to do with an operation.
pub(crate) enum Admission {
    /// Carry it out.
    New,
    /// It was carried out; this was the reply.
    Known(Reply),
    /// The session is gone, the reply forgotten, or the window passed.
    Stale,
}

impl<V: View> Txn<'_, V> {
    /// Opens a session; `None` when the shard has given out all ids.
    pub fn open_session(&mut self) -> Option<SessionId> {
        if self.state.sessions + 1 >= SESSIONS_MAX {
            return None;
        }
        self.state.sessions += 1;
        let id = SessionId((u64::from(self.shard.0) << 32) | self.state.sessions);
        let value = Some(Session { acked: 0, opened: self.now });
        self.sessions.sessions.insert(id, Dirty { value, dirty: true });
        Some(id)
    }

    /// A session of another shard is open here too.
    pub fn join_session(&mut self, id: SessionId) {
        let value = Some(Session { acked: 0, opened: self.now });
        self.sessions.sessions.insert(id, Dirty { value, dirty: true });
    }

    /// Whether a session is open.
    pub fn session_alive(&mut self, id: SessionId) -> Result<bool, EngineError> {
        Ok(self.session(id)?.value.is_some())
    }

    /// Forgets a session and its replies; tells whether it was open.
    pub fn close_session(&mut self, id: SessionId) -> Result<bool, EngineError> {
        if !self.session_alive(id)? {
            return Ok(false);
        }
        self.sessions.sessions.insert(id, Dirty { value: None, dirty: true });
        self.sessions.results.retain(|(session, _), _| *session != id);
        let prefix = op_result::prefix(self.shard, id);
        let staged =
            self.scan(&prefix, &after(&prefix), usize::MAX, |key, _| op_result::parse(&key[PREFIX_BYTES..]))?;
        for (_, record) in staged {
            self.delete(op_result::key(self.shard, id, record));
        }
        Ok(true)
    }

    /// Takes note of what the client has acknowledged, and looks the operation up.
    pub fn admit(&mut self, op: OpId, acked: u64) -> Result<Admission, EngineError> {
        let Some(session) = self.session(op.session)?.value else { return Ok(Admission::Stale) };
        let acked = acked.max(session.acked);
        if op.sequence < acked || op.sequence - acked >= SESSION_WINDOW_OPS {
            return Ok(Admission::Stale);
        }
        if acked > session.acked {
            self.forget_results(op.session, session.acked, acked);
            let value = Some(Session { acked, ..session });
            self.sessions.sessions.insert(op.session, Dirty { value, dirty: true });
        }
        let results = self.results(op.session, op_result::record_of(op.sequence))?;
        match results.value.0.get(&op_result::place_of(op.sequence)) {
            None => Ok(Admission::New),
            Some(reply) => {
                let damaged =
                    |error| Corrupt(format!("reply of session {} operation {}: {error}", op.session, op.sequence));
                Ok(Admission::Known(codec::decode(reply).map_err(damaged)?))
            }
        }
    }

    /// Keeps the reply of an admitted operation.
    pub fn record(&mut self, op: OpId, reply: &Reply) -> Result<(), EngineError> {
        let Some(session) = self.session(op.session)?.value else { return Ok(()) };
        let record = op_result::record_of(op.sequence);
        let first = record * op_result::OPS_PER_RECORD;
        let results = self.results(op.session, record)?;
        results.value.0.retain(|place, _| first + u64::from(*place) >= session.acked);
        results.value.0.insert(op_result::place_of(op.sequence), codec::encode(reply));
        results.dirty = true;
        Ok(())
    }

    fn forget_results(&mut self, id: SessionId, from: u64, to: u64) {
        // Nothing was ever recorded beyond the old window, however far the client claims to be.
        let last = op_result::record_of(from.saturating_add(SESSION_WINDOW_OPS)) + 1;
        for record in op_result::record_of(from)..op_result::record_of(to).min(last) {
            self.sessions.results.remove(&(id, record));
            self.delete(op_result::key(self.shard, id, record));
        }
    }

    fn session(&mut self, id: SessionId) -> Result<&mut Dirty<Option<Session>>, EngineError> {
        if !self.sessions.sessions.contains_key(&id) {
            let stored = self.get(&session::key(self.shard, id))?;
            let value = stored.map(|value| Session::decode(&value)).transpose()?;
            self.sessions.sessions.insert(id, Dirty { value, dirty: false });
        }
        Ok(self.sessions.sessions.get_mut(&id).expect("it was just put there"))
    }

    fn results(&mut self, id: SessionId, record: u64) -> Result<&mut Dirty<OpResults>, EngineError> {
        if !self.sessions.results.contains_key(&(id, record)) {
            let stored = self.get(&op_result::key(self.shard, id, record))?;
            let value = stored.map_or(Ok(OpResults::default()), |value| OpResults::decode(&value))?;
            self.sessions.results.insert((id, record), Dirty { value, dirty: false });
        }
        Ok(self.sessions.results.get_mut(&(id, record)).expect("it was just put there"))
    }

    /// Stages what is known of sessions; they are read anew when needed.
    pub fn stage_sessions(&mut self) {
        let cache = std::mem::take(&mut self.sessions);
        for (id, session) in cache.sessions.into_iter().filter(|(_, session)| session.dirty) {
            self.staged.insert(session::key(self.shard, id), session.value.map(|session| session.encode()));
        }
        for ((id, record), results) in cache.results.into_iter().filter(|(_, results)| results.dirty) {
            self.staged.insert(op_result::key(self.shard, id, record), Some(results.value.encode()));
        }
    }
}
