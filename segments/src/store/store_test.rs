//! The object store behind segments: what is put comes back, and each failure is told for what it is.

use std::time::Instant;

use pando_types::limits::CHECKSUM_BLOCK_BYTES;
use pando_types::{InodeId, SessionId};

use super::*;
use crate::faults::{Fault, Operation};
use crate::writer::Writer;

const BLOCK: u64 = CHECKSUM_BLOCK_BYTES as u64;

fn id(sequence: u64) -> SegmentId {
    SegmentId { session: SessionId(0xabc), sequence }
}

fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..length).map(next).collect()
}

fn segment(data: &[u8]) -> Vec<Bytes> {
    let mut writer = Writer::new();
    writer.push(InodeId(5), 0, Bytes::copy_from_slice(data));
    writer.finish().0
}

fn config(directory: &std::path::Path) -> StoreConfig {
    StoreConfig { url: format!("file://{}", directory.display()), s3_endpoint: None, cluster: "c1".into() }
}

/// A store that retries at once, and its faults.
async fn open(directory: &std::path::Path) -> (Store, Faults) {
    let faults = Faults::new();
    let policy = RetryPolicy { first_pause: Duration::from_millis(1), factor: 1, ..RetryPolicy::LOCAL };
    (Store::open(&config(directory)).await.unwrap().with_faults(faults.clone()).with_retry(policy), faults)
}

/// The file of a segment.
fn file(directory: &std::path::Path, id: SegmentId) -> PathBuf {
    directory.join("c1").join(format!("{:02x}", name_hash(id))).join(id.to_string())
}

fn spoil(path: &std::path::Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut object = std::fs::read(path).unwrap();
    change(&mut object);
    std::fs::write(path, object).unwrap();
}

/// A name's hash is part of the format: objects are found by it.
#[test]
fn names_do_not_change() {
    let hashes: Vec<_> = (0..4).map(|n| name_hash(id(n))).collect();
    assert_eq!(hashes, [36, 159, 168, 6]);
    let mut seen = [0u32; 256];
    (0..25_600).for_each(|n| seen[usize::from(name_hash(id(n)))] += 1);
    assert!(seen.iter().all(|n| (50..150).contains(n)), "folders are used alike: {seen:?}");
}

#[tokio::test]
async fn every_range_reads_back_with_and_without_the_checks_at_hand() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(3 * CHECKSUM_BLOCK_BYTES + 777, 1);
    let end = data.len() as u64;
    let (store, _) = open(dir.path()).await;
    store.put(id(1), segment(&data)).await.unwrap();
    let edges = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK, 3 * BLOCK + 1, end - 1, end];
    for from in edges {
        for to in edges.into_iter().filter(|to| *to >= from) {
            let (cold, _) = open(dir.path()).await;
            let want = &data[from as usize..to as usize];
            assert_eq!(store.read(id(1), from..to).await.unwrap(), want, "{from}..{to}");
            assert_eq!(cold.read(id(1), from..to).await.unwrap(), want, "{from}..{to}, cold");
        }
    }
    let (owners, length) = store.owners(id(1)).await.unwrap();
    assert_eq!((owners.len(), owners[0].inode, length), (1, InodeId(5), end));
}

#[tokio::test]
async fn a_range_past_the_end_is_damage_not_a_short_answer() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path()).await;
    store.put(id(1), segment(&bytes(1000, 1))).await.unwrap();
    for range in [0..1001, 1000..1001, 5000..6000, BLOCK * 9..BLOCK * 10] {
        let (cold, _) = open(dir.path()).await;
        for store in [&store, &cold] {
            let error = store.read(id(1), range.clone()).await.unwrap_err();
            assert!(matches!(error, SegmentError::Corrupt { segment, .. } if segment == id(1)), "{range:?}: {error}");
        }
    }
}

#[tokio::test]
async fn damage_on_disk_is_named_and_other_segments_are_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(200_000, 2);
    let (store, _) = open(dir.path()).await;
    for n in 1..=6 {
        store.put(id(n), segment(&data)).await.unwrap();
    }
    spoil(&file(dir.path(), id(1)), |object| object[100_000] ^= 1);
    spoil(&file(dir.path(), id(2)), |object| object.truncate(150_000));
    spoil(&file(dir.path(), id(3)), |object| object.clear());
    spoil(&file(dir.path(), id(4)), |object| {
        let last = object.len() - 60;
        object[last] ^= 1;
    });
    std::fs::copy(file(dir.path(), id(6)), file(dir.path(), id(5))).unwrap();
    let (cold, _) = open(dir.path()).await;
    for n in 1..=5 {
        let error = cold.read(id(n), 0..data.len() as u64).await.unwrap_err();
        assert!(matches!(&error, SegmentError::Corrupt { segment, .. } if *segment == id(n)), "{n}: {error}");
        assert!(error.to_string().contains(&id(n).to_string()), "{error}");
    }
    assert_eq!(cold.read(id(6), 0..data.len() as u64).await.unwrap(), data);
    // The blocks before and after the damaged one can be read; with the checks at hand, a cut is found as well.
    assert_eq!(cold.read(id(1), 0..BLOCK).await.unwrap(), data[..BLOCK as usize]);
    assert_eq!(cold.read(id(1), 2 * BLOCK..2 * BLOCK + 9).await.unwrap(), data[131_072..131_081]);
    assert!(matches!(store.read(id(2), 140_000..160_000).await, Err(SegmentError::Corrupt { .. })));
}

