//! On which nodes a shard's replicas should be: a pure function, one small step at a time.
//!
//! Not here: carrying it out (`mover.rs`). Invariants: a step changes one shard by one replica; with all as it should be
//! there is none; replicas are never two in one fault domain while enough domains exist.

use std::collections::{BTreeMap, BTreeSet};

use pando_types::shard_map::{Labels, Node, Shard, ShardMap};
use pando_types::{MapEpoch, NodeId, ShardId};

/// A shard with more is split: an image of it would take minutes.
const SHARD_INODES_MAX: u64 = 100_000_000;

/// The map after the next step, if there is one. `alive`: the nodes that could take a replica now. `settled`: every shard has
/// the replicas that the map says, so that one may be moved for balance alone.
pub(crate) fn next(map: &ShardMap, alive: &BTreeSet<NodeId>, settled: bool) -> Option<ShardMap> {
    let mut held: BTreeMap<NodeId, usize> = BTreeMap::new();
    map.shards.iter().flat_map(|s| &s.replicas).for_each(|node| *held.entry(*node).or_default() += 1);
    let needed = map.shards.iter().enumerate().find_map(|(at, shard)| Some((at, step(map, shard, alive, &held)?)));
    let (at, replicas) = needed.or_else(|| settled.then(|| balance(map, alive, &held)).flatten())?;
    let mut next = map.clone();
    next.epoch = MapEpoch(map.epoch.0 + 1);
    next.shards[at].replicas = replicas;
    Some(next)
}

/// The shard's next set of replicas, if it should have another.
fn step(
    map: &ShardMap,
    shard: &Shard,
    alive: &BTreeSet<NodeId>,
    held: &BTreeMap<NodeId, usize>,
) -> Option<Vec<NodeId>> {
    let fit: Vec<&Node> = map.nodes.iter().filter(|n| !n.draining).collect();
    let (stay, leave): (Vec<NodeId>, Vec<NodeId>) =
        shard.replicas.iter().partition(|id| fit.iter().any(|node| node.id == **id));
    let free = fit.iter().filter(|n| alive.contains(&n.id) && !stay.contains(&n.id)).count();
    let wanted = wanted(usize::from(map.replicas), stay.len(), free);
    let domain = |id: NodeId| map.node(id).map(|n| &n.labels);
    let stays: Vec<&Labels> = stay.iter().filter_map(|id| domain(*id)).collect();
    let newcomer = fit
        .iter()
        .filter(|n| alive.contains(&n.id) && !shard.replicas.contains(&n.id))
        .min_by_key(|n| (crowding(&n.labels, &stays), held.get(&n.id).copied().unwrap_or(0), n.id));
    if stay.len() < wanted
        && let Some(newcomer) = newcomer
    {
        return Some(with(&shard.replicas, newcomer.id));
    }
    if !stay.is_empty()
        && let Some(leaver) = leave.first()
    {
        return Some(without(&shard.replicas, *leaver));
    }
    if stay.len() > wanted {
        return most_crowded(map, &stay).map(|leaver| without(&shard.replicas, leaver));
    }
    // One that shares a fault domain gives way to a node that does not.
    let crowded = most_crowded(map, &stay)?;
    let others: Vec<&Labels> = stay.iter().filter(|id| **id != crowded).filter_map(|id| domain(*id)).collect();
    let present = crowding(domain(crowded)?, &others);
    let newcomer = newcomer.filter(|n| crowding(&n.labels, &others) < present)?;
    Some(with(&shard.replicas, newcomer.id))
}

