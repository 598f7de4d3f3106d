//! Nodes that join, move, drain and leave; leaders that change. Answered by the leader of shard 0.
//!
//! Not here: what follows from a changed map (`placement/mover.rs`). Invariant: of two changes made of the same map one is
//! refused by the state and made again of the newer one.

use std::sync::Arc;
use std::time::Duration;

use pando_types::limits::SHARDS_MAX;
use pando_types::request::{Join, Joined, NodeChange, NodeStatus, Replica, Request, Response};
use pando_types::shard_map::{Node, ShardMap};
use pando_types::{Errno, ErrorKind, FsError, MapEpoch, NodeId, ShardId};
use tracing::info;

use crate::placement::{SPREAD_LAST, mover, planner};
use crate::replicas::Replicas;
use crate::shard::Shard;

/// Changes of the map that may be faster than ours before we give up.
const TRIES: usize = 8;
/// How long a node has for its line in the status.
const STATUS_TIMEOUT: Duration = Duration::from_millis(800);

/// Lets a node in, or takes note that a member has moved.
pub(crate) async fn join(here: &Replicas, join: Join) -> Result<Response, FsError> {
    if !join.token.is(&here.cluster.token) {
        return Err(refused(Errno::EACCES, "the token is not that of this cluster; `pando node token` prints it"));
    }
    let store = &here.cluster.mount.object_store;
    if !join.object_store.is_empty() && join.object_store != *store {
        let why =
            format!("its files are stored in {store}, but {} is configured; leave object_store out", join.object_store);
        return Err(refused(Errno::EINVAL, &why));
    }
    let root = here.led(ShardId(0))?;
    let voters = voters(here, &join).await?;
    let mut id = NodeId(0);
    let map = change_map(here, &root, |map| {
        let (node, changed) = admit(map, &join, &voters)?;
        id = node;
        Ok(changed)
    })
    .await?;
    info!(node = %id, address = join.address, "a node is a member");
    Ok(Response::Joined(Joined { node: id, mount: here.cluster.mount.clone(), map }))
}

/// Those whose votes count in any shard, as far as their nodes answer; asked only if a node without id comes from the address
/// of one that has an id.
async fn voters(here: &Replicas, join: &Join) -> Result<Vec<NodeId>, FsError> {
    let map = here.cluster.map()?;
    let is_known = join.node.is_none() && map.nodes.iter().any(|node| node.address == join.address);
    if !is_known {
        return Ok(Vec::new());
    }
    let (nodes, _) = nodes(here, &map).await;
    let replicas = nodes.into_iter().filter_map(|node| node.replicas).flatten();
    Ok(replicas.flat_map(|replica| replica.voters).collect())
}

/// The node's id, and whether the map had to be changed for it. `voters`: whatever the map says, a voter's id is never given
/// to a node that has not got its log.
fn admit(map: &mut ShardMap, join: &Join, voters: &[NodeId]) -> Result<(NodeId, bool), FsError> {
    let holds = |map: &ShardMap, id: NodeId| {
        voters.contains(&id) || map.shards.iter().any(|shard| shard.replicas.contains(&id))
    };
    let same_address = map.nodes.iter().find(|n| n.address == join.address && Some(n.id) != join.node).map(|n| n.id);
    if let Some(other) = same_address {
        // A node that asked before and did not live to hear the answer asks again.
        if join.node.is_none() && !holds(map, other) {
            return Ok((other, false));
        }
        let why = format!(
            "node {other} is already a member at {}; listen elsewhere, or remove that one with `pando node remove {other}`",
            join.address
        );
        return Err(refused(Errno::EEXIST, &why));
    }
    let Some(id) = join.node else {
        let id = map.next_node;
        map.next_node = NodeId(id.0 + 1);
        map.nodes.push(Node { id, address: join.address.clone(), labels: join.labels.clone(), draining: false });
        return Ok((id, true));
    };
    let Some(node) = map.nodes.iter_mut().find(|n| n.id == id) else {
        let why = format!("node {id} was removed from this cluster; empty its data directory and let it join again");
        return Err(refused(Errno::ESTALE, &why));
    };
    let changed = node.address != join.address || node.labels != join.labels;
    node.address.clone_from(&join.address);
    node.labels.clone_from(&join.labels);
    Ok((id, changed))
}

