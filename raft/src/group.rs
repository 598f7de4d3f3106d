//! One replica of one Raft group: propose, read fence, members, messages of the others, shutdown.
//!
//! Starting is in `group/start.rs`, the read fence in `group/fence.rs`, flushing and purging in `group/compact.rs`.
//!
//! Invariants:
//! - a reply is the machine's reply to that payload, given after a majority has the entry on disk;
//! - when the shutdown of a group returns, none of its tasks is left and its machine is dropped.

mod compact;
mod fence;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use openraft::BasicNode;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::errors::{ClientWriteError, Fatal, ForwardReason, ForwardToLeader, InitializeError};
use pando_types::{NodeId, ShardId, codec};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::Instant;

use crate::applier::{State, off_workers};
use crate::error::{ProposeError, RaftError};
use crate::host::Options;
use crate::image::Receiver;
use crate::limits::{PAYLOAD_BYTES_MAX, SHUTDOWN_TIMEOUT};
use crate::log::LogDb;
use crate::raft_types::{Metrics, MetricsWatch, Payload, Types};
use crate::transport::{Answer, Consensus, Envelope, Message};
pub(crate) use start::Parts;

/// Held by everything that runs for a group; the group's shutdown waits until all are gone.
#[derive(Clone)]
pub(crate) struct Alive(#[allow(dead_code)] mpsc::Sender<()>);

impl Alive {
    pub fn new() -> (Alive, mpsc::Receiver<()>) {
        let (tx, rx) = mpsc::channel(1);
        (Alive(tx), rx)
    }
}

/// A replica of a group on this node. Clones are the same replica.
#[derive(Clone)]
pub struct Group(Arc<Inner>);

struct Inner {
    group: ShardId,
    node: NodeId,
    options: Options,
    raft: Consensus,
    metrics: MetricsWatch,
    state: Arc<State>,
    log: Arc<LogDb>,
    images: Receiver,
    /// Until then this replica gives no vote: it may have promised its leader one before it restarted.
    silent_until: Instant,
    /// Leader lease reads are off for this term: leadership is being handed over.
    transfer_term: AtomicU64,
    closing: watch::Sender<bool>,
    /// Ends when nothing runs for the group any more.
    ended: Mutex<mpsc::Receiver<()>>,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {} on node {}", self.0.group, self.0.node)
    }
}

impl Group {
    /// The group's shard.
    pub fn id(&self) -> ShardId {
        self.0.group
    }

