//! Reads segments and checks every byte.
//!
//! Not here: how the store is reached ([`crate::store`]), which ranges are read ahead (the client).
//!
//! A read fetches the 64 KiB blocks around its range. The checks it needs come from a cache; on a miss the segment's
//! tail is fetched at the same time as the data, once for all who wait for it.
//! Invariants: no byte is returned whose block was not checked; the cache and the table of fetches are bounded; bytes
//! that do not fit their checks are fetched again before they are called damaged: the way here may have done it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use futures::future::{BoxFuture, WeakShared};
use object_store::GetRange;
use object_store::path::Path;
use pando_types::SegmentId;
use pando_types::limits::{CHECKSUM_BLOCK_BYTES, FOOTER_CACHE_BYTES, STORE_REQUESTS_MAX};

use crate::error::SegmentError;
use crate::format::{self, Checks, FormatError, Owner, TAIL_BYTES_MAX};
use crate::store::objects::{Failure, Objects};

type Fetch = BoxFuture<'static, Result<Arc<Checks>, SegmentError>>;

/// Reads from one store.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) objects: Objects,
    cache: Mutex<Cache>,
    fetches: Mutex<HashMap<SegmentId, WeakShared<Fetch>>>,
}

impl Reader {
    pub(crate) fn new(objects: Objects) -> Reader {
        Reader { objects, cache: Mutex::default(), fetches: Mutex::default() }
    }

