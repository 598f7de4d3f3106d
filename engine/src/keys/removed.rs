//! Removed: a shard's replica on this node is not part of the shard any more; log and state go, however often that is cut off.
//!
//! Key: shard. Value: version. Not part of the shard's state: never in an image, not checked by fsck.

use pando_types::ShardId;

use super::layout::VERSION;
use super::{KeyKind, of_shard};

/// The key.
pub fn key(shard: ShardId) -> Vec<u8> {
    of_shard(KeyKind::Removed, shard, 0)
}

/// The value.
pub fn encode() -> Vec<u8> {
    vec![VERSION]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        assert_eq!(key(ShardId(1)), [255, 255, 255, 255, 0x4b, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(encode(), [1]);
    }
}
