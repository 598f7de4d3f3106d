//! System calls that std does not offer, with `io::Result`s.
//!
//! Invariant: nothing here interprets; a test sees what the kernel said.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;

/// A path or name for the kernel.
pub fn c(path: impl AsRef<OsStr>) -> CString {
    CString::new(path.as_ref().as_bytes()).expect("test paths have no NUL")
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn count(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// close(2), whose error std swallows.
pub fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor is ours and not used again.
    check(unsafe { libc::close(file.into_raw_fd()) })
}

/// renameat2(2).
pub fn rename2(from: &Path, to: &Path, flags: u32) -> io::Result<()> {
    let (from, to) = (c(from), c(to));
    // SAFETY: both strings live through the call.
    check(unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) })
}

/// fallocate(2).
pub fn fallocate(file: &File, mode: libc::c_int, offset: i64, length: i64) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, length) })
}

/// lseek(2), for SEEK_HOLE and SEEK_DATA.
pub fn seek(file: &File, offset: i64, whence: libc::c_int) -> io::Result<i64> {
    // SAFETY: no memory is passed.
    match unsafe { libc::lseek(file.as_raw_fd(), offset, whence) } {
        -1 => Err(io::Error::last_os_error()),
        at => Ok(at),
    }
}

/// copy_file_range(2) once.
pub fn copy_file_range(from: &File, mut at: i64, to: &File, mut to_at: i64, length: usize) -> io::Result<usize> {
    // SAFETY: both offsets live through the call.
    count(unsafe { libc::copy_file_range(from.as_raw_fd(), &raw mut at, to.as_raw_fd(), &raw mut to_at, length, 0) })
}

/// mknod(2).
pub fn mknod(path: &Path, mode: u32, device: u64) -> io::Result<()> {
    let path = c(path);
    // SAFETY: the string lives through the call.
    check(unsafe { libc::mknod(path.as_ptr(), mode, device) })
}

/// truncate(2) by path.
pub fn truncate(path: &Path, length: i64) -> io::Result<()> {
    let path = c(path);
    // SAFETY: the string lives through the call.
    check(unsafe { libc::truncate(path.as_ptr(), length) })
}

/// access(2).
pub fn access(path: &Path, mode: libc::c_int) -> io::Result<()> {
    let path = c(path);
    // SAFETY: the string lives through the call.
    check(unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), mode, libc::AT_EACCESS) })
}

/// A time for [`utimens`]: seconds and nanoseconds, or UTIME_NOW / UTIME_OMIT as nanoseconds.
pub fn time(seconds: i64, nanoseconds: i64) -> libc::timespec {
    libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds }
}

/// utimensat(2) that does not follow a symbolic link.
pub fn utimens(path: &Path, atime: libc::timespec, mtime: libc::timespec) -> io::Result<()> {
    let path = c(path);
    let times = [atime, mtime];
    // SAFETY: string and array live through the call.
    check(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) })
}

/// futimens(3).
pub fn futimens(file: &File, atime: libc::timespec, mtime: libc::timespec) -> io::Result<()> {
    let times = [atime, mtime];
    // SAFETY: the array lives through the call.
    check(unsafe { libc::futimens(file.as_raw_fd(), times.as_ptr()) })
}

/// lsetxattr(2).
pub fn setxattr(path: &Path, name: &str, value: &[u8], flags: libc::c_int) -> io::Result<()> {
    let (path, name) = (c(path), c(name));
    // SAFETY: all pointers live through the call and the length is the value's.
    check(unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) })
}

/// lgetxattr(2) into a buffer of `room` bytes; with 0 the size alone is asked for. Returns what the call returned.
pub fn getxattr_into(path: &Path, name: &str, room: usize) -> io::Result<(usize, Vec<u8>)> {
    let (path, name) = (c(path), c(name));
    let mut buffer = vec![0u8; room];
    // SAFETY: the buffer has `room` bytes.
    let got = count(unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), buffer.as_mut_ptr().cast(), room) })?;
    buffer.truncate(got.min(room));
    Ok((got, buffer))
}

/// lgetxattr(2) with room enough.
pub fn getxattr(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    getxattr_into(path, name, 1 << 16).map(|(_, value)| value)
}