/// A replica goes from a node to one that has at least two fewer, if that is no worse for the shard's fault domains: which
/// shard's, and its replicas afterwards.
fn balance(map: &ShardMap, alive: &BTreeSet<NodeId>, held: &BTreeMap<NodeId, usize>) -> Option<(usize, Vec<NodeId>)> {
    let count = |id: NodeId| held.get(&id).copied().unwrap_or(0);
    let mut best: Option<(usize, usize, Vec<NodeId>)> = None;
    for (at, shard) in map.shards.iter().enumerate() {
        for from in &shard.replicas {
            let others = without(&shard.replicas, *from);
            let labels: Vec<&Labels> = others.iter().filter_map(|id| map.node(*id)).map(|n| &n.labels).collect();
            let Some(present) = map.node(*from).map(|n| crowding(&n.labels, &labels)) else { continue };
            let fit = map.nodes.iter().filter(|n| {
                !n.draining
                    && alive.contains(&n.id)
                    && !shard.replicas.contains(&n.id)
                    && count(n.id) + 2 <= count(*from)
                    && crowding(&n.labels, &labels) <= present
            });
            let Some(to) = fit.min_by_key(|n| (count(n.id), n.id)) else { continue };
            let gain = count(*from) - count(to.id);
            if best.as_ref().is_none_or(|(most, ..)| gain > *most) {
                best = Some((gain, at, with(&others, to.id)));
            }
        }
    }
    best.map(|(_, at, replicas)| (at, replicas))
}

/// The shard that should be split, if one should: the largest, when it is too large, or when the nodes suffice for the replicas
/// of one shard more. Few shards otherwise: one load spread over more of them makes smaller batches. `inodes`: of each shard.
pub(crate) fn to_split(map: &ShardMap, inodes: &BTreeMap<ShardId, u64>) -> Option<ShardId> {
    if map.shards.iter().any(|shard| !inodes.contains_key(&shard.id)) {
        return None;
    }
    let fit = map.nodes.iter().filter(|node| !node.draining).count();
    let (largest, size) = inodes.iter().max_by_key(|(id, size)| (**size, std::cmp::Reverse(**id)))?;
    let spare = fit >= (map.shards.len() + 1) * usize::from(map.replicas);
    (spare || *size > SHARD_INODES_MAX).then_some(*largest)
}

/// To whom a node that leads so many shards hands one of them: to the member that leads the fewest, if those are at least two
/// fewer. `led`: how many shards each node leads.
pub(crate) fn heir(led: &BTreeMap<NodeId, usize>, here: NodeId, members: &[NodeId]) -> Option<NodeId> {
    let count = |id: NodeId| led.get(&id).copied().unwrap_or(0);
    let least = members.iter().copied().min_by_key(|id| (count(*id), *id))?;
    (count(least) + 2 <= count(here)).then_some(least)
}

/// How many replicas there should be. An even number tolerates no more failures than the odd one below it, and costs more;
/// but what there is already is not given up for that.
fn wanted(target: usize, stay: usize, free: usize) -> usize {
    let most = target.min(stay + free).max(1);
    if most.is_multiple_of(2) && most < target { stay.min(most).max(most - 1) } else { most }
}

/// How much a node shares with others: zones weigh more than racks, and these more than machines.
fn crowding(labels: &Labels, others: &[&Labels]) -> (usize, usize, usize) {
    let shared = |of: fn(&Labels) -> &String| {
        others.iter().filter(|other| !of(labels).is_empty() && of(other) == of(labels)).count()
    };
    (shared(|l| &l.node), shared(|l| &l.rack), shared(|l| &l.zone))
}

/// The replica that shares most with the others; of equals, the youngest node's.
fn most_crowded(map: &ShardMap, replicas: &[NodeId]) -> Option<NodeId> {
    let of = |id: NodeId| {
        let others: Vec<&Labels> =
            replicas.iter().filter(|r| **r != id).filter_map(|r| map.node(*r)).map(|n| &n.labels).collect();
        map.node(id).map(|n| crowding(&n.labels, &others))
    };
    replicas.iter().copied().max_by_key(|id| (of(*id), *id))
}

fn with(replicas: &[NodeId], node: NodeId) -> Vec<NodeId> {
    let mut with: Vec<NodeId> = replicas.to_vec();
    with.push(node);
    with.sort();
    with
}

fn without(replicas: &[NodeId], node: NodeId) -> Vec<NodeId> {
    replicas.iter().copied().filter(|r| *r != node).collect()
}

