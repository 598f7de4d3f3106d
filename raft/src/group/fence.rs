//! The read fence: may this replica answer reads from its applied state now?
//!
//! The fast way needs no other task. While this replica holds the leader lease nobody else can have acknowledged
//! anything, and what it acknowledged itself it had applied before. What former leaders acknowledged is applied once an
//! entry of this replica's own term is. So: own term applied, and lease valid by this replica's clock.
//!
//! Invariants: a follower keeps its promise for the full lease (also over a restart, `start.rs`), the fast way uses 7/8
//! of it; a replica that hands leadership over does not take the fast way in that term.

use std::sync::atomic::Ordering;

use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::errors::{LinearizableReadError, RaftError as ConsensusError};
use openraft::{Instant as _, LinearizerOption};

use super::{Group, Inner};
use crate::error::ProposeError;
use crate::raft_types::{Metrics, StoredMembership};

impl Group {
    /// Returns once the applied state may answer reads linearizably: reads begun after this see everything acknowledged
    /// before it was called. Local and without waiting for a leader with a valid leader lease.
    ///
    /// Errors: [`ProposeError::NotLeader`] elsewhere; [`ProposeError::Unavailable`] if the lease cannot be renewed.
    pub async fn read_fence(&self) -> Result<(), ProposeError> {
        if self.0.holds_lease(&self.0.metrics.borrow_watched()) {
            return Ok(());
        }
        self.confirm_leadership().await
    }

    async fn confirm_leadership(&self) -> Result<(), ProposeError> {
        let wait = self.0.options.propose_timeout;
        let unavailable = |why: &str| ProposeError::Unavailable(format!("shard {}: {why}", self.0.group));
        let option = LinearizerOption::new(None, true).with_wait_timeout(self.0.options.lease());
        let linearizer = match self.0.raft.get_read_linearizer(option).await {
            Ok(linearizer) => linearizer,
            Err(ConsensusError::Fatal(e)) => return Err(self.fatal(&e)),
            Err(ConsensusError::APIError(LinearizableReadError::ForwardToLeader(e))) => return Err(self.not_leader(&e)),
            Err(ConsensusError::APIError(LinearizableReadError::QuorumNotEnough(_))) => {
                return Err(unavailable("the leader does not reach a majority"));
            }
        };
        match linearizer.try_await_ready(&self.0.raft, Some(wait)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(unavailable("committed entries are not applied yet")),
            Err(e) => Err(self.fatal(&e)),
        }
    }
}

impl Inner {
    fn holds_lease(&self, metrics: &Metrics) -> bool {
        let leader = metrics.vote.leader_id;
        if metrics.running_state.is_err() || !metrics.state.is_leader() || !metrics.vote.committed {
            return false;
        }
        if leader.node_id != self.node.0 || leader.term == self.transfer_term.load(Ordering::SeqCst) {
            return false;
        }
        if metrics.last_applied.is_none_or(|applied| applied.leader_id != leader) {
            return false;
        }
        let alone = |members: &StoredMembership| {
            let sets = members.get_joint_config();
            sets.len() == 1 && sets[0].len() == 1 && sets[0].contains(&self.node.0)
        };
        if alone(&metrics.membership_config) && alone(&metrics.committed_membership_config) {
            return true;
        }
        metrics.last_quorum_acked.is_some_and(|acked| acked.elapsed() < self.options.lease() * 7 / 8)
    }
}