    /// Bytes of a segment's data.
    pub(crate) async fn read(
        self: &Arc<Self>,
        id: SegmentId,
        key: Path,
        range: Range<u64>,
    ) -> Result<Bytes, SegmentError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        match self.read_once(id, &key, &range).await {
            Err(SegmentError::Corrupt { .. }) => {
                self.forget(id);
                self.read_once(id, &key, &range).await
            }
            done => done,
        }
    }

    /// The owner table and the length of the data.
    pub(crate) async fn owners(self: &Arc<Self>, id: SegmentId, key: Path) -> Result<(Vec<Owner>, u64), SegmentError> {
        let checks = self.checks(id, &key).await?;
        let range = checks.owners_range();
        let bytes = match range.is_empty() {
            true => Bytes::new(),
            false => self.objects.read_exact(&key, range).await.map_err(|failure| self.name(id, failure))?,
        };
        let owners = format::decode_owners(&checks, &bytes).map_err(|e| self.unusable(id, e))?;
        Ok((owners, checks.data_length))
    }

    /// The checks of an object that is about to be stored, if it is a segment.
    pub(crate) fn checks_of(&self, id: SegmentId, object: &[Bytes]) -> Option<Checks> {
        let object_bytes: usize = object.iter().map(Bytes::len).sum();
        let mut missing = TAIL_BYTES_MAX.min(object_bytes);
        let mut slices = Vec::new();
        for part in object.iter().rev() {
            let slice = &part[part.len().saturating_sub(missing)..];
            missing -= slice.len();
            slices.push(slice);
        }
        let mut tail = BytesMut::with_capacity(TAIL_BYTES_MAX);
        slices.iter().rev().for_each(|slice| tail.extend_from_slice(slice));
        format::decode_tail(id, &tail, object_bytes as u64).ok()
    }

    pub(crate) fn remember(&self, id: SegmentId, checks: Checks) {
        lock(&self.cache).insert(id, Arc::new(checks), FOOTER_CACHE_BYTES);
    }

    pub(crate) fn forget(&self, id: SegmentId) {
        lock(&self.cache).remove(id);
    }

    async fn read_once(self: &Arc<Self>, id: SegmentId, key: &Path, range: &Range<u64>) -> Result<Bytes, SegmentError> {
        let block = CHECKSUM_BLOCK_BYTES as u64;
        let start = range.start - range.start % block;
        let end = range.end.checked_next_multiple_of(block).unwrap_or(u64::MAX);
        let cached = lock(&self.cache).find(id);
        let (checks, bytes) = match cached {
            Some(checks) => {
                self.check_end(id, &checks, range)?;
                let blocks = start..end.min(checks.data_length);
                let read = self.objects.read_exact(key, blocks).await;
                (checks, read.map_err(|failure| self.name(id, failure))?)
            }
            None => {
                let blocks = async {
                    let read = self.objects.read(key, GetRange::Bounded(start..end)).await;
                    read.map_err(|failure| self.name(id, failure))
                };
                let (checks, part) = futures::try_join!(self.checks(id, key), blocks)?;
                self.check_end(id, &checks, range)?;
                // At the end of the data, what was fetched goes on into the footer.
                let length = end.min(checks.data_length) - start;
                if (part.bytes.len() as u64) < length {
                    return Err(self.name(id, Failure::Short));
                }
                (checks, part.bytes.slice(..length as usize))
            }
        };
        if let Err(block) = checks.verify(start, &bytes) {
            let why = format!("the checksum of its bytes from {} on is wrong", block * CHECKSUM_BLOCK_BYTES as u64);
            return Err(self.corrupt(id, why));
        }
        let from = (range.start - start) as usize;
        Ok(bytes.slice(from..from + (range.end - range.start) as usize))
    }

    fn check_end(&self, id: SegmentId, checks: &Checks, range: &Range<u64>) -> Result<(), SegmentError> {
        if range.end <= checks.data_length {
            return Ok(());
        }
        let why = format!("it has {} bytes of data where {} are expected", checks.data_length, range.end);
        Err(self.corrupt(id, why))
    }

    /// The checks of a segment: from the cache, from a fetch that is under way, or from the store.
    async fn checks(self: &Arc<Self>, id: SegmentId, key: &Path) -> Result<Arc<Checks>, SegmentError> {
        let fetch = {
            let mut fetches = lock(&self.fetches);
            if let Some(checks) = lock(&self.cache).find(id) {
                return Ok(checks);
            }
            if let Some(fetch) = fetches.get(&id).and_then(WeakShared::upgrade) {
                fetch
            } else {
                let fetch = Arc::clone(self).fetch(id, key.clone()).boxed().shared();
                // Those whose readers have all gone away were not removed by their end.
                if fetches.len() >= 2 * STORE_REQUESTS_MAX {
                    fetches.retain(|_, fetch| fetch.upgrade().is_some());
                }
                fetches.extend(fetch.downgrade().map(|weak| (id, weak)));
                fetch
            }
        };
        fetch.await
    }

    async fn fetch(self: Arc<Self>, id: SegmentId, key: Path) -> Result<Arc<Checks>, SegmentError> {
        let read = self.objects.read(&key, GetRange::Suffix(TAIL_BYTES_MAX as u64)).await;
        let decoded = read
            .map_err(|failure| self.name(id, failure))
            .and_then(|part| format::decode_tail(id, &part.bytes, part.object_bytes).map_err(|e| self.unusable(id, e)));
        let checks = decoded.map(Arc::new);
        let mut fetches = lock(&self.fetches);
        if let Ok(checks) = &checks {
            lock(&self.cache).insert(id, Arc::clone(checks), FOOTER_CACHE_BYTES);
        }
        fetches.remove(&id);
        checks
    }

    fn name(&self, id: SegmentId, failure: Failure) -> SegmentError {
        match failure {
            Failure::Missing => SegmentError::Missing { segment: id, store: self.objects.name.to_string() },
            Failure::Short => self.corrupt(id, "it is shorter than it should be".to_owned()),
            Failure::Other(error) => error,
        }
    }

    fn unusable(&self, id: SegmentId, error: FormatError) -> SegmentError {
        match error {
            FormatError::Version { .. } => SegmentError::Version { segment: id, why: error },
            FormatError::Damaged(why) => self.corrupt(id, why.to_owned()),
        }
    }

    fn corrupt(&self, id: SegmentId, why: String) -> SegmentError {
        SegmentError::Corrupt { segment: id, store: self.objects.name.to_string(), why }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks of the segments read last.
#[derive(Debug, Default)]
struct Cache {
    entries: HashMap<SegmentId, (Arc<Checks>, u64)>,
    /// Use number to segment, oldest first.
    order: BTreeMap<u64, SegmentId>,
    uses: u64,
    bytes: usize,
}

/// What the two tables take for each entry, about.
const ENTRY_BYTES: usize = 96;

impl Cache {
    fn find(&mut self, id: SegmentId) -> Option<Arc<Checks>> {
        let (checks, used) = self.entries.get_mut(&id)?;
        self.order.remove(used);
        self.uses += 1;
        *used = self.uses;
        self.order.insert(self.uses, id);
        Some(Arc::clone(checks))
    }

    fn insert(&mut self, id: SegmentId, checks: Arc<Checks>, limit_bytes: usize) {
        self.remove(id);
        self.uses += 1;
        self.bytes += checks.memory_bytes() + ENTRY_BYTES;
        self.entries.insert(id, (checks, self.uses));
        self.order.insert(self.uses, id);
        while self.bytes > limit_bytes {
            let Some((_, oldest)) = self.order.first_key_value() else { break };
            self.remove(*oldest);
        }
    }

    fn remove(&mut self, id: SegmentId) {
        if let Some((checks, used)) = self.entries.remove(&id) {
            self.order.remove(&used);
            self.bytes -= checks.memory_bytes() + ENTRY_BYTES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_types::SessionId;

    fn checks(blocks: usize) -> Arc<Checks> {
        Arc::new(Checks { data_length: 0, owner_count: 0, owners_crc: 0, crcs: vec![0; blocks].into() })
    }

    #[test]
    fn the_cache_is_bounded_and_forgets_the_oldest() {
        let id = |sequence| SegmentId { session: SessionId(1), sequence };
        let one = checks(256).memory_bytes() + ENTRY_BYTES;
        let mut cache = Cache::default();
        for sequence in 0..3 {
            cache.insert(id(sequence), checks(256), 3 * one);
        }
        assert!(cache.find(id(0)).is_some(), "all three fit");
        cache.insert(id(3), checks(256), 3 * one);
        assert!(cache.find(id(1)).is_none(), "the one used longest ago went");
        assert!(cache.find(id(0)).is_some() && cache.find(id(2)).is_some() && cache.find(id(3)).is_some());
        cache.insert(id(3), checks(0), 3 * one);
        assert_eq!(cache.bytes, 2 * one + checks(0).memory_bytes() + ENTRY_BYTES);
        for sequence in 0..4 {
            cache.remove(id(sequence));
        }
        assert_eq!((cache.bytes, cache.entries.len(), cache.order.len()), (0, 0, 0));
    }
}
