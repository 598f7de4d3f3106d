//! The load: the same calls for every target.
//!
//! Invariant: a phase leaves its target empty.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use pando_tests::bytes::seeded;
use pando_tests::pando::{run as run_program, text};
use pando_tests::tree::make_small_files;

use crate::targets::Target;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Create, stat, open, unlink; 1 and 8 threads, each in a folder of its own.
    Names,
    /// tar -x of small files, rm -rf of them.
    Tar,
    /// Create, write 4 KiB, fsync, close; 1 and 8 threads.
    Fsync,
    /// 1 GiB written with fsync, read cold.
    Stream,
}

/// What is made once for all targets.
pub struct Inputs {
    archive: PathBuf,
    files: usize,
    block: Vec<u8>,
    scale: usize,
}

const TAR_FILES: usize = 5000;
const LIMIT: Duration = Duration::from_secs(600);

/// One figure: metric, unit, value.
pub type Figure = (String, &'static str, f64);

impl Inputs {
    pub fn make(work: &Path, scale: usize) -> Result<Inputs> {
        let (tree, archive, files) = (work.join("tree"), work.join("small.tar"), TAR_FILES / scale);
        make_small_files(&tree, files);
        program("tar", &["-cf", path(&archive), "-C", path(work), "tree"])?;
        fs::remove_dir_all(tree)?;
        Ok(Inputs { archive, files, block: seeded(1, 64 << 20), scale })
    }
}

/// Lets what the last measurement left behind reach the disk.
pub fn settle() {
    // SAFETY: takes nothing.
    unsafe { libc::sync() };
    thread::sleep(Duration::from_millis(100));
}

/// Carries out a phase once.
pub fn run(phase: Phase, target: &mut dyn Target, inputs: &Inputs) -> Result<Vec<Figure>> {
    match phase {
        Phase::Names => {
            let mut figures = names(target.folder(), 1, 2000 / inputs.scale)?;
            figures.extend(names(target.folder(), 8, 4000 / inputs.scale)?);
            Ok(figures)
        }
        Phase::Tar => tar(target.folder(), inputs),
        Phase::Fsync => {
            let mut figures = fsync(target.folder(), 1, 320 / inputs.scale)?;
            figures.extend(fsync(target.folder(), 8, 640 / inputs.scale)?);
            Ok(figures)
        }
        Phase::Stream => stream(target, inputs),
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("the work folder's name is text")
}

fn program(name: &str, args: &[&str]) -> Result<()> {
    let mut command = Command::new(name);
    command.args(args);
    let output = run_program(command, LIMIT);
    ensure!(output.status.success(), "{name} {args:?}: {}", text(&output));
    Ok(())
}

/// Operations per second of `each`, called by `threads` threads for the files of their own folders.
fn rate(
    folder: &Path,
    threads: usize,
    total: usize,
    each: impl Fn(&Path) -> std::io::Result<()> + Sync,
) -> Result<f64> {
    let per_thread = total / threads;
    let start = Instant::now();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                let (own, each) = (folder.join(format!("t{worker}")), &each);
                scope.spawn(move || (0..per_thread).try_for_each(|index| each(&own.join(format!("f{index:06}")))))
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("the load does not panic"))
    })?;
    Ok((per_thread * threads) as f64 / start.elapsed().as_secs_f64())
}

fn folders(target: &Path, threads: usize) -> Result<PathBuf> {
    let folder = target.join("load");
    for worker in 0..threads {
        fs::create_dir_all(folder.join(format!("t{worker}")))?;
    }
    Ok(folder)
}

/// What is done with one name.
type Call = dyn Fn(&Path) -> std::io::Result<()> + Sync;

fn named(what: &str, threads: usize) -> String {
    format!("{what}, {threads} thread{}", if threads == 1 { "" } else { "s" })
}

fn names(target: &Path, threads: usize, total: usize) -> Result<Vec<Figure>> {
    let folder = folders(target, threads)?;
    let create = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path).map(drop);
    let calls: [(&str, &Call); 4] = [
        ("create", &create),
        ("stat", &|path| fs::symlink_metadata(path).map(drop)),
        ("open", &|path| File::open(path).map(drop)),
        ("unlink", &|path| fs::remove_file(path)),
    ];
    let mut figures = Vec::new();
    for (what, call) in calls {
        figures.push((named(what, threads), "ops/s", rate(&folder, threads, total, call)?));
    }
    fs::remove_dir_all(folder)?;
    Ok(figures)
}

fn tar(target: &Path, inputs: &Inputs) -> Result<Vec<Figure>> {
    let start = Instant::now();
    program("tar", &["-xf", path(&inputs.archive), "-C", path(target), "--no-same-owner"])?;
    let unpacked = inputs.files as f64 / start.elapsed().as_secs_f64();
    let start = Instant::now();
    program("rm", &["-rf", path(&target.join("tree"))])?;
    let removed = inputs.files as f64 / start.elapsed().as_secs_f64();
    Ok(vec![("tar -x, files of 0.5-8 KiB".into(), "files/s", unpacked), ("rm -rf of them".into(), "files/s", removed)])
}

fn fsync(target: &Path, threads: usize, total: usize) -> Result<Vec<Figure>> {
    let folder = folders(target, threads)?;
    let bytes = seeded(2, 4096);
    let each = |path: &Path| {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.write_all(&bytes)?;
        file.sync_all()
    };
    let figure = rate(&folder, threads, total, each)?;
    fs::remove_dir_all(folder)?;
    Ok(vec![(named("create+write 4 KiB+fsync", threads), "files/s", figure)])
}

fn stream(target: &mut dyn Target, inputs: &Inputs) -> Result<Vec<Figure>> {
    let mib = 1024 / inputs.scale;
    let name = target.folder().join("stream");
    let start = Instant::now();
    let mut file = File::create(&name)?;
    let blocks = inputs.block.chunks_exact(1 << 20).cycle().take(mib);
    for block in blocks {
        file.write_all(block)?;
    }
    file.sync_all()?;
    drop(file);
    let written = mib as f64 / start.elapsed().as_secs_f64();
    target.make_cold()?;
    let start = Instant::now();
    let mut file = File::open(&name)?;
    let (mut buffer, mut total) = (vec![0; 1 << 20], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            got => total += got,
        }
    }
    let read = mib as f64 / start.elapsed().as_secs_f64();
    ensure!(total == mib << 20, "{total} bytes read of {mib} MiB");
    drop(file);
    fs::remove_file(name)?;
    Ok(vec![("write 1 GiB with fsync".into(), "MiB/s", written), ("read it cold".into(), "MiB/s", read)])
}
