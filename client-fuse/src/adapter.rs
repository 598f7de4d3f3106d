//! fuser's trait: converts arguments, calls `fs.rs`, converts the result. No logic.
//!
//! Invariants: nothing here waits on a thread of fuser's; a request that has to wait goes to the runtime with its reply.

use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, Generation, INodeNo, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use pando_client::Client;
use pando_types::{Attr, FsError, InodeId};
use tokio::runtime::Handle;

use crate::convert::{dot_attr, errno, file_attr, file_type, open_flags, set_time};
use crate::fs::{Caller, Fs, NewName, SetAttr, Sized as Answer, WriteTo};
use crate::mount;

/// See the module.
pub(crate) struct Adapter {
    fs: Arc<Fs<Client>>,
    runtime: Handle,
}

/// Inode numbers are never used twice.
const GENERATION: Generation = Generation(0);
const BLOCK_BYTES: u64 = 4096;
/// Inodes are limited by disk space only; `df -i` shows that many as free.
const INODES_FREE: u64 = 1 << 40;

impl Adapter {
    pub(crate) fn new(fs: Arc<Fs<Client>>, runtime: Handle) -> Adapter {
        Adapter { fs, runtime }
    }

    /// Tries the work here, where most of it ends or at least sends its question; what must wait goes on in the runtime.
    fn run(&self, work: impl Future<Output = ()> + Send + 'static) {
        let _runtime = self.runtime.enter();
        let mut work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(work);
        match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(()) => {}
            Poll::Pending => drop(self.runtime.spawn(work)),
        }
    }
}

