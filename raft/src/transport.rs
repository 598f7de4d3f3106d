//! Messages between the replicas of a group: what is sent, and the trait that delivers it.
//!
//! Not here: connections. Messages are opaque bytes outside this crate; one answers one. Both sides must run the same
//! version (`types::codec` says so in its error otherwise).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable};
use openraft::network::{RPCOption, RPCTypes, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use openraft::{BasicNode, Raft};
use pando_types::{NodeId, ShardId, codec};
use serde::{Deserialize, Serialize};

use crate::applier::Applier;
use crate::group::Alive;
use crate::image::{self, ImageAnswer, ImageData, ImageMessage};
use crate::limits::{APPEND_TIMEOUT, IMAGE_MESSAGE_TIMEOUT};
use crate::raft_types::{Types, Vote};

/// The consensus library's handle of one replica.
pub(crate) type Consensus = Raft<Types, Applier>;

/// What the replica on the other node answered, to be given back as it is.
pub type PeerAnswer = Result<Bytes, PeerError>;

/// Why a message was not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The node cannot be reached, or has no such replica; trying again at once is useless.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// No answer within the time given.
    #[error("no answer in time")]
    TimedOut,
}

/// Delivers messages to the replicas on other nodes.
pub trait Peers: Send + Sync + 'static {
    /// Gives `message` to [`Host::receive`](crate::Host::receive) of node `to` at `address` and returns its answer, or an
    /// error after `timeout` at the latest. A message that arrives twice or late does no harm.
    fn call(
        &self,
        to: NodeId,
        address: &str,
        group: ShardId,
        message: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, PeerAnswer>;
}

/// For groups with a single replica: there is nobody else.
#[derive(Debug, Clone, Copy, Default)]
pub struct Solo;

impl Peers for Solo {
    fn call(&self, to: NodeId, _: &str, _: ShardId, _: Bytes, _: Duration) -> BoxFuture<'static, PeerAnswer> {
        Box::pin(async move { Err(PeerError::Unreachable(format!("node {to} is not part of a one-node cluster"))) })
    }
}

/// A message as it travels.
#[derive(Serialize, Deserialize)]
pub(crate) struct Envelope {
    /// Whom it is for: an address may have been given to another node.
    pub to: NodeId,
    pub message: Message,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Message {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<Types>),
    PreVote(VoteRequest<Types>),
    Transfer(TransferLeaderRequest<Types>),
    Image(ImageMessage),
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Answer {
    Append(AppendEntriesResponse<Types>),
    Vote(VoteResponse<Types>),
    Transfer(TransferLeaderResponse<Types>),
    Image(ImageAnswer),
    /// The replica does not take part now.
    Refused(String),
}

/// Makes the senders to the other replicas.
#[derive(Clone)]
pub(crate) struct Senders {
    pub peers: Arc<dyn Peers>,
    pub group: ShardId,
    pub node: NodeId,
    pub _alive: Alive,
}

impl RaftNetworkFactory<Types> for Senders {
    type Network = Sender;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Sender {
        Sender { senders: self.clone(), to: NodeId(target), address: node.addr.clone() }
    }
}

/// Sends to one replica.
pub(crate) struct Sender {
    senders: Senders,
    to: NodeId,
    address: String,
}

type RpcResult<T> = Result<T, RPCError<Types>>;

impl Sender {
    async fn call(&self, message: Message, action: RPCTypes, timeout: Duration) -> RpcResult<Answer> {
        let Senders { peers, group, node, .. } = &self.senders;
        let bytes = Bytes::from(codec::encode(&Envelope { to: self.to, message }));
        let call = peers.call(self.to, &self.address, *group, bytes, timeout);
        // The trait's promise, kept here as well: a transport that hangs must not stop replication for ever.
        let answer = tokio::time::timeout(timeout, call).await.unwrap_or(Err(PeerError::TimedOut));
        let bytes = answer.map_err(|e| match e {
            PeerError::TimedOut => Timeout { action, id: node.0, target: self.to.0, timeout }.into(),
            PeerError::Unreachable(detail) => unreachable(detail),
        })?;
        match codec::decode(&bytes).map_err(|e| RPCError::Network(NetworkError::new(&e)))? {
            Answer::Refused(reason) => Err(unreachable(reason)),
            answer => Ok(answer),
        }
    }

    async fn vote_call(&self, message: Message, option: &RPCOption) -> RpcResult<VoteResponse<Types>> {
        match self.call(message, RPCTypes::Vote, option.hard_ttl()).await? {
            Answer::Vote(answer) => Ok(answer),
            _ => Err(confused()),
        }
    }

    async fn image_call(&self, message: ImageMessage) -> RpcResult<ImageAnswer> {
        match self.call(Message::Image(message), RPCTypes::InstallSnapshot, IMAGE_MESSAGE_TIMEOUT).await? {
            Answer::Image(answer) => Ok(answer),
            _ => Err(confused()),
        }
    }
}

fn unreachable(detail: String) -> RPCError<Types> {
    RPCError::Unreachable(Unreachable::from_string(detail))
}

fn confused() -> RPCError<Types> {
    RPCError::Network(NetworkError::from_string("the answer is to another question"))
}

impl RaftNetworkV2<Types> for Sender {
    type SnapshotData = ImageData;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> RpcResult<AppendEntriesResponse<Types>> {
        // A heartbeat is worthless when late; entries wait for the follower's fsync.
        let timeout = if rpc.entries.is_empty() { option.hard_ttl() } else { APPEND_TIMEOUT };
        match self.call(Message::Append(rpc), RPCTypes::AppendEntries, timeout).await? {
            Answer::Append(answer) => Ok(answer),
            _ => Err(confused()),
        }
    }

    async fn vote(&mut self, rpc: VoteRequest<Types>, option: RPCOption) -> RpcResult<VoteResponse<Types>> {
        self.vote_call(Message::Vote(rpc), &option).await
    }

    async fn pre_vote(&mut self, rpc: VoteRequest<Types>, option: RPCOption) -> RpcResult<VoteResponse<Types>> {
        self.vote_call(Message::PreVote(rpc), &option).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: image::Snapshotted,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let sent = image::send(vote, snapshot, |message| self.image_call(message));
        let result = tokio::select! {
            closed = cancel => return Err(closed.into()),
            result = sent => result,
        };
        match result {
            Ok(vote) => Ok(SnapshotResponse::new(vote)),
            Err(image::SendError::Call(e)) => Err(e.into()),
            Err(image::SendError::Image(detail)) => {
                tracing::warn!(shard = %self.senders.group, node = %self.to, "image not delivered: {detail}");
                Err(Unreachable::from_string(detail).into())
            }
        }
    }

    async fn transfer_leader(
        &mut self,
        rpc: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> RpcResult<TransferLeaderResponse<Types>> {
        match self.call(Message::Transfer(rpc), RPCTypes::TransferLeader, option.hard_ttl()).await? {
            Answer::Transfer(answer) => Ok(answer),
            _ => Err(confused()),
        }
    }
}
