//! SetShardMap: the next version of the cluster's map.
//!
//! Not here: what it should be (the metaserver's planner). Invariant: epochs grow one by one, so that of two changes made of
//! the same map one is refused.

use pando_types::shard_map::ShardMap;
use pando_types::{Errno, Reply, ShardId};

use super::OpError;
use crate::effect::Effect;
use crate::error::EngineError;
use crate::keys::shard_map;
use crate::kv::View;
use crate::txn::Txn;

/// EAGAIN: it is not the next one. EINVAL: it is no valid map, or this is not shard 0.
pub(super) fn set<V: View>(txn: &mut Txn<'_, V>, map: &ShardMap) -> Result<Reply, OpError> {
    if txn.shard() != ShardId(0) || map.validate().is_err() {
        return Err(Errno::EINVAL.into());
    }
    let present = match txn.get(&shard_map::key())? {
        Some(value) => shard_map::decode(&value).map_err(EngineError::from)?.epoch.0,
        None => 0,
    };
    if map.epoch.0 != present + 1 {
        return Err(Errno::EAGAIN.into());
    }
    txn.put(shard_map::key(), shard_map::encode(map));
    txn.effect(Effect::ShardMapChanged);
    Ok(Reply::Done)
}
