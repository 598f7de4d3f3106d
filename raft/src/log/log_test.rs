//! The log store alone: what survives, what is refused, and that nothing is purged too far.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use openraft::RaftLogReader as _;
use openraft::storage::{RaftLogStorage as _, RaftLogStorageExt as _};

use super::*;
use crate::group::Alive;
use crate::raft_types::{EntryPayload, LeaderId, Payload, Vote};
use crate::testing::copy_dir;

const G: ShardId = ShardId(5);

fn id(term: u64, index: u64) -> LogId {
    LogId { leader_id: LeaderId { term, node_id: 1 }, index }
}

fn entry(term: u64, index: u64) -> Entry {
    let payload = format!("payload of {index} in term {term}");
    Entry { log_id: id(term, index), payload: EntryPayload::Normal(Payload(Bytes::from(payload))) }
}

fn entries(term: u64, range: Range<u64>) -> Vec<Entry> {
    range.map(|index| entry(term, index)).collect()
}

fn open(dir: &Path) -> Arc<LogDb> {
    Arc::new(LogDb::open(dir, None).unwrap())
}

fn group_log(db: &Arc<LogDb>, group: ShardId) -> (GroupLog, Durable) {
    let durable = Durable::default();
    (GroupLog::open(db.clone(), group, durable.clone(), Alive::new().0).unwrap(), durable)
}

async fn indexes(log: &mut GroupLog) -> Vec<u64> {
    let found = log.get_log_reader().await.try_get_log_entries(..).await.unwrap();
    found.into_iter().map(|entry| entry.log_id.index).collect()
}

#[tokio::test]
async fn a_kill_after_the_callback_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let vote = Vote { leader_id: LeaderId { term: 4, node_id: 1 }, committed: true };
    let db = open(&dir.path().join("log"));
    let (mut log, _) = group_log(&db, G);
    log.save_vote(&vote).await.unwrap();
    log.save_committed(Some(id(4, 2))).await.unwrap();
    log.blocking_append(entries(4, 0..20)).await.unwrap();
    copy_dir(&dir.path().join("log"), &dir.path().join("killed"));

    let db = open(&dir.path().join("killed"));
    let (mut log, _) = group_log(&db, G);
    assert_eq!(log.get_log_reader().await.read_vote().await.unwrap(), Some(vote));
    assert_eq!(log.read_committed().await.unwrap(), Some(id(4, 2)));
    let state = log.get_log_state().await.unwrap();
    assert_eq!((state.last_purged_log_id, state.last_log_id), (None, Some(id(4, 19))));
    let found = log.get_log_reader().await.try_get_log_entries(0..20).await.unwrap();
    for (found, expected) in found.iter().zip(entries(4, 0..20)) {
        assert_eq!((found.log_id, &found.payload), (expected.log_id, &expected.payload));
    }
}

#[tokio::test]
async fn a_torn_tail_leaves_a_consecutive_log_and_an_old_vote_or_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("log");
    let db = open(&whole);
    let (mut log, _) = group_log(&db, G);
    for index in 0..30 {
        log.blocking_append([entry(1, index)]).await.unwrap();
        let leader_id = LeaderId { term: index, node_id: 1 };
        log.save_vote(&Vote { leader_id, committed: false }).await.unwrap();
    }
    let wal = std::fs::read_dir(&whole).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
    let wal = wal.filter(|name| name.ends_with(".log")).max().unwrap();
    let length = std::fs::metadata(whole.join(&wal)).unwrap().len();
    for (number, cut) in (0..=length).step_by(97).enumerate() {
        let torn = dir.path().join(format!("torn-{number}"));
        copy_dir(&whole, &torn);
        std::fs::OpenOptions::new().write(true).open(torn.join(&wal)).unwrap().set_len(cut).unwrap();
        let db = open(&torn);
        let (mut log, _) = group_log(&db, G);
        let found = indexes(&mut log).await;
        assert_eq!(found, (0..found.len() as u64).collect::<Vec<_>>(), "cut at {cut}");
        let vote = log.get_log_reader().await.read_vote().await.unwrap().map(|vote| vote.leader_id.term);
        // Votes and entries were written in turn, so one never runs ahead of the other.
        let votes = vote.map_or(0, |term| term + 1);
        assert!(votes == found.len() as u64 || votes + 1 == found.len() as u64, "{votes} votes at {cut}");
    }
}

