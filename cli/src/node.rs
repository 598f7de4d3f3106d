//! `pando node list|token|add|drain|undrain|remove`: the metadata servers of a cluster.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use pando_client::{NodeChange, NodeId, Status};
use serde_json::{Value, json};

use crate::address::{Connection, Which};
use crate::data::Data;
use crate::output;

/// Show and change the nodes of a cluster
#[derive(Debug, clap::Args)]
pub struct Node {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Show the nodes and what they hold
    List(Which),
    /// Print the token with which nodes join, from a data folder of this machine
    Token(Folder),
    /// Say how a further node is started
    Add(Folder),
    /// Move a node's replicas elsewhere, so that it can be switched off
    Drain(One),
    /// Let a drained node hold replicas again
    Undrain(One),
    /// Forget a node that will not come back; its replicas are rebuilt elsewhere
    Remove(One),
}

#[derive(Debug, clap::Args)]
struct One {
    /// The node's id, as `pando node list` shows it
    #[arg(value_name = "NODE")]
    node: u64,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, clap::Args)]
struct Folder {
    /// Folder of the data of a node of the cluster [default: ~/.local/share/pando]
    #[arg(long, value_name = "DIR", env = "PANDO_DATA")]
    data: Option<PathBuf>,
}

/// Runs the verb.
pub async fn run(args: &Node, as_json: bool) -> anyhow::Result<ExitCode> {
    match &args.verb {
        Verb::List(which) => list(which, as_json).await,
        Verb::Token(folder) => token(folder, as_json),
        Verb::Add(folder) => add(folder, as_json),
        Verb::Drain(one) => change(one, NodeChange::Drain, as_json).await,
        Verb::Undrain(one) => change(one, NodeChange::Undrain, as_json).await,
        Verb::Remove(one) => change(one, NodeChange::Remove, as_json).await,
    }
}

async fn list(which: &Which, as_json: bool) -> anyhow::Result<ExitCode> {
    let connection = Connection::open(which).await?;
    let status = connection.meta.status().await.map_err(|e| anyhow!(e.detail))?;
    output::print(as_json, &json!(as_values(&status)), &as_table(&status))?;
    connection.close().await?;
    Ok(ExitCode::SUCCESS)
}

/// Each node as JSON.
pub fn as_values(status: &Status) -> Vec<Value> {
    let map = &status.shard_map;
    let value = |node: &pando_client::NodeStatus| {
        let known = map.node(node.id);
        let labels = known.map(|n| &n.labels);
        json!({
            "id": node.id.0,
            "address": known.map(|n| &n.address),
            "up": node.replicas.is_some(),
            "draining": known.is_some_and(|n| n.draining),
            "replicas": node.replicas.as_ref().map(Vec::len),
            "leads": leads(status, node.id),
            "zone": labels.map(|l| &l.zone),
            "rack": labels.map(|l| &l.rack),
            "node": labels.map(|l| &l.node),
        })
    };
    status.nodes.iter().map(value).collect()
}

/// The nodes in columns.
pub fn as_table(status: &Status) -> String {
    let mut rows = vec![["node", "address", "state", "replicas", "leads", "zone/rack/machine"].map(str::to_owned)];
    for node in &status.nodes {
        let Some(known) = status.shard_map.node(node.id) else { continue };
        let state = match (&node.replicas, known.draining) {
            (None, _) => "down",
            (Some(_), true) => "draining",
            (Some(_), false) => "up",
        };
        let labels =
            [&known.labels.zone, &known.labels.rack, &known.labels.node].map(|l| if l.is_empty() { "-" } else { l });
        rows.push([
            node.id.to_string(),
            known.address.clone(),
            state.to_owned(),
            node.replicas.as_ref().map_or_else(|| "?".to_owned(), |r| r.len().to_string()),
            leads(status, node.id).to_string(),
            labels.join("/"),
        ]);
    }
    output::columns(&rows)
}

fn leads(status: &Status, node: NodeId) -> usize {
    status.shard_map.shards.iter().filter(|shard| shard.leader == Some(node)).count()
}

fn token_of(folder: &Folder) -> anyhow::Result<(Data, String)> {
    let data = Data::at(folder.data.as_deref())?;
    data.must_exist()?;
    match data.token()? {
        Some(token) => Ok((data, token)),
        None => bail!("{} has no token yet; start its server once with this version", data.folder().display()),
    }
}

fn token(folder: &Folder, as_json: bool) -> anyhow::Result<ExitCode> {
    let (_, token) = token_of(folder)?;
    output::print(as_json, &json!({ "token": token }), &token)?;
    Ok(ExitCode::SUCCESS)
}

fn add(folder: &Folder, as_json: bool) -> anyhow::Result<ExitCode> {
    let (data, _) = token_of(folder)?;
    let address = data.address()?.map(|address| address.server);
    let Some(address) = address else {
        bail!("no server runs on {}; start it, or ask on a node that runs", data.folder().display())
    };
    let text = format!(
        "on the new machine, put the token (`pando node token --data {}`) into a file that only its owner can read, then\n  \
         pando server --config FILE --join {address} --token-file TOKENFILE\n\
         where FILE says at least: data = \"/its/own/directory\", listen = \"ITS-ADDRESS:PORT\", allow_remote = true",
        data.folder().display()
    );
    output::print(as_json, &json!({ "join": address, "token_in": data.meta().join("TOKEN") }), &text)?;
    Ok(ExitCode::SUCCESS)
}

async fn change(one: &One, change: NodeChange, as_json: bool) -> anyhow::Result<ExitCode> {
    let connection = Connection::open(&one.which).await?;
    let changed = connection.meta.change_node(NodeId(one.node), change).await;
    connection.close().await?;
    changed.map_err(|e| anyhow!(e.detail))?;
    let (word, next) = match change {
        NodeChange::Drain => ("draining", "; `pando status` says when it can be switched off"),
        NodeChange::Undrain => ("taken back", ""),
        NodeChange::Remove => ("removed", "; its replicas are rebuilt where there is room"),
    };
    output::print(as_json, &json!({ "node": one.node, "state": word }), &format!("node {} is {word}{next}", one.node))?;
    Ok(ExitCode::SUCCESS)
}
