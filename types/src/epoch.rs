//! The two clocks that are not time: the shard map's version and the snapshot clock.

use serde::{Deserialize, Serialize};

/// Version of the shard map. A request carries the one it was routed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct MapEpoch(pub u64);

/// The snapshot clock: counts snapshots of the cluster; every record carries the one it was born in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Generation(pub u64);

impl Generation {
    /// The generation of a cluster without snapshots.
    pub const FIRST: Generation = Generation(1);
}
