//! Which cluster a verb talks to: an address given, or the one whose data lies in a folder of this machine.
//!
//! Invariants: a server is started here only for a folder that no running server uses, and it is stopped before the verb
//! ends; an address left by a server that was killed is never taken for that of another one that has its port now.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use pando_client::{Meta, RetryPolicy};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::data::Data;
#[cfg(feature = "server")]
use crate::data::{Address, Published};

/// A server on this machine accepts within this, or is not there.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);

/// How a verb is told which cluster it is for.
#[derive(Debug, clap::Args)]
pub struct Which {
    /// Address of a metadata server, HOST:PORT; without it, the one that runs on --data
    #[arg(value_name = "META", env = "PANDO_META")]
    meta: Option<String>,
    /// Folder of the data [default: ~/.local/share/pando]
    #[arg(long, value_name = "DIR", env = "PANDO_DATA")]
    data: Option<PathBuf>,
}

/// A connection, and what must be stopped after it.
pub struct Connection {
    /// To the cluster.
    pub meta: Meta,
    /// The address it goes to.
    pub address: String,
    #[cfg(feature = "server")]
    server: Option<pando_metaserver::Server>,
}

impl Connection {
    /// To the running server.
    pub async fn open(which: &Which) -> anyhow::Result<Connection> {
        let data = Data::at(which.data.as_deref())?;
        let running = Connection::running(which, &data).await?;
        running
            .ok_or_else(|| anyhow!("nothing runs on {0}; start it with `pando up --data {0}`", data.folder().display()))
    }

    /// To the running server; if none runs on the folder, to one that is started for this verb alone.
    pub async fn open_or_start(which: &Which) -> anyhow::Result<Connection> {
        let data = Data::at(which.data.as_deref())?;
        match Connection::running(which, &data).await? {
            Some(connection) => Ok(connection),
            None => Connection::start(&data).await,
        }
    }

    async fn running(which: &Which, data: &Data) -> anyhow::Result<Option<Connection>> {
        if let Some(address) = &which.meta {
            return Ok(Some(Connection::to(address.clone()).await?));
        }
        let Some(address) = data.address()? else { return Ok(None) };
        if !matches!(timeout(CONNECT_TIME_MAX, TcpStream::connect(&address.server)).await, Ok(Ok(_))) {
            return Ok(None);
        }
        let connection = Connection::to(address.server).await?;
        let cluster = connection.meta.mount_info().await.map_err(|e| anyhow!(e.detail))?.cluster;
        Ok((cluster == address.cluster).then_some(connection))
    }

    async fn to(address: String) -> anyhow::Result<Connection> {
        let meta = Meta::connect(&address, RetryPolicy::default()).await;
        let meta = meta.map_err(|e| anyhow!(e.detail))?;
        #[cfg(feature = "server")]
        return Ok(Connection { meta, address, server: None });
        #[cfg(not(feature = "server"))]
        Ok(Connection { meta, address })
    }

    #[cfg(feature = "server")]
    async fn start(data: &Data) -> anyhow::Result<Connection> {
        data.must_exist()?;
        let config = crate::server::Settings::default().for_data(data)?;
        let server = pando_metaserver::Server::start(config).await?;
        match Connection::to(server.address().to_string()).await {
            Ok(connection) => Ok(Connection { server: Some(server), ..connection }),
            Err(error) => {
                server.shutdown().await?;
                Err(error)
            }
        }
    }

    #[cfg(not(feature = "server"))]
    async fn start(data: &Data) -> anyhow::Result<Connection> {
        anyhow::bail!(
            "nothing runs on {}, and this pando is built without a server; give the address of one",
            data.folder().display()
        )
    }

    /// Says goodbye, and stops what was started.
    pub async fn close(self) -> anyhow::Result<()> {
        self.meta.close().await;
        #[cfg(feature = "server")]
        if let Some(server) = self.server {
            server.shutdown().await?;
        }
        Ok(())
    }
}

/// Lets other processes find a server that has just been started, until the value is dropped.
#[cfg(feature = "server")]
pub fn publish(data: &Data, server: &str, cluster: &str) -> anyhow::Result<Published> {
    data.publish(&Address { server: server.to_owned(), cluster: cluster.to_owned() })
}
