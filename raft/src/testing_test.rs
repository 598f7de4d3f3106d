//! Test doubles: a machine that remembers payloads, a network in the process, a cluster of nodes.
//!
//! The machine keeps its state in memory and copies it to its [`Disk`] when flushed: dropping a node loses what was not
//! flushed, like the real store without WAL.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use pando_types::{NodeId, ShardId};
use tokio::time::Instant;

use crate::error::ProposeError;
use crate::group::Group;
use crate::host::{Host, Options};
use crate::machine::{ImageSource, Machine, MachineError};
use crate::transport::{PeerAnswer, PeerError, Peers};

pub const GROUP: ShardId = ShardId(3);
/// Far above what anything takes; only a broken test reaches it.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// What a machine holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Content {
    pub mark: Option<Vec<u8>>,
    pub payloads: Vec<Bytes>,
}

/// A machine's disk; survives the machine.
#[derive(Clone, Default)]
pub struct Disk {
    pub content: Arc<Mutex<Content>>,
    pub flushes: Arc<AtomicU64>,
    pub images_read: Arc<AtomicU64>,
    /// The next installation fails half way.
    pub fail_installation: Arc<AtomicBool>,
    /// The largest number of payloads that came in one call.
    pub largest_batch: Arc<AtomicU64>,
}

impl Disk {
    pub fn payloads(&self) -> Vec<Bytes> {
        self.content.lock().unwrap().payloads.clone()
    }

    pub fn machine(&self) -> TestMachine {
        let live = Arc::new(Mutex::new(self.content.lock().unwrap().clone()));
        TestMachine { live, disk: self.clone() }
    }
}

/// Replies to each payload with its position and itself.
pub struct TestMachine {
    pub live: Arc<Mutex<Content>>,
    disk: Disk,
}

pub fn reply(position: usize, payload: &[u8]) -> Bytes {
    [format!("{position} ").as_bytes(), payload].concat().into()
}

impl Machine for TestMachine {
    fn applied(&self) -> Option<Vec<u8>> {
        self.live.lock().unwrap().mark.clone()
    }

    fn apply(&mut self, mark: &[u8], payloads: &[Bytes]) -> Result<Vec<Bytes>, MachineError> {
        let mut live = self.live.lock().unwrap();
        self.disk.largest_batch.fetch_max(payloads.len() as u64, Ordering::Relaxed);
        let mut replies = Vec::new();
        for payload in payloads {
            if payload.as_ref() == b"poison" {
                return Err(MachineError::new("poisoned"));
            }
            replies.push(reply(live.payloads.len(), payload));
            live.payloads.push(payload.clone());
        }
        live.mark = Some(mark.to_vec());
        Ok(replies)
    }

