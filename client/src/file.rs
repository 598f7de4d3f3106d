//! Open files: from the open to the last close.
//!
//! Not here: names (`client.rs`). Of the files below: `state.rs` is what one open file is, pure; `writer.rs` takes bytes and
//! uploads full blocks; `flush.rs` and `packer.rs` commit; `reader.rs`, `chunks.rs` and `prefetch.rs` read; `reclaim.rs` gives
//! memory back. Invariants: bytes are stored, then committed, then close and fsync return; every buffer is granted by the
//! budget; the state of an inode that is not open is dropped.

mod chunks;
mod content;
mod dirty;
mod flush;
pub(crate) mod handle;
mod metadata;
mod open_file;
mod packer;
mod pending;
mod prefetch;
mod ranges;
mod reader;
mod reclaim;
mod sealed;
mod state;
mod table;
mod writer;

#[cfg(test)]
#[path = "file/testing_test.rs"]
pub(crate) mod testing;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use dashmap::DashMap;
use pando_segments::Store;
use pando_types::command::AttrChange;
use pando_types::limits::FILE_BYTES_MAX;
use pando_types::{Attr, Errno, FileKind, FsError, InodeId, SegmentId, Timestamp};
use tokio::sync::{Semaphore, mpsc};

use crate::cache::recent::Recent;
use crate::client::Usage;
use crate::file::chunks::Chunks;
use crate::file::handle::{Handle, HandleId, OpenMode, Opened};
use crate::file::metadata::Metadata;
use crate::file::open_file::OpenFile;
use crate::file::packer::Packer;
use crate::file::reclaim::Orphans;
use crate::file::state::State;
use crate::file::table::{GivingUp, Left, Table};
use crate::memory::budget::Budget;

/// Smallest budget: a full block each for a writer and a reader, and what they need to go on.
pub const BUFFER_BYTES_MIN: u64 = 64 << 20;
/// Part of the budget that only reads in progress may use.
const READ_RESERVE: u64 = 8;
/// Part of the budget for look-ahead and recently written small files.
const CHUNK_SHARE: u64 = 3;
/// Segments of large files that are stored at the same time.
const UPLOADS_MAX: usize = 8;
/// Files of which the version of the kernel's pages is remembered.
const KERNEL_VERSIONS_MAX: usize = 64 << 10;
/// Segments that wait to be deleted because they were never needed; others are left to the collector.
const UNUSED_MAX: usize = 1024;

/// All open files of a client.
pub(crate) struct Files {
    metadata: Arc<dyn Metadata>,
    store: Store,
    budget: Arc<Budget>,
    table: Arc<Table>,
    handles: DashMap<HandleId, Arc<Handle>>,
    last_handle: AtomicU64,
    uploads: Arc<Semaphore>,
    fetches: Arc<Semaphore>,
    packer: Arc<Packer>,
    chunks: Arc<Chunks>,
    /// The version of each file's pages that the kernel may still have.
    kernel_versions: Recent<InodeId, u64>,
    unused: mpsc::Sender<SegmentId>,
    orphans: Orphans,
    unsettled: Arc<AtomicUsize>,
}

impl Files {
    /// No files yet. Needs a tokio runtime for its background tasks, which end with it.
    pub(crate) fn start(metadata: Arc<dyn Metadata>, store: Store, buffer_bytes: u64) -> Arc<Files> {
        let budget = Budget::new(buffer_bytes, buffer_bytes / READ_RESERVE);
        let (unused, unused_queue) = mpsc::channel(UNUSED_MAX);
        let files = Arc::new(Files {
            packer: Packer::new(metadata.clone(), store.clone()),
            metadata,
            store,
            budget: budget.clone(),
            table: Arc::default(),
            handles: DashMap::new(),
            last_handle: AtomicU64::new(0),
            uploads: Arc::new(Semaphore::new(UPLOADS_MAX)),
            fetches: Arc::new(Semaphore::new(prefetch::FETCHES_MAX)),
            chunks: Chunks::new(budget, buffer_bytes / CHUNK_SHARE),
            kernel_versions: Recent::new(KERNEL_VERSIONS_MAX),
            unused,
            orphans: Orphans::default(),
            unsettled: Arc::default(),
        });
        reclaim::start(&files, unused_queue);
        files
    }

    /// Opens an inode.
    pub(crate) async fn open(&self, inode: InodeId, mode: OpenMode) -> Result<Opened, FsError> {
        self.table.enter(inode).await;
        // From here on, also if the caller goes away, the open is taken back unless it succeeds.
        let entered = Entered { files: self, inode: Some(inode) };
        let page = self.metadata.content(inode, 0).await?;
        check_kind(page.attr.kind)?;
        let (file, _) = self.table.file(inode, || self.new_file(page.attr.clone(), false));
        file.with(|state| state.take_page(0, &page));
        if mode.truncate {
            self.empty(&file, mode.kill_privileges);
        }
        Ok(self.opened(entered, file, mode))
    }

    /// Opens a file that was just made.
    pub(crate) async fn open_new(&self, attr: Attr, mode: OpenMode) -> Result<Opened, FsError> {
        check_kind(attr.kind)?;
        let inode = attr.inode;
        self.table.enter(inode).await;
        let entered = Entered { files: self, inode: Some(inode) };
        let (file, _) = self.table.file(inode, || self.new_file(attr, true));
        Ok(self.opened(entered, file, mode))
    }

