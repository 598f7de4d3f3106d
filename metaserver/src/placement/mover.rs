//! Brings replicas to where the map says they should be, and the map to where the planner says.
//!
//! Runs on every node; the leader of shard 0 changes the map, the leader of each shard the members of its group. Not here:
//! what should be where (`planner.rs`). Invariants: a member is added before another is dropped; whatever is interrupted is
//! done again, since each round starts from what there is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pando_engine::keys::slots::Slots;
use pando_engine::read;
use pando_raft::Host;
use pando_types::request::{Replica, Request, Response};
use pando_types::shard_map::ShardMap;
use pando_types::{Command, Errno, FsError, NodeId, Reply, ShardId};
use tokio::task::AbortHandle;
use tracing::{info, warn};

use super::planner;
use crate::replicas::Replicas;
use crate::service::placement;
use crate::shard::Shard;
use crate::tasks::Tasks;

/// How often the cluster is looked over; a change of the map is looked at at once.
const INTERVAL: Duration = Duration::from_millis(500);
/// How often it is looked whether a shard should be split.
const SPLIT_INTERVAL: Duration = Duration::from_secs(10);
/// Between two shards that are handed over for balance: elections after a fault have ended by then.
const SPREAD_INTERVAL: Duration = Duration::from_secs(5);
/// A new member has this long to catch up; then it is begun anew, from where it is.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);
/// A node that does not answer within this is not alive.
const PING_TIMEOUT: Duration = Duration::from_secs(1);

/// Works until it is dropped.
pub(crate) async fn run(replicas: Arc<Replicas>) {
    let mut changes = replicas.cluster.changes();
    let (mut spread, mut looked) = (Instant::now(), Instant::now());
    let mut moving = BTreeMap::new();
    loop {
        if tokio::time::timeout(INTERVAL, changes.changed()).await.is_ok_and(|changed| changed.is_err()) {
            return;
        }
        let led: Vec<Arc<Shard>> = replicas.shards().into_iter().filter(|shard| shard.group.is_leader()).collect();
        let Some(map) = replicas.cluster.map().ok().filter(|_| !led.is_empty()) else { continue };
        let is_small = map.nodes.len() == 1 && map.shards.iter().all(|shard| shard.replicas.len() == 1);
        let found = if is_small { BTreeMap::new() } else { ask_all(&replicas, &map).await };
        if !is_small && spread.elapsed() > SPREAD_INTERVAL {
            spread = Instant::now();
            let spread = spread_leaders(&replicas, &led, &map, &found).await;
            log_failure(spread, "shards are led as before for now");
        }
        moving.retain(|_, task: &mut Tasks| !task.0.iter().all(AbortHandle::is_finished));
        for shard in led {
            if shard.id == ShardId(0) && !is_small {
                log_failure(plan(&replicas, &shard, &found).await, "the shard map is left as it is for now");
            }
            if shard.id == ShardId(0) && looked.elapsed() > SPLIT_INTERVAL {
                looked = Instant::now();
                log_failure(split_if_needed(&replicas, &map, &found).await, "no shard is split for now");
            }
            stop_former(&replicas, &shard, &map, &found).await;
            // A member that does not catch up keeps its own shard waiting, not the others.
            moving.entry(shard.id).or_insert_with(|| {
                let replicas = replicas.clone();
                Tasks(vec![tokio::spawn(async move { follow(&replicas, &shard).await }).abort_handle()])
            });
        }
    }
}

/// Gives a shard the slots and the members that the map says.
async fn follow(replicas: &Replicas, shard: &Shard) {
    log_failure(hand_slots_over(replicas, shard).await, "a shard is not split yet");
    log_failure(follow_map(replicas, shard).await, "the members of a shard are left as they are for now");
}

fn log_failure(result: Result<(), FsError>, what: &str) {
    if let Err(error) = result {
        warn!(%error, "{what}");
    }
}

/// Changes the map by one step of the planner.
async fn plan(replicas: &Replicas, root: &Shard, found: &BTreeMap<NodeId, Vec<Replica>>) -> Result<(), FsError> {
    let map = replicas.cluster.map()?;
    let alive = found.keys().copied().collect();
    let Some(next) = planner::next(&map, &alive, is_settled(&map, found)) else { return Ok(()) };
    for (old, new) in map.shards.iter().zip(&next.shards).filter(|(old, new)| old != new) {
        info!(shard = %old.id, from = ?old.replicas, to = ?new.replicas, "replicas are moved");
    }
    set_map(root, next).await.map(|_| ())
}

