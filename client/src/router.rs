//! Where a slot's requests go: slot -> shard -> address of its leader, as far as this client knows.
//!
//! Not here: retrying. Invariants: the map's epoch never goes back; a wrong guess costs a redirect, never a wrong answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use pando_rpc::Pool;
use pando_types::epoch::{Generation, MapEpoch};
use pando_types::shard_map::{ClusterTag, ShardMap};
use pando_types::{NodeId, ShardId, SlotId};

/// The routing state of a client.
pub(crate) struct Router {
    pool: Pool,
    /// Where the client was told to go; used until there is a map, and in turn with replicas that do not answer.
    seeds: Vec<String>,
    /// Which of them is asked now.
    seed: AtomicUsize,
    table: RwLock<Table>,
    generation: AtomicU64,
    /// Whether the last try failed, so that an outage is logged once.
    out: AtomicBool,
}

#[derive(Default)]
struct Table {
    map: Option<ShardMap>,
    /// Whom to ask for a shard, where that is not the leader of the map.
    choice: HashMap<ShardId, Choice>,
    /// Leaders of the map that could not answer: whoever still names them is behind.
    failed: HashMap<ShardId, NodeId>,
}

/// Places to ask are the replicas in the map's order, then the seed.
#[derive(Clone, Copy)]
enum Choice {
    Replica(NodeId),
    Seed,
}

