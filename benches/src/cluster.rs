//! Three nodes in one process, each log fsynced: Raft alone over RocksDB logs, and the whole metadata path, by the same
//! number of callers in the same run. What the second leaves of the first is the cost of everything above consensus.
//!
//! Not here: mounts. Loopback TCP between the nodes in both cases.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use pando_client::{Meta, RetryPolicy};
use pando_engine::kv::rocks::RocksKv;
use pando_engine::{Batch, Kv};
use pando_metaserver::{Config, Server};
use pando_raft::{
    Group, Host, ImageSource, Machine, MachineError, Options as RaftOptions, PeerAnswer, PeerError, Peers, ProposeError,
};
use pando_rpc::{Handler, Pool, Server as RpcServer};
use pando_types::command::{Create, NewNode};
use pando_types::request::{Request, RequestMessage, Response, ResponseMessage};
use pando_types::shard_map::ClusterTag;
use pando_types::{FileName, FsError, Generation, InodeId, MapEpoch, NodeId, ShardId, SlotId};
use tokio::runtime::Runtime;

use crate::options::Options;
use crate::report::Results;
use crate::targets::PANDO;

/// Callers at a time.
pub const WRITERS: [usize; 3] = [1, 16, 256];
/// Bytes of a proposal to Raft alone: about a create with its envelope.
const PAYLOAD_BYTES: usize = 200;
/// Nodes of a cluster.
pub const NODES: u64 = 3;
const GROUP: ShardId = ShardId(0);
/// Each measurement takes about this long, divided by the scale.
const TIME: Duration = Duration::from_secs(4);

/// The metric of the bare groups.
pub fn raft_metric(nodes: u64, writers: usize) -> String {
    format!("raft alone, {nodes} nodes, {writers} callers")
}

/// The metric of the whole path.
pub fn create_metric(nodes: u64, writers: usize) -> String {
    format!("create, {nodes} nodes, {writers} callers")
}

pub fn measure(results: &mut Results, options: &Options, work: &Path) -> Result<()> {
    let runtime = Runtime::new()?;
    let time = TIME / options.scale as u32;
    for nodes in [1, NODES] {
        let folder = tempfile::Builder::new().prefix("raft-").tempdir_in(work)?;
        runtime.block_on(raft_alone(results, folder.path(), nodes, time))?;
        let folder = tempfile::Builder::new().prefix("cluster-").tempdir_in(work)?;
        runtime.block_on(whole(results, folder.path(), nodes, time))?;
    }
    Ok(())
}

