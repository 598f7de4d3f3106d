//! Doubles for the tests of open files: a metadata server that keeps files in memory, and pseudo-random numbers.
//!
//! The server carries commits out as the words of [`FileCommit`] say, by simpler means than the client's own content map,
//! and refuses what no client may send.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use pando_segments::{Faults, RetryPolicy, Store, StoreConfig};
use pando_types::command::{Commit, CommitContent, FileCommit, SetTime};
use pando_types::limits::{EXTENTS_PER_COMMIT_MAX, FILES_PER_COMMIT_MAX, INLINE_BYTES_MAX};
use pando_types::request::Content;
use pando_types::{Attr, Errno, Extent, FileKind, FsError, InodeId, SegmentId, SessionId, ShardId, Timestamp};

use crate::file::metadata::{Committed, Metadata};

/// Xorshift: the same seed gives the same test.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit.max(1)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&(self.below(u64::MAX) | 1 << 40).to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}

/// Attributes of an empty file.
pub(crate) fn attr(inode: InodeId) -> Attr {
    let time = Timestamp(1);
    Attr {
        inode,
        kind: FileKind::File,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        allocated: 0,
        atime: time,
        mtime: time,
        ctime: time,
        version: 1,
    }
}

/// A file of the server: where each range is, later ones over earlier ones.
#[derive(Clone)]
struct Record {
    attr: Attr,
    inline: Vec<u8>,
    extents: Vec<Extent>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Server {
    files: Mutex<HashMap<InodeId, Record>>,
    sequence: AtomicU64,
    segments: Mutex<HashSet<SegmentId>>,
    pub(crate) commits: AtomicU64,
    pub(crate) pages: AtomicU64,
    pub(crate) released: Mutex<Vec<InodeId>>,
    /// The next commits are answered so: `false` without being carried out, `true` although they were.
    pub(crate) broken: Mutex<Vec<bool>>,
    /// Extents in one page; 0 is no limit.
    pub(crate) page: AtomicU64,
}

impl Server {
    pub(crate) fn create(&self, inode: InodeId) -> Attr {
        let attr = attr(inode);
        let record = Record { attr: attr.clone(), inline: Vec::new(), extents: Vec::new() };
        self.files.lock().unwrap().insert(inode, record);
        attr
    }

    pub(crate) fn attr(&self, inode: InodeId) -> Attr {
        self.files.lock().unwrap()[&inode].attr.clone()
    }

    /// Segments that files refer to.
    pub(crate) fn segments_of(&self, inode: InodeId) -> HashSet<SegmentId> {
        self.files.lock().unwrap()[&inode].extents.iter().map(|e| e.segment).collect()
    }

    pub(crate) fn inline_of(&self, inode: InodeId) -> Vec<u8> {
        self.files.lock().unwrap()[&inode].inline.clone()
    }

