//! From many commands that arrive to few log entries: batch, stamp, propose, hand the replies back.
//!
//! Whatever is not a function of the state is stamped here and nowhere else: time and generation.
//! Commands that arrive while an entry's fsync is under way go together into the next one, so that throughput is not
//! bounded by entries per second. Two entries may be under way: while one is synced, the next is on its way to the log.
//! Invariants: an entry holds at most [`COMMANDS_PER_ENTRY_MAX`] commands and [`ENTRY_BYTES_MAX`] bytes (one command always
//! fits); stamped times never go back; every command gets exactly one answer.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use pando_raft::{Group, ProposeError};
use pando_rpc::Deadline;
use pando_types::command::{CommitContent, NewNode};
use pando_types::intent::Step;
use pando_types::limits::{COMMANDS_PER_ENTRY_MAX, ENTRY_BYTES_MAX, PROPOSAL_BYTES_QUEUED_MAX, PROPOSALS_QUEUED_MAX};
use pando_types::{
    Command, Envelope, Errno, ErrorKind, FsError, Generation, LogEntry, OpId, Reply, SessionId, Timestamp, codec,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tracing::error;

/// Entries that may be under way at once.
const ENTRIES_IN_FLIGHT: usize = 4;
/// A command without a reply after this is answered as unavailable; its client asks again with the same op id.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// What a client is told to wait when the queue is full, in milliseconds: several entries' worth.
const THROTTLE_MS: u64 = 10;
/// One unit of the byte budget.
const BUDGET_UNIT_BYTES: usize = 1 << 10;
/// More than any command without variable parts takes, in bytes.
const COMMAND_BYTES: usize = 1 << 10;

/// Where entries go: a Raft group, or a test's double.
pub trait Log: Clone + Send + Sync + 'static {
    /// Appends a payload and returns what the machine answered.
    fn append(&self, payload: Bytes) -> impl Future<Output = Result<Bytes, ProposeError>> + Send;
}

impl Log for Group {
    async fn append(&self, payload: Bytes) -> Result<Bytes, ProposeError> {
        self.propose(payload).await
    }
}

/// The front of the queue; cheap to clone. The queue ends when the last one is dropped.
#[derive(Clone)]
pub struct Proposer {
    queue: mpsc::Sender<Waiting>,
    /// Units of [`BUDGET_UNIT_BYTES`] of commands in the queue.
    budget: Arc<Semaphore>,
}

/// A command in the queue, and who wants its reply.
struct Waiting {
    envelope: Envelope,
    bytes: usize,
    reply_to: oneshot::Sender<Result<Reply, FsError>>,
    _budget: OwnedSemaphorePermit,
}

impl Proposer {
    /// A queue before this log, and the task that serves it; it ends some time after the last `Proposer` is dropped.
    pub fn start(log: impl Log) -> (Proposer, JoinHandle<()>) {
        let (queue, arrivals) = mpsc::channel(PROPOSALS_QUEUED_MAX);
        let budget = Arc::new(Semaphore::new(PROPOSAL_BYTES_QUEUED_MAX / BUDGET_UNIT_BYTES));
        (Proposer { queue, budget }, tokio::spawn(serve(log, arrivals)))
    }

    /// Carries a command out through the log. Fails as `Throttled` when too much waits, and as `Unavailable` when it is
    /// not known whether it will take effect.
    pub async fn propose(&self, envelope: Envelope) -> Result<Reply, FsError> {
        let bytes = size_bound(&envelope.command);
        let units = (bytes / BUDGET_UNIT_BYTES) as u32;
        let budget = self.budget.clone().try_acquire_many_owned(units).map_err(|_| throttled())?;
        let (reply_to, reply) = oneshot::channel();
        self.queue.try_send(Waiting { envelope, bytes, reply_to, _budget: budget }).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => throttled(),
            mpsc::error::TrySendError::Closed(_) => FsError::unavailable("the server is stopping"),
        })?;
        match Deadline::after(REPLY_TIMEOUT).run(reply).await {
            Some(Ok(reply)) => reply,
            Some(Err(_)) => Err(FsError::unavailable("the server is stopping")),
            None => Err(FsError::unavailable("the log did not take the change in time")),
        }
    }

    /// Carries out a command of the leader itself, which is not deduplicated.
    pub async fn propose_own(&self, command: Command) -> Result<Reply, FsError> {
        self.propose(Envelope { op: OpId { session: SessionId::LEADER, sequence: 0 }, acked: 0, command }).await
    }
}

/// Proposes an entry without commands: it stamps the state with the time, and makes the root directory of an empty one.
pub async fn propose_empty(log: &impl Log) -> Result<(), ProposeError> {
    let entry = LogEntry { time: Clock::default().now(), generation: Generation::FIRST, commands: Vec::new() };
    log.append(codec::encode(&entry).into()).await.map(|_| ())
}

fn throttled() -> FsError {
    let detail = "too many changes wait for the log".into();
    FsError { kind: ErrorKind::Throttled(THROTTLE_MS), errno: Errno::EAGAIN, detail }
}

