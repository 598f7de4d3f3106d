//! Changes that touch several shards: what one under way has locked here, and what one decided here has left to others.
//!
//! Key (both): shard; coordinator u32, term, number u64. Value of an intent: version, its locks in the types' codec. Value of
//! a decided change: version, [`Decided`] in the types' codec. Invariant: an intent's locks are no other's.

use pando_types::intent::{Decided, IntentId, Lock};
use pando_types::{ShardId, codec};

use super::layout::{Fields, VERSION};
use super::{KeyKind, PREFIX_BYTES, of_shard};
use crate::error::Corrupt;

/// The key of an intent.
pub fn key(shard: ShardId, id: IntentId) -> Vec<u8> {
    intent_key(KeyKind::Intent, shard, id)
}

/// The key of a decided change.
pub fn decided_key(shard: ShardId, id: IntentId) -> Vec<u8> {
    intent_key(KeyKind::Decided, shard, id)
}

fn intent_key(kind: KeyKind, shard: ShardId, id: IntentId) -> Vec<u8> {
    let mut key = of_shard(kind, shard, 20);
    key.extend_from_slice(&id.shard.0.to_be_bytes());
    key.extend_from_slice(&id.term.to_be_bytes());
    key.extend_from_slice(&id.number.to_be_bytes());
    key
}

/// What all keys of a shard's intents begin with.
pub fn prefix(shard: ShardId) -> Vec<u8> {
    of_shard(KeyKind::Intent, shard, 0)
}

/// What all keys of a shard's decided changes begin with.
pub fn decided_prefix(shard: ShardId) -> Vec<u8> {
    of_shard(KeyKind::Decided, shard, 0)
}

/// The attempt of either key.
pub fn parse(key: &[u8]) -> Result<IntentId, Corrupt> {
    let mut fields = Fields::key("intent", key.get(PREFIX_BYTES..).unwrap_or_default());
    let id = IntentId { shard: ShardId(fields.key_u32()?), term: fields.key_u64()?, number: fields.key_u64()? };
    fields.end()?;
    Ok(id)
}

/// The value of an intent.
pub fn encode(locks: &[Lock]) -> Vec<u8> {
    [vec![VERSION], codec::encode(locks)].concat()
}

/// Reads an intent's value.
pub fn decode(bytes: &[u8]) -> Result<Vec<Lock>, Corrupt> {
    let rest = Fields::value("intent", bytes)?.rest();
    codec::decode(rest).map_err(|error| Corrupt(format!("intent: {error}")))
}

/// The value of a decided change.
pub fn encode_decided(decided: &Decided) -> Vec<u8> {
    [vec![VERSION], codec::encode(decided)].concat()
}

/// Reads a decided change's value.
pub fn decode_decided(bytes: &[u8]) -> Result<Decided, Corrupt> {
    let rest = Fields::value("decided change", bytes)?.rest();
    codec::decode(rest).map_err(|error| Corrupt(format!("decided change: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_types::intent::Step;
    use pando_types::{FileName, InodeId, OpId, SessionId};
    use proptest::prelude::*;

    #[test]
    fn golden() {
        let id = IntentId { shard: ShardId(2), term: 3, number: 4 };
        let rest = [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4];
        let head = |kind| [255, 255, 255, 255, kind, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(key(ShardId(1), id), [&head(0x49)[..], &rest].concat());
        assert_eq!(decided_key(ShardId(1), id), [&head(0x4a)[..], &rest].concat());
        let name = FileName::new(b"x").unwrap();
        let locks = [Lock::Name(InodeId(5), name), Lock::Inode(InodeId(6)), Lock::Place(InodeId(7))];
        assert_eq!(encode(&locks), [1, 1, 3, 0, 5, 1, b'x', 1, 6, 2, 7]);
        let op = OpId { session: SessionId(8), sequence: 9 };
        let step = Step::RemoveDirectory { inode: InodeId(6) };
        let decided = Decided { op, steps: vec![(ShardId(2), vec![step])] };
        assert_eq!(encode_decided(&decided), [1, 1, 8, 9, 1, 2, 1, 6, 6]);
    }

    proptest! {
        #[test]
        fn round_trip(shard: u32, term: u64, number: u64, inodes in proptest::collection::vec(any::<u64>(), 0..9)) {
            let id = IntentId { shard: ShardId(shard), term, number };
            prop_assert_eq!(parse(&key(ShardId(1), id)).unwrap(), id);
            let locks: Vec<Lock> = inodes.into_iter().map(|inode| Lock::Place(InodeId(inode))).collect();
            prop_assert_eq!(decode(&encode(&locks)).unwrap(), locks);
        }

        #[test]
        fn any_bytes_decode_or_are_corrupt(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = (parse(&bytes), decode(&bytes), decode_decided(&bytes));
        }
    }
}
