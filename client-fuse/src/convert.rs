//! Between the kernel's types and Pando's.
//!
//! Invariant: no conversion panics, whatever a program passed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, FopenFlags, INodeNo, TimeOrNow};
use pando_types::command::SetTime;
use pando_types::{Attr, Errno, FileKind, FsError, Timestamp};

use crate::fs::Caching;

/// Reported as st_blksize: programs that size their buffers by it (python, cp) then write and read a whole request at a time.
const BLKSIZE: u32 = 1 << 20;

pub(crate) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.inode.0),
        size: attr.size,
        blocks: attr.allocated.div_ceil(512),
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attr.kind),
        perm: (attr.mode & pando_types::attr::MODE_BITS) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLKSIZE,
        flags: 0,
    }
}

/// For the entries `.` and `..` of a listing, of which the kernel looks at the number and type only.
pub(crate) fn dot_attr(ino: INodeNo) -> FileAttr {
    FileAttr {
        ino,
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::Directory,
        perm: 0,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLKSIZE,
        flags: 0,
    }
}

pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

fn system_time(time: Timestamp) -> SystemTime {
    let distance = Duration::from_nanos(time.0.unsigned_abs());
    let time = if time.0 < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
    time.unwrap_or(UNIX_EPOCH)
}

/// Undoes what fuser 0.18 does to times before 1970: it passes (-2 s, 0.8 s) as 2.8 s before the epoch, not 1.2 s.
fn timestamp(time: SystemTime) -> Timestamp {
    let nanos = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => {
            let before = before.duration();
            let seconds = i128::from(before.as_secs()) * -1_000_000_000;
            i64::try_from(seconds + i128::from(before.subsec_nanos())).unwrap_or(i64::MIN)
        }
    };
    Timestamp(nanos)
}

pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(timestamp(time)),
    }
}

/// What the system call reports. EIO is logged here: the program learns only that something failed.
pub(crate) fn errno(error: FsError) -> fuser::Errno {
    if error.errno == Errno::EIO {
        tracing::warn!(kind = ?error.kind, "a request fails with EIO: {}", error.detail);
    }
    fuser::Errno::from_i32(error.errno.0)
}

pub(crate) fn open_flags(caching: Caching) -> FopenFlags {
    match caching {
        Caching::DirectWriter => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
        Caching::DirectReader => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH,
        Caching::Fresh => FopenFlags::FOPEN_NOFLUSH,
        Caching::Keep => FopenFlags::FOPEN_NOFLUSH | FopenFlags::FOPEN_KEEP_CACHE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_survive_both_ways() {
        for nanos in [0, 1, -1, 1_700_000_000_123_456_789, i64::MAX, i64::MIN + 1] {
            let shown = system_time(Timestamp(nanos));
            let seconds = nanos.div_euclid(1_000_000_000);
            let subsec = nanos.rem_euclid(1_000_000_000) as u32;
            let truth = match shown.duration_since(UNIX_EPOCH) {
                Ok(d) => d.as_nanos() as i128,
                Err(e) => -(e.duration().as_nanos() as i128),
            };
            assert_eq!(truth, i128::from(nanos));
            // As fuser builds it from what the kernel sends.
            let received = if seconds >= 0 {
                UNIX_EPOCH + Duration::new(seconds as u64, subsec)
            } else {
                UNIX_EPOCH - Duration::new(seconds.unsigned_abs(), subsec)
            };
            assert_eq!(timestamp(received), Timestamp(nanos));
        }
    }

    #[test]
    fn times_out_of_range_are_cut_not_wrapped() {
        assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(1 << 40)), Timestamp(i64::MAX));
        assert_eq!(timestamp(UNIX_EPOCH - Duration::from_secs(1 << 40)), Timestamp(i64::MIN));
    }
}