/// Splits a shard that is too large, or one more for nodes that have nothing to do.
async fn split_if_needed(
    replicas: &Replicas,
    map: &ShardMap,
    found: &BTreeMap<NodeId, Vec<Replica>>,
) -> Result<(), FsError> {
    let alone = map.nodes.len() == 1;
    if !alone && !is_settled(map, found) {
        return Ok(());
    }
    let mut inodes = BTreeMap::new();
    for shard in &map.shards {
        inodes.insert(shard.id, replicas.totals(shard.id).await?.inodes);
    }
    match planner::to_split(map, &inodes) {
        Some(shard) => placement::split(replicas, shard).await.map(|_| ()),
        None => Ok(()),
    }
}

/// Whether every shard has the replicas that the map says, and all of them work.
fn is_settled(map: &ShardMap, found: &BTreeMap<NodeId, Vec<Replica>>) -> bool {
    map.shards.iter().all(|shard| {
        shard.replicas.iter().all(|node| {
            let replica = found.get(node).and_then(|held| held.iter().find(|replica| replica.shard == shard.id));
            replica.is_some_and(|replica| replica.working && replica.voters == shard.replicas)
        })
    })
}

/// Hands one shard over if this node leads more than its part.
async fn spread_leaders(
    replicas: &Replicas,
    led: &[Arc<Shard>],
    map: &ShardMap,
    found: &BTreeMap<NodeId, Vec<Replica>>,
) -> Result<(), FsError> {
    if !is_settled(map, found) {
        return Ok(());
    }
    let mut counts: BTreeMap<NodeId, usize> = BTreeMap::new();
    for (node, held) in found {
        counts.insert(*node, held.iter().filter(|replica| replica.leader == Some(*node)).count());
    }
    for shard in led {
        if let Some(heir) = planner::heir(&counts, replicas.cluster.node, &shard.group.voters()) {
            info!(shard = %shard.id, to = %heir, "a shard is handed over: this node leads more than its part");
            shard.group.transfer(heir).await.map_err(|e| FsError::unavailable(e.to_string()))?;
            return Ok(());
        }
    }
    Ok(())
}

/// Splits off what the map says is no longer the shard's: each part to the shard that begins with it.
async fn hand_slots_over(replicas: &Replicas, shard: &Shard) -> Result<(), FsError> {
    let map = map_of_state(replicas, shard).await?;
    let surplus = shard.territory().slots.without(&Slots::of(map.slots_of(shard.id)));
    if surplus.is_empty() {
        return Ok(());
    }
    let members = shard.group.members();
    if shard.group.settled_at().is_none() || !members.keys().eq(shard.group.voters().iter()) {
        return Err(FsError::unavailable("its members are changing"));
    }
    let mark = Host::first_mark(members).map_err(|e| FsError::bug(e.to_string()))?;
    for other in map.shards.iter().filter(|other| other.id != shard.id) {
        let slots = surplus.both(&Slots::of(map.slots_of(other.id))).runs().to_vec();
        if slots.is_empty() {
            continue;
        }
        match shard.proposer.propose_own(Command::Split { shard: other.id, slots, mark: mark.clone() }).await? {
            Reply::Done => info!(shard = %shard.id, new = %other.id, "a shard has been split"),
            Reply::Refused(Errno::EAGAIN) => return Err(FsError::unavailable("changes are under way in it")),
            reply => return Err(FsError::bug(format!("a split was answered with {reply:?}"))),
        }
    }
    Ok(())
}

/// Writes the next map; false if somebody else was faster.
pub(crate) async fn set_map(root: &Shard, map: ShardMap) -> Result<bool, FsError> {
    match root.proposer.propose_own(Command::SetShardMap(Box::new(map))).await? {
        Reply::Done => Ok(true),
        Reply::Refused(Errno::EAGAIN) => Ok(false),
        other => Err(FsError::bug(format!("a shard map was answered with {other:?}"))),
    }
}

/// The nodes that answer, with their replicas.
async fn ask_all(replicas: &Replicas, map: &ShardMap) -> BTreeMap<NodeId, Vec<Replica>> {
    let pings = map.nodes.iter().map(|node| async move {
        if node.id == replicas.cluster.node {
            return Some((node.id, replicas.list()));
        }
        let asked = replicas.nodes.ask(node.id, Request::Replicas);
        match tokio::time::timeout(PING_TIMEOUT, asked).await {
            Ok(Ok(Response::Replicas(held))) => Some((node.id, held)),
            _ => None,
        }
    });
    futures::future::join_all(pings).await.into_iter().flatten().collect()
}

