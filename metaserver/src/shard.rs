//! One shard's replica on this node: Raft group, engine and sessions; the only place where the three meet.
//!
//! The group decides the order of log entries, the [`Replica`] applies them with the engine and hands the effects to the
//! leader's collectors (`gc.rs`). Not here: what a command does (engine), batching (`propose.rs`), reads (`read.rs`).
//! Invariants: an engine error halts this replica, never the process; effects may be lost, since collectors scan for the
//! same work again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pando_engine::keys::removed;
use pando_engine::keys::slots::Slots;
use pando_engine::kv::Batch;
use pando_engine::kv::rocks::RocksKv;
use pando_engine::{Effect, Engine, EngineError, Kv, Locks, read};
use pando_raft::{Flusher, Group, Host, ImageSource, Machine, MachineError, Peers, ProposeError, RaftError};
use pando_types::intent::IntentId;
use pando_types::limits::EFFECTS_QUEUED_MAX;
use pando_types::{LogEntry, NodeId, Reply, ShardId, codec};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::error;

use crate::cluster::Cluster;
use crate::propose::{self, Proposer};
use crate::sessions;

mod image;

/// A shard of one replica has its leader at once; one of several within an election.
const LEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// A shard could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// The state cannot be read.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The shard map in the state cannot be read.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The group did not start.
    #[error(transparent)]
    Raft(#[from] RaftError),
    /// The first entry was not taken.
    #[error("the first log entry of shard {shard} failed: {source}")]
    FirstEntry {
        /// Which shard.
        shard: ShardId,
        /// Why.
        source: ProposeError,
    },
}

/// A started shard.
pub struct Shard {
    /// Which.
    pub(crate) id: ShardId,
    pub(crate) group: Group,
    pub(crate) kv: Arc<RocksKv>,
    pub(crate) proposer: Proposer,
    pub(crate) sessions: sessions::Table,
    territory: watch::Receiver<Arc<Territory>>,
    /// Attempts at changes of several shards that were begun here.
    attempts: AtomicU64,
}

/// What a started shard leaves running.
pub struct Running {
    /// The shard.
    pub shard: Arc<Shard>,
    /// What the engine wants the leader to do.
    pub effects: mpsc::Receiver<Effect>,
    /// Serves the proposer; ends when the shard is dropped.
    pub proposing: JoinHandle<()>,
}

impl Shard {
    /// Opens the shard's state in the node's store and starts its group's replica. It takes up where it stopped; a new one
    /// waits for the leader, or for [`Shard::found`].
    pub async fn start(
        host: &Host,
        id: ShardId,
        cluster: Arc<Cluster>,
        peers: Arc<dyn Peers>,
        kv: Arc<RocksKv>,
    ) -> Result<Running, ShardError> {
        let (effects_to, effects) = mpsc::channel(EFFECTS_QUEUED_MAX);
        let node = cluster.node;
        let (territory, known) = watch::channel(Arc::default());
        let replica = Replica { engine: Engine::open(kv.clone(), id)?, territory, effects: effects_to, cluster };
        replica.publish();
        replica.adopt_map()?;
        let group = host.start(id, node, replica, peers).await?;
        let (proposer, proposing) = Proposer::start(group.clone());
        let shard = Arc::new(Shard {
            id,
            group,
            kv,
            proposer,
            sessions: sessions::Table::default(),
            territory: known,
            attempts: AtomicU64::new(0),
        });
        Ok(Running { shard, effects, proposing })
    }

    /// Makes this replica the first of its group: elected, with a root directory. Nothing new for one that was founded before.
    pub async fn found(&self, node: NodeId, address: &str) -> Result<(), ShardError> {
        self.group.initialize(BTreeMap::from([(node, address.to_string())])).await?;
        self.wait_leader().await?;
        let first = propose::propose_empty(&self.group).await;
        first.map_err(|source| ShardError::FirstEntry { shard: self.id, source })
    }

    /// Whether this replica knows the node as a member, named by this entry of the log or a later one.
    pub fn is_member(&self, node: NodeId, members_at: u64) -> bool {
        self.group.members().contains_key(&node) && self.group.members_at() >= Some(members_at)
    }

    /// What the shard has and what is locked of it, as far as this replica has applied its log.
    pub fn territory(&self) -> Arc<Territory> {
        self.territory.borrow().clone()
    }

    /// Waits until that is another one, for so long at most.
    pub async fn territory_changed(&self, before: &Arc<Territory>, patience: Duration) {
        self.wait_for(|territory| !Arc::ptr_eq(territory, before), patience).await;
    }

    /// Waits until it is as wanted; false if it is not in time.
    pub async fn wait_for(&self, wanted: impl FnMut(&Arc<Territory>) -> bool, patience: Duration) -> bool {
        let mut territory = self.territory.clone();
        tokio::time::timeout(patience, territory.wait_for(wanted)).await.is_ok_and(|found| found.is_ok())
    }

