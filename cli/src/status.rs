//! `pando status [META]`: a cluster's state and health in one screen.

use std::process::ExitCode;

use anyhow::anyhow;
use serde_json::json;

use crate::address::{Connection, Which};
use crate::{node, output, size};

/// Show the state of a running cluster
#[derive(Debug, clap::Args)]
pub struct Status {
    #[command(flatten)]
    which: Which,
}

/// Runs the verb.
pub async fn run(args: &Status, as_json: bool) -> anyhow::Result<ExitCode> {
    let connection = Connection::open(&args.which).await?;
    let status = connection.meta.status().await.map_err(|e| anyhow!(e.detail))?;
    let info = connection.meta.mount_info().await.map_err(|e| anyhow!(e.detail))?;
    let json = json!({
        "address": connection.address,
        "version": status.version,
        "cluster": info.cluster,
        "object_store": info.object_store,
        "inodes": status.totals.inodes,
        "bytes": status.totals.bytes,
        "sessions": status.sessions,
        "applied": status.applied,
        "map_epoch": status.shard_map.epoch.0,
        "shards": status.shard_map.shards.len(),
        "leader": status.leader.0,
        "nodes": node::as_values(&status),
        "health": if status.problems.is_empty() { "ok" } else { "problems" },
        "problems": status.problems,
    });
    let health =
        if status.problems.is_empty() { "ok".to_owned() } else { format!("{} problems", status.problems.len()) };
    let mut text = output::table(&[
        ("health", health),
        ("address", connection.address.clone()),
        ("version", status.version.clone()),
        ("cluster", info.cluster.clone()),
        ("object store", info.object_store.clone()),
        ("inodes", status.totals.inodes.to_string()),
        ("data", size::show(status.totals.bytes)),
        ("sessions", status.sessions.to_string()),
        ("log applied", status.applied.to_string()),
        ("nodes", status.shard_map.nodes.len().to_string()),
        ("shards", status.shard_map.shards.len().to_string()),
    ]);
    if status.nodes.len() > 1 {
        text.push('\n');
        text.push_str(&node::as_table(&status));
    }
    for problem in &status.problems {
        text.push_str(&format!("! {problem}\n"));
    }
    output::print(as_json, &json, &text)?;
    connection.close().await?;
    Ok(ExitCode::SUCCESS)
}