impl Router {
    /// A router that knows these servers, at least one.
    pub(crate) fn new<'a>(seeds: impl IntoIterator<Item = &'a str>, pool: Pool) -> Router {
        Router {
            pool,
            seeds: seeds.into_iter().map(|seed| seed.trim().to_owned()).collect(),
            seed: AtomicUsize::new(0),
            table: RwLock::default(),
            generation: AtomicU64::new(Generation::FIRST.0),
            out: AtomicBool::new(false),
        }
    }

    /// The connections.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Epoch of the map in use; 0 before there is one.
    pub(crate) fn epoch(&self) -> MapEpoch {
        self.read(|t| t.map.as_ref().map_or(MapEpoch(0), |m| m.epoch))
    }

    /// Whose map is in use; unknown before there is one.
    pub(crate) fn cluster(&self) -> ClusterTag {
        self.read(|t| t.map.as_ref().map_or(ClusterTag::UNKNOWN, |m| m.cluster))
    }

    /// Highest generation seen.
    pub(crate) fn generation(&self) -> Generation {
        Generation(self.generation.load(Ordering::Relaxed))
    }

    /// A message carried this generation.
    pub(crate) fn saw(&self, generation: Generation) {
        self.generation.fetch_max(generation.0, Ordering::Relaxed);
    }

    /// The shard that owns a slot; shard 0 before there is a map.
    pub(crate) fn shard(&self, slot: SlotId) -> ShardId {
        self.read(|t| t.map.as_ref().and_then(|m| m.shard_of(slot)).map_or(ShardId(0), |s| s.id))
    }

    /// Every shard, with one of its slots; shard 0 before there is a map.
    pub(crate) fn shards(&self) -> Vec<(ShardId, SlotId)> {
        let mut shards: Vec<(ShardId, SlotId)> = self.read(|t| {
            t.map
                .as_ref()
                .map_or(vec![(ShardId(0), SlotId(0))], |m| m.ranges.iter().map(|r| (r.shard, r.first)).collect())
        });
        shards.sort_unstable();
        shards.dedup_by_key(|(shard, _)| *shard);
        shards
    }

    /// The server to ask about a slot.
    pub(crate) fn address(&self, slot: SlotId) -> String {
        self.read(|table| {
            let map = table.map.as_ref()?;
            let shard = map.shard_of(slot)?;
            let node = match table.choice.get(&shard.id) {
                Some(Choice::Seed) => return None,
                Some(Choice::Replica(node)) => *node,
                None => shard.leader.or_else(|| shard.replicas.first().copied())?,
            };
            map.address_of(node).map(str::to_owned)
        })
        .unwrap_or_else(|| self.seeds[self.seed.load(Ordering::Relaxed) % self.seeds.len()].clone())
    }

    /// Takes a map that a server sent; false if it is invalid, older than the one in use, or of another cluster.
    pub(crate) fn adopt(&self, mut map: ShardMap) -> bool {
        if let Err(problem) = map.validate() {
            tracing::warn!(problem, "ignoring a shard map from a server");
            return false;
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.map.as_ref().is_some_and(|m| m.epoch > map.epoch || m.cluster != map.cluster) {
            return false;
        }
        // A server knows who leads the shards that it has a replica of; the others are led as before.
        for shard in map.shards.iter_mut().filter(|shard| shard.leader.is_none()) {
            let known = table.map.as_ref().and_then(|known| leader_of(known, shard.id));
            shard.leader = known.filter(|leader| shard.replicas.contains(leader));
        }
        let same = table.map.as_ref().is_some_and(|m| m.epoch == map.epoch);
        let Table { choice, failed, .. } = &mut *table;
        let still = |id: ShardId| same && failed.contains_key(&id) && failed.get(&id).copied() == leader_of(&map, id);
        choice.retain(|id, _| still(*id));
        failed.retain(|id, _| choice.contains_key(id));
        table.map = Some(map);
        true
    }

    /// A server answered: an outage, if there was one, is over.
    pub(crate) fn reached(&self, address: &str) {
        if self.out.load(Ordering::Relaxed) && self.out.swap(false, Ordering::Relaxed) {
            tracing::warn!(address, "the metadata server answers again");
        }
    }

    /// A server could not be reached: ask the next one.
    pub(crate) fn lost(&self, slot: SlotId, address: &str, reason: &str) {
        if !self.out.swap(true, Ordering::Relaxed) {
            tracing::warn!(address, reason, "the metadata server does not answer, retrying");
        }
        self.unavailable(slot, address);
    }

    /// A server could not answer for a slot: ask the next replica of its shard, then the seed, then the first again.
    pub(crate) fn unavailable(&self, slot: SlotId, address: &str) {
        if self.address(slot) != address {
            return; // another request has moved on already
        }
        let mut guard = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let table = &mut *guard;
        let Some(shard) = table.map.as_ref().and_then(|m| m.shard_of(slot)) else {
            self.seed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if matches!(table.choice.get(&shard.id), Some(Choice::Seed)) {
            self.seed.fetch_add(1, Ordering::Relaxed);
        }
        let next = match table.choice.get(&shard.id).copied() {
            Some(Choice::Seed) => shard.replicas.first().copied(),
            Some(Choice::Replica(now)) => after(&shard.replicas, now),
            None => shard.leader.map_or(shard.replicas.get(1).copied(), |now| after(&shard.replicas, now)),
        };
        if let (None, Some(leader)) = (table.choice.get(&shard.id), shard.leader) {
            table.failed.insert(shard.id, leader);
        }
        table.choice.insert(shard.id, next.map_or(Choice::Seed, Choice::Replica));
    }

    fn read<T>(&self, look: impl FnOnce(&Table) -> T) -> T {
        look(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn leader_of(map: &ShardMap, shard: ShardId) -> Option<NodeId> {
    map.shard(shard)?.leader
}

/// The replica after this one, if it is not the last.
fn after(replicas: &[NodeId], now: NodeId) -> Option<NodeId> {
    let at = replicas.iter().position(|n| *n == now)?;
    replicas.get(at + 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_types::shard_map::{Labels, Node};

    fn three_replicas() -> ShardMap {
        let mut map = ShardMap::single(NodeId(1), "a:1".into());
        map.next_node = NodeId(4);
        for (id, address) in [(2, "b:1"), (3, "c:1")] {
            let (id, labels) = (NodeId(id), Labels::default());
            map.nodes.push(Node { id, address: address.into(), labels, draining: false });
            let NodeId(id) = id;
            map.shards[0].replicas.push(NodeId(id));
        }
        map
    }

    #[test]
    fn every_replica_and_the_seed_are_asked_in_turn() {
        let router = Router::new(["seed:1"], Pool::new());
        let slot = SlotId(7);
        assert_eq!(router.address(slot), "seed:1");
        assert!(router.adopt(three_replicas()));
        let mut asked = Vec::new();
        for _ in 0..5 {
            let address = router.address(slot);
            router.unavailable(slot, &address);
            asked.push(address);
        }
        assert_eq!(asked, ["a:1", "b:1", "c:1", "seed:1", "a:1"]);
    }

    #[test]
    fn one_failure_seen_by_many_requests_moves_on_once() {
        let router = Router::new(["seed:1"], Pool::new());
        router.adopt(three_replicas());
        for _ in 0..3 {
            router.unavailable(SlotId(0), "a:1");
        }
        assert_eq!(router.address(SlotId(0)), "b:1");
    }

    #[test]
    fn without_a_map_the_seeds_are_asked_in_turn() {
        let router = Router::new("a:1, b:1".split(','), Pool::new());
        let mut asked = Vec::new();
        for _ in 0..3 {
            let address = router.address(SlotId(0));
            router.unavailable(SlotId(0), &address);
            asked.push(address);
        }
        assert_eq!(asked, ["a:1", "b:1", "a:1"]);
    }

    /// A server that is behind names the dead leader for ever; that must not keep the client from the others.
    #[test]
    fn a_leader_that_failed_is_not_asked_again_because_somebody_still_names_it() {
        let router = Router::new(["seed:1"], Pool::new());
        let led_by = |leader| three_replicas().led_by(ShardId(0), Some(NodeId(leader)));
        assert!(router.adopt(led_by(3)));
        let mut asked = Vec::new();
        for _ in 0..4 {
            let address = router.address(SlotId(0));
            router.unavailable(SlotId(0), &address);
            router.adopt(led_by(3));
            asked.push(address);
        }
        assert_eq!(asked, ["c:1", "seed:1", "a:1", "b:1"]);
        router.adopt(led_by(2));
        assert_eq!(router.address(SlotId(0)), "b:1", "another leader is news");
    }

    #[test]
    fn who_leads_a_shard_is_not_forgotten_because_another_server_does_not_know() {
        let router = Router::new(["seed:1"], Pool::new());
        router.adopt(three_replicas().led_by(ShardId(0), Some(NodeId(3))));
        router.adopt(three_replicas().led_by(ShardId(0), None));
        assert_eq!(router.address(SlotId(0)), "c:1");
        let mut moved = three_replicas().led_by(ShardId(0), None);
        moved.epoch = MapEpoch(7);
        moved.shards[0].replicas.pop();
        router.adopt(moved);
        assert_eq!(router.address(SlotId(0)), "a:1", "it has no replica any more");
    }

    #[test]
    fn the_map_never_goes_back() {
        let router = Router::new(["seed:1"], Pool::new());
        let mut new = three_replicas();
        new.epoch = MapEpoch(5);
        new.shards[0].leader = Some(NodeId(3));
        assert!(router.adopt(new));
        assert!(!router.adopt(three_replicas()));
        assert_eq!(router.address(SlotId(0)), "c:1");
        let mut others = three_replicas();
        (others.epoch, others.cluster) = (MapEpoch(9), ClusterTag::of("another"));
        assert!(!router.adopt(others));
        let mut broken = three_replicas();
        broken.epoch = MapEpoch(9);
        broken.ranges.clear();
        assert!(!router.adopt(broken));
    }
}
