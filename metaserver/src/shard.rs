//! One shard's replica on this node: Raft group, engine and sessions; the only place where the three meet.
//!
//! The group decides the order of log entries, the [`Replica`] applies them with the engine and hands the effects to the
//! leader's collectors (`gc.rs`). Not here: what a command does (engine), batching (`propose.rs`), reads (`read.rs`).
//! Invariants: an engine error halts this replica, never the process; effects may be lost, since collectors scan for the
//! same work again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pando_engine::kv::rocks::RocksKv;
use pando_engine::{Effect, Engine, EngineError, Kv, read};
use pando_raft::{Flusher, Group, Host, ImageSource, Machine, MachineError, Peers, ProposeError, RaftError};
use pando_types::limits::EFFECTS_QUEUED_MAX;
use pando_types::shard_map::SlotRange;
use pando_types::{LogEntry, NodeId, Reply, ShardId, SlotId, codec};
use tokio::sync::mpsc;
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
        let slots = slots_of(id);
        let node = cluster.node;
        let replica = Replica { engine: Engine::open(kv.clone(), id)?, slots, effects: effects_to, cluster };
        replica.adopt_map()?;
        let group = host.start(id, node, replica, peers).await?;
        let (proposer, proposing) = Proposer::start(group.clone());
        let shard = Arc::new(Shard { id, group, kv, proposer, sessions: sessions::Table::default() });
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
    image::erase(kv, &slots_of(id))
}

/// The slots of a shard: all of them, while there is one.
fn slots_of(id: ShardId) -> SlotRange {
    SlotRange { first: SlotId(0), last: SlotId(SlotId::COUNT - 1), shard: id }
}

/// The shard's state machine, driven by its group.
struct Replica {
    engine: Engine<RocksKv>,
    slots: SlotRange,
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
        if applied.effects.contains(&Effect::ShardMapChanged) {
            self.adopt_map()?;
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
        image::write(self.engine.kv().clone(), &self.slots)
    }

    fn read_image(
        &mut self,
        mark: &[u8],
        chunks: &mut dyn Iterator<Item = Result<Bytes, MachineError>>,
    ) -> Result<(), MachineError> {
        image::read(self.engine.kv(), &self.slots, chunks)?;
        self.engine = Engine::open(self.engine.kv().clone(), self.slots.shard).map_err(MachineError::new)?;
        // The mark comes last: a crash before it leaves a state without one, and the image is read again.
        self.engine.apply(mark, &[]).map_err(MachineError::new)?;
        self.adopt_map()
    }
}
