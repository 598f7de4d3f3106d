//! Which shard owns a slot, and on which nodes its replicas are.
//!
//! Invariant ([`ShardMap::validate`]): the ranges cover every slot once, in order, and name known nodes.

use serde::{Deserialize, Serialize};

use crate::epoch::MapEpoch;
use crate::hash::fnv1a;
use crate::ids::{NodeId, ShardId, SlotId};
use crate::limits::{ADDRESS_BYTES_MAX, NODES_MAX, SHARDS_MAX};

/// One of three may fail.
pub const REPLICAS_DEFAULT: u8 = 3;

/// The map at one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardMap {
    /// Its version.
    pub epoch: MapEpoch,
    /// Ranges in slot order.
    pub ranges: Vec<SlotRange>,
    /// Shards by id, in order.
    pub shards: Vec<Shard>,
    /// Nodes by id, in order.
    pub nodes: Vec<Node>,
    /// The id of the next node that joins; ids are never used again.
    pub next_node: NodeId,
    /// How many replicas a shard should have while there are so many nodes.
    pub replicas: u8,
    /// Whose map it is.
    pub cluster: ClusterTag,
}

/// Tells clusters apart in every message: an address may be given to another cluster's server while a mount uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ClusterTag(pub u64);

impl ClusterTag {
    /// Of a sender that has no map yet.
    pub const UNKNOWN: ClusterTag = ClusterTag(0);

    /// Of a cluster's id.
    pub fn of(id: &str) -> ClusterTag {
        ClusterTag(fnv1a(id.as_bytes()).max(1))
    }
}

/// Slots `[first, last]` of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotRange {
    /// First slot.
    pub first: SlotId,
    /// Last slot, included.
    pub last: SlotId,
    /// The owner.
    pub shard: ShardId,
}

/// A shard's replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// The shard.
    pub id: ShardId,
    /// Where its replicas should be, in the order of their ids; the shard's leader sees to it.
    pub replicas: Vec<NodeId>,
    /// Who led it last, as far as the map knows.
    pub leader: Option<NodeId>,
}

/// A metadata server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The node.
    pub id: NodeId,
    /// `host:port` of its rpc.
    pub address: String,
    /// Where it stands.
    pub labels: Labels,
    /// It shall hold no replicas: it is about to be switched off.
    pub draining: bool,
}

/// What a node shares with others that fail together with it; an empty label is shared with nobody.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Labels {
    /// A part of the site with its own power and network.
    pub zone: String,
    /// A rack.
    pub rack: String,
    /// A machine.
    pub node: String,
}

