//! What the mount needs of a file system: the client, or a double in tests.
//!
//! Invariant: no logic; each method is the client's method of the same name.

use std::future::Future;

use bytes::Bytes;
use pando_client::{Client, HandleId, OpenMode, Opened, SeekTo, Space};
use pando_types::command::{AttrChange, Create, RenameMode, XattrMode};
use pando_types::request::DirectoryPage;
use pando_types::{Attr, FileName, FsError, InodeId, XattrName};

/// See [`Client`] for the meaning of each method.
#[rustfmt::skip]
pub(crate) trait Volume: Send + Sync + 'static {
    fn lookup(&self, parent: InodeId, name: &FileName) -> impl Future<Output = Result<Attr, FsError>> + Send;
    fn getattr(&self, inode: InodeId) -> impl Future<Output = Result<Attr, FsError>> + Send;
    fn is_ahead(&self, inode: InodeId) -> bool;
    fn setattr(&self, inode: InodeId, change: AttrChange, size: Option<u64>, handle: Option<HandleId>) -> impl Future<Output = Result<Attr, FsError>> + Send;
    fn create(&self, create: Create) -> impl Future<Output = Result<Attr, FsError>> + Send;
    fn create_open(&self, create: Create, mode: OpenMode) -> impl Future<Output = Result<Opened, FsError>> + Send;
    fn unlink(&self, parent: InodeId, name: &FileName) -> impl Future<Output = Result<(), FsError>> + Send;
    fn rmdir(&self, parent: InodeId, name: &FileName) -> impl Future<Output = Result<(), FsError>> + Send;
    fn rename(&self, parent: InodeId, name: &FileName, new_parent: InodeId, new_name: &FileName, mode: RenameMode) -> impl Future<Output = Result<(), FsError>> + Send;
    fn link(&self, inode: InodeId, parent: InodeId, name: &FileName) -> impl Future<Output = Result<Attr, FsError>> + Send;
    fn readdir(&self, inode: InodeId, after: Option<FileName>, plus: bool, limit: u32) -> impl Future<Output = Result<DirectoryPage, FsError>> + Send;
    fn readlink(&self, inode: InodeId) -> impl Future<Output = Result<Vec<u8>, FsError>> + Send;
    fn parent(&self, inode: InodeId) -> impl Future<Output = Result<Attr, FsError>> + Send;
    fn getxattr(&self, inode: InodeId, name: &XattrName) -> impl Future<Output = Result<Vec<u8>, FsError>> + Send;
    fn listxattr(&self, inode: InodeId) -> impl Future<Output = Result<Vec<XattrName>, FsError>> + Send;
    fn setxattr(&self, inode: InodeId, name: &XattrName, value: Vec<u8>, mode: XattrMode) -> impl Future<Output = Result<(), FsError>> + Send;
    fn removexattr(&self, inode: InodeId, name: &XattrName) -> impl Future<Output = Result<(), FsError>> + Send;
    fn statfs(&self) -> impl Future<Output = Result<Space, FsError>> + Send;
    fn open(&self, inode: InodeId, mode: OpenMode) -> impl Future<Output = Result<Opened, FsError>> + Send;
    fn read(&self, handle: HandleId, offset: u64, length: usize) -> impl Future<Output = Result<Bytes, FsError>> + Send;
    fn write(&self, handle: HandleId, offset: u64, data: &[u8], kill_privileges: bool) -> impl Future<Output = Result<usize, FsError>> + Send;
    fn try_write(&self, handle: HandleId, offset: u64, data: &[u8], kill_privileges: bool) -> Option<Result<usize, FsError>>;
    fn flush(&self, handle: HandleId) -> impl Future<Output = Result<(), FsError>> + Send;
    fn fsync(&self, handle: HandleId) -> impl Future<Output = Result<(), FsError>> + Send;
    fn release(&self, handle: HandleId) -> impl Future<Output = ()> + Send;
    fn fallocate(&self, handle: HandleId, mode: i32, offset: u64, length: u64) -> impl Future<Output = Result<(), FsError>> + Send;
    fn seek(&self, handle: HandleId, offset: u64, to: SeekTo) -> impl Future<Output = Result<u64, FsError>> + Send;
    fn copy_range(&self, from: HandleId, from_offset: u64, to: HandleId, to_offset: u64, length: u64) -> impl Future<Output = Result<u64, FsError>> + Send;
}

