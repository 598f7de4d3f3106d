//! The file system as the kernel sees it: verbs by inode, with what must be true of the kernel's caches.
//!
//! Not here: fuser's types (`adapter.rs`), file bytes and commits (the client).
//! Invariants: every inode that the kernel is told of by name is counted until it forgets it; the kernel keeps pages across
//! an open only if the client says that they are right, and drops attributes at an open if they are not.

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use dashmap::DashSet;
use pando_client::{HandleId, OpenMode, SeekTo, Space};
use pando_types::command::{AttrChange, Create, NewNode, RenameMode, SetTime};
use pando_types::{Attr, Errno, FileKind, FileName, FsError, InodeId};

use crate::handles::{Directories, Listed};
use crate::inodes::Inodes;
use crate::running::Running;
use crate::volume::Volume;

mod xattr;

pub(crate) use xattr::Sized;

/// How long the kernel may answer for attributes and names that it was told. Without leases another mount's change is seen
/// this late at most by a path walk; an open looks itself. 1 s makes stat 20 to 80 times cheaper than 0 and is what users know from NFS.
/// Absent names are not cached at all: ranks stat a file until another node has created it.
const TTL: Duration = Duration::from_secs(1);
/// Bytes that one copy_file_range request moves: bounds how long it takes. The caller goes on from there.
const COPY_BYTES_MAX: u64 = 32 << 20;
/// A name that appears and vanishes between two steps this often is somebody's game.
const CREATE_TRIES: u32 = 5;

/// Whose request it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Caller {
    /// Whether a write or truncation clears suid and sgid: what CAP_FSETID prevents, which FUSE tells for writes only.
    fn loses_privileges(self) -> bool {
        self.uid != 0
    }
}

/// How the kernel shall treat an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenReply {
    pub(crate) handle: u64,
    pub(crate) caching: Caching,
}

/// What the kernel may do with the pages of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caching {
    /// Opened for writing: no pages, parallel writes, flush at close.
    DirectWriter,
    /// Opened O_DIRECT for reading: no pages.
    DirectReader,
    /// Reads through pages that start anew.
    Fresh,
    /// Reads through pages; those that are there are right.
    Keep,
}

/// A write request beside its bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteTo {
    pub(crate) inode: InodeId,
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) kill_privileges: bool,
    /// A dirty page of a shared mapping: of any handle that may write, and always at its offset.
    pub(crate) from_page: bool,
}

/// New attributes as setattr asks for them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SetAttr {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<SetTime>,
    pub(crate) mtime: Option<SetTime>,
    pub(crate) handle: Option<u64>,
}

/// A name to make.
#[derive(Debug, Clone)]
pub(crate) struct NewName {
    pub(crate) caller: Caller,
    pub(crate) parent: InodeId,
    pub(crate) name: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) umask: u32,
}

/// The kernel's caches.
pub(crate) trait Kernel: Send + Sync {
    /// What the kernel knows of an inode's attributes is outdated. Must not wait for requests in progress.
    fn drop_attributes(&self, inode: InodeId);
}

/// See the module.
pub(crate) struct Fs<V> {
    volume: V,
    inodes: Inodes,
    directories: Directories,
    /// Handles that append; pages of shared mappings must not be written through them.
    appending: DashSet<HandleId>,
    running: Running,
    kernel: OnceLock<Box<dyn Kernel>>,
}

impl<V: Volume> Fs<V> {
    pub(crate) fn new(volume: V) -> Fs<V> {
        let (inodes, directories) = (Inodes::new(), Directories::new());
        let (appending, running) = (DashSet::new(), Running::default());
        Fs { volume, inodes, directories, appending, running, kernel: OnceLock::new() }
    }

    /// Gives the way to the kernel's caches, which exists only once it is mounted.
    pub(crate) fn set_kernel(&self, kernel: Box<dyn Kernel>) {
        let _ = self.kernel.set(kernel);
    }

    /// How long the kernel may keep an inode's attributes: not at all while a commit is to come, which stamps its own times.
    pub(crate) fn ttl(&self, inode: InodeId) -> Duration {
        if self.volume.is_ahead(inode) { Duration::ZERO } else { TTL }
    }

