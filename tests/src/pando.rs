//! One `pando up` under a test's control: its own data, mount point and logs in a temporary folder.
//!
//! With `PANDO_E2E_DIR=DIR` there is no process: tests that only need a file system get a folder in DIR instead, which
//! shows whether a test asks what an ordinary file system does.
//! Invariant: however a test ends, nothing stays mounted and no process stays. Drop kills by process id and detaches the
//! mount. A process that has served one start for longer than [`PATIENCE`] is killed, since nobody can be waited for by a system call
//! that it never answers. If the test process itself is killed, the kernel kills the child (see `spawn`), and the next
//! run takes the dead mount away.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, Once, Weak, mpsc};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::{spawn, sys};

/// How long a start, a stop or one verb may take before the test fails.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// How long one start may serve a test before it counts as hung and is killed.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// The folder that stands in for a mount, if one is asked for.
pub fn plain_dir() -> Option<PathBuf> {
    std::env::var_os("PANDO_E2E_DIR").map(PathBuf::from)
}

/// The built `pando`: `PANDO_BIN`, or the one in the target folder that this test was built into.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("PANDO_BIN") {
        return path.into();
    }
    let mut folder = std::env::current_exe().expect("a process knows its program");
    folder.pop();
    if folder.ends_with("deps") {
        folder.pop();
    }
    let path = folder.join("pando");
    assert!(path.exists(), "no {}: build it first (cargo build --release -p pando)", path.display());
    path
}

const PREFIX: &str = "pando-e2e-";

/// A folder of its own that other users may enter; inside it everything of one test lies.
pub fn scratch() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    static SWEPT: Once = Once::new();
    let base = plain_dir().unwrap_or_else(std::env::temp_dir);
    SWEPT.call_once(|| sweep(&base));
    let prefix = format!("{PREFIX}{}-", std::process::id());
    let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(base).expect("a temporary folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("own folder");
    folder
}

/// Takes away what runs that were killed have left: only folders of ours whose process is gone.
fn sweep(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|rest| rest.split('-').next());
        let Some(owner) = owner.and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        if Path::new("/proc").join(owner.to_string()).exists() {
            continue;
        }
        for mount in sys::mounts_below(&entry.path()) {
            let _ = sys::detach(&mount);
        }
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// Waits until `done` says so, or fails the test after `limit`.
pub fn wait_for<T>(what: &str, limit: Duration, mut done: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        sleep(Duration::from_millis(5));
    }
}

/// Waits for a child's end; after `limit` it is killed and the test fails.
pub fn wait_exit(child: &mut Child, what: &str, limit: Duration) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("own child") {
            return status;
        }
        if start.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{what}: not within {limit:?}");
        }
        sleep(Duration::from_millis(3));
    }
}

/// Starts a verb that serves and waits for the word `ready` on its stdout; if it ends before, what it said.
pub fn start_ready(mut command: Command, out: &Path, err: &Path) -> Result<Child, String> {
    command.stdin(Stdio::null());
    command.stdout(File::create(out).expect("own folder")).stderr(File::create(err).expect("own folder"));
    let mut child = spawn::spawn(command, libc::SIGKILL).expect("the binary starts");
    let start = Instant::now();
    let said = |path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    loop {
        if said(out).lines().any(|line| line.contains("ready")) {
            return Ok(child);
        }
        let ended = child.try_wait().expect("own child");
        if ended.is_some() || start.elapsed() > DEADLINE {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("{ended:?} after {:?}\n{}{}", start.elapsed(), said(out), said(err)));
        }
        sleep(Duration::from_millis(2));
    }
}

/// Settings of a [`Pando`] before its first start.
#[derive(Debug, Default, Clone)]
pub struct Options {
    /// Further arguments of `pando up`.
    pub args: Vec<OsString>,
    /// Further environment variables.
    pub envs: Vec<(String, String)>,
    /// Data folder instead of one in the scratch folder.
    pub data: Option<PathBuf>,
    /// Instead of [`PATIENCE`].
    pub patience: Option<Duration>,
    /// Scratch folder's parent instead of the system's temporary folder.
    pub base: Option<PathBuf>,
}

/// Kills a process that nobody stops; dropped before its process is waited for, so that the id is still that process.
#[derive(Debug)]
struct Watchdog(Option<(mpsc::Sender<()>, thread::JoinHandle<()>)>);

