//! Which segments have live bytes: counted with the extents.

use pando_types::{Reply, SegmentId};

use super::OpError;
use crate::effect::Effect;
use crate::error::{Corrupt, EngineError};
use crate::keys::segment::{self, Segment};
use crate::kv::View;
use crate::txn::Txn;

/// Whether a segment was committed before.
pub(super) fn is_known<V: View>(txn: &Txn<'_, V>, id: SegmentId) -> Result<bool, EngineError> {
    Ok(txn.get(&segment::key(id))?.is_some() || txn.get(&segment::dead_key(id))?.is_some())
}

/// A new segment has so many live bytes. Without any it is dead.
pub(super) fn add<V: View>(txn: &mut Txn<'_, V>, id: SegmentId, length: u64, live: u64) {
    if live == 0 {
        return bury(txn, id, length);
    }
    let birth = txn.generation();
    txn.put(segment::key(id), Segment { length, live, birth }.encode());
}

/// Files have lost bytes of a segment.
pub(super) fn release<V: View>(txn: &mut Txn<'_, V>, id: SegmentId, bytes: u64) -> Result<(), EngineError> {
    let wrong = || Corrupt(format!("segment {id} has fewer live bytes than its extents"));
    let value = txn.get(&segment::key(id))?.ok_or_else(wrong)?;
    let record = Segment::decode(&value)?;
    let live = record.live.checked_sub(bytes).ok_or_else(wrong)?;
    if live > 0 {
        let birth = txn.generation();
        txn.put(segment::key(id), Segment { live, birth, ..record }.encode());
    } else {
        txn.delete(segment::key(id));
        bury(txn, id, record.length);
    }
    Ok(())
}

fn bury<V: View>(txn: &mut Txn<'_, V>, id: SegmentId, length: u64) {
    txn.put(segment::dead_key(id), segment::encode_dead(length));
    txn.effect(Effect::SegmentDead(id));
}

/// These dead segments are deleted from the store. Those that are not dead are left alone.
pub(super) fn forget<V: View>(txn: &mut Txn<'_, V>, segments: &[SegmentId]) -> Result<Reply, OpError> {
    for &id in segments {
        let key = segment::dead_key(id);
        if txn.owns(id.slot()) && txn.get(&key)?.is_some() {
            txn.delete(key);
        }
    }
    Ok(Reply::Done)
}