    pub(crate) async fn lookup(&self, parent: InodeId, name: &[u8]) -> Result<Attr, FsError> {
        // With FUSE_EXPORT_SUPPORT the kernel asks for `.` and `..` to turn file handles (NFS, name_to_handle_at) into paths.
        let attr = match name {
            b"." => self.volume.getattr(parent).await?,
            b".." => self.volume.parent(parent).await?,
            _ => self.volume.lookup(parent, &FileName::new(name)?).await?,
        };
        self.inodes.looked_up(&attr, parent);
        Ok(attr)
    }

    pub(crate) fn forget(&self, inode: InodeId, lookups: u64) {
        self.inodes.forget(inode, lookups);
    }

    pub(crate) async fn getattr(&self, inode: InodeId) -> Result<Attr, FsError> {
        let attr = match self.volume.getattr(inode).await {
            Err(error) if error.errno == Errno::ENOENT => self.inodes.removed(inode).ok_or(error)?,
            result => result?,
        };
        self.inodes.told(&attr);
        Ok(attr)
    }

    pub(crate) async fn setattr(&self, caller: Caller, inode: InodeId, to: SetAttr) -> Result<Attr, FsError> {
        let change = AttrChange {
            mode: to.mode.map(|m| m & pando_types::attr::MODE_BITS),
            uid: to.uid,
            gid: to.gid,
            atime: to.atime,
            mtime: to.mtime,
            kill_privileges: to.size.is_some() && caller.loses_privileges(),
        };
        let attr = self.volume.setattr(inode, change, to.size, to.handle.map(HandleId)).await?;
        self.inodes.xattrs_change(inode);
        self.inodes.told(&attr);
        Ok(attr)
    }

    pub(crate) async fn readlink(&self, inode: InodeId) -> Result<Vec<u8>, FsError> {
        self.volume.readlink(inode).await
    }

    /// Makes anything but an open file.
    pub(crate) async fn make(&self, new: NewName, node: NewNode) -> Result<Attr, FsError> {
        let parent = new.parent;
        let attr = self.volume.create(new.into_create(node)?).await?;
        self.inodes.looked_up(&attr, parent);
        Ok(attr)
    }

    /// `mode` holds the file type as well.
    pub(crate) async fn mknod(&self, new: NewName, rdev: u32) -> Result<Attr, FsError> {
        let node = match new.mode & libc::S_IFMT {
            0 | libc::S_IFREG => NewNode::File,
            libc::S_IFIFO => NewNode::Fifo,
            libc::S_IFSOCK => NewNode::Socket,
            libc::S_IFCHR => NewNode::CharDevice { rdev },
            libc::S_IFBLK => NewNode::BlockDevice { rdev },
            _ => return Err(Errno::EINVAL.into()),
        };
        self.make(new, node).await
    }

    pub(crate) async fn mkdir(&self, new: NewName) -> Result<Attr, FsError> {
        let slot = new.parent.slot();
        self.make(new, NewNode::Directory { slot }).await
    }

    pub(crate) async fn symlink(&self, new: NewName, target: Vec<u8>) -> Result<Attr, FsError> {
        self.make(new, NewNode::Symlink { target }).await
    }

    pub(crate) async fn unlink(&self, parent: InodeId, name: &[u8]) -> Result<(), FsError> {
        self.volume.unlink(parent, &FileName::new(name)?).await
    }

    pub(crate) async fn rmdir(&self, parent: InodeId, name: &[u8]) -> Result<(), FsError> {
        let name = FileName::new(name)?;
        let last = self.volume.lookup(parent, &name).await;
        self.volume.rmdir(parent, &name).await?;
        if let Ok(attr) = last {
            self.inodes.remove(attr);
        }
        Ok(())
    }

