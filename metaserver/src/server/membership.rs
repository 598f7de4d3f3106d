//! How a node becomes and stays a member of its cluster: it founds one, joins one, or comes back.
//!
//! Not here: letting others in (`service/placement.rs`). Invariants: a cluster is founded once, by node 1 at its first start,
//! and a crash in the middle is gone on from; a node that comes back is the node it was.

use std::sync::Arc;
use std::time::Duration;

use pando_engine::read;
use pando_types::request::{Join, Request, Response};
use pando_types::shard_map::{ClusterTag, Labels, ShardMap};
use pando_types::{ErrorKind, FsError, NodeId, ShardId};
use tracing::{error, warn};

use super::{Config, DataDir, Replicas, ServerError};
use crate::data_dir::{Identity, read_token_file};
use crate::peers::ask_leader;
use crate::placement::mover;
use crate::service::placement;
use crate::shard::Shard;

/// A cluster that is asked to let a node in may be electing a leader meanwhile.
const JOIN_PATIENCE: Duration = Duration::from_secs(20);
/// How often a member looks whether the map has its address.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(1);
/// The node that founds a cluster.
const FOUNDER: NodeId = NodeId(1);

/// Asks the cluster to let this node in; its directory gets the identity that the answer gives it.
pub(super) async fn join(config: &Config, directory: &mut DataDir, address: &str) -> Result<ShardMap, ServerError> {
    let file = config.token_file.as_deref().ok_or_else(|| ServerError::Join("no token file is given".into()))?;
    let token = read_token_file(file)?
        .ok_or_else(|| ServerError::Join(format!("{} holds no token; `pando node token` prints it", file.display())))?;
    let (labels, object_store) = (config.labels.clone(), config.object_store.clone());
    let address = address.to_owned();
    let request = Request::Join(Join { token: token.clone(), node: None, address, labels, object_store });
    let answer = ask_leader(&config.join, &request, JOIN_PATIENCE).await;
    let joined = match answer.map_err(|e| ServerError::Join(e.detail))? {
        Response::Joined(joined) => joined,
        other => return Err(ServerError::Bug(format!("a join was answered with {other:?}"))),
    };
    let identity = Identity {
        cluster: joined.mount.cluster,
        node: joined.node,
        object_store: joined.mount.object_store,
        s3_endpoint: joined.mount.s3_endpoint,
    };
    directory.join(identity, token);
    Ok(joined.map)
}

/// Starts the replicas that this node has, or the first one of a new cluster.
pub(super) async fn take_place(
    replicas: &Replicas,
    config: &Config,
    founding: bool,
    address: &str,
) -> Result<(), ServerError> {
    let cluster = &replicas.cluster;
    replicas.finish_removals().await?;
    let held = replicas.host.recorded()?;
    for shard in &held {
        replicas.start(*shard).await?;
    }
    if held.is_empty() && founding {
        replicas.start(ShardId(0)).await?.found(FOUNDER, address).await?;
    } else if held.is_empty() && cluster.map().is_err() {
        // A member without replicas knows nothing of its own.
        let answer = ask_leader(&config.join, &Request::ShardMap, JOIN_PATIENCE).await;
        match answer.map_err(|e| ServerError::Join(format!("{}; name members in `join`", e.detail)))? {
            Response::ShardMap(map) => cluster.adopt(map),
            other => return Err(ServerError::Bug(format!("a question for the map was answered with {other:?}"))),
        }
    }
    replicas.start_split().await?;
    match replicas.shard(ShardId(0)) {
        Some(root) if root.is_alone(cluster.node) => settle_alone(replicas, &root, config, address).await,
        // Among others a node is told to them in the background.
        _ => Ok(()),
    }
}

/// A node that is the whole cluster gives it its first map, or its own address of now.
async fn settle_alone(replicas: &Replicas, root: &Shard, config: &Config, address: &str) -> Result<(), ServerError> {
    root.wait_leader().await?;
    // Also for a directory of before there were maps, and for a founding that was cut off.
    if root.read(|view| read::shard_map(view)).await?.is_some() {
        placement::join(replicas, this(replicas, address, &config.labels)).await?;
        return Ok(());
    }
    let mut map = ShardMap::single(FOUNDER, address.to_owned());
    map.replicas = config.replicas;
    map.cluster = ClusterTag::of(replicas.cluster.id());
    map.nodes[0].labels = config.labels.clone();
    match mover::set_map(root, map).await? {
        true => Ok(()),
        false => Err(ServerError::Bug("a new cluster has a shard map already".into())),
    }
}

fn this(replicas: &Replicas, address: &str, labels: &Labels) -> Join {
    let cluster = &replicas.cluster;
    let (token, node) = (cluster.token.clone(), Some(cluster.node));
    Join { token, node, address: address.to_owned(), labels: labels.clone(), object_store: String::new() }
}

/// Sees to it that the map has this node's address and labels; works until it is dropped.
pub(super) async fn announce(replicas: Arc<Replicas>, address: String, labels: Labels) {
    loop {
        tokio::time::sleep(ANNOUNCE_INTERVAL).await;
        let Ok(map) = replicas.cluster.map() else { continue };
        let known = map.node(replicas.cluster.node);
        if known.is_some_and(|node| node.address == address && node.labels == labels) {
            continue;
        }
        let others: Vec<String> = map.nodes.iter().map(|node| node.address.clone()).collect();
        let request = Request::Join(this(&replicas, &address, &labels));
        match ask_leader(&others, &request, ANNOUNCE_INTERVAL).await {
            Ok(Response::Joined(joined)) => replicas.cluster.adopt(joined.map),
            Ok(_) => {}
            Err(FsError { kind: ErrorKind::User, detail, .. }) => {
                error!(detail, "the cluster does not take this node back");
                tokio::time::sleep(JOIN_PATIENCE).await;
            }
            Err(error) => warn!(%error, "the cluster does not know this node's address yet"),
        }
    }
}