#[tokio::test]
async fn a_missing_segment_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults) = open(dir.path()).await;
    let error = store.read(id(9), 0..10).await.unwrap_err();
    assert!(matches!(error, SegmentError::Missing { segment, .. } if segment == id(9)), "{error}");
    assert!(faults.calls(Operation::Get) <= 2, "what is missing is not asked for again");
    store.put(id(1), segment(b"abc")).await.unwrap();
    store.delete(id(1)).await.unwrap();
    store.delete(id(1)).await.unwrap();
    assert!(matches!(store.read(id(1), 0..1).await, Err(SegmentError::Missing { .. })));
}

#[tokio::test]
async fn damage_on_the_way_heals_by_a_second_fetch() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(100_000, 3);
    let (store, faults) = open(dir.path()).await;
    store.put(id(1), segment(&data)).await.unwrap();
    for fault in [Fault::Corrupt, Fault::Cut] {
        faults.inject(Operation::Get, fault, 1);
        assert_eq!(store.read(id(1), 10..99_000).await.unwrap(), data[10..99_000], "{fault:?}");
        faults.inject(Operation::Get, fault, u32::MAX);
        let error = store.read(id(1), 10..99_000).await.unwrap_err();
        assert!(matches!(error, SegmentError::Corrupt { .. }), "{fault:?}: {error}");
        faults.clear();
    }
}

#[tokio::test]
async fn what_may_pass_is_tried_again_and_what_stays_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults) = open(dir.path()).await;
    faults.inject(Operation::Put, Fault::Refuse, 2);
    faults.inject(Operation::Put, Fault::LoseAnswer, 3);
    store.put(id(1), segment(b"abc")).await.unwrap();
    assert_eq!(faults.calls(Operation::Put), 4, "refused twice, one answer lost, done");
    faults.inject(Operation::Get, Fault::Refuse, 1);
    assert_eq!(store.read(id(1), 0..3).await.unwrap(), &b"abc"[..]);

    faults.inject(Operation::Put, Fault::Refuse, u32::MAX);
    let error = store.put(id(2), segment(b"abc")).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!(faults.calls(Operation::Put), 4 + u64::from(RetryPolicy::LOCAL.tries));
    faults.clear();
    for (fault, tells) in [(Fault::Full, "is full"), (Fault::Deny, "credentials")] {
        let before = faults.calls(Operation::Put);
        faults.inject(Operation::Put, fault, u32::MAX);
        let error = store.put(id(3), segment(b"abc")).await.unwrap_err().to_string();
        assert!(error.contains(tells), "{error}");
        assert_eq!(faults.calls(Operation::Put), before + 1);
        faults.clear();
    }
}

#[tokio::test]
async fn a_call_ends_in_bounded_time() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults) = open(dir.path()).await;
    store.put(id(1), segment(b"abc")).await.unwrap();
    let store = store.with_retry(RetryPolicy {
        tries: u32::MAX,
        first_pause: Duration::from_millis(10),
        factor: 1,
        give_up_after: Duration::from_millis(200),
        try_timeout: Duration::from_millis(50),
        bytes_per_second_min: 1_000_000,
    });
    faults.inject(Operation::Get, Fault::Slow(Duration::from_secs(3600)), u32::MAX);
    let began = Instant::now();
    let error = store.read(id(1), 0..1).await.unwrap_err();
    assert!(matches!(&error, SegmentError::Unreachable { .. }), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(faults.calls(Operation::Get) > 2, "a try that hangs is not the last");
}

#[tokio::test]
async fn readers_of_one_segment_share_the_fetch_of_its_tail() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(16 * CHECKSUM_BLOCK_BYTES, 4);
    open(dir.path()).await.0.put(id(1), segment(&data)).await.unwrap();
    let (cold, faults) = open(dir.path()).await;
    faults.inject(Operation::Get, Fault::Slow(Duration::from_millis(50)), u32::MAX);
    let reads = (0..16u64).map(|n| cold.read(id(1), n * BLOCK..(n + 1) * BLOCK));
    for (n, read) in futures::future::join_all(reads).await.into_iter().enumerate() {
        assert_eq!(read.unwrap(), data[n * CHECKSUM_BLOCK_BYTES..][..CHECKSUM_BLOCK_BYTES]);
    }
    assert_eq!(faults.calls(Operation::Get), 16 + 1);
    cold.read(id(1), 5..6).await.unwrap();
    assert_eq!(faults.calls(Operation::Get), 16 + 2, "the checks are kept");
}

