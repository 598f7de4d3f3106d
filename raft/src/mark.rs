//! How far a machine has applied: log id and membership. Stored by the machine with each batch, carried by images.
//!
//! Format (a promise, see the golden test): `types::codec` of [`Record`].

use openraft::entry::RaftPayload as _;
use pando_types::codec;
use serde::{Deserialize, Serialize};

use crate::log::records::MembershipRecord;
use crate::raft_types::{Entry, ImageMeta, LeaderId, LogId, Membership, StoredMembership};

/// The position that a state stands for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Mark {
    /// The last entry that the state contains.
    pub applied: Option<LogId>,
    /// The last membership at or below it.
    pub membership: StoredMembership,
}

#[derive(Serialize, Deserialize)]
struct Position {
    term: u64,
    node: u64,
    index: u64,
}

#[derive(Serialize, Deserialize)]
struct Record {
    applied: Option<Position>,
    membership_at: Option<Position>,
    membership: MembershipRecord,
}

impl From<&LogId> for Position {
    fn from(id: &LogId) -> Position {
        Position { term: id.leader_id.term, node: id.leader_id.node_id, index: id.index }
    }
}

impl From<Position> for LogId {
    fn from(at: Position) -> LogId {
        LogId { leader_id: LeaderId { term: at.term, node_id: at.node }, index: at.index }
    }
}

impl Mark {
    /// Moves past one more entry.
    pub fn advance(&mut self, entry: &Entry) {
        self.applied = Some(entry.log_id);
        if let Some(membership) = entry.payload.get_membership() {
            self.membership = StoredMembership::new(Some(entry.log_id), membership);
        }
    }

    /// Index of the first entry that the state does not contain.
    pub fn next_index(&self) -> u64 {
        self.applied.map_or(0, |id| id.index + 1)
    }

    /// Where a group begins whose state was made elsewhere: its first entry, which named the members, is applied.
    pub fn first(members: Membership) -> Mark {
        let first = LogId { leader_id: LeaderId { term: 0, node_id: 0 }, index: 0 };
        Mark { applied: Some(first), membership: StoredMembership::new(Some(first), members) }
    }

    /// Whether nothing was applied since [`Mark::first`].
    pub fn is_first(&self) -> bool {
        self.applied.is_some_and(|applied| applied == LogId { leader_id: LeaderId { term: 0, node_id: 0 }, index: 0 })
    }

    /// What the machine stores.
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(&Record {
            applied: self.applied.as_ref().map(Position::from),
            membership_at: self.membership.log_id().as_ref().map(Position::from),
            membership: MembershipRecord::from(self.membership.membership()),
        })
    }

    /// The inverse of [`Mark::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Mark, String> {
        let record: Record = codec::decode(bytes).map_err(|e| format!("applied mark: {e}"))?;
        let membership = record.membership.restore()?;
        Ok(Mark {
            applied: record.applied.map(LogId::from),
            membership: StoredMembership::new(record.membership_at.map(LogId::from), membership),
        })
    }

    /// As the consensus library names it.
    pub fn meta(&self) -> ImageMeta {
        ImageMeta { last_log_id: self.applied, last_membership: self.membership.clone() }
    }
}

impl From<&ImageMeta> for Mark {
    fn from(meta: &ImageMeta) -> Mark {
        Mark { applied: meta.last_log_id, membership: meta.last_membership.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use openraft::BasicNode;

    use super::*;

    fn at(term: u64, node: u64, index: u64) -> LogId {
        Position { term, node, index }.into()
    }

    #[test]
    fn golden_bytes() {
        assert_eq!(Mark::default().encode(), [1, 0, 0, 0, 0]);
        assert_eq!(Mark::decode(&[1, 0, 0, 0, 0]), Ok(Mark::default()));

        let nodes = BTreeMap::from([(1, BasicNode::new("a:1")), (2, BasicNode::new("b:2"))]);
        let membership = Membership::new(vec![BTreeSet::from([1])], nodes).unwrap();
        let mark =
            Mark { applied: Some(at(3, 2, 300)), membership: StoredMembership::new(Some(at(1, 1, 0)), membership) };
        let golden = [
            1, 1, 3, 2, 0xac, 2, 1, 1, 1, 0, // version, applied, membership's entry
            1, 1, 1, // one set of voters: {1}
            2, 1, 3, b'a', b':', b'1', 2, 3, b'b', b':', b'2', // nodes
        ];
        assert_eq!(mark.encode(), golden);
        assert_eq!(Mark::decode(&golden), Ok(mark));
    }

    #[test]
    fn damage_is_refused() {
        for bad in [&[][..], &[1], &[9, 0, 0, 0, 0], &[1, 0, 0, 0, 0, 0], &[1, 0, 0, 1, 1, 7, 0]] {
            assert!(Mark::decode(bad).is_err(), "{bad:?}");
        }
    }
}
