//! One batch in the making: staged writes over a view, reads see them.
//!
//! Inodes, counters, sessions and totals are kept decoded and written once, at [`Txn::finish`]. Operations check everything before they
//! stage anything, so that a refused one leaves nothing behind. Invariant: what is staged depends on the entries
//! alone, not on how they were cut into batches; so births are set when a record changes, not when it is written.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};
use std::ops::ControlFlow;
use std::sync::Arc;

use pando_types::{Generation, InodeId, ShardId, SlotId, Timestamp};

use crate::effect::Effect;
use crate::error::{Corrupt, EngineError};
use crate::keys::inode::{self, Head, Inode};
use crate::keys::shard::{self, State};
use crate::keys::slots::{self, Slots};
use crate::keys::usage::{self, Usage};
use crate::keys::{counter, layout};
use crate::kv::{Batch, Record, View};
use crate::locks::Locks;

mod abroad;
mod sessions;

pub(crate) use abroad::Abroad;
pub(crate) use sessions::Admission;

/// See the module.
pub(crate) struct Txn<'v, V: View> {
    view: &'v V,
    shard: ShardId,
    fresh: bool,
    state: State,
    now: Timestamp,
    staged: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    inodes: BTreeMap<InodeId, Cached>,
    counters: BTreeMap<SlotId, Counter>,
    usages: BTreeMap<SlotId, Usage>,
    slots: Slots,
    locks: Arc<Locks>,
    /// Of the command under way.
    pub abroad: Abroad,
    sessions: sessions::Cache,
    effects: Vec<Effect>,
}

/// An inode as this batch knows it.
struct Cached {
    inode: Option<Inode>,
    dirty: bool,
}

struct Counter {
    next: u64,
    dirty: bool,
}

/// What [`Txn::finish`] leaves.
pub(crate) struct Finished {
    pub batch: Batch,
    pub state: Option<State>,
    pub slots: Slots,
    pub locks: Arc<Locks>,
    pub effects: Vec<Effect>,
}

