//! What operators and mounts ask of the whole cluster: its map, its state, its health.
//!
//! Not here: files (`meta.rs`). What every shard knows a part of is asked of all and put together here.

use std::time::{Duration, Instant};

use futures::future::join_all;
use pando_types::request::{Collected, FsckReport, MountInfo, NodeChange, Request, Response, Status, Totals};
use pando_types::shard_map::ShardMap;
use pando_types::{FsError, NodeId, ShardId, SlotId};

use super::{Inner, Meta, ROOT_SLOT, unexpected};
use crate::retry::{self, RetryPolicy};

/// A check is repeated while shards disagree, which changes that are made meanwhile explain.
const FSCK_REPEATS: usize = 3;

impl Meta {
    /// How the cluster's data is stored.
    pub async fn mount_info(&self) -> Result<MountInfo, FsError> {
        match self.read(ROOT_SLOT, Request::Mount).await? {
            Response::Mount(info) => Ok(info),
            other => Err(unexpected(&other)),
        }
    }

    /// The shard map, fresh from a server.
    pub async fn shard_map(&self) -> Result<ShardMap, FsError> {
        match self.read(ROOT_SLOT, Request::ShardMap).await? {
            Response::ShardMap(map) => {
                self.0.router.adopt(map.clone());
                Ok(map)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// The state of the server that leads the root's shard.
    pub async fn status(&self) -> Result<Status, FsError> {
        match self.read(ROOT_SLOT, Request::Status).await? {
            Response::Status(status) => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    /// Changes what a node is for.
    pub async fn change_node(&self, node: NodeId, change: NodeChange) -> Result<(), FsError> {
        self.told(Request::ChangeNode { node, change }).await
    }

    /// Asks the leader of a shard to hand leadership to another node.
    pub async fn transfer_shard(&self, shard: ShardId, to: NodeId) -> Result<(), FsError> {
        self.told(Request::TransferShard { shard, to }).await
    }

    async fn told(&self, request: Request) -> Result<(), FsError> {
        match self.read(ROOT_SLOT, request).await? {
            Response::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Sums over the file system.
    pub async fn totals(&self) -> Result<Totals, FsError> {
        let deadline = Instant::now() + self.0.policy.deadline;
        let asked = self
            .0
            .router
            .shards()
            .into_iter()
            .map(|(shard, slot)| self.0.call(slot, Request::Totals { shard }, deadline));
        let mut sum = Totals::default();
        for answer in join_all(asked).await {
            match answer? {
                Response::Totals(totals) => {
                    (sum.inodes, sum.bytes) = (sum.inodes + totals.inodes, sum.bytes + totals.bytes);
                }
                other => return Err(unexpected(&other)),
            }
        }
        Ok(sum)
    }

    /// Has a shard hand half of what it has to a new one: the map in which that is written.
    pub async fn split_shard(&self, shard: ShardId) -> Result<ShardMap, FsError> {
        match self.read(ROOT_SLOT, Request::SplitShard { shard }).await? {
            Response::ShardMap(map) => Ok(map),
            other => Err(unexpected(&other)),
        }
    }

    /// Has a shard's leader move a replica from one node to another.
    pub async fn move_replica(&self, shard: ShardId, from: NodeId, to: NodeId) -> Result<(), FsError> {
        self.told(Request::MoveReplica { shard, from, to }).await
    }

    /// Checks the whole state, and that what shards say of each other agrees; may take `time_max`, longer than other calls.
    pub async fn fsck(&self, time_max: Duration) -> Result<FsckReport, FsError> {
        let deadline = Instant::now() + time_max;
        let mut report = self.fsck_shards(deadline).await?;
        // What changes while one shard is looked at and another is not yet is no damage.
        for _ in 0..FSCK_REPEATS {
            if report.names_of_others == report.links_from_others {
                return Ok(report);
            }
            report = self.fsck_shards(deadline).await?;
        }
        let (names, links) = (report.names_of_others.count, report.links_from_others.count);
        if report.names_of_others != report.links_from_others {
            report.problems.push(format!(
                "{names} names mean inodes of other shards, which know of {links}, or of others; if changes were made meanwhile, check again"
            ));
        }
        Ok(report)
    }

    async fn fsck_shards(&self, deadline: Instant) -> Result<FsckReport, FsError> {
        let mut sum = FsckReport::default();
        for (shard, slot) in self.shards_now().await? {
            let found = match self.0.call_long(slot, Request::Fsck { shard }, deadline).await? {
                Response::Fsck(report) => report,
                other => return Err(unexpected(&other)),
            };
            sum.inodes += found.inodes;
            sum.problems.extend(found.problems);
            sum.orphans += found.orphans;
            sum.dead_segments += found.dead_segments;
            sum.names_of_others = sum.names_of_others.and(found.names_of_others);
            sum.links_from_others = sum.links_from_others.and(found.links_from_others);
        }
        Ok(sum)
    }

    /// Collects dead and leaked segments now; may take `time_max`.
    pub async fn collect(&self, time_max: Duration) -> Result<Collected, FsError> {
        let deadline = Instant::now() + time_max;
        let mut sum = Collected::default();
        for (shard, slot) in self.shards_now().await? {
            let found = match self.0.call_long(slot, Request::Collect { shard }, deadline).await? {
                Response::Collected(collected) => collected,
                other => return Err(unexpected(&other)),
            };
            sum.orphans += found.orphans;
            sum.dead_segments += found.dead_segments;
            sum.leaked_segments += found.leaked_segments;
            sum.objects += found.objects;
        }
        Ok(sum)
    }

    /// The shards of the newest map.
    async fn shards_now(&self) -> Result<Vec<(ShardId, SlotId)>, FsError> {
        self.shard_map().await?;
        Ok(self.0.router.shards())
    }
}

impl Inner {
    async fn call_long(&self, slot: SlotId, request: Request, deadline: Instant) -> Result<Response, FsError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let policy = RetryPolicy { attempt: left, deadline: left, ..self.policy };
        let mut message = self.message(request);
        Ok(retry::call(&self.router, slot, &mut message, &policy, deadline).await?)
    }
}
