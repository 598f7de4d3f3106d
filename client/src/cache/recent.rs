//! A map that remembers about its last N keys: two generations, the older one dropped as a whole.
//!
//! Used for hints (which inode a name had; which version the kernel's pages have). Bounded: at most two generations.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

/// See the module.
pub(crate) struct Recent<K, V> {
    generations: Mutex<Generations<K, V>>,
    generation_max: usize,
}

struct Generations<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K: Hash + Eq, V: Copy> Recent<K, V> {
    /// Remembers at least the last `entries` keys, at most twice as many.
    pub(crate) fn new(entries: usize) -> Recent<K, V> {
        let generations = Mutex::new(Generations { young: HashMap::new(), old: HashMap::new() });
        Recent { generations, generation_max: entries }
    }

    /// Remembers a value.
    pub(crate) fn insert(&self, key: K, value: V) {
        let mut generations = self.lock();
        if generations.young.len() >= self.generation_max && !generations.young.contains_key(&key) {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(key, value);
    }

    /// The value last remembered.
    pub(crate) fn find(&self, key: &K) -> Option<V> {
        let generations = self.lock();
        generations.young.get(key).or_else(|| generations.old.get(key)).copied()
    }

    /// Forgets a key.
    pub(crate) fn remove(&self, key: &K) {
        let mut generations = self.lock();
        generations.young.remove(key);
        generations.old.remove(key);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Generations<K, V>> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_ones_and_is_bounded() {
        let recent = Recent::new(4);
        for key in 0..100 {
            recent.insert(key, key * 2);
            for last in (key - 3).max(0)..=key {
                assert_eq!(recent.find(&last), Some(last * 2));
            }
            let generations = recent.lock();
            assert!(generations.young.len() + generations.old.len() <= 8);
        }
        recent.remove(&99);
        assert_eq!(recent.find(&99), None);
        assert_eq!(recent.find(&0), None);
    }
}
