//! Committing a file: close, fsync, and the barriers before rename and link.
//!
//! Not here: putting several files into one commit (`packer.rs`). Invariants: bytes are stored before they are committed;
//! commits of one inode are made one after the other; a failure is told, never swallowed; a clean file costs nothing.

use std::sync::Arc;

use futures::stream::{self, StreamExt};
use pando_types::limits::{EXTENTS_PER_COMMIT_MAX, PACKED_FILE_BYTES_MAX};
use pando_types::{Errno, FsError, InodeId};

use crate::file::Files;
use crate::file::handle::HandleId;
use crate::file::open_file::OpenFile;
use crate::file::packer::{Landed, Lane, Outcome};
use crate::file::sealed::{Block, Progress};
use crate::file::state::{State, TakeOff, Wanted};

/// Files that one barrier commits at the same time.
const SETTLE_PARALLEL_MAX: usize = 64;

/// The next step of a commit.
enum Step {
    Nothing,
    /// Small: stored together with others, or in the inode.
    Small(TakeOff, Lane),
    /// These blocks are stored by themselves first.
    Large(Vec<Arc<Block>>, Wanted),
}

impl Files {
    /// See [`crate::Client::flush`].
    pub(crate) async fn flush(self: &Arc<Self>, id: HandleId) -> Result<(), FsError> {
        let handle = self.handle(id)?;
        if !handle.mode.write {
            return Ok(());
        }
        handle.tell()?;
        if handle.file.is_clean() || self.table.is_orphan(handle.file.inode) {
            return Ok(());
        }
        handle.telling(self.commit(&handle.file).await)
    }

    /// See [`crate::Client::fsync`].
    pub(crate) async fn fsync(self: &Arc<Self>, id: HandleId) -> Result<(), FsError> {
        let handle = self.handle(id)?;
        handle.tell()?;
        if handle.file.is_clean() {
            return Ok(());
        }
        handle.telling(self.commit(&handle.file).await)
    }

    /// Commits an inode, if it is open and has something to commit, before something is done with its name.
    pub(crate) async fn settle(self: &Arc<Self>, inode: InodeId) -> Result<(), FsError> {
        let Some(file) = self.table.find(inode) else { return Ok(()) };
        self.settle_file(&file).await
    }

    async fn settle_file(self: &Arc<Self>, file: &Arc<OpenFile>) -> Result<(), FsError> {
        file.tell(&file.told_by_name)?;
        if file.is_clean() {
            return Ok(());
        }
        let result = self.commit(file).await;
        if result.is_err() {
            file.told_by_name.fetch_max(file.failures(), std::sync::atomic::Ordering::AcqRel);
        }
        result
    }

    /// Commits every open file. Tells the first failure, after all have been tried.
    pub(crate) async fn settle_all(self: &Arc<Self>) -> Result<(), FsError> {
        let unsettled = self.table.all().into_iter().filter(|f| !f.is_clean() && !self.table.is_orphan(f.inode));
        let commits = stream::iter(unsettled.map(|file| async move { self.settle_file(&file).await }));
        let results: Vec<_> = commits.buffer_unordered(SETTLE_PARALLEL_MAX).collect().await;
        results.into_iter().collect()
    }

    /// Commits an inode if attributes of it wait to be committed.
    pub(crate) async fn settle_attributes(self: &Arc<Self>, inode: InodeId) -> Result<(), FsError> {
        match self.table.find(inode) {
            Some(file) if file.with(|state| state.has_pending_attributes()) => self.commit(&file).await,
            _ => Ok(()),
        }
    }

    /// Commits everything and releases what can be released.
    pub(crate) async fn shutdown(self: &Arc<Self>) -> Result<(), FsError> {
        let result = self.settle_all().await;
        self.orphans.flush(&*self.metadata).await;
        result
    }

