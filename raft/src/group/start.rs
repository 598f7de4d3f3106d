//! Starts a replica from what is on disk.
//!
//! Order: finish an image that a crash left half installed; make the log agree with the machine; start the consensus
//! library, which applies what is committed and not applied; then elections.
//!
//! Invariants:
//! - a replica that may have promised its leader not to elect another keeps silent for one leader lease;
//! - a group of one elects itself at once.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use futures::future::BoxFuture;
use openraft::{Config, SnapshotPolicy};
use pando_types::{NodeId, ShardId};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use super::{Alive, Group, Inner, compact};
use crate::applier::{Applier, FlushPolicy, State, off_workers};
use crate::error::RaftError;
use crate::host::Options;
use crate::image::{Receiver, SpooledImage};
use crate::limits::{APPEND_ENTRIES_MAX, GROUP_QUEUE_MAX};
use crate::log::{Durable, GroupLog, LogDb};
use crate::machine::{Machine, MachineError};
use crate::transport::{Consensus, Peers, Senders};

/// What a replica is made of.
pub(crate) struct Parts {
    pub group: ShardId,
    pub node: NodeId,
    pub options: Options,
    pub log: Arc<LogDb>,
    pub images: PathBuf,
    pub machine: Box<dyn Machine>,
    pub peers: Arc<dyn Peers>,
}

impl Parts {
    /// Starts the replica.
    pub fn start(self) -> BoxFuture<'static, Result<Group, RaftError>> {
        Box::pin(async move {
            let Parts { group, node, options, log, images, machine, peers } = self;
            let (alive, ended) = Alive::new();
            let durable = Durable::default();
            let policy = FlushPolicy { entries: options.flush_entries, bytes: options.flush_bytes };
            let machine_error = |source: MachineError| RaftError::Machine { group, source };
            let state = State::open(machine, durable.clone(), policy).map_err(machine_error)?;
            let state = Arc::new(state);
            finish_installation(&images, group, &state).map_err(machine_error)?;

            let log_error = |e: std::io::Error| RaftError::Stopped { group, detail: e.to_string() };
            let mut group_log = GroupLog::open(log.clone(), group, durable, alive.clone()).map_err(log_error)?;
            let is_pristine = group_log.is_pristine().map_err(log_error)?;
            let has_promised = group_log.has_voted().map_err(log_error)?;
            agree(&mut group_log, is_pristine, &state, group)?;

            let config = Arc::new(config(&options, group)?);
            let senders = Senders { peers, group, node, _alive: alive.clone() };
            let applier = Applier::new(state.clone(), alive.clone());
            let raft = Consensus::build(node.0, config, senders, group_log, applier).await;
            let raft = raft.map_err(|e| RaftError::Stopped { group, detail: e.to_string() })?;
            state.set_running();
            raft.run();

            let is_alone = is_alone(&raft, node).await;
            let silence = (has_promised && !is_alone).then(|| options.silence(node));
            let inner = Arc::new(Inner {
                group,
                node,
                metrics: raft.metrics(),
                raft,
                state: state.clone(),
                log,
                images: Receiver::new(&images, group, alive.clone()),
                silent_until: Instant::now() + silence.unwrap_or_default(),
                transfer_term: AtomicU64::new(u64::MAX),
                closing: watch::Sender::new(false),
                ended: Mutex::new(ended),
                options,
            });
            tokio::spawn(compact::run(Arc::downgrade(&inner), state, inner.closing.subscribe(), alive.clone()));
            let group = Group(inner);
            group.allow_elections(silence.is_some(), is_alone && !is_pristine, alive).await?;
            Ok(group)
        })
    }
}

impl Group {
    async fn allow_elections(&self, later: bool, at_once: bool, alive: Alive) -> Result<(), RaftError> {
        if !later {
            self.0.raft.runtime_config().elect(true);
            return if at_once { self.elect().await } else { Ok(()) };
        }
        let (inner, until) = (Arc::downgrade(&self.0), self.0.silent_until);
        let mut closing = self.0.closing.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                _ = closing.wait_for(|closing| *closing) => {}
                () = tokio::time::sleep_until(until) => {
                    if let Some(inner) = inner.upgrade() {
                        inner.raft.runtime_config().elect(true);
                    }
                }
            }
            drop(alive);
        });
        Ok(())
    }
}

/// Installs an image again whose installation a crash may have cut short.
fn finish_installation(images: &std::path::Path, group: ShardId, state: &State) -> Result<(), MachineError> {
    let Some((mark, image)) = SpooledImage::pending(images, group).map_err(MachineError::new)? else { return Ok(()) };
    if state.applied_next() < mark.next_index() {
        tracing::info!(shard = %group, "installing the image that was received before the restart");
        off_workers(|| state.install(mark, &image))?;
    }
    image.remove().map_err(MachineError::new)
}

/// Checks that log and machine belong together, and lets the log follow an installed image.
fn agree(log: &mut GroupLog, is_pristine: bool, state: &State, group: ShardId) -> Result<(), RaftError> {
    let stopped = |detail: String| RaftError::Stopped { group, detail };
    let applied = state.applied();
    if let Some(purged) = log.purged().filter(|purged| purged.index >= state.applied_next()) {
        return Err(stopped(format!(
            "its log begins after entry {}, but its state contains entries only below {}; the state was lost or is an \
             older copy: restore it, or empty both directories so that the other replicas rebuild this one",
            purged.index,
            state.applied_next()
        )));
    }
    let Some(applied) = applied else { return Ok(()) };
    if is_pristine {
        return Err(stopped(format!(
            "its state contains entries up to {}, but there is no log; restore the log, or empty the state as well so \
             that the other replicas rebuild this one",
            applied.index
        )));
    }
    log.reconcile(&applied).map_err(|e| stopped(e.to_string()))
}

async fn is_alone(raft: &Consensus, node: NodeId) -> bool {
    let voters = raft.with_raft_state(|state| state.membership_state.effective().voter_ids().collect::<Vec<_>>()).await;
    voters.is_ok_and(|voters| voters == [node.0])
}

fn config(options: &Options, group: ShardId) -> Result<Config, RaftError> {
    options.validate()?;
    let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let config = Config {
        cluster_name: format!("shard-{group}"),
        heartbeat_interval: millis(options.heartbeat),
        election_timeout_min: millis(options.election_min),
        election_timeout_max: millis(options.election_max),
        max_payload_entries: APPEND_ENTRIES_MAX,
        max_append_entries: Some(APPEND_ENTRIES_MAX),
        // Flushing and purging are decided in compact.rs.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        api_channel_size: Some(GROUP_QUEUE_MAX),
        api_batch_capacity: APPEND_ENTRIES_MAX,
        // Switched on when the replica may elect.
        enable_elect: false,
        enable_pre_vote: Some(true),
        // A restarted leader serves nothing before it is elected again: its machine may be behind.
        enable_leader_restore: Some(false),
        backoff: "100ms 200ms ...1000ms".to_owned(),
        ..Config::default()
    };
    config.validate().map_err(|e| RaftError::Options(e.to_string()))
}
