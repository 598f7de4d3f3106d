//! Inodes without a name that nobody holds: their records are removed through the log.

use std::time::Instant;

use pando_engine::read;
use pando_types::limits::INODES_PER_RECLAIM_MAX;
use pando_types::{Command, FsError, InodeId, Reply};

use super::Pace;
use crate::shard::Shard;

/// Removes these; says whether some are left, as the largest take several rounds.
pub(super) async fn reclaim(shard: &Shard, inodes: Vec<InodeId>, pace: Pace) -> Result<bool, FsError> {
    let mut left = false;
    for batch in inodes.chunks(INODES_PER_RECLAIM_MAX) {
        left |= reclaim_batch(shard, batch.to_vec(), pace).await? < batch.len() as u64;
    }
    Ok(left)
}

/// Removes every one that the state knows; returns how many.
pub(super) async fn collect_all(shard: &Shard, pace: Pace) -> Result<u64, FsError> {
    let mut removed = 0;
    loop {
        let free = shard.read(|view| read::free_orphans(view, shard.id, INODES_PER_RECLAIM_MAX)).await?;
        if free.is_empty() {
            return Ok(removed);
        }
        removed += reclaim_batch(shard, free, pace).await?;
    }
}

async fn reclaim_batch(shard: &Shard, inodes: Vec<InodeId>, pace: Pace) -> Result<u64, FsError> {
    let begun = Instant::now();
    let reply = shard.proposer.propose_own(Command::Reclaim { inodes }).await?;
    pace.pause(begun).await;
    match reply {
        Reply::Reclaimed { inodes } => Ok(inodes),
        other => Err(FsError::bug(format!("a reclaim was answered with {other:?}"))),
    }
}
