//! What the log database holds: keys and values of every record.
//!
//! Key: group u32 BE | kind u8 | index u64 BE (0 but for entries). Kinds are never reused.
//!
//! | kind | value |
//! | --- | --- |
//! | 1 vote | version 1, term u64 BE, node u64 BE, granted by a majority u8 |
//! | 2 committed | version 1, log id: term u64 BE, node u64 BE, index u64 BE |
//! | 3 purged | version 1, log id of the last purged entry |
//! | 4 entry | version 1, payload kind u8 (0 blank, 1 proposal, 2 membership), term, node, payload |
//!
//! A membership payload is postcard of [`MembershipRecord`]. Invariant: decoding never panics.

use std::collections::BTreeMap;

use bytes::Bytes;
use openraft::BasicNode;
use pando_types::ShardId;
use serde::{Deserialize, Serialize};

use crate::raft_types::{Entry, EntryPayload, LeaderId, LogId, Membership, Payload, Vote};

const VERSION: u8 = 1;
const BLANK: u8 = 0;
const PROPOSAL: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// Kind byte of a key.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum Kind {
    Vote = 1,
    Committed = 2,
    Purged = 3,
    Entry = 4,
    /// Not stored: the end of a group's records.
    End = 5,
}

/// A record's key.
pub(crate) fn key(group: ShardId, kind: Kind, index: u64) -> [u8; 13] {
    let mut key = [0; 13];
    key[..4].copy_from_slice(&group.0.to_be_bytes());
    key[4] = kind as u8;
    key[5..].copy_from_slice(&index.to_be_bytes());
    key
}

/// The group in a record's key.
pub(crate) fn group_of(key: &[u8]) -> Result<ShardId, String> {
    match key.first_chunk() {
        Some(group) => Ok(ShardId(u32::from_be_bytes(*group))),
        None => Err(format!("log key of {} bytes", key.len())),
    }
}

/// The index in an entry's key.
pub(crate) fn index_of(key: &[u8]) -> Result<u64, String> {
    match key.get(5..).and_then(|rest| rest.try_into().ok()) {
        Some(index) => Ok(u64::from_be_bytes(index)),
        None => Err(format!("log key of {} bytes", key.len())),
    }
}

/// Who votes and where the nodes are, without the consensus library's layout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MembershipRecord {
    /// Sets of voters: one, or two while voters change.
    voters: Vec<Vec<u64>>,
    /// Address of every voter and learner.
    nodes: Vec<(u64, String)>,
}

impl From<&Membership> for MembershipRecord {
    fn from(membership: &Membership) -> MembershipRecord {
        MembershipRecord {
            voters: membership.get_joint_config().iter().map(|set| set.iter().copied().collect()).collect(),
            nodes: membership.nodes().map(|(id, node)| (*id, node.addr.clone())).collect(),
        }
    }
}

impl MembershipRecord {
    /// The membership it stands for.
    pub fn restore(self) -> Result<Membership, String> {
        if self.voters.is_empty() && self.nodes.is_empty() {
            return Ok(Membership::default());
        }
        let nodes: BTreeMap<u64, BasicNode> =
            self.nodes.into_iter().map(|(id, address)| (id, BasicNode::new(address))).collect();
        let voters = self.voters.into_iter().map(|set| set.into_iter().collect()).collect();
        Membership::new(voters, nodes).map_err(|e| format!("membership: {e}"))
    }
}

/// Reads fixed-size fields off the front.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn byte(&mut self) -> Result<u8, String> {
        let (&first, rest) = self.0.split_first().ok_or("record is too short")?;
        self.0 = rest;
        Ok(first)
    }

    fn word(&mut self) -> Result<u64, String> {
        let (word, rest) = self.0.split_first_chunk().ok_or("record is too short")?;
        self.0 = rest;
        Ok(u64::from_be_bytes(*word))
    }

    fn version(&mut self) -> Result<(), String> {
        match self.byte()? {
            VERSION => Ok(()),
            found => Err(format!("record has format version {found}, this program reads {VERSION}")),
        }
    }

    fn end(&self) -> Result<(), String> {
        if self.0.is_empty() { Ok(()) } else { Err(format!("record has {} bytes too many", self.0.len())) }
    }
}

/// Value of a vote.
pub(crate) fn encode_vote(vote: &Vote) -> Vec<u8> {
    let mut value = vec![VERSION];
    value.extend(vote.leader_id.term.to_be_bytes());
    value.extend(vote.leader_id.node_id.to_be_bytes());
    value.push(u8::from(vote.committed));
    value
}

/// The inverse of [`encode_vote`].
pub(crate) fn decode_vote(value: &[u8]) -> Result<Vote, String> {
    let mut fields = Fields(value);
    fields.version()?;
    let leader_id = LeaderId { term: fields.word()?, node_id: fields.word()? };
    let committed = match fields.byte()? {
        0 => false,
        1 => true,
        other => return Err(format!("vote has flag {other}")),
    };
    fields.end()?;
    Ok(Vote { leader_id, committed })
}

/// Value of a log id.
pub(crate) fn encode_log_id(id: &LogId) -> Vec<u8> {
    let mut value = vec![VERSION];
    value.extend(id.leader_id.term.to_be_bytes());
    value.extend(id.leader_id.node_id.to_be_bytes());
    value.extend(id.index.to_be_bytes());
    value
}

