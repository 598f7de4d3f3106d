//! `pando server --config FILE`: a metadata server alone; and the settings it shares with `pando up`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use pando_metaserver::data_dir::recorded;
use pando_metaserver::{Config, Server as Running};
use serde_json::json;

use crate::address::publish;
use crate::data::Data;
use crate::stop::Stop;
use crate::{log, output, size};

/// Any free port: who needs a certain one says so.
const UP_LISTEN: &str = "127.0.0.1:0";

/// Run a metadata server
#[derive(Debug, clap::Args)]
pub struct Server {
    /// Settings, as TOML; flags and environment variables go before them
    #[arg(long, value_name = "FILE", env = "PANDO_CONFIG")]
    config: PathBuf,
    /// Directory of the metadata
    #[arg(long, value_name = "DIR", env = "PANDO_DATA")]
    data: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// A server's settings as flags; what is not given is left as it is.
#[derive(Debug, Default, clap::Args)]
pub struct Settings {
    /// HOST:PORT to listen on; port 0 is any free one
    #[arg(long, value_name = "ADDRESS", env = "PANDO_LISTEN")]
    listen: Option<String>,
    /// HOST:PORT that clients are told, if it is another one
    #[arg(long, value_name = "ADDRESS", env = "PANDO_ADVERTISE")]
    advertise: Option<String>,
    /// Let other machines connect; connections are not protected yet
    #[arg(long, env = "PANDO_ALLOW_REMOTE")]
    allow_remote: bool,
    /// Where file bytes are stored: s3://BUCKET[/PREFIX] or file:///DIRECTORY
    #[arg(long, value_name = "URL", env = "PANDO_OBJECT_STORE")]
    object_store: Option<String>,
    /// Endpoint of an S3-compatible store; credentials come from AWS_* variables or ~/.aws/credentials
    #[arg(long, value_name = "URL", env = "PANDO_S3_ENDPOINT")]
    s3_endpoint: Option<String>,
    /// Memory for the state database, like 256M
    #[arg(long, value_name = "SIZE", value_parser = size::parse, env = "PANDO_CACHE_MEMORY")]
    cache_memory: Option<u64>,
    /// HOST:PORT of members of a cluster to join, with commas between
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', env = "PANDO_JOIN")]
    join: Vec<String>,
    /// File with the token of the cluster to join
    #[arg(long, value_name = "FILE", env = "PANDO_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Zone of this node: replicas are spread over zones, racks and machines
    #[arg(long, value_name = "NAME", env = "PANDO_ZONE")]
    zone: Option<String>,
    /// Rack of this node
    #[arg(long, value_name = "NAME", env = "PANDO_RACK")]
    rack: Option<String>,
    /// Machine of this node, where several run on one
    #[arg(long, value_name = "NAME", env = "PANDO_MACHINE")]
    machine: Option<String>,
    /// Replicas of each shard of a new cluster, once it has so many nodes: 1, 3, 5 or 7
    #[arg(long, value_name = "COUNT", env = "PANDO_REPLICAS")]
    replicas: Option<u8>,
}

impl Settings {
    /// For `up` and for verbs on data at rest: what the first start recorded, else a local store in the folder.
    pub fn for_data(&self, data: &Data) -> anyhow::Result<Config> {
        let (url, endpoint) = match recorded(&data.meta())? {
            Some(identity) => (identity.object_store, identity.s3_endpoint),
            // A node that joins learns where the cluster's files are.
            None if !self.join.is_empty() => (String::new(), None),
            None => (Settings::local_store(data)?, None),
        };
        let mut config = Config::new(data.meta(), url);
        config.s3_endpoint = endpoint;
        config.listen = UP_LISTEN.into();
        self.apply(&mut config)?;
        Ok(config)
    }

    /// The address of the local store in a data folder.
    pub fn local_store(data: &Data) -> anyhow::Result<String> {
        let path = data.objects();
        let text = path
            .to_str()
            .with_context(|| format!("{} is not UTF-8; name another folder with --data", path.display()))?;
        Ok(format!("file://{text}"))
    }

    fn apply(&self, config: &mut Config) -> anyhow::Result<()> {
        if let Some(listen) = &self.listen {
            config.listen.clone_from(listen);
        }
        if self.advertise.is_some() {
            config.advertise.clone_from(&self.advertise);
        }
        config.allow_remote |= self.allow_remote;
        if let Some(url) = &self.object_store {
            config.object_store.clone_from(url);
            config.s3_endpoint = None;
        }
        if self.s3_endpoint.is_some() {
            config.s3_endpoint.clone_from(&self.s3_endpoint);
        }
        if let Some(bytes) = self.cache_memory {
            config.cache_bytes =
                usize::try_from(bytes).context("--cache-memory is more than this machine can address")?;
        }
        if !self.join.is_empty() {
            config.join.clone_from(&self.join);
        }
        if self.token_file.is_some() {
            config.token_file.clone_from(&self.token_file);
        }
        let labels = &mut config.labels;
        for (given, label) in
            [(&self.zone, &mut labels.zone), (&self.rack, &mut labels.rack), (&self.machine, &mut labels.node)]
        {
            if let Some(given) = given {
                label.clone_from(given);
            }
        }
        config.replicas = self.replicas.unwrap_or(config.replicas);
        Ok(config.validate()?)
    }
}

/// Runs the verb until it is told to stop.
pub async fn run(args: &Server, as_json: bool) -> anyhow::Result<ExitCode> {
    let mut config = Config::read(&args.config)?;
    if let Some(data) = &args.data {
        config.data.clone_from(data);
    }
    args.settings.apply(&mut config)?;
    let mut stop = Stop::listen()?;
    let data = Data::at(Some(&config.data))?;
    let server = Running::start(config).await?;
    let served = async {
        let address = server.address().to_string();
        let _published = publish(&data, &address, server.cluster())?;
        let text =
            format!("pando server is ready at {address}, data in {}; stop it with Ctrl-C", data.folder().display());
        let json = json!({ "ready": true, "address": address, "node": server.node().0, "data": data.folder().to_string_lossy(), "pid": std::process::id() });
        log::serving();
        output::print(as_json, &json, &text)?;
        stop.wait().await;
        anyhow::Ok(())
    };
    let served = served.await;
    let stopped = server.shutdown().await;
    served?;
    stopped?;
    Ok(ExitCode::SUCCESS)
}
