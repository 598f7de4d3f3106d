//! The log store of a node: one RocksDB for all its groups, one fsync for all.
//!
//! [`LogDb`] is the database; [`GroupLog`] one group's view of it for the consensus library (`log/group_log.rs`),
//! [`Reader`] reads entries (`log/reader.rs`), `log/sync.rs` merges fsyncs, `log/records.rs` has the formats.
//! Not here: when to purge.
//!
//! Invariants:
//! - a group's entries are consecutive; records reach the disk in the order of their writes (one WAL);
//! - an append is reported durable only after an fsync that began after its write;
//! - after the first failed write or fsync every further use fails until the directory is opened again.

mod group_log;
mod reader;
mod recent;
pub(crate) mod records;
mod sync;

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use openraft::type_config::TypeConfigExt as _;
use pando_types::ShardId;
use rocksdb::{DB, DBCompressionType, IteratorMode, Options, ReadOptions, WriteBatch};

pub(crate) use group_log::{Durable, GroupLog};
pub(crate) use reader::Reader;
use records::{Kind, decode_entry, decode_log_id, encode_log_id, group_of, index_of, key};
pub(crate) use sync::Failure;
pub use sync::SyncFault;
use sync::Syncer;

use crate::error::RaftError;
use crate::limits::LOG_WRITE_BUFFER_BYTES;
use crate::raft_types::{Entry, Flushed, LeaderId, LogId, Types};

/// The log database of a node.
pub(crate) struct LogDb {
    db: Arc<DB>,
    syncer: Syncer,
    failure: Arc<Failure>,
}

impl LogDb {
    /// Opens or creates the database in `dir`. A torn tail of its WAL, which no fsync has confirmed, is dropped.
    pub fn open(dir: &Path, fault: Option<SyncFault>) -> Result<LogDb, RaftError> {
        let error = |detail: String| RaftError::Log { dir: dir.display().to_string(), detail };
        let db = DB::open(&options(), dir).map_err(|e| error(e.to_string()))?;
        let db = Arc::new(db);
        let failure = Arc::new(Failure::new(dir));
        let syncer = Syncer::start(db.clone(), failure.clone(), fault).map_err(|e| error(e.to_string()))?;
        Ok(LogDb { db, syncer, failure })
    }

    /// Why nothing is accepted any more, if so.
    pub fn failure(&self) -> &Failure {
        &self.failure
    }

    /// Writes without waiting for the disk; readable when this returns.
    fn write(&self, batch: WriteBatch) -> io::Result<()> {
        self.failure.check()?;
        self.db.write(batch).map_err(|e| self.failure.record(&e))
    }

    /// Reports to `waiter` once everything written before is on disk.
    fn sync_then(&self, waiter: Flushed) {
        self.syncer.submit(waiter);
    }

    /// Waits until everything written before is on disk.
    pub async fn sync(&self) -> io::Result<()> {
        let (tx, rx) = Types::oneshot();
        self.sync_then(Flushed::signal(tx));
        rx.await.unwrap_or_else(|_| Err(self.failure.stopped()))
    }

    fn get<T>(&self, key: &[u8], decode: impl Fn(&[u8]) -> Result<T, String>) -> io::Result<Option<T>> {
        self.failure.check()?;
        let value = self.db.get_pinned(key).map_err(|e| self.failure.record(&e))?;
        value.map(|value| decode(&value).map_err(|e| self.failure.corrupt(&e))).transpose()
    }

    /// The entries of `range` that exist, in order, stopping before the sum of their sizes passes `bytes_max`; the first
    /// one always fits.
    fn entries(&self, group: ShardId, range: Range<u64>, bytes_max: usize) -> io::Result<Vec<Entry>> {
        self.failure.check()?;
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(key(group, Kind::Entry, range.end).to_vec());
        let from = key(group, Kind::Entry, range.start);
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        for item in self.db.iterator_opt(IteratorMode::From(&from, rocksdb::Direction::Forward), options) {
            let (key, value) = item.map_err(|e| self.failure.record(&e))?;
            bytes += value.len();
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            let entry = index_of(&key).and_then(|index| decode_entry(index, &value));
            let entry = entry.map_err(|e| self.failure.corrupt(&e))?;
            if let Some(last) = entries.last()
                && last.log_id.index + 1 != entry.log_id.index
            {
                let hole = format!("entry {} of shard {group} is missing", last.log_id.index + 1);
                return Err(self.failure.corrupt(&hole));
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    /// The group's last entry, if it has any.
    fn last_entry(&self, group: ShardId) -> io::Result<Option<LogId>> {
        self.failure.check()?;
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(key(group, Kind::Entry, 0).to_vec());
        options.set_iterate_upper_bound(key(group, Kind::End, 0).to_vec());
        match self.db.iterator_opt(IteratorMode::End, options).next() {
            None => Ok(None),
            Some(item) => {
                let (key, value) = item.map_err(|e| self.failure.record(&e))?;
                let entry = index_of(&key).and_then(|index| decode_entry(index, &value));
                entry.map(|entry| Some(entry.log_id)).map_err(|e| self.failure.corrupt(&e))
            }
        }
    }

    /// The groups that have a record.
    pub fn groups(&self) -> io::Result<Vec<ShardId>> {
        self.failure.check()?;
        let mut groups = Vec::new();
        let mut from = Vec::new();
        loop {
            let mut records = self.db.iterator(IteratorMode::From(&from, rocksdb::Direction::Forward));
            let Some(record) = records.next() else { return Ok(groups) };
            let (key, _) = record.map_err(|e| self.failure.record(&e))?;
            let group = group_of(&key).map_err(|e| self.failure.corrupt(&e))?;
            groups.push(group);
            let Some(next) = group.0.checked_add(1) else { return Ok(groups) };
            from = next.to_be_bytes().to_vec();
        }
    }

    /// A group's log begins after its first entry.
    pub fn begin(&self, group: ShardId) -> io::Result<()> {
        let first = LogId { leader_id: LeaderId { term: 0, node_id: 0 }, index: 0 };
        let mut batch = WriteBatch::default();
        batch.put(key(group, Kind::Purged, 0), encode_log_id(&first));
        self.write(batch)
    }

    /// Removes everything of a group.
    pub fn erase(&self, group: ShardId) -> io::Result<()> {
        let mut batch = WriteBatch::default();
        let end = group.0.checked_add(1).map_or_else(|| vec![u8::MAX; 5], |next| next.to_be_bytes().to_vec());
        batch.delete_range(group.0.to_be_bytes().to_vec(), end);
        self.write(batch)
    }

    fn purged(&self, group: ShardId) -> io::Result<Option<LogId>> {
        self.get(&key(group, Kind::Purged, 0), decode_log_id)
    }
}

fn options() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    // The WAL is written and synced by `flush_wal` alone: a write costs a copy in memory, an fsync serves all groups.
    options.set_manual_wal_flush(true);
    options.set_write_buffer_size(LOG_WRITE_BUFFER_BYTES);
    options.set_max_write_buffer_number(4);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_keep_log_file_num(4);
    options.set_max_background_jobs(2);
    options
}

#[cfg(test)]
#[path = "log/log_test.rs"]
mod tests;
