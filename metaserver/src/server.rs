//! A metadata server: what is started in which order, and stopped in the reverse.
//!
//! Start: directory and lock, object store, state, log, shard, collectors, rpc. Nothing is written before the store has
//! answered. Invariant: when [`Server::shutdown`] returns, the directory can be opened again.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use pando_engine::KvError;
use pando_engine::kv::rocks::RocksKv;
use pando_raft::{Host, Options, RaftError};
use pando_rpc::RpcError;
use pando_segments::{SegmentError, Store, StoreConfig};
use pando_types::limits::SESSION_TTL_MS;
use pando_types::request::MountInfo;
use pando_types::shard_map::ShardMap;
use pando_types::{FsError, ShardId};
use tokio::task::{AbortHandle, JoinHandle};
use tracing::{info, warn};

use crate::config::{Config, ConfigError};
use crate::data_dir::{DataDir, DataDirError};
use crate::gc::Collector;
use crate::service::Service;
use crate::sessions;
use crate::shard::{Running, Shard, ShardError};

/// The proposals still queued at shutdown get this long.
const PROPOSALS_GRACE: Duration = Duration::from_secs(5);

/// A server could not be started or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data directory.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The object store.
    #[error(transparent)]
    Store(#[from] SegmentError),
    /// The state database.
    #[error("the state database in {dir} cannot be opened: {source}")]
    State {
        /// Its directory.
        dir: PathBuf,
        /// Why.
        source: KvError,
    },
    /// The log.
    #[error(transparent)]
    Raft(#[from] RaftError),
    /// The shard.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// Listening.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// A part of this program failed.
    #[error("a part of the server failed: {0}; please report this")]
    Bug(String),
}

impl From<ServerError> for FsError {
    fn from(error: ServerError) -> FsError {
        FsError::unavailable(error.to_string())
    }
}

/// A running server.
pub struct Server {
    rpc: pando_rpc::Server,
    tasks: Tasks,
    proposing: JoinHandle<()>,
    shard: Arc<Shard>,
    host: Host,
    directory: DataDir,
}

/// Background tasks; they end when this is dropped.
struct Tasks(Vec<AbortHandle>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

impl Server {
    /// Starts a server; it answers when this returns. Needs a tokio runtime.
    pub fn start(config: Config) -> BoxFuture<'static, Result<Server, ServerError>> {
        Box::pin(async move { Server::start_with_ttl(config, Duration::from_millis(SESSION_TTL_MS)).await })
    }

    async fn start_with_ttl(config: Config, ttl: Duration) -> Result<Server, ServerError> {
        config.validate()?;
        let mut directory = DataDir::open(&config.data, &config.object_store, config.s3_endpoint.as_deref())?;
        let identity = directory.identity().clone();
        let mount = MountInfo {
            object_store: identity.object_store.clone(),
            s3_endpoint: identity.s3_endpoint.clone(),
            cluster: identity.cluster.clone(),
        };
        let store = open_store(&mount).await?;
        directory.keep()?;

        let (state, log, cache_bytes) = (directory.state(), directory.log(), config.cache_bytes);
        let kv = off_runtime(move || open_state(state, cache_bytes)).await?;
        let host = off_runtime(move || Ok(Host::open(&log, Options::default())?)).await?;
        let address = config.advertise.clone().unwrap_or_else(|| config.listen.clone());
        let Running { shard, effects, proposing } =
            Shard::start(&host, ShardId(0), identity.node, &address, kv).await?;

        let collector = Arc::new(Collector::new(shard.clone(), store));
        let tasks = Tasks(vec![
            tokio::spawn(sessions::expire(shard.clone(), ttl)).abort_handle(),
            tokio::spawn(collector.clone().run(effects)).abort_handle(),
            tokio::spawn(collector.clone().run_leaks()).abort_handle(),
        ]);
        let service = Arc::new(Service::new(shard.clone(), collector, mount));
        let rpc = pando_rpc::Server::bind(&config.listen, config.allow_remote, service.clone()).await?;
        let address = config.advertise.unwrap_or_else(|| rpc.address().to_string());
        service.serve_by(ShardMap::single(identity.node, address));
        info!(address = %rpc.address(), cluster = identity.cluster, "metadata server started");
        Ok(Server { rpc, tasks, proposing, shard, host, directory })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.rpc.address()
    }

    /// The way to it for clients in this process.
    pub fn local(&self) -> pando_rpc::Local {
        self.rpc.local()
    }

    /// Stops: no more requests, those under way end, the state is made durable. Each step has a deadline.
    pub fn shutdown(self) -> BoxFuture<'static, Result<(), ServerError>> {
        Box::pin(async move {
            let Server { rpc, tasks, proposing, shard, host, directory } = self;
            rpc.shutdown().await;
            drop(tasks);
            drop(shard);
            if tokio::time::timeout(PROPOSALS_GRACE, proposing).await.is_err() {
                warn!("changes were still under way when the server stopped");
            }
            host.shutdown().await?;
            drop(directory);
            Ok(())
        })
    }
}

async fn open_store(mount: &MountInfo) -> Result<Store, SegmentError> {
    let store = Store::open(&StoreConfig {
        url: mount.object_store.clone(),
        s3_endpoint: mount.s3_endpoint.clone(),
        cluster: mount.cluster.clone(),
    })
    .await?;
    store.check().await?;
    Ok(store)
}

fn open_state(dir: PathBuf, cache_bytes: usize) -> Result<Arc<RocksKv>, ServerError> {
    RocksKv::open(&dir, cache_bytes).map(Arc::new).map_err(|source| ServerError::State { dir, source })
}

/// Databases are opened on a thread that may wait for the disk.
async fn off_runtime<T: Send + 'static>(
    open: impl FnOnce() -> Result<T, ServerError> + Send + 'static,
) -> Result<T, ServerError> {
    tokio::task::spawn_blocking(open).await.map_err(|e| ServerError::Bug(e.to_string()))?
}

#[cfg(test)]
#[path = "server/server_test.rs"]
mod tests;
