//! Which segments have live bytes: counted with the extents, per slot.

use std::collections::BTreeMap;

use pando_types::{Reply, SegmentId, SlotId};

use super::OpError;
use crate::effect::Effect;
use crate::error::{Corrupt, EngineError};
use crate::keys::segment::{self, Segment};
use crate::kv::View;
use crate::txn::Txn;

/// Whether a segment was committed before.
pub(super) fn is_known<V: View>(txn: &Txn<'_, V>, id: SegmentId) -> Result<bool, EngineError> {
    let shard = txn.shard();
    Ok(txn.get(&segment::use_key(shard, id))?.is_some() || txn.get(&segment::dead_key(shard, id))?.is_some())
}

/// A new segment has these live bytes, none of them 0, by slot. If there are none it is dead, for `slot`.
pub(super) fn add<V: View>(
    txn: &mut Txn<'_, V>,
    id: SegmentId,
    length: u64,
    live: &BTreeMap<SlotId, u64>,
    slot: SlotId,
) {
    if live.is_empty() {
        return bury(txn, slot, id, length);
    }
    let birth = txn.generation();
    for (&slot, &live) in live {
        txn.put(segment::key(slot, id), Segment { length, live, birth }.encode());
    }
    txn.put(segment::use_key(txn.shard(), id), segment::encode_use(live.len() as u32));
}

/// Files of a slot have lost bytes of a segment.
pub(super) fn release<V: View>(
    txn: &mut Txn<'_, V>,
    slot: SlotId,
    id: SegmentId,
    bytes: u64,
) -> Result<(), EngineError> {
    let wrong = || Corrupt(format!("segment {id} in slot {slot} has fewer live bytes than its extents"));
    let value = txn.get(&segment::key(slot, id))?.ok_or_else(wrong)?;
    let record = Segment::decode(&value)?;
    let live = record.live.checked_sub(bytes).ok_or_else(wrong)?;
    if live > 0 {
        let birth = txn.generation();
        txn.put(segment::key(slot, id), Segment { live, birth, ..record }.encode());
        return Ok(());
    }
    txn.delete(segment::key(slot, id));
    let key = segment::use_key(txn.shard(), id);
    let value = txn.get(&key)?.ok_or_else(wrong)?;
    match segment::decode_use(&value)? {
        0 | 1 => {
            txn.delete(key);
            bury(txn, slot, id, record.length);
        }
        slots => txn.put(key, segment::encode_use(slots - 1)),
    }
    Ok(())
}

fn bury<V: View>(txn: &mut Txn<'_, V>, slot: SlotId, id: SegmentId, length: u64) {
    txn.put(segment::dead_key(txn.shard(), id), segment::encode_dead(slot, length));
    txn.effect(Effect::SegmentDead(slot, id));
}

/// These dead segments are deleted from the store. Those that are not dead are left alone.
pub(super) fn forget<V: View>(txn: &mut Txn<'_, V>, segments: &[(SlotId, SegmentId)]) -> Result<Reply, OpError> {
    for &(_, id) in segments {
        let key = segment::dead_key(txn.shard(), id);
        if txn.get(&key)?.is_some() {
            txn.delete(key);
        }
    }
    Ok(Reply::Done)
}
