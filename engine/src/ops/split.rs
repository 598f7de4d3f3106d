//! Split: slots change hands, without being touched.
//!
//! Everything about a slot's files lies in the slot; what the new shard needs beside it are a state, its slots, and what this
//! shard knows of clients, whose retries go to the new one. Invariant: a slot has one owner.

use pando_types::{Errno, Reply, ShardId, SlotId};

use super::OpError;
use crate::effect::Effect;
use crate::error::EngineError;
use crate::keys::shard::{self, State};
use crate::keys::slots::{self, Slots};
use crate::keys::usage::Usage;
use crate::keys::{after, op_result, session};
use crate::kv::View;
use crate::txn::Txn;

/// EAGAIN while changes of other shards are under way here. EINVAL for the shard itself.
pub(super) fn split<V: View>(
    txn: &mut Txn<'_, V>,
    new: ShardId,
    runs: &[(SlotId, SlotId)],
    mark: &[u8],
) -> Result<Reply, OpError> {
    if new == txn.shard() {
        return Err(Errno::EINVAL.into());
    }
    let moved = txn.slots().both(&Slots::of(runs.iter().copied()));
    if moved.is_empty() || txn.get(&shard::state_key(new))?.is_some() {
        return Ok(Reply::Done);
    }
    if txn.locks().intents().next().is_some() {
        return Err(Errno::EAGAIN.into());
    }
    txn.stage_sessions();
    copy_sessions(txn, new)?;
    let Usage { inodes, bytes } = give(txn, &moved)?;
    txn.put(shard::state_key(new), State { sessions: 0, inodes, bytes, ..txn.state() }.encode());
    txn.put(slots::key(new), moved.encode());
    txn.put(shard::applied_key(new), shard::encode_applied(mark));
    let left = txn.slots().without(&moved);
    txn.set_slots(left);
    txn.effect(Effect::Split(new));
    Ok(Reply::Done)
}

/// The new shard knows every session and every reply that this one knows.
fn copy_sessions<V: View>(txn: &mut Txn<'_, V>, new: ShardId) -> Result<(), EngineError> {
    let own = txn.shard();
    for (from, to) in
        [(session::prefix(own), session::prefix(new)), (op_result::shard_prefix(own), op_result::shard_prefix(new))]
    {
        let records = txn.scan(&from, &after(&from), usize::MAX, |key, value| Ok((key.to_vec(), value.to_vec())))?;
        for (key, value) in records {
            txn.put([&to, &key[from.len()..]].concat(), value);
        }
    }
    Ok(())
}

/// Takes what these slots hold from the totals: what it is together.
fn give<V: View>(txn: &mut Txn<'_, V>, slots: &Slots) -> Result<Usage, EngineError> {
    let mut sum = Usage::default();
    for &(first, last) in slots.runs() {
        let mut next = first;
        while let Some(slot) = txn.next_slot(next, last)? {
            let Usage { inodes, bytes } = txn.give(slot)?;
            (sum.inodes, sum.bytes) = (sum.inodes + inodes, sum.bytes + bytes);
            if slot == last {
                break;
            }
            next = SlotId(slot.0 + 1);
        }
    }
    Ok(sum)
}