#[rustfmt::skip]
impl Volume for Client {
    async fn lookup(&self, parent: InodeId, name: &FileName) -> Result<Attr, FsError> { self.lookup(parent, name).await }
    async fn getattr(&self, inode: InodeId) -> Result<Attr, FsError> { self.getattr(inode).await }
    fn is_ahead(&self, inode: InodeId) -> bool { self.is_ahead(inode) }
    async fn setattr(&self, inode: InodeId, change: AttrChange, size: Option<u64>, handle: Option<HandleId>) -> Result<Attr, FsError> { self.setattr(inode, change, size, handle).await }
    async fn create(&self, create: Create) -> Result<Attr, FsError> { self.create(create).await }
    async fn create_open(&self, create: Create, mode: OpenMode) -> Result<Opened, FsError> { self.create_open(create, mode).await }
    async fn unlink(&self, parent: InodeId, name: &FileName) -> Result<(), FsError> { self.unlink(parent, name).await }
    async fn rmdir(&self, parent: InodeId, name: &FileName) -> Result<(), FsError> { self.rmdir(parent, name).await }
    async fn rename(&self, parent: InodeId, name: &FileName, new_parent: InodeId, new_name: &FileName, mode: RenameMode) -> Result<(), FsError> { self.rename(parent, name, new_parent, new_name, mode).await }
    async fn link(&self, inode: InodeId, parent: InodeId, name: &FileName) -> Result<Attr, FsError> { self.link(inode, parent, name).await }
    async fn readdir(&self, inode: InodeId, after: Option<FileName>, plus: bool, limit: u32) -> Result<DirectoryPage, FsError> { self.readdir(inode, after, plus, limit).await }
    async fn readlink(&self, inode: InodeId) -> Result<Vec<u8>, FsError> { self.readlink(inode).await }
    async fn parent(&self, inode: InodeId) -> Result<Attr, FsError> { self.parent(inode).await }
    async fn getxattr(&self, inode: InodeId, name: &XattrName) -> Result<Vec<u8>, FsError> { self.getxattr(inode, name).await }
    async fn listxattr(&self, inode: InodeId) -> Result<Vec<XattrName>, FsError> { self.listxattr(inode).await }
    async fn setxattr(&self, inode: InodeId, name: &XattrName, value: Vec<u8>, mode: XattrMode) -> Result<(), FsError> { self.setxattr(inode, name, value, mode).await }
    async fn removexattr(&self, inode: InodeId, name: &XattrName) -> Result<(), FsError> { self.removexattr(inode, name).await }
    async fn statfs(&self) -> Result<Space, FsError> { self.statfs().await }
    async fn open(&self, inode: InodeId, mode: OpenMode) -> Result<Opened, FsError> { self.open(inode, mode).await }
    async fn read(&self, handle: HandleId, offset: u64, length: usize) -> Result<Bytes, FsError> { self.read(handle, offset, length).await }
    async fn write(&self, handle: HandleId, offset: u64, data: &[u8], kill_privileges: bool) -> Result<usize, FsError> { self.write(handle, offset, data, kill_privileges).await }
    fn try_write(&self, handle: HandleId, offset: u64, data: &[u8], kill_privileges: bool) -> Option<Result<usize, FsError>> { self.try_write(handle, offset, data, kill_privileges) }
    async fn flush(&self, handle: HandleId) -> Result<(), FsError> { self.flush(handle).await }
    async fn fsync(&self, handle: HandleId) -> Result<(), FsError> { self.fsync(handle).await }
    async fn release(&self, handle: HandleId) { self.release(handle).await; }
    async fn fallocate(&self, handle: HandleId, mode: i32, offset: u64, length: u64) -> Result<(), FsError> { self.fallocate(handle, mode, offset, length).await }
    async fn seek(&self, handle: HandleId, offset: u64, to: SeekTo) -> Result<u64, FsError> { self.seek(handle, offset, to).await }
    async fn copy_range(&self, from: HandleId, from_offset: u64, to: HandleId, to_offset: u64, length: u64) -> Result<u64, FsError> { self.copy_range(from, from_offset, to, to_offset, length).await }
}
