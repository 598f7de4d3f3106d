//! Several `pando server` processes that form one cluster, and mounts of it, under a test's control.
//!
//! Invariant: however a test ends, no process and no mount stays.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use pando_rpc::Pool;
use pando_types::request::{Replica, Request, RequestMessage, Response};
use pando_types::shard_map::ClusterTag;
use pando_types::{Generation, MapEpoch};
use serde_json::Value;

use crate::pando::{DEADLINE, binary, run, scratch, start_ready, text, wait_for};
use crate::sys;

/// A number that an environment variable may set.
pub fn number(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).ok().and_then(|n| n.parse().ok()).unwrap_or(otherwise)
}

/// A server process of the cluster, running or not.
struct Member {
    address: String,
    child: Option<Child>,
    starts: u32,
}

/// See the module. Nodes are counted from 0 here; node ids from 1.
pub struct Cluster {
    members: Vec<Member>,
    mounts: Vec<(PathBuf, Child)>,
    root: PathBuf,
    // Last, so that it is removed after all processes have gone.
    _scratch: tempfile::TempDir,
}

impl Cluster {
    /// A cluster of so many nodes, each of which has its replica.
    pub fn start(nodes: usize) -> Cluster {
        let scratch = scratch();
        let root = scratch.path().canonicalize().expect("own folder");
        fs::create_dir(root.join("objects")).expect("own folder");
        let mut cluster = Cluster { members: Vec::new(), mounts: Vec::new(), root, _scratch: scratch };
        for _ in 0..nodes {
            cluster.add("");
        }
        cluster.wait_healthy();
        cluster
    }

    /// A further node with these further lines of configuration; its place in the list.
    pub fn add(&mut self, lines: &str) -> usize {
        let at = self.members.len();
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let address = format!("127.0.0.1:{port}");
        let data = self.data(at);
        let mut config = format!("data = {data:?}\nlisten = {address:?}\nreplicas = 3\n");
        config += &match at {
            0 => format!("object_store = \"file://{}\"\n", self.root.join("objects").display()),
            _ => {
                let members: Vec<&str> = self.members.iter().map(|m| m.address.as_str()).collect();
                format!("join = {members:?}\ntoken_file = {:?}\n", self.token())
            }
        };
        fs::write(self.config(at), config + lines).expect("own folder");
        self.members.push(Member { address, child: None, starts: 0 });
        self.start_node(at);
        at
    }

    /// The cluster's token.
    pub fn token(&self) -> PathBuf {
        self.data(0).join("TOKEN")
    }

    /// A node's data directory.
    pub fn data(&self, node: usize) -> PathBuf {
        self.root.join(format!("data-{node}"))
    }

    /// A node's configuration.
    pub fn config(&self, node: usize) -> PathBuf {
        self.root.join(format!("server-{node}.toml"))
    }

    /// Where a node listens.
    pub fn address(&self, node: usize) -> &str {
        &self.members[node].address
    }

    /// How many nodes were ever added.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Starts a node that does not run.
    pub fn start_node(&mut self, node: usize) {
        if let Err(problem) = self.try_start_node(node) {
            panic!("node {node}: {problem}");
        }
    }

    /// Starts a node; if it ends before it is ready, what it said.
    pub fn try_start_node(&mut self, node: usize) -> Result<(), String> {
        let (config, root) = (self.config(node), self.root.clone());
        let member = &mut self.members[node];
        assert!(member.child.is_none(), "node {node} runs already");
        member.starts += 1;
        let log = |stream: &str| root.join(format!("node-{node}-{}.{stream}", member.starts));
        let mut command = Command::new(binary());
        command.arg("server").arg("--config").arg(config);
        member.child = Some(start_ready(command, &log("out"), &log("err"))?);
        Ok(())
    }

    /// `kill -9`.
    pub fn kill(&mut self, node: usize) {
        if let Some(mut child) = self.members[node].child.take() {
            child.kill().expect("own child");
            child.wait().expect("own child");
        }
    }

    /// SIGTERM, and a clean end.
    pub fn stop(&mut self, node: usize) {
        if let Some(mut child) = self.members[node].child.take() {
            sys::signal(child.id(), libc::SIGTERM).expect("own child");
            let ended = crate::pando::wait_exit(&mut child, "the stop of a node", DEADLINE);
            assert!(ended.success(), "node {node}: {ended}");
        }
    }

    /// Stops a node's clock and all it does, as a long pause of its machine would.
    pub fn pause(&self, node: usize) {
        self.signal(node, libc::SIGSTOP);
    }

    /// It goes on as if nothing had been.
    pub fn resume(&self, node: usize) {
        self.signal(node, libc::SIGCONT);
    }

    fn signal(&self, node: usize, signal: i32) {
        let child = self.members[node].child.as_ref().expect("a running node");
        sys::signal(child.id(), signal).expect("own child");
    }

    /// A new mount of the cluster, which knows all of its nodes.
    pub fn mount(&mut self) -> PathBuf {
        let at = self.mounts.len();
        let dir = self.root.join(format!("mnt-{at}"));
        let addresses: Vec<&str> = self.members.iter().map(|m| m.address.as_str()).collect();
        let mut command = Command::new(binary());
        command.arg("mount").arg(addresses.join(",")).arg(&dir);
        let log = |stream: &str| self.root.join(format!("mount-{at}.{stream}"));
        let child = start_ready(command, &log("out"), &log("err")).unwrap_or_else(|problem| panic!("mount: {problem}"));
        self.mounts.push((dir.clone(), child));
        dir
    }

