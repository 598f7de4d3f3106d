//! A store in memory: for tests and simulation, with faults on request.
//!
//! Not durable. Views are copies on write: a write while a view lives copies the map.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard};

use super::{Batch, Change, Kv, KvError, Record, View, Visit};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The store.
#[derive(Debug, Default)]
pub struct MemKv {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    map: Arc<Map>,
    writes_until_fault: Option<u64>,
}

impl MemKv {
    /// An empty store.
    pub fn new() -> MemKv {
        MemKv::default()
    }

    /// After this many more writes, every write and flush fails; `None` heals.
    pub fn fail_after(&self, writes: Option<u64>) {
        self.lock().writes_until_fault = writes;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code under this lock panics")
    }
}

impl Kv for MemKv {
    type View<'a> = MemView;

    fn view(&self) -> MemView {
        MemView { map: self.lock().map.clone() }
    }

    fn write(&self, batch: Batch) -> Result<(), KvError> {
        let mut state = self.lock();
        match &mut state.writes_until_fault {
            Some(0) => return Err(KvError::Injected),
            Some(left) => *left -= 1,
            None => {}
        }
        let map = Arc::make_mut(&mut state.map);
        for change in batch.0 {
            match change {
                Change::Put(key, value) => drop(map.insert(key, value)),
                Change::Delete(key) => drop(map.remove(&key)),
                Change::DeleteRange(from, to) if from < to => drop(map.extract_if(from..to, |_, _| true).count()),
                Change::DeleteRange(..) => {}
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), KvError> {
        match self.lock().writes_until_fault {
            Some(0) => Err(KvError::Injected),
            _ => Ok(()),
        }
    }
}

/// A picture of a [`MemKv`].
#[derive(Debug, Clone)]
pub struct MemView {
    map: Arc<Map>,
}

impl View for MemView {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        Ok(self.map.get(key).cloned())
    }

    fn multi_get(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, KvError> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), KvError> {
        if from < to {
            for (key, value) in self.map.range::<[u8], _>((Included(from), Excluded(to))) {
                if let ControlFlow::Break(()) = visit(key, value) {
                    break;
                }
            }
        }
        Ok(())
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<Record>, KvError> {
        if from >= to {
            return Ok(None);
        }
        let mut range = self.map.range::<[u8], _>((Included(from), Excluded(to)));
        Ok(range.next_back().map(|(key, value)| (key.clone(), value.clone())))
    }
}
