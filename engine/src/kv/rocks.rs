//! The store on disk: one RocksDB for all shards of a node.
//!
//! Its own WAL is off: the Raft log is the WAL, and each batch carries the applied mark. Flushes are atomic over all column
//! families, so that what is on disk is always a prefix of the batches. Options and their figures: MEASURED.md D.

use std::ops::ControlFlow;
use std::path::Path;

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, BottommostLevelCompaction, Cache, CompactOptions, DB, DBCompressionType,
    FlushOptions, LogLevel, Options, ReadOptions, Snapshot, WriteBatch, WriteOptions,
};

use super::{Batch, Change, Kv, KvError, Record, View, Visit};

/// Bytes per data block: small, since hot reads are single records.
const BLOCK_BYTES: usize = 4 << 10;
/// Bytes per memtable; two may be full and one filling.
const MEMTABLE_BYTES: usize = 64 << 20;
/// Most table files open at once.
const OPEN_FILES_MAX: i32 = 4096;

/// The store.
pub struct RocksKv {
    db: DB,
    write_options: WriteOptions,
}

impl RocksKv {
    /// Opens or creates the store in `dir`, with a block cache of `cache_bytes`.
    pub fn open(dir: &Path, cache_bytes: usize) -> Result<RocksKv, KvError> {
        let db = DB::open(&options(cache_bytes), dir)?;
        let mut write_options = WriteOptions::default();
        write_options.disable_wal(true);
        Ok(RocksKv { db, write_options })
    }

    /// Compacts everything, bottom level included; for benches and after mass deletions.
    pub fn compact(&self) {
        let mut options = CompactOptions::default();
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        self.db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &options);
    }
}

fn options(cache_bytes: usize) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(cache_bytes));
    table.set_block_size(BLOCK_BYTES);
    table.set_format_version(6);
    table.set_bloom_filter(10.0, false);
    table.set_whole_key_filtering(true);
    table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    table.set_partition_filters(true);
    table.set_metadata_block_size(BLOCK_BYTES);
    table.set_cache_index_and_filter_blocks(true);
    table.set_cache_index_and_filter_blocks_with_high_priority(true);
    table.set_pin_top_level_index_and_filter(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);

    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_atomic_flush(true);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_bottommost_compression_type(DBCompressionType::Zstd);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_write_buffer_size(MEMTABLE_BYTES);
    options.set_max_write_buffer_number(3);
    options.set_max_background_jobs(2);
    options.set_bytes_per_sync(1 << 20);
    options.set_max_open_files(OPEN_FILES_MAX);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(8 << 20);
    options.set_log_level(LogLevel::Warn);
    options
}

impl Kv for RocksKv {
    type View<'a> = RocksView<'a>;

    fn view(&self) -> RocksView<'_> {
        RocksView { db: &self.db, snapshot: self.db.snapshot() }
    }

    fn write(&self, batch: Batch) -> Result<(), KvError> {
        let mut changes = WriteBatch::default();
        for change in &batch.0 {
            match change {
                Change::Put(key, value) => changes.put(key, value),
                Change::Delete(key) => changes.delete(key),
                Change::DeleteRange(from, to) if from < to => changes.delete_range(from, to),
                Change::DeleteRange(..) => {}
            }
        }
        Ok(self.db.write_opt(changes, &self.write_options)?)
    }

    fn flush(&self) -> Result<(), KvError> {
        let mut options = FlushOptions::default();
        options.set_wait(true);
        Ok(self.db.flush_opt(&options)?)
    }
}

/// A picture of a [`RocksKv`].
pub struct RocksView<'a> {
    db: &'a DB,
    snapshot: Snapshot<'a>,
}

impl RocksView<'_> {
    fn range(&self, from: &[u8], to: &[u8]) -> ReadOptions {
        let mut options = ReadOptions::default();
        options.set_snapshot(&self.snapshot);
        options.set_iterate_lower_bound(from);
        options.set_iterate_upper_bound(to);
        options
    }
}

impl View for RocksView<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        Ok(self.snapshot.get_pinned(key)?.map(|value| value.to_vec()))
    }

    fn multi_get(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, KvError> {
        let mut options = ReadOptions::default();
        options.set_snapshot(&self.snapshot);
        self.db.multi_get_opt(keys, &options).into_iter().map(|value| value.map_err(KvError::from)).collect()
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), KvError> {
        if from >= to {
            return Ok(());
        }
        let mut cursor = self.db.raw_iterator_opt(self.range(from, to));
        cursor.seek(from);
        while let Some((key, value)) = cursor.item() {
            if let ControlFlow::Break(()) = visit(key, value) {
                return Ok(());
            }
            cursor.next();
        }
        Ok(cursor.status()?)
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<Record>, KvError> {
        if from >= to {
            return Ok(None);
        }
        let mut cursor = self.db.raw_iterator_opt(self.range(from, to));
        cursor.seek_to_last();
        match cursor.item() {
            Some((key, value)) => Ok(Some((key.to_vec(), value.to_vec()))),
            None => Ok(cursor.status().map(|()| None)?),
        }
    }
}