#[tokio::test]
async fn a_reader_that_goes_away_leaves_the_fetch_to_the_others() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).await.0.put(id(1), segment(b"abc")).await.unwrap();
    let (cold, faults) = open(dir.path()).await;
    faults.inject(Operation::Get, Fault::Slow(Duration::from_millis(50)), u32::MAX);
    {
        let first = cold.read(id(1), 0..3);
        tokio::pin!(first);
        assert!(futures::poll!(&mut first).is_pending());
        let second = cold.read(id(1), 0..3);
        tokio::pin!(second);
        assert!(futures::poll!(&mut second).is_pending());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(cold.read(id(1), 0..3).await.unwrap(), &b"abc"[..]);
}

#[tokio::test]
async fn the_listing_shows_segments_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults) = open(dir.path()).await;
    let mut want = Vec::new();
    for n in 0..40 {
        let object = segment(&bytes(n as usize, n));
        want.push((id(n), object.iter().map(Bytes::len).sum::<usize>() as u64 + format::SEAL_BYTES as u64));
        store.put(id(n), object).await.unwrap();
    }
    let folder = dir.path().join("c1");
    std::fs::write(folder.join("probe-1"), "x").unwrap();
    std::fs::write(folder.join("00/not-a-segment-name"), "x").unwrap();
    let wrong = format!("{:02x}", name_hash(id(1)).wrapping_add(1));
    std::fs::write(folder.join(wrong).join(id(1).to_string()), "x").unwrap();
    faults.inject(Operation::List, Fault::Refuse, 2);
    let mut found: Vec<_> = store.list().map(|item| item.unwrap()).collect().await;
    found.sort_by_key(|(id, ..)| *id);
    assert!(found.iter().all(|(_, _, age)| *age < Duration::from_secs(600)));
    assert_eq!(found.into_iter().map(|(id, bytes, _)| (id, bytes)).collect::<Vec<_>>(), want);
}

#[tokio::test]
async fn what_a_crash_left_is_swept() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path()).await;
    store.put(id(1), segment(b"abc")).await.unwrap();
    let left = PathBuf::from(format!("{}#1", file(dir.path(), id(2)).display()));
    std::fs::write(&left, "half").unwrap();
    assert_eq!(store.sweep_unfinished(Duration::from_secs(3600)).await.unwrap(), 0, "it may be under way");
    assert_eq!(store.sweep_unfinished(Duration::ZERO).await.unwrap(), 1);
    assert!(!left.exists());
    assert_eq!(store.read(id(1), 0..3).await.unwrap(), &b"abc"[..]);
}

#[tokio::test]
async fn a_store_says_what_is_wrong_with_its_address() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let path = dir.path().display();
    for (url, tells) in [
        (format!("file://{path}/nowhere"), "does not exist"),
        (format!("file://{path}/file"), "not a directory"),
        ("file://relative".to_owned(), "not absolute"),
        ("/plain/path".to_owned(), "unknown kind"),
        ("s3://".to_owned(), "names no bucket"),
        ("s3:///prefix".to_owned(), "names no bucket"),
        ("s3://key:hush@bucket".to_owned(), "credentials"),
    ] {
        let config = StoreConfig { url: url.clone(), ..config(dir.path()) };
        let error = Store::open_in(&config, Environment::of([])).await.unwrap_err().to_string();
        assert!(error.contains(tells) && !error.contains("hush"), "{url}: {error}");
    }
    for cluster in ["", "a/b", "..", "a b"] {
        let config = StoreConfig { cluster: cluster.into(), ..config(dir.path()) };
        assert!(Store::open(&config).await.unwrap_err().to_string().contains("cluster id"));
    }
}

#[tokio::test]
async fn a_check_finds_a_store_that_works_or_says_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults) = open(dir.path()).await;
    store.check().await.unwrap();
    assert_eq!(std::fs::read_dir(dir.path().join("c1")).unwrap().count(), 256, "the probe is gone");
    faults.inject(Operation::Get, Fault::Corrupt, 1);
    assert!(store.check().await.unwrap_err().to_string().contains("other bytes"));
    faults.inject(Operation::Put, Fault::Refuse, u32::MAX);
    let began = Instant::now();
    assert!(store.check().await.unwrap_err().is_transient());
    assert!(began.elapsed() < Duration::from_secs(3));
    let (total, free) = store.space().unwrap();
    assert!(total > 0 && free <= total);
}

#[tokio::test]
async fn segments_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).await;
    for folder in ["c1", "c1/00", "c1/ff"] {
        assert_eq!(std::fs::metadata(dir.path().join(folder)).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

/// What others hold: a clone reads what the original wrote, and data that was pushed whole is not copied on its way.
#[tokio::test]
async fn a_read_returns_a_slice_of_what_was_fetched() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(CHECKSUM_BLOCK_BYTES, 6);
    let (store, faults) = open(dir.path()).await;
    store.clone().put(id(1), segment(&data)).await.unwrap();
    let read = store.read(id(1), 5..6).await.unwrap();
    assert_eq!(read, data[5..6]);
    assert_eq!(faults.calls(Operation::Get), 1, "who wrote a segment has its checks");
}