    fn flush(&mut self) -> Result<(), MachineError> {
        *self.disk.content.lock().unwrap() = self.live.lock().unwrap().clone();
        self.disk.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn write_image(&mut self) -> Result<Box<dyn ImageSource>, MachineError> {
        let payloads = self.live.lock().unwrap().payloads.clone();
        Ok(Box::new(TestImage { payloads: payloads.into_iter() }))
    }

    fn read_image(
        &mut self,
        mark: &[u8],
        chunks: &mut dyn Iterator<Item = Result<Bytes, MachineError>>,
    ) -> Result<(), MachineError> {
        let mut live = self.live.lock().unwrap();
        // As bad as it may be: the old state is gone, durably, before the new one is there.
        *live = Content::default();
        *self.disk.content.lock().unwrap() = Content::default();
        for chunk in chunks {
            live.payloads.push(chunk?);
            if self.disk.fail_installation.swap(false, Ordering::Relaxed) {
                return Err(MachineError::new("installation cut short"));
            }
        }
        live.mark = Some(mark.to_vec());
        self.disk.images_read.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

struct TestImage {
    payloads: std::vec::IntoIter<Bytes>,
}

impl ImageSource for TestImage {
    fn next(&mut self) -> Result<Option<Bytes>, MachineError> {
        Ok(self.payloads.next())
    }
}

/// The network of a cluster in one process; links can be cut.
#[derive(Default)]
pub struct Net {
    hosts: Mutex<BTreeMap<NodeId, Weak<Host>>>,
    cut: Mutex<BTreeSet<NodeId>>,
}

impl Net {
    pub fn cut(&self, node: NodeId) {
        self.cut.lock().unwrap().insert(node);
    }

    pub fn heal(&self) {
        self.cut.lock().unwrap().clear();
    }

    fn host(&self, from: NodeId, to: NodeId) -> Option<Arc<Host>> {
        let cut = self.cut.lock().unwrap();
        if cut.contains(&from) || cut.contains(&to) {
            return None;
        }
        self.hosts.lock().unwrap().get(&to).and_then(Weak::upgrade)
    }
}

/// The network as one node sees it.
pub struct NetOf {
    pub net: Arc<Net>,
    pub from: NodeId,
}

impl Peers for NetOf {
    fn call(
        &self,
        to: NodeId,
        address: &str,
        group: ShardId,
        message: Bytes,
        _: Duration,
    ) -> BoxFuture<'static, PeerAnswer> {
        assert_eq!(address, format!("node-{to}"));
        let (net, from) = (self.net.clone(), self.from);
        Box::pin(async move {
            let down = || PeerError::Unreachable("down".to_owned());
            let host = net.host(from, to).ok_or_else(down)?;
            let answer = host.receive(group, &message).await;
            net.host(to, from).ok_or_else(down)?;
            answer
        })
    }
}

/// A node that is up.
pub struct Node {
    pub host: Arc<Host>,
    pub group: Group,
    pub live: Arc<Mutex<Content>>,
}

/// A cluster with its directories and disks.
pub struct Cluster {
    pub dir: tempfile::TempDir,
    pub net: Arc<Net>,
    pub options: Options,
    pub disks: BTreeMap<NodeId, Disk>,
    pub nodes: BTreeMap<NodeId, Node>,
}

pub fn options() -> Options {
    Options {
        heartbeat: Duration::from_millis(50),
        election_min: Duration::from_millis(300),
        election_max: Duration::from_millis(600),
        ..Options::default()
    }
}

impl Cluster {
    pub fn new(size: u64, options: Options) -> Cluster {
        let disks = (1..=size).map(|id| (NodeId(id), Disk::default())).collect();
        let dir = tempfile::tempdir().unwrap();
        Cluster { dir, net: Arc::default(), options, disks, nodes: BTreeMap::new() }
    }

    pub fn ids(&self) -> Vec<NodeId> {
        self.disks.keys().copied().collect()
    }

    pub fn path(&self, id: NodeId) -> PathBuf {
        self.dir.path().join(id.to_string())
    }

    pub fn members(&self) -> BTreeMap<NodeId, String> {
        self.disks.keys().map(|id| (*id, format!("node-{id}"))).collect()
    }

    /// Gives a node that has never run the state, and the log, of a group that begins with it.
    pub async fn seed(&self, id: NodeId, mark: &[u8]) {
        let content = Content { mark: Some(mark.to_vec()), payloads: vec![Bytes::from_static(b"seed")] };
        *self.disks[&id].content.lock().unwrap() = content;
        let host = Host::open(&self.path(id), self.options.clone()).unwrap();
        assert!(host.seed(GROUP, mark).await.unwrap());
        assert!(!host.seed(GROUP, mark).await.unwrap(), "once");
    }

    pub async fn up(&mut self, id: NodeId) -> Group {
        self.try_up(id).await.unwrap()
    }

    pub async fn try_up(&mut self, id: NodeId) -> Result<Group, crate::error::RaftError> {
        let disk = self.disks.entry(id).or_default().clone();
        let machine = disk.machine();
        let live = machine.live.clone();
        let host = Arc::new(Host::open(&self.path(id), self.options.clone())?);
        self.net.hosts.lock().unwrap().insert(id, Arc::downgrade(&host));
        let peers = Arc::new(NetOf { net: self.net.clone(), from: id });
        let group = host.start(GROUP, id, machine, peers).await?;
        self.nodes.insert(id, Node { host, group: group.clone(), live });
        Ok(group)
    }

    /// Starts all nodes and founds the group.
    pub async fn found(size: u64, options: Options) -> Cluster {
        let mut cluster = Cluster::new(size, options);
        for id in cluster.ids() {
            cluster.up(id).await;
        }
        let members = cluster.members();
        cluster.nodes[&NodeId(1)].group.initialize(members).await.unwrap();
        cluster
    }

    /// Drops a node without shutdown: what its machine had not flushed is lost.
    pub async fn crash(&mut self, id: NodeId) {
        let node = self.nodes.remove(&id).unwrap();
        self.net.hosts.lock().unwrap().remove(&id);
        let log = node.host.log_for_test();
        drop(node);
        until("the crashed node has let go of its log", || log.strong_count() == 0 && self.try_open(id)).await;
    }

    pub async fn shutdown(&mut self, id: NodeId) {
        let node = self.nodes.remove(&id).unwrap();
        self.net.hosts.lock().unwrap().remove(&id);
        let Node { mut host, group, .. } = node;
        drop(group);
        let owned = loop {
            match Arc::try_unwrap(host) {
                Ok(host) => break host,
                Err(shared) => host = shared, // a message is being handled
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        owned.shutdown().await.unwrap();
    }

    /// Whether the node's log can be opened: whoever had it has let go.
    pub fn try_open(&self, id: NodeId) -> bool {
        Host::open(&self.path(id), self.options.clone()).is_ok()
    }

    pub async fn leader(&self) -> (NodeId, Group) {
        let deadline = Instant::now() + DEADLINE;
        while Instant::now() < deadline {
            for (id, node) in &self.nodes {
                if node.group.is_leader() && node.group.read_fence().await.is_ok() {
                    return (*id, node.group.clone());
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("no leader");
    }

    /// Proposes until it is acknowledged, as a client does.
    pub async fn propose(&self, payload: &str) -> Bytes {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let (_, leader) = self.leader().await;
            match leader.propose(Bytes::from(payload.to_owned())).await {
                Ok(reply) => return reply,
                Err(ProposeError::NotLeader { .. } | ProposeError::Unavailable(_)) if Instant::now() < deadline => {}
                Err(e) => panic!("{e}"),
            }
        }
    }

    pub async fn propose_all(&self, range: std::ops::Range<u32>) {
        for i in range {
            self.propose(&i.to_string()).await;
        }
    }

    pub fn content(&self, id: NodeId) -> Vec<Bytes> {
        self.nodes[&id].live.lock().unwrap().payloads.clone()
    }

    /// Waits until the node has the same state as the leader, which is acknowledged.
    pub async fn caught_up(&self, id: NodeId) {
        let (leader, _) = self.leader().await;
        until("the node has caught up", || self.content(id) == self.content(leader)).await;
    }
}

/// The payloads without those that a client repeated.
pub fn once(payloads: &[Bytes]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let texts = payloads.iter().map(|payload| String::from_utf8(payload.to_vec()).unwrap());
    texts.filter(|text| seen.insert(text.clone())).collect()
}

pub fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|i| i.to_string()).collect()
}

pub async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The files of `from` as they are now: what a machine finds after a power cut or kill -9.
pub fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &to);
        } else if entry.file_name() != "LOCK" {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}
