//! Counter: the next inode sequence of a slot.
//!
//! Key: slot, id 0. Value: version, next u64. Invariant: above every sequence that was ever given out.

use pando_types::{InodeId, SlotId};

use super::layout::{Fields, VERSION};
use super::{KeyKind, prefix};
use crate::error::Corrupt;

/// What a slot without a record has next: 0 is no inode, and slot 0 begins with the root.
pub fn first(slot: SlotId) -> u64 {
    if slot == InodeId::ROOT.slot() { InodeId::ROOT.sequence() + 1 } else { 1 }
}

/// The key.
pub fn key(slot: SlotId) -> Vec<u8> {
    prefix(slot.0, KeyKind::Counter, 0, 0)
}

/// The value.
pub fn encode(next: u64) -> Vec<u8> {
    let mut value = vec![VERSION];
    value.extend_from_slice(&next.to_le_bytes());
    value
}

/// Reads a value.
pub fn decode(bytes: &[u8]) -> Result<u64, Corrupt> {
    let mut fields = Fields::value("counter", bytes)?;
    let next = fields.u64()?;
    fields.end()?;
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden() {
        assert_eq!(key(SlotId(2)), [0, 0, 0, 2, 0x10, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encode(3), [1, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((first(SlotId(0)), first(SlotId(1))), (2, 1));
    }

    proptest! {
        #[test]
        fn round_trip(next: u64) {
            prop_assert_eq!(decode(&encode(next)).unwrap(), next);
        }
    }
}
