//! The engine against a small reference tree: random commands, each reply foretold, then the whole state compared and fsck clean.
//!
//! A seed is a run; the same entries must give the same bytes in any store and in any batches. `PANDO_SEED=n` runs one seed.
#![allow(clippy::unwrap_used)]

#[path = "model/compare.rs"]
mod compare;
#[path = "model/generate.rs"]
mod generate;
#[path = "model/hostile.rs"]
mod hostile;
#[path = "model/random.rs"]
mod random;
#[path = "model/reference.rs"]
mod reference;
#[path = "model/several.rs"]
mod several;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use pando_engine::kv::mem::MemKv;
use pando_engine::kv::rocks::RocksKv;
use pando_engine::{Effect, Engine, Kv, View, fsck, keys};
use pando_types::{Envelope, LogEntry, OpId, Reply, SessionId, ShardId};

use crate::generate::Generator;
use crate::random::Random;
use crate::reference::Model;

pub const SHARD: ShardId = ShardId(0);
const SEEDS: u64 = 300;
const ROCKS_SEEDS: u64 = 6;
pub const BATCHES: usize = 40;

pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("PANDO_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=count).collect(),
    }
}

pub fn dump(view: &impl View) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (from, to) = keys::whole();
    let mut all = Vec::new();
    view.scan(&from, &to, &mut |key, value| {
        all.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })
    .unwrap();
    all
}

pub fn assert_clean(view: &impl View, what: &str) {
    let report = fsck(view, SHARD).unwrap();
    assert_eq!(report.problems, Vec::<String>::new(), "{what}");
}

/// What a run leaves: its log, its store, its model.
struct Run {
    log: Vec<LogEntry>,
    kv: Arc<MemKv>,
    model: Model,
    coverage: Coverage,
}

/// How often each kind of command was carried out, and refused.
type Coverage = BTreeMap<String, (u64, u64)>;

/// The replies that were given, for resending.
pub type Given = BTreeMap<OpId, (Envelope, Reply)>;

fn run(seed: u64) -> Run {
    let kv = Arc::new(MemKv::new());
    let mut engine = Engine::open(kv.clone(), SHARD).unwrap();
    let mut generator = Generator::new(seed);
    let mut model = Model::default();
    let mut given = Given::new();
    let mut log = Vec::new();
    let mut effects: Vec<Effect> = Vec::new();
    let mut coverage = Coverage::new();
    for batch in 0..BATCHES {
        let entries = generator.entries(&model, &kv.view(), &given);
        let applied = engine.apply(format!("{seed}/{batch}").as_bytes(), &entries).unwrap();
        for (entry, replies) in entries.iter().zip(&applied.replies) {
            model.begin_entry(entry.time);
            assert_eq!(entry.commands.len(), replies.len());
            for (envelope, reply) in entry.commands.iter().zip(replies) {
                let kind = format!("{:?}", envelope.command);
                let kind = kind.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
                let (done, refused) = coverage.entry(kind.to_owned()).or_default();
                *if matches!(reply, Reply::Refused(_) | Reply::Stale) { refused } else { done } += 1;
                check_reply(&mut model, &mut given, envelope, reply, seed);
            }
        }
        effects.extend(applied.effects);
        log.extend(entries);
        if batch % 8 == 7 {
            let what = format!("seed {seed}, batch {batch}");
            assert_clean(&kv.view(), &what);
            compare::compare(&kv.view(), &mut model, &effects, &what);
            engine = Engine::open(kv.clone(), SHARD).unwrap();
        }
    }
    Run { log, kv, model, coverage }
}

pub fn check_reply(model: &mut Model, given: &mut Given, envelope: &Envelope, reply: &Reply, seed: u64) {
    let op = envelope.op;
    if let Some((_, first)) = given.get(&op) {
        let expected = if model.sessions.contains_key(&op.session) { first } else { &Reply::Stale };
        assert_eq!(reply, expected, "seed {seed}: the retry of {envelope:?}");
        return;
    }
    model.check(op.session, &envelope.command, reply).unwrap_or_else(|difference| {
        panic!("seed {seed}: {difference}\n{envelope:?}\n{reply:?}");
    });
    if op.session != SessionId::LEADER && *reply != Reply::Stale {
        given.insert(op, (envelope.clone(), reply.clone()));
    }
}

