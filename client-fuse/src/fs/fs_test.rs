//! The file system without a kernel, over a double that keeps one directory in memory.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use pando_client::Opened;
use pando_types::command::XattrMode;
use pando_types::request::{DirectoryEntry, DirectoryPage};
use pando_types::{Timestamp, XattrName};

use super::*;

pub(crate) fn file_attr(inode: u64) -> Attr {
    Attr {
        inode: InodeId(inode),
        kind: FileKind::File,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        allocated: 0,
        atime: Timestamp(0),
        mtime: Timestamp(0),
        ctime: Timestamp(0),
        version: 0,
    }
}

/// A root directory with files in memory. Calls are counted by name.
#[derive(Default)]
pub(crate) struct Double {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    names: BTreeMap<Vec<u8>, Attr>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    calls: Vec<String>,
    next: u64,
    /// Made by somebody else right before the next create.
    rival: Option<Attr>,
    keep_cache: bool,
    would_wait: bool,
    /// Has uncommitted changes.
    ahead: Option<InodeId>,
}

impl Double {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn call(&self, text: impl Into<String>) {
        self.state().calls.push(text.into());
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.state().calls)
    }

    pub(crate) fn add_file(&self, name: &str) {
        let mut state = self.state();
        state.next += 1;
        let attr = file_attr(100 + state.next);
        state.names.insert(name.into(), attr);
    }

    pub(crate) fn remove_file(&self, name: &str) {
        self.state().names.remove(name.as_bytes());
    }

    pub(crate) fn set_size(&self, name: &str, size: u64) {
        self.state().names.get_mut(name.as_bytes()).unwrap().size = size;
    }

    fn by_inode(&self, inode: InodeId) -> Result<Attr, FsError> {
        if inode == InodeId::ROOT {
            return Ok(Attr { kind: FileKind::Directory, ..file_attr(1) });
        }
        self.state().names.values().find(|a| a.inode == inode).cloned().ok_or(Errno::ENOENT.into())
    }
}

