//! What changes of several shards have locked here, and which of them were decided here: the records of `keys/intent.rs` in
//! memory.
//!
//! Not here: taking locks (`ops/intent.rs`). Invariant: the same as the records, at every batch's end.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use pando_types::intent::{IntentId, Lock};
use pando_types::{FileName, InodeId, OpId, ShardId};

use crate::error::EngineError;
use crate::keys::after;
use crate::keys::intent;
use crate::kv::{KvError, Record, View};

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Locks {
    names: BTreeMap<InodeId, BTreeMap<FileName, IntentId>>,
    inodes: BTreeMap<InodeId, IntentId>,
    places: BTreeMap<InodeId, BTreeSet<IntentId>>,
    held: BTreeMap<IntentId, Vec<Lock>>,
    decided: BTreeMap<IntentId, OpId>,
}

impl Locks {
    /// Reads them.
    pub(crate) fn open(view: &impl View, shard: ShardId) -> Result<Locks, EngineError> {
        let mut locks = Locks::default();
        for (key, value) in records(view, &intent::prefix(shard))? {
            let id = intent::parse(&key)?;
            locks.begin(id);
            intent::decode(&value)?.into_iter().for_each(|lock| locks.take(id, lock));
        }
        for (key, value) in records(view, &intent::decided_prefix(shard))? {
            locks.decide(intent::parse(&key)?, intent::decode_decided(&value)?.op);
        }
        Ok(locks)
    }

    /// Whether nothing is locked or decided here.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.decided.is_empty()
    }

    /// Whether what a name means may be about to change.
    pub fn is_name_locked(&self, parent: InodeId, name: &FileName) -> bool {
        self.names.get(&parent).is_some_and(|names| names.contains_key(name))
    }

    /// Whether what a name of a directory means may be about to change.
    pub fn has_names_in(&self, parent: InodeId) -> bool {
        self.names.contains_key(&parent)
    }

    /// Whether an inode's links may be about to change.
    pub fn is_inode_locked(&self, inode: InodeId) -> bool {
        self.inodes.contains_key(&inode)
    }

    /// Whether a directory must stay where it is.
    pub fn is_place_locked(&self, directory: InodeId) -> bool {
        self.places.contains_key(&directory)
    }

    /// The attempts that have locked something.
    pub fn intents(&self) -> impl Iterator<Item = IntentId> {
        self.held.keys().copied()
    }

    /// The changes that were decided here and are not finished, with whose they are; those given up are the leader's.
    pub fn decided(&self) -> impl Iterator<Item = (IntentId, OpId)> {
        self.decided.iter().map(|(id, op)| (*id, *op))
    }

    /// What an attempt has locked; `None` if it is not known.
    pub(crate) fn of(&self, id: IntentId) -> Option<&[Lock]> {
        self.held.get(&id).map(Vec::as_slice)
    }

    /// Whether another attempt stands in the way of this lock.
    pub(crate) fn refuses(&self, id: IntentId, lock: &Lock) -> bool {
        let other = |holder: Option<&IntentId>| holder.is_some_and(|holder| *holder != id);
        match lock {
            Lock::Name(parent, name) => {
                other(self.names.get(parent).and_then(|names| names.get(name))) || other(self.inodes.get(parent))
            }
            Lock::Inode(inode) => {
                let placed = self.places.get(inode).is_some_and(|holders| holders.iter().any(|holder| *holder != id));
                other(self.inodes.get(inode)) || placed
            }
            Lock::Place(inode) => other(self.inodes.get(inode)),
        }
    }

    /// An attempt is under way, whatever it locks.
    pub(crate) fn begin(&mut self, id: IntentId) {
        self.held.entry(id).or_default();
    }

    /// Takes a lock that nobody refuses; taking it again is harmless.
    pub(crate) fn take(&mut self, id: IntentId, lock: Lock) {
        let new = match &lock {
            Lock::Name(parent, name) => self.names.entry(*parent).or_default().insert(name.clone(), id).is_none(),
            Lock::Inode(inode) => self.inodes.insert(*inode, id).is_none(),
            Lock::Place(inode) => self.places.entry(*inode).or_default().insert(id),
        };
        let held = self.held.entry(id).or_default();
        if new {
            held.push(lock);
        }
    }

    /// Lets go of everything that an attempt has locked.
    pub(crate) fn release(&mut self, id: IntentId) {
        for lock in self.held.remove(&id).unwrap_or_default() {
            match lock {
                Lock::Name(parent, name) => {
                    let names = self.names.entry(parent).or_default();
                    names.remove(&name);
                    if names.is_empty() {
                        self.names.remove(&parent);
                    }
                }
                Lock::Inode(inode) => drop(self.inodes.remove(&inode)),
                Lock::Place(inode) => {
                    let holders = self.places.entry(inode).or_default();
                    holders.remove(&id);
                    if holders.is_empty() {
                        self.places.remove(&inode);
                    }
                }
            }
        }
    }

    pub(crate) fn decide(&mut self, id: IntentId, op: OpId) {
        self.decided.insert(id, op);
    }

    pub(crate) fn forget(&mut self, id: IntentId) {
        self.decided.remove(&id);
    }
}

/// Few: one per change under way.
fn records(view: &impl View, prefix: &[u8]) -> Result<Vec<Record>, KvError> {
    let mut records = Vec::new();
    view.scan(prefix, &after(prefix), &mut |key, value| {
        records.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })?;
    Ok(records)
}
