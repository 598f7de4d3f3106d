//! What the leader and the collectors ask of a shard: totals, sessions, and work that waits.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use pando_types::intent::{Decided, IntentId};
use pando_types::request::Totals;
use pando_types::shard_map::ShardMap;
use pando_types::{InodeId, SegmentId, SessionId, ShardId, SlotId};

use crate::error::{Corrupt, ReadError};
use crate::keys::shard::{self, State};
use crate::keys::slots::{self, Slots};
use crate::keys::usage::{self, Usage};
use crate::keys::{self, KeyKind, PREFIX_BYTES, after, intent, orphan, segment, session, shard_map};
use crate::kv::View;

/// Sums over a shard; zeros before its first entry.
pub fn totals(view: &impl View, shard: ShardId) -> Result<Totals, ReadError> {
    let Some(value) = view.get(&shard::state_key(shard))? else { return Ok(Totals::default()) };
    let state = State::decode(&value)?;
    Ok(Totals { inodes: state.inodes, bytes: state.bytes })
}

/// The cluster's map; none before shard 0 got its first one, and in the state of other shards.
pub fn shard_map(view: &impl View) -> Result<Option<ShardMap>, ReadError> {
    Ok(view.get(&shard_map::key())?.map(|value| shard_map::decode(&value)).transpose()?)
}

/// The sessions that are open, in order.
pub fn sessions(view: &impl View, shard: ShardId) -> Result<Vec<SessionId>, ReadError> {
    let prefix = session::prefix(shard);
    collect(view, &prefix, &after(&prefix), usize::MAX, |key, _| session::parse(&key[PREFIX_BYTES..]))
}

/// Orphans that nobody holds, at most `limit`: those without holder and those of ended sessions, slot by slot.
pub fn free_orphans(view: &impl View, shard: ShardId, limit: usize) -> Result<Vec<InodeId>, ReadError> {
    let mut free = Vec::new();
    let parse = |key: &[u8], _: &[u8]| orphan::parse_index(key);
    each_slot(view, shard, |slot| {
        let end = after(&orphan::index_prefix(slot, SessionId(u64::MAX)));
        let mut holder = Some(SessionId::LEADER);
        while let Some(from) = holder.filter(|_| free.len() < limit) {
            let first = collect(view, &orphan::index_prefix(slot, from), &end, 1, parse)?;
            let Some(&(found, _)) = first.first() else { break };
            if found == SessionId::LEADER || view.get(&session::key(shard, found))?.is_none() {
                let prefix = orphan::index_prefix(slot, found);
                let orphans = collect(view, &prefix, &after(&prefix), limit - free.len(), parse)?;
                free.extend(orphans.into_iter().map(|(_, inode)| inode));
            }
            holder = found.0.checked_add(1).map(SessionId);
        }
        Ok(free.len() < limit)
    })?;
    Ok(free)
}

/// Segments that nothing refers to, at most `limit`: their objects may be deleted.
pub fn dead_segments(view: &impl View, shard: ShardId, limit: usize) -> Result<Vec<SegmentId>, ReadError> {
    let mut dead = Vec::new();
    each_slot(view, shard, |slot| {
        let prefix = keys::slot_prefix(slot, KeyKind::DeadSegment);
        dead.extend(collect(view, &prefix, &after(&prefix), limit - dead.len(), |key, _| segment::parse(key))?);
        Ok(dead.len() < limit)
    })?;
    Ok(dead)
}

/// Calls `visit` for each slot of the shard that has records, until it returns false.
fn each_slot(
    view: &impl View,
    shard: ShardId,
    mut visit: impl FnMut(SlotId) -> Result<bool, ReadError>,
) -> Result<(), ReadError> {
    for (first, last) in slots(view, shard)?.runs() {
        let end = (last.0 + 1).to_be_bytes();
        let mut next = first.0;
        while next <= last.0 {
            let mut found = None;
            view.scan(&next.to_be_bytes(), &end, &mut |key, _| {
                found = key.first_chunk().map(|slot| u32::from_be_bytes(*slot));
                ControlFlow::Break(())
            })?;
            let Some(slot) = found else { break };
            if !visit(SlotId(slot))? {
                return Ok(());
            }
            next = slot + 1;
        }
    }
    Ok(())
}

