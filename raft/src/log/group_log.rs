//! One group's log for the consensus library: append, truncate, purge, vote, committed.
//!
//! Invariants:
//! - nothing is purged above [`Durable`], what the group's machine has flushed;
//! - the committed hint is at most the last entry, and is written with the next append: it only saves work at restart.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openraft::storage::{LogState, RaftLogStorage};
use pando_types::ShardId;
use rocksdb::WriteBatch;

use super::records::{Kind, decode_log_id, encode_entry, encode_log_id, encode_vote, key};
use super::{LogDb, Reader};
use crate::group::Alive;
use crate::raft_types::{Entry, Flushed, LogId, Types, Vote};

/// Index of the first entry that the group's machine would lose in a crash; set by the machine's side.
#[derive(Clone, Default)]
pub(crate) struct Durable(Arc<AtomicU64>);

impl Durable {
    /// Everything below `next` is flushed. Never moves back.
    pub fn raise(&self, next: u64) {
        self.0.fetch_max(next, Ordering::AcqRel);
    }

    /// Index of the first entry that is not known to be flushed.
    pub fn next_index(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// One group's log.
pub(crate) struct GroupLog {
    reader: Reader,
    durable: Durable,
    purged: Option<LogId>,
    last: Option<LogId>,
    /// Committed up to here, not yet written.
    committed: Option<LogId>,
}

impl GroupLog {
    /// Opens the group's log.
    pub fn open(db: Arc<LogDb>, group: ShardId, durable: Durable, alive: Alive) -> io::Result<GroupLog> {
        let purged = db.purged(group)?;
        let last = db.last_entry(group)?.or(purged);
        Ok(GroupLog {
            reader: Reader { db, group, recent: Arc::default(), _alive: alive },
            durable,
            purged,
            last,
            committed: None,
        })
    }

    /// Whether nothing has ever been written for this group.
    pub fn is_pristine(&self) -> io::Result<bool> {
        Ok(!self.has_voted()? && self.last.is_none())
    }

    /// Whether the replica has ever voted, or followed a leader, which begins with a vote for it.
    pub fn has_voted(&self) -> io::Result<bool> {
        Ok(self.db().get(&self.key(Kind::Vote, 0), |_| Ok(()))?.is_some())
    }

    /// The last purged entry.
    pub fn purged(&self) -> Option<LogId> {
        self.purged
    }

    /// Makes the log agree with a machine that starts at `applied`.
    ///
    /// An installed image may be ahead of the log, or replace entries that were never committed: they were about to be
    /// truncated when the process died. What is applied is committed, so an entry that differs from it, and everything
    /// after that entry, is void.
    pub fn reconcile(&mut self, applied: &LogId) -> io::Result<()> {
        if self.purged.is_some_and(|purged| purged.index >= applied.index) {
            return Ok(());
        }
        let here = self.db().entries(self.group(), applied.index..applied.index + 1, usize::MAX)?;
        if here.first().is_some_and(|entry| entry.log_id == *applied) {
            return Ok(());
        }
        tracing::info!(shard = %self.group(), %applied, "log restarts after the installed image");
        self.durable.raise(applied.index + 1);
        let mut batch = WriteBatch::default();
        batch.put(self.key(Kind::Purged, 0), encode_log_id(applied));
        batch.delete_range(self.key(Kind::Entry, 0), self.key(Kind::End, 0));
        self.db().write(batch)?;
        self.reader.recent().clear();
        self.purged = Some(*applied);
        self.last = self.purged;
        Ok(())
    }

    fn db(&self) -> &LogDb {
        &self.reader.db
    }

    fn group(&self) -> ShardId {
        self.reader.group
    }

    fn key(&self, kind: Kind, index: u64) -> [u8; 13] {
        key(self.group(), kind, index)
    }

    fn put_committed(&mut self, batch: &mut WriteBatch) {
        if let Some(committed) = self.committed.take() {
            batch.put(self.key(Kind::Committed, 0), encode_log_id(&committed));
        }
    }
}

impl RaftLogStorage<Types> for GroupLog {
    type LogReader = Reader;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        self.db().failure.check()?;
        Ok(LogState { last_purged_log_id: self.purged, last_log_id: self.last })
    }

    async fn get_log_reader(&mut self) -> Reader {
        self.reader.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(self.key(Kind::Vote, 0), encode_vote(vote));
        self.db().write(batch)?;
        self.db().sync().await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        let hint = self.db().get(&self.key(Kind::Committed, 0), decode_log_id)?;
        // A hint from before a torn tail or an installed image must not promise entries that are not there.
        let last = self.last.map(|id| id.index);
        Ok(hint.filter(|hint| Some(hint.index) <= last))
    }

    async fn append<I>(&mut self, entries: I, callback: Flushed) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let mut batch = WriteBatch::default();
        let mut appended = Vec::new();
        for entry in entries {
            let record = encode_entry(&entry);
            batch.put(self.key(Kind::Entry, entry.log_id.index), &record);
            self.last = Some(entry.log_id);
            appended.push((entry, record.len()));
        }
        self.put_committed(&mut batch);
        self.db().write(batch)?;
        let mut recent = self.reader.recent();
        appended.into_iter().for_each(|(entry, bytes)| recent.push(entry, bytes));
        drop(recent);
        self.db().sync_then(callback);
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let from = last.map_or(0, |id| id.index + 1);
        let mut batch = WriteBatch::default();
        batch.delete_range(self.key(Kind::Entry, from), self.key(Kind::End, 0));
        self.db().write(batch)?;
        self.reader.recent().clear();
        self.last = last.or(self.purged);
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        let durable = self.durable.next_index();
        if upto.index >= durable {
            let bug = format!("purge of entry {} while the state is flushed only below {durable}", upto.index);
            return Err(io::Error::other(bug));
        }
        if self.purged.is_some_and(|purged| purged.index >= upto.index) {
            return Ok(());
        }
        let mut batch = WriteBatch::default();
        batch.put(self.key(Kind::Purged, 0), encode_log_id(&upto));
        let from = self.purged.map_or(0, |id| id.index + 1);
        batch.delete_range(self.key(Kind::Entry, from), self.key(Kind::Entry, upto.index + 1));
        self.db().write(batch)?;
        self.reader.recent().purge(upto.index);
        self.purged = Some(upto);
        if self.last.is_none_or(|last| last.index <= upto.index) {
            self.last = self.purged;
        }
        Ok(())
    }
}
