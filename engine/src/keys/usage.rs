//! Usage: how many inodes a slot has, and how many bytes are allocated to its files.
//!
//! Key: slot, id 0. Value: version, inodes, bytes u64. Invariant: the sums over the slot's inodes; no record means none.

use pando_types::SlotId;

use super::layout::{Fields, VERSION};
use super::{KeyKind, prefix};
use crate::error::Corrupt;

/// The value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Inodes, orphans included.
    pub inodes: u64,
    /// Bytes of extents and inline data.
    pub bytes: u64,
}

/// The key.
pub fn key(slot: SlotId) -> Vec<u8> {
    prefix(slot.0, KeyKind::Usage, 0, 0)
}

impl Usage {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = vec![VERSION];
        value.extend_from_slice(&self.inodes.to_le_bytes());
        value.extend_from_slice(&self.bytes.to_le_bytes());
        value
    }

    /// Reads a value.
    pub fn decode(bytes: &[u8]) -> Result<Usage, Corrupt> {
        let mut fields = Fields::value("usage", bytes)?;
        let usage = Usage { inodes: fields.u64()?, bytes: fields.u64()? };
        fields.end()?;
        Ok(usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden() {
        assert_eq!(key(SlotId(2)), [0, 0, 0, 2, 0x11, 0, 0, 0, 0, 0, 0, 0, 0]);
        let usage = Usage { inodes: 3, bytes: 4 };
        assert_eq!(usage.encode(), [1, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn round_trip(inodes: u64, bytes: u64) {
            let usage = Usage { inodes, bytes };
            prop_assert_eq!(Usage::decode(&usage.encode()).unwrap(), usage);
        }

        #[test]
        fn any_bytes_decode_or_are_corrupt(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Usage::decode(&bytes);
        }
    }
}
