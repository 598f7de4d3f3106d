//! Shard map: which shard owns which slots, and the nodes. In the state of shard 0 alone.
//!
//! Key: shard 0. Value: version, the map in the types' codec. Invariant: its epoch grows by one with each change.

use pando_types::shard_map::ShardMap;
use pando_types::{ShardId, codec};

use super::layout::{Fields, VERSION};
use super::{KeyKind, of_shard};
use crate::error::Corrupt;

/// The key.
pub fn key() -> Vec<u8> {
    of_shard(KeyKind::ShardMap, ShardId(0), 0)
}

/// The value.
pub fn encode(map: &ShardMap) -> Vec<u8> {
    let mut value = vec![VERSION];
    value.extend(codec::encode(map));
    value
}

/// Reads a value.
pub fn decode(bytes: &[u8]) -> Result<ShardMap, Corrupt> {
    let rest = Fields::value("shard map", bytes)?.rest();
    let map: ShardMap = codec::decode(rest).map_err(|error| Corrupt(format!("shard map: {error}")))?;
    map.validate().map_err(|problem| Corrupt(format!("shard map: {problem}")))?;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_types::NodeId;

    #[test]
    fn golden_and_back() {
        assert_eq!(key(), [255, 255, 255, 255, 0x47, 0, 0, 0, 0, 0, 0, 0, 0]);
        let map = ShardMap::single(NodeId(1), "h:1".into());
        let value = encode(&map);
        let golden: &[u8] =
            &[1, 1, 1, 1, 0, 255, 255, 63, 0, 1, 0, 1, 1, 1, 1, 1, 1, 3, b'h', b':', b'1', 0, 0, 0, 0, 2, 3, 0];
        assert_eq!(value, golden);
        assert_eq!(decode(&value).unwrap(), map);
        assert!(decode(&value[..value.len() - 1]).is_err());
    }
}