impl ShardMap {
    /// The map of a cluster of one node: one shard with every slot.
    pub fn single(node: NodeId, address: String) -> ShardMap {
        let shard = ShardId(0);
        ShardMap {
            epoch: MapEpoch(1),
            ranges: vec![SlotRange { first: SlotId(0), last: SlotId(SlotId::COUNT - 1), shard }],
            shards: vec![Shard { id: shard, replicas: vec![node], leader: Some(node) }],
            nodes: vec![Node { id: node, address, labels: Labels::default(), draining: false }],
            next_node: NodeId(node.0 + 1),
            replicas: REPLICAS_DEFAULT,
            cluster: ClusterTag::UNKNOWN,
        }
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|n| n.id == id)
    }

    /// A shard.
    pub fn shard(&self, id: ShardId) -> Option<&Shard> {
        self.shards.iter().find(|s| s.id == id)
    }

    /// The same with another leader of a shard: who leads changes more often than the map does.
    pub fn led_by(mut self, shard: ShardId, leader: Option<NodeId>) -> ShardMap {
        if let Some(shard) = self.shards.iter_mut().find(|s| s.id == shard) {
            shard.leader = leader;
        }
        self
    }

    /// First and last of each run of slots that a shard shall own.
    pub fn slots_of(&self, shard: ShardId) -> Vec<(SlotId, SlotId)> {
        self.ranges.iter().filter(|range| range.shard == shard).map(|range| (range.first, range.last)).collect()
    }

    /// Gives these slots, as far as they are `from`'s, to a new shard with the same replicas: its id, or `None` if that would
    /// leave either without slots.
    pub fn split(&mut self, from: ShardId, slots: &[(SlotId, SlotId)]) -> Option<ShardId> {
        let id = ShardId(self.shards.iter().map(|shard| shard.id.0 + 1).max()?);
        let mut ranges: Vec<SlotRange> = Vec::new();
        for range in &self.ranges {
            // Where the owner may change, in order.
            let mut cuts = vec![range.first.0, range.last.0 + 1];
            cuts.extend(slots.iter().flat_map(|(first, last)| [first.0, last.0.saturating_add(1)]));
            cuts.retain(|cut| (range.first.0..=range.last.0 + 1).contains(cut));
            cuts.sort_unstable();
            cuts.dedup();
            for pair in cuts.windows(2) {
                let (first, last) = (SlotId(pair[0]), SlotId(pair[1] - 1));
                let moves = range.shard == from && slots.iter().any(|(from, to)| (*from..=*to).contains(&first));
                let shard = if moves { id } else { range.shard };
                match ranges.last_mut() {
                    Some(before) if before.shard == shard => before.last = last,
                    _ => ranges.push(SlotRange { first, last, shard }),
                }
            }
        }
        let has = |shard: ShardId| ranges.iter().any(|range| range.shard == shard);
        if !has(from) || !has(id) {
            return None;
        }
        let replicas = self.shard(from)?.replicas.clone();
        self.ranges = ranges;
        self.shards.push(Shard { id, replicas, leader: None });
        Some(id)
    }

    /// The shard that owns a slot; a valid map has one for each.
    pub fn shard_of(&self, slot: SlotId) -> Option<&Shard> {
        let at = self.ranges.partition_point(|r| r.last < slot);
        let range = self.ranges.get(at).filter(|r| r.first <= slot)?;
        self.shard(range.shard)
    }

    /// Where a node listens.
    pub fn address_of(&self, node: NodeId) -> Option<&str> {
        self.node(node).map(|n| n.address.as_str())
    }

    /// Checks the invariant of this type.
    pub fn validate(&self) -> Result<(), String> {
        let mut next = 0;
        for range in &self.ranges {
            if range.first.0 != next || range.last < range.first || range.last.0 >= SlotId::COUNT {
                return Err(format!("slot {next} is owned by no shard or by two"));
            }
            next = range.last.0 + 1;
            let shard = self.shard_of(range.first).ok_or(format!("shard {} is not listed", range.shard))?;
            if let Some(node) = shard.replicas.iter().find(|n| self.address_of(**n).is_none()) {
                return Err(format!("node {node} of shard {} is not listed", shard.id));
            }
        }
        if next != SlotId::COUNT {
            return Err(format!("slot {next} is owned by no shard"));
        }
        if self.nodes.len() > NODES_MAX || self.shards.len() > SHARDS_MAX {
            return Err(format!("there are more than {NODES_MAX} nodes or {SHARDS_MAX} shards"));
        }
        if self.nodes.iter().any(|n| n.id >= self.next_node || n.address.len() > ADDRESS_BYTES_MAX) {
            return Err("a node has an id that was not given out, or an address that is too long".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_owner_and_refuses_gaps() {
        let mut map = ShardMap::single(NodeId(1), "127.0.0.1:1".into());
        assert_eq!(map.validate(), Ok(()));
        map.ranges[0].last = SlotId(99);
        assert!(map.validate().is_err());
        map.ranges.push(SlotRange { first: SlotId(100), last: SlotId(SlotId::COUNT - 1), shard: ShardId(1) });
        assert!(map.validate().is_err(), "shard 1 is not listed");
        map.shards.push(Shard { id: ShardId(1), replicas: vec![NodeId(1)], leader: None });
        assert_eq!(map.validate(), Ok(()));
        assert_eq!(map.shard_of(SlotId(99)).map(|s| s.id), Some(ShardId(0)));
        assert_eq!(map.shard_of(SlotId(100)).map(|s| s.id), Some(ShardId(1)));
    }

    #[test]
    fn a_split_hands_over_what_was_the_shards() {
        let mut map = ShardMap::single(NodeId(1), "127.0.0.1:1".into());
        assert_eq!(map.split(ShardId(0), &[(SlotId(500), SlotId(SlotId::COUNT - 1))]), Some(ShardId(1)));
        assert_eq!(map.validate(), Ok(()));
        assert_eq!(map.split(ShardId(0), &[(SlotId(100), SlotId(600))]), Some(ShardId(2)));
        assert_eq!(map.validate(), Ok(()));
        let owners = [(99, 0), (100, 2), (499, 2), (500, 1), (600, 1)];
        owners.iter().for_each(|(slot, shard)| assert_eq!(map.shard_of(SlotId(*slot)).unwrap().id, ShardId(*shard)));
        assert_eq!(map.slots_of(ShardId(2)), [(SlotId(100), SlotId(499))]);
        assert_eq!(map.shard(ShardId(2)).unwrap().replicas, [NodeId(1)]);
        let before = map.clone();
        assert_eq!(map.split(ShardId(0), &[(SlotId(0), SlotId(700))]), None, "something must be left");
        assert_eq!(map.split(ShardId(0), &[(SlotId(100), SlotId(700))]), None, "something must be handed over");
        assert_eq!(map, before);
    }
}
