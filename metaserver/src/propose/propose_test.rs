//! Batching, bounds and answers, before a log that takes an entry only when it is told to.

use std::sync::Mutex;

use pando_types::command::{Commit, FileCommit};
use pando_types::{FileName, InodeId};

use super::*;

#[derive(Clone)]
struct GatedLog {
    gate: Arc<Semaphore>,
    entries: Arc<Mutex<Vec<LogEntry>>>,
    started: Arc<Mutex<usize>>,
    failure: Option<ProposeError>,
}

impl GatedLog {
    fn new(open: usize) -> GatedLog {
        GatedLog {
            gate: Arc::new(Semaphore::new(open)),
            entries: Arc::default(),
            started: Arc::default(),
            failure: None,
        }
    }

    fn started(&self) -> usize {
        *self.started.lock().unwrap()
    }
}

impl Log for GatedLog {
    async fn append(&self, payload: Bytes) -> Result<Bytes, ProposeError> {
        *self.started.lock().unwrap() += 1;
        self.gate.acquire().await.unwrap().forget();
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let entry: LogEntry = codec::decode(&payload).unwrap();
        // The reply names its command, so that a mix-up shows.
        let replies: Vec<Reply> = entry.commands.iter().map(|e| Reply::Session(SessionId(e.op.sequence))).collect();
        self.entries.lock().unwrap().push(entry);
        Ok(codec::encode(&replies).into())
    }
}

fn unlink(sequence: u64) -> Envelope {
    let command = Command::Unlink { parent: InodeId::ROOT, name: FileName::new(b"x").unwrap(), unheld: None };
    Envelope { op: OpId { session: SessionId(1), sequence }, acked: 0, command }
}

fn inline(sequence: u64, bytes: usize) -> Envelope {
    let file = FileCommit {
        inode: InodeId(2),
        cut: None,
        punch: Vec::new(),
        content: CommitContent::Inline(vec![7; bytes]),
        size: 0,
        change: Default::default(),
    };
    let command = Command::Commit(Commit { files: vec![file], segments: Vec::new() });
    Envelope { op: OpId { session: SessionId(1), sequence }, acked: 0, command }
}

async fn until(what: impl Fn() -> bool) {
    for _ in 0..2000 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it never happened");
}

