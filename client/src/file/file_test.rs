//! Open files over a real store in a directory and a metadata server in memory: what a program sees, with and without faults.

use super::*;
use std::collections::HashSet;
use std::time::Duration;

use futures::StreamExt;
use pando_segments::{Fault, Faults, Operation};
use tempfile::TempDir;

use crate::file::handle::SeekTo;
use crate::file::testing::{Random, Server, server, store};

const MIB: usize = 1 << 20;
const READ_WRITE: OpenMode =
    OpenMode { read: true, write: true, truncate: false, append: false, direct: false, kill_privileges: false };
const READ: OpenMode = OpenMode { write: false, ..READ_WRITE };

struct Setup {
    server: Arc<Server>,
    files: Arc<Files>,
    store: Store,
    faults: Faults,
    _directory: TempDir,
}

async fn setup(buffer_bytes: usize) -> Setup {
    let directory = tempfile::tempdir().unwrap();
    let (store, faults) = store(directory.path()).await;
    let server = server();
    let files = Files::start(server.clone(), store.clone(), buffer_bytes as u64);
    Setup { server, files, store, faults, _directory: directory }
}

impl Setup {
    async fn create(&self, inode: u64) -> HandleId {
        let attr = self.server.create(InodeId(inode));
        self.files.open_new(attr, READ_WRITE).await.unwrap().handle
    }

    async fn open(&self, inode: u64, mode: OpenMode) -> HandleId {
        self.files.open(InodeId(inode), mode).await.unwrap().handle
    }

    async fn write(&self, handle: HandleId, offset: usize, data: &[u8]) {
        assert_eq!(self.files.write(handle, offset as u64, data, false).await, Ok(data.len()));
    }

    async fn close(&self, handle: HandleId) -> Result<(), FsError> {
        let result = self.files.flush(handle).await;
        self.files.release(handle).await;
        result
    }

    async fn read_all(&self, handle: HandleId) -> Vec<u8> {
        read_all(&self.files, handle).await
    }

    /// What another client sees.
    async fn elsewhere(&self, inode: u64) -> Vec<u8> {
        let other = Files::start(self.server.clone(), self.store.clone(), 16 * MIB as u64);
        let opened = other.open(InodeId(inode), READ).await.unwrap();
        let data = read_all(&other, opened.handle).await;
        other.release(opened.handle).await;
        data
    }

    async fn objects(&self) -> HashSet<SegmentId> {
        self.store.list().map(|object| object.unwrap().0).collect().await
    }
}

async fn read_all(files: &Arc<Files>, handle: HandleId) -> Vec<u8> {
    let mut data = Vec::new();
    loop {
        let part = files.read(handle, data.len() as u64, 300_000).await.unwrap();
        if part.is_empty() {
            return data;
        }
        data.extend_from_slice(&part);
    }
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..2000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}");
}

/// No memory is in use but for caches.
async fn nothing_is_kept(setup: &Setup) {
    eventually("all memory is given back", async || {
        setup.files.chunks.shrink(u64::MAX);
        setup.files.budget.usage().0 == 0
    })
    .await;
}

/// One random change of a file and of the vector that says what it must be.
async fn change(setup: &Setup, handle: HandleId, random: &mut Random, reference: &mut Vec<u8>, size_max: usize) {
    let offset = random.below(size_max as u64) as usize;
    let longest = 1 << (4 + random.below(18));
    let length = 1 + random.below((size_max - offset).min(longest) as u64) as usize;
    match random.below(10) {
        0 => {
            let change = AttrChange::default();
            let set =
                setup.files.set_pending(inode_of(setup, handle), &change, Some(offset as u64), Some(handle)).await;
            assert_eq!(set.unwrap().unwrap().size, offset as u64);
            reference.resize(offset, 0);
        }
        1 => {
            setup.files.fallocate(handle, 3, offset as u64, length as u64).await.unwrap();
            let end = (offset + length).min(reference.len());
            if offset < end {
                reference[offset..end].fill(0);
            }
        }
        2 => {
            setup.files.fallocate(handle, 0x10, offset as u64, length as u64).await.unwrap();
            reference.resize(reference.len().max(offset + length), 0);
            reference[offset..offset + length].fill(0);
        }
        _ => {
            let data = random.bytes(length);
            setup.write(handle, offset, &data).await;
            reference.resize(reference.len().max(offset + length), 0);
            reference[offset..offset + length].copy_from_slice(&data);
        }
    }
}

