//! Flushes the machine when much has been applied, then purges the log up to the flush before.
//!
//! So between one and two flush intervals of entries stay in the log, for replicas that were away shortly. A replica
//! that was away longer gets an image. Not here: what makes a flush due (applier.rs), the guard (log/group_log.rs).

use std::sync::{Arc, Weak};

use openraft::errors::Fatal;
use tokio::sync::watch;

use super::{Alive, Inner};
use crate::applier::State;
use crate::limits::FLUSH_TIMEOUT;
use crate::raft_types::{Metrics, Types};

/// Runs until the group closes.
pub(super) async fn run(group: Weak<Inner>, state: Arc<State>, mut closing: watch::Receiver<bool>, alive: Alive) {
    loop {
        tokio::select! {
            _ = closing.wait_for(|closing| *closing) => break,
            () = state.flush_due.notified() => {}
        }
        let Some(group) = group.upgrade() else { break };
        if !state.is_flush_due() {
            continue;
        }
        let result = tokio::select! {
            _ = closing.wait_for(|closing| *closing) => break,
            result = group.compact() => result,
        };
        if let Err(e) = result {
            tracing::debug!(shard = %group.group, "not compacted: {e}");
        }
    }
    drop(alive);
}

impl Inner {
    async fn compact(&self) -> Result<(), Fatal<Types>> {
        let before = self.state.durable_next();
        self.raft.trigger().snapshot().await?;
        let flushed = |m: &Metrics| m.snapshot.is_some_and(|at| at.index >= before) || m.running_state.is_err();
        match self.raft.wait(Some(FLUSH_TIMEOUT)).metrics(flushed, "the machine is flushed").await {
            Ok(metrics) => metrics.running_state?,
            Err(e) => tracing::warn!(shard = %self.group, "the state was not flushed: {e}"),
        }
        if before > 0 { self.raft.trigger().purge_log(before - 1).await } else { Ok(()) }
    }
}
