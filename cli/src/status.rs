//! `pando status [META]`: a metadata server's state.

use std::process::ExitCode;

use anyhow::anyhow;
use serde_json::json;

use crate::address::{Connection, Which};
use crate::{output, size};

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
    let nodes: Vec<_> = status.shard_map.nodes.iter().map(|n| json!({ "id": n.id.0, "address": n.address })).collect();
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
        "nodes": nodes,
    });
    let text = output::table(&[
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
    output::print(as_json, &json, &text)?;
    connection.close().await?;
    Ok(ExitCode::SUCCESS)
}
