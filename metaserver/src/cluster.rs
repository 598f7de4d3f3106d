//! What this node knows of its cluster: which it is, which node this is, and the newest shard map that was seen.
//!
//! Not here: changing the map (`service/placement.rs`, `placement/mover.rs`). Invariant: the map's epoch never goes back.

use std::sync::Arc;

use pando_types::request::{MountInfo, Secret};
use pando_types::shard_map::ShardMap;
use pando_types::{FsError, NodeId};
use tokio::sync::{Notify, watch};

/// See the module.
pub(crate) struct Cluster {
    /// This node.
    pub node: NodeId,
    /// What mounts need to know, the cluster's id included.
    pub mount: MountInfo,
    /// What lets new nodes in.
    pub token: Secret,
    /// A shard that has a replica here has handed slots to a new one.
    pub split: Notify,
    /// Somebody has a newer map than this node.
    pub behind: Notify,
    map: watch::Sender<Option<Arc<ShardMap>>>,
}

impl Cluster {
    pub fn new(node: NodeId, mount: MountInfo, token: Secret) -> Cluster {
        Cluster { node, mount, token, split: Notify::new(), behind: Notify::new(), map: watch::Sender::new(None) }
    }

    /// The cluster's id.
    pub fn id(&self) -> &str {
        &self.mount.cluster
    }

    /// The newest map.
    pub fn map(&self) -> Result<Arc<ShardMap>, FsError> {
        self.map.borrow().clone().ok_or_else(|| FsError::unavailable("the server is starting"))
    }

    /// Takes a map, unless a newer one is known.
    pub fn adopt(&self, map: ShardMap) {
        self.map.send_if_modified(|known| {
            let newer = known.as_ref().is_none_or(|known| known.epoch < map.epoch);
            if newer {
                *known = Some(Arc::new(map));
            }
            newer
        });
    }

    /// Tells of every new map.
    pub fn changes(&self) -> watch::Receiver<Option<Arc<ShardMap>>> {
        self.map.subscribe()
    }

    /// Where a node listens.
    pub fn address_of(&self, node: NodeId) -> Option<String> {
        self.map.borrow().as_ref()?.address_of(node).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_types::MapEpoch;

    #[test]
    fn an_older_map_is_not_taken() {
        let mount = MountInfo { object_store: "file:///o".into(), s3_endpoint: None, cluster: "c".into() };
        let cluster = Cluster::new(NodeId(1), mount, Secret("t".into()));
        assert!(cluster.map().is_err());
        let mut map = ShardMap::single(NodeId(1), "new:1".into());
        map.epoch = MapEpoch(2);
        cluster.adopt(map);
        cluster.adopt(ShardMap::single(NodeId(1), "old:1".into()));
        assert_eq!(cluster.address_of(NodeId(1)).as_deref(), Some("new:1"));
    }
}