/// Drains a node, takes that back, or removes it.
pub(super) async fn change_node(here: &Replicas, id: NodeId, change: NodeChange) -> Result<Response, FsError> {
    let root = here.led(ShardId(0))?;
    change_map(here, &root, |map| {
        let unknown =
            || refused(Errno::ENOENT, &format!("there is no node {id}; `pando node list` shows those there are"));
        let node = map.nodes.iter_mut().find(|n| n.id == id).ok_or_else(unknown)?;
        match change {
            NodeChange::Drain | NodeChange::Undrain => {
                let draining = change == NodeChange::Drain;
                Ok(std::mem::replace(&mut node.draining, draining) != draining)
            }
            NodeChange::Remove => remove(map, id).map(|()| true),
        }
    })
    .await?;
    Ok(Response::Done)
}

fn remove(map: &mut ShardMap, id: NodeId) -> Result<(), FsError> {
    for shard in &mut map.shards {
        shard.replicas.retain(|node| *node != id);
        if shard.replicas.is_empty() {
            let why = format!("node {id} has the only replica of shard {}; add nodes and drain it first", shard.id);
            return Err(refused(Errno::EBUSY, &why));
        }
        shard.leader = shard.leader.filter(|leader| *leader != id);
    }
    map.nodes.retain(|node| node.id != id);
    Ok(())
}

/// Hands leadership of a shard to another node.
pub(super) async fn transfer(here: &Replicas, shard: ShardId, to: NodeId) -> Result<Response, FsError> {
    let shard = match here.led(shard) {
        Ok(led) => led,
        Err(error) if shard == ShardId(0) || here.cluster.map()?.shard(shard).is_none() => return Err(error),
        // Who leads shard 0 is asked, and knows who leads this one.
        Err(_) if here.led(ShardId(0)).is_ok() => {
            return here.ask_shard(shard, Request::TransferShard { shard, to }).await;
        }
        Err(error) => return Err(error),
    };
    if !shard.group.members().contains_key(&to) {
        return Err(refused(Errno::EINVAL, &format!("node {to} has no replica of shard {}", shard.id)));
    }
    shard.group.transfer(to).await.map_err(|e| FsError::unavailable(e.to_string()))?;
    Ok(Response::Done)
}

/// Writes into the map that a shard hands about half of what it has to a new one; its leader sees to it.
pub(crate) async fn split(here: &Replicas, shard: ShardId) -> Result<Response, FsError> {
    let root = here.led(ShardId(0))?;
    if here.cluster.map()?.shard(shard).is_none() {
        return Err(unknown_shard(shard));
    }
    let half = match here.led(shard) {
        Ok(_) => half_of(here, shard).await?,
        Err(_) => here.ask_shard(shard, Request::HalfOf { shard }).await?,
    };
    let Response::Slots(slots) = half else {
        return Err(FsError::bug("a question for slots was answered with something else"));
    };
    let map = change_map(here, &root, |map| {
        let whole = || refused(Errno::EINVAL, &format!("shard {shard} has nothing that it could hand over"));
        if map.shards.len() >= SHARDS_MAX {
            return Err(refused(Errno::ENOSPC, &format!("there are {SHARDS_MAX} shards already")));
        }
        map.split(shard, &slots).ok_or_else(whole).map(|_| true)
    });
    let map = map.await?;
    info!(%shard, "a shard is split");
    Ok(Response::ShardMap(map))
}

pub(super) async fn half_of(here: &Replicas, shard: ShardId) -> Result<Response, FsError> {
    let shard = here.led(shard)?;
    let half = shard.read(|view| pando_engine::read::half(view, shard.id, SPREAD_LAST)).await?;
    Ok(Response::Slots(half.runs().to_vec()))
}

/// Writes into the map that a replica is elsewhere; the shard's leader sees to it.
pub(super) async fn move_replica(
    here: &Replicas,
    shard: ShardId,
    from: NodeId,
    to: NodeId,
) -> Result<Response, FsError> {
    let root = here.led(ShardId(0))?;
    change_map(here, &root, |map| {
        let fit = map.node(to).is_some_and(|node| !node.draining);
        let moved = map.shards.iter_mut().find(|s| s.id == shard).ok_or_else(|| unknown_shard(shard))?;
        if !fit {
            return Err(refused(
                Errno::EINVAL,
                &format!("node {to} is not there or is draining; see `pando node list`"),
            ));
        }
        if !moved.replicas.contains(&from) || moved.replicas.contains(&to) {
            let why = format!(
                "shard {shard} has replicas on nodes {}; move one of them to another node",
                list(&moved.replicas)
            );
            return Err(refused(Errno::EINVAL, &why));
        }
        moved.replicas.retain(|node| *node != from);
        moved.replicas.push(to);
        moved.replicas.sort();
        Ok(true)
    })
    .await?;
    Ok(Response::Done)
}

