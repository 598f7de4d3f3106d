//! Which clients are alive: leader memory, on the monotonic clock.
//!
//! The list of sessions is in the state and replicated; when each was last heard is not. A new leader grants every known
//! session a full TTL. Invariant: a session is ended through the log alone, and only after [`SESSION_TTL_MS`] of silence as
//! this leader saw it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dashmap::DashMap;
use pando_engine::read;
use pando_types::limits::SESSION_TTL_MS;
use pando_types::{Command, FsError, Reply, SessionId};
use tracing::{info, warn};

use crate::shard::Shard;

/// How often silence is looked for: a small part of the TTL.
const EXPIRY_INTERVAL: Duration = Duration::from_millis(SESSION_TTL_MS / 30);
/// How often the table is compared with the state, whose changes it may have missed.
const RELOAD_INTERVAL: Duration = Duration::from_secs(60);

/// When each session was last heard.
#[derive(Default)]
pub struct Table {
    heard: DashMap<SessionId, Instant>,
}

impl Table {
    /// Heard now, if it is known; says whether it is.
    pub fn touch(&self, session: SessionId) -> bool {
        self.heard.get_mut(&session).map(|mut at| *at = Instant::now()).is_some()
    }

    /// Known, and heard now.
    pub fn insert(&self, session: SessionId) {
        self.heard.insert(session, Instant::now());
    }

    /// Ended.
    pub fn remove(&self, session: SessionId) {
        self.heard.remove(&session);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.heard.len()
    }

    /// Sessions that have been silent for longer than `ttl`.
    fn silent(&self, now: Instant, ttl: Duration) -> Vec<SessionId> {
        let silent = |at: Instant| now.saturating_duration_since(at) > ttl;
        self.heard.iter().filter(|entry| silent(*entry.value())).map(|entry| *entry.key()).collect()
    }

    /// Takes over the state's list: new ones are heard now, those that are not in it are forgotten.
    fn adopt(&self, known: &[SessionId]) {
        let now = Instant::now();
        self.heard.retain(|session, _| known.binary_search(session).is_ok());
        for session in known {
            self.heard.entry(*session).or_insert(now);
        }
    }

    fn clear(&self) {
        self.heard.clear();
    }
}

impl Shard {
    /// Opens a session.
    pub(crate) async fn open_session(&self) -> Result<SessionId, FsError> {
        match self.proposer.propose_own(Command::OpenSession).await? {
            Reply::Session(session) => {
                self.sessions.insert(session);
                Ok(session)
            }
            other => Err(FsError::bug(format!("opening a session was answered with {other:?}"))),
        }
    }

    /// The session is alive. `Stale` when the state does not know it.
    pub(crate) async fn keep_alive(&self, session: SessionId) -> Result<(), FsError> {
        if self.sessions.touch(session) {
            return Ok(());
        }
        let known = self.read(|view| read::sessions(view, self.id)).await?;
        if known.binary_search(&session).is_err() {
            return Err(FsError::stale(format!("session {session} has ended after {SESSION_TTL_MS} ms of silence")));
        }
        self.sessions.insert(session);
        Ok(())
    }

    /// Ends a session through the log.
    pub(crate) async fn close_session(&self, session: SessionId) -> Result<Reply, FsError> {
        self.sessions.remove(session);
        self.proposer.propose_own(Command::CloseSession { session }).await
    }

    async fn reload_sessions(&self) -> Result<(), FsError> {
        let known = self.read(|view| read::sessions(view, self.id)).await?;
        self.sessions.adopt(&known);
        Ok(())
    }
}

/// Ends silent sessions for as long as this replica leads; runs until it is dropped.
pub(crate) async fn expire(shard: Arc<Shard>, ttl: Duration) {
    let mut ticks = tokio::time::interval(EXPIRY_INTERVAL.min(ttl / 3));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut reloaded: Option<Instant> = None;
    loop {
        ticks.tick().await;
        if !shard.group.is_leader() {
            shard.sessions.clear();
            reloaded = None;
            continue;
        }
        if reloaded.is_none_or(|at| at.elapsed() >= RELOAD_INTERVAL) {
            match shard.reload_sessions().await {
                Ok(()) => reloaded = Some(Instant::now()),
                Err(error) => {
                    warn!(shard = %shard.id, %error, "cannot read the list of sessions yet");
                    continue;
                }
            }
        }
        for session in shard.sessions.silent(Instant::now(), ttl) {
            match shard.close_session(session).await {
                Ok(_) => info!(shard = %shard.id, %session, "ended a silent session"),
                Err(error) => {
                    warn!(shard = %shard.id, %session, %error, "cannot end a silent session yet");
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_from_the_last_word() {
        let table = Table::default();
        let ttl = Duration::from_secs(30);
        table.insert(SessionId(1));
        table.insert(SessionId(2));
        let later = Instant::now() + ttl + Duration::from_millis(1);
        assert_eq!(table.silent(Instant::now(), ttl), []);
        assert_eq!(table.silent(later, ttl).len(), 2);
        assert!(table.touch(SessionId(2)) && !table.touch(SessionId(3)));
        table.remove(SessionId(1));
        assert!(!table.touch(SessionId(1)));
    }

    #[test]
    fn a_new_leader_grants_a_full_ttl() {
        let table = Table::default();
        table.insert(SessionId(1));
        let old = Instant::now();
        std::thread::sleep(Duration::from_millis(2));
        table.adopt(&[SessionId(2), SessionId(3)]);
        assert_eq!(table.len(), 2);
        assert!(!table.touch(SessionId(1)));
        assert_eq!(table.silent(old + Duration::from_secs(30), Duration::from_secs(30)), []);
    }
}
