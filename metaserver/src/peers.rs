//! The way to the other nodes: messages of the Raft groups, and what nodes ask of each other.
//!
//! Not here: what is asked and when. Invariant: every call ends within its timeout; a node of another cluster takes nothing.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use dashmap::DashMap;
use futures::future::BoxFuture;
use pando_raft::{PeerAnswer, PeerError, Peers};
use pando_rpc::{Pool, RpcError};
use pando_types::request::{Request, RequestMessage, Response};
use pando_types::shard_map::{ClusterTag, ShardMap};
use pando_types::{ErrorKind, FsError, Generation, MapEpoch, NodeId, ShardId};
use tokio::time::Instant;

use crate::cluster::Cluster;

/// One question to another node takes no longer.
pub(crate) const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two rounds of asking everybody.
const ROUND_PAUSE: Duration = Duration::from_millis(200);

/// Connections to the other nodes.
pub(crate) struct Nodes {
    cluster: Arc<Cluster>,
    pool: Arc<Pool>,
    /// Who answered last for a shard.
    leaders: DashMap<ShardId, NodeId>,
    /// With whom the search for a leader begins.
    turn: AtomicUsize,
}

impl Nodes {
    pub fn new(cluster: Arc<Cluster>) -> Nodes {
        Nodes { cluster, pool: Arc::default(), leaders: DashMap::new(), turn: AtomicUsize::new(0) }
    }

    /// The newest map that is known here.
    pub fn map(&self) -> Result<Arc<ShardMap>, FsError> {
        self.cluster.map()
    }

    /// Asks the node that listens there.
    pub async fn ask_at(&self, address: &str, request: Request) -> Result<Response, FsError> {
        ask(&self.pool, address, request).await
    }

    /// Asks one node.
    pub async fn ask(&self, node: NodeId, request: Request) -> Result<Response, FsError> {
        let address = self.cluster.address_of(node);
        let address = address.ok_or_else(|| FsError::unavailable(format!("node {node} is not in the shard map")))?;
        ask(&self.pool, &address, request).await
    }
}

impl Nodes {
    /// Asks whoever leads a shard, `hint` first. What a node may have taken is not asked again: it may yet be carried out.
    pub async fn ask_shard(&self, shard: ShardId, hint: Option<NodeId>, request: Request) -> Result<Response, FsError> {
        let map = self.cluster.map()?;
        let of_map = map.shard(shard).ok_or_else(|| FsError::unavailable(format!("there is no shard {shard}")))?;
        let mut next = of_map.replicas.clone();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % next.len().max(1);
        next.rotate_left(turn);
        next.extend(of_map.leader);
        next.extend(self.leaders.get(&shard).map(|leader| *leader));
        next.extend(hint);
        let mut asked = HashSet::new();
        let mut failure = FsError::unavailable(format!("shard {shard} has no leader"));
        while let Some(node) = next.pop() {
            let Some(address) = self.cluster.address_of(node).filter(|_| asked.insert(node)) else { continue };
            self.leaders.remove(&shard);
            match self.pool.call(&address, &unrouted(request.clone()), ASK_TIMEOUT).await {
                Ok(answer) => match answer.result {
                    Err(FsError { kind: ErrorKind::Redirect(map), .. }) => {
                        next.extend(map.shard(shard).and_then(|shard| shard.leader));
                    }
                    Err(error) => return Err(error),
                    Ok(answer) => {
                        self.leaders.insert(shard, node);
                        return Ok(answer);
                    }
                },
                Err(error @ RpcError::Connect { .. }) => failure = error.into(),
                Err(error) => return Err(error.into()),
            }
        }
        Err(failure)
    }
}

impl Peers for Nodes {
    fn call(
        &self,
        to: NodeId,
        address: &str,
        group: ShardId,
        message: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, PeerAnswer> {
        // A node that has moved is in the map at its new address before its groups' members say so.
        let address = self.cluster.address_of(to).unwrap_or_else(|| address.to_owned());
        let (pool, cluster) = (self.pool.clone(), self.cluster.id().to_owned());
        Box::pin(async move {
            let message = unrouted(Request::Raft { cluster, shard: group, message });
            match pool.call(&address, &message, timeout).await {
                Ok(answer) => match answer.result {
                    Ok(Response::Raft(answer)) => Ok(answer),
                    Ok(_) => Err(PeerError::Unreachable("the answer is to another question".into())),
                    Err(error) => Err(PeerError::Unreachable(error.detail)),
                },
                Err(RpcError::TimedOut { .. }) => Err(PeerError::TimedOut),
                Err(error) => Err(PeerError::Unreachable(error.to_string())),
            }
        })
    }
}

async fn ask(pool: &Pool, address: &str, request: Request) -> Result<Response, FsError> {
    pool.call(address, &unrouted(request), ASK_TIMEOUT).await?.result
}

/// Asks whoever leads the cluster, which one of the `seeds` may know, for `patience` at most.
pub(crate) async fn ask_leader(seeds: &[String], request: &Request, patience: Duration) -> Result<Response, FsError> {
    let pool = Pool::new();
    let deadline = Instant::now() + patience;
    let mut failure = FsError::unavailable("no address to ask was given");
    loop {
        let mut asked = HashSet::new();
        let mut next: Vec<String> = seeds.iter().rev().cloned().collect();
        while let Some(address) = next.pop() {
            if Instant::now() >= deadline {
                break;
            }
            if !asked.insert(address.clone()) {
                continue;
            }
            match ask(&pool, &address, request.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(FsError { kind: ErrorKind::Redirect(map), .. }) => {
                    let leader = map.shard(ShardId(0)).and_then(|shard| shard.leader);
                    next.extend(map.nodes.iter().map(|node| node.address.clone()));
                    next.extend(leader.and_then(|leader| map.address_of(leader)).map(str::to_owned));
                }
                Err(error) if matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Throttled(_)) => failure = error,
                Err(error) => return Err(error),
            }
        }
        if Instant::now() >= deadline {
            return Err(failure);
        }
        tokio::time::sleep(ROUND_PAUSE).await;
    }
}

/// A request to a node itself, whatever map it has.
fn unrouted(request: Request) -> RequestMessage {
    RequestMessage { cluster: ClusterTag::UNKNOWN, epoch: MapEpoch(0), generation: Generation::FIRST, request }
}