fn unknown_shard(shard: ShardId) -> FsError {
    refused(Errno::ENOENT, &format!("there is no shard {shard}; `pando shard list` shows those there are"))
}

/// Makes the next map of the present one until it is taken; `change` says whether there is anything to change.
async fn change_map(
    here: &Replicas,
    root: &Arc<Shard>,
    mut change: impl FnMut(&mut ShardMap) -> Result<bool, FsError>,
) -> Result<ShardMap, FsError> {
    for _ in 0..TRIES {
        let present = root.read(|view| pando_engine::read::shard_map(view)).await?;
        let mut map = present.ok_or_else(|| FsError::unavailable("the cluster is being founded"))?;
        if !change(&mut map)? {
            return Ok(map);
        }
        map.epoch = MapEpoch(map.epoch.0 + 1);
        map.validate().map_err(|why| refused(Errno::EINVAL, &why))?;
        if mover::set_map(root, map.clone()).await? {
            here.cluster.adopt(map.clone());
            return Ok(map);
        }
    }
    Err(FsError::unavailable("the shard map is being changed by others"))
}

/// Every node with its replicas, and what is not as it should be.
pub(super) async fn nodes(here: &Replicas, map: &ShardMap) -> (Vec<NodeStatus>, Vec<String>) {
    let asked = map.nodes.iter().map(|node| async move {
        let replicas = if node.id == here.cluster.node {
            Some(here.list())
        } else {
            let asked = here.nodes.ask(node.id, Request::Replicas);
            match tokio::time::timeout(STATUS_TIMEOUT, asked).await {
                Ok(Ok(Response::Replicas(replicas))) => Some(replicas),
                _ => None,
            }
        };
        NodeStatus { id: node.id, replicas }
    });
    let nodes = futures::future::join_all(asked).await;
    let problems = problems(map, &nodes);
    (nodes, problems)
}

/// A sentence for each thing that is not as it should be.
fn problems(map: &ShardMap, nodes: &[NodeStatus]) -> Vec<String> {
    let mut problems = Vec::new();
    for node in nodes.iter().filter(|node| node.replicas.is_none()) {
        let address = map.address_of(node.id).unwrap_or("an unknown address");
        problems.push(format!(
            "node {0} at {address} does not answer; start it, or `pando node remove {0}` if it will not come back",
            node.id
        ));
    }
    for shard in &map.shards {
        let of = |node: &'_ NodeStatus| -> Option<Replica> {
            node.replicas.as_ref()?.iter().find(|r| r.shard == shard.id).cloned()
        };
        let found: Vec<(NodeId, Replica)> = nodes.iter().filter_map(|n| Some((n.id, of(n)?))).collect();
        let failed = found.iter().filter(|(_, replica)| !replica.working);
        problems.extend(failed.map(|(id, _)| {
            format!(
                "the replica of shard {} on node {id} has failed; its log says why, restart it once that is mended",
                shard.id
            )
        }));
        let works = |id: &NodeId| found.iter().any(|(node, replica)| node == id && replica.working);
        let up = shard.replicas.iter().filter(|id| works(id)).count();
        let (all, wanted) = (shard.replicas.len(), usize::from(map.replicas));
        if up < all {
            let fate = if up * 2 > all { "it works on" } else { "it takes no changes" };
            problems.push(format!("shard {} has {up} of its {all} replicas, {fate}", shard.id));
        }
        if all < wanted && map.nodes.len() > 1 {
            problems.push(format!(
                "shard {} has {all} replicas instead of {wanted}; add nodes with `pando node add`",
                shard.id
            ));
        }
        let led = found.iter().find(|(id, replica)| replica.leader == Some(*id));
        if let Some((_, leader)) = led.filter(|(_, leader)| leader.voters != shard.replicas) {
            let (from, to) = (list(&leader.voters), list(&shard.replicas));
            problems.push(format!("shard {} is moving from nodes {from} to nodes {to}", shard.id));
        }
        problems.extend(planner::shared_domain(map, shard));
    }
    for node in map.nodes.iter().filter(|node| node.draining) {
        let held = map.shards.iter().filter(|shard| shard.replicas.contains(&node.id)).count();
        problems.push(match held {
            0 => format!("node {0} is drained and can be switched off and removed (`pando node remove {0}`)", node.id),
            held => format!("node {} is draining, {held} replicas are still on it", node.id),
        });
    }
    problems
}

