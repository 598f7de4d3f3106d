//! Linearizable reads: the leader's fence, then a view.
//!
//! Not here: what is read (`pando_engine::read`). Invariant: nothing is read without a fence before it.

use std::time::Duration;

use pando_engine::keys::slots::Slots;
use pando_engine::keys::{op_result, session};
use pando_engine::kv::rocks::RocksView;
use pando_engine::{Corrupt, Kv, Locks, ReadError, View};
use pando_raft::ProposeError;
use pando_types::{Errno, ErrorKind, FsError, OpId, ShardId, SlotId};
use tracing::error;

use crate::shard::Shard;

/// A read waits so long for a change of several shards; then its client asks again.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

impl Shard {
    /// Reads a view that contains every change acknowledged before this call. Short reads only: it runs on the caller's task.
    pub(crate) async fn read<T>(
        &self,
        read: impl FnOnce(&RocksView<'_>) -> Result<T, ReadError>,
    ) -> Result<T, FsError> {
        self.fence().await?;
        read(&self.kv.view()).map_err(|e| self.failed(e))
    }

    /// The same of a slot of the shard. Waits while a change of several shards that is under way has `locked` what is read:
    /// elsewhere it may be seen already.
    pub(crate) async fn read_of<T>(
        &self,
        slot: SlotId,
        locked: impl Fn(&Locks) -> bool,
        read: impl FnOnce(&RocksView<'_>, &Slots) -> Result<T, ReadError>,
    ) -> Result<T, FsError> {
        loop {
            self.fence().await?;
            // Before the view: who sees no lock sees what came of it.
            if !locked(&self.territory().locks) {
                break;
            }
            if !self.wait_for(|territory| !locked(&territory.locks), LOCK_PATIENCE).await {
                return Err(FsError::unavailable("a change of these files is under way"));
            }
        }
        let view = self.kv.view();
        // After the view: what was handed over by then is not read.
        let territory = self.territory();
        if !territory.slots.has(slot) {
            return Err(FsError::unavailable("these files are being handed to another shard"));
        }
        read(&view, &territory.slots).map_err(|e| self.failed(e))
    }

    /// The same on a thread of its own, for reads of seconds.
    pub(crate) async fn read_long<T: Send + 'static>(
        &self,
        read: impl FnOnce(&RocksView<'_>) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, FsError> {
        self.fence().await?;
        let kv = self.kv.clone();
        let result = tokio::task::spawn_blocking(move || read(&kv.view())).await;
        result.map_err(|_| FsError::bug("a long read failed"))?.map_err(|e| self.failed(e))
    }

    async fn fence(&self) -> Result<(), FsError> {
        self.group.read_fence().await.map_err(|failure| match failure {
            ProposeError::TooLarge { .. } => FsError::bug(failure.to_string()),
            ProposeError::NotLeader { .. } | ProposeError::Unavailable(_) | ProposeError::Fatal(_) => {
                FsError::unavailable(failure.to_string())
            }
        })
    }

    fn failed(&self, failure: ReadError) -> FsError {
        let detail = failure.to_string();
        match failure {
            ReadError::Refused(errno) => return FsError::user(errno),
            ReadError::Corrupt(_) => error!(shard = %self.id, detail, "a read found damage"),
            ReadError::Kv(_) => error!(shard = %self.id, detail, "a read failed"),
        }
        FsError { kind: ErrorKind::Corrupt, errno: Errno::EIO, detail }
    }
}

/// Whether the operation is certainly new: its session is open and no reply to it is recorded.
pub(crate) fn is_new(view: &impl View, shard: ShardId, op: OpId) -> Result<bool, ReadError> {
    let Some(value) = view.get(&session::key(shard, op.session))? else { return Ok(false) };
    if op.sequence < session::Session::decode(&value)?.acked {
        return Ok(false);
    }
    let record = op_result::record_of(op.sequence);
    let Some(value) = view.get(&op_result::key(shard, op.session, record))? else { return Ok(true) };
    let results = op_result::OpResults::decode(&value).map_err(|e: Corrupt| ReadError::from(e))?;
    Ok(!results.0.contains_key(&op_result::place_of(op.sequence)))
}