    fn new_file(&self, attr: Attr, new: bool) -> OpenFile {
        let inode = attr.inode;
        let state = State::new(attr, new, &self.budget, Some(self.unused.clone()));
        OpenFile::new(inode, state, self.unsettled.clone())
    }

    fn empty(&self, file: &OpenFile, kill_privileges: bool) {
        file.with(|state| {
            state.truncate(0, now(), kill_privileges);
            state.touch(Instant::now());
        });
    }

    fn opened(&self, mut entered: Entered<'_>, file: Arc<OpenFile>, mode: OpenMode) -> Opened {
        entered.inode = None;
        let inode = file.inode;
        let (attr, version) = file.with(|state| (state.attr(now()), state.version()));
        // Written bytes reach the kernel's pages of other handles by the kernel itself; other clients' only by a version.
        let keep_cache = self.kernel_versions.find(&inode) == Some(version) && file.is_clean();
        match file.is_clean() {
            true if !mode.direct => self.kernel_versions.insert(inode, version),
            // Pages read now may be of bytes that are never committed.
            false => self.kernel_versions.remove(&inode),
            true => {}
        }
        let handle = HandleId(self.last_handle.fetch_add(1, Ordering::Relaxed) + 1);
        self.handles.insert(handle, Arc::new(Handle::new(file, mode)));
        Opened { handle, keep_cache, attr }
    }

    /// Forgets a handle; commits what is left, unless nobody could ever see it or it failed before.
    pub(crate) async fn release(self: &Arc<Self>, id: HandleId) {
        let Some((_, handle)) = self.handles.remove(&id) else { return };
        let file = handle.file.clone();
        let inode = file.inode;
        if handle.mode.write && !file.is_clean() && !file.is_failing() && !self.table.is_orphan(inode) {
            // The failure is in the log; there is nobody else to tell.
            let _ = self.commit(&file).await;
        }
        if !file.is_clean() {
            self.kernel_versions.remove(&inode);
        }
        self.leave(inode);
    }

    /// Bytes could not be stored or committed: notes it for every handle.
    fn failed(&self, file: &OpenFile, error: &FsError) {
        self.kernel_versions.remove(&file.inode);
        file.fail(error);
    }

    fn leave(&self, inode: InodeId) {
        if self.table.leave(inode) == Left::Orphan {
            self.orphans.release(inode);
        }
    }

    /// Attributes with what was written here over them.
    pub(crate) fn overlay(&self, attr: Attr) -> Attr {
        match self.table.find(attr.inode) {
            Some(file) => file.with(|state| {
                state.observe(&attr);
                state.show(attr, now())
            }),
            None => attr,
        }
    }

    /// Whether attributes shown here are ahead of the committed ones.
    pub(crate) fn is_ahead(&self, inode: InodeId) -> bool {
        self.table.find(inode).is_some_and(|file| !file.is_clean())
    }

    /// Keeps a change of attributes or size for the next commit, if the file is open and that is where it belongs:
    /// there are uncommitted bytes, or the size is set through a write handle.
    pub(crate) async fn set_pending(
        &self,
        inode: InodeId,
        change: &AttrChange,
        size: Option<u64>,
        handle: Option<HandleId>,
    ) -> Result<Option<Attr>, FsError> {
        let Some(file) = self.table.find(inode) else { return Ok(None) };
        let handle = handle.and_then(|id| self.handle(id).ok()).filter(|h| h.mode.write);
        let by_handle = size.is_some() && handle.is_some();
        if file.is_clean() && !by_handle {
            return Ok(None);
        }
        if size.is_some_and(|size| size > FILE_BYTES_MAX) {
            return Err(FsError::user(Errno::EFBIG));
        }
        if size != Some(0) {
            handle.map_or(Ok(()), |h| h.tell())?;
        }
        Ok(Some(file.with(|state| {
            let now = now();
            if let Some(size) = size {
                state.truncate(size, now, change.kill_privileges);
            }
            state.set(change, now);
            state.touch(Instant::now());
            state.attr(now)
        })))
    }

    /// Promises that an inode stays closed while a name of it is removed.
    pub(crate) fn give_up(&self, inode: Option<InodeId>) -> GivingUp {
        self.table.give_up(inode)
    }

    /// An inode has lost a name; `held`: its last one, and the metadata server keeps it for this client.
    pub(crate) fn lost_name(&self, inode: InodeId, held: bool) {
        if held && !self.table.orphan(inode) {
            self.orphans.release(inode);
        }
    }

    /// Whether any file has something to commit.
    pub(crate) fn any_unsettled(&self) -> bool {
        self.unsettled.load(Ordering::Relaxed) > 0
    }

    /// What is in use now.
    pub(crate) fn usage(&self) -> Usage {
        let (buffer_bytes, buffer_bytes_peak) = self.budget.usage();
        Usage { buffer_bytes, buffer_bytes_peak, open_files: self.table.len() }
    }

    fn handle(&self, id: HandleId) -> Result<Arc<Handle>, FsError> {
        self.handles.get(&id).map(|h| h.clone()).ok_or_else(|| FsError::user(Errno::EBADF))
    }
}

/// An open that is taken back when dropped.
struct Entered<'a> {
    files: &'a Files,
    inode: Option<InodeId>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(inode) = self.inode {
            self.files.leave(inode);
        }
    }
}

fn check_kind(kind: FileKind) -> Result<(), FsError> {
    match kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(FsError::user(Errno::EISDIR)),
        _ => Err(FsError::user(Errno::EINVAL)),
    }
}

/// The wall clock.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
#[path = "file/file_test.rs"]
mod tests;