impl Watchdog {
    fn start(pid: u32, patience: Duration) -> Watchdog {
        let (calm, alarm) = mpsc::channel::<()>();
        let watch = thread::spawn(move || {
            if alarm.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("process {pid} has not been stopped for {patience:?}: hung, killed");
                let _ = sys::signal(pid, libc::SIGKILL);
            }
        });
        Watchdog(Some((calm, watch)))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some((calm, watch)) = self.0.take() {
            drop(calm);
            let _ = watch.join();
        }
    }
}

/// A running, stopped or killed `pando up`; see the module.
#[derive(Debug)]
pub struct Pando {
    child: Option<Child>,
    watchdog: Option<Watchdog>,
    options: Options,
    data: PathBuf,
    mount: PathBuf,
    starts: u32,
    plain: bool,
    // Last, so that it is removed after the mount is gone.
    scratch: tempfile::TempDir,
}

impl Pando {
    /// A fresh one, mounted.
    pub fn up() -> Pando {
        Pando::up_with(Options::default())
    }

    /// A fresh one with options, mounted.
    pub fn up_with(options: Options) -> Pando {
        let mut pando = Pando::prepare(options);
        pando.start();
        pando.split();
        pando
    }

    /// `PANDO_SHARDS=n` runs every test that does not look at shards itself with so many.
    fn split(&self) {
        if self.plain {
            return;
        }
        let wanted: u32 = std::env::var("PANDO_SHARDS").map_or(1, |n| n.parse().expect("a number"));
        for at in 1..wanted {
            let shard = ((at - 1) / 2).to_string();
            let output = self.verb(&["shard", "split", &shard]);
            assert!(output.status.success(), "{}", text(&output));
            wait_for("a split shard", DEADLINE, || {
                let list = self.json("shard list");
                let led =
                    list.as_array()?.iter().filter(|shard| !shard["replicas"].as_array().is_some_and(Vec::is_empty));
                (led.count() == at as usize + 1).then_some(())
            });
        }
    }

    /// Folders only, nothing started.
    pub fn prepare(options: Options) -> Pando {
        let scratch = match &options.base {
            Some(base) => tempfile::Builder::new().prefix("pando-").tempdir_in(base).expect("a temporary folder"),
            None => scratch(),
        };
        let root = scratch.path().canonicalize().expect("own folder");
        let mount = root.join("mnt");
        fs::create_dir(&mount).expect("own folder");
        let data = options.data.clone().unwrap_or_else(|| root.join("data"));
        let plain = plain_dir().is_some() && options.base.is_none();
        Pando { child: None, watchdog: None, options, data, mount, starts: 0, plain, scratch }
    }

    /// One mount for all tests that only need names of their own in it; it ends with its last user.
    pub fn shared() -> Arc<Pando> {
        static SHARED: Mutex<Weak<Pando>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        shared.upgrade().unwrap_or_else(|| {
            let fresh = Arc::new(Pando::up_with(Options { patience: Some(4 * PATIENCE), ..Options::default() }));
            *shared = Arc::downgrade(&fresh);
            fresh
        })
    }