#[tokio::test]
async fn groups_do_not_see_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let neighbours = [ShardId(4), G, ShardId(6), ShardId(u32::MAX)];
    for (n, group) in neighbours.into_iter().enumerate() {
        let (mut log, durable) = group_log(&db, group);
        log.blocking_append(entries(1, 0..10 + n as u64)).await.unwrap();
        durable.raise(u64::MAX);
    }
    let (mut log, durable) = group_log(&db, G);
    durable.raise(100);
    log.truncate_after(Some(id(1, 8))).await.unwrap();
    log.purge(id(1, 2)).await.unwrap();
    assert_eq!(indexes(&mut log).await, (3..9).collect::<Vec<_>>());
    for (n, group) in neighbours.into_iter().enumerate().filter(|(_, group)| *group != G) {
        let (mut log, _) = group_log(&db, group);
        assert_eq!(indexes(&mut log).await, (0..10 + n as u64).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn truncated_entries_stay_away_and_new_ones_take_their_place() {
    let dir = tempfile::tempdir().unwrap();
    {
        let db = open(dir.path());
        let (mut log, _) = group_log(&db, G);
        log.blocking_append(entries(1, 0..10)).await.unwrap();
        log.truncate_after(Some(id(1, 3))).await.unwrap();
        assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(id(1, 3)));
        log.blocking_append(entries(2, 4..6)).await.unwrap();
    }
    let db = open(dir.path());
    let (mut log, _) = group_log(&db, G);
    assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(id(2, 5)));
    assert_eq!(indexes(&mut log).await, (0..6).collect::<Vec<_>>());
    log.truncate_after(None).await.unwrap();
    assert_eq!(log.get_log_state().await.unwrap().last_log_id, None);
}

#[tokio::test]
async fn nothing_is_purged_above_what_the_machine_has_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let (mut log, durable) = group_log(&db, G);
    log.blocking_append(entries(1, 0..10)).await.unwrap();
    durable.raise(5); // entries 0 to 4
    assert!(log.purge(id(1, 5)).await.is_err());
    assert_eq!(indexes(&mut log).await, (0..10).collect::<Vec<_>>(), "a refused purge removes nothing");
    durable.raise(3);
    log.purge(id(1, 4)).await.unwrap();
    assert_eq!(indexes(&mut log).await, (5..10).collect::<Vec<_>>(), "durability is never taken back");
    assert_eq!(log.get_log_state().await.unwrap().last_purged_log_id, Some(id(1, 4)));
    log.purge(id(1, 2)).await.unwrap();
    assert_eq!(log.get_log_state().await.unwrap().last_purged_log_id, Some(id(1, 4)), "an older purge is nothing");

    durable.raise(50);
    log.purge(id(3, 40)).await.unwrap();
    let state = log.get_log_state().await.unwrap();
    assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(id(3, 40)), Some(id(3, 40))));
    assert!(indexes(&mut log).await.is_empty());
}

#[tokio::test]
async fn the_committed_hint_never_promises_entries_that_are_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let (mut log, _) = group_log(&db, G);
    log.save_committed(Some(id(1, 9))).await.unwrap();
    log.blocking_append(entries(1, 0..10)).await.unwrap();
    assert_eq!(log.read_committed().await.unwrap(), Some(id(1, 9)));
    log.truncate_after(Some(id(1, 5))).await.unwrap();
    assert_eq!(log.read_committed().await.unwrap(), None);
}

#[tokio::test]
async fn the_log_follows_an_installed_image() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    // Applied entry present and equal; conflicting; beyond the end: what is left afterwards, what is purged.
    let cases = [
        (id(1, 4), (0..10).collect::<Vec<_>>(), None),
        (id(2, 4), vec![], Some(id(2, 4))),
        (id(1, 40), vec![], Some(id(1, 40))),
    ];
    for (n, (applied, left, purged)) in cases.into_iter().enumerate() {
        let group = ShardId(100 + n as u32);
        let (mut log, _) = group_log(&db, group);
        log.blocking_append(entries(1, 0..10)).await.unwrap();
        log.reconcile(&applied).unwrap();
        for _ in 0..2 {
            assert_eq!(indexes(&mut log).await, left, "{applied}");
            assert_eq!(log.get_log_state().await.unwrap().last_purged_log_id, purged);
            (log, _) = group_log(&db, group);
        }
    }
}