fn inode_of(setup: &Setup, handle: HandleId) -> InodeId {
    setup.files.handle(handle).unwrap().file.inode
}

/// Random work on one file; every read, and after each commit another client, sees exactly what was written.
async fn random_work(seed: u64, buffer_bytes: usize, size_max: usize, page: u64) {
    let setup = setup(buffer_bytes).await;
    let mut random = Random::new(seed);
    let mut reference = Vec::new();
    let mut handle = setup.create(1).await;
    setup.server.page.store(page, Ordering::Relaxed);
    for step in 0..150 {
        match random.below(12) {
            0 => {
                setup.files.fsync(handle).await.unwrap();
                assert!(setup.elsewhere(1).await == reference, "seed {seed}, after fsync in step {step}");
            }
            1 => {
                setup.close(handle).await.unwrap();
                assert!(setup.elsewhere(1).await == reference, "seed {seed}, after close in step {step}");
                handle = setup.open(1, READ_WRITE).await;
            }
            2..5 => {
                let offset = random.below(size_max as u64) as usize;
                let length = random.below((size_max as u64).min(8 << 20)) as usize;
                let read = setup.files.read(handle, offset as u64, length).await.unwrap();
                let (from, to) = (offset.min(reference.len()), (offset + length).min(reference.len()));
                assert!(read[..] == reference[from..to.max(from)], "seed {seed}, step {step}: {offset} + {length}");
            }
            5 => check_holes(&setup, handle, &reference).await,
            _ => change(&setup, handle, &mut random, &mut reference, size_max).await,
        }
    }
    let shown = setup.files.overlay(setup.server.attr(InodeId(1)));
    assert_eq!(shown.size, reference.len() as u64);
    setup.close(handle).await.unwrap();
    assert!(setup.elsewhere(1).await == reference, "seed {seed}, at the end");
    assert_eq!(setup.files.table.len(), 0);
    assert!(!setup.files.any_unsettled());
    nothing_is_kept(&setup).await;
    assert!(setup.files.budget.usage().1 <= buffer_bytes as u64);
}

