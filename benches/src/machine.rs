//! Facts of the machine that explain a figure: no names of hosts, users or paths.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

/// Measured and read once, before the load.
pub fn facts(disk: &Path) -> Result<Value> {
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        line.and_then(|line| line.split_once(':').map(|(_, value)| value.trim().to_owned())).unwrap_or_default()
    };
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Ok(json!({
        "cpu": field("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": field("/proc/meminfo", "MemTotal"),
        // The number alone: what follows it may name a host.
        "kernel": kernel.trim().split('-').next(),
        "file_system": file_system(disk),
        "fsync_us_median": fsync_us(disk)?,
        "cpu_loop_ms": cpu_loop_ms(),
    }))
}

/// One line of it.
pub fn line(facts: &Value) -> String {
    format!(
        "{}, {} cores, {}, Linux {}, {}, an fsync takes {} us, a fixed loop {} ms",
        facts["cpu"].as_str().unwrap_or("?"),
        facts["cores"],
        facts["memory"].as_str().unwrap_or("?"),
        facts["kernel"].as_str().unwrap_or("?"),
        facts["file_system"].as_str().unwrap_or("?"),
        facts["fsync_us_median"],
        facts["cpu_loop_ms"],
    )
}

/// The type of the file system that the work folder is on: of all mounts above it the longest.
fn file_system(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounts = table.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    });
    let above = mounts.filter(|(point, _)| path.starts_with(point));
    above.max_by_key(|(point, _)| point.len()).map(|(_, kind)| kind).unwrap_or_default()
}

/// Median microseconds of an append of 4 KiB with fdatasync.
fn fsync_us(disk: &Path) -> Result<u64> {
    let path = disk.join("fsync-probe");
    let file = File::create(&path)?;
    let mut samples = Vec::new();
    for index in 0..200 {
        let start = Instant::now();
        file.write_all_at(&[7; 4096], index * 4096)?;
        file.sync_data()?;
        samples.push(start.elapsed().as_micros() as u64);
    }
    fs::remove_file(path)?;
    samples.sort_unstable();
    Ok(samples[samples.len() / 2])
}

/// Milliseconds of a fixed amount of computing: whether the machine was busy with something else.
fn cpu_loop_ms() -> u64 {
    let start = Instant::now();
    let mut random = pando_tests::bytes::Random::new(1);
    let sum = (0..50_000_000).fold(0u64, |sum, _| sum ^ random.next());
    assert_ne!(std::hint::black_box(sum), 1);
    start.elapsed().as_millis() as u64
}
