//! A sparse set of inode ids: a bit per id in blocks of neighbours, since ids of a slot are dense.

use std::collections::BTreeMap;

const BLOCK_BITS: u64 = 4096;

#[derive(Default)]
pub(super) struct Bits {
    blocks: BTreeMap<u64, [u64; BLOCK_BITS as usize / 64]>,
}

impl Bits {
    /// Adds an id; tells whether it is new.
    pub fn set(&mut self, id: u64) -> bool {
        let block = self.blocks.entry(id / BLOCK_BITS).or_insert([0; BLOCK_BITS as usize / 64]);
        let (word, bit) = (&mut block[(id % BLOCK_BITS) as usize / 64], 1 << (id % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    pub fn has(&self, id: u64) -> bool {
        self.blocks
            .get(&(id / BLOCK_BITS))
            .is_some_and(|block| block[(id % BLOCK_BITS) as usize / 64] & (1 << (id % 64)) != 0)
    }

    /// The ids in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.blocks.iter().flat_map(|(at, block)| {
            (0..BLOCK_BITS)
                .filter(|bit| block[*bit as usize / 64] & (1 << (bit % 64)) != 0)
                .map(move |bit| at * BLOCK_BITS + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Bits;

    #[test]
    fn remembers_ids() {
        let mut bits = Bits::default();
        for id in [u64::MAX, 5, 4096, 63, 64] {
            assert!(bits.set(id) && !bits.set(id) && bits.has(id));
        }
        assert!(!bits.has(6));
        assert_eq!(bits.iter().collect::<Vec<_>>(), [5, 63, 64, 4096, u64::MAX]);
    }
}
