//! The shard replicas of this node: started, found, stopped.
//!
//! Not here: which replicas a node should have (`placement/`). Invariant: a replica's tasks end before its group is stopped.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use pando_engine::keys::slots::Slots;
use pando_engine::kv::rocks::RocksKv;
use pando_engine::{Kv, read};
use pando_raft::{Host, MachineError, PeerAnswer, RaftError};
use pando_segments::Store;
use pando_types::request::{Replica, Request, Response};
use pando_types::{FsError, ShardId};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::cluster::Cluster;
use crate::gc::Collector;
use crate::peers::Nodes;
use crate::sessions;
use crate::shard::{self, Running, Shard, ShardError};
use crate::tasks::Tasks;

/// Between two tries to start what a split has begun.
const SPLIT_RETRY: Duration = Duration::from_millis(500);
/// The proposals still under way when the server stops get this long.
const PROPOSALS_GRACE: Duration = Duration::from_secs(5);
/// Those of a replica that is no member any more: they cannot succeed.
const FORMER_GRACE: Duration = Duration::from_millis(200);

/// See the module.
pub(crate) struct Replicas {
    pub cluster: Arc<Cluster>,
    pub nodes: Arc<Nodes>,
    pub host: Host,
    pub kv: Arc<RocksKv>,
    pub store: Store,
    /// Silence after which a session is ended.
    pub session_ttl: Duration,
    pub running: RwLock<BTreeMap<ShardId, Entry>>,
    /// One replica is started or stopped at a time.
    pub changing: Mutex<()>,
}

/// A running replica.
pub(crate) struct Entry {
    shard: Arc<Shard>,
    collector: Arc<Collector>,
    tasks: Tasks,
    proposing: JoinHandle<()>,
}

fn unavailable(error: &dyn std::fmt::Display) -> FsError {
    FsError::unavailable(error.to_string())
}

/// Starts what splits have begun; works until it is dropped.
pub(crate) async fn follow_splits(replicas: Arc<Replicas>) {
    loop {
        replicas.cluster.split.notified().await;
        while let Err(error) = replicas.start_split().await {
            warn!(%error, "a new shard's replica cannot be started yet");
            tokio::time::sleep(SPLIT_RETRY).await;
        }
    }
}

impl Replicas {
    /// The replica of a shard.
    pub fn shard(&self, id: ShardId) -> Option<Arc<Shard>> {
        self.read(|running| running.get(&id).map(|entry| entry.shard.clone()))
    }

    /// All of them.
    pub fn shards(&self) -> Vec<Arc<Shard>> {
        self.read(|running| running.values().map(|entry| entry.shard.clone()).collect())
    }

    /// What collects the garbage of a shard.
    pub fn collector(&self, id: ShardId) -> Option<Arc<Collector>> {
        self.read(|running| running.get(&id).map(|entry| entry.collector.clone()))
    }

    /// What other nodes may know of them.
    pub fn list(&self) -> Vec<Replica> {
        let replica = |shard: &Arc<Shard>| Replica {
            shard: shard.id,
            leader: shard.group.leader(),
            term: shard.group.term(),
            applied: shard.group.applied_index(),
            voters: shard.group.voters(),
            working: shard.group.is_working(),
        };
        self.shards().iter().map(replica).collect()
    }

    /// Asks whoever leads a shard; a replica of it here may know.
    pub async fn ask_shard(&self, shard: ShardId, request: Request) -> Result<Response, FsError> {
        let hint = self.shard(shard).and_then(|shard| shard.group.leader()).filter(|node| *node != self.cluster.node);
        self.nodes.ask_shard(shard, hint, request).await
    }

    /// A message for a replica here.
    pub async fn receive(&self, shard: ShardId, message: &[u8]) -> PeerAnswer {
        self.host.receive(shard, message).await
    }

    /// Starts a replica of a shard that this node is new to, unless it runs already. `slots`: what the shard has; refused
    /// as unavailable while a replica here has not got so far as to have handed them over.
    pub async fn start_new(&self, id: ShardId, slots: &Slots) -> Result<(), FsError> {
        let _alone = self.changing.lock().await;
        if self.shard(id).is_none() && !self.host.recorded().map_err(|e| unavailable(&e))?.contains(&id) {
            if let Some(other) = self.shards().iter().find(|shard| !shard.territory().slots.both(slots).is_empty()) {
                let why =
                    format!("the replica of shard {} here has not handed the slots of shard {id} over yet", other.id);
                return Err(FsError::unavailable(why));
            }
            shard::erase(&self.kv, id).map_err(|e| unavailable(&e))?;
        }
        self.start_alone(id).await.map(|_| ()).map_err(|e| unavailable(&e))
    }