/// The inverse of [`encode_log_id`].
pub(crate) fn decode_log_id(value: &[u8]) -> Result<LogId, String> {
    let mut fields = Fields(value);
    fields.version()?;
    let leader_id = LeaderId { term: fields.word()?, node_id: fields.word()? };
    let index = fields.word()?;
    fields.end()?;
    Ok(LogId { leader_id, index })
}

/// Value of an entry; its index is in the key.
pub(crate) fn encode_entry(entry: &Entry) -> Vec<u8> {
    let (kind, length) = match &entry.payload {
        EntryPayload::Blank => (BLANK, 0),
        EntryPayload::Normal(payload) => (PROPOSAL, payload.0.len()),
        EntryPayload::Membership(_) => (MEMBERSHIP, 64),
    };
    let mut value = Vec::with_capacity(18 + length);
    value.extend([VERSION, kind]);
    value.extend(entry.log_id.leader_id.term.to_be_bytes());
    value.extend(entry.log_id.leader_id.node_id.to_be_bytes());
    match &entry.payload {
        EntryPayload::Blank => value,
        EntryPayload::Normal(payload) => {
            value.extend_from_slice(&payload.0);
            value
        }
        EntryPayload::Membership(membership) => {
            let record: MembershipRecord = membership.into();
            postcard::to_extend(&record, value).expect("writing to memory cannot fail")
        }
    }
}

/// The inverse of [`encode_entry`].
pub(crate) fn decode_entry(index: u64, value: &[u8]) -> Result<Entry, String> {
    let mut fields = Fields(value);
    fields.version()?;
    let kind = fields.byte()?;
    let leader_id = LeaderId { term: fields.word()?, node_id: fields.word()? };
    let payload = match kind {
        BLANK => {
            fields.end()?;
            EntryPayload::Blank
        }
        PROPOSAL => EntryPayload::Normal(Payload(Bytes::copy_from_slice(fields.0))),
        MEMBERSHIP => {
            let (record, left) = postcard::take_from_bytes::<MembershipRecord>(fields.0)
                .map_err(|e| format!("membership of entry {index}: {e}"))?;
            Fields(left).end()?;
            EntryPayload::Membership(record.restore()?)
        }
        other => return Err(format!("entry {index} has unknown kind {other}")),
    };
    Ok(Entry { log_id: LogId { leader_id, index }, payload })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn id(index: u64) -> LogId {
        LogId { leader_id: LeaderId { term: 5, node_id: 2 }, index }
    }

    const LEADER: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 2];

    fn golden(prefix: &[u8], rest: &[u8]) -> Vec<u8> {
        [prefix, &LEADER, rest].concat()
    }

    #[test]
    fn golden_keys() {
        let group = ShardId(0x0102_0304);
        assert_eq!(key(group, Kind::Vote, 0), [1, 2, 3, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(key(group, Kind::Committed, 0)[4], 2);
        assert_eq!(key(group, Kind::Purged, 0)[4], 3);
        let entry = key(group, Kind::Entry, 258);
        assert_eq!(entry, [1, 2, 3, 4, 4, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(index_of(&entry), Ok(258));
        assert!(index_of(&entry[..9]).is_err());
        assert!(key(group, Kind::Entry, u64::MAX) < key(group, Kind::End, 0));
    }

    #[test]
    fn golden_votes_and_log_ids() {
        let vote = Vote { leader_id: id(0).leader_id, committed: true };
        assert_eq!(encode_vote(&vote), golden(&[1], &[1]));
        assert_eq!(decode_vote(&encode_vote(&vote)), Ok(vote));
        assert_eq!(encode_log_id(&id(258)), golden(&[1], &[0, 0, 0, 0, 0, 0, 1, 2]));
        assert_eq!(decode_log_id(&encode_log_id(&id(258))), Ok(id(258)));
    }

    #[test]
    fn golden_entries() {
        let nodes = BTreeMap::from([(1, BasicNode::new("a")), (300, BasicNode::new("b"))]);
        let membership = Membership::new(vec![BTreeSet::from([1, 300]), BTreeSet::from([1])], nodes).unwrap();
        let cases = [
            (EntryPayload::Blank, golden(&[1, 0], &[])),
            (EntryPayload::Normal(Payload(Bytes::from_static(b"hi"))), golden(&[1, 1], b"hi")),
            (
                EntryPayload::Membership(membership),
                golden(&[1, 2], &[2, 2, 1, 0xac, 2, 1, 1, 2, 1, 1, b'a', 0xac, 2, 1, b'b']),
            ),
        ];
        for (payload, bytes) in cases {
            let entry = Entry { log_id: id(9), payload };
            assert_eq!(encode_entry(&entry), bytes);
            let back = decode_entry(9, &bytes).unwrap();
            assert_eq!((back.log_id, back.payload), (entry.log_id, entry.payload));
        }
    }

    #[test]
    fn damage_is_refused() {
        let vote = golden(&[1], &[1]);
        for cut in 0..vote.len() {
            assert!(decode_vote(&vote[..cut]).is_err());
            assert!(decode_entry(1, &golden(&[1, 0], &[])[..cut]).is_err());
        }
        assert!(decode_vote(&golden(&[1], &[2])).is_err());
        assert!(decode_vote(&golden(&[2], &[1])).is_err());
        assert!(decode_log_id(&golden(&[1], &[0; 9])).is_err());
        assert!(decode_entry(1, &golden(&[1, 0], &[0])).is_err());
        assert!(decode_entry(1, &golden(&[1, 3], &[])).is_err());
        assert!(decode_entry(1, &golden(&[1, 2], &[1, 1, 7, 0])).is_err(), "a voter without a node");
    }
}
