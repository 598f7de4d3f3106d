//! `pando-benches` (`./dev bench`): Pando beside the local file system and, where they are installed, JuiceFS over Redis
//! with fsync always, by the same load in one run. A table for people, JSON with the machine's facts for comparison.
//!
//! Not here: judging a change by one run on a noisy machine; look at min and max, and at the ratios.
//! Invariants: targets are measured in turn within each repetition, so that a slow minute hits them all; whatever is
//! started is ended by its process id and its mount freed, also after Ctrl-C or a panic.

mod cluster;
mod engine;
mod floors;
mod load;
mod machine;
mod options;
mod report;
mod targets;

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};

use load::{Inputs, Phase};
use options::Options;
use report::Results;
use targets::Target;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupted(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

fn main() -> Result<()> {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{}", options::HELP);
            return Ok(());
        }
        Err(error) => {
            eprintln!("pando-benches: {error}\n{}", options::HELP);
            std::process::exit(2);
        }
    };
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores a flag.
        unsafe { libc::signal(signal, interrupted as *const () as libc::sighandler_t) };
    }
    let work = tempfile::Builder::new().prefix("pando-bench-").tempdir_in(&options.dir)?;
    let mut results = Results::default();
    let facts = machine::facts(work.path())?;
    println!("{}", machine::line(&facts));
    if options.wants("engine") {
        for _ in 0..options.repetitions {
            engine::measure(&mut results, &options, work.path())?;
        }
    }
    if options.wants("cluster") {
        for _ in 0..options.repetitions {
            cluster::measure(&mut results, &options, work.path())?;
        }
    }
    if options.phases().next().is_some() {
        measure_mounts(&mut results, &options, work.path())?;
    }
    report::print(&results);
    let floors = floors::check(&results);
    floors::print(&floors);
    let path = report::save(&results, &floors, &facts, &options)?;
    println!("\nwritten to {}", path.display());
    Ok(())
}

fn measure_mounts(results: &mut Results, options: &Options, work: &std::path::Path) -> Result<()> {
    let inputs = Inputs::make(work, options.scale)?;
    let mut targets: Vec<Box<dyn Target>> = targets::all(work, options)?;
    for phase in options.phases() {
        for repetition in 1..=options.repetitions {
            for target in &mut targets {
                if INTERRUPTED.load(Ordering::Relaxed) {
                    bail!("interrupted");
                }
                eprintln!("{phase:?} {repetition}/{}: {}", options.repetitions, target.name());
                run(phase, target.as_mut(), &inputs, results)?;
            }
        }
    }
    Ok(())
}

fn run(phase: Phase, target: &mut dyn Target, inputs: &Inputs, results: &mut Results) -> Result<()> {
    load::settle();
    for (metric, unit, value) in load::run(phase, target, inputs)? {
        results.add(&metric, unit, target.name(), value);
    }
    Ok(())
}