/// Methods of fuser's trait by request.
impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        mount::negotiate(config);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (fs, parent, name) = (self.fs.clone(), InodeId(parent.0), name.as_bytes().to_vec());
        self.run(async move { entry(reply, &fs, fs.lookup(parent, &name).await) });
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.fs.forget(InodeId(ino.0), nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let fs = self.fs.clone();
        self.run(async move { attributes(reply, &fs, fs.getattr(InodeId(ino.0)).await) });
    }

    #[rustfmt::skip]
    fn setattr(
        &self, req: &Request, ino: INodeNo, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>, size: Option<u64>,
        atime: Option<TimeOrNow>, mtime: Option<TimeOrNow>, _ctime: Option<SystemTime>, fh: Option<FileHandle>,
        _crtime: Option<SystemTime>, _chgtime: Option<SystemTime>, _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>, reply: ReplyAttr,
    ) {
        let (fs, caller) = (self.fs.clone(), caller(req));
        let (atime, mtime, handle) = (atime.map(set_time), mtime.map(set_time), fh.map(|h| h.0));
        let to = SetAttr { mode, uid, gid, size, atime, mtime, handle };
        self.run(async move { attributes(reply, &fs, fs.setattr(caller, InodeId(ino.0), to).await) });
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let fs = self.fs.clone();
        self.run(async move { data(reply, fs.readlink(InodeId(ino.0)).await) });
    }

    #[rustfmt::skip]
    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let (fs, new) = (self.fs.clone(), new_name(req, parent, name, mode, umask));
        self.run(async move { entry(reply, &fs, fs.mknod(new, rdev).await) });
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let (fs, new) = (self.fs.clone(), new_name(req, parent, name, mode, umask));
        self.run(async move { entry(reply, &fs, fs.mkdir(new).await) });
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (fs, name) = (self.fs.clone(), name.as_bytes().to_vec());
        self.run(async move { empty(reply, fs.unlink(InodeId(parent.0), &name).await) });
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (fs, name) = (self.fs.clone(), name.as_bytes().to_vec());
        self.run(async move { empty(reply, fs.rmdir(InodeId(parent.0), &name).await) });
    }

    fn symlink(&self, req: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (fs, new) = (self.fs.clone(), new_name(req, parent, link_name, 0o777, 0));
        let target = target.as_os_str().as_bytes().to_vec();
        self.run(async move { entry(reply, &fs, fs.symlink(new, target).await) });
    }

    #[rustfmt::skip]
    fn rename(
        &self, _req: &Request, parent: INodeNo, name: &OsStr, newparent: INodeNo, newname: &OsStr, flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (fs, old, new) = (self.fs.clone(), name.as_bytes().to_vec(), newname.as_bytes().to_vec());
        let (parent, newparent) = (InodeId(parent.0), InodeId(newparent.0));
        self.run(async move { empty(reply, fs.rename((parent, &old), (newparent, &new), flags.bits()).await) });
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let (fs, name) = (self.fs.clone(), newname.as_bytes().to_vec());
        self.run(async move { entry(reply, &fs, fs.link(InodeId(ino.0), InodeId(newparent.0), &name).await) });
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (fs, caller) = (self.fs.clone(), caller(req));
        self.run(async move {
            match fs.open(caller, InodeId(ino.0), flags.0).await {
                Ok(opened) => reply.opened(FileHandle(opened.handle), open_flags(opened.caching)),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    #[rustfmt::skip]
    fn create(
        &self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32, reply: ReplyCreate,
    ) {
        let (fs, new) = (self.fs.clone(), new_name(req, parent, name, mode, umask));
        self.run(async move {
            match fs.create(new, flags).await {
                Ok((attr, opened)) => {
                    let (handle, flags) = (FileHandle(opened.handle), open_flags(opened.caching));
                    reply.created(&fs.ttl(attr.inode), &file_attr(&attr), GENERATION, handle, flags);
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    #[rustfmt::skip]
    fn read(
        &self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, size: u32, _flags: OpenFlags,
        _lock_owner: Option<LockOwner>, reply: ReplyData,
    ) {
        let fs = self.fs.clone();
        self.run(async move { data(reply, fs.read(fh.0, offset, size).await) });
    }

    #[rustfmt::skip]
    fn write(
        &self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, data: &[u8], write_flags: WriteFlags,
        _flags: OpenFlags, _lock_owner: Option<LockOwner>, reply: ReplyWrite,
    ) {
        let kill_privileges = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let from_page = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let to = WriteTo { inode: InodeId(ino.0), handle: fh.0, offset, kill_privileges, from_page };
        // A block that this write fills is stored by a task of the runtime.
        let _runtime = self.runtime.enter();
        match self.fs.try_write(to, data) {
            Some(result) => written(reply, result),
            None => {
                let (fs, data) = (self.fs.clone(), data.to_vec());
                self.run(async move { written(reply, fs.write(to, &data).await) });
            }
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        let fs = self.fs.clone();
        self.run(async move { empty(reply, fs.flush(fh.0).await) });
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let fs = self.fs.clone();
        self.run(async move { empty(reply, fs.fsync(fh.0).await) });
    }

    #[rustfmt::skip]
    fn release(
        &self, _req: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, _lock_owner: Option<LockOwner>,
        _flush: bool, reply: ReplyEmpty,
    ) {
        let fs = self.fs.clone();
        self.run(async move {
            fs.release(fh.0).await;
            reply.ok();
        });
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(self.fs.opendir(InodeId(ino.0))), fuser::FopenFlags::empty());
    }

    fn readdir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let fs = self.fs.clone();
        self.run(async move {
            let listed = fs.readdir(fh.0, offset, false, |e| {
                reply.add(INodeNo(e.inode.0), e.next, file_type(e.kind), OsStr::from_bytes(e.name))
            });
            match listed.await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn readdirplus(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let fs = self.fs.clone();
        self.run(async move {
            let listed = fs.readdir(fh.0, offset, true, |e| {
                let ino = INodeNo(e.inode.0);
                let (attr, ttl) = (e.attr.map_or_else(|| dot_attr(ino), file_attr), fs.ttl(e.inode));
                reply.add(ino, e.next, OsStr::from_bytes(e.name), &ttl, &attr, GENERATION)
            });
            match listed.await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.fs.releasedir(fh.0);
        reply.ok();
    }

    /// Names are in the servers' log before the call that made them returns.
    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let fs = self.fs.clone();
        self.run(async move {
            match fs.statfs().await {
                Ok(space) => {
                    let (total, free) = (space.total_bytes / BLOCK_BYTES, space.free_bytes / BLOCK_BYTES);
                    let (block, name) = (BLOCK_BYTES as u32, pando_types::limits::NAME_BYTES_MAX as u32);
                    let inodes = space.inodes + INODES_FREE;
                    reply.statfs(total, free, free, inodes, INODES_FREE, block, name, block);
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    #[rustfmt::skip]
    fn setxattr(
        &self, _req: &Request, ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, _position: u32, reply: ReplyEmpty,
    ) {
        let (fs, name, value) = (self.fs.clone(), name.as_bytes().to_vec(), value.to_vec());
        self.run(async move { empty(reply, fs.setxattr(InodeId(ino.0), &name, value, flags).await) });
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (fs, ino, name) = (self.fs.clone(), InodeId(ino.0), name.as_bytes().to_vec());
        self.run(async move { xattr(reply, fs.getxattr(ino, &name, size).await) });
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let (fs, caller) = (self.fs.clone(), caller(req));
        self.run(async move { xattr(reply, fs.listxattr(caller, InodeId(ino.0), size).await) });
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (fs, name) = (self.fs.clone(), name.as_bytes().to_vec());
        self.run(async move { empty(reply, fs.removexattr(InodeId(ino.0), &name).await) });
    }

    /// Every Python open asks whether the file is a terminal.
    #[rustfmt::skip]
    fn ioctl(
        &self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _flags: IoctlFlags, _cmd: u32, _in_data: &[u8],
        _out_size: u32, reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    /// Files are always ready; the kernel asks once and then answers itself.
    #[rustfmt::skip]
    fn poll(
        &self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _ph: PollNotifier, _events: PollEvents,
        _flags: PollFlags, reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    #[rustfmt::skip]
    fn fallocate(
        &self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty,
    ) {
        let fs = self.fs.clone();
        self.run(async move { empty(reply, fs.fallocate(fh.0, mode, offset, length).await) });
    }

    #[rustfmt::skip]
    fn lseek(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let fs = self.fs.clone();
        self.run(async move {
            match fs.lseek(fh.0, offset, whence).await {
                Ok(offset) => reply.offset(offset),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    #[rustfmt::skip]
    fn copy_file_range(
        &self, _req: &Request, _ino_in: INodeNo, fh_in: FileHandle, offset_in: u64, _ino_out: INodeNo,
        fh_out: FileHandle, offset_out: u64, len: u64, _flags: CopyFileRangeFlags, reply: ReplyWrite,
    ) {
        let fs = self.fs.clone();
        self.run(async move { written(reply, fs.copy((fh_in.0, offset_in), (fh_out.0, offset_out), len).await) });
    }
}

fn caller(req: &Request) -> Caller {
    Caller { uid: req.uid(), gid: req.gid() }
}

fn new_name(req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32) -> NewName {
    NewName { caller: caller(req), parent: InodeId(parent.0), name: name.as_bytes().to_vec(), mode, umask }
}

fn entry(reply: ReplyEntry, fs: &Fs<Client>, result: Result<Attr, FsError>) {
    match result {
        Ok(attr) => reply.entry(&fs.ttl(attr.inode), &file_attr(&attr), GENERATION),
        Err(error) => reply.error(errno(error)),
    }
}

fn attributes(reply: ReplyAttr, fs: &Fs<Client>, result: Result<Attr, FsError>) {
    match result {
        Ok(attr) => reply.attr(&fs.ttl(attr.inode), &file_attr(&attr)),
        Err(error) => reply.error(errno(error)),
    }
}

fn data(reply: ReplyData, result: Result<impl AsRef<[u8]>, FsError>) {
    match result {
        Ok(data) => reply.data(data.as_ref()),
        Err(error) => reply.error(errno(error)),
    }
}

fn empty(reply: ReplyEmpty, result: Result<(), FsError>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn written(reply: ReplyWrite, result: Result<u32, FsError>) {
    match result {
        Ok(bytes) => reply.written(bytes),
        Err(error) => reply.error(errno(error)),
    }
}

fn xattr(reply: ReplyXattr, result: Result<Answer, FsError>) {
    match result {
        Ok(Answer::Size(size)) => reply.size(size),
        Ok(Answer::Data(data)) => reply.data(&data),
        Err(error) => reply.error(errno(error)),
    }
}
