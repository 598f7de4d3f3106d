//! What a change that touches several shards knows of the others, and leaves to them.
//!
//! Invariant: nothing of another shard is read or written here; what is not known is asked for.

use std::collections::BTreeMap;

use pando_types::intent::{Fact, Step};
use pando_types::{FileKind, FileName, InodeId, ShardId, SlotId};

use crate::error::Corrupt;
use crate::keys::inode::Head;

/// See the module.
#[derive(Default)]
pub(crate) struct Abroad {
    names: BTreeMap<(InodeId, FileName), Option<(InodeId, FileKind)>>,
    inodes: BTreeMap<InodeId, Option<Head>>,
    new: BTreeMap<SlotId, InodeId>,
    shards: BTreeMap<SlotId, ShardId>,
    steps: Vec<Step>,
}

impl Abroad {
    /// What the other shards have told.
    pub fn new(told: &[(ShardId, Vec<Fact>)]) -> Result<Abroad, Corrupt> {
        let mut abroad = Abroad::default();
        for (shard, facts) in told {
            for fact in facts {
                let slot = abroad.learn(fact)?;
                abroad.shards.insert(slot, *shard);
            }
        }
        Ok(abroad)
    }

    fn learn(&mut self, fact: &Fact) -> Result<SlotId, Corrupt> {
        match fact {
            Fact::Name { parent, name, entry } => {
                self.names.insert((*parent, name.clone()), *entry);
                Ok(parent.slot())
            }
            Fact::Inode { inode, record } => {
                let head = record.as_ref().map(|record| Head::decode(record)).transpose()?;
                self.inodes.insert(*inode, head.map(|(head, _)| head));
                Ok(inode.slot())
            }
            Fact::NewDirectory(inode) => {
                self.new.insert(inode.slot(), *inode);
                Ok(inode.slot())
            }
        }
    }

    /// What a name means, if that is known.
    pub fn name(&self, parent: InodeId, name: &FileName) -> Option<Option<(InodeId, FileKind)>> {
        self.names.get(&(parent, name.clone())).copied()
    }

    /// An inode, if it is known whether it exists.
    pub fn inode(&self, inode: InodeId) -> Option<Option<Head>> {
        self.inodes.get(&inode).copied()
    }

    /// An inode as it will be.
    pub fn inode_mut(&mut self, inode: InodeId) -> Option<&mut Head> {
        self.inodes.get_mut(&inode).and_then(Option::as_mut)
    }

    /// The id that a new directory in the slot gets, if there is one.
    pub fn new_directory(&self, slot: SlotId) -> Option<InodeId> {
        self.new.get(&slot).copied()
    }

    /// Leaves something to another shard.
    pub fn step(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// What is left to each shard that was asked, in the order in which it was left.
    pub fn into_steps(self, told: &[(ShardId, Vec<Fact>)]) -> Result<Vec<(ShardId, Vec<Step>)>, Corrupt> {
        let mut all: BTreeMap<ShardId, Vec<Step>> = told.iter().map(|(shard, _)| (*shard, Vec::new())).collect();
        for step in self.steps {
            let shard = self.shards.get(&step.slot());
            let steps = shard.and_then(|shard| all.get_mut(shard));
            let unasked = || Corrupt(format!("a change leaves something to slot {}, which was not asked", step.slot()));
            steps.ok_or_else(unasked)?.push(step);
        }
        Ok(all.into_iter().collect())
    }
}
