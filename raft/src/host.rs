//! The Raft groups of one node: the log that they share, their start, their messages, their end.
//!
//! Directory: `entries/` (the log database), `images/` (images that are being received).
//! Not here: which groups a node should have. Invariant: one fsync serves all groups.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pando_types::{NodeId, ShardId};

use crate::error::RaftError;
use crate::group::{Group, Parts};
use crate::log::LogDb;
pub use crate::log::SyncFault;
use crate::machine::Machine;
use crate::mark::Mark;
use crate::transport::{PeerAnswer, PeerError, Peers};

/// How groups behave. All nodes of a cluster must use the same timings.
#[derive(Clone)]
pub struct Options {
    /// How often a leader tells the others that it is there.
    pub heartbeat: Duration,
    /// A replica elects a new leader after not hearing of one for a random time from here ...
    pub election_min: Duration,
    /// ... to here. Also the length of the leader lease: no other leader within this time.
    pub election_max: Duration,
    /// Longest wait of a proposal and of a read fence.
    pub propose_timeout: Duration,
    /// The machine is flushed and the log purged after so many entries ...
    pub flush_entries: u64,
    /// ... or after so many bytes of payloads.
    pub flush_bytes: u64,
    /// For tests: called before each fsync of the log, an error takes its place.
    pub sync_fault: Option<SyncFault>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            heartbeat: Duration::from_millis(150),
            election_min: Duration::from_millis(600),
            election_max: Duration::from_millis(1000),
            propose_timeout: Duration::from_secs(10),
            flush_entries: 64 << 10,
            flush_bytes: 256 << 20,
            sync_fault: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "heartbeat {:?}, election {:?} to {:?}", self.heartbeat, self.election_min, self.election_max)
    }
}

impl Options {
    /// How long nobody but the leader can become leader after a majority has heard from it.
    pub(crate) fn lease(&self) -> Duration {
        self.election_max
    }

    /// How long a restarted replica neither votes nor campaigns: the lease, and a little by which nodes differ, so that
    /// they do not all campaign at once after a power cut.
    pub(crate) fn silence(&self, node: NodeId) -> Duration {
        let spread = u32::try_from(node.0 % 8).expect("below 8");
        self.lease() + self.heartbeat / 2 * spread
    }

    pub(crate) fn validate(&self) -> Result<(), RaftError> {
        if self.flush_entries == 0 || self.flush_bytes == 0 {
            return Err(RaftError::Options("flush_entries and flush_bytes must be above 0".to_owned()));
        }
        if self.heartbeat < Duration::from_millis(5) || self.election_min < self.heartbeat * 2 {
            return Err(RaftError::Options("election_min must be at least two heartbeats of at least 5 ms".to_owned()));
        }
        Ok(())
    }
}

/// The groups of this node.
pub struct Host {
    options: Options,
    images: PathBuf,
    log: Arc<LogDb>,
    groups: Mutex<BTreeMap<ShardId, Group>>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "raft host with shards {:?}", self.groups())
    }
}

impl Host {
    /// Opens or creates the log in `dir`, which must not be open elsewhere.
    pub fn open(dir: &Path, options: Options) -> Result<Host, RaftError> {
        options.validate()?;
        let images = dir.join("images");
        std::fs::create_dir_all(&images)
            .map_err(|e| RaftError::Log { dir: dir.display().to_string(), detail: e.to_string() })?;
        let log = Arc::new(LogDb::open(&dir.join("entries"), options.sync_fault.clone())?);
        Ok(Host { options, images, log, groups: Mutex::default() })
    }

    /// Starts the replica of `group` that this node, `node`, holds. It takes up where it stopped; a new one waits for
    /// [`Group::initialize`] or for the leader of an existing group.
    ///
    /// Errors: the group is started already, log or machine cannot be read, or they do not belong together.
    pub async fn start(
        &self,
        group: ShardId,
        node: NodeId,
        machine: impl Machine,
        peers: Arc<dyn Peers>,
    ) -> Result<Group, RaftError> {
        if self.group(group).is_some() {
            return Err(RaftError::AlreadyStarted(group));
        }
        let (options, log, images) = (self.options.clone(), self.log.clone(), self.images.clone());
        let machine = Box::new(machine);
        let started = Parts { group, node, options, log, images, machine, peers }.start().await?;
        let before = self.lock().insert(group, started.clone());
        match before {
            None => Ok(started),
            Some(other) => {
                // Two starts raced; the log has one owner only, so neither may go on.
                started.shutdown().await?;
                other.shutdown().await?;
                self.lock().remove(&group);
                Err(RaftError::AlreadyStarted(group))
            }
        }
    }