impl<'v, V: View> Txn<'v, V> {
    /// Begins a batch; `state` is `None` before the shard's first entry.
    pub fn new(view: &'v V, shard: ShardId, state: Option<State>, slots: Slots, locks: Arc<Locks>) -> Txn<'v, V> {
        Txn {
            view,
            shard,
            fresh: state.is_none(),
            state: state.unwrap_or(State::EMPTY),
            now: Timestamp::default(),
            staged: BTreeMap::new(),
            inodes: BTreeMap::new(),
            counters: BTreeMap::new(),
            usages: BTreeMap::new(),
            slots,
            locks,
            abroad: Abroad::default(),
            sessions: sessions::Cache::default(),
            effects: Vec::new(),
        }
    }

    /// Moves the shard's clocks to an entry's stamp; neither goes back. Tells whether it is the shard's first entry.
    pub fn begin_entry(&mut self, time: Timestamp, generation: Generation) -> bool {
        self.state.time = self.state.time.max(time);
        self.state.generation = self.state.generation.max(generation);
        self.now = self.state.time;
        std::mem::take(&mut self.fresh)
    }

    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// Whether a slot is the shard's.
    pub fn owns(&self, slot: SlotId) -> bool {
        self.slots.has(slot)
    }

    /// What changes under way have locked.
    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// The same, to be changed.
    pub fn locks_mut(&mut self) -> &mut Locks {
        Arc::make_mut(&mut self.locks)
    }

    /// The slots that are the shard's.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// The shard has these slots from now on.
    pub fn set_slots(&mut self, slots: Slots) {
        self.staged.insert(slots::key(self.shard), Some(slots.encode()));
        self.slots = slots;
    }

    pub fn now(&self) -> Timestamp {
        self.now
    }

    pub fn generation(&self) -> Generation {
        self.state.generation
    }

    pub fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// A record's value.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        match self.staged.get(key) {
            Some(staged) => Ok(staged.clone()),
            None => Ok(self.view.get(key)?),
        }
    }

    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.staged.insert(key, Some(value));
    }

    pub fn delete(&mut self, key: Vec<u8>) {
        self.staged.insert(key, None);
    }

    /// Up to `limit` records of `[from, to)`, parsed in key order. Not for inodes, counters and sessions.
    pub fn scan<T>(
        &self,
        from: &[u8],
        to: &[u8],
        limit: usize,
        parse: impl Fn(&[u8], &[u8]) -> Result<T, Corrupt>,
    ) -> Result<Vec<T>, EngineError> {
        let mut found = Vec::new();
        if from >= to {
            return Ok(found);
        }
        let mut damage: Option<Corrupt> = None;
        let mut take = |found: &mut Vec<T>, key: &[u8], value: &[u8]| match parse(key, value) {
            Ok(item) => found.push(item),
            Err(error) => damage = Some(error),
        };
        let mut staged = self.staged.range::<[u8], _>((Included(from), Excluded(to))).peekable();
        if limit > 0 {
            self.view.scan(from, to, &mut |key, value| {
                while let Some((earlier, change)) = staged.next_if(|(staged, _)| staged.as_slice() < key) {
                    change.iter().for_each(|value| take(&mut found, earlier, value));
                }
                match staged.next_if(|(staged, _)| staged.as_slice() == key) {
                    Some((_, change)) => change.iter().for_each(|value| take(&mut found, key, value)),
                    None => take(&mut found, key, value),
                }
                if found.len() >= limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
        }
        for (key, change) in staged {
            change.iter().for_each(|value| take(&mut found, key, value));
        }
        found.truncate(limit);
        damage.map_or(Ok(found), |error| Err(error.into()))
    }

    /// The last record of `[from, to)`.
    pub fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<Record>, EngineError> {
        let mut to = to.to_vec();
        while from < to.as_slice() {
            let staged = self.staged.range::<[u8], _>((Included(from), Excluded(to.as_slice()))).next_back();
            let stored = self.view.last(from, &to)?;
            match (staged, stored) {
                (Some((key, change)), stored) if stored.as_ref().is_none_or(|(old, _)| old <= key) => match change {
                    Some(value) => return Ok(Some((key.clone(), value.clone()))),
                    None => to = key.clone(),
                },
                (_, stored) => return Ok(stored),
            }
        }
        Ok(None)
    }

    /// An inode, if it exists.
    pub fn inode(&mut self, id: InodeId) -> Result<Option<&Inode>, EngineError> {
        self.load(id).map(|cached| cached.inode.as_ref())
    }

    /// The fixed part of an inode, if it exists.
    pub fn head(&mut self, id: InodeId) -> Result<Option<Head>, EngineError> {
        self.inode(id).map(|inode| inode.map(|inode| inode.head))
    }

    /// An inode that must exist, to be changed. Its bytes are accounted by [`Txn::allocate`] alone.
    pub fn inode_mut(&mut self, id: InodeId) -> Result<&mut Inode, EngineError> {
        let birth = self.generation();
        let cached = self.load(id)?;
        cached.dirty = true;
        let inode =
            cached.inode.as_mut().ok_or_else(|| Corrupt(format!("inode {id} is referred to and does not exist")))?;
        inode.head.birth = birth;
        Ok(inode)
    }

    /// Changes the bytes that a file occupies.
    pub fn allocate(&mut self, id: InodeId, more: u64, less: u64) -> Result<(), EngineError> {
        let wrong = || Corrupt(format!("inode {id} occupies less than the extents it loses"));
        let head = &mut self.inode_mut(id)?.head;
        head.allocated = (head.allocated + more).checked_sub(less).ok_or_else(wrong)?;
        self.state.bytes = (self.state.bytes + more).checked_sub(less).ok_or_else(wrong)?;
        let usage = self.usage(id.slot())?;
        usage.bytes = (usage.bytes + more).checked_sub(less).ok_or_else(wrong)?;
        Ok(())
    }

    /// Adds a new inode, which occupies nothing yet.
    pub fn insert(&mut self, id: InodeId, inode: Inode) -> Result<(), EngineError> {
        self.state.inodes += 1;
        self.usage(id.slot())?.inodes += 1;
        self.inodes.insert(id, Cached { inode: Some(inode), dirty: true });
        Ok(())
    }

    /// Removes an inode, whose extents, xattrs and names are gone.
    pub fn remove(&mut self, id: InodeId) -> Result<(), EngineError> {
        let allocated = self.inode_mut(id)?.head.allocated;
        self.allocate(id, 0, allocated)?;
        let wrong = || Corrupt("there are more inodes than the total".into());
        self.state.inodes = self.state.inodes.checked_sub(1).ok_or_else(wrong)?;
        let usage = self.usage(id.slot())?;
        usage.inodes = usage.inodes.checked_sub(1).ok_or_else(wrong)?;
        self.inodes.insert(id, Cached { inode: None, dirty: true });
        Ok(())
    }

    fn load(&mut self, id: InodeId) -> Result<&mut Cached, EngineError> {
        use std::collections::btree_map::Entry;
        match self.inodes.entry(id) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let inode = self.view.get(&inode::key(id))?.map(|value| Inode::decode(&value)).transpose()?;
                Ok(entry.insert(Cached { inode, dirty: false }))
            }
        }
    }

    /// The first slot from `first` to `last` that has anything.
    pub fn next_slot(&self, first: SlotId, last: SlotId) -> Result<Option<SlotId>, EngineError> {
        let mut found = self.usages.range(first..=last).next().map(|(slot, _)| *slot);
        self.view.scan(&first.0.to_be_bytes(), &(last.0 + 1).to_be_bytes(), &mut |key, _| {
            let stored = key.first_chunk().map(|slot| SlotId(u32::from_be_bytes(*slot)));
            found = found.into_iter().chain(stored).min();
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// Hands what this slot holds to another shard's totals: what it is.
    pub fn give(&mut self, slot: SlotId) -> Result<Usage, EngineError> {
        let usage = *self.usage(slot)?;
        let wrong = || Corrupt(format!("slot {slot} has more than its shard"));
        self.state.inodes = self.state.inodes.checked_sub(usage.inodes).ok_or_else(wrong)?;
        self.state.bytes = self.state.bytes.checked_sub(usage.bytes).ok_or_else(wrong)?;
        Ok(usage)
    }

    /// Clocks and totals.
    pub fn state(&self) -> State {
        self.state
    }

    /// A slot's usage, to be changed.
    fn usage(&mut self, slot: SlotId) -> Result<&mut Usage, EngineError> {
        use std::collections::btree_map::Entry;
        match self.usages.entry(slot) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let stored = self.view.get(&usage::key(slot))?.map(|value| Usage::decode(&value)).transpose()?;
                Ok(entry.insert(stored.unwrap_or_default()))
            }
        }
    }

    /// The next inode id of a slot, or `None` when the slot has given out all.
    pub fn next_inode(&mut self, slot: SlotId) -> Result<Option<InodeId>, EngineError> {
        if !self.counters.contains_key(&slot) {
            let stored = self.view.get(&counter::key(slot))?;
            let next = stored.map_or(Ok(counter::first(slot)), |value| counter::decode(&value))?;
            self.counters.insert(slot, Counter { next, dirty: false });
        }
        let counter = self.counters.get_mut(&slot).expect("it was just put there");
        if counter.next >> InodeId::SEQUENCE_BITS != 0 {
            return Ok(None);
        }
        let id = InodeId::new(slot, counter.next);
        *counter = Counter { next: counter.next + 1, dirty: true };
        Ok(Some(id))
    }

    /// Everything staged as one batch in key order, with the applied mark.
    pub fn finish(mut self, mark: &[u8]) -> Finished {
        self.stage_sessions();
        let mut staged = self.staged;
        for (id, cached) in self.inodes.into_iter().filter(|(_, cached)| cached.dirty) {
            staged.insert(inode::key(id), cached.inode.map(|inode| inode.encode()));
        }
        for (slot, counter) in self.counters.into_iter().filter(|(_, counter)| counter.dirty) {
            staged.insert(counter::key(slot), Some(counter::encode(counter.next)));
        }
        for (slot, usage) in self.usages {
            staged.insert(usage::key(slot), Some(usage.encode()));
        }
        let state = (!self.fresh).then_some(self.state);
        if let Some(state) = &state {
            staged.insert(shard::state_key(self.shard), Some(state.encode()));
        }
        staged.insert(shard::applied_key(self.shard), Some(shard::encode_applied(mark)));
        debug_assert!(staged.values().flatten().all(|value| value.first() == Some(&layout::VERSION)));
        let mut batch = Batch::default();
        for (key, value) in staged {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        Finished { batch, state, slots: self.slots, locks: self.locks, effects: self.effects }
    }
}

#[cfg(test)]
#[path = "txn/txn_test.rs"]
mod tests;