#[rustfmt::skip]
impl Volume for Double {
    async fn lookup(&self, _parent: InodeId, name: &FileName) -> Result<Attr, FsError> {
        self.state().names.get(name.as_bytes()).cloned().ok_or(Errno::ENOENT.into())
    }
    async fn getattr(&self, inode: InodeId) -> Result<Attr, FsError> { self.by_inode(inode) }
    fn is_ahead(&self, inode: InodeId) -> bool { self.state().ahead == Some(inode) }
    async fn setattr(&self, inode: InodeId, change: AttrChange, size: Option<u64>, _handle: Option<HandleId>) -> Result<Attr, FsError> {
        self.call(format!("setattr mode {:?} size {size:?} kill {}", change.mode, change.kill_privileges));
        self.by_inode(inode)
    }
    async fn create(&self, create: Create) -> Result<Attr, FsError> {
        let mut state = self.state();
        if let Some(rival) = state.rival.take() {
            state.names.insert(create.name.as_bytes().to_vec(), rival);
        }
        if state.names.contains_key(create.name.as_bytes()) {
            return Err(Errno::EEXIST.into());
        }
        state.next += 1;
        let attr = Attr { kind: create.node.kind(), mode: create.mode & !create.umask, ..file_attr(100 + state.next) };
        state.names.insert(create.name.as_bytes().to_vec(), attr.clone());
        Ok(attr)
    }
    async fn create_open(&self, create: Create, mode: OpenMode) -> Result<Opened, FsError> {
        let attr = self.create(create).await?;
        self.open(attr.inode, mode).await
    }
    async fn unlink(&self, _parent: InodeId, name: &FileName) -> Result<(), FsError> {
        self.state().names.remove(name.as_bytes()).map(|_| ()).ok_or(Errno::ENOENT.into())
    }
    async fn rmdir(&self, parent: InodeId, name: &FileName) -> Result<(), FsError> { self.unlink(parent, name).await }
    async fn rename(&self, _: InodeId, name: &FileName, _: InodeId, new_name: &FileName, mode: RenameMode) -> Result<(), FsError> {
        self.call(format!("rename {name} {new_name} {mode:?}"));
        Ok(())
    }
    async fn link(&self, inode: InodeId, _parent: InodeId, name: &FileName) -> Result<Attr, FsError> {
        let attr = self.by_inode(inode)?;
        self.state().names.insert(name.as_bytes().to_vec(), attr.clone());
        Ok(attr)
    }
    async fn readdir(&self, _inode: InodeId, after: Option<FileName>, plus: bool, limit: u32) -> Result<DirectoryPage, FsError> {
        let state = self.state();
        let from = after.map_or(Bound::Unbounded, |n| Bound::Excluded(n.as_bytes().to_vec()));
        let mut rest = state.names.range((from, Bound::Unbounded));
        let entry = |(name, attr): (&Vec<u8>, &Attr)| DirectoryEntry {
            name: FileName::new(name).unwrap(), inode: attr.inode, kind: attr.kind, attr: plus.then(|| attr.clone()),
        };
        let entries = rest.by_ref().take(limit as usize).map(entry).collect();
        Ok(DirectoryPage { entries, end: rest.next().is_none() })
    }
    async fn readlink(&self, _inode: InodeId) -> Result<Vec<u8>, FsError> { Ok(b"target".to_vec()) }
    async fn parent(&self, inode: InodeId) -> Result<Attr, FsError> {
        self.call("parent");
        self.by_inode(InodeId::ROOT).map(|a| Attr { inode: if inode == InodeId(9) { InodeId(8) } else { a.inode }, ..a })
    }
    async fn getxattr(&self, _inode: InodeId, name: &XattrName) -> Result<Vec<u8>, FsError> {
        self.call(format!("getxattr {name}"));
        self.state().xattrs.get(name.as_bytes()).cloned().ok_or(Errno::ENODATA.into())
    }
    async fn listxattr(&self, _inode: InodeId) -> Result<Vec<XattrName>, FsError> {
        Ok(self.state().xattrs.keys().map(|n| XattrName::new(n).unwrap()).collect())
    }
    async fn setxattr(&self, _inode: InodeId, name: &XattrName, value: Vec<u8>, mode: XattrMode) -> Result<(), FsError> {
        self.call(format!("setxattr {name} {mode:?}"));
        self.state().xattrs.insert(name.as_bytes().to_vec(), value);
        Ok(())
    }
    async fn removexattr(&self, _inode: InodeId, name: &XattrName) -> Result<(), FsError> {
        self.state().xattrs.remove(name.as_bytes()).map(|_| ()).ok_or(Errno::ENODATA.into())
    }
    async fn statfs(&self) -> Result<Space, FsError> { Ok(Space { total_bytes: 1 << 40, free_bytes: 1 << 39, inodes: 3 }) }
    async fn open(&self, inode: InodeId, mode: OpenMode) -> Result<Opened, FsError> {
        let attr = self.by_inode(inode)?;
        let mut state = self.state();
        state.next += 1;
        let handle = HandleId(state.next);
        state.calls.push(format!("open read {} write {} truncate {} append {}", mode.read, mode.write, mode.truncate, mode.append));
        Ok(Opened { handle, keep_cache: state.keep_cache, attr })
    }
    async fn read(&self, _handle: HandleId, _offset: u64, length: usize) -> Result<Bytes, FsError> { Ok(vec![0; length].into()) }
    async fn write(&self, handle: HandleId, offset: u64, data: &[u8], kill_privileges: bool) -> Result<usize, FsError> {
        self.call(format!("write {} at {offset} kill {kill_privileges}", handle.0));
        Ok(data.len())
    }
    fn try_write(&self, handle: HandleId, offset: u64, data: &[u8], _kill: bool) -> Option<Result<usize, FsError>> {
        if self.state().would_wait {
            return None;
        }
        self.call(format!("try_write {} at {offset}", handle.0));
        Some(Ok(data.len()))
    }
    async fn flush(&self, _handle: HandleId) -> Result<(), FsError> { Ok(()) }
    async fn fsync(&self, _handle: HandleId) -> Result<(), FsError> { Ok(()) }
    async fn release(&self, handle: HandleId) { self.call(format!("release {}", handle.0)); }
    async fn fallocate(&self, _handle: HandleId, _mode: i32, _offset: u64, _length: u64) -> Result<(), FsError> { Ok(()) }
    async fn seek(&self, _handle: HandleId, offset: u64, to: SeekTo) -> Result<u64, FsError> { Ok(offset + u64::from(to == SeekTo::Hole)) }
    async fn copy_range(&self, _: HandleId, _: u64, _: HandleId, _: u64, length: u64) -> Result<u64, FsError> { Ok(length) }
}

#[derive(Clone, Default)]
struct Dropped(Arc<AtomicU64>);