/// Runs so many callers for a while; returns calls per second.
async fn rate<F>(writers: usize, time: Duration, call: impl Fn(u64) -> F + Send + Sync + 'static) -> Result<f64>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let (call, next) = (Arc::new(call), Arc::new(AtomicU64::new(0)));
    let start = Instant::now();
    let callers: Vec<_> = (0..writers)
        .map(|_| {
            let (call, next) = (call.clone(), next.clone());
            tokio::spawn(async move {
                while start.elapsed() < time {
                    call(next.fetch_add(1, Ordering::Relaxed)).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for caller in callers {
        caller.await??;
    }
    Ok(next.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64())
}

/// Puts each payload into RocksDB, without a WAL of its own, as the engine does with what it makes of a command.
struct Puts {
    kv: RocksKv,
    mark: Option<Vec<u8>>,
    next: u64,
}

struct Empty;

impl ImageSource for Empty {
    fn next(&mut self) -> Result<Option<bytes::Bytes>, MachineError> {
        Ok(None)
    }
}

impl Machine for Puts {
    fn applied(&self) -> Option<Vec<u8>> {
        self.mark.clone()
    }

    fn apply(&mut self, mark: &[u8], payloads: &[bytes::Bytes]) -> Result<Vec<bytes::Bytes>, MachineError> {
        let mut batch = Batch::default();
        for payload in payloads {
            batch.put(self.next.to_be_bytes().to_vec(), payload.to_vec());
            self.next += 1;
        }
        batch.put(b"mark".to_vec(), mark.to_vec());
        self.kv.write(batch).map_err(MachineError::new)?;
        self.mark = Some(mark.to_vec());
        Ok(payloads.iter().map(|_| bytes::Bytes::new()).collect())
    }

    fn flush(&mut self) -> Result<(), MachineError> {
        self.kv.flush().map_err(MachineError::new)
    }

    fn write_image(&mut self) -> Result<Box<dyn ImageSource>, MachineError> {
        Ok(Box::new(Empty))
    }

    fn read_image(
        &mut self,
        mark: &[u8],
        _: &mut dyn Iterator<Item = Result<bytes::Bytes, MachineError>>,
    ) -> Result<(), MachineError> {
        self.mark = Some(mark.to_vec());
        Ok(())
    }
}

/// Takes Raft's messages from the wire.
#[derive(Default)]
struct Receiver(OnceLock<Arc<Host>>);

impl Handler for Receiver {
    async fn handle(&self, request: RequestMessage) -> ResponseMessage {
        let answer = match (self.0.get(), request.request) {
            (Some(host), Request::Raft { shard, message, .. }) => {
                host.receive(shard, &message).await.map(Response::Raft)
            }
            _ => Err(PeerError::TimedOut),
        };
        ResponseMessage {
            generation: Generation::FIRST,
            result: answer.map_err(|e| FsError::unavailable(e.to_string())),
        }
    }
}

/// Puts them on it.
#[derive(Default)]
struct Wire(Arc<Pool>);

impl Peers for Wire {
    fn call(
        &self,
        _: NodeId,
        address: &str,
        shard: ShardId,
        message: bytes::Bytes,
        timeout: Duration,
    ) -> futures::future::BoxFuture<'static, PeerAnswer> {
        let (pool, address) = (self.0.clone(), address.to_owned());
        Box::pin(async move {
            let request = Request::Raft { cluster: String::new(), shard, message };
            let (cluster, epoch) = (ClusterTag::UNKNOWN, MapEpoch(0));
            let message = RequestMessage { cluster, epoch, generation: Generation::FIRST, request };
            match pool.call(&address, &message, timeout).await.map(|answer| answer.result) {
                Ok(Ok(Response::Raft(answer))) => Ok(answer),
                other => Err(PeerError::Unreachable(format!("{other:?}"))),
            }
        })
    }
}

async fn raft_alone(results: &mut Results, folder: &Path, nodes: u64, time: Duration) -> Result<()> {
    let (mut servers, mut hosts, mut groups) = (Vec::new(), Vec::new(), Vec::<Group>::new());
    let mut members = BTreeMap::new();
    for node in 1..=nodes {
        let receiver = Arc::new(Receiver::default());
        let server = RpcServer::bind("127.0.0.1:0", false, receiver.clone()).await?;
        let host = Arc::new(Host::open(&folder.join(node.to_string()), RaftOptions::default())?);
        receiver.0.get_or_init(|| host.clone());
        let kv = RocksKv::open(&folder.join(format!("state-{node}")), 64 << 20)?;
        let machine = Puts { kv, mark: None, next: 0 };
        members.insert(NodeId(node), server.address().to_string());
        groups.push(host.start(GROUP, NodeId(node), machine, Arc::new(Wire::default())).await?);
        servers.push(server);
        hosts.push(host);
    }
    groups[0].initialize(members).await?;
    let leader = groups[0].wait_leader(Duration::from_secs(20)).await?;
    let leader = groups[leader.0 as usize - 1].clone();
    let payload = bytes::Bytes::from(vec![7; PAYLOAD_BYTES]);
    for writers in WRITERS {
        let (leader, payload) = (leader.clone(), payload.clone());
        let call = move |_| {
            let (leader, payload) = (leader.clone(), payload.clone());
            async move {
                // As a client would: what is not confirmed is asked again.
                loop {
                    match leader.propose(payload.clone()).await {
                        Ok(_) => return Ok(()),
                        Err(ProposeError::Unavailable(why)) => {
                            eprintln!("raft alone: {why}");
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                        Err(error) => return Err(anyhow!(error)),
                    }
                }
            }
        };
        results.add(&raft_metric(nodes, writers), "ops/s", PANDO, rate(writers, time, call).await?);
    }
    for host in hosts {
        host.shutdown().await?;
    }
    Ok(())
}

async fn whole(results: &mut Results, folder: &Path, nodes: u64, time: Duration) -> Result<()> {
    std::fs::create_dir(folder.join("objects"))?;
    let mut servers: Vec<Server> = Vec::new();
    for node in 1..=nodes {
        let mut config =
            Config::new(folder.join(node.to_string()), format!("file://{}", folder.join("objects").display()));
        config.listen = "127.0.0.1:0".into();
        if let Some(first) = servers.first() {
            config.join = vec![first.address().to_string()];
            config.token_file = Some(folder.join("1/TOKEN"));
        }
        servers.push(Server::start(config).await?);
    }
    let meta =
        Meta::connect(&servers[0].address().to_string(), RetryPolicy::default()).await.map_err(|e| anyhow!(e))?;
    let start = Instant::now();
    loop {
        let status = meta.status().await.map_err(|e| anyhow!(e))?;
        if status.problems.is_empty() && status.shard_map.shards[0].replicas.len() as u64 == nodes {
            break;
        }
        ensure!(start.elapsed() < Duration::from_secs(30), "no healthy cluster: {:?}", status.problems);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for writers in WRITERS {
        let directory =
            create(&meta, InodeId::ROOT, &format!("d{writers}"), NewNode::Directory { slot: SlotId(0) }).await?;
        let meta = meta.clone();
        let call = move |n: u64| {
            let meta = meta.clone();
            async move { create(&meta, directory, &format!("file-{n:09}"), NewNode::File).await.map(|_| ()) }
        };
        results.add(&create_metric(nodes, writers), "ops/s", PANDO, rate(writers, time, call).await?);
    }
    meta.close().await;
    for server in servers.into_iter().rev() {
        server.shutdown().await.context("a server did not stop")?;
    }
    Ok(())
}

async fn create(meta: &Meta, parent: InodeId, name: &str, node: NewNode) -> Result<InodeId> {
    let name = FileName::new(name.as_bytes()).map_err(|e| anyhow!(e))?;
    let create = Create { parent, name, node, mode: 0o755, umask: 0, uid: 0, gid: 0 };
    Ok(meta.create(create).await.map_err(|e| anyhow!(e))?.inode)
}