    /// Runs a verb on the cluster, by the first node that runs.
    pub fn verb(&self, args: &[&str]) -> Output {
        let up = self.members.iter().find(|m| m.child.is_some()).expect("a running node");
        let mut command = Command::new(binary());
        command.args(args).arg(&up.address);
        run(command, DEADLINE)
    }

    /// The answer of `pando status`; none while the cluster has no leader.
    pub fn status(&self) -> Option<Value> {
        let output = self.verb(&["status", "--json"]);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("one JSON value"))
    }

    /// The node that leads shard 0.
    pub fn leader(&self) -> usize {
        let status = wait_for("a leader", DEADLINE, || self.status());
        usize::try_from(status["leader"].as_u64().expect("a node id")).expect("small") - 1
    }

    /// Waits until nothing is wrong; fails the test with what is.
    pub fn wait_healthy(&self) {
        let start = Instant::now();
        loop {
            let status = self.status();
            let healthy = status.as_ref().is_some_and(|s| s["health"] == "ok");
            if healthy {
                return;
            }
            assert!(start.elapsed() < DEADLINE, "not healthy within {DEADLINE:?}: {status:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The nodes that should hold the replicas of shard 0.
    pub fn replicas(&self) -> Vec<u64> {
        self.shards().swap_remove(0)
    }

    /// The nodes that should hold the replicas of each shard.
    pub fn shards(&self) -> Vec<Vec<u64>> {
        let members =
            |shard: &Value| shard["members"].as_array().expect("a list").iter().filter_map(Value::as_u64).collect();
        self.shard_list().iter().map(members).collect()
    }

    /// The node that leads each shard; none while one has no leader.
    pub fn leaders(&self) -> Option<Vec<usize>> {
        let leader = |shard: &Value| shard["leader"].as_u64().map(|id| usize::try_from(id).expect("small") - 1);
        self.shard_list().iter().map(leader).collect()
    }

    fn shard_list(&self) -> Vec<Value> {
        let output = self.verb(&["shard", "list", "--json"]);
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice(&output.stdout).expect("one JSON value")
    }

    /// Checks the state; fails the test with what fsck found.
    pub fn fsck(&self) {
        let output = self.verb(&["fsck"]);
        assert!(output.status.success(), "pando fsck: {}", text(&output));
    }

    /// How many replicas a running node has, asked itself.
    pub fn held(&self, node: usize) -> Option<usize> {
        ask(&self.members[node].address).map(|replicas| replicas.len())
    }

    /// Adds the other nodes to a node's configuration, as members to join.
    pub fn joins(&self, node: usize) {
        let others: Vec<&str> =
            self.members.iter().enumerate().filter(|(at, _)| *at != node).map(|(_, m)| m.address.as_str()).collect();
        let config = fs::read_to_string(self.config(node)).expect("own folder");
        let lines = format!("join = {others:?}\ntoken_file = {:?}\n", self.token());
        fs::write(self.config(node), lines + &config).expect("own folder");
    }

    /// What each running node knows of the replicas, for messages.
    fn views(&self) -> String {
        let running = self.members.iter().enumerate().filter(|(_, member)| member.child.is_some());
        running.map(|(at, member)| format!("node {}: {:?}\n", at + 1, ask(&member.address))).collect()
    }

    fn logs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut logs: Vec<_> = entries.filter(|path| path.extension().is_some_and(|e| e == "err")).collect();
        logs.sort();
        logs
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.views());
            for log in self.logs() {
                let said = fs::read_to_string(&log).unwrap_or_default();
                let tail: Vec<&str> = said.lines().rev().take(8).collect();
                eprintln!("--- last words in {}", log.file_name().unwrap_or_default().to_string_lossy());
                tail.iter().rev().for_each(|line| eprintln!("{line}"));
            }
        }
        // Mounts first: their last words still reach a server.
        for (dir, child) in &mut self.mounts {
            end(child);
            while sys::is_mounted(dir) && sys::detach(dir).is_ok() {}
        }
        for child in self.members.iter_mut().filter_map(|m| m.child.as_mut()) {
            let _ = sys::signal(child.id(), libc::SIGCONT);
            end(child);
        }
    }
}

/// A node's replicas, asked itself.
fn ask(address: &str) -> Option<Vec<Replica>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let (cluster, epoch, generation) = (ClusterTag::UNKNOWN, MapEpoch(0), Generation::FIRST);
    let message = RequestMessage { cluster, epoch, generation, request: Request::Replicas };
    let answer = runtime.block_on(Pool::new().call(address, &message, Duration::from_secs(2)));
    match answer.ok()?.result {
        Ok(Response::Replicas(replicas)) => Some(replicas),
        _ => None,
    }
}

fn end(child: &mut Child) {
    let _ = sys::signal(child.id(), libc::SIGTERM);
    let start = Instant::now();
    while child.try_wait().is_ok_and(|ended| ended.is_none()) && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
}