    /// Founds the group with these voters and their addresses. Does nothing if the group has been founded before.
    ///
    /// To be called on one node of the group; a group of one has its leader when this returns. Errors: this node is not
    /// among the members, or the replica has stopped.
    pub fn initialize(&self, members: BTreeMap<NodeId, String>) -> BoxFuture<'_, Result<(), RaftError>> {
        Box::pin(async move {
            let alone = members.len() == 1;
            match self.0.raft.initialize(nodes(members)).await {
                Ok(()) => {}
                Err(openraft::errors::RaftError::APIError(InitializeError::NotAllowed(_))) => return Ok(()),
                Err(openraft::errors::RaftError::APIError(e)) => return Err(self.members_error(&e)),
                Err(openraft::errors::RaftError::Fatal(e)) => return Err(self.stopped(&e)),
            }
            if alone {
                self.elect().await?;
                self.wait_leader(self.0.options.propose_timeout).await?;
            }
            Ok(())
        })
    }

    /// Replicates one payload and returns the machine's reply.
    ///
    /// Many may be under way at once; they take effect in the order in which this was first polled. Waits at most
    /// [`Options::propose_timeout`]. Not cancelled by dropping the future.
    pub fn propose(&self, payload: Bytes) -> BoxFuture<'_, Result<Bytes, ProposeError>> {
        Box::pin(async move {
            if payload.len() > PAYLOAD_BYTES_MAX {
                return Err(ProposeError::TooLarge { bytes: payload.len(), limit: PAYLOAD_BYTES_MAX });
            }
            let wait = self.0.options.propose_timeout;
            // Unconstrained: the runtime's fairness must not let a later proposal overtake this one.
            let write = tokio::task::unconstrained(self.0.raft.client_write(Payload(payload)));
            let result = tokio::time::timeout(wait, write).await;
            match result {
                Err(_) => {
                    Err(ProposeError::Unavailable(format!("shard {} had no majority for {wait:?}", self.0.group)))
                }
                Ok(Ok(response)) => Ok(response.data),
                Ok(Err(openraft::errors::RaftError::Fatal(e))) => Err(self.fatal(&e)),
                Ok(Err(openraft::errors::RaftError::APIError(e))) => Err(match e {
                    ClientWriteError::ForwardToLeader(forward) => self.not_leader(&forward),
                    other => ProposeError::Unavailable(other.to_string()),
                }),
            }
        })
    }

    /// Whether this replica believes to lead. Only [`Group::read_fence`] and [`Group::propose`] can be relied on.
    pub fn is_leader(&self) -> bool {
        let metrics = self.0.metrics.borrow_watched();
        metrics.running_state.is_ok() && metrics.state.is_leader()
    }

    /// The leader as far as this replica knows.
    pub fn leader(&self) -> Option<NodeId> {
        self.0.metrics.borrow_watched().current_leader.map(NodeId)
    }

    /// The term that this replica is in.
    pub fn term(&self) -> u64 {
        self.0.metrics.borrow_watched().current_term
    }

    /// Waits until a leader is known, for `timeout` at most.
    pub async fn wait_leader(&self, timeout: Duration) -> Result<NodeId, RaftError> {
        let known = |m: &Metrics| m.current_leader.is_some() || m.running_state.is_err();
        let found = self.0.raft.wait(Some(timeout)).metrics(known, "a leader is known").await;
        let found = found.map_err(|_| RaftError::NoLeader { group: self.0.group, waited: timeout })?;
        found.running_state.map_err(|e| self.stopped(&e))?;
        found.current_leader.map(NodeId).ok_or(RaftError::NoLeader { group: self.0.group, waited: timeout })
    }

    /// Index of the last entry that the machine has applied; 0 before the first, which itself has index 0.
    pub fn applied_index(&self) -> u64 {
        self.0.state.applied_next().saturating_sub(1)
    }

    /// The voters and learners with their addresses, as this replica knows them.
    pub fn members(&self) -> BTreeMap<NodeId, String> {
        let metrics = self.0.metrics.borrow_watched();
        metrics.membership_config.nodes().map(|(id, node)| (NodeId(*id), node.addr.clone())).collect()
    }

    /// Those whose votes count, as this replica knows them, in order.
    pub fn voters(&self) -> Vec<NodeId> {
        let metrics = self.0.metrics.borrow_watched();
        let voters: BTreeSet<NodeId> = metrics.membership_config.voter_ids().map(NodeId).collect();
        voters.into_iter().collect()
    }

    /// Index of the log entry that named the members this replica knows; `None` before there is one.
    pub fn members_at(&self) -> Option<u64> {
        self.0.metrics.borrow_watched().membership_config.log_id().as_ref().map(|id| id.index)
    }

    /// The same if that entry is committed, so that no earlier members can come back.
    pub fn settled_at(&self) -> Option<u64> {
        let metrics = self.0.metrics.borrow_watched();
        let known = metrics.membership_config.log_id();
        if known == metrics.committed_membership_config.log_id() { known.as_ref().map(|id| id.index) } else { None }
    }

    /// Whether the replica takes part: neither it nor the node's log has failed.
    pub fn is_working(&self) -> bool {
        self.0.metrics.borrow_watched().running_state.is_ok() && self.0.log.failure().message().is_none()
    }

    /// Makes `members` the voters: new ones are first brought up to date as learners. To be called on the leader.
    pub fn change_members(&self, members: BTreeMap<NodeId, String>) -> BoxFuture<'_, Result<(), RaftError>> {
        Box::pin(async move {
            let present = self.members();
            for (id, address) in members.iter().filter(|(id, _)| !present.contains_key(id)) {
                let node = BasicNode::new(address);
                self.0.raft.add_learner(id.0, node, true).await.map_err(|e| self.members_error(&e))?;
            }
            let voters: BTreeSet<u64> = members.keys().map(|id| id.0).collect();
            self.0.raft.change_membership(voters, false).await.map_err(|e| self.members_error(&e))?;
            Ok(())
        })
    }

    /// Asks the leader, which must be this replica, to hand leadership to `to`. Returns before it has happened.
    pub fn transfer(&self, to: NodeId) -> BoxFuture<'_, Result<(), RaftError>> {
        Box::pin(async move {
            self.0.transfer_term.store(self.term(), std::sync::atomic::Ordering::SeqCst);
            self.0.raft.trigger().transfer_leader(to.0).await.map_err(|e| self.stopped(&e))
        })
    }

    /// Handles a message of another replica. Errors: it cannot be read.
    pub fn receive<'a>(&'a self, message: &'a [u8]) -> BoxFuture<'a, Result<Bytes, RaftError>> {
        Box::pin(async move {
            let envelope: Envelope = codec::decode(message).map_err(|e| RaftError::Message(e.to_string()))?;
            let answer = if envelope.to == self.0.node {
                self.answer(envelope.message).await
            } else {
                Answer::Refused(format!("this is node {}, not node {}", self.0.node, envelope.to))
            };
            Ok(codec::encode(&answer).into())
        })
    }

    async fn answer(&self, message: Message) -> Answer {
        let raft = &self.0.raft;
        match message {
            Message::Append(rpc) => raft.append_entries(rpc).await.map_or_else(refused, Answer::Append),
            Message::Vote(rpc) if self.is_silent() && !rpc.leadership_transfer => self.silent(),
            Message::Vote(rpc) => raft.vote(rpc).await.map_or_else(refused, Answer::Vote),
            Message::PreVote(_) if self.is_silent() => self.silent(),
            Message::PreVote(rpc) => raft.pre_vote(rpc).await.map_or_else(refused, Answer::Vote),
            Message::Transfer(rpc) => raft.handle_transfer_leader(rpc).await.map_or_else(refused, Answer::Transfer),
            Message::Image(message) => Answer::Image(self.0.images.receive(message, raft).await),
        }
    }

    fn is_silent(&self) -> bool {
        Instant::now() < self.0.silent_until
    }

    fn silent(&self) -> Answer {
        Answer::Refused("it has just restarted and keeps the promise it may have given its leader".to_owned())
    }

    /// Stops the replica: ends its tasks, flushes and drops the machine. Further calls are refused.
    pub fn shutdown(&self) -> BoxFuture<'_, Result<(), RaftError>> {
        Box::pin(async move {
            self.0.closing.send_replace(true);
            let ending = async {
                // It never fails: it returns what its own task returned.
                let _ = self.0.raft.shutdown().await;
                self.0.images.close().await;
                while self.0.ended.lock().await.recv().await.is_some() {}
            };
            let ended = tokio::time::timeout(SHUTDOWN_TIMEOUT, ending).await;
            off_workers(|| self.0.state.close())
                .map_err(|source| RaftError::Machine { group: self.0.group, source })?;
            let late = format!("its tasks have not ended within {SHUTDOWN_TIMEOUT:?}");
            ended.map_err(|_| RaftError::Stopped { group: self.0.group, detail: late })
        })
    }

    async fn elect(&self) -> Result<(), RaftError> {
        self.0.raft.trigger().elect(false).await.map_err(|e| self.stopped(&e))
    }

    fn not_leader(&self, forward: &ForwardToLeader<Types>) -> ProposeError {
        if forward.reason == ForwardReason::LeaseExpired {
            return ProposeError::Unavailable(format!("the leader of shard {} lost its majority", self.0.group));
        }
        let leader = forward.leader_id.map(NodeId).filter(|leader| *leader != self.0.node);
        ProposeError::NotLeader { leader }
    }

    fn fatal(&self, e: &Fatal<Types>) -> ProposeError {
        match (self.0.log.failure().message(), e) {
            (Some(message), _) => ProposeError::Fatal(message.to_owned()),
            (None, Fatal::Stopped) => ProposeError::Unavailable(format!("shard {} is shut down here", self.0.group)),
            (None, other) => ProposeError::Fatal(other.to_string()),
        }
    }

    fn stopped(&self, e: &Fatal<Types>) -> RaftError {
        let detail = self.0.log.failure().message().map_or_else(|| e.to_string(), str::to_owned);
        RaftError::Stopped { group: self.0.group, detail }
    }

    fn members_error(&self, e: &dyn fmt::Display) -> RaftError {
        RaftError::Members { group: self.0.group, detail: e.to_string() }
    }
}

fn refused(e: impl fmt::Display) -> Answer {
    Answer::Refused(e.to_string())
}

pub(crate) fn nodes(members: BTreeMap<NodeId, String>) -> BTreeMap<u64, BasicNode> {
    members.into_iter().map(|(id, address)| (id.0, BasicNode::new(address))).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "group/group_test.rs"]
mod tests;