/// Where the file says there is a hole there are zeros.
async fn check_holes(setup: &Setup, handle: HandleId, reference: &[u8]) {
    let mut at = 0;
    while let Ok(hole) = setup.files.seek(handle, at, SeekTo::Hole).await {
        let data = setup.files.seek(handle, hole, SeekTo::Data).await.unwrap_or(reference.len() as u64);
        assert!(reference[hole as usize..data as usize].iter().all(|b| *b == 0));
        assert!(hole <= data && data <= reference.len() as u64);
        at = data;
    }
    assert_eq!(at, reference.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_file_is_what_was_written_to_it() {
    for seed in 0..12 {
        random_work(seed, 4 * MIB, 6000, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_what_was_written_to_it_with_too_little_memory_and_pages_of_its_map() {
    for seed in 100..108 {
        random_work(seed, 2 * MIB, MIB + 300_000, 3).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_several_blocks_is_what_was_written_to_it() {
    for seed in 200..204 {
        random_work(seed, 32 * MIB, 13 * MIB, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_larger_than_the_budget_goes_through_it() {
    let setup = setup(16 * MIB).await;
    setup.faults.inject(Operation::Put, Fault::Slow(Duration::from_millis(20)), u32::MAX);
    let handle = setup.create(1).await;
    let data = Random::new(5).bytes(90 * MIB);
    for (n, part) in data.chunks(MIB).enumerate() {
        setup.write(handle, n * MIB, part).await;
    }
    setup.close(handle).await.unwrap();
    assert!(setup.files.budget.usage().1 <= 16 * MIB as u64);
    assert_eq!(setup.server.commits.load(Ordering::Relaxed), 1, "one commit for all of it");
    assert!(setup.elsewhere(1).await == data);
    assert_eq!(setup.objects().await, setup.server.segments_of(InodeId(1)), "nothing is left over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_share_a_small_budget_and_all_finish() {
    let setup = Arc::new(setup(3 * MIB).await);
    let tasks: Vec<_> = (1..33)
        .map(|inode| {
            let setup = setup.clone();
            tokio::spawn(async move {
                let handle = setup.create(inode).await;
                let data = Random::new(inode).bytes(2 * MIB);
                for (n, part) in data.chunks(100_000).enumerate() {
                    setup.write(handle, n * 100_000, part).await;
                }
                let read = setup.read_all(handle).await;
                assert!(read == data);
                setup.close(handle).await.unwrap();
                (inode, data)
            })
        })
        .collect();
    for task in tasks {
        let (inode, data) = task.await.unwrap();
        assert!(setup.elsewhere(inode).await == data);
    }
    assert!(setup.files.budget.usage().1 <= 3 * MIB as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_files_closed_together_share_a_segment_and_a_commit() {
    let setup = Arc::new(setup(64 * MIB).await);
    setup.faults.inject(Operation::Put, Fault::Slow(Duration::from_millis(30)), u32::MAX);
    let tasks: Vec<_> = (1..301)
        .map(|inode| {
            let setup = setup.clone();
            tokio::spawn(async move {
                let handle = setup.create(inode).await;
                setup.write(handle, 0, &vec![inode as u8; 10_000]).await;
                setup.close(handle).await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let puts = setup.faults.calls(Operation::Put);
    assert!(puts <= 12, "{puts} segments for 300 files");
    assert_eq!(setup.server.commits.load(Ordering::Relaxed), puts);
    for inode in [1, 150, 300] {
        assert_eq!(setup.elsewhere(inode).await, vec![inode as u8; 10_000]);
    }
}

#[tokio::test]
async fn tiny_files_need_no_segment() {
    let setup = setup(64 * MIB).await;
    let handle = setup.create(1).await;
    setup.write(handle, 0, b"tiny").await;
    setup.close(handle).await.unwrap();
    assert_eq!(setup.faults.calls(Operation::Put), 0);
    assert_eq!(setup.server.inline_of(InodeId(1)), b"tiny");
    let handle = setup.open(1, OpenMode { append: true, ..READ_WRITE }).await;
    setup.write(handle, 0, b" but growing").await;
    assert_eq!(setup.read_all(handle).await, b"tiny but growing");
    setup.close(handle).await.unwrap();
    assert_eq!(setup.elsewhere(1).await, b"tiny but growing");
    let commits = setup.server.commits.load(Ordering::Relaxed);
    let handle = setup.open(1, READ_WRITE).await;
    setup.files.fsync(handle).await.unwrap();
    setup.close(handle).await.unwrap();
    assert_eq!(setup.server.commits.load(Ordering::Relaxed), commits, "a clean file costs nothing");
}

#[tokio::test]
async fn a_tiny_file_keeps_what_another_client_has_written_beside() {
    let setup = setup(64 * MIB).await;
    let handle = setup.create(1).await;
    setup.write(handle, 0, &[0; 30]).await;
    setup.files.fsync(handle).await.unwrap();
    let other = Files::start(setup.server.clone(), setup.store.clone(), 64 * MIB as u64);
    let theirs = other.open(InodeId(1), READ_WRITE).await.unwrap().handle;
    setup.write(handle, 0, b"ours").await;
    other.write(theirs, 10, b"theirs", false).await.unwrap();
    setup.files.fsync(handle).await.unwrap();
    other.fsync(theirs).await.unwrap();
    let both = [&b"ours"[..], &[0; 6], b"theirs", &[0; 14]].concat();
    assert_eq!(setup.elsewhere(1).await, both);
}

#[tokio::test]
async fn an_emptied_file_shows_elsewhere_its_old_content_until_the_new_is_committed() {
    let setup = setup(64 * MIB).await;
    let handle = setup.create(1).await;
    setup.write(handle, 0, &[1; 5000]).await;
    setup.close(handle).await.unwrap();
    let handle = setup.open(1, OpenMode { truncate: true, ..READ_WRITE }).await;
    assert_eq!(setup.elsewhere(1).await, [1; 5000]);
    assert_eq!(setup.read_all(handle).await, b"");
    setup.write(handle, 0, b"new").await;
    assert_eq!(setup.elsewhere(1).await, [1; 5000]);
    setup.close(handle).await.unwrap();
    assert_eq!(setup.elsewhere(1).await, b"new");
}

#[tokio::test]
async fn attributes_of_a_dirty_file_are_shown_at_once_and_committed_with_its_bytes() {
    let setup = setup(64 * MIB).await;
    let handle = setup.create(1).await;
    let none = AttrChange::default();
    assert_eq!(setup.files.set_pending(InodeId(1), &none, None, None).await, Ok(None), "a clean file's are not kept");
    setup.write(handle, 0, &[1; 5000]).await;
    let mtime = Timestamp(123_456_789);
    let change = AttrChange { mode: Some(0o600), mtime: Some(pando_types::command::SetTime::At(mtime)), ..none };
    let shown = setup.files.set_pending(InodeId(1), &change, None, None).await.unwrap().unwrap();
    assert_eq!((shown.mode, shown.mtime, shown.size), (0o600, mtime, 5000));
    assert_eq!(setup.server.attr(InodeId(1)).mode, 0o644);
    assert!(setup.files.any_unsettled());
    setup.files.settle(InodeId(1)).await.unwrap();
    let committed = setup.server.attr(InodeId(1));
    assert_eq!((committed.mode, committed.mtime, committed.size), (0o600, mtime, 5000));
    assert_eq!(setup.server.commits.load(Ordering::Relaxed), 1);
    assert!(!setup.files.any_unsettled());
    setup.close(handle).await.unwrap();
}

#[tokio::test]
async fn a_failed_store_is_told_to_each_handle_once_and_made_good_when_it_is_back() {
    for size in [10_000, 6 * MIB] {
        let setup = setup(64 * MIB).await;
        let first = setup.create(1).await;
        let second = setup.open(1, READ_WRITE).await;
        setup.faults.inject(Operation::Put, Fault::Deny, u32::MAX);
        let data = Random::new(1).bytes(size);
        setup.write(first, 0, &data[..size / 2]).await;
        setup.write(second, size / 2, &data[size / 2..]).await;
        assert!(setup.files.fsync(first).await.is_err());
        setup.faults.clear();
        assert!(setup.files.write(second, 0, b"x", false).await.is_err(), "told to the other handle's write");
        assert_eq!(setup.files.fsync(second).await, Ok(()), "and once; nothing was lost, so this is true");
        assert!(setup.elsewhere(1).await == data);
        setup.close(first).await.unwrap();
        setup.close(second).await.unwrap();
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_stored_keeps_its_last_committed_content() {
    let setup = setup(64 * MIB).await;
    let handle = setup.create(1).await;
    setup.write(handle, 0, &[1; 9000]).await;
    setup.close(handle).await.unwrap();
    setup.faults.inject(Operation::Put, Fault::Full, u32::MAX);
    let handle = setup.open(1, READ_WRITE).await;
    setup.write(handle, 0, &[2; 5 * MIB]).await;
    let other = setup.open(1, READ).await;
    let error = setup.close(handle).await.unwrap_err();
    assert_eq!(error.errno, Errno::ENOSPC);
    setup.close(other).await.unwrap();
    setup.faults.clear();
    nothing_is_kept(&setup).await;
    let handle = setup.open(1, READ).await;
    assert_eq!(setup.read_all(handle).await, [1; 9000]);
    setup.close(handle).await.unwrap();
    assert_eq!(setup.elsewhere(1).await, [1; 9000]);
    assert!(!setup.files.any_unsettled());
}

#[tokio::test]
async fn a_failure_is_told_to_a_rename() {
    let setup = setup(64 * MIB).await;
    let handle = setup.create(1).await;
    setup.write(handle, 0, &[1; 9000]).await;
    setup.faults.inject(Operation::Put, Fault::Deny, u32::MAX);
    assert!(setup.files.settle(InodeId(1)).await.is_err());
    setup.faults.clear();
    assert_eq!(setup.files.settle(InodeId(1)).await, Ok(()), "once");
    assert!(setup.files.flush(handle).await.is_err(), "and to the handle, once");
    assert_eq!(setup.files.flush(handle).await, Ok(()));
    assert_eq!(setup.elsewhere(1).await, [1; 9000]);
}

#[tokio::test]
async fn a_commit_without_an_answer_is_never_taken_for_done() {
    for carried_out in [false, true] {
        let setup = setup(64 * MIB).await;
        let handle = setup.create(1).await;
        // In memory until committed: it is stored and committed anew.
        setup.write(handle, 0, &[1; 9000]).await;
        setup.server.broken.lock().unwrap().push(carried_out);
        assert!(setup.files.fsync(handle).await.is_err());
        assert_eq!(setup.read_all(handle).await, [1; 9000]);
        assert_eq!(setup.files.fsync(handle).await, Ok(()));
        assert_eq!(setup.elsewhere(1).await, [1; 9000]);
        // Not in memory any more: lost, and said so until the file is emptied.
        setup.write(handle, 0, &[2; 5 * MIB]).await;
        setup.server.broken.lock().unwrap().push(carried_out);
        assert!(setup.files.fsync(handle).await.is_err());
        assert!(setup.files.fsync(handle).await.is_err());
        assert!(setup.files.write(handle, 0, b"x", false).await.is_err());
        let set = setup.files.set_pending(InodeId(1), &AttrChange::default(), Some(0), Some(handle)).await;
        assert_eq!(set.unwrap().unwrap().size, 0);
        setup.write(handle, 0, b"again").await;
        assert_eq!(setup.files.fsync(handle).await, Ok(()));
        assert_eq!(setup.elsewhere(1).await, b"again");
    }
}

#[tokio::test]
async fn damaged_bytes_are_an_error_of_the_file_that_has_them() {
    let setup = setup(64 * MIB).await;
    for inode in [1, 2] {
        let handle = setup.create(inode).await;
        setup.write(handle, 0, &[1; 2 * MIB]).await;
        setup.close(handle).await.unwrap();
    }
    let damaged = setup.open(1, READ).await;
    setup.faults.inject(Operation::Get, Fault::Corrupt, u32::MAX);
    let error = setup.files.read(damaged, 0, 1000).await.unwrap_err();
    assert_eq!(error.errno, Errno::EIO);
    setup.faults.clear();
    let good = setup.open(2, READ).await;
    assert_eq!(setup.read_all(good).await, [1; 2 * MIB]);
}

#[tokio::test]
async fn a_file_rewritten_by_another_client_is_read_anew_when_its_old_segment_is_gone() {
    let setup = setup(64 * MIB).await;
    let handle = setup.create(1).await;
    setup.write(handle, 0, &[1; 2 * MIB]).await;
    setup.close(handle).await.unwrap();
    let old = setup.server.segments_of(InodeId(1));
    let reading = setup.open(1, READ).await;
    let other = Files::start(setup.server.clone(), setup.store.clone(), 64 * MIB as u64);
    let writing = other.open(InodeId(1), OpenMode { truncate: true, ..READ_WRITE }).await.unwrap().handle;
    other.write(writing, 0, &[2; 2 * MIB], false).await.unwrap();
    other.flush(writing).await.unwrap();
    for segment in old {
        setup.store.delete(segment).await.unwrap();
    }
    assert_eq!(setup.read_all(reading).await, [2; 2 * MIB]);
    for segment in setup.server.segments_of(InodeId(1)) {
        setup.store.delete(segment).await.unwrap();
    }
    nothing_is_kept(&setup).await;
    assert_eq!(setup.files.read(reading, MIB as u64, 10).await.unwrap_err().errno, Errno::EIO);
}

#[tokio::test]
async fn bytes_that_were_stored_and_then_cut_off_leave_no_segment() {
    let setup = setup(64 * MIB).await;
    let handle = setup.create(1).await;
    setup.write(handle, 0, &[1; 9 * MIB]).await;
    eventually("full blocks are stored while the writer goes on", async || setup.objects().await.len() == 2).await;
    setup.files.set_pending(InodeId(1), &AttrChange::default(), Some(0), Some(handle)).await.unwrap();
    eventually("and deleted when nobody can need them", async || setup.objects().await.is_empty()).await;
    setup.write(handle, 0, b"x").await;
    setup.close(handle).await.unwrap();
    assert_eq!(setup.elsewhere(1).await, b"x");
}

#[tokio::test]
async fn an_inode_without_a_name_is_released_after_its_last_close() {
    let setup = setup(64 * MIB).await;
    let handle = setup.create(1).await;
    setup.write(handle, 0, &[1; 9000]).await;
    setup.files.lost_name(InodeId(1), true);
    assert_eq!(setup.read_all(handle).await, [1; 9000]);
    assert!(setup.server.released.lock().unwrap().is_empty());
    setup.close(handle).await.unwrap();
    assert_eq!(setup.server.commits.load(Ordering::Relaxed), 0, "nobody could see it");
    setup.files.lost_name(InodeId(2), true);
    eventually("both are released", async || setup.server.released.lock().unwrap().len() == 2).await;
}

#[tokio::test]
async fn a_stream_is_fetched_ahead_and_random_reads_fetch_what_they_need() {
    let setup = setup(256 * MIB).await;
    let handle = setup.create(1).await;
    let data = Random::new(9).bytes(30 * MIB);
    setup.write(handle, 0, &data).await;
    setup.close(handle).await.unwrap();
    let handle = setup.open(1, READ).await;
    let before = setup.faults.calls(Operation::Get);
    for n in 0..30 {
        let part = setup.files.read(handle, (n * MIB) as u64, MIB).await.unwrap();
        assert!(part[..] == data[n * MIB..(n + 1) * MIB]);
    }
    let streamed = setup.faults.calls(Operation::Get) - before;
    assert!(streamed < 20, "{streamed} gets for 30 MiB read in order");
    setup.close(handle).await.unwrap();
    setup.files.chunks.shrink(u64::MAX);
    let handle = setup.open(1, READ).await;
    let mut random = Random::new(2);
    let before = setup.faults.calls(Operation::Get);
    for _ in 0..50 {
        let at = random.below(29 << 20) as usize;
        assert!(setup.files.read(handle, at as u64, 4096).await.unwrap()[..] == data[at..at + 4096]);
    }
    assert!(setup.faults.calls(Operation::Get) - before <= 100);
    assert_eq!(setup.files.chunks.shrink(u64::MAX), 0, "nothing was fetched that was not asked for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_of_one_file_each_keep_their_ranges() {
    let setup = Arc::new(setup(8 * MIB).await);
    let first = setup.create(1).await;
    let tasks: Vec<_> = (0..8usize)
        .map(|part| {
            let setup = setup.clone();
            tokio::spawn(async move {
                let handle = setup.open(1, READ_WRITE).await;
                for step in 0..40 {
                    let offset = (step * 8 + part) * 30_000;
                    setup.write(handle, offset, &vec![(part * 31 + step) as u8; 30_000]).await;
                    if step % 8 == part {
                        setup.files.fsync(handle).await.unwrap();
                    }
                    let read = setup.files.read(handle, offset as u64, 30_000).await.unwrap();
                    assert!(read.iter().all(|b| *b == (part * 31 + step) as u8) && read.len() == 30_000);
                }
                setup.close(handle).await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    setup.close(first).await.unwrap();
    let data = setup.elsewhere(1).await;
    for (n, part) in data.chunks(30_000).enumerate() {
        assert!(part.iter().all(|b| *b == (n % 8 * 31 + n / 8) as u8), "{n}");
    }
    assert_eq!(data.len(), 320 * 30_000);
}

#[tokio::test]
async fn pages_of_the_kernel_are_kept_while_the_version_is_unchanged() {
    let setup = setup(64 * MIB).await;
    setup.server.create(InodeId(1));
    let first = setup.files.open(InodeId(1), READ).await.unwrap();
    assert!(!first.keep_cache);
    assert!(setup.files.open(InodeId(1), READ).await.unwrap().keep_cache);
    let writing = setup.open(1, OpenMode { direct: true, ..READ_WRITE }).await;
    setup.write(writing, 0, b"x").await;
    assert!(!setup.files.open(InodeId(1), READ).await.unwrap().keep_cache);
    setup.close(writing).await.unwrap();
    assert!(!setup.files.open(InodeId(1), READ).await.unwrap().keep_cache);
    assert!(setup.files.open(InodeId(1), READ).await.unwrap().keep_cache);
}

#[tokio::test]
async fn wrong_uses_are_refused() {
    let setup = setup(64 * MIB).await;
    let handle = setup.create(1).await;
    let reading = setup.open(1, READ).await;
    let errno = |result: Result<usize, FsError>| result.unwrap_err().errno;
    assert_eq!(errno(setup.files.write(reading, 0, b"x", false).await), Errno::EBADF);
    assert_eq!(errno(setup.files.write(handle, FILE_BYTES_MAX, b"x", false).await), Errno::EFBIG);
    assert_eq!(errno(setup.files.write(HandleId(99), 0, b"x", false).await), Errno::EBADF);
    for mode in [0x08, 0x20, 0x02] {
        let refused = setup.files.fallocate(handle, mode, 0, 1).await.unwrap_err();
        assert_eq!(refused.errno, Errno::EOPNOTSUPP, "{mode:#x}");
    }
    assert_eq!(setup.files.seek(handle, 0, SeekTo::Data).await.unwrap_err().errno, Errno::ENXIO);
    assert_eq!(setup.files.open(InodeId(404), READ).await.unwrap_err().errno, Errno::ENOENT);
    setup.files.release(handle).await;
    setup.files.release(reading).await;
    assert_eq!(setup.files.table.len(), 0, "a failed open leaves nothing");
}