/// Whether two replicas of a shard share a fault domain, as a sentence for the operator.
pub(crate) fn shared_domain(map: &ShardMap, shard: &Shard) -> Option<String> {
    let nodes: Vec<&Node> = shard.replicas.iter().filter_map(|id| map.node(*id)).collect();
    for (at, a) in nodes.iter().enumerate() {
        for b in &nodes[at + 1..] {
            let shares = |of: fn(&Labels) -> &String| !of(&a.labels).is_empty() && of(&a.labels) == of(&b.labels);
            let what = [("machine", shares(|l| &l.node)), ("rack", shares(|l| &l.rack)), ("zone", shares(|l| &l.zone))];
            if let Some((what, _)) = what.into_iter().find(|(_, shared)| *shared) {
                return Some(format!("replicas of shard {} on nodes {} and {} share a {what}", shard.id, a.id, b.id));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_types::SlotId;

    /// A map with so many nodes, the first of which has the replica; zones as given.
    fn cluster(zones: &[&str]) -> ShardMap {
        let mut map = ShardMap::single(NodeId(1), "h:1".into());
        map.nodes[0].labels.zone = zones[0].into();
        for (at, zone) in zones.iter().enumerate().skip(1) {
            let id = NodeId(at as u64 + 1);
            let labels = Labels { zone: (*zone).into(), ..Labels::default() };
            map.nodes.push(Node { id, address: format!("h:{id}"), labels, draining: false });
        }
        map.next_node = NodeId(zones.len() as u64 + 1);
        map
    }

    fn all(map: &ShardMap) -> BTreeSet<NodeId> {
        map.nodes.iter().map(|n| n.id).collect()
    }

    /// Where the replicas are when there is no further step; every step is valid and moves one replica.
    fn settled(mut map: ShardMap, alive: &BTreeSet<NodeId>) -> Vec<u64> {
        for _ in 0..50 {
            let Some(next) = next(&map, alive, true) else {
                return map.shards[0].replicas.iter().map(|id| id.0).collect();
            };
            assert_eq!((next.validate(), next.epoch.0), (Ok(()), map.epoch.0 + 1));
            let (a, b): (BTreeSet<_>, BTreeSet<_>) =
                (map.shards[0].replicas.iter().collect(), next.shards[0].replicas.iter().collect());
            assert_eq!(a.symmetric_difference(&b).count(), 1);
            map = next;
        }
        panic!("the planner does not come to an end");
    }

    #[test]
    fn a_cluster_grows_to_three_replicas_and_never_to_two() {
        for (nodes, expected) in [(1, vec![1]), (2, vec![1]), (3, vec![1, 2, 3]), (5, vec![1, 2, 3])] {
            let map = cluster(&vec![""; nodes]);
            assert_eq!(settled(map.clone(), &all(&map)), expected);
        }
        let mut map = cluster(&[""; 5]);
        map.replicas = 5;
        assert_eq!(settled(map.clone(), &all(&map)), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn replicas_are_spread_over_zones_while_there_are_enough() {
        let map = cluster(&["a", "a", "a", "b", "c"]);
        assert_eq!(settled(map.clone(), &all(&map)), [1, 4, 5]);
        let map = cluster(&["a", "a", "b"]);
        assert_eq!(settled(map.clone(), &all(&map)), [1, 2, 3], "better two in a zone than one replica");
        let mut later = cluster(&["a", "a", "b", "c"]);
        later.shards[0].replicas = vec![NodeId(1), NodeId(2), NodeId(3)];
        assert_eq!(settled(later.clone(), &all(&later)), [1, 3, 4], "a new zone is made use of");
        assert!(shared_domain(&later, &later.shards[0]).unwrap().contains("nodes 1 and 2 share a zone"));
    }

    #[test]
    fn a_draining_node_is_replaced_first_and_left_then() {
        let mut map = cluster(&[""; 4]);
        map.shards[0].replicas = vec![NodeId(1), NodeId(2), NodeId(3)];
        map.nodes[0].draining = true;
        let first = next(&map, &all(&map), true).unwrap();
        assert_eq!(first.shards[0].replicas.len(), 4);
        assert_eq!(settled(map, &(1..5).map(NodeId).collect()), [2, 3, 4]);
        let mut map = cluster(&[""; 3]);
        map.shards[0].replicas = vec![NodeId(1), NodeId(2), NodeId(3)];
        map.nodes[2].draining = true;
        assert_eq!(settled(map.clone(), &all(&map)), [1, 2], "there is nobody to replace it");
        map.nodes.iter_mut().for_each(|n| n.draining = true);
        assert_eq!(settled(map.clone(), &all(&map)), [1, 2, 3], "the last copies stay");
    }

    #[test]
    fn nodes_that_do_not_answer_get_no_replicas_and_lose_none() {
        let mut map = cluster(&[""; 4]);
        map.shards[0].replicas = vec![NodeId(1), NodeId(2), NodeId(3)];
        assert_eq!(settled(map.clone(), &BTreeSet::from([NodeId(1), NodeId(4)])), [1, 2, 3]);
        let map = cluster(&[""; 3]);
        assert_eq!(settled(map, &BTreeSet::from([NodeId(1), NodeId(2)])), [1]);
    }

    #[test]
    fn replicas_and_leaders_are_spread_evenly_and_then_left_alone() {
        let mut map = cluster(&[""; 6]);
        map.shards[0].replicas = vec![NodeId(1), NodeId(2), NodeId(3)];
        for cut in [100, 200, 300] {
            map.split(ShardId(0), &[(SlotId(cut), SlotId(cut + 99))]).unwrap();
        }
        assert_eq!(next(&map, &all(&map), false), None, "not while others are on their way");
        let mut steps = 0;
        while let Some(then) = next(&map, &all(&map), true) {
            assert_eq!(then.validate(), Ok(()));
            assert!(then.shards.iter().all(|shard| shard.replicas.len() == 3));
            (map, steps) = (then, steps + 1);
            assert!(steps < 20, "the planner does not come to an end");
        }
        let held = |id| map.shards.iter().filter(|shard| shard.replicas.contains(&NodeId(id))).count();
        assert_eq!((1..=6).map(held).collect::<Vec<_>>(), [2; 6]);

        let sizes = |sizes: [u64; 4]| (0..4).map(ShardId).zip(sizes).collect::<BTreeMap<_, _>>();
        assert_eq!(to_split(&map, &sizes([5, 5, 9, 5])), None);
        assert_eq!(to_split(&map, &sizes([5, 5, SHARD_INODES_MAX + 1, 5])), Some(ShardId(2)));
        assert_eq!(to_split(&map, &BTreeMap::new()), None, "a shard does not answer");
        let six = cluster(&[""; 6]);
        assert_eq!(to_split(&six, &BTreeMap::from([(ShardId(0), 5)])), Some(ShardId(0)));
        let five = cluster(&[""; 5]);
        assert_eq!(to_split(&five, &BTreeMap::from([(ShardId(0), 5)])), None);

        let led = BTreeMap::from([(NodeId(1), 4), (NodeId(2), 1)]);
        let members = [1, 2, 3].map(NodeId);
        assert_eq!(heir(&led, NodeId(1), &members), Some(NodeId(3)));
        assert_eq!(heir(&led, NodeId(2), &members), None);
        assert_eq!(heir(&BTreeMap::from([(NodeId(1), 1)]), NodeId(1), &members), None, "one more is no imbalance");
    }

    /// The removal of a node leaves a gap, which the next one fills.
    #[test]
    fn a_removed_node_is_replaced() {
        let mut map = cluster(&[""; 4]);
        map.nodes.remove(1);
        map.shards[0].replicas = vec![NodeId(1), NodeId(3)];
        assert_eq!(settled(map.clone(), &all(&map)), [1, 3, 4]);
    }
}
