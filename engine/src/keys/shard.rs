//! The shard's own records: its state, and the mark of the last applied batch.
//!
//! State: key shard; value version, time i64, generation, sessions, inodes, bytes u64. Applied: key shard; value version, the mark's
//! bytes (opaque here). Invariants: time and generation never go back; inodes and bytes are the sums over all inodes.

use pando_types::{Generation, ShardId, Timestamp};

use super::layout::{Fields, VERSION};
use super::{KeyKind, of_shard};
use crate::error::Corrupt;

/// The state's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The highest time of an entry.
    pub time: Timestamp,
    /// The highest generation of an entry.
    pub generation: Generation,
    /// Sessions ever opened.
    pub sessions: u64,
    /// Inodes that exist.
    pub inodes: u64,
    /// Bytes allocated to files.
    pub bytes: u64,
}

impl State {
    /// Before the first entry.
    pub const EMPTY: State =
        State { time: Timestamp(i64::MIN), generation: Generation::FIRST, sessions: 0, inodes: 0, bytes: 0 };

    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(41);
        value.push(VERSION);
        value.extend_from_slice(&self.time.0.to_le_bytes());
        for field in [self.generation.0, self.sessions, self.inodes, self.bytes] {
            value.extend_from_slice(&field.to_le_bytes());
        }
        value
    }

    /// Reads a value.
    pub fn decode(bytes: &[u8]) -> Result<State, Corrupt> {
        let mut fields = Fields::value("shard state", bytes)?;
        let state = State {
            time: Timestamp(fields.i64()?),
            generation: Generation(fields.u64()?),
            sessions: fields.u64()?,
            inodes: fields.u64()?,
            bytes: fields.u64()?,
        };
        fields.end()?;
        Ok(state)
    }
}

/// The state's key.
pub fn state_key(shard: ShardId) -> Vec<u8> {
    of_shard(KeyKind::State, shard, 0)
}

/// The mark's key.
pub fn applied_key(shard: ShardId) -> Vec<u8> {
    of_shard(KeyKind::Applied, shard, 0)
}

/// The mark's value.
pub fn encode_applied(mark: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(1 + mark.len());
    value.push(VERSION);
    value.extend_from_slice(mark);
    value
}

/// The mark of a value.
pub fn decode_applied(bytes: &[u8]) -> Result<&[u8], Corrupt> {
    Fields::value("applied mark", bytes).map(Fields::rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden() {
        assert_eq!(state_key(ShardId(1)), [255, 255, 255, 255, 0x40, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(applied_key(ShardId(1)), [255, 255, 255, 255, 0x41, 0, 0, 0, 0, 0, 0, 0, 1]);
        let state = State { time: Timestamp(1), generation: Generation(2), sessions: 3, inodes: 4, bytes: 5 };
        let mut expected = vec![1];
        for field in [1u8, 2, 3, 4, 5] {
            expected.extend_from_slice(&[field, 0, 0, 0, 0, 0, 0, 0]);
        }
        assert_eq!(state.encode(), expected);
        assert_eq!(encode_applied(b"m"), [1, b'm']);
    }

    proptest! {
        #[test]
        fn round_trip(time: i64, numbers: [u64; 4], mark in proptest::collection::vec(any::<u8>(), 0..40)) {
            let [generation, sessions, inodes, bytes] = numbers;
            let state = State { time: Timestamp(time), generation: Generation(generation), sessions, inodes, bytes };
            prop_assert_eq!(State::decode(&state.encode()).unwrap(), state);
            let applied = encode_applied(&mark);
            prop_assert_eq!(decode_applied(&applied).unwrap(), &mark[..]);
        }
    }
}