    /// Starts the replicas of shards that have begun with slots of others here, and have no log yet.
    pub async fn start_split(&self) -> Result<(), ShardError> {
        let _alone = self.changing.lock().await;
        let recorded = self.host.recorded()?;
        let begun = read::shards(&self.kv.view()).map_err(MachineError::new)?;
        for id in begun.into_iter().filter(|id| !recorded.contains(id)) {
            // A log whose state a crash could take back would not fit the state that comes again.
            let kv = self.kv.clone();
            let flushed = tokio::task::spawn_blocking(move || kv.flush().map_err(MachineError::new)).await;
            flushed.map_err(MachineError::new)??;
            let engine = pando_engine::Engine::open(self.kv.clone(), id)?;
            let mark = engine.applied().unwrap_or_default().to_vec();
            drop(engine);
            if self.host.seed(id, &mark).await? {
                self.start_alone(id).await?;
            }
        }
        Ok(())
    }

    /// Goes on with removals that were cut off, before anything is started.
    pub async fn finish_removals(&self) -> Result<(), ShardError> {
        for id in read::removed_shards(&self.kv.view()).map_err(MachineError::new)? {
            self.host.erase(id).await?;
            shard::erase(&self.kv, id)?;
        }
        Ok(())
    }

    /// Starts a replica, unless it runs already.
    pub async fn start(&self, id: ShardId) -> Result<Arc<Shard>, ShardError> {
        let _alone = self.changing.lock().await;
        self.start_alone(id).await
    }

    /// The same for who has locked `changing`.
    async fn start_alone(&self, id: ShardId) -> Result<Arc<Shard>, ShardError> {
        if let Some(shard) = self.shard(id) {
            return Ok(shard);
        }
        let Running { shard, effects, proposing } =
            Shard::start(&self.host, id, self.cluster.clone(), self.nodes.clone(), self.kv.clone()).await?;
        let collector = Arc::new(Collector::new(shard.clone(), self.nodes.clone(), self.store.clone()));
        let tasks = Tasks(vec![
            tokio::spawn(sessions::expire(shard.clone(), self.session_ttl)).abort_handle(),
            tokio::spawn(collector.clone().run(effects)).abort_handle(),
            tokio::spawn(collector.clone().run_leaks()).abort_handle(),
        ]);
        let entry = Entry { shard: shard.clone(), collector, tasks, proposing };
        self.running.write().unwrap_or_else(PoisonError::into_inner).insert(id, entry);
        info!(shard = %id, "this node has a replica");
        Ok(shard)
    }

    /// Stops a replica that is no member any more, and forgets its log; one that does not run is fine. `members_at` as in
    /// [`pando_types::request::Request::StopReplica`].
    pub async fn stop(&self, id: ShardId, members_at: u64) -> Result<(), FsError> {
        let _alone = self.changing.lock().await;
        if self.shard(id).is_some_and(|shard| shard.is_member(self.cluster.node, members_at)) {
            return Err(FsError::unavailable("this node is a member by a later entry of the log"));
        }
        if self.take(id, FORMER_GRACE).await {
            self.host.stop(id).await.map_err(|e| unavailable(&e))?;
            shard::note_removed(&self.kv, id).map_err(|e| unavailable(&e))?;
            self.host.erase(id).await.map_err(|e| unavailable(&e))?;
            shard::erase(&self.kv, id).map_err(|e| unavailable(&e))?;
            info!(shard = %id, "this node has no replica any more");
        }
        Ok(())
    }

    /// Stops everything; nothing can be started afterwards.
    pub async fn shutdown(&self) -> Result<(), RaftError> {
        let _alone = self.changing.lock().await;
        // Ids alone: a shard that is held here would never end.
        let ids: Vec<ShardId> = self.read(|running| running.keys().copied().collect());
        for id in ids {
            self.take(id, PROPOSALS_GRACE).await;
        }
        self.host.shutdown().await
    }

    /// Ends what runs for a replica but its group; tells whether there was anything.
    async fn take(&self, id: ShardId, grace: Duration) -> bool {
        let entry = self.running.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        let Some(Entry { shard, collector, tasks, proposing }) = entry else { return false };
        drop((tasks, collector, shard));
        if tokio::time::timeout(grace, proposing).await.is_err() {
            warn!(shard = %id, "changes were still under way when the replica stopped");
        }
        true
    }

    fn read<T>(&self, look: impl FnOnce(&BTreeMap<ShardId, Entry>) -> T) -> T {
        look(&self.running.read().unwrap_or_else(PoisonError::into_inner))
    }
}
