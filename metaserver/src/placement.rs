//! Where a new directory's children live: a pure function. Below: where replicas should be, and how they get there.
//!
//! Not here: moving slots between shards. Invariant: a retried mkdir gets the same answer, since nothing but its own
//! arguments is looked at.

use pando_types::hash::fnv1a;
use pando_types::{FileName, InodeId, SlotId};

pub(crate) mod mover;
pub(crate) mod planner;

/// Slots over which the root's directories are spread: enough to hand a shard's load out in small parts, few enough that
/// each holds whole trees. Slot 0 is the root's own.
const SPREAD_SLOTS: u64 = 1024;
/// The last of them.
pub(crate) const SPREAD_LAST: SlotId = SlotId(SPREAD_SLOTS as u32);

/// The slot of a directory made as `name` in `parent`. Locality by default: a tree stays in one slot, so that rename within
/// it touches one shard. The first level is spread, since that is where a cluster's users and projects part.
pub fn slot_of_new_directory(parent: InodeId, name: &FileName) -> SlotId {
    if parent == InodeId::ROOT { SlotId((fnv1a(name.as_bytes()) % SPREAD_SLOTS) as u32 + 1) } else { parent.slot() }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_first_level_is_spread_and_the_rest_stays() {
        let name = |n: u32| FileName::new(format!("user{n}").as_bytes()).unwrap();
        let slots: HashSet<_> = (0..1000).map(|n| slot_of_new_directory(InodeId::ROOT, &name(n))).collect();
        assert!(slots.len() > 500 && !slots.contains(&SlotId(0)) && slots.iter().all(|s| s.0 <= 1024));
        let parent = InodeId::new(SlotId(77), 5);
        assert_eq!(slot_of_new_directory(parent, &name(1)), SlotId(77));
        assert_eq!(slot_of_new_directory(InodeId::ROOT, &name(1)), SlotId(858), "golden: a stored placement");
    }
}