impl Kernel for Dropped {
    fn drop_attributes(&self, _inode: InodeId) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn setup() -> (Fs<Double>, Dropped) {
    let (fs, dropped) = (Fs::new(Double::default()), Dropped::default());
    fs.set_kernel(Box::new(dropped.clone()));
    (fs, dropped)
}

const ROOT: Caller = Caller { uid: 0, gid: 0 };
const USER: Caller = Caller { uid: 1000, gid: 1000 };

fn new(name: &str, caller: Caller) -> NewName {
    NewName { caller, parent: InodeId::ROOT, name: name.into(), mode: 0o100_666, umask: 0o022 }
}

fn errno<T>(result: Result<T, FsError>) -> Errno {
    result.map(|_| ()).unwrap_err().errno
}

#[tokio::test]
async fn lookups_are_counted_until_forgotten() {
    let (fs, _) = setup();
    let made = fs.mknod(new("x", ROOT), 0).await.unwrap();
    assert_eq!(made.mode, 0o644, "the type bits do not travel, the umask does");
    fs.lookup(InodeId::ROOT, b"x").await.unwrap();
    fs.link(made.inode, InodeId::ROOT, b"y").await.unwrap();
    assert_eq!(fs.inodes.lookups(made.inode), 3);
    fs.forget(made.inode, 3);
    assert_eq!(fs.inodes.lookups(made.inode), 0);
    assert_eq!(errno(fs.lookup(InodeId::ROOT, b"absent").await), Errno::ENOENT);
    assert_eq!(errno(fs.lookup(InodeId::ROOT, &[b'n'; 256]).await), Errno::ENAMETOOLONG);
    assert_eq!(fs.lookup(InodeId(9), b"..").await.unwrap().inode, InodeId(8));
}

#[tokio::test]
async fn listing_with_attributes_counts_what_the_kernel_took() {
    let (fs, _) = setup();
    for name in ["a", "b", "c"] {
        fs.volume.add_file(name);
    }
    let handle = fs.opendir(InodeId::ROOT);
    let mut taken = Vec::new();
    fs.readdir(handle, 0, true, |e| {
        if taken.len() == 4 {
            return true;
        }
        taken.push(e.inode);
        false
    })
    .await
    .unwrap();
    assert_eq!(taken.len(), 4);
    assert_eq!([2, 3].map(|at| fs.inodes.lookups(taken[at])), [1, 1]);
    assert_eq!(fs.inodes.lookups(InodeId(103)), 0, "what did not fit was not looked up");
    fs.readdir(handle, 0, false, |_| false).await.unwrap();
    assert_eq!(fs.inodes.lookups(InodeId(101)), 1, "a listing without attributes counts nothing");
    fs.releasedir(handle);
    assert_eq!(errno(fs.readdir(handle, 0, false, |_| false).await), Errno::EBADF);
}

#[tokio::test]
async fn losing_the_race_to_create_opens_what_the_other_made() {
    let (fs, _) = setup();
    let rival = || Attr { uid: 1000, ..file_attr(50) };
    fs.volume.state().rival = Some(rival());
    let (attr, _) = fs.create(new("x", USER), libc::O_CREAT | libc::O_WRONLY).await.unwrap();
    assert_eq!(attr.inode, InodeId(50));
    assert_eq!(fs.inodes.lookups(InodeId(50)), 1);
    let exclusive = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
    assert_eq!(errno(fs.create(new("x", USER), exclusive).await), Errno::EEXIST);
    // What this caller may perhaps not open, or what is no file, goes back to the kernel's path walk.
    for rival in [file_attr(51), Attr { kind: FileKind::Fifo, ..rival() }, Attr { mode: 0o444, ..rival() }] {
        fs.volume.remove_file("x");
        fs.volume.state().rival = Some(rival);
        assert_eq!(errno(fs.create(new("x", USER), libc::O_CREAT | libc::O_WRONLY).await), Errno::ESTALE);
    }
}

#[tokio::test]
async fn how_a_file_is_opened_decides_how_it_is_cached() {
    let (fs, _) = setup();
    fs.volume.add_file("x");
    let inode = InodeId(101);
    let caching = |flags| fs.open(ROOT, inode, flags);
    assert_eq!(caching(libc::O_RDONLY).await.unwrap().caching, Caching::Fresh);
    fs.volume.state().keep_cache = true;
    assert_eq!(caching(libc::O_RDONLY).await.unwrap().caching, Caching::Keep);
    assert_eq!(caching(libc::O_RDONLY | libc::O_DIRECT).await.unwrap().caching, Caching::DirectReader);
    assert_eq!(caching(libc::O_RDWR).await.unwrap().caching, Caching::DirectWriter);
    fs.volume.calls();
    assert_eq!(caching(libc::O_RDONLY | libc::O_TRUNC).await.unwrap().caching, Caching::DirectWriter);
    assert_eq!(fs.volume.calls(), ["open read true write true truncate true append false"]);
}

#[tokio::test]
async fn an_open_drops_attributes_that_have_changed_elsewhere() {
    let (fs, dropped) = setup();
    fs.volume.add_file("x");
    let attr = fs.lookup(InodeId::ROOT, b"x").await.unwrap();
    fs.open(ROOT, attr.inode, libc::O_RDONLY).await.unwrap();
    assert_eq!(dropped.0.load(Ordering::Relaxed), 0, "the kernel knows them");
    fs.volume.set_size("x", 7);
    fs.open(ROOT, attr.inode, libc::O_RDONLY).await.unwrap();
    assert_eq!(dropped.0.load(Ordering::Relaxed), 1);
    fs.getattr(attr.inode).await.unwrap();
    fs.open(ROOT, attr.inode, libc::O_RDONLY).await.unwrap();
    assert_eq!(dropped.0.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_page_of_a_mapping_never_appends() {
    let (fs, _) = setup();
    fs.volume.add_file("x");
    let handle = fs.open(ROOT, InodeId(101), libc::O_RDWR | libc::O_APPEND).await.unwrap().handle;
    let own = WriteTo { inode: InodeId(101), handle, offset: 5, kill_privileges: false, from_page: false };
    assert_eq!(fs.try_write(own, b"abc").unwrap().unwrap(), 3);
    let page = WriteTo { from_page: true, ..own };
    assert!(fs.try_write(page, b"abc").is_none());
    fs.volume.calls();
    assert_eq!(fs.write(page, b"abc").await.unwrap(), 3);
    let calls = fs.volume.calls();
    assert_eq!(calls[0], "open read true write true truncate false append false");
    assert!(!calls[1].starts_with(&format!("write {handle} ")), "{calls:?}");
    assert!(calls[2].starts_with("release"));
    fs.release(handle).await;
    assert!(fs.appending.is_empty());
}

#[tokio::test]
async fn a_write_that_would_wait_is_left_to_wait() {
    let (fs, _) = setup();
    fs.volume.state().would_wait = true;
    let to = WriteTo { inode: InodeId(5), handle: 1, offset: 0, kill_privileges: true, from_page: false };
    assert!(fs.try_write(to, b"abc").is_none());
    fs.write(to, b"abc").await.unwrap();
    assert_eq!(fs.volume.calls(), ["write 1 at 0 kill true"]);
}

#[tokio::test]
async fn truncation_by_a_user_clears_suid_and_by_root_does_not() {
    let (fs, _) = setup();
    fs.volume.add_file("x");
    let to = SetAttr { size: Some(0), ..SetAttr::default() };
    fs.setattr(USER, InodeId(101), to).await.unwrap();
    fs.setattr(ROOT, InodeId(101), to).await.unwrap();
    let mode = SetAttr { mode: Some(0o100_755), ..SetAttr::default() };
    fs.setattr(USER, InodeId(101), mode).await.unwrap();
    let expected = [
        "mode None size Some(0) kill true",
        "mode None size Some(0) kill false",
        "mode Some(493) size None kill false",
    ];
    assert_eq!(fs.volume.calls(), expected.map(|e| format!("setattr {e}")));
}

#[tokio::test]
async fn rename_flags_that_do_not_exist_are_refused() {
    let (fs, _) = setup();
    let rename = |flags| fs.rename((InodeId::ROOT, b"a"), (InodeId::ROOT, b"b"), flags);
    rename(0).await.unwrap();
    rename(libc::RENAME_NOREPLACE).await.unwrap();
    rename(libc::RENAME_EXCHANGE).await.unwrap();
    for flags in [libc::RENAME_WHITEOUT, libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE] {
        assert_eq!(errno(rename(flags).await), Errno::EINVAL);
    }
    assert_eq!(fs.volume.calls(), ["rename a b Replace", "rename a b NoReplace", "rename a b Exchange"]);
}

#[tokio::test]
async fn xattr_sizes_are_as_the_system_calls_want_them() {
    let (fs, _) = setup();
    let inode = InodeId::ROOT;
    fs.setxattr(inode, b"user.a", b"value".to_vec(), libc::XATTR_CREATE).await.unwrap();
    fs.setxattr(inode, b"trusted.b", Vec::new(), 0).await.unwrap();
    assert_eq!(fs.getxattr(inode, b"user.a", 0).await.unwrap(), Sized::Size(5));
    assert_eq!(fs.getxattr(inode, b"user.a", 5).await.unwrap(), Sized::Data(b"value".to_vec()));
    assert_eq!(errno(fs.getxattr(inode, b"user.a", 4).await), Errno::ERANGE);
    assert_eq!(fs.listxattr(USER, inode, 100).await.unwrap(), Sized::Data(b"user.a\0".to_vec()));
    assert_eq!(fs.listxattr(ROOT, inode, 0).await.unwrap(), Sized::Size(17));
    assert_eq!(errno(fs.setxattr(inode, b"user.a", Vec::new(), 3).await), Errno::EINVAL);
    assert_eq!(errno(fs.setxattr(inode, b"system.other", Vec::new(), 0).await), Errno::EOPNOTSUPP);
    assert_eq!(errno(fs.getxattr(inode, b"user.", 0).await), Errno::EOPNOTSUPP);
    fs.removexattr(inode, b"system.posix_acl_access").await.unwrap();
    assert_eq!(errno(fs.removexattr(inode, b"user.absent").await), Errno::ENODATA);
}

#[tokio::test]
async fn what_the_kernel_keeps_asking_for_is_asked_of_the_server_once() {
    let (fs, _) = setup();
    let (inode, name) = (InodeId::ROOT, &b"security.capability"[..]);
    for _ in 0..10 {
        assert_eq!(errno(fs.getxattr(inode, name, 0).await), Errno::ENODATA);
    }
    assert_eq!(fs.volume.calls().len(), 1);
    fs.setxattr(inode, name, b"cap".to_vec(), 0).await.unwrap();
    assert_eq!(fs.getxattr(inode, name, 0).await.unwrap(), Sized::Size(3));
}

#[tokio::test]
async fn dot_dot_of_a_listing_is_the_parent_it_was_found_in() {
    let (fs, _) = setup();
    let listed = async |inode| {
        let handle = fs.opendir(inode);
        let mut numbers = Vec::new();
        fs.readdir(handle, 0, false, |e| {
            numbers.push(e.inode);
            false
        })
        .await
        .unwrap();
        numbers[1]
    };
    assert_eq!(listed(InodeId::ROOT).await, InodeId::ROOT);
    assert!(fs.volume.calls().is_empty());
    assert_eq!(listed(InodeId(9)).await, InodeId(8));
    assert_eq!(fs.volume.calls(), ["parent"]);
    let directory = Attr { kind: FileKind::Directory, ..file_attr(9) };
    fs.inodes.looked_up(&directory, InodeId(44));
    assert_eq!(listed(InodeId(9)).await, InodeId(44));
    assert!(fs.volume.calls().is_empty());
}

#[tokio::test]
async fn a_copy_is_bounded_and_seeks_are_checked() {
    let (fs, _) = setup();
    assert_eq!(u64::from(fs.copy((1, 0), (2, 0), 1 << 40).await.unwrap()), COPY_BYTES_MAX);
    assert_eq!(fs.lseek(1, 10, libc::SEEK_DATA).await.unwrap(), 10);
    assert_eq!(fs.lseek(1, 10, libc::SEEK_HOLE).await.unwrap(), 11);
    assert_eq!(errno(fs.lseek(1, -1, libc::SEEK_HOLE).await), Errno::ENXIO);
    assert_eq!(errno(fs.lseek(1, 0, libc::SEEK_SET).await), Errno::EINVAL);
}

/// Scenario G07: ctime moved between a stat right after close and a later one.
#[tokio::test]
async fn attributes_ahead_of_their_commit_are_not_kept_by_the_kernel() {
    let double = Double::default();
    double.state().ahead = Some(InodeId(7));
    let fs = Fs::new(double);
    assert_eq!(fs.ttl(InodeId(7)), Duration::ZERO);
    assert_eq!(fs.ttl(InodeId(8)), TTL);
}

#[tokio::test]
async fn a_removed_directory_that_is_still_open_has_no_links() {
    let double = Double::default();
    double.add_file("d");
    let fs = Fs::new(double);
    let inode = fs.lookup(InodeId::ROOT, b"d").await.unwrap().inode;
    fs.rmdir(InodeId::ROOT, b"d").await.unwrap();
    assert_eq!(fs.getattr(inode).await.unwrap().nlink, 0);
    fs.forget(inode, 1);
    assert_eq!(fs.getattr(inode).await.unwrap_err().errno, Errno::ENOENT);
}