fn list(nodes: &[NodeId]) -> String {
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
}

fn refused(errno: Errno, why: &str) -> FsError {
    FsError { kind: ErrorKind::User, errno, detail: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_types::request::Secret;
    use pando_types::shard_map::Labels;

    fn join(node: Option<u64>, address: &str) -> Join {
        Join {
            token: Secret("t".into()),
            node: node.map(NodeId),
            address: address.into(),
            labels: Labels::default(),
            object_store: String::new(),
        }
    }

    #[test]
    fn a_new_node_gets_a_new_id_and_asking_again_is_harmless() {
        let mut map = ShardMap::single(NodeId(1), "a:1".into());
        assert_eq!(admit(&mut map, &join(None, "b:1"), &[]).unwrap(), (NodeId(2), true));
        assert_eq!(admit(&mut map, &join(None, "b:1"), &[]).unwrap(), (NodeId(2), false));
        assert_eq!(admit(&mut map, &join(None, "c:1"), &[]).unwrap(), (NodeId(3), true));
        assert!(
            admit(&mut map, &join(None, "b:1"), &[NodeId(2)]).is_err(),
            "a voter that has lost its log is another node"
        );
        remove(&mut map, NodeId(3)).unwrap();
        assert_eq!(admit(&mut map, &join(None, "c:1"), &[]).unwrap(), (NodeId(4), true), "ids are not used again");
        assert_eq!(map.validate(), Ok(()));
    }

    #[test]
    fn what_would_confuse_nodes_is_refused() {
        let mut map = ShardMap::single(NodeId(1), "a:1".into());
        let error = admit(&mut map, &join(None, "a:1"), &[]).unwrap_err();
        assert!(error.detail.contains("already a member at a:1"), "{}", error.detail);
        let error = admit(&mut map, &join(Some(7), "b:1"), &[]).unwrap_err();
        assert!(error.detail.contains("node 7 was removed"), "{}", error.detail);
        assert!(remove(&mut map, NodeId(1)).unwrap_err().detail.contains("only replica"));
        assert_eq!(admit(&mut map, &join(Some(1), "z:9"), &[]).unwrap(), (NodeId(1), true), "it has moved");
        assert_eq!(admit(&mut map, &join(Some(1), "z:9"), &[]).unwrap(), (NodeId(1), false));
    }

    #[test]
    fn the_status_says_what_is_wrong() {
        let mut map = ShardMap::single(NodeId(1), "a:1".into());
        admit(&mut map, &join(None, "b:1"), &[]).unwrap();
        admit(&mut map, &join(None, "c:1"), &[]).unwrap();
        map.shards[0].replicas = vec![NodeId(1), NodeId(2), NodeId(3)];
        let voters = map.shards[0].replicas.clone();
        let replica =
            Replica { shard: ShardId(0), leader: Some(NodeId(1)), term: 1, applied: 1, voters, working: true };
        let node = |id, up: bool| NodeStatus { id: NodeId(id), replicas: up.then(|| vec![replica.clone()]) };
        assert_eq!(problems(&map, &[node(1, true), node(2, true), node(3, true)]), Vec::<String>::new());
        let found = problems(&map, &[node(1, true), node(2, true), node(3, false)]);
        assert!(
            found[0].contains("node 3 at c:1 does not answer") && found[1].contains("2 of its 3 replicas, it works on")
        );
        let found = problems(&map, &[node(1, true), node(2, false), node(3, false)]);
        assert!(found[2].contains("it takes no changes"), "{found:?}");
        let halted = Replica { working: false, ..replica.clone() };
        let halted = NodeStatus { id: NodeId(3), replicas: Some(vec![halted]) };
        let found = problems(&map, &[node(1, true), node(2, true), halted]);
        assert!(found[0].contains("node 3 has failed") && found[1].contains("2 of its 3"), "{found:?}");
        map.shards[0].replicas.pop();
        let found = problems(&map, &[node(1, true), node(2, true), node(3, true)]);
        assert!(found.iter().any(|p| p.contains("is moving from nodes 1, 2, 3 to nodes 1, 2")), "{found:?}");
    }
}