    /// `flags`: those of renameat2.
    pub(crate) async fn rename(&self, from: (InodeId, &[u8]), to: (InodeId, &[u8]), flags: u32) -> Result<(), FsError> {
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Errno::EINVAL.into()),
        };
        self.volume.rename(from.0, &FileName::new(from.1)?, to.0, &FileName::new(to.1)?, mode).await
    }

    pub(crate) async fn link(&self, inode: InodeId, parent: InodeId, name: &[u8]) -> Result<Attr, FsError> {
        let attr = self.volume.link(inode, parent, &FileName::new(name)?).await?;
        self.inodes.looked_up(&attr, parent);
        Ok(attr)
    }

    /// `flags`: those of open(2).
    pub(crate) async fn open(&self, caller: Caller, inode: InodeId, flags: i32) -> Result<OpenReply, FsError> {
        let mode = OpenMode { kill_privileges: caller.loses_privileges(), ..open_mode(flags) };
        if mode.truncate {
            self.running.may_truncate(inode).await?;
        }
        let opened = self.volume.open(inode, mode).await?;
        self.running.opened(opened.handle.0, inode, flags);
        if !mode.truncate && self.inodes.differs(&opened.attr) {
            // The open itself tells no attributes, and a size from before it would hide what was appended elsewhere.
            if let Some(kernel) = self.kernel.get() {
                kernel.drop_attributes(inode);
            }
        }
        Ok(self.opened(opened.handle, mode, opened.keep_cache))
    }

    /// open(2) of a name that was absent when the kernel looked.
    pub(crate) async fn create(&self, new: NewName, flags: i32) -> Result<(Attr, OpenReply), FsError> {
        let mode = OpenMode { truncate: false, ..open_mode(flags) };
        let create = new.clone().into_create(NewNode::File)?;
        for _ in 0..CREATE_TRIES {
            match self.volume.create_open(create.clone(), mode).await {
                Ok(opened) => {
                    self.inodes.looked_up(&opened.attr, new.parent);
                    return Ok((opened.attr, self.opened(opened.handle, mode, opened.keep_cache)));
                }
                Err(e) if e.errno == Errno::EEXIST && flags & libc::O_EXCL == 0 => {}
                Err(e) => return Err(e),
            }
            match self.volume.lookup(new.parent, &create.name).await {
                Ok(attr) => return self.open_existing(new, attr, flags).await,
                Err(e) if e.errno == Errno::ENOENT => {}
                Err(e) => return Err(e),
            }
        }
        Err(Errno::ESTALE.into())
    }

    /// Somebody else was faster. The kernel has not checked whether the caller may open what they made, so anything but an own
    /// file goes back to it: after ESTALE it walks the path again, finds the name and checks.
    async fn open_existing(&self, new: NewName, attr: Attr, flags: i32) -> Result<(Attr, OpenReply), FsError> {
        let may_open = new.caller.uid == 0 || new.caller.uid == attr.uid && attr.mode & 0o600 == 0o600;
        if attr.kind != FileKind::File || !may_open {
            return Err(Errno::ESTALE.into());
        }
        let reply = self.open(new.caller, attr.inode, flags).await?;
        let attr = if flags & libc::O_TRUNC == 0 { attr } else { self.volume.getattr(attr.inode).await? };
        self.inodes.looked_up(&attr, new.parent);
        Ok((attr, reply))
    }

    fn opened(&self, handle: HandleId, mode: OpenMode, keep_cache: bool) -> OpenReply {
        if mode.append {
            self.appending.insert(handle);
        }
        let caching = match mode {
            OpenMode { write: true, .. } => Caching::DirectWriter,
            OpenMode { direct: true, .. } => Caching::DirectReader,
            _ if keep_cache => Caching::Keep,
            _ => Caching::Fresh,
        };
        OpenReply { handle: handle.0, caching }
    }

    pub(crate) async fn read(&self, handle: u64, offset: u64, length: u32) -> Result<Bytes, FsError> {
        self.volume.read(HandleId(handle), offset, length as usize).await
    }

    /// The write, if it can be done without waiting.
    pub(crate) fn try_write(&self, to: WriteTo, data: &[u8]) -> Option<Result<u32, FsError>> {
        if to.from_page && self.appending.contains(&HandleId(to.handle)) {
            return None;
        }
        let result = self.volume.try_write(HandleId(to.handle), to.offset, data, to.kill_privileges)?;
        Some(result.map(|n| n as u32))
    }

    pub(crate) async fn write(&self, to: WriteTo, data: &[u8]) -> Result<u32, FsError> {
        let handle = HandleId(to.handle);
        if to.from_page && self.appending.contains(&handle) {
            return self.write_page(to, data).await;
        }
        let written = self.volume.write(handle, to.offset, data, to.kill_privileges).await?;
        Ok(written as u32)
    }

    /// The kernel picks any handle for a dirty page; one that appends would put the page at the end.
    async fn write_page(&self, to: WriteTo, data: &[u8]) -> Result<u32, FsError> {
        let mode = OpenMode { read: true, write: true, ..OpenMode::default() };
        let opened = self.volume.open(to.inode, mode).await?;
        let written = self.volume.write(opened.handle, to.offset, data, false).await;
        self.volume.release(opened.handle).await;
        Ok(written? as u32)
    }

    pub(crate) async fn flush(&self, handle: u64) -> Result<(), FsError> {
        self.volume.flush(HandleId(handle)).await
    }

    pub(crate) async fn fsync(&self, handle: u64) -> Result<(), FsError> {
        self.volume.fsync(HandleId(handle)).await
    }

    pub(crate) async fn release(&self, handle: u64) {
        self.appending.remove(&HandleId(handle));
        self.running.released(handle);
        self.volume.release(HandleId(handle)).await;
    }

    pub(crate) async fn fallocate(&self, handle: u64, mode: i32, offset: u64, length: u64) -> Result<(), FsError> {
        self.volume.fallocate(HandleId(handle), mode, offset, length).await
    }

    /// `whence`: SEEK_DATA or SEEK_HOLE; the kernel does the others itself.
    pub(crate) async fn lseek(&self, handle: u64, offset: i64, whence: i32) -> Result<i64, FsError> {
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        let to = match whence {
            libc::SEEK_DATA => SeekTo::Data,
            libc::SEEK_HOLE => SeekTo::Hole,
            _ => return Err(Errno::EINVAL.into()),
        };
        let found = self.volume.seek(HandleId(handle), offset, to).await?;
        Ok(i64::try_from(found).map_err(|_| Errno::EFBIG)?)
    }

    /// From (handle, offset) to (handle, offset); may copy less than asked.
    pub(crate) async fn copy(&self, from: (u64, u64), to: (u64, u64), length: u64) -> Result<u32, FsError> {
        let length = length.min(COPY_BYTES_MAX);
        let copied = self.volume.copy_range(HandleId(from.0), from.1, HandleId(to.0), to.1, length).await?;
        Ok(copied as u32)
    }

    pub(crate) fn opendir(&self, inode: InodeId) -> u64 {
        self.directories.open(inode)
    }

    /// Entries from `offset` on, until `emit` says that it is full; with attributes if `plus`, which count as looked up.
    pub(crate) async fn readdir(
        &self,
        handle: u64,
        offset: u64,
        plus: bool,
        mut emit: impl FnMut(Listed<'_>) -> bool + Send,
    ) -> Result<(), FsError> {
        let listing = self.directories.find(handle).ok_or(Errno::EBADF)?;
        let mut listing = listing.lock().await;
        let directory = listing.inode;
        let parent = if offset < 2 { self.parent(directory).await? } else { directory };
        let mut counted = |entry: Listed<'_>| {
            let attr = entry.attr.cloned();
            let full = emit(entry);
            if let Some(attr) = attr.filter(|_| plus && !full) {
                self.inodes.looked_up(&attr, directory);
            }
            full
        };
        listing.read(&self.volume, offset, plus, [directory, parent], &mut counted).await
    }

    async fn parent(&self, directory: InodeId) -> Result<InodeId, FsError> {
        match self.inodes.parent(directory) {
            Some(parent) => Ok(parent),
            None if directory == InodeId::ROOT => Ok(directory),
            None => Ok(self.volume.parent(directory).await?.inode),
        }
    }

    pub(crate) fn releasedir(&self, handle: u64) {
        self.directories.close(handle);
    }

    pub(crate) async fn statfs(&self) -> Result<Space, FsError> {
        self.volume.statfs().await
    }
}

impl NewName {
    fn into_create(self, node: NewNode) -> Result<Create, FsError> {
        Ok(Create {
            parent: self.parent,
            name: FileName::new(&self.name)?,
            node,
            mode: self.mode & pando_types::attr::MODE_BITS,
            umask: self.umask & 0o777,
            uid: self.caller.uid,
            gid: self.caller.gid,
        })
    }
}

/// O_TRUNC makes a writer of any open: the emptied file is committed at its close.
fn open_mode(flags: i32) -> OpenMode {
    let access = flags & libc::O_ACCMODE;
    let truncate = flags & libc::O_TRUNC != 0;
    OpenMode {
        read: access != libc::O_WRONLY,
        write: access != libc::O_RDONLY || truncate,
        truncate,
        append: flags & libc::O_APPEND != 0 && access != libc::O_RDONLY,
        direct: flags & libc::O_DIRECT != 0,
        kill_privileges: false,
    }
}

#[cfg(test)]
#[path = "fs/fs_test.rs"]
pub(crate) mod tests;
