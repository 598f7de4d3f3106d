//! What is mounted where, who uses it, and how to take it away.
//!
//! Not here: mounting (client-fuse). Invariant: only mounts of Pando are ever taken away.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::statvfs::statvfs;

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Where.
    pub point: PathBuf,
    /// File system type: `fuse.pando`.
    pub kind: String,
    /// What is mounted: `pando@` and the id of the process that serves it.
    pub source: String,
}

impl Mount {
    /// A mount of Pando.
    pub fn is_pando(&self) -> bool {
        self.kind == "fuse.pando" || self.source.starts_with("pando")
    }

    /// The process that serves it, while it lives.
    pub fn server(&self) -> Option<Process> {
        let pid = self.source.strip_prefix("pando@")?.parse().ok()?;
        Process::find(pid)
    }
}

/// The mount at exactly this path, the topmost if there are several. Works for dead mounts too.
pub fn at(path: &Path) -> anyhow::Result<Option<Mount>> {
    let table = fs::read("/proc/self/mountinfo").context("cannot read the list of mounts")?;
    Ok(parse(&table).into_iter().rev().find(|m| m.point == path))
}

fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// `id parent major:minor root point options [optional...] - kind source options`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let dash = fields.iter().skip(6).position(|f| *f == b"-")? + 6;
    let text = |at: usize| fields.get(at).map(|f| String::from_utf8_lossy(&unescape(f)).into_owned());
    Some(Mount {
        point: PathBuf::from(OsString::from_vec(unescape(fields.get(4)?))),
        kind: text(dash + 1)?,
        source: text(dash + 2)?,
    })
}

/// The kernel writes blanks, newlines and backslashes as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| first == b'\\').and_then(|d| std::str::from_utf8(d).ok());
        match octal.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(first);
                rest = after;
            }
        }
    }
    out
}

/// An absolute path without symbolic links; of the last component nothing is asked, since it may be a dead mount.
pub fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    if let Ok(whole) = path.canonicalize() {
        return Ok(whole);
    }
    let path = std::path::absolute(path).with_context(|| format!("{} is no path", path.display()))?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize().unwrap_or_else(|_| parent.to_owned()).join(name)),
        _ => Ok(path),
    }
}

/// Whether the process behind a mount is gone. Asks for the file system, since attributes may be the kernel's own memory.
pub fn is_dead(path: &Path) -> bool {
    statvfs(path).is_err_and(|e| e == Errno::ENOTCONN)
}

/// How an unmount went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// It is gone.
    Done,
    /// Processes use it; nothing changed.
    Busy,
}

/// Asks the kernel to unmount. `detach`: also while it is in use; users keep what they have open.
pub fn unmount(point: &Path, detach: bool) -> anyhow::Result<Unmounted> {
    let flags = MntFlags::UMOUNT_NOFOLLOW | if detach { MntFlags::MNT_DETACH } else { MntFlags::empty() };
    match umount2(point, flags) {
        Ok(()) => Ok(Unmounted::Done),
        Err(Errno::EBUSY) => Ok(Unmounted::Busy),
        Err(Errno::EPERM) => fusermount(point, detach),
        Err(e) => bail!("cannot unmount {}: {}", point.display(), e.desc()),
    }
}

/// The same for a user who is not root.
fn fusermount(point: &Path, detach: bool) -> anyhow::Result<Unmounted> {
    let output = Command::new("fusermount3")
        .arg(if detach { "-uz" } else { "-u" })
        .arg("--")
        .arg(point)
        .output()
        .context("cannot run fusermount3, which unmounts for users; install the package fuse3")?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(Unmounted::Done),
        false if said.contains("busy") => Ok(Unmounted::Busy),
        false => bail!("cannot unmount {}: {}", point.display(), said.trim()),
    }
}

/// A process, told from a later one with the same id by when it started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its short name.
    pub name: String,
    started: u64,
}

impl Process {
    /// The living process with this id.
    pub fn find(pid: u32) -> Option<Process> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let (name, started) = parse_stat(&stat)?;
        Some(Process { pid, name, started })
    }

    /// Whether it still runs.
    pub fn lives(&self) -> bool {
        Process::find(self.pid).is_some_and(|now| now.started == self.started)
    }
}

