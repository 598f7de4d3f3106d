//! A set of bytes of a file, as ranges.
//!
//! Invariant: ranges are not empty, do not overlap and do not touch, so two equal sets look the same.

use std::collections::BTreeMap;

/// Start -> end (excluded).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    ranges: BTreeMap<u64, u64>,
    bytes: u64,
}

impl RangeSet {
    /// Adds `[from, to)`.
    pub(crate) fn insert(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let (mut start, mut end) = (from, to);
        while let Some((&s, &e)) = self.ranges.range(..=end).next_back() {
            if e < start {
                break;
            }
            if s <= start && e >= end {
                return;
            }
            self.ranges.remove(&s);
            self.bytes -= e - s;
            start = start.min(s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
        self.bytes += end - start;
    }

    /// Removes `[from, to)`.
    pub(crate) fn remove(&mut self, from: u64, to: u64) {
        while let Some((&s, &e)) = self.ranges.range(..to).next_back() {
            if e <= from || from >= to {
                break;
            }
            self.ranges.remove(&s);
            self.bytes -= e - s;
            for (start, end) in [(s, e.min(from)), (s.max(to), e)] {
                if start < end {
                    self.ranges.insert(start, end);
                    self.bytes += end - start;
                }
            }
        }
    }

    /// The end of the range that contains `at`.
    pub(crate) fn end_of(&self, at: u64) -> Option<u64> {
        self.ranges.range(..=at).next_back().map(|(_, &e)| e).filter(|&e| e > at)
    }

    /// The first range that starts after `at`.
    pub(crate) fn next_start(&self, at: u64) -> Option<u64> {
        self.ranges.range(at + 1..).next().map(|(&s, _)| s)
    }

    /// Whether all of `[from, to)` is in the set.
    pub(crate) fn contains(&self, from: u64, to: u64) -> bool {
        from >= to || self.end_of(from).is_some_and(|end| end >= to)
    }

    /// All ranges, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&s, &e)| (s, e))
    }

    /// The first byte in the set.
    pub(crate) fn first(&self) -> Option<u64> {
        self.ranges.keys().next().copied()
    }

    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Bytes in the set.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::testing::Random;

    #[test]
    fn is_a_set_of_bytes() {
        let mut random = Random::new(7);
        for _ in 0..200 {
            let mut set = RangeSet::default();
            let mut reference = [false; 64];
            for _ in 0..60 {
                let from = random.below(64) as usize;
                let to = from + random.below(65 - from as u64) as usize;
                let add = random.below(2) == 0;
                reference[from..to].fill(add);
                match add {
                    true => set.insert(from as u64, to as u64),
                    false => set.remove(from as u64, to as u64),
                }
                let ranges: Vec<_> = set.iter().collect();
                assert!(ranges.windows(2).all(|w| w[0].1 < w[1].0), "{ranges:?}");
                assert_eq!(set.bytes(), reference.iter().filter(|b| **b).count() as u64);
                for (at, there) in reference.iter().enumerate() {
                    assert_eq!(set.end_of(at as u64).is_some(), *there, "{at} in {ranges:?}");
                }
                let next = (from + 1..64).find(|&i| reference[i] && !reference[i - 1]);
                assert_eq!(set.next_start(from as u64), next.map(|n| n as u64));
            }
        }
    }
}