/// llistxattr(2), sorted.
pub fn listxattr(path: &Path) -> io::Result<Vec<String>> {
    let path = c(path);
    let mut buffer = vec![0u8; 1 << 16];
    // SAFETY: the buffer has the length told.
    let got = count(unsafe { libc::llistxattr(path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) })?;
    let mut names: Vec<String> = buffer[..got]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    names.sort();
    Ok(names)
}

/// lremovexattr(2).
pub fn removexattr(path: &Path, name: &str) -> io::Result<()> {
    let (path, name) = (c(path), c(name));
    // SAFETY: both strings live through the call.
    check(unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) })
}

/// statvfs(3).
pub fn statvfs(path: &Path) -> io::Result<libc::statvfs> {
    let path = c(path);
    // SAFETY: statvfs is plain data, for which zeros are a value.
    let mut out: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: string and structure live through the call.
    check(unsafe { libc::statvfs(path.as_ptr(), &raw mut out) })?;
    Ok(out)
}

/// sync_file_range, syncfs and the like need a descriptor: syncfs(2).
pub fn syncfs(file: &File) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::syncfs(file.as_raw_fd()) })
}

/// Detaches whatever is mounted at `path`, also when its server is gone.
pub fn detach(path: &Path) -> io::Result<()> {
    let path = c(path);
    // SAFETY: the string lives through the call.
    check(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) })
}

/// Mounts a tmpfs of `bytes` at `path`, or resizes the one that is there.
pub fn tmpfs(path: &Path, bytes: u64, remount: bool) -> io::Result<()> {
    let (path, kind, options) = (c(path), c("tmpfs"), c(format!("size={bytes}")));
    let flags = if remount { libc::MS_REMOUNT } else { 0 };
    // SAFETY: all strings live through the call.
    check(unsafe { libc::mount(kind.as_ptr(), path.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()) })
}

/// Whether something is mounted at `path` (as spelled, symbolic links resolved by the caller).
pub fn is_mounted(path: &Path) -> bool {
    let table = std::fs::read("/proc/self/mounts").expect("Linux has a mount table");
    let wanted = path.as_os_str().as_bytes();
    table.split(|byte| *byte == b'\n').any(|line| line.split(|byte| *byte == b' ').nth(1) == Some(wanted))
}

/// Mount points below a folder, the deepest first.
pub fn mounts_below(folder: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    let mut below: Vec<PathBuf> = points.filter(|point| point.starts_with(folder)).collect();
    below.sort_by_key(|point| std::cmp::Reverse(point.as_os_str().len()));
    below
}

/// Sends a signal to one process.
pub fn signal(pid: u32, signal: libc::c_int) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).expect("a process id fits");
    // SAFETY: no memory is passed.
    check(unsafe { libc::kill(pid, signal) })
}

/// Whether the tests run as root, which device nodes, chown and other users' eyes need.
pub fn is_root() -> bool {
    // SAFETY: always succeeds.
    unsafe { libc::geteuid() == 0 }
}

/// Runs `work` with another user's rights. Root only.
pub fn as_user<T: Send>(uid: u32, gid: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
    let become_user = || {
        // Raw calls act on this thread alone; libc's wrappers would change the whole process.
        // SAFETY: the group list lives through the call; the others pass no memory.
        let results = unsafe {
            [
                libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()),
                libc::syscall(libc::SYS_setresgid, gid, gid, gid),
                libc::syscall(libc::SYS_setresuid, uid, uid, uid),
            ]
        };
        assert_eq!(results, [0; 3], "becoming another user needs root");
    };
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            become_user();
            work()
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A mapping of a file, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    address: *mut libc::c_void,
    length: usize,
}

impl Mapping {
    /// mmap(2) of the first `length` bytes.
    pub fn new(file: &File, length: usize, protection: libc::c_int, flags: libc::c_int) -> io::Result<Mapping> {
        // SAFETY: the kernel chooses the address.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Mapping { address, length }) }
    }

    /// The mapped bytes. The mapping must be readable and the file not be shortened meanwhile.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for `length` bytes until drop.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.length) }
    }

    /// The mapped bytes, to change. The mapping must be writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped for `length` bytes until drop, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.length) }
    }

    /// msync(MS_SYNC) of all of it.
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: exactly this mapping.
        check(unsafe { libc::msync(self.address, self.length, libc::MS_SYNC) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly this mapping, once.
        unsafe { libc::munmap(self.address, self.length) };
    }
}
