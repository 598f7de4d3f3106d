//! The ordered key-value store under the engine: views, and batches written atomically.
//!
//! Not here: what the keys mean (`keys.rs`). Invariants: a view never changes; a batch is seen whole or not at all, also
//! after a crash; after [`Kv::flush`] every earlier batch survives a crash, and a later crash never loses an earlier
//! batch while keeping a later one.

use std::ops::ControlFlow;

pub mod mem;
pub mod rocks;

/// The store failed. The engine halts on it.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// RocksDB's own words.
    #[error("{0}; check the disk under the state directory")]
    Rocks(#[from] rocksdb::Error),
    /// A fault that a test asked for.
    #[error("injected fault")]
    Injected,
}

/// What [`View::scan`] calls for each key and value; `Break` ends the scan.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// A key with its value.
pub type Record = (Vec<u8>, Vec<u8>);

/// An unchanging picture of the store.
pub trait View {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError>;

    /// The values of many keys, in their order.
    fn multi_get(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, KvError>;

    /// Visits the keys of `[from, to)` in ascending order.
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), KvError>;

    /// The greatest key of `[from, to)` with its value.
    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<Record>, KvError>;
}

/// An ordered store.
pub trait Kv: Send + Sync + 'static {
    /// Its picture type.
    type View<'a>: View
    where
        Self: 'a;

    /// A picture of now.
    fn view(&self) -> Self::View<'_>;

    /// Makes the changes of a batch in order, atomically.
    fn write(&self, batch: Batch) -> Result<(), KvError>;

    /// Makes everything written durable.
    fn flush(&self) -> Result<(), KvError>;
}

/// One change of a [`Batch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The key gets this value.
    Put(Vec<u8>, Vec<u8>),
    /// The key goes.
    Delete(Vec<u8>),
    /// All keys of `[from, to)` go.
    DeleteRange(Vec<u8>, Vec<u8>),
}

/// Changes that happen together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch(pub Vec<Change>);

impl Batch {
    /// Sets a value.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.0.push(Change::Put(key, value));
    }

    /// Removes a key, which may be absent.
    pub fn delete(&mut self, key: Vec<u8>) {
        self.0.push(Change::Delete(key));
    }

    /// Removes every key of `[from, to)`.
    pub fn delete_range(&mut self, from: Vec<u8>, to: Vec<u8>) {
        self.0.push(Change::DeleteRange(from, to));
    }
}