#[tokio::test]
async fn what_arrives_during_an_fsync_goes_into_few_entries() {
    let log = GatedLog::new(0);
    let (proposer, _task) = Proposer::start(log.clone());
    let mut calls = Vec::new();
    for sequence in 0..1000 {
        let proposer = proposer.clone();
        calls.push(tokio::spawn(async move { (sequence, proposer.propose(unlink(sequence)).await) }));
        if sequence < 2 {
            until(|| log.started() == sequence as usize + 1).await;
        }
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(log.started(), ENTRIES_IN_FLIGHT, "two entries are under way, not more");
    log.gate.add_permits(1000);
    for call in calls {
        let (sequence, reply) = call.await.unwrap();
        assert_eq!(reply, Ok(Reply::Session(SessionId(sequence))));
    }
    let entries = log.entries.lock().unwrap();
    let sizes: Vec<usize> = entries.iter().map(|e| e.commands.len()).collect();
    assert_eq!(
        sizes,
        [
            1,
            1,
            COMMANDS_PER_ENTRY_MAX,
            COMMANDS_PER_ENTRY_MAX,
            COMMANDS_PER_ENTRY_MAX,
            998 - 3 * COMMANDS_PER_ENTRY_MAX
        ]
    );
    assert!(entries.iter().zip(&entries[1..]).all(|(a, b)| a.time <= b.time), "time never goes back");
}

#[tokio::test]
async fn an_entry_holds_at_most_its_bytes_but_always_one_command() {
    let log = GatedLog::new(0);
    let (proposer, _task) = Proposer::start(log.clone());
    let mut calls = Vec::new();
    for (sequence, bytes) in [(0, 10), (1, 10), (2, 3 << 20), (3, 3 << 20), (4, 5 << 20), (5, 100)] {
        let proposer = proposer.clone();
        calls.push(tokio::spawn(async move { proposer.propose(inline(sequence, bytes)).await }));
        until(|| log.started() > (sequence as usize).min(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    log.gate.add_permits(1000);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let sizes: Vec<Vec<u64>> =
        log.entries.lock().unwrap().iter().map(|e| e.commands.iter().map(|c| c.op.sequence).collect()).collect();
    assert_eq!(sizes, [vec![0], vec![1], vec![2], vec![3], vec![4], vec![5]]);
}

#[tokio::test]
async fn a_full_queue_throttles_instead_of_growing() {
    let log = GatedLog::new(0);
    let (proposer, _task) = Proposer::start(log.clone());
    let mut calls = Vec::new();
    for sequence in 0..(PROPOSALS_QUEUED_MAX + 3 * COMMANDS_PER_ENTRY_MAX) as u64 {
        let proposer = proposer.clone();
        calls.push(tokio::spawn(async move { proposer.propose(unlink(sequence)).await }));
    }
    tokio::task::yield_now().await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    log.gate.add_permits(100_000);
    let mut throttled = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(_) => {}
            Err(FsError { kind: ErrorKind::Throttled(_), .. }) => throttled += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(throttled > 0);
    // Bytes are bounded apart from numbers.
    let log = GatedLog::new(0);
    let (proposer, _task) = Proposer::start(log);
    let large = PROPOSAL_BYTES_QUEUED_MAX / (4 << 20) + 4;
    let calls = (0..large as u64).map(|sequence| {
        let proposer = proposer.clone();
        tokio::spawn(async move { proposer.propose(inline(sequence, 4 << 20)).await })
    });
    let refused = futures::future::select_all(calls).await.0.unwrap();
    assert!(matches!(refused, Err(FsError { kind: ErrorKind::Throttled(_), .. })));
}

#[tokio::test]
async fn a_failed_entry_fails_each_of_its_commands() {
    let mut log = GatedLog::new(0);
    log.failure = Some(ProposeError::Unavailable("no majority".into()));
    let (proposer, task) = Proposer::start(log.clone());
    let calls: Vec<_> = (0..5)
        .map(|n| {
            let proposer = proposer.clone();
            tokio::spawn(async move { proposer.propose(unlink(n)).await })
        })
        .collect();
    log.gate.add_permits(100);
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap_err().kind, ErrorKind::Unavailable);
    }
    drop(proposer);
    task.await.unwrap();
}

/// The bound must hold for every command: an entry that is larger than thought is refused by the log.
#[test]
fn the_size_bound_is_one() {
    let longest = FileName::new(&[b'x'; 255]).unwrap();
    let mut rename = unlink(u64::MAX).command;
    if let Command::Unlink { parent, .. } = rename {
        rename = Command::Rename(pando_types::command::Rename {
            parent,
            name: longest.clone(),
            new_parent: InodeId(u64::MAX),
            new_name: longest,
            mode: pando_types::command::RenameMode::Exchange,
            unheld: Some(InodeId(u64::MAX)),
        });
    }
    let extent = pando_types::Extent {
        offset: u64::MAX,
        length: u64::MAX,
        segment: pando_types::SegmentId { session: SessionId(u64::MAX), sequence: u64::MAX },
        segment_offset: u64::MAX,
    };
    let mut commit = inline(1, 4096).command;
    if let Command::Commit(commit) = &mut commit {
        commit.files[0].content = CommitContent::Extents(vec![extent; 1000]);
        commit.files[0].punch = vec![extent.range(); 1000];
        commit.files = vec![commit.files[0].clone(); 20];
    }
    for command in [rename, commit, Command::ReleaseOrphans { inodes: vec![InodeId(u64::MAX); 4096] }] {
        let envelope =
            Envelope { op: OpId { session: SessionId(u64::MAX), sequence: u64::MAX }, acked: u64::MAX, command };
        assert!(codec::encode(&envelope).len() <= size_bound(&envelope.command));
    }
}

#[test]
fn time_never_goes_back() {
    let clock = Clock::default();
    let ahead = clock.now().0 + 3_600_000_000_000;
    clock.0.store(ahead, Ordering::Relaxed);
    assert_eq!(clock.now().0, ahead, "the wall clock was set back by an hour");
}