async fn serve(log: impl Log, mut arrivals: mpsc::Receiver<Waiting>) {
    let clock = Clock::default();
    let mut queue = VecDeque::new();
    let mut in_flight = JoinSet::new();
    loop {
        while in_flight.len() >= ENTRIES_IN_FLIGHT {
            in_flight.join_next().await;
        }
        if queue.is_empty() {
            tokio::select! {
                Some(_) = in_flight.join_next(), if !in_flight.is_empty() => continue,
                first = arrivals.recv() => match first {
                    Some(first) => queue.push_back(first),
                    None => break,
                },
            }
        }
        while queue.len() < COMMANDS_PER_ENTRY_MAX {
            let Ok(next) = arrivals.try_recv() else { break };
            queue.push_back(next);
        }
        let batch = take_batch(&mut queue);
        in_flight.spawn(propose_batch(log.clone(), clock.now(), batch));
    }
    while in_flight.join_next().await.is_some() {}
}

/// The front of the queue, as far as one entry holds it; commands whose callers are gone are dropped, as if never sent.
fn take_batch(queue: &mut VecDeque<Waiting>) -> Vec<Waiting> {
    let mut batch: Vec<Waiting> = Vec::new();
    let mut bytes = 0;
    while let Some(next) = queue.pop_front() {
        if !batch.is_empty() && (bytes + next.bytes > ENTRY_BYTES_MAX || batch.len() == COMMANDS_PER_ENTRY_MAX) {
            queue.push_front(next);
            break;
        }
        if !next.reply_to.is_closed() {
            bytes += next.bytes;
            batch.push(next);
        }
    }
    batch
}

async fn propose_batch(log: impl Log, time: Timestamp, batch: Vec<Waiting>) {
    if batch.is_empty() {
        return;
    }
    let (commands, reply_to): (Vec<_>, Vec<_>) = batch.into_iter().map(|w| (w.envelope, w.reply_to)).unzip();
    let payload = codec::encode(&LogEntry { time, generation: Generation::FIRST, commands });
    let replies = match log.append(payload.into()).await {
        Ok(answer) => decode_replies(&answer, reply_to.len()),
        Err(error) => Err(not_proposed(error)),
    };
    match replies {
        Ok(replies) => reply_to.into_iter().zip(replies).for_each(|(to, reply)| {
            let _ = to.send(Ok(reply));
        }),
        Err(error) => reply_to.into_iter().for_each(|to| {
            let _ = to.send(Err(error.clone()));
        }),
    }
}

fn decode_replies(answer: &[u8], expected: usize) -> Result<Vec<Reply>, FsError> {
    let replies: Vec<Reply> = codec::decode(answer).map_err(|e| FsError::bug(format!("a machine's answer: {e}")))?;
    if replies.len() != expected {
        return Err(FsError::bug(format!("{expected} commands got {} replies", replies.len())));
    }
    Ok(replies)
}

fn not_proposed(failure: ProposeError) -> FsError {
    let detail = failure.to_string();
    match failure {
        ProposeError::NotLeader { .. } | ProposeError::Unavailable(_) => FsError::unavailable(detail),
        ProposeError::Fatal(_) => {
            error!(detail, "this shard takes no changes until the server is restarted");
            FsError::unavailable(detail)
        }
        ProposeError::TooLarge { .. } => FsError::bug(detail),
    }
}

/// At least what the command takes in the log, in bytes, without encoding it.
pub(crate) fn size_bound(command: &Command) -> usize {
    let variable = match command {
        Command::Create(create) => match &create.node {
            NewNode::Symlink { target } => target.len(),
            _ => 0,
        },
        Command::SetXattr { value, .. } => value.len(),
        Command::ReleaseOrphans { inodes } | Command::Reclaim { inodes } => inodes.len() * 10,
        Command::ForgetSegments { segments } => segments.len() * 20,
        Command::Commit(commit) => {
            let content = |c: &CommitContent| match c {
                CommitContent::Extents(extents) => extents.len() * 50,
                CommitContent::Inline(bytes) => bytes.len(),
            };
            let file = |f: &pando_types::command::FileCommit| 100 + f.punch.len() * 20 + content(&f.content);
            commit.files.iter().map(file).sum::<usize>() + commit.segments.len() * 30
        }
        Command::Prepare { wants, .. } => wants.len() * 300,
        Command::Finish { steps, .. } => steps.iter().map(step_bound).sum(),
        Command::Decide(decide) => {
            let facts: usize = decide.facts.iter().map(|(_, facts)| facts.len() * 400).sum();
            facts + size_bound(&decide.command)
        }
        Command::Forget { intents } => intents.len() * 30,
        Command::SetShardMap(map) => map.nodes.len() * 1000 + map.shards.len() * 100 + map.ranges.len() * 20,
        Command::Split { slots, mark, .. } => slots.len() * 12 + mark.len(),
        _ => 0,
    };
    COMMAND_BYTES + variable
}

fn step_bound(step: &Step) -> usize {
    let xattrs = match step {
        Step::InsertDirectory { xattrs, .. } => xattrs.iter().map(|(name, value)| name.len() + value.len() + 10).sum(),
        _ => 0,
    };
    700 + xattrs
}

/// Wall time that never goes back.
#[derive(Default)]
struct Clock(AtomicI64);

impl Clock {
    fn now(&self) -> Timestamp {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64);
        Timestamp(self.0.fetch_max(wall, Ordering::Relaxed).max(wall))
    }
}

#[cfg(test)]
#[path = "propose/propose_test.rs"]
mod tests;