/// A node that was away when its replica was dropped is told so.
async fn stop_former(replicas: &Replicas, shard: &Shard, map: &ShardMap, found: &BTreeMap<NodeId, Vec<Replica>>) {
    let Some(wanted) = map.shard(shard.id).map(|shard| &shard.replicas) else { return };
    // Before the change of members is committed another leader may take it back, and would count a voter without a log.
    let Some(members_at) = shard.group.settled_at() else { return };
    let members = shard.group.members();
    for (node, held) in found {
        let former = !wanted.contains(node) && !members.contains_key(node);
        if former && held.iter().any(|replica| replica.shard == shard.id) {
            let cluster = replicas.cluster.id().to_owned();
            let request = Request::StopReplica { cluster, shard: shard.id, members_at };
            log_failure(
                replicas.nodes.ask(*node, request).await.map(|_| ()),
                "a former member keeps its replica for now",
            );
        }
    }
}

/// Gives the shard the members that the map says, as far as it can.
async fn follow_map(replicas: &Replicas, shard: &Shard) -> Result<(), FsError> {
    let map = map_of_state(replicas, shard).await?;
    let Some(wanted) = map.shard(shard.id).map(|shard| shard.replicas.clone()) else { return Ok(()) };
    let members = shard.group.voters();
    if members == wanted || wanted.is_empty() {
        return Ok(());
    }
    if !wanted.contains(&replicas.cluster.node) {
        return hand_over(shard, &wanted, &members).await;
    }
    let cluster = replicas.cluster.id().to_owned();
    for node in wanted.iter().filter(|node| !members.contains(node)) {
        let slots = shard.territory().slots.runs().to_vec();
        let request = Request::StartReplica { cluster: cluster.clone(), shard: shard.id, slots };
        replicas.nodes.ask(*node, request).await?;
    }
    let address = |node: &NodeId| Some((*node, map.address_of(*node)?.to_owned()));
    let next: BTreeMap<NodeId, String> = wanted.iter().filter_map(address).collect();
    let changed = tokio::time::timeout(CHANGE_TIMEOUT, shard.group.change_members(next)).await;
    let late = || FsError::unavailable("a new member has not caught up in time");
    changed.map_err(|_| late())?.map_err(|e| FsError::unavailable(e.to_string()))?;
    info!(shard = %shard.id, ?members, ?wanted, "the members of a shard have changed");
    Ok(())
}

/// A leader that shall not be a member any more lets another one see to it.
async fn hand_over(shard: &Shard, wanted: &[NodeId], members: &[NodeId]) -> Result<(), FsError> {
    let Some(heir) = wanted.iter().find(|node| members.contains(node)) else {
        return Err(FsError::unavailable("none of the wanted members is one yet"));
    };
    shard.group.transfer(*heir).await.map_err(|e| FsError::unavailable(e.to_string()))
}

/// The newest map: of shard 0's own state where it is led from here.
async fn map_of_state(replicas: &Replicas, shard: &Shard) -> Result<Arc<ShardMap>, FsError> {
    if shard.id == ShardId(0)
        && let Some(map) = shard.read(|view| read::shard_map(view)).await?
    {
        return Ok(Arc::new(map));
    }
    replicas.cluster.map()
}

/// Where other nodes listen. A node that comes back without a replica of shard 0 has no map: it knows the members of its groups.
fn others(replicas: &Replicas) -> Vec<String> {
    let here = replicas.cluster.node;
    if let Ok(map) = replicas.cluster.map() {
        return map.nodes.iter().filter(|node| node.id != here).map(|node| node.address.clone()).collect();
    }
    let members = replicas.shards().into_iter().flat_map(|shard| shard.group.members());
    let others: BTreeMap<NodeId, String> = members.filter(|(node, _)| *node != here).collect();
    others.into_values().collect()
}

/// How often a node without a replica of shard 0 asks the others for the map.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// The same while it has none.
const ASK_FIRST: Duration = Duration::from_millis(100);

/// Keeps the map of a node that does not hold shard 0's state fresh; works until it is dropped.
pub(crate) async fn ask_for_map(replicas: Arc<Replicas>) {
    let mut turn = 0;
    loop {
        let pause = if replicas.cluster.map().is_ok() { ASK_INTERVAL } else { ASK_FIRST };
        let _ = tokio::time::timeout(pause, replicas.cluster.behind.notified()).await;
        if replicas.shard(ShardId(0)).is_some() {
            continue;
        }
        let others = others(&replicas);
        let Some(address) = others.get(turn % others.len().max(1)) else { continue };
        turn += 1;
        if let Ok(Response::ShardMap(map)) = replicas.nodes.ask_at(address, Request::ShardMap).await {
            // Who leads is known to the members; here it would grow old.
            let ids: Vec<ShardId> = map.shards.iter().map(|shard| shard.id).collect();
            replicas.cluster.adopt(ids.into_iter().fold(map, |map, id| map.led_by(id, None)));
        }
    }
}
