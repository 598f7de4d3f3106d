//! A metadata server: what is started in which order, and stopped in the reverse.
//!
//! Start: directory and lock, rpc (which answers that it is starting), membership, object store, state, log, replicas.
//! Nothing is written before the store has answered. Invariant: when [`Server::shutdown`] returns, the directory can be opened again.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use pando_engine::KvError;
use pando_engine::kv::rocks::RocksKv;
use pando_raft::{Host, Options, RaftError};
use pando_rpc::RpcError;
use pando_segments::{SegmentError, Store, StoreConfig};
use pando_types::limits::SESSION_TTL_MS;
use pando_types::request::MountInfo;
use pando_types::{FsError, NodeId};
use tokio::sync::Mutex;
use tracing::{info, warn};

use crate::cluster::Cluster;
use crate::config::{Config, ConfigError};
use crate::data_dir::{DataDir, DataDirError};
use crate::intents;
use crate::peers::Nodes;
use crate::placement::mover;
use crate::replicas::{self, Replicas};
use crate::service::Service;
use crate::shard::ShardError;
use crate::tasks::Tasks;

mod membership;

/// Tasks that are told to end have this long.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);
const CLOSE_POLL: Duration = Duration::from_millis(5);

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
    /// The cluster did not let this node in, or could not be asked.
    #[error("cannot join the cluster: {0}")]
    Join(String),
    /// The map could not be read or written.
    #[error("this node cannot take its place in the cluster: {0}")]
    Member(String),
    /// Listening.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// A part of this program failed.
    #[error("a part of the server failed: {0}; please report this")]
    Bug(String),
}

impl From<FsError> for ServerError {
    fn from(error: FsError) -> ServerError {
        ServerError::Member(error.detail)
    }
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
    replicas: Arc<Replicas>,
    directory: DataDir,
}

impl Server {
    /// Starts a server; it answers when this returns. Needs a tokio runtime.
    pub fn start(config: Config) -> BoxFuture<'static, Result<Server, ServerError>> {
        Box::pin(async move { Server::start_with_ttl(config, Duration::from_millis(SESSION_TTL_MS)).await })
    }

    async fn start_with_ttl(config: Config, session_ttl: Duration) -> Result<Server, ServerError> {
        config.validate()?;
        let mut directory = DataDir::open(&config.data, &config.object_store, config.s3_endpoint.as_deref())?;
        if directory.is_fresh() {
            config.validate_first()?;
        }
        let service = Arc::new(Service::default());
        let rpc = pando_rpc::Server::bind(&config.listen, config.allow_remote, service.clone()).await?;
        let address = config.advertise.clone().unwrap_or_else(|| rpc.address().to_string());
        let joined = match directory.is_fresh() && !config.join.is_empty() {
            true => Some(membership::join(&config, &mut directory, &address).await?),
            false => None,
        };
        let identity = directory.identity().clone();
        let mount = MountInfo {
            object_store: identity.object_store,
            s3_endpoint: identity.s3_endpoint,
            cluster: identity.cluster.clone(),
        };
        let store = open_store(&mount).await?;
        directory.keep()?;

        let (state, log, cache_bytes) = (directory.state(), directory.log(), config.cache_bytes);
        let kv = off_runtime(move || open_state(state, cache_bytes)).await?;
        let host = off_runtime(move || Ok(Host::open(&log, Options::default())?)).await?;
        let cluster = Arc::new(Cluster::new(identity.node, mount, directory.token().clone()));
        if let Some(map) = joined {
            cluster.adopt(map);
        }
        let nodes = Arc::new(Nodes::new(cluster.clone()));
        let replicas = Arc::new(Replicas {
            cluster,
            nodes,
            host,
            kv,
            store,
            session_ttl,
            running: RwLock::default(),
            changing: Mutex::default(),
        });
        if let Err(error) = membership::take_place(&replicas, &config, directory.is_founding(), &address).await {
            replicas.shutdown().await?;
            close(replicas).await;
            return Err(error);
        }
        directory.founded()?;
        service.serve(&replicas);
        let tasks = Tasks(vec![
            tokio::spawn(mover::run(replicas.clone())).abort_handle(),
            tokio::spawn(replicas::follow_splits(replicas.clone())).abort_handle(),
            tokio::spawn(intents::run(replicas.clone())).abort_handle(),
            tokio::spawn(mover::ask_for_map(replicas.clone())).abort_handle(),
            tokio::spawn(membership::announce(replicas.clone(), address, config.labels)).abort_handle(),
        ]);
        info!(address = %rpc.address(), cluster = identity.cluster, node = %identity.node, "metadata server started");
        Ok(Server { rpc, tasks, replicas, directory })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.rpc.address()
    }

    /// The id of its cluster.
    pub fn cluster(&self) -> &str {
        self.replicas.cluster.id()
    }

    /// Which node of the cluster it is.
    pub fn node(&self) -> NodeId {
        self.replicas.cluster.node
    }

    /// The way to it for clients in this process.
    pub fn local(&self) -> pando_rpc::Local {
        self.rpc.local()
    }

    /// Stops: no more requests, those under way end, the state is made durable. Each step has a deadline.
    pub fn shutdown(self) -> BoxFuture<'static, Result<(), ServerError>> {
        Box::pin(async move {
            let Server { rpc, tasks, replicas, directory } = self;
            rpc.shutdown().await;
            drop(tasks);
            replicas.shutdown().await?;
            close(replicas).await;
            drop(directory);
            Ok(())
        })
    }
}

/// Drops the databases, once the tasks that were told to end have let go of them.
async fn close(mut replicas: Arc<Replicas>) {
    let deadline = Instant::now() + CLOSE_TIME_MAX;
    while let Err(shared) = Arc::try_unwrap(replicas) {
        if Instant::now() >= deadline {
            warn!("a part of the server did not end; its databases stay open until the process ends");
            return;
        }
        replicas = shared;
        tokio::time::sleep(CLOSE_POLL).await;
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
