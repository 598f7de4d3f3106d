//! kill -9 at random points during a mixed load, over and over, and what was promised is there each time.
//!
//! The load (`load`) keeps its journal outside of the file system: for each name what the last acknowledged call left, and
//! while a call is under way every state that a crash in the middle of it may leave. After each restart the folder must be
//! in exactly one of them: an acknowledged file byte for byte, a file in flight old or new, never half-made.

mod load;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pando_tests::bytes::Random;
use pando_tests::pando::{Options, Pando, wait_for};

use load::Writer;

const KILLS: u32 = 32;

/// A run's seed: PANDO_E2E_SEED repeats one.
fn seed() -> u64 {
    let given = std::env::var("PANDO_E2E_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("PANDO_E2E_SEED={seed}");
    seed
}

#[test]
fn what_was_acknowledged_survives_thirty_kills() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut pando = Pando::prepare(Options::default());
    pando.start();
    let mut writers: Vec<Writer> =
        (0..4).map(|index| Writer::new(pando.path(format!("writer-{index}")), seed ^ (index << 32), index)).collect();
    writers.iter().for_each(Writer::make_folder);
    for round in 0..KILLS {
        let delay = Duration::from_millis(10 + random.below(350));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in &mut writers {
                let stop = &stop;
                scope.spawn(move || writer.run_until_refused(stop));
            }
            std::thread::sleep(delay);
            stop.store(pando.is_plain(), Ordering::Relaxed);
            pando.kill();
        });
        if round % 4 == 3 {
            // A second crash while it recovers from the first.
            pando.start_then_kill(Duration::from_millis(random.below(200)));
        }
        pando.start();
        for writer in &mut writers {
            writer.verify(&format!("round {round}, killed after {delay:?}"));
        }
        pando.fsck();
    }
    let acknowledged: u64 = writers.iter().map(|writer| writer.acknowledged).sum();
    eprintln!("{KILLS} kills, {acknowledged} acknowledged operations");
    assert!(acknowledged > u64::from(KILLS) * 4, "the load did next to nothing: {acknowledged} operations");
    if !pando.is_plain() {
        collects_what_the_crashes_left(&pando, &mut writers);
    }
}

/// After the sessions of the killed processes have ended: a collection leaves nothing for a second one, harms no file,
/// and once everything is deleted the store is empty.
fn collects_what_the_crashes_left(pando: &Pando, writers: &mut [Writer]) {
    let start = Instant::now();
    let mut collected = 0;
    wait_for("the end of the killed sessions", Duration::from_secs(90), || {
        let gc = pando.json("gc");
        collected += deleted(&gc);
        let sessions = pando.json("status")["sessions"].as_u64().expect("status tells the sessions");
        if sessions > 1 {
            std::thread::sleep(Duration::from_secs(1));
        }
        (sessions <= 1).then_some(())
    });
    collected += deleted(&pando.json("gc"));
    let again = pando.json("gc");
    eprintln!("{collected} segments collected, within {:?}", start.elapsed());
    assert_eq!(deleted(&again), 0, "a second collection found more: {again}");
    for writer in writers.iter_mut() {
        writer.verify("after gc");
    }
    for entry in fs::read_dir(pando.mount()).unwrap() {
        fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    let mut left = Vec::new();
    let empty = || {
        pando.json("gc");
        left = crate::faults::segments(pando);
        left.is_empty()
    };
    let emptied = std::iter::repeat_with(empty).take(50).any(|empty| {
        std::thread::sleep(Duration::from_millis(200));
        empty
    });
    assert!(emptied, "{} segments stay in the store of an empty file system: {:?}", left.len(), left.first());
    pando.fsck();
}

/// Segments that a collection deleted.
fn deleted(gc: &serde_json::Value) -> u64 {
    let count = |key: &str| gc[key].as_u64().unwrap_or_else(|| panic!("gc --json has no {key}: {gc}"));
    count("dead_segments") + count("leaked_segments")
}