/// Applies a log anew, cut into other batches.
fn replay<K: Kv>(kv: Arc<K>, log: &[LogEntry], last_mark: &[u8], seed: u64) {
    let mut engine = Engine::open(kv, SHARD).unwrap();
    let mut random = Random::new(seed ^ 0xabcd);
    let mut rest = log;
    while !rest.is_empty() {
        let (batch, left) = rest.split_at(random.below(7).clamp(1, rest.len() as u64) as usize);
        rest = left;
        engine.apply(b"another mark", batch).unwrap();
    }
    engine.apply(last_mark, &[]).unwrap();
    assert_eq!(engine.applied(), Some(last_mark));
}

fn last_mark(seed: u64) -> Vec<u8> {
    format!("{seed}/{}", BATCHES - 1).into_bytes()
}

#[test]
fn random_commands_do_what_the_reference_tree_does() {
    let mut coverage = Coverage::new();
    for seed in seeds(SEEDS) {
        let run = run(seed);
        for (kind, (done, refused)) in &run.coverage {
            let sum = coverage.entry(kind.clone()).or_default();
            *sum = (sum.0 + done, sum.1 + refused);
        }
        let again = Arc::new(MemKv::new());
        replay(again.clone(), &run.log, &last_mark(seed), seed);
        assert!(dump(&again.view()) == dump(&run.kv.view()), "seed {seed}: the same log gave other bytes");
    }
    println!("carried out and refused: {coverage:#?}");
    if std::env::var("PANDO_SEED").is_err() {
        assert_eq!(coverage.len(), 15, "each kind of command is tried");
        assert!(coverage.values().all(|(done, _)| *done > 200), "and often succeeds");
    }
}

#[test]
fn the_store_on_disk_has_the_same_bytes_also_when_opened_again() {
    for seed in seeds(ROCKS_SEEDS) {
        let mut run = run(seed);
        let folder = tempfile::tempdir().unwrap();
        let kv = Arc::new(RocksKv::open(folder.path(), 8 << 20).unwrap());
        let half = run.log.len() / 2;
        replay(kv.clone(), &run.log[..half], b"half", seed);
        kv.flush().unwrap();
        drop(kv);
        let kv = Arc::new(RocksKv::open(folder.path(), 8 << 20).unwrap());
        assert_eq!(Engine::open(kv.clone(), SHARD).unwrap().applied(), Some(&b"half"[..]));
        replay(kv.clone(), &run.log[half..], &last_mark(seed), seed);
        assert!(dump(&kv.view()) == dump(&run.kv.view()), "seed {seed}: memory and disk differ");
        kv.flush().unwrap();
        kv.compact();
        drop(kv);
        let kv = RocksKv::open(folder.path(), 8 << 20).unwrap();
        assert!(dump(&kv.view()) == dump(&run.kv.view()), "seed {seed}: memory and reopened disk differ");
        assert_clean(&kv.view(), "reopened");
        compare::compare_state(&kv.view(), &[SHARD], &mut run.model, "reopened");
    }
}

#[test]
fn a_failed_write_halts_the_replica_and_loses_nothing() {
    let run = run(3);
    let kv = Arc::new(MemKv::new());
    let mut engine = Engine::open(kv.clone(), SHARD).unwrap();
    let (first, rest) = run.log.split_at(run.log.len() / 2);
    engine.apply(b"first", first).unwrap();
    let before = dump(&kv.view());
    kv.fail_after(Some(0));
    assert!(engine.apply(b"second", rest).is_err());
    kv.fail_after(None);
    assert!(matches!(engine.apply(b"second", rest), Err(pando_engine::EngineError::Halted)));
    assert!(dump(&kv.view()) == before);
    let mut engine = Engine::open(kv.clone(), SHARD).unwrap();
    assert_eq!(engine.applied(), Some(&b"first"[..]));
    engine.apply(&last_mark(3), rest).unwrap();
    assert!(dump(&kv.view()) == dump(&run.kv.view()));
}