    /// Names an attempt at a change of several shards; for the leader.
    pub fn new_intent(&self) -> IntentId {
        let number = self.attempts.fetch_add(1, Ordering::Relaxed);
        IntentId { shard: self.id, term: self.group.term(), number }
    }

    /// Whether this replica is the only one.
    pub fn is_alone(&self, node: NodeId) -> bool {
        self.group.members().keys().eq([&node])
    }

    /// Waits until the shard has a leader.
    pub async fn wait_leader(&self) -> Result<(), ShardError> {
        self.group.wait_leader(LEADER_TIMEOUT).await?;
        Ok(())
    }
}

/// Removes what an earlier replica has left of a shard's state.
pub(crate) fn erase(kv: &Arc<RocksKv>, id: ShardId) -> Result<(), MachineError> {
    image::erase(kv, id)?;
    let mut batch = Batch::default();
    batch.delete(removed::key(id));
    kv.write(batch).map_err(MachineError::new)
}

/// Notes, durably, that log and state of this node's replica are to go.
pub(crate) fn note_removed(kv: &Arc<RocksKv>, id: ShardId) -> Result<(), MachineError> {
    let mut batch = Batch::default();
    batch.put(removed::key(id), removed::encode());
    kv.write(batch).and_then(|()| kv.flush()).map_err(MachineError::new)
}

/// What a shard has, and what changes under way have locked of it, as its log says.
#[derive(Debug, Default)]
pub(crate) struct Territory {
    pub slots: Slots,
    pub locks: Arc<Locks>,
}

/// The shard's state machine, driven by its group.
struct Replica {
    engine: Engine<RocksKv>,
    territory: watch::Sender<Arc<Territory>>,
    effects: mpsc::Sender<Effect>,
    cluster: Arc<Cluster>,
}

impl Replica {
    /// Every replica of shard 0 lets its node know the map.
    fn adopt_map(&self) -> Result<(), MachineError> {
        if let Some(map) = read::shard_map(&self.engine.kv().view()).map_err(MachineError::new)? {
            self.cluster.adopt(map);
        }
        Ok(())
    }

    /// Lets readers know what is theirs to read. After the write: who sees no lock reads what came of it.
    fn publish(&self) {
        let (slots, locks) = (self.engine.slots(), self.engine.locks());
        self.territory.send_if_modified(|known| {
            let changed = known.slots != *slots || !Arc::ptr_eq(&known.locks, locks);
            if changed {
                *known = Arc::new(Territory { slots: slots.clone(), locks: locks.clone() });
            }
            changed
        });
    }
}

impl Machine for Replica {
    fn applied(&self) -> Option<Vec<u8>> {
        self.engine.applied().map(<[u8]>::to_vec)
    }

    fn apply(&mut self, mark: &[u8], payloads: &[Bytes]) -> Result<Vec<Bytes>, MachineError> {
        let entries = payloads.iter().map(|p| codec::decode(p)).collect::<Result<Vec<LogEntry>, _>>();
        let applied = entries
            .map_err(MachineError::new)
            .and_then(|entries| self.engine.apply(mark, &entries).map_err(MachineError::new))
            .inspect_err(|error| error!(shard = %self.engine.shard(), %error, "this shard's replica halts"))?;
        self.publish();
        if applied.effects.contains(&Effect::ShardMapChanged) {
            self.adopt_map()?;
        }
        if applied.effects.iter().any(|effect| matches!(effect, Effect::Split(_))) {
            self.cluster.split.notify_one();
        }
        for effect in applied.effects {
            if self.effects.try_send(effect).is_err() {
                break;
            }
        }
        Ok(applied.replies.iter().map(|replies: &Vec<Reply>| codec::encode(replies).into()).collect())
    }

    fn flush(&mut self) -> Result<(), MachineError> {
        self.engine.kv().flush().map_err(MachineError::new)
    }

    fn flusher(&mut self) -> Option<Flusher> {
        let kv = self.engine.kv().clone();
        Some(Box::new(move || kv.flush().map_err(MachineError::new)))
    }

    fn write_image(&mut self) -> Result<Box<dyn ImageSource>, MachineError> {
        image::write(self.engine.kv().clone(), self.engine.shard())
    }

    fn read_image(
        &mut self,
        mark: &[u8],
        chunks: &mut dyn Iterator<Item = Result<Bytes, MachineError>>,
    ) -> Result<(), MachineError> {
        image::read(self.engine.kv(), self.engine.shard(), chunks)?;
        self.engine = Engine::open(self.engine.kv().clone(), self.engine.shard()).map_err(MachineError::new)?;
        // The mark comes last: a crash before it leaves a state without one, and the image is read again.
        self.engine.apply(mark, &[]).map_err(MachineError::new)?;
        self.publish();
        self.adopt_map()
    }
}
