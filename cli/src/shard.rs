//! `pando shard list|split|move|transfer`: the Raft groups of a cluster.

use std::process::ExitCode;

use anyhow::anyhow;
use pando_client::{NodeId, Replica, ShardId, Status};
use serde_json::{Value, json};

use crate::address::{Connection, Which};
use crate::output;

/// Show the shards of a cluster, split them, move their replicas, choose who leads them
#[derive(Debug, clap::Args)]
pub struct Shard {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Show each shard with its replicas
    List(Which),
    /// Hand about half of what a shard has to a new shard on the same nodes
    Split(Split),
    /// Move a replica of a shard from one node to another
    Move(Move),
    /// Let another node lead a shard
    Transfer(Transfer),
}

#[derive(Debug, clap::Args)]
struct Split {
    /// The shard's id
    #[arg(value_name = "SHARD")]
    shard: u32,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, clap::Args)]
struct Move {
    /// The shard's id
    #[arg(value_name = "SHARD")]
    shard: u32,
    /// The node that has the replica
    #[arg(value_name = "FROM")]
    from: u64,
    /// The node that shall have it
    #[arg(value_name = "TO")]
    to: u64,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, clap::Args)]
struct Transfer {
    /// The shard's id
    #[arg(value_name = "SHARD")]
    shard: u32,
    /// The node that shall lead it
    #[arg(value_name = "NODE")]
    to: u64,
    #[command(flatten)]
    which: Which,
}

/// Runs the verb.
pub async fn run(args: &Shard, as_json: bool) -> anyhow::Result<ExitCode> {
    match &args.verb {
        Verb::List(which) => list(which, as_json).await,
        Verb::Split(args) => split(args, as_json).await,
        Verb::Move(args) => move_replica(args, as_json).await,
        Verb::Transfer(transfer) => hand_over(transfer, as_json).await,
    }
}

async fn list(which: &Which, as_json: bool) -> anyhow::Result<ExitCode> {
    let connection = Connection::open(which).await?;
    let status = connection.meta.status().await.map_err(|e| anyhow!(e.detail))?;
    output::print(as_json, &json!(values(&status)), &table(&status))?;
    connection.close().await?;
    Ok(ExitCode::SUCCESS)
}

/// The replicas of a shard that answer, each with its node.
fn replicas(status: &Status, shard: ShardId) -> Vec<(NodeId, &Replica)> {
    let of = |node: &'_ pando_client::NodeStatus| -> Option<(NodeId, usize)> {
        Some((node.id, node.replicas.as_ref()?.iter().position(|r| r.shard == shard)?))
    };
    let found = status.nodes.iter().filter_map(|node| {
        let (id, at) = of(node)?;
        Some((id, &node.replicas.as_ref()?[at]))
    });
    found.collect()
}

fn values(status: &Status) -> Vec<Value> {
    let value = |shard: &pando_client::Shard| {
        let replicas: Vec<_> = replicas(status, shard.id)
            .into_iter()
            .map(|(node, r)| json!({ "node": node.0, "term": r.term, "applied": r.applied }))
            .collect();
        let members: Vec<u64> = shard.replicas.iter().map(|id| id.0).collect();
        json!({ "id": shard.id.0, "leader": shard.leader.map(|id| id.0), "members": members, "replicas": replicas })
    };
    status.shard_map.shards.iter().map(value).collect()
}

fn table(status: &Status) -> String {
    let mut rows = vec![["shard", "leader", "replica on node", "term", "applied"].map(str::to_owned)];
    for shard in &status.shard_map.shards {
        let leader = shard.leader.map_or_else(|| "-".to_owned(), |id| id.to_string());
        let present = replicas(status, shard.id);
        for node in &shard.replicas {
            let replica = present.iter().find(|(id, _)| id == node).map(|(_, replica)| replica);
            let [term, applied] = match replica {
                Some(replica) => [replica.term, replica.applied].map(|n| n.to_string()),
                None => ["down", "-"].map(str::to_owned),
            };
            rows.push([shard.id.to_string(), leader.clone(), node.to_string(), term, applied]);
        }
    }
    output::columns(&rows)
}

async fn split(args: &Split, as_json: bool) -> anyhow::Result<ExitCode> {
    let connection = Connection::open(&args.which).await?;
    let split = connection.meta.split_shard(ShardId(args.shard)).await;
    connection.close().await?;
    let map = split.map_err(|e| anyhow!(e.detail))?;
    let new = map.shards.last().map_or(0, |shard| shard.id.0);
    let json = json!({ "shard": args.shard, "new": new });
    output::print(as_json, &json, &format!("shard {} hands half of what it has to shard {new}", args.shard))?;
    Ok(ExitCode::SUCCESS)
}

async fn move_replica(args: &Move, as_json: bool) -> anyhow::Result<ExitCode> {
    let connection = Connection::open(&args.which).await?;
    let asked = connection.meta.move_replica(ShardId(args.shard), NodeId(args.from), NodeId(args.to)).await;
    connection.close().await?;
    asked.map_err(|e| anyhow!(e.detail))?;
    let json = json!({ "shard": args.shard, "from": args.from, "to": args.to });
    let text = format!("a replica of shard {} is being moved from node {} to node {}", args.shard, args.from, args.to);
    output::print(as_json, &json, &text)?;
    Ok(ExitCode::SUCCESS)
}

async fn hand_over(transfer: &Transfer, as_json: bool) -> anyhow::Result<ExitCode> {
    let connection = Connection::open(&transfer.which).await?;
    let asked = connection.meta.transfer_shard(ShardId(transfer.shard), NodeId(transfer.to)).await;
    connection.close().await?;
    asked.map_err(|e| anyhow!(e.detail))?;
    let json = json!({ "shard": transfer.shard, "to": transfer.to });
    output::print(as_json, &json, &format!("shard {} is being handed to node {}", transfer.shard, transfer.to))?;
    Ok(ExitCode::SUCCESS)
}
