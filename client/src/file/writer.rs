//! Taking written bytes, and storing full blocks while the writer goes on.
//!
//! Not here: committing (`flush.rs`). Invariants: a write is acknowledged after one copy, without a wait while there is
//! memory; memory is granted before it is used; a block is stored by one upload at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pando_segments::Writer;
use pando_types::limits::FILE_BYTES_MAX;
use pando_types::{Errno, FsError, SegmentId};

use crate::file::handle::{Handle, HandleId};
use crate::file::open_file::OpenFile;
use crate::file::sealed::{Block, Place, Progress};
use crate::file::{Files, now};
use crate::memory::budget::{Grant, Purpose};

/// How long a write waits for memory: several times what a slow store needs for a budget full of others' bytes.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(120);
/// Bytes that one step of a large write takes: small beside any budget.
const STEP_BYTES: usize = 1 << 20;

/// FALLOC_FL_KEEP_SIZE.
const KEEP_SIZE: i32 = 0x01;
/// FALLOC_FL_PUNCH_HOLE, which always comes with KEEP_SIZE.
const PUNCH_HOLE: i32 = 0x02 | KEEP_SIZE;
/// FALLOC_FL_ZERO_RANGE.
const ZERO_RANGE: i32 = 0x10;
/// FALLOC_FL_ZERO_RANGE with FALLOC_FL_KEEP_SIZE.
const ZERO_RANGE_KEEP_SIZE: i32 = ZERO_RANGE | KEEP_SIZE;

/// What a try to write came to.
enum Tried {
    Done(Vec<Arc<Block>>),
    /// This much memory is missing.
    NeedsMemory(u64),
    /// The file has so many pieces that they must be committed first.
    NeedsCommit,
}

impl Files {
    /// See [`crate::Client::try_write`].
    pub(crate) fn try_write(
        self: &Arc<Self>,
        id: HandleId,
        offset: u64,
        data: &[u8],
        kill_privileges: bool,
    ) -> Option<Result<usize, FsError>> {
        if data.len() > STEP_BYTES {
            return None;
        }
        let tried = self.writable(id).and_then(|handle| {
            let tried = self.try_step(&handle, offset, data, kill_privileges, Grant::none(&self.budget))?;
            Ok((handle, tried))
        });
        match tried {
            Ok((handle, Tried::Done(sealed))) => {
                self.store_blocks(&handle.file, sealed);
                Some(Ok(data.len()))
            }
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// See [`crate::Client::write`].
    pub(crate) async fn write(
        self: &Arc<Self>,
        id: HandleId,
        offset: u64,
        data: &[u8],
        kill_privileges: bool,
    ) -> Result<usize, FsError> {
        let handle = self.writable(id)?;
        let mut done = 0;
        while done < data.len() {
            let step = &data[done..data.len().min(done + STEP_BYTES)];
            match self.write_step(&handle, offset + done as u64, step, kill_privileges).await {
                Ok(()) => done += step.len(),
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    async fn write_step(
        self: &Arc<Self>,
        handle: &Handle,
        offset: u64,
        data: &[u8],
        kill_privileges: bool,
    ) -> Result<(), FsError> {
        let mut grant = Grant::none(&self.budget);
        loop {
            match self.try_step(handle, offset, data, kill_privileges, grant)? {
                Tried::Done(sealed) => {
                    self.store_blocks(&handle.file, sealed);
                    return Ok(());
                }
                Tried::NeedsMemory(bytes) => {
                    let taken = self.budget.take(Purpose::Keep, bytes, MEMORY_WAIT_MAX).await;
                    grant = taken.map_err(|e| FsError::unavailable(e.to_string()))?;
                }
                Tried::NeedsCommit => {
                    grant = Grant::none(&self.budget);
                    handle.telling(self.commit(&handle.file).await)?;
                }
            }
        }
    }

    /// One copy under the state's lock, with the memory brought along or taken without waiting.
    fn try_step(
        &self,
        handle: &Handle,
        offset: u64,
        data: &[u8],
        kill_privileges: bool,
        mut grant: Grant,
    ) -> Result<Tried, FsError> {
        handle.tell()?;
        let length = data.len() as u64;
        handle.file.with(|state| {
            if state.lost {
                return Err(handle.file.last_failure());
            }
            if state.is_overcrowded() {
                return Ok(Tried::NeedsCommit);
            }
            let offset = if handle.mode.append { state.size() } else { offset };
            let end = offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX);
            let end = end.ok_or(FsError::user(Errno::EFBIG))?;
            if length == 0 {
                return Ok(Tried::Done(Vec::new()));
            }
            let need = state.need(offset, length);
            if grant.bytes() < need {
                match self.budget.try_take(Purpose::Keep, need - grant.bytes()) {
                    Some(more) => grant.merge(more),
                    None => return Ok(Tried::NeedsMemory(need)),
                }
            }
            state.write(offset, data, grant.split(need), now(), kill_privileges);
            state.touch(Instant::now());
            Ok(Tried::Done(state.seal_full(offset, end)))
        })
    }

    /// See [`crate::Client::fallocate`].
    pub(crate) async fn fallocate(
        self: &Arc<Self>,
        id: HandleId,
        mode: i32,
        offset: u64,
        length: u64,
    ) -> Result<(), FsError> {
        let handle = self.writable(id)?;
        handle.tell()?;
        let end = offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(FsError::user(Errno::EFBIG))?;
        if length == 0 {
            return Err(FsError::user(Errno::EINVAL));
        }
        if handle.file.with(|state| state.is_overcrowded()) {
            handle.telling(self.commit(&handle.file).await)?;
        }
        handle.file.with(|state| {
            if state.lost {
                return Err(handle.file.last_failure());
            }
            let now = now();
            match mode {
                0 => state.grow(end, now),
                KEEP_SIZE => {}
                PUNCH_HOLE | ZERO_RANGE_KEEP_SIZE => state.punch(offset, end, now),
                ZERO_RANGE => {
                    state.punch(offset, end, now);
                    state.grow(end, now);
                }
                _ => return Err(FsError::user(Errno::EOPNOTSUPP)),
            }
            state.touch(Instant::now());
            Ok(())
        })
    }

    fn writable(&self, id: HandleId) -> Result<Arc<Handle>, FsError> {
        let handle = self.handle(id)?;
        match handle.mode.write {
            true => Ok(handle),
            false => Err(FsError::user(Errno::EBADF)),
        }
    }

    /// Stores blocks, each in a segment of its own, in the background.
    pub(crate) fn store_blocks(self: &Arc<Self>, file: &Arc<OpenFile>, blocks: Vec<Arc<Block>>) {
        for block in blocks {
            if block.advance(&[Progress::Resting, Progress::Failed], Progress::Storing) {
                let (files, file) = (self.clone(), file.clone());
                tokio::spawn(async move {
                    if let Err(error) = files.store_block(&file, &block).await {
                        files.failed(&file, &error);
                        block.advance(&[Progress::Storing], Progress::Failed);
                    }
                });
            }
        }
    }

    async fn store_block(&self, file: &OpenFile, block: &Arc<Block>) -> Result<(), FsError> {
        let permit = self.uploads.acquire().await;
        let Some(runs) = block.runs() else { return Ok(()) };
        let id: SegmentId = self.metadata.segment_id(file.inode).await?;
        let mut writer = Writer::new();
        for run in runs {
            writer.push(file.inode, run.offset, run.data);
        }
        let (object, length) = writer.finish();
        self.store.put(id, object).await?;
        drop(permit);
        block.stored(Place { segment: id, base: 0, length });
        Ok(())
    }
}