    /// The group's replica on this node.
    pub fn group(&self, group: ShardId) -> Option<Group> {
        self.lock().get(&group).cloned()
    }

    /// The groups that have a replica here.
    pub fn groups(&self) -> Vec<ShardId> {
        self.lock().keys().copied().collect()
    }

    /// The groups that this node has a log of, started or not: those it held when it stopped.
    pub fn recorded(&self) -> Result<Vec<ShardId>, RaftError> {
        self.log.groups().map_err(|e| self.log_error(&e))
    }

    /// The mark with which a machine begins whose state every one of these members has already: such a group is not
    /// founded with [`Group::initialize`] but seeded on each of them.
    pub fn first_mark(members: BTreeMap<NodeId, String>) -> Result<Vec<u8>, RaftError> {
        let voters = std::collections::BTreeSet::from_iter(members.keys().map(|id| id.0));
        let nodes = crate::group::nodes(members);
        let members = crate::raft_types::Membership::new(vec![voters], nodes);
        members.map(|members| Mark::first(members).encode()).map_err(|e| RaftError::Options(e.to_string()))
    }

    /// Begins the log of a group whose machine is at its first mark, durably; the machine must be durable there. False: the
    /// machine is elsewhere, or there is a log already.
    pub async fn seed(&self, group: ShardId, mark: &[u8]) -> Result<bool, RaftError> {
        let unreadable = |detail| RaftError::Stopped { group, detail };
        let is_first = Mark::decode(mark).map_err(unreadable)?.is_first();
        if !is_first || self.recorded()?.contains(&group) {
            return Ok(false);
        }
        self.log.begin(group).map_err(|e| self.log_error(&e))?;
        self.log.sync().await.map_err(|e| self.log_error(&e))?;
        Ok(true)
    }

    /// Forgets the log of a group that is not started: its replica is not part of the group any more.
    pub async fn erase(&self, group: ShardId) -> Result<(), RaftError> {
        if self.group(group).is_some() {
            return Err(RaftError::AlreadyStarted(group));
        }
        self.log.erase(group).map_err(|e| self.log_error(&e))?;
        self.log.sync().await.map_err(|e| self.log_error(&e))
    }

    fn log_error(&self, e: &std::io::Error) -> RaftError {
        RaftError::Log { dir: self.images.display().to_string(), detail: e.to_string() }
    }

    /// Handles a message of another node: what its [`Peers::call`] must return.
    pub async fn receive(&self, group: ShardId, message: &[u8]) -> PeerAnswer {
        let unreachable = |e: RaftError| PeerError::Unreachable(e.to_string());
        let group = self.group(group).ok_or_else(|| unreachable(RaftError::NoSuchGroup(group)))?;
        group.receive(message).await.map_err(unreachable)
    }

    /// Stops one group: its state is flushed, its log stays.
    pub async fn stop(&self, group: ShardId) -> Result<(), RaftError> {
        let stopped = self.lock().remove(&group).ok_or(RaftError::NoSuchGroup(group))?;
        stopped.shutdown().await
    }

    /// Stops all groups and syncs the log. Returns the first error after having stopped everything. The log is closed when
    /// this is dropped.
    pub async fn shutdown(&self) -> Result<(), RaftError> {
        let groups = std::mem::take(&mut *self.lock());
        let mut first = Ok(());
        for group in groups.into_values() {
            first = first.and(group.shutdown().await);
        }
        let synced = self.log.sync().await;
        first.and(synced.map_err(|e| self.log_error(&e)))
    }

    #[cfg(test)]
    pub(crate) fn log_for_test(&self) -> std::sync::Weak<LogDb> {
        Arc::downgrade(&self.log)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ShardId, Group>> {
        // The map is only read, inserted into and removed from: it is whole even if a holder panicked.
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