/// About half of a shard, as slots at its end: by inodes, and by the slots up to `spread`, over which new directories are
/// spread. Empty if one slot is all there is.
pub fn half(view: &impl View, shard: ShardId, spread: SlotId) -> Result<Slots, ReadError> {
    let all = slots(view, shard)?;
    let mut weights: BTreeMap<SlotId, u64> =
        (0..=spread.0).map(SlotId).filter(|slot| all.has(*slot)).map(|slot| (slot, 1)).collect();
    each_slot(view, shard, |slot| {
        let usage = view.get(&usage::key(slot))?.map(|value| Usage::decode(&value)).transpose()?;
        *weights.entry(slot).or_default() += usage.unwrap_or_default().inodes;
        Ok(true)
    })?;
    let sum: u64 = weights.values().sum();
    let mut before = 0;
    let cut = weights.into_iter().find(|(_, weight)| {
        let found = before > 0 && (before + weight / 2) * 2 >= sum;
        before += weight;
        found
    });
    Ok(cut.map_or(Slots::default(), |(slot, _)| all.both(&Slots::of([(slot, SlotId(u32::MAX))]))))
}

/// A change that was decided here, or given up (it is the leader's then).
pub fn decided(view: &impl View, shard: ShardId, intent: IntentId) -> Result<Option<Decided>, ReadError> {
    let value = view.get(&intent::decided_key(shard, intent))?;
    Ok(value.map(|value| intent::decode_decided(&value)).transpose()?)
}

/// The shards that have a state in this store, applied up to some mark.
pub fn shards(view: &impl View) -> Result<Vec<ShardId>, ReadError> {
    shards_with(view, KeyKind::Applied)
}

/// The shards whose replica was removed from this node, and not yet all that is left of it.
pub fn removed_shards(view: &impl View) -> Result<Vec<ShardId>, ReadError> {
    shards_with(view, KeyKind::Removed)
}

fn shards_with(view: &impl View, kind: KeyKind) -> Result<Vec<ShardId>, ReadError> {
    let prefix = keys::slot_prefix(SlotId(keys::SHARD_SLOT), kind);
    let wrong = |id| Corrupt(format!("there is a record of shard {id}, which is no shard"));
    collect(view, &prefix, &after(&prefix), usize::MAX, |key, _| {
        let (_, _, id, _) = keys::split(key)?;
        u32::try_from(id).map(ShardId).map_err(|_| wrong(id))
    })
}

/// The slots that a shard owns.
pub fn slots(view: &impl View, shard: ShardId) -> Result<Slots, ReadError> {
    Ok(view.get(&slots::key(shard))?.map(|value| Slots::decode(&value)).transpose()?.unwrap_or_default())
}

/// Those of the asked segments that the metadata refers to, or still may: their session lives, or a dead record waits.
pub fn segments_in_use(view: &impl View, shard: ShardId, segments: &[SegmentId]) -> Result<Vec<SegmentId>, ReadError> {
    let mut in_use = Vec::new();
    for &id in segments {
        if view.get(&session::key(shard, id.session))?.is_some()
            || view.get(&segment::key(id))?.is_some()
            || view.get(&segment::dead_key(id))?.is_some()
        {
            in_use.push(id);
        }
    }
    Ok(in_use)
}

/// Up to `limit` records of a range, parsed from key and value.
fn collect<T>(
    view: &impl View,
    from: &[u8],
    to: &[u8],
    limit: usize,
    parse: impl Fn(&[u8], &[u8]) -> Result<T, Corrupt>,
) -> Result<Vec<T>, ReadError> {
    let mut found = Vec::new();
    let mut damage: Option<Corrupt> = None;
    view.scan(from, to, &mut |key, value| {
        if found.len() == limit {
            return ControlFlow::Break(());
        }
        match parse(key, value) {
            Ok(item) => found.push(item),
            Err(error) => damage = Some(error),
        }
        if damage.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    damage.map_or(Ok(found), |error| Err(error.into()))
}
