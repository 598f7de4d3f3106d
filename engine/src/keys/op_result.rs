//! Replies of a session's operations, for retries: a record per [`OPS_PER_RECORD`] consecutive sequences.
//!
//! Key: shard, session u64, sequence / OPS_PER_RECORD u64. Value: version, then per known operation its place u8, its reply's
//! length u32 and its reply in the log's encoding. Several per record, so that a batch writes few; few, so that it rewrites little.

use std::collections::BTreeMap;

use pando_types::{SessionId, ShardId};

use super::layout::{Fields, VERSION};
use super::{KeyKind, of_shard};
use crate::error::Corrupt;

/// Operations of one record.
pub const OPS_PER_RECORD: u64 = 16;

/// Encoded replies by place in the record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OpResults(pub BTreeMap<u8, Vec<u8>>);

/// Which record an operation is in.
pub fn record_of(sequence: u64) -> u64 {
    sequence / OPS_PER_RECORD
}

/// Its place there.
pub fn place_of(sequence: u64) -> u8 {
    (sequence % OPS_PER_RECORD) as u8
}

/// The key.
pub fn key(shard: ShardId, session: SessionId, record: u64) -> Vec<u8> {
    let mut key = prefix(shard, session);
    key.extend_from_slice(&record.to_be_bytes());
    key
}

/// What all keys of a session's results begin with.
pub fn prefix(shard: ShardId, session: SessionId) -> Vec<u8> {
    let mut key = of_shard(KeyKind::OpResult, shard, 16);
    key.extend_from_slice(&session.0.to_be_bytes());
    key
}

/// What all keys of a shard's results begin with.
pub fn shard_prefix(shard: ShardId) -> Vec<u8> {
    of_shard(KeyKind::OpResult, shard, 0)
}

/// Session and record number of a key's rest.
pub fn parse(rest: &[u8]) -> Result<(SessionId, u64), Corrupt> {
    let mut fields = Fields::key("op result", rest);
    let parts = (SessionId(fields.key_u64()?), fields.key_u64()?);
    fields.end()?;
    Ok(parts)
}

impl OpResults {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(1 + self.0.values().map(|reply| 5 + reply.len()).sum::<usize>());
        value.push(VERSION);
        for (place, reply) in &self.0 {
            value.push(*place);
            value.extend_from_slice(&(reply.len() as u32).to_le_bytes());
            value.extend_from_slice(reply);
        }
        value
    }

    /// Reads a value.
    pub fn decode(bytes: &[u8]) -> Result<OpResults, Corrupt> {
        let mut fields = Fields::value("op result", bytes)?;
        let mut results = OpResults::default();
        while !fields.is_empty() {
            let place = fields.u8()?;
            let length = fields.u32()? as usize;
            results.0.insert(place, fields.bytes(length)?.to_vec());
        }
        Ok(results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden() {
        let key = key(ShardId(1), SessionId(2), record_of(35));
        assert_eq!(
            key,
            [255, 255, 255, 255, 0x43, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2]
        );
        let results = OpResults([(place_of(35), b"ab".to_vec())].into());
        assert_eq!(results.encode(), [1, 3, 2, 0, 0, 0, b'a', b'b']);
    }

    proptest! {
        #[test]
        fn round_trip(session: u64, record: u64,
                      map in proptest::collection::btree_map(0u8..16, proptest::collection::vec(any::<u8>(), 0..9), 0..16)) {
            let key = key(ShardId(0), SessionId(session), record);
            prop_assert_eq!(parse(&key[super::super::PREFIX_BYTES..]).unwrap(), (SessionId(session), record));
            let results = OpResults(map);
            prop_assert_eq!(OpResults::decode(&results.encode()).unwrap(), results);
        }

        #[test]
        fn any_bytes_decode_or_are_corrupt(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = OpResults::decode(&bytes);
        }
    }
}