    /// No process, only a folder: see the module.
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// The mount point.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// A path in the mount.
    pub fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.mount.join(name.as_ref())
    }

    /// The data folder.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Where this instance's things lie, mount point and data included.
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// Process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The options, to change before a restart.
    pub fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }

    /// The command that starts it, arguments included.
    pub fn command(&self) -> Command {
        let mut command = Command::new(binary());
        command.arg("up").arg("--data").arg(&self.data).args(&self.options.args).arg(&self.mount);
        for (name, value) in &self.options.envs {
            command.env(name, value);
        }
        command.stdin(Stdio::null());
        command
    }

    /// Starts it and waits for the word `ready`.
    pub fn start(&mut self) {
        if let Err(problem) = self.try_start() {
            panic!("pando up: {problem}");
        }
    }

    /// Starts it; if it ends before it is ready, what it said.
    pub fn try_start(&mut self) -> Result<(), String> {
        if self.plain {
            return Ok(());
        }
        assert!(self.child.is_none(), "already running");
        self.starts += 1;
        let child = start_ready(self.command(), &self.log_path("out"), &self.log_path("err"))?;
        self.watchdog = Some(Watchdog::start(child.id(), self.options.patience.unwrap_or(PATIENCE)));
        self.child = Some(child);
        Ok(())
    }

    /// Starts it and kills it after `delay`, ready or not.
    pub fn start_then_kill(&mut self, delay: Duration) {
        if self.plain {
            return;
        }
        self.starts += 1;
        let mut command = self.command();
        let log = |stream| File::create(self.log_path(stream)).expect("own folder");
        command.stdout(log("out")).stderr(log("err"));
        let mut child = spawn::spawn(command, libc::SIGKILL).expect("the binary starts");
        sleep(delay);
        child.kill().expect("own child");
        child.wait().expect("own child");
    }

    fn log_path(&self, stream: &str) -> PathBuf {
        self.scratch.path().join(format!("{stream}-{}.log", self.starts))
    }

    /// What the latest start has printed so far, both streams.
    pub fn log(&self) -> String {
        let read = |stream| String::from_utf8_lossy(&fs::read(self.log_path(stream)).unwrap_or_default()).into_owned();
        read("out") + &read("err")
    }

    /// `kill -9`, and the end of it. The mount point stays as the crash left it.
    pub fn kill(&mut self) {
        self.watchdog = None;
        if let Some(mut child) = self.child.take() {
            child.kill().expect("own child");
            child.wait().expect("own child");
        }
    }

    /// SIGTERM, and a clean end.
    pub fn stop(&mut self) {
        if let Some(status) = self.terminate() {
            assert!(status.success(), "SIGTERM: {status}\n{}", self.log());
            assert!(!sys::is_mounted(&self.mount), "still mounted after SIGTERM");
        }
    }

    /// SIGTERM, and how it ended.
    pub fn terminate(&mut self) -> Option<ExitStatus> {
        self.watchdog = None;
        let mut child = self.child.take()?;
        sys::signal(child.id(), libc::SIGTERM).expect("own child");
        Some(wait_exit(&mut child, "stop after SIGTERM", DEADLINE))
    }

    /// Waits for an end that somebody else caused.
    pub fn wait_end(&mut self) -> Option<ExitStatus> {
        self.watchdog = None;
        let mut child = self.child.take()?;
        Some(wait_exit(&mut child, "the end of pando up", DEADLINE))
    }

    /// Clean stop and start: every cache is cold.
    pub fn restart(&mut self) {
        self.stop();
        self.start();
    }

    /// Runs a verb (`fsck`, `gc`, `status`) on this data folder.
    pub fn verb(&self, args: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command.args(args).arg("--data").arg(&self.data);
        for (name, value) in &self.options.envs {
            command.env(name, value);
        }
        run(command, DEADLINE)
    }

    /// A verb that must succeed, with `--json`: its output.
    pub fn json(&self, verb: &str) -> serde_json::Value {
        let words: Vec<&str> = verb.split(' ').chain(["--json"]).collect();
        let output = self.verb(&words);
        assert!(output.status.success(), "pando {verb}: {}", text(&output));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("pando {verb} --json: {e}: {}", text(&output)))
    }

    /// Checks the state; fails the test with what fsck found.
    pub fn fsck(&self) {
        if !self.plain {
            let output = self.verb(&["fsck"]);
            assert!(output.status.success(), "pando fsck: {}", text(&output));
        }
    }
}

impl Drop for Pando {
    fn drop(&mut self) {
        let failing = thread::panicking();
        if failing && !self.plain {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("--- last words of {}", self.mount.display());
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
        self.watchdog = None;
        if let Some(mut child) = self.child.take() {
            let _ = sys::signal(child.id(), libc::SIGTERM);
            let start = Instant::now();
            while child.try_wait().is_ok_and(|ended| ended.is_none()) && start.elapsed() < Duration::from_secs(10) {
                sleep(Duration::from_millis(5));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        while sys::is_mounted(&self.mount) && sys::detach(&self.mount).is_ok() {}
    }
}

/// Runs a command to its end with its output; kills it and fails the test after `limit`.
pub fn run(mut command: Command, limit: Duration) -> Output {
    let what = format!("{command:?}");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn::spawn(command, libc::SIGKILL).unwrap_or_else(|e| panic!("{what}: {e}"));
    let drain = |stream: Option<Box<dyn io::Read + Send>>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            stream.expect("piped").read_to_end(&mut bytes).map(|_| bytes).unwrap_or_default()
        })
    };
    let out = drain(child.stdout.take().map(|s| Box::new(s) as _));
    let err = drain(child.stderr.take().map(|s| Box::new(s) as _));
    let status = wait_exit(&mut child, &what, limit);
    Output { status, stdout: out.join().expect("reads only"), stderr: err.join().expect("reads only") }
}

/// A program's status and output in one string, for messages.
pub fn text(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n{out}{err}", output.status)
}
