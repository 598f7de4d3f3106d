//! The consensus library's types, as chosen by this crate. The only place that names them.

#![allow(deprecated)] // the macro names the runtime by its old path

use std::fmt;

use bytes::Bytes;
use openraft::BasicNode;
pub(crate) use openraft::type_config::alias;
use serde::{Deserialize, Serialize};

/// A proposal's bytes. Prints its length only: payloads are large and private.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Payload(pub(crate) Bytes);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

openraft::declare_raft_types!(
    /// Node ids are integers, nodes are known by an address, payloads and replies are bytes.
    pub(crate) Types:
        D = Payload,
        R = Bytes,
        NodeId = u64,
        Node = BasicNode,
);

pub(crate) type LogId = alias::LogIdOf<Types>;
pub(crate) type LeaderId = alias::LeaderIdOf<Types>;
pub(crate) type Vote = alias::VoteOf<Types>;
pub(crate) type Entry = alias::EntryOf<Types>;
pub(crate) type EntryPayload = openraft::EntryPayload<Payload, u64, BasicNode>;
pub(crate) type Membership = openraft::Membership<u64, BasicNode>;
pub(crate) type StoredMembership = alias::StoredMembershipOf<Types>;
pub(crate) type ImageMeta = alias::SnapshotMetaOf<Types>;
pub(crate) type Flushed = openraft::storage::IOFlushed<Types>;
pub(crate) type Metrics = openraft::RaftMetrics<Types>;
pub(crate) type MetricsWatch = alias::WatchReceiverOf<Types, Metrics>;
pub(crate) type Snapshot<D> = alias::SnapshotOf<Types, D>;
