//! Reading: what was written here, over what is committed, over zeros.
//!
//! Not here: which layer has a byte (`state.rs`). Invariants: a read in progress has memory from the budget; a random read
//! fetches its own range and no more; damaged bytes are an error with the file's name in the log, never data.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{self, StreamExt, TryStreamExt};
use pando_segments::SegmentError;
use pando_types::{Errno, Extent, FsError};

use crate::file::Files;
use crate::file::handle::{HandleId, SeekTo};
use crate::file::open_file::OpenFile;
use crate::file::prefetch::FETCH_BYTES;
use crate::file::state::{Missing, Source, State};
use crate::memory::budget::Purpose;

/// How long a read waits for memory.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(120);
/// Largest read: memory for it must fit into what reads always have.
const READ_BYTES_MAX: usize = 8 << 20;
/// Parts of one read that are fetched at the same time.
const PARTS_PARALLEL_MAX: usize = 8;
/// Pages of the content map fetched for one read, at most: more are a file that changes faster than it can be read.
const PAGES_PER_READ_MAX: usize = 64;

/// A part of a read.
enum Part {
    Bytes(Bytes),
    Stored(Extent),
    Zeros(u64),
}

/// Why a part cannot be read.
enum Fault {
    /// The segment is gone: the content map may be old.
    Missing(SegmentError),
    Other(FsError),
}

impl Files {
    /// See [`crate::Client::read`].
    pub(crate) async fn read(self: &Arc<Self>, id: HandleId, offset: u64, length: usize) -> Result<Bytes, FsError> {
        let handle = self.handle(id)?;
        if !handle.mode.read {
            return Err(FsError::user(Errno::EBADF));
        }
        self.read_file(&handle.file, offset, length.min(READ_BYTES_MAX)).await
    }

    async fn read_file(self: &Arc<Self>, file: &Arc<OpenFile>, offset: u64, length: usize) -> Result<Bytes, FsError> {
        let _memory = match self.budget.try_take(Purpose::Read, length as u64) {
            Some(grant) => grant,
            None => {
                let taken = self.budget.take(Purpose::Read, length as u64, MEMORY_WAIT_MAX).await;
                taken.map_err(|e| FsError::unavailable(e.to_string()))?
            }
        };
        let mut tried_again = false;
        loop {
            let parts = self.plan(file, offset, length as u64).await?;
            self.look_ahead(file, offset, length as u64);
            match self.fetch_parts(file, parts).await {
                Ok(bytes) => return Ok(bytes),
                Err(Fault::Missing(_)) if !tried_again => {
                    tried_again = true;
                    file.with(|state| state.forget_content());
                }
                Err(Fault::Missing(error)) => {
                    tracing::error!(inode = %file.inode, %error, "a file needs a segment that is gone");
                    return Err(error.into());
                }
                Err(Fault::Other(error)) => return Err(error),
            }
        }
    }

    /// The parts of a range, after fetching what is not known of the content map.
    async fn plan(&self, file: &OpenFile, offset: u64, length: u64) -> Result<Vec<Part>, FsError> {
        self.with_map(file, |state| plan(state, offset, length)).await
    }

    /// Looks at the state; fetches pages of the content map as long as it asks for them.
    async fn with_map<T>(&self, file: &OpenFile, look: impl Fn(&State) -> Result<T, Missing>) -> Result<T, FsError> {
        for _ in 0..PAGES_PER_READ_MAX {
            match file.with(|state| look(state)) {
                Ok(found) => return Ok(found),
                Err(Missing(at)) => {
                    let page = self.metadata.content(file.inode, at).await?;
                    file.with(|state| state.take_page(at, &page));
                }
            }
        }
        Err(FsError::unavailable("the file changes faster than it can be read"))
    }

    async fn fetch_parts(&self, file: &OpenFile, mut parts: Vec<Part>) -> Result<Bytes, Fault> {
        if let [_] = parts[..] {
            return match parts.remove(0) {
                Part::Bytes(bytes) => Ok(bytes),
                Part::Zeros(length) => Ok(Bytes::from(vec![0; length as usize])),
                Part::Stored(extent) => self.fetch(file, extent).await,
            };
        }
        let fetch = |part: Part| async move {
            match part {
                Part::Stored(extent) => Ok(Part::Bytes(self.fetch(file, extent).await?)),
                other => Ok(other),
            }
        };
        let parts: Vec<Part> =
            stream::iter(parts.into_iter().map(fetch)).buffered(PARTS_PARALLEL_MAX).try_collect().await?;
        let mut whole = BytesMut::new();
        for part in parts {
            match part {
                Part::Bytes(bytes) => whole.extend_from_slice(&bytes),
                Part::Zeros(length) => whole.resize(whole.len() + length as usize, 0),
                Part::Stored(_) => return Err(Fault::Other(FsError::bug("a part was not fetched"))),
            }
        }
        Ok(whole.freeze())
    }

