//! The engine of one shard: the state between batches, and the driver of a batch.
//!
//! Not here: what a command does (`ops.rs`). Invariants: one write batch per [`Engine::apply`], with the applied mark in it;
//! after an error nothing is applied any more until the state is opened again.

use std::sync::Arc;

use pando_types::{Envelope, Generation, LogEntry, Reply, ShardId, Timestamp};

use crate::effect::Effect;
use crate::error::EngineError;
use crate::keys::shard::{self, State};
use crate::keys::slots::{self, Slots};
use crate::kv::{Kv, View};
use crate::locks::Locks;
use crate::ops;
use crate::txn::Txn;

/// A shard's engine over a node's store.
pub struct Engine<K: Kv> {
    kv: Arc<K>,
    shard: ShardId,
    state: Option<State>,
    slots: Slots,
    locks: Arc<Locks>,
    applied: Option<Vec<u8>>,
    halted: bool,
}

/// What a batch did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// Per entry, per command.
    pub replies: Vec<Vec<Reply>>,
    /// What the leader does next, in order.
    pub effects: Vec<Effect>,
}

impl<K: Kv> Engine<K> {
    /// Reads where the shard stands. Writes nothing: the root directory comes with the first entry, at that entry's time.
    pub fn open(kv: Arc<K>, shard: ShardId) -> Result<Engine<K>, EngineError> {
        let view = kv.view();
        let state = view.get(&shard::state_key(shard))?.map(|value| State::decode(&value)).transpose()?;
        let applied = match view.get(&shard::applied_key(shard))? {
            Some(value) => Some(shard::decode_applied(&value)?.to_vec()),
            None => None,
        };
        let slots = view.get(&slots::key(shard))?.map(|value| Slots::decode(&value)).transpose()?.unwrap_or_default();
        let locks = Arc::new(Locks::open(&view, shard)?);
        drop(view);
        Ok(Engine { kv, shard, state, slots, locks, applied, halted: false })
    }

    /// The mark stored with the last batch.
    pub fn applied(&self) -> Option<&[u8]> {
        self.applied.as_deref()
    }

    /// The store, for views.
    pub fn kv(&self) -> &Arc<K> {
        &self.kv
    }

    /// Which shard this is.
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// The slots that the shard owns.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// What changes of several shards have locked here.
    pub fn locks(&self) -> &Arc<Locks> {
        &self.locks
    }

    /// Carries out entries in order and writes their effects and the mark as one batch. Without entries the mark alone.
    /// After an error this engine refuses everything ([`EngineError::Halted`]).
    pub fn apply(&mut self, mark: &[u8], entries: &[LogEntry]) -> Result<Applied, EngineError> {
        if self.halted {
            return Err(EngineError::Halted);
        }
        self.halted = true;
        let applied = self.try_apply(mark, entries)?;
        self.halted = false;
        Ok(applied)
    }

    fn try_apply(&mut self, mark: &[u8], entries: &[LogEntry]) -> Result<Applied, EngineError> {
        let view = self.kv.view();
        let mut txn = Txn::new(&view, self.shard, self.state, self.slots.clone(), self.locks.clone());
        let mut replies = Vec::with_capacity(entries.len());
        for entry in entries {
            if txn.begin_entry(entry.time, entry.generation) {
                ops::root(&mut txn)?;
            }
            let mut answers = Vec::with_capacity(entry.commands.len());
            for envelope in &entry.commands {
                answers.push(ops::apply(&mut txn, envelope)?);
            }
            replies.push(answers);
        }
        let finished = txn.finish(mark);
        drop(view);
        self.kv.write(finished.batch)?;
        self.state = finished.state;
        self.slots = finished.slots;
        self.locks = finished.locks;
        self.applied = Some(mark.to_vec());
        Ok(Applied { replies, effects: finished.effects })
    }
}

/// What a command would be answered on this view, if it came now, by a shard with these slots and locks. Nothing changes.
pub fn rehearse(
    view: &impl View,
    shard: ShardId,
    (slots, locks): (&Slots, &Arc<Locks>),
    envelope: &Envelope,
) -> Result<Reply, EngineError> {
    let state = view.get(&shard::state_key(shard))?.map(|value| State::decode(&value)).transpose()?;
    let mut txn = Txn::new(view, shard, state, slots.clone(), locks.clone());
    txn.begin_entry(Timestamp(i64::MIN), Generation::FIRST);
    ops::apply(&mut txn, envelope)
}
