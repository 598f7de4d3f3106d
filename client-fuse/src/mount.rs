//! Mounting: options, what is agreed with the kernel, read-ahead, and the end of it.
//!
//! Not here: the directory (`mountpoint.rs`), requests (`adapter.rs`).
//! Invariant: when [`mount`] has returned, the mount answers; when [`Mounted::unmount`] has, the path is free.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fuser::{Config, INodeNo, InitFlags, KernelConfig, MountOption, Notifier, Session, SessionACL};
use pando_client::Client;
use pando_types::InodeId;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::adapter::Adapter;
use crate::fs::{Fs, Kernel};
use crate::mountpoint::{self, MountError};

/// Two loops double the rate of one caller; more of them lose on two cores, and each holds a buffer of 16 MiB.
const LOOP_THREADS: usize = 2;
/// As much as one request can be (fs.fuse.max_pages_limit is 256).
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Read-ahead and writes of dirty pages under way at once; fuser's 16 is too few for several streams.
const BACKGROUND_REQUESTS_MAX: u16 = 64;
/// Makes buffered and mapped sequential reads 17 times faster than the 128 KiB that INIT can agree on, over a store with latency.
const READ_AHEAD_KB: u32 = 16384;
/// How long an unmount waits for the session to end.
const END_TIME_MAX: Duration = Duration::from_secs(10);

/// How to mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// Users other than the one who mounts may use it; the permission bits decide. Needs root or `user_allow_other` in fuse.conf.
    pub allow_other: bool,
}

impl Default for MountOptions {
    /// Everybody, if root mounts.
    fn default() -> MountOptions {
        MountOptions { allow_other: nix::unistd::geteuid().is_root() }
    }
}

/// A live mount. Dropping it leaves it mounted, until its process ends.
pub struct Mounted {
    mountpoint: PathBuf,
    ended: watch::Receiver<Option<Result<(), String>>>,
}

/// Mounts a client's file system on an empty directory. Frees the directory first if a crashed daemon left a dead mount on it.
/// Needs a multi-threaded tokio runtime that lives as long as the mount.
pub async fn mount(client: Client, mountpoint: &Path, options: MountOptions) -> Result<Mounted, MountError> {
    let runtime = Handle::current();
    let path = mountpoint.to_path_buf();
    let started = tokio::task::spawn_blocking(move || start(client, &path, &options, runtime)).await;
    started.unwrap_or_else(|e| {
        Err(MountError::Refused { path: mountpoint.to_path_buf(), source: io::Error::other(e.to_string()) })
    })
}

fn start(client: Client, path: &Path, options: &MountOptions, runtime: Handle) -> Result<Mounted, MountError> {
    mountpoint::prepare(path)?;
    let path = mountpoint::resolved(path);
    let refused = |source| MountError::Refused { path: path.clone(), source };
    let fs = Arc::new(Fs::new(client));
    let adapter = Adapter::new(fs.clone(), runtime);
    let session = Session::new(adapter, &path, &config(options)).map_err(refused)?;
    fs.set_kernel(Box::new(KernelCaches(session.notifier())));
    let (tell, ended) = watch::channel(None);
    let serve = move || {
        let result = session.run().map_err(|e| e.to_string());
        let _ = tell.send(Some(result));
    };
    std::thread::Builder::new().name("pando-fuse".into()).spawn(serve).map_err(refused)?;
    raise_read_ahead(&path);
    Ok(Mounted { mountpoint: path, ended })
}

impl Mounted {
    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Waits until somebody has unmounted it (umount, fusermount3, [`Mounted::unmount`]). The error is why the session failed.
    pub async fn wait(&self) -> Result<(), String> {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(result) => result.clone().unwrap_or(Ok(())),
            Err(_) => Err("the thread that serves the mount has died".into()),
        }
    }

    /// Unmounts. If files are still open the mount is detached: the path is free, and their users get ENOTCONN when this process
    /// ends. Close the client afterwards: what they wrote is committed then.
    pub async fn unmount(&self) -> Result<(), MountError> {
        let path = self.mountpoint.clone();
        if self.ended.borrow().is_none() {
            let unmounted = tokio::task::spawn_blocking(move || mountpoint::unmount(&path)).await;
            unmounted.unwrap_or_else(|e| {
                Err(MountError::Unmount { path: self.mountpoint.clone(), reason: e.to_string() })
            })?;
        }
        if tokio::time::timeout(END_TIME_MAX, self.wait()).await.is_err() {
            tracing::warn!(path = %self.mountpoint.display(), "files of the mount are still in use; it is detached");
        }
        Ok(())
    }
}

fn config(options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        // `pando umount` waits for the end of the process that is named here.
        MountOption::FSName(format!("pando@{}", std::process::id())),
        // As `Subtype` it would reach fusermount3 only, not the mount call of root.
        MountOption::CUSTOM("subtype=pando".into()),
        MountOption::DefaultPermissions,
    ];
    if nix::unistd::geteuid().is_root() {
        // fuser's default is nodev and nosuid; a file system of root's is as any other of root's.
        config.mount_options.extend([MountOption::Dev, MountOption::Suid]);
    }
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(LOOP_THREADS);
    config.clone_fd = true;
    config
}

/// Agrees with the kernel on what it may do; what it does not offer is done without.
pub(crate) fn negotiate(config: &mut KernelConfig) {
    let wanted = [
        InitFlags::FUSE_ASYNC_READ,
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_BIG_WRITES,
        InitFlags::FUSE_MAX_PAGES,
        InitFlags::FUSE_PARALLEL_DIROPS,
        // O_TRUNC comes with the open, so that an overwritten file is committed as one change.
        InitFlags::FUSE_ATOMIC_O_TRUNC,
        // The kernel knows ACLs, and leaves the umask to us: a default ACL replaces it.
        InitFlags::FUSE_POSIX_ACL,
        InitFlags::FUSE_DONT_MASK,
        // Instead of asking for security.capability at each write.
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        // Attributes with the first listing, and as long as the program looks at them.
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        // Pages go when the size or mtime turns out changed.
        InitFlags::FUSE_AUTO_INVAL_DATA,
        // Shared mappings of files that are open for writing (those are direct).
        InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        // A target never changes.
        InitFlags::FUSE_CACHE_SYMLINKS,
        // `.` and `..` can be looked up: file handles stay good when the kernel has dropped the inode.
        InitFlags::FUSE_EXPORT_SUPPORT,
    ];
    for flag in wanted {
        if config.add_capabilities(flag).is_err() {
            tracing::debug!(?flag, "this kernel does not offer it");
        }
    }
    let _ = config.set_max_write(WRITE_BYTES_MAX);
    let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
}

/// INIT cannot ask for more than 128 KiB, so the mount's device is told afterwards. Without root it stays small.
fn raise_read_ahead(path: &Path) {
    let Some(device) = mountpoint::find_fuse(path) else {
        tracing::warn!("the mount is not in the kernel's list; its read-ahead stays small");
        return;
    };
    let setting = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(error) = std::fs::write(&setting, READ_AHEAD_KB.to_string()) {
        tracing::debug!(setting, %error, "the read-ahead of the mount stays small");
    }
}

struct KernelCaches(Notifier);

impl Kernel for KernelCaches {
    fn drop_attributes(&self, inode: InodeId) {
        // A negative offset leaves the pages alone: waiting for them could be waiting for ourselves.
        if let Err(error) = self.0.inval_inode(INodeNo(inode.0), -1, 0) {
            tracing::debug!(%error, "the kernel's attributes of an inode could not be dropped");
        }
    }
}
