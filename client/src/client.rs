//! The file system as front ends see it: metadata calls and open files as one, with the barriers between them.
//!
//! Not here: how bytes are buffered and stored (`file/`), how a metadata call reaches its server (`meta.rs`).
//! Invariants: a rename or link is asked for only after the bytes of its source are committed; an inode that is open here
//! is never given up by unlink or rename; attributes shown include what is written here and not yet committed.

mod names;

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use pando_rpc::{Local, Pool};
use pando_segments::{Store, StoreConfig};
use pando_types::command::{AttrChange, Create, NewNode, Rename, RenameMode, XattrMode};
use pando_types::request::DirectoryPage;
use pando_types::{Attr, Errno, FileKind, FileName, FsError, InodeId, XattrName};

use crate::client::names::Names;
use crate::file::handle::{HandleId, OpenMode, Opened, SeekTo};
use crate::file::{BUFFER_BYTES_MIN, Files};
use crate::meta::Meta;
use crate::retry::RetryPolicy;

/// Settings of a client.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Most bytes of file data held in buffers; less than [`BUFFER_BYTES_MIN`] is taken as that.
    pub buffer_bytes: u64,
    /// How metadata calls are retried.
    pub retry: RetryPolicy,
    /// A metadata server in this process, which needs no connection.
    pub local: Option<Local>,
}

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig { buffer_bytes: 512 << 20, retry: RetryPolicy::default(), local: None }
    }
}

/// Room in the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes there are; of an object store without limits: a very large number.
    pub total_bytes: u64,
    /// Bytes that can be written.
    pub free_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
}

/// What a client has in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of file data in buffers.
    pub buffer_bytes: u64,
    /// The most there ever were.
    pub buffer_bytes_peak: u64,
    /// Inodes that are open.
    pub open_files: usize,
}

/// What is reported as the size of a store that has no limit: 1 EiB.
const UNLIMITED_BYTES: u64 = 1 << 60;
/// Extended attributes that are ACLs.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";
/// File capabilities.
const CAPABILITY: &[u8] = b"security.capability";
/// Bytes that one copy step moves.
const COPY_STEP_BYTES: u64 = 1 << 20;

/// A mounted file system without a mount point. Clones share it.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    meta: Meta,
    store: Store,
    files: Arc<Files>,
    names: Names,
}

