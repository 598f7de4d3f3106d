//! Every invariant of a shard's whole state, checked over a view. Used by tests, simulation and `pando fsck`.
//!
//! One pass over all keys with point reads, so that memory is a few bits per inode and a slot's segments, not the tree.
//! It repairs nothing. It looks at the slots that the shard owns, and at its own records.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use pando_types::request::FsckReport;
use pando_types::{InodeId, SegmentId, ShardId, SlotId};

use crate::error::{Corrupt, EngineError, ReadError};
use crate::keys::inode::Inode;
use crate::keys::shard::State;
use crate::keys::slots::Slots;
use crate::keys::usage::Usage;
use crate::keys::{self, KeyKind, SHARD_SLOT, counter};
use crate::kv::{KvError, View};

mod bits;
mod inodes;
mod names;
mod records;

/// Most problems that a report lists.
const PROBLEMS_MAX: usize = 1000;

/// Checks everything. Problems are in the report; an error means that the check itself could not go on.
pub fn fsck(view: &impl View, shard: ShardId) -> Result<FsckReport, ReadError> {
    let mut check = Check::new(view, shard);
    check.slots = crate::read::slots(view, shard)?;
    let state = view.get(&keys::shard::state_key(shard))?;
    match state.as_deref().map(State::decode).transpose() {
        Ok(state) => check.state = state,
        Err(error) => check.problem(error.0),
    }
    for (from, to) in keys::of_owner(&check.slots.clone(), shard) {
        let mut failure = None;
        view.scan(&from, &to, &mut |key, value| match check.record(key, value) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        })?;
        if let Some(error) = failure {
            return Err(error.into());
        }
    }
    check.end_slot();
    check.end()?;
    Ok(check.report)
}

/// The check under way.
struct Check<'v, V: View> {
    view: &'v V,
    shard: ShardId,
    slots: Slots,
    report: FsckReport,
    state: Option<State>,
    /// The slot that the pass is in, its next sequence and the bytes of its segments that extents refer to.
    slot: u32,
    next: u64,
    live: BTreeMap<SegmentId, u64>,
    /// The inode whose records the pass is in.
    owner: Option<(InodeId, Option<Inode>)>,
    /// Inodes that have links, directories, and inodes whose first dentry was seen.
    linked: bits::Bits,
    directories: bits::Bits,
    named: bits::Bits,
    bytes: u64,
    /// What the slot's usage says less what was found in it.
    usage: Usage,
    found: Usage,
}

impl<'v, V: View> Check<'v, V> {
    fn new(view: &'v V, shard: ShardId) -> Check<'v, V> {
        Check {
            view,
            shard,
            slots: Slots::default(),
            report: FsckReport::default(),
            state: None,
            slot: 0,
            next: counter::first(SlotId(0)),
            live: BTreeMap::new(),
            owner: None,
            linked: bits::Bits::default(),
            directories: bits::Bits::default(),
            named: bits::Bits::default(),
            bytes: 0,
            usage: Usage::default(),
            found: Usage::default(),
        }
    }

    fn problem(&mut self, sentence: String) {
        if self.report.problems.len() < PROBLEMS_MAX {
            self.report.problems.push(sentence);
        }
    }

    /// Notes a broken rule.
    fn expect(&mut self, holds: bool, sentence: impl FnOnce() -> String) {
        if !holds {
            self.problem(sentence());
        }
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), KvError> {
        match self.known_record(key, value) {
            Ok(()) => Ok(()),
            Err(EngineError::Kv(error)) => Err(error),
            Err(other) => {
                self.problem(format!("record \"{}\": {other}", key.escape_ascii()));
                Ok(())
            }
        }
    }

    fn known_record(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        let (slot, kind, id, rest) = keys::split(key)?;
        if slot != self.slot {
            self.begin_slot(slot);
        }
        let of_shard = kind >= KeyKind::State;
        if of_shard != (slot == SHARD_SLOT) || (!of_shard && slot >= SlotId::COUNT) {
            return Err(Corrupt("it lies in a slot where its kind has no place".into()).into());
        }
        if of_shard && id != u64::from(self.shard.0) {
            return Err(Corrupt(format!("it is of shard {id}")).into());
        }
        match kind {
            KeyKind::Counter => self.next = counter::decode(value)?,
            KeyKind::Usage => self.usage = Usage::decode(value)?,
            KeyKind::Inode => self.inode(InodeId(id), value)?,
            KeyKind::Dentry => self.dentry(key, value)?,
            KeyKind::Extent | KeyKind::Xattr => self.owned(kind, key)?,
            KeyKind::Backlink => self.backlink(key)?,
            KeyKind::Orphan => self.orphan(InodeId(id), value)?,
            KeyKind::Segment => self.segment(key, value)?,
            KeyKind::DeadSegment => self.dead_segment(key, value)?,
            KeyKind::OrphanOf => self.orphan_of(key)?,
            KeyKind::State | KeyKind::Applied => {}
            KeyKind::Session => self.session(rest, value)?,
            KeyKind::OpResult => self.op_result(rest, value)?,
            KeyKind::ShardMap => drop(keys::shard_map::decode(value)?),
            KeyKind::Slots => drop(Slots::decode(value)?),
            KeyKind::Removed => {}
            KeyKind::Intent => drop((keys::intent::parse(key)?, keys::intent::decode(value)?)),
            KeyKind::Decided => drop((keys::intent::parse(key)?, keys::intent::decode_decided(value)?)),
        }
        Ok(())
    }

    fn begin_slot(&mut self, slot: u32) {
        self.end_slot();
        self.slot = slot;
        self.next = counter::first(SlotId(slot));
    }

    fn end_slot(&mut self) {
        let slot = self.slot;
        for (id, bytes) in std::mem::take(&mut self.live) {
            self.problem(format!("segment {id} has {bytes} bytes of extents in slot {slot} and no record"));
        }
        let (usage, found) = (std::mem::take(&mut self.usage), std::mem::take(&mut self.found));
        self.expect(usage == found, || {
            let Usage { inodes, bytes } = found;
            format!(
                "slot {slot} says {} inodes and {} bytes, there are {inodes} and {bytes}",
                usage.inodes, usage.bytes
            )
        });
    }

    fn end(&mut self) -> Result<(), KvError> {
        self.end_names()?;
        let (inodes, bytes) = (self.report.inodes, self.bytes);
        match self.state {
            Some(state) => self.expect((state.inodes, state.bytes) == (inodes, bytes), || {
                format!("totals are {} inodes and {} bytes, there are {inodes} and {bytes}", state.inodes, state.bytes)
            }),
            None => self.expect(inodes == 0, || format!("there are {inodes} inodes and no shard state")),
        }
        let rooted = self.state.is_none() || self.shard != ShardId(0) || self.directories.has(InodeId::ROOT.0);
        self.expect(rooted, || "there is no root directory".into());
        Ok(())
    }
}

#[cfg(test)]
#[path = "fsck/fsck_test.rs"]
mod tests;
