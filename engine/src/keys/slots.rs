//! Slots: those that a shard owns, as its own log says. The shard map says which it shall own.
//!
//! Key: shard. Value: version, then first and last u32 of each run. Invariant: runs ascend, do not touch, and lie below
//! [`SlotId::COUNT`].

use pando_types::{ShardId, SlotId};

use super::layout::{Fields, VERSION};
use super::{KeyKind, of_shard};
use crate::error::Corrupt;

/// Slots in ascending runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Slots(Vec<(SlotId, SlotId)>);

/// The key.
pub fn key(shard: ShardId) -> Vec<u8> {
    of_shard(KeyKind::Slots, shard, 0)
}

impl Slots {
    /// Every slot there is.
    pub fn all() -> Slots {
        Slots(vec![(SlotId(0), SlotId(SlotId::COUNT - 1))])
    }

    /// These runs, in any order; overlapping and touching ones become one. What lies beyond the last slot is dropped.
    pub fn of(runs: impl IntoIterator<Item = (SlotId, SlotId)>) -> Slots {
        let mut runs: Vec<_> =
            runs.into_iter().map(|(first, last)| (first, last.min(SlotId(SlotId::COUNT - 1)))).collect();
        runs.retain(|(first, last)| first <= last);
        runs.sort();
        let mut joined: Vec<(SlotId, SlotId)> = Vec::new();
        for (first, last) in runs {
            match joined.last_mut() {
                Some(before) if first.0 <= before.1.0.saturating_add(1) => before.1 = before.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        Slots(joined)
    }

    /// First and last of each run.
    pub fn runs(&self) -> &[(SlotId, SlotId)] {
        &self.0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a slot is among them.
    pub fn has(&self, slot: SlotId) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < slot);
        self.0.get(at).is_some_and(|(first, _)| *first <= slot)
    }

    /// Those that are in both.
    pub fn both(&self, other: &Slots) -> Slots {
        let shared = |a: (SlotId, SlotId), b: (SlotId, SlotId)| (a.0.max(b.0), a.1.min(b.1));
        Slots::of(self.0.iter().flat_map(|a| other.0.iter().map(move |b| shared(*a, *b))).filter(|(a, b)| a <= b))
    }

    /// Those that are not in the other.
    pub fn without(&self, other: &Slots) -> Slots {
        let mut gaps = Vec::new();
        let mut next = 0;
        for (first, last) in &other.0 {
            if let Some(end) = first.0.checked_sub(1).filter(|end| *end >= next) {
                gaps.push((SlotId(next), SlotId(end)));
            }
            next = last.0 + 1;
        }
        gaps.push((SlotId(next), SlotId(u32::MAX)));
        self.both(&Slots(gaps))
    }

    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = vec![VERSION];
        for (first, last) in &self.0 {
            value.extend_from_slice(&first.0.to_le_bytes());
            value.extend_from_slice(&last.0.to_le_bytes());
        }
        value
    }

    /// Reads a value.
    pub fn decode(bytes: &[u8]) -> Result<Slots, Corrupt> {
        let mut fields = Fields::value("slots", bytes)?;
        let mut runs = Vec::new();
        while !fields.is_empty() {
            runs.push((SlotId(fields.u32()?), SlotId(fields.u32()?)));
        }
        let slots = Slots::of(runs.iter().copied());
        if slots.0 == runs { Ok(slots) } else { Err(Corrupt("a shard's slots overlap or are out of order".into())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slots(runs: &[(u32, u32)]) -> Slots {
        Slots::of(runs.iter().map(|(first, last)| (SlotId(*first), SlotId(*last))))
    }

    #[test]
    fn golden() {
        assert_eq!(key(ShardId(1)), [255, 255, 255, 255, 0x48, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(slots(&[(7, 8), (1, 2)]).encode(), [1, 1, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0]);
        assert!(Slots::decode(&[1, 7, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]).is_err());
        assert_eq!(Slots::all().without(&Slots::all()), Slots::default());
    }

    proptest! {
        #[test]
        fn sets_are_sets(a in proptest::collection::vec((0u32..60, 0u32..60), 0..5),
                         b in proptest::collection::vec((0u32..60, 0u32..60), 0..5)) {
            let (a, b) = (slots(&a), slots(&b));
            prop_assert_eq!(&Slots::decode(&a.encode()).unwrap(), &a);
            for slot in (0..62).map(SlotId) {
                prop_assert_eq!(a.both(&b).has(slot), a.has(slot) && b.has(slot));
                prop_assert_eq!(a.without(&b).has(slot), a.has(slot) && !b.has(slot));
            }
        }

        #[test]
        fn any_bytes_decode_or_are_corrupt(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Slots::decode(&bytes);
        }
    }
}
