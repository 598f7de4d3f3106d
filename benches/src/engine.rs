//! The engine alone, on RocksDB, in one thread: what the log and the network leave of this is the rest of the system's.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use pando_engine::kv::rocks::RocksKv;
use pando_engine::{Engine, Kv, read};
use pando_types::attr::Timestamp;
use pando_types::command::{Command, Create, Envelope, LogEntry, NewNode, Reply};
use pando_types::epoch::Generation;
use pando_types::{FileName, InodeId, OpId, SessionId, ShardId};

use crate::options::Options;
use crate::report::Results;
use crate::targets::PANDO;

pub const CREATE: &str = "engine: create, entries of 64";
const LOOKUP: &str = "engine: lookup";
const BATCH: usize = 64;

pub fn measure(results: &mut Results, options: &Options, work: &Path) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("engine-").tempdir_in(work)?;
    let total = 200_000 / options.scale / BATCH * BATCH;
    let kv = Arc::new(RocksKv::open(folder.path(), 256 << 20)?);
    let mut engine = Engine::open(kv, ShardId(0))?;
    let session = open_session(&mut engine)?;
    let name = |index: usize| FileName::new(format!("file-{index:08}").as_bytes()).expect("a valid name");
    let start = Instant::now();
    for batch in 0..total / BATCH {
        let commands =
            (0..BATCH).map(|index| create(session, (batch * BATCH + index) as u64, name(batch * BATCH + index)));
        let entry = entry(batch as i64, commands.collect());
        let applied = engine.apply(&(batch as u64).to_be_bytes(), &[entry])?;
        let replies = applied.replies.first().context("one entry, one list of replies")?;
        ensure!(replies.iter().all(|reply| matches!(reply, Reply::Inode(_))), "a create was refused: {:?}", replies[0]);
    }
    results.add(CREATE, "ops/s", PANDO, total as f64 / start.elapsed().as_secs_f64());
    let view = engine.kv().view();
    let start = Instant::now();
    for index in 0..total {
        // A stride that is prime to the count visits every name in an order that no cache likes.
        let index = index * 7919 % total;
        read::lookup(&view, engine.slots(), InodeId::ROOT, &name(index))?;
    }
    results.add(LOOKUP, "ops/s", PANDO, total as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

fn entry(time: i64, commands: Vec<Envelope>) -> LogEntry {
    LogEntry { time: Timestamp(1_000_000_000 + time), generation: Generation::FIRST, commands }
}

fn open_session(engine: &mut Engine<RocksKv>) -> Result<SessionId> {
    let op = OpId { session: SessionId::LEADER, sequence: 0 };
    let open = Envelope { op, acked: 0, command: Command::OpenSession };
    let applied = engine.apply(b"start", &[entry(0, vec![open])])?;
    match applied.replies.first().and_then(|replies| replies.first()) {
        Some(Reply::Session(session)) => Ok(*session),
        other => anyhow::bail!("no session was opened: {other:?}"),
    }
}

fn create(session: SessionId, index: u64, name: FileName) -> Envelope {
    let (mode, umask, uid, gid) = (0o644, 0o022, 1000, 1000);
    let create = Create { parent: InodeId::ROOT, name, node: NewNode::File, mode, umask, uid, gid };
    // As a client with a full window does: the sequence begins at 1, everything before this entry has been answered.
    let sequence = index + 1;
    let acked = sequence - index % BATCH as u64;
    Envelope { op: OpId { session, sequence }, acked, command: Command::Create(create) }
}
