//! The newest entries of a group, kept in memory: applying and replicating read what was appended a moment ago.
//!
//! Invariants: consecutive, and the last one is the log's last; at most [`RECENT_BYTES_MAX`].

use std::collections::VecDeque;
use std::ops::Range;

use crate::limits::RECENT_BYTES_MAX;
use crate::raft_types::Entry;

/// See the module.
#[derive(Default)]
pub(crate) struct Recent {
    /// Each with its size in the log.
    entries: VecDeque<(Entry, usize)>,
    bytes: usize,
}

impl Recent {
    /// The log's last entry is now this one.
    pub fn push(&mut self, entry: Entry, bytes: usize) {
        if self.entries.back().is_some_and(|(last, _)| last.log_id.index + 1 != entry.log_id.index) {
            self.clear();
        }
        self.bytes += bytes;
        self.entries.push_back((entry, bytes));
        while self.bytes > RECENT_BYTES_MAX {
            self.pop();
        }
    }

    /// The log has nothing up to `index` any more.
    pub fn purge(&mut self, index: u64) {
        while self.entries.front().is_some_and(|(entry, _)| entry.log_id.index <= index) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        self.bytes -= self.entries.pop_front().map_or(0, |(_, bytes)| bytes);
    }

    /// The log has been changed otherwise.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    /// What the log has of `range`, stopping before the sum of the sizes passes `bytes_max`, the first one always there;
    /// `None` if only the log knows.
    pub fn range(&self, range: &Range<u64>, bytes_max: usize) -> Option<Vec<Entry>> {
        let first = self.entries.front()?.0.log_id.index;
        let skip = usize::try_from(range.start.checked_sub(first)?).ok()?;
        let mut found = Vec::new();
        let mut sum = 0;
        for (entry, bytes) in self.entries.range(skip.min(self.entries.len())..) {
            sum += bytes;
            if entry.log_id.index >= range.end || sum > bytes_max && !found.is_empty() {
                break;
            }
            found.push(entry.clone());
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use openraft::entry::RaftEntry as _;

    use crate::raft_types::{EntryPayload, LogId, Payload};

    fn entry(index: u64) -> Entry {
        let id = LogId::new(crate::raft_types::LeaderId { term: 1, node_id: 1 }, index);
        Entry::new(id, EntryPayload::Normal(Payload(Bytes::from_static(b"x"))))
    }

    fn indices(recent: &Recent, range: Range<u64>, bytes_max: usize) -> Option<Vec<u64>> {
        Some(recent.range(&range, bytes_max)?.iter().map(|e| e.log_id.index).collect())
    }

    #[test]
    fn gives_what_the_log_would_give() {
        let mut recent = Recent::default();
        assert_eq!(indices(&recent, 1..9, 99), None, "only the log knows whether there is anything");
        (5..9).for_each(|index| recent.push(entry(index), 10));
        assert_eq!(indices(&recent, 4..9, 99), None);
        assert_eq!(indices(&recent, 5..7, 99), Some(vec![5, 6]));
        assert_eq!(indices(&recent, 6..99, 99), Some(vec![6, 7, 8]));
        assert_eq!(indices(&recent, 5..9, 25), Some(vec![5, 6]));
        assert_eq!(indices(&recent, 5..9, 1), Some(vec![5]), "the first one always fits");
        assert_eq!(indices(&recent, 9..12, 99), Some(vec![]));
        recent.purge(6);
        assert_eq!((indices(&recent, 6..9, 99), indices(&recent, 7..9, 99)), (None, Some(vec![7, 8])));
    }

    #[test]
    fn is_bounded_and_consecutive() {
        let mut recent = Recent::default();
        (1..4).for_each(|index| recent.push(entry(index), RECENT_BYTES_MAX / 2));
        assert_eq!(indices(&recent, 1..4, usize::MAX), None, "the oldest has gone");
        assert_eq!(indices(&recent, 2..4, usize::MAX), Some(vec![2, 3]));
        recent.push(entry(4), RECENT_BYTES_MAX + 1);
        assert_eq!(indices(&recent, 4..5, usize::MAX), None);
        recent.push(entry(5), 1);
        recent.push(entry(3), 1);
        assert_eq!(indices(&recent, 3..6, usize::MAX), Some(vec![3]), "a truncated log goes on from there");
    }
}