/// Calls fail with the errno that the system call should report.
impl Client {
    /// Connects to the cluster that the metadata server at `meta_addr` (`host:port`) belongs to, and to its object store.
    pub fn connect(meta_addr: &str, config: ClientConfig) -> BoxFuture<'_, Result<Client, FsError>> {
        Box::pin(async move {
            let pool = config.local.map_or_else(Pool::new, Pool::with_local);
            let meta = Meta::connect_by(pool, meta_addr, config.retry).await?;
            let info = meta.mount_info().await?;
            let store = StoreConfig { url: info.object_store, s3_endpoint: info.s3_endpoint, cluster: info.cluster };
            let store = Store::open(&store).await.map_err(|e| FsError::unavailable(e.to_string()))?;
            Ok(Client::new(meta, store, config.buffer_bytes))
        })
    }

    /// A client over parts that exist already; `buffer_bytes` as in [`ClientConfig`].
    pub fn new(meta: Meta, store: Store, buffer_bytes: u64) -> Client {
        let buffer_bytes = buffer_bytes.max(BUFFER_BYTES_MIN);
        let files = Files::start(Arc::new(meta.clone()), store.clone(), buffer_bytes);
        Client(Arc::new(Inner { meta, store, files, names: Names::new() }))
    }

    /// The metadata connection, for administration.
    pub fn meta(&self) -> &Meta {
        &self.0.meta
    }

    /// What is in use now.
    pub fn usage(&self) -> Usage {
        self.0.files.usage()
    }

    /// Commits everything and ends the sessions. Tells the first failure.
    pub fn close(&self) -> BoxFuture<'_, Result<(), FsError>> {
        Box::pin(async move {
            let result = self.0.files.shutdown().await;
            self.0.meta.close().await;
            result
        })
    }

    /// The attributes of a name's inode. ENOENT.
    pub async fn lookup(&self, parent: InodeId, name: &FileName) -> Result<Attr, FsError> {
        let attr = self.0.meta.lookup(parent, name).await?;
        self.0.names.saw(parent, name, &attr);
        Ok(self.0.files.overlay(attr))
    }

    /// Attributes.
    pub async fn getattr(&self, inode: InodeId) -> Result<Attr, FsError> {
        Ok(self.0.files.overlay(self.0.meta.getattr(inode).await?))
    }

    /// Whether the attributes shown of an inode are ahead of the committed ones: the next commit may move its times.
    pub fn is_ahead(&self, inode: InodeId) -> bool {
        self.0.files.is_ahead(inode)
    }

    /// Changes attributes and, if given, the size in bytes. With a write `handle`, or while the file has uncommitted
    /// bytes here, the change is shown at once and committed together with them.
    pub async fn setattr(
        &self,
        inode: InodeId,
        change: AttrChange,
        size: Option<u64>,
        handle: Option<HandleId>,
    ) -> Result<Attr, FsError> {
        if let Some(attr) = self.0.files.set_pending(inode, &change, size, handle).await? {
            return Ok(attr);
        }
        let attr = self.0.meta.setattr(inode, change, size).await?;
        Ok(self.0.files.overlay(attr))
    }

    /// Makes a directory, symbolic link, device and so on, or a file that is not opened.
    pub async fn create(&self, create: Create) -> Result<Attr, FsError> {
        let (parent, name) = (create.parent, create.name.clone());
        let attr = self.0.meta.create(create).await?;
        self.0.names.saw(parent, &name, &attr);
        Ok(attr)
    }

    /// Makes a regular file and opens it. EEXIST.
    pub async fn create_open(&self, create: Create, mode: OpenMode) -> Result<Opened, FsError> {
        if !matches!(create.node, NewNode::File) {
            return Err(FsError::user(Errno::EINVAL));
        }
        let attr = self.create(create).await?;
        self.0.files.open_new(attr, mode).await
    }

    /// Removes a name that is not a directory's. An inode that is open here lives until its last close.
    pub async fn unlink(&self, parent: InodeId, name: &FileName) -> Result<(), FsError> {
        let giving_up = self.0.files.give_up(self.0.names.hint(parent, name));
        self.0.names.forget(parent, name);
        let unlinked = self.0.meta.unlink(parent, name, giving_up.inode()).await?;
        drop(giving_up);
        self.0.files.lost_name(unlinked.inode, unlinked.held);
        Ok(())
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, parent: InodeId, name: &FileName) -> Result<(), FsError> {
        self.0.names.forget(parent, name);
        self.0.meta.rmdir(parent, name).await
    }

    /// Moves a name, atomically, after the bytes of what is moved have been committed.
    pub async fn rename(
        &self,
        parent: InodeId,
        name: &FileName,
        new_parent: InodeId,
        new_name: &FileName,
        mode: RenameMode,
    ) -> Result<(), FsError> {
        self.settle_name(parent, name).await?;
        if mode == RenameMode::Exchange {
            self.settle_name(new_parent, new_name).await?;
        }
        let hint = if mode == RenameMode::Replace { self.0.names.hint(new_parent, new_name) } else { None };
        let giving_up = self.0.files.give_up(hint);
        self.0.names.forget(parent, name);
        self.0.names.forget(new_parent, new_name);
        let (old, new) = (name.clone(), new_name.clone());
        let unheld = giving_up.inode();
        let rename = Rename { parent, name: old, new_parent, new_name: new, mode, unheld };
        let renamed = self.0.meta.rename(rename).await?;
        drop(giving_up);
        if let Some(replaced) = renamed.replaced.filter(|_| mode == RenameMode::Replace) {
            self.0.files.lost_name(replaced, renamed.held);
        }
        Ok(())
    }

    /// Makes a further name of an inode, after its bytes have been committed.
    pub async fn link(&self, inode: InodeId, parent: InodeId, name: &FileName) -> Result<Attr, FsError> {
        self.0.files.settle(inode).await?;
        let attr = self.0.meta.link(inode, parent, name).await?;
        self.0.names.saw(parent, name, &attr);
        Ok(self.0.files.overlay(attr))
    }

    /// A page of a directory in name order after a name; `.` and `..` are not in it.
    pub async fn readdir(
        &self,
        inode: InodeId,
        after: Option<FileName>,
        plus: bool,
        limit: u32,
    ) -> Result<DirectoryPage, FsError> {
        let mut page = self.0.meta.readdir(inode, after, plus, limit).await?;
        for entry in &mut page.entries {
            if let Some(attr) = entry.attr.take() {
                self.0.names.saw(inode, &entry.name, &attr);
                entry.attr = Some(self.0.files.overlay(attr));
            }
        }
        Ok(page)
    }

    /// A symbolic link's target.
    pub async fn readlink(&self, inode: InodeId) -> Result<Vec<u8>, FsError> {
        self.0.meta.readlink(inode).await
    }

    /// The parent of a directory.
    pub async fn parent(&self, inode: InodeId) -> Result<Attr, FsError> {
        self.0.meta.parent(inode).await
    }

    /// An extended attribute. ENODATA.
    pub async fn getxattr(&self, inode: InodeId, name: &XattrName) -> Result<Vec<u8>, FsError> {
        self.0.meta.getxattr(inode, name).await
    }

    /// Names of the extended attributes.
    pub async fn listxattr(&self, inode: InodeId) -> Result<Vec<XattrName>, FsError> {
        self.0.meta.listxattr(inode).await
    }

    /// Sets an extended attribute. EEXIST, ENODATA by `mode`.
    pub async fn setxattr(
        &self,
        inode: InodeId,
        name: &XattrName,
        value: Vec<u8>,
        mode: XattrMode,
    ) -> Result<(), FsError> {
        self.settle_for_xattr(inode, name).await?;
        self.0.meta.setxattr(inode, name, value, mode).await
    }

    /// Removes an extended attribute.
    pub async fn removexattr(&self, inode: InodeId, name: &XattrName) -> Result<(), FsError> {
        self.settle_for_xattr(inode, name).await?;
        self.0.meta.removexattr(inode, name).await
    }

    /// Room in the file system.
    pub async fn statfs(&self) -> Result<Space, FsError> {
        let totals = self.0.meta.totals().await?;
        let store = self.0.store.clone();
        let space = tokio::task::spawn_blocking(move || store.space()).await.ok().flatten();
        let unlimited = (UNLIMITED_BYTES, UNLIMITED_BYTES.saturating_sub(totals.bytes));
        let (total_bytes, free_bytes) = space.unwrap_or(unlimited);
        Ok(Space { total_bytes, free_bytes, inodes: totals.inodes })
    }

    /// Opens a regular file; what is committed by then is seen.
    pub async fn open(&self, inode: InodeId, mode: OpenMode) -> Result<Opened, FsError> {
        self.0.files.open(inode, mode).await
    }

    /// Up to `length` bytes from `offset`, at most 8 MiB at a time; fewer only at the end of the file.
    pub async fn read(&self, handle: HandleId, offset: u64, length: usize) -> Result<Bytes, FsError> {
        self.0.files.read(handle, offset, length).await
    }

    /// Writes all of `data`; at the end of the file if the handle appends. Done without waiting while there is buffer
    /// memory. `kill_privileges`: clear suid and sgid as for a write by another than root.
    pub async fn write(
        &self,
        handle: HandleId,
        offset: u64,
        data: &[u8],
        kill_privileges: bool,
    ) -> Result<usize, FsError> {
        self.0.files.write(handle, offset, data, kill_privileges).await
    }

    /// The same without waiting; `None` if it would have to wait, and then nothing has been written.
    pub fn try_write(
        &self,
        handle: HandleId,
        offset: u64,
        data: &[u8],
        kill_privileges: bool,
    ) -> Option<Result<usize, FsError>> {
        self.0.files.try_write(handle, offset, data, kill_privileges)
    }

    /// What close() does: commits what was written. Costs nothing for a file that is clean or only read.
    pub async fn flush(&self, handle: HandleId) -> Result<(), FsError> {
        self.0.files.flush(handle).await
    }

    /// Commits the file, whichever handle wrote it.
    pub async fn fsync(&self, handle: HandleId) -> Result<(), FsError> {
        self.0.files.fsync(handle).await
    }

    /// Forgets a handle. What is left to commit is committed; failures go to the log, since nobody is left to be told.
    pub async fn release(&self, handle: HandleId) {
        self.0.files.release(handle).await;
    }

    /// `mode`: the FALLOC_FL bits of Linux: none, KEEP_SIZE, PUNCH_HOLE with KEEP_SIZE, ZERO_RANGE. EOPNOTSUPP for others.
    pub async fn fallocate(&self, handle: HandleId, mode: i32, offset: u64, length: u64) -> Result<(), FsError> {
        self.0.files.fallocate(handle, mode, offset, length).await
    }

    /// The next data or hole at or after `offset`. ENXIO at or beyond the end.
    pub async fn seek(&self, handle: HandleId, offset: u64, to: SeekTo) -> Result<u64, FsError> {
        self.0.files.seek(handle, offset, to).await
    }

    /// Copies up to `length` bytes from one open file to another; the bytes copied, fewer only at the end of the source.
    pub async fn copy_range(
        &self,
        from: HandleId,
        from_offset: u64,
        to: HandleId,
        to_offset: u64,
        length: u64,
    ) -> Result<u64, FsError> {
        let mut copied = 0;
        while copied < length {
            let step = (length - copied).min(COPY_STEP_BYTES) as usize;
            let data = self.read(from, from_offset + copied, step).await?;
            if data.is_empty() {
                break;
            }
            let written = self.write(to, to_offset + copied, &data, false).await?;
            copied += written as u64;
            if written < data.len() {
                break;
            }
        }
        Ok(copied)
    }

    /// An ACL changes the mode, so a mode that was set before it is committed before it. Capabilities vouch for the
    /// content and are dropped when it changes, so content that was written before them is committed before them.
    async fn settle_for_xattr(&self, inode: InodeId, name: &XattrName) -> Result<(), FsError> {
        match name.as_bytes() {
            CAPABILITY => self.0.files.settle(inode).await,
            name if name.starts_with(ACL_PREFIX) => self.0.files.settle_attributes(inode).await,
            _ => Ok(()),
        }
    }

    /// Commits what a name leads to: the file, or for a directory every file, since any may lie below it.
    async fn settle_name(&self, parent: InodeId, name: &FileName) -> Result<(), FsError> {
        if !self.0.files.any_unsettled() {
            return Ok(());
        }
        let attr = self.0.meta.lookup(parent, name).await?;
        match attr.kind {
            FileKind::Directory => self.0.files.settle_all().await,
            _ => self.0.files.settle(attr.inode).await,
        }
    }
}

#[cfg(test)]
#[path = "client/client_test.rs"]
mod tests;