#[tokio::test]
async fn reads_are_bounded_and_a_missing_entry_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let (mut log, durable) = group_log(&db, G);
    let large =
        |index| Entry { log_id: id(1, index), payload: EntryPayload::Normal(Payload(Bytes::from(vec![7; 900 << 10]))) };
    log.blocking_append((0..8).map(large)).await.unwrap();
    let mut reader = log.get_log_reader().await;
    assert_eq!(reader.limited_get_log_entries(0, 8).await.unwrap().len(), 2);
    assert_eq!(reader.limited_get_log_entries(7, 8).await.unwrap().len(), 1);

    use futures::StreamExt;
    let streamed: Vec<_> = reader.entries_stream(1..8).await.map(|e| e.unwrap().log_id.index).collect().await;
    assert_eq!(streamed, (1..8).collect::<Vec<_>>());
    durable.raise(4);
    log.purge(id(1, 3)).await.unwrap();
    let first = reader.entries_stream(3..8).await.next().await.unwrap();
    assert!(first.is_err(), "entry 3 is gone: applying from 4 would skip it");
    let beyond: Vec<_> = reader.entries_stream(7..9).await.collect().await;
    assert!(beyond[0].is_ok() && beyond[1].is_err() && beyond.len() == 2);
}

#[tokio::test]
async fn after_a_failed_fsync_nothing_is_accepted_until_restart() {
    let dir = tempfile::tempdir().unwrap();
    let broken = Arc::new(AtomicBool::new(false));
    let fault = {
        let broken = broken.clone();
        Arc::new(move || if broken.load(Ordering::Relaxed) { Err(io::Error::other("EIO")) } else { Ok(()) })
    };
    let db = Arc::new(LogDb::open(dir.path(), Some(fault)).unwrap());
    let (mut log, durable) = group_log(&db, G);
    let (mut other, _) = group_log(&db, ShardId(9));
    log.blocking_append(entries(1, 0..3)).await.unwrap();
    broken.store(true, Ordering::Relaxed);
    assert!(log.blocking_append(entries(1, 3..4)).await.is_err());
    broken.store(false, Ordering::Relaxed);

    // The disk works again, but what it holds is unknown.
    durable.raise(2);
    let vote = Vote { leader_id: LeaderId { term: 1, node_id: 1 }, committed: false };
    let refused = [
        log.append(entries(1, 4..5), Flushed::noop()).await,
        other.append(entries(1, 0..1), Flushed::noop()).await,
        other.save_vote(&vote).await,
        log.truncate_after(None).await,
        log.purge(id(1, 1)).await,
        log.get_log_reader().await.try_get_log_entries(0..1).await.map(|_| ()),
        db.sync().await,
    ];
    for (n, result) in refused.into_iter().enumerate() {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(&dir.path().display().to_string()), "{n}: {message}");
        assert!(message.contains("EIO") && message.contains("restart"), "{n}: {message}");
    }
    drop((log, other, db));
    let db = open(dir.path());
    let (mut log, _) = group_log(&db, G);
    assert!(indexes(&mut log).await.starts_with(&[0, 1, 2]));
    log.truncate_after(Some(id(1, 2))).await.unwrap();
    log.blocking_append(entries(1, 3..4)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_fsync_serves_all_groups() {
    let dir = tempfile::tempdir().unwrap();
    let syncs = Arc::new(AtomicU64::new(0));
    let held = Arc::new(AtomicBool::new(true));
    let fault: SyncFault = {
        let (syncs, held) = (syncs.clone(), held.clone());
        Arc::new(move || {
            syncs.fetch_add(1, Ordering::Relaxed);
            while held.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Ok(())
        })
    };
    let db = Arc::new(LogDb::open(dir.path(), Some(fault)).unwrap());
    let mut waiting = Vec::new();
    for group in 0..50 {
        let (mut log, _) = group_log(&db, ShardId(group));
        let (tx, rx) = Types::oneshot();
        log.append([entry(1, 0)], Flushed::signal(tx)).await.unwrap();
        waiting.push(rx);
    }
    held.store(false, Ordering::Relaxed);
    for rx in waiting {
        rx.await.unwrap().unwrap();
    }
    // The first sync began with the first append; those that came meanwhile share the next.
    assert!(syncs.load(Ordering::Relaxed) <= 3, "{} fsyncs", syncs.load(Ordering::Relaxed));
}

#[test]
fn a_directory_that_cannot_be_opened_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("occupied");
    std::fs::write(&file, "x").unwrap();
    let error = LogDb::open(&file, None).err().unwrap().to_string();
    assert!(error.contains("occupied"), "{error}");
}