    /// Commits what the file has when this is called.
    pub(crate) async fn commit(self: &Arc<Self>, file: &Arc<OpenFile>) -> Result<(), FsError> {
        let turn = file.committing.clone().lock_owned().await;
        // On a task of its own: a caller that goes away must not leave a commit in the air, nor its turn to others.
        let (files, file) = (self.clone(), file.clone());
        let commit = tokio::spawn(async move {
            let _turn = turn;
            files.refresh_base(&file).await?;
            match file.with(next_step)? {
                Step::Nothing => Ok(()),
                Step::Small(take_off, lane) => files.fly(&file, take_off, lane).await,
                Step::Large(blocks, wanted) => files.commit_large(&file, blocks, wanted).await,
            }
        });
        commit.await.unwrap_or_else(|_| Err(FsError::bug("a commit was cut off")))
    }

    /// An inline commit replaces all of the content: what other clients have committed meanwhile must be in it.
    async fn refresh_base(&self, file: &OpenFile) -> Result<(), FsError> {
        if file.with(|state| state.inline_needs_base()) {
            let page = self.metadata.content(file.inode, 0).await.inspect_err(|error| self.failed(file, error))?;
            file.with(|state| state.take_page(0, &page));
        }
        Ok(())
    }

    async fn commit_large(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        blocks: Vec<Arc<Block>>,
        wanted: Wanted,
    ) -> Result<(), FsError> {
        self.store_blocks(file, blocks.clone());
        let mut all_stored = true;
        for block in &blocks {
            all_stored &= block.settled().await == Progress::Stored;
        }
        if !all_stored {
            return Err(file.last_failure()); // noted by the upload
        }
        loop {
            let Some(take_off) = file.with(|state| state.take_off(&wanted, None)) else { return Ok(()) };
            let last = take_off.blocks.last().map_or(u64::MAX, |b| b.sequence);
            self.fly(file, take_off, Lane::Plain).await?;
            let left = file.with(|state| state.sealed_blocks().iter().any(|b| b.sequence <= wanted.sequence));
            if !left || last >= wanted.sequence {
                return Ok(());
            }
        }
    }

    /// Sends a commit that has taken off and brings its result home.
    async fn fly(&self, file: &OpenFile, take_off: TakeOff, lane: Lane) -> Result<(), FsError> {
        let outcome = self.packer.submit(file.inode, take_off, lane).await;
        self.bring_home(file, outcome)
    }

    fn bring_home(&self, file: &OpenFile, outcome: Outcome) -> Result<(), FsError> {
        let error = match outcome {
            Outcome::Landed(Landed { attr, content, packed }) => {
                for (block, place) in packed {
                    if let Some((runs, grant)) = block.committed(place) {
                        self.chunks.keep(place, runs, grant);
                    }
                }
                file.with(|state| state.land(attr, &content));
                file.recovered();
                return Ok(());
            }
            Outcome::Refused(errno) => FsError::user(errno),
            Outcome::Failed(error) => error,
        };
        file.with(|state| match error.errno {
            // Another client has removed the file: there is nothing left to write to.
            Errno::ENOENT | Errno::ESTALE => state.lose(),
            _ => state.turn_back(),
        });
        self.failed(file, &error);
        Err(error)
    }
}

fn next_step(state: &mut State) -> Result<Step, FsError> {
    if state.lost {
        return Err(FsError::unavailable("bytes written to this file were lost; truncate it and write them again"));
    }
    if state.is_clean() {
        return Ok(Step::Nothing);
    }
    let sealed = state.sealed_blocks();
    let resting: u64 = sealed.iter().map(|b| b.length).sum();
    let small = sealed.iter().all(|b| b.progress() == Progress::Resting)
        && resting + state.dirty_bytes() <= PACKED_FILE_BYTES_MAX as u64;
    if !small {
        let size = state.size();
        state.seal_all();
        let wanted = Wanted { sequence: state.sequence(), pieces_max: EXTENTS_PER_COMMIT_MAX, size };
        return Ok(Step::Large(state.sealed_blocks(), wanted));
    }
    let inline = if state.has_pending_content() { state.inline() } else { None };
    let is_inline = inline.is_some();
    state.seal_all();
    Ok(match state.take_off(&Wanted::ALL, inline) {
        None => Step::Nothing,
        Some(take_off) if is_inline || take_off.pieces.is_empty() => Step::Small(take_off, Lane::Plain),
        Some(take_off) => Step::Small(take_off, Lane::Packed),
    })
}
