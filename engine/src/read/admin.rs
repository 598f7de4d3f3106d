//! What the leader and the collectors ask of a shard: totals, sessions, and work that waits.

use std::ops::ControlFlow;

use pando_types::request::Totals;
use pando_types::shard_map::ShardMap;
use pando_types::{InodeId, SegmentId, SessionId, ShardId, SlotId};

use crate::error::{Corrupt, ReadError};
use crate::keys::shard::{self, State};
use crate::keys::{PREFIX_BYTES, after, orphan, segment, session, shard_map};
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
    collect(view, &prefix, &after(&prefix), usize::MAX, |rest, _| session::parse(rest))
}

/// Orphans that nobody holds, at most `limit`: those without holder, then those of ended sessions.
pub fn free_orphans(view: &impl View, shard: ShardId, limit: usize) -> Result<Vec<InodeId>, ReadError> {
    let parse = |rest: &[u8], _: &[u8]| orphan::parse_index(rest);
    let mut free = Vec::new();
    let end = after(&orphan::index_prefix(shard));
    let mut holder = SessionId::LEADER;
    while free.len() < limit {
        let from = orphan::index_key(shard, holder, InodeId(0));
        let Some(&(found, _)) = collect(view, &from, &end, 1, parse)?.first() else { break };
        let from = orphan::index_key(shard, found, InodeId(0));
        let to = orphan::index_key(shard, SessionId(found.0.saturating_add(1)), InodeId(0));
        if found == SessionId::LEADER || view.get(&session::key(shard, found))?.is_none() {
            let orphans = collect(view, &from, &to, limit - free.len(), parse)?;
            free.extend(orphans.into_iter().map(|(_, inode)| inode));
        }
        match found.0.checked_add(1) {
            Some(next) => holder = SessionId(next),
            None => break,
        }
    }
    Ok(free)
}

/// Segments that nothing refers to, at most `limit`: their objects may be deleted.
pub fn dead_segments(view: &impl View, shard: ShardId, limit: usize) -> Result<Vec<(SlotId, SegmentId)>, ReadError> {
    let prefix = segment::dead_prefix(shard);
    let parse = |rest: &[u8], value: &[u8]| Ok((segment::decode_dead(value)?.0, segment::parse_shard_rest(rest)?));
    collect(view, &prefix, &after(&prefix), limit, parse)
}

/// Those of the asked segments that the metadata refers to, or still may: their session lives, or a dead record waits.
pub fn segments_in_use(view: &impl View, shard: ShardId, segments: &[SegmentId]) -> Result<Vec<SegmentId>, ReadError> {
    let mut in_use = Vec::new();
    for &id in segments {
        if view.get(&session::key(shard, id.session))?.is_some()
            || view.get(&segment::use_key(shard, id))?.is_some()
            || view.get(&segment::dead_key(shard, id))?.is_some()
        {
            in_use.push(id);
        }
    }
    Ok(in_use)
}

/// Up to `limit` records of a range, parsed from key rest and value.
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
        match parse(&key[PREFIX_BYTES..], value) {
            Ok(item) => found.push(item),
            Err(error) => damage = Some(error),
        }
        if damage.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    damage.map_or(Ok(found), |error| Err(error.into()))
}