    fn carry_out(&self, commit: &Commit) -> Vec<Result<Attr, Errno>> {
        assert!(commit.files.len() <= FILES_PER_COMMIT_MAX);
        let mut known = self.segments.lock().unwrap();
        for segment in &commit.segments {
            assert!(known.insert(segment.id), "a segment is committed once");
        }
        let mut extents = 0;
        let mut files = self.files.lock().unwrap();
        let results = commit.files.iter().map(|file| {
            if let CommitContent::Extents(all) = &file.content {
                extents += all.len();
                assert!(all.windows(2).all(|w| w[0].end() <= w[1].offset), "ascending, no overlap");
                for extent in all {
                    let segment = commit.segments.iter().find(|s| s.id == extent.segment).expect("a segment is named");
                    assert!(extent.length > 0 && extent.segment_offset + extent.length <= segment.length);
                    assert!(extent.end() <= file.size, "the size covers the extents");
                }
            }
            let record = files.get_mut(&file.inode).ok_or(Errno::ENOENT)?;
            apply(record, file);
            Ok(record.attr.clone())
        });
        let results = results.collect();
        assert!(extents <= EXTENTS_PER_COMMIT_MAX);
        results
    }
}

fn apply(record: &mut Record, file: &FileCommit) {
    let before = (record.attr.size, record.inline.clone(), record.extents.clone());
    if let Some(cut) = file.cut {
        clear(record, cut, u64::MAX);
        record.inline.truncate(cut as usize);
        record.attr.size = record.attr.size.min(cut);
    }
    for range in &file.punch {
        clear(record, range.offset, range.end());
    }
    match &file.content {
        CommitContent::Extents(extents) => {
            for extent in extents {
                clear(record, extent.offset, extent.end());
                record.extents.push(*extent);
            }
        }
        CommitContent::Inline(bytes) => {
            assert!(bytes.len() <= INLINE_BYTES_MAX);
            record.extents.clear();
            record.inline.clone_from(bytes);
            record.attr.size = bytes.len() as u64;
        }
    }
    record.attr.size = record.attr.size.max(file.size);
    record.extents.sort();
    record.attr.mode = file.change.mode.unwrap_or(record.attr.mode);
    if let Some(SetTime::At(time)) = file.change.mtime {
        record.attr.mtime = time;
    }
    if before != (record.attr.size, record.inline.clone(), record.extents.clone()) {
        record.attr.version += 1;
    }
}

fn clear(record: &mut Record, from: u64, to: u64) {
    let rest = |e: &Extent| [e.clip(0, from), e.clip(to, u64::MAX)].into_iter().flatten().collect::<Vec<_>>();
    record.extents = record.extents.iter().flat_map(rest).collect();
    let end = to.min(record.inline.len() as u64) as usize;
    if (from as usize) < end {
        record.inline[from as usize..end].fill(0);
    }
}

impl Metadata for Server {
    fn content(&self, inode: InodeId, offset: u64) -> BoxFuture<'_, Result<Content, FsError>> {
        self.pages.fetch_add(1, Ordering::Relaxed);
        let record = self.files.lock().unwrap().get(&inode).cloned();
        let limit = self.page.load(Ordering::Relaxed) as usize;
        Box::pin(async move {
            let record = record.ok_or(Errno::ENOENT)?;
            let mut extents: Vec<_> = record.extents.into_iter().filter(|e| e.end() > offset).collect();
            let more = limit > 0 && extents.len() > limit;
            if more {
                extents.truncate(limit);
            }
            Ok(Content { attr: record.attr, inline: record.inline, extents, more })
        })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Committed> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            self.commits.fetch_add(1, Ordering::Relaxed);
            let broken = self.broken.lock().unwrap().pop();
            let results = if broken == Some(false) { Vec::new() } else { self.carry_out(&commit) };
            match broken {
                Some(_) => Err(FsError::unavailable("no answer")),
                None => Ok(results),
            }
        })
    }

    fn release_orphans(&self, inodes: Vec<InodeId>) -> BoxFuture<'_, Result<(), FsError>> {
        self.released.lock().unwrap().extend(inodes);
        Box::pin(async { Ok(()) })
    }

    fn segment_id(&self, _: InodeId) -> BoxFuture<'_, Result<SegmentId, FsError>> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        Box::pin(async move { Ok(SegmentId { session: SessionId(1), sequence }) })
    }

    fn shard(&self, _: InodeId) -> ShardId {
        ShardId(0)
    }
}

/// Carries out a commit, for a double of a whole server.
pub(crate) async fn commit(server: &Server, commit: Commit) -> Committed {
    Metadata::commit(server, commit).await
}

/// A page of a content map, for a double of a whole server.
pub(crate) async fn content(server: &Server, inode: InodeId, offset: u64) -> Result<Content, FsError> {
    Metadata::content(server, inode, offset).await
}

/// A store in a directory, with faults to come and retries that do not wait long.
pub(crate) async fn store(directory: &std::path::Path) -> (Store, Faults) {
    let url = format!("file://{}", directory.display());
    let config = StoreConfig { url, s3_endpoint: None, cluster: "test".into() };
    let faults = Faults::new();
    let short = std::time::Duration::from_millis(1);
    let retry = RetryPolicy { tries: 2, first_pause: short, ..RetryPolicy::LOCAL };
    let store = Store::open(&config).await.unwrap().with_faults(faults.clone()).with_retry(retry);
    (store, faults)
}

/// Shares a server between clients.
pub(crate) fn server() -> Arc<Server> {
    Arc::default()
}
