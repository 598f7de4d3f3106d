//! Removed: a shard's replica on this node is not part of the shard any more; log and state go, however often that is cut off.
//!
//! Key: shard. Value: version. Not part of the shard's state: never in an image, not checked by fsck.

use std::ops::ControlFlow;

use pando_types::ShardId;

use super::layout::VERSION;
use super::shard::applied_key;
use super::{KeyKind, SHARD_SLOT, after, of_shard, split};
use crate::error::ReadError;
use crate::kv::View;

/// The key.
pub fn key(shard: ShardId) -> Vec<u8> {
    of_shard(KeyKind::Removed, shard, 0)
}

/// The value.
pub fn encode() -> Vec<u8> {
    vec![VERSION]
}

/// The shards whose replica here was removed.
pub fn all(view: &impl View) -> Result<Vec<ShardId>, ReadError> {
    of_kind(view, KeyKind::Removed)
}

/// The shards that have an applied mark here, and so a state.
pub fn applied(view: &impl View) -> Result<Vec<ShardId>, ReadError> {
    debug_assert_eq!(applied_key(ShardId(0))[4], KeyKind::Applied as u8);
    of_kind(view, KeyKind::Applied)
}

fn of_kind(view: &impl View, kind: KeyKind) -> Result<Vec<ShardId>, ReadError> {
    let mut prefix = SHARD_SLOT.to_be_bytes().to_vec();
    prefix.push(kind as u8);
    let mut shards = Vec::new();
    view.scan(&prefix, &after(&prefix), &mut |key, _| {
        shards.extend(split(key).ok().and_then(|(_, _, id, _)| u32::try_from(id).ok()).map(ShardId));
        ControlFlow::Continue(())
    })?;
    Ok(shards)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kv::mem::MemKv;
    use crate::kv::{Batch, Kv};

    #[test]
    fn golden_and_found() {
        assert_eq!(key(ShardId(1)), [255, 255, 255, 255, 0x4b, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(encode(), [1]);
        let kv = Arc::new(MemKv::new());
        let mut batch = Batch::default();
        batch.put(key(ShardId(3)), encode());
        batch.put(applied_key(ShardId(5)), vec![VERSION]);
        kv.write(batch).unwrap();
        assert_eq!(all(&kv.view()).unwrap(), [ShardId(3)]);
        assert_eq!(applied(&kv.view()).unwrap(), [ShardId(5)]);
    }
}