/// Name and start time from `/proc/PID/stat`; none for a zombie. The name may hold blanks and parentheses.
fn parse_stat(stat: &[u8]) -> Option<(String, u64)> {
    let text = String::from_utf8_lossy(stat);
    let (head, tail) = text.rsplit_once(") ")?;
    let (_, name) = head.split_once(" (")?;
    let fields: Vec<&str> = tail.split(' ').collect();
    if matches!(*fields.first()?, "Z" | "X") {
        return None;
    }
    Some((name.to_owned(), fields.get(19)?.parse().ok()?))
}

/// The processes that have something below `point` open, mapped, or as their working directory; those this user may see.
pub fn users(point: &Path) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| uses(*pid, point)).filter_map(Process::find).collect()
}

fn uses(pid: u32, point: &Path) -> bool {
    let base = PathBuf::from(format!("/proc/{pid}"));
    let below = |link: io::Result<PathBuf>| link.is_ok_and(|target| target.starts_with(point));
    let open = |folder: &str| {
        let entries = fs::read_dir(base.join(folder)).into_iter().flatten().flatten();
        entries.map(|e| fs::read_link(e.path())).any(below)
    };
    ["cwd", "root", "exe"].iter().any(|link| below(fs::read_link(base.join(link)))) || open("fd") || open("map_files")
}

/// `bash (812), python3 (90)` for a sentence.
pub fn list(processes: &[Process]) -> String {
    const SHOWN_MAX: usize = 5;
    let mut shown: Vec<String> =
        processes.iter().take(SHOWN_MAX).map(|p| format!("{} (process {})", p.name, p.pid)).collect();
    if processes.len() > SHOWN_MAX {
        shown.push(format!("{} more", processes.len() - SHOWN_MAX));
    }
    shown.join(", ")
}

/// Who makes a mount busy, as the end of a sentence.
pub fn busy(point: &Path) -> String {
    match users(point) {
        found if found.is_empty() => format!("see who with `fuser -vm {}`", point.display()),
        found => format!("used by {}; end them or leave the directory", list(&found)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_read() {
        let table = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n\
            40 35 0:52 / /tmp/a\\040b\\134c rw,nosuid shared:7 master:2 - fuse.pando pando@812 rw,user_id=0\n\nbroken line\n";
        let mounts = parse(table);
        assert_eq!(mounts.len(), 2);
        assert_eq!((mounts[0].kind.as_str(), mounts[0].is_pando()), ("ext3", false));
        assert_eq!(mounts[1].point, Path::new("/tmp/a b\\c"));
        assert!(mounts[1].is_pando());
    }

    #[test]
    fn a_process_is_told_from_its_successor() {
        let me = Process::find(std::process::id()).expect("this process lives");
        assert!(me.lives());
        assert!(!Process { started: me.started + 1, ..me }.lives());
        let stat = |state: &str| format!("7 (a) b) {state} {}", "1 ".repeat(18) + "99 0");
        assert_eq!(parse_stat(stat("S").as_bytes()), Some(("a) b".into(), 99)));
        assert_eq!(parse_stat(stat("Z").as_bytes()), None);
    }

    #[test]
    fn open_files_make_a_directory_used() {
        let dir = tempfile::tempdir().expect("a directory");
        let point = dir.path().canonicalize().expect("it exists");
        assert!(!users(&point).iter().any(|p| p.pid == std::process::id()));
        let _open = fs::File::create(point.join("x")).expect("a file");
        assert!(users(&point).iter().any(|p| p.pid == std::process::id()));
        assert!(busy(&point).contains(&std::process::id().to_string()));
    }

    #[test]
    fn a_path_is_made_absolute_without_its_last_part() {
        let dir = tempfile::tempdir().expect("a directory");
        let real = dir.path().canonicalize().expect("it exists").join("real");
        fs::create_dir(&real).expect("created");
        std::os::unix::fs::symlink(&real, dir.path().join("link")).expect("linked");
        assert_eq!(absolute(&dir.path().join("link/absent")).expect("a path"), real.join("absent"));
        assert_eq!(absolute(&dir.path().join("link")).expect("a path"), real);
    }
}