    /// The bytes of an extent, from chunks where there are any.
    async fn fetch(&self, file: &OpenFile, extent: Extent) -> Result<Bytes, Fault> {
        let (segment, end) = (extent.segment, extent.segment_offset + extent.length);
        let mut at = extent.segment_offset;
        let mut pieces: Vec<Bytes> = Vec::new();
        while at < end {
            if let Some(chunk) = self.chunks.find(segment, at, end) {
                let (start, to) = (chunk.start, end.min(chunk.start + chunk.length));
                if let Some(Ok(bytes)) = chunk.bytes().await {
                    pieces.push(bytes.slice((at - start) as usize..(to - start) as usize));
                    at = to;
                    continue;
                }
                // The fetch ahead failed or was cut off: ask ourselves, and tell what the store says.
            }
            let to = self.chunks.next_start(segment, at).map_or(end, |start| start.min(end));
            pieces.push(self.store.read(segment, at..to).await.map_err(|error| explain(file, error))?);
            at = to;
        }
        Ok(match pieces.len() {
            1 => pieces.remove(0),
            _ => pieces.concat().into(),
        })
    }

    /// Fetches ahead of a stream what the policy says, in the background and only with memory that is free.
    fn look_ahead(self: &Arc<Self>, file: &Arc<OpenFile>, offset: u64, length: u64) {
        let size = file.with(|state| state.size());
        let ahead = {
            let mut streams = file.streams.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            streams.read(offset, length, size)
        };
        if ahead.is_empty() {
            return;
        }
        // Only what is known of the map: an unknown page is fetched when a read gets there.
        let Ok(parts) = file.with(|state| plan_stored(state, ahead.start, ahead.end)) else { return };
        for extent in parts {
            let end = extent.segment_offset + extent.length;
            let mut at = extent.segment_offset;
            while at < end {
                let to = end.min(at / FETCH_BYTES * FETCH_BYTES + FETCH_BYTES);
                self.fetch_ahead(extent.segment, at, to);
                at = to;
            }
        }
    }

    fn fetch_ahead(self: &Arc<Self>, segment: pando_types::SegmentId, at: u64, to: u64) {
        let Some(fetching) = self.chunks.begin(segment, at, to - at) else { return };
        let files = self.clone();
        tokio::spawn(async move {
            let _permit = files.fetches.acquire().await;
            fetching.finish(files.store.read(segment, at..to).await);
        });
    }

    /// See [`crate::Client::seek`].
    pub(crate) async fn seek(&self, id: HandleId, offset: u64, to: SeekTo) -> Result<u64, FsError> {
        let file = self.handle(id)?.file.clone();
        self.with_map(&file, |state| seek(state, offset, to)).await?.ok_or(FsError::user(Errno::ENXIO))
    }
}

/// The parts of `[offset, offset + length)` that lie within the file.
fn plan(state: &State, offset: u64, length: u64) -> Result<Vec<Part>, Missing> {
    let end = offset.saturating_add(length).min(state.size());
    let mut parts = Vec::new();
    let mut copied: Vec<u8> = Vec::new();
    let mut at = offset;
    while at < end {
        let (source, to) = state.source(at, end)?;
        match source {
            Source::Dirty => state.copy_dirty(at, to, &mut copied),
            Source::Inline => state.copy_inline(at, to, &mut copied),
            other => {
                if !copied.is_empty() {
                    parts.push(Part::Bytes(std::mem::take(&mut copied).into()));
                }
                push_source(&mut parts, other, to - at);
            }
        }
        at = to;
    }
    if !copied.is_empty() || parts.is_empty() {
        parts.push(Part::Bytes(copied.into()));
    }
    Ok(parts)
}

fn push_source(parts: &mut Vec<Part>, source: Source, length: u64) {
    match source {
        Source::Stored(extent) => push_stored(parts, extent),
        Source::Sealed(piece) => match (piece.block.bytes(piece.at, length), piece.block.place()) {
            (Some(bytes), _) => parts.extend(bytes.into_iter().map(Part::Bytes)),
            (None, Some(place)) => push_stored(parts, piece.extent(place)),
            (None, None) => unreachable!("a block is in memory until it has a place"),
        },
        _ => parts.push(Part::Zeros(length)),
    }
}

/// Adds an extent, as part of the last one if it goes on where that ends.
fn push_stored(parts: &mut Vec<Part>, extent: Extent) {
    match parts.last_mut() {
        Some(Part::Stored(last))
            if last.segment == extent.segment && last.segment_offset + last.length == extent.segment_offset =>
        {
            last.length += extent.length;
        }
        _ => parts.push(Part::Stored(extent)),
    }
}

/// The stored extents in a range, as far as the content map is known.
fn plan_stored(state: &State, from: u64, to: u64) -> Result<Vec<Extent>, Missing> {
    let mut extents = Vec::new();
    let mut at = from;
    while at < to {
        let Ok((source, end)) = state.source(at, to) else { break };
        if let Source::Stored(extent) = source {
            extents.push(extent);
        }
        at = end;
    }
    Ok(extents)
}

/// The next data or hole; `None` beyond the end.
fn seek(state: &State, offset: u64, wanted: SeekTo) -> Result<Option<u64>, Missing> {
    let size = state.size();
    let mut at = offset;
    while at < size {
        let (source, to) = state.source(at, size)?;
        if matches!(source, Source::Hole) == (wanted == SeekTo::Hole) {
            return Ok(Some(at));
        }
        at = to;
    }
    Ok((wanted == SeekTo::Hole && offset < size).then_some(size))
}

fn explain(file: &OpenFile, error: SegmentError) -> Fault {
    if matches!(error, SegmentError::Missing { .. }) {
        return Fault::Missing(error);
    }
    tracing::error!(inode = %file.inode, %error, "bytes of a file cannot be read");
    Fault::Other(error.into())
}
