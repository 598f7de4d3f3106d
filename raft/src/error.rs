//! What can go wrong, from the caller's side. Each message says what to do next.

use std::time::Duration;

use pando_types::{NodeId, ShardId};

use crate::machine::MachineError;

/// A host or group could not be opened, started, changed or stopped.
#[derive(Debug, thiserror::Error)]
pub enum RaftError {
    /// The log's directory or database could not be opened or read.
    #[error("raft log in {dir}: {detail}")]
    Log {
        /// The log's directory.
        dir: String,
        /// What the storage said.
        detail: String,
    },
    /// The machine failed while the group was started or stopped.
    #[error("state of shard {group}: {source}")]
    Machine {
        /// The group's shard.
        group: ShardId,
        /// What the machine said.
        source: MachineError,
    },
    /// The group is already started on this host.
    #[error("shard {0} is already started on this node")]
    AlreadyStarted(ShardId),
    /// The group is not started on this host.
    #[error("shard {0} has no replica on this node")]
    NoSuchGroup(ShardId),
    /// An option is out of range.
    #[error("raft options: {0}")]
    Options(String),
    /// A message of another node cannot be read.
    #[error("message of another raft node: {0}")]
    Message(String),
    /// No leader was elected in time.
    #[error("no leader of shard {group} within {waited:?}; a majority of its replicas must be up")]
    NoLeader {
        /// The group's shard.
        group: ShardId,
        /// How long was waited.
        waited: Duration,
    },
    /// A change of the members was refused.
    #[error("members of shard {group} not changed: {detail}")]
    Members {
        /// The group's shard.
        group: ShardId,
        /// Why.
        detail: String,
    },
    /// The replica has stopped because of an error; restart the server.
    #[error("replica of shard {group} has stopped: {detail}")]
    Stopped {
        /// The group's shard.
        group: ShardId,
        /// The first cause.
        detail: String,
    },
}

/// Why a proposal or a read fence was not granted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Another replica leads; ask it. Nothing was proposed.
    #[error("this replica is not the leader{}", .leader.map(|id| format!("; node {id} is")).unwrap_or_default())]
    NotLeader {
        /// The leader as far as known here.
        leader: Option<NodeId>,
    },
    /// No majority confirmed in time, or leadership was lost. Whether the proposal takes effect is unknown: retry with
    /// the same op id.
    #[error("no majority confirmed, retry: {0}")]
    Unavailable(String),
    /// The payload can never be proposed. Nothing was proposed.
    #[error("a log entry of {bytes} bytes is above the limit of {limit}")]
    TooLarge {
        /// Size of the payload.
        bytes: usize,
        /// Largest payload.
        limit: usize,
    },
    /// This replica has stopped because of an error; it needs a restart.
    #[error("this replica has stopped: {0}")]
    Fatal(String),
}
