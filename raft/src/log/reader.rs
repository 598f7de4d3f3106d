//! Reads a group's entries for replication and for applying, always in bounded pieces.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::stream::{self, Stream, StreamExt};
use openraft::RaftLogReader;
use pando_types::ShardId;

use super::LogDb;
use super::recent::Recent;
use super::records::{Kind, decode_vote, key};
use crate::group::Alive;
use crate::limits::{APPEND_BYTES_MAX, BATCH_BYTES_MAX, BATCH_ENTRIES_MAX};
use crate::raft_types::{Entry, Types, Vote};

/// Reads one group's entries.
#[derive(Clone)]
pub(crate) struct Reader {
    pub(super) db: Arc<LogDb>,
    pub(super) group: ShardId,
    pub(super) recent: Arc<Mutex<Recent>>,
    pub(super) _alive: Alive,
}

impl Reader {
    pub(super) fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`LogDb::entries`].
    fn entries(&self, range: Range<u64>, bytes_max: usize) -> io::Result<Vec<Entry>> {
        self.db.failure.check()?;
        let recent = self.recent().range(&range, bytes_max);
        recent.map_or_else(|| self.db.entries(self.group, range, bytes_max), Ok)
    }

    /// The next piece of `at..end`; an error if its first entry is missing.
    fn piece(&self, at: u64, end: u64) -> io::Result<Vec<Entry>> {
        let end = end.min(at.saturating_add(BATCH_ENTRIES_MAX as u64));
        let entries = self.entries(at..end, BATCH_BYTES_MAX)?;
        match entries.first() {
            Some(first) if first.log_id.index == at => Ok(entries),
            _ => Err(self.db.failure.corrupt(&format_args!("entry {at} of shard {} is missing", self.group))),
        }
    }
}

impl RaftLogReader<Types> for Reader {
    async fn entries_stream<R>(&mut self, range: R) -> impl Stream<Item = io::Result<Entry>> + Send
    where
        R: RangeBounds<u64> + Clone + Debug + Send,
    {
        let (from, to) = bounds(&range);
        let pieces = stream::unfold((self.clone(), from), move |(reader, at)| async move {
            if at >= to {
                return None;
            }
            match reader.piece(at, to) {
                Ok(entries) => {
                    let next = at + entries.len() as u64;
                    Some((entries.into_iter().map(Ok).collect::<Vec<_>>(), (reader, next)))
                }
                Err(e) => Some((vec![Err(e)], (reader, to))),
            }
        });
        pieces.flat_map(stream::iter).boxed()
    }

    async fn try_get_log_entries<R>(&mut self, range: R) -> io::Result<Vec<Entry>>
    where
        R: RangeBounds<u64> + Clone + Debug + Send,
    {
        let (from, to) = bounds(&range);
        self.entries(from..to, usize::MAX)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.entries(start..end, APPEND_BYTES_MAX)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.db.get(&key(self.group, Kind::Vote, 0), decode_vote)
    }
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(&at) => at,
        Bound::Excluded(&at) => at.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(&at) => at.saturating_add(1),
        Bound::Excluded(&at) => at,
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}
