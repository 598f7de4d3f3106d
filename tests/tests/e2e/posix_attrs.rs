//! Attributes: modes, owners, times, extended attributes, ACLs, who may do what, statfs.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pando_tests::pando::{run, text};
use pando_tests::sys::{self, as_user, time};

use crate::{Place, refused};

const NOBODY: u32 = 65534;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) -> std::io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// A program that must succeed; its output.
fn must(program: &str, args: &[&str], path: &Path) -> String {
    let mut command = Command::new(program);
    command.args(args).arg(path);
    let output = run(command, Duration::from_secs(20));
    assert!(output.status.success(), "{program} {args:?}: {}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn modes_are_kept_and_the_umask_is_applied() {
    let place = Place::new("modes");
    let file = place.path("file");
    File::create(&file).unwrap();
    for bits in [0o000, 0o400, 0o755, 0o777, 0o1644, 0o2755, 0o4755, 0o7777] {
        chmod(&file, bits).unwrap();
        assert_eq!(mode(&file), bits);
    }
    // 022 is the umask of the test run; asked of the kernel rather than set, since it is process-wide.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap().trim();
    let umask = u32::from_str_radix(umask, 8).unwrap();
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o666).open(place.path("made")).unwrap();
    assert_eq!(mode(&place.path("made")), 0o666 & !umask);
    fs::DirBuilder::new().mode(0o777).create(place.path("dir")).unwrap();
    assert_eq!(mode(&place.path("dir")), 0o777 & !umask);
    symlink("x", place.path("link")).unwrap();
    assert_eq!(mode(&place.path("link")), 0o777);
}

#[test]
fn owners_are_kept_and_a_change_clears_suid() {
    if !sys::is_root() {
        return;
    }
    let place = Place::new("owners");
    let file = place.path("file");
    File::create(&file).unwrap();
    chmod(&file, 0o6755).unwrap();
    chown(&file, Some(12), Some(34)).unwrap();
    let meta = fs::metadata(&file).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (12, 34, 0o755));
    chown(&file, None, Some(u32::MAX - 1)).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().gid(), u32::MAX - 1);
    symlink("file", place.path("link")).unwrap();
    lchown(place.path("link"), Some(5), Some(6)).unwrap();
    assert_eq!(fs::symlink_metadata(place.path("link")).unwrap().uid(), 5);
    assert_eq!(fs::metadata(&file).unwrap().uid(), 12);
    // A write by another than root takes the privileges away.
    chown(&file, Some(NOBODY), Some(NOBODY)).unwrap();
    chmod(&file, 0o6777).unwrap();
    as_user(NOBODY, NOBODY, &[], || {
        OpenOptions::new().write(true).open(&file).unwrap().write_all_at(b"x", 0).unwrap();
    });
    assert_eq!(mode(&file), 0o777);
}

#[test]
fn times_are_set_to_the_nanosecond() {
    let place = Place::new("times");
    let file = place.path("file");
    fs::write(&file, b"x").unwrap();
    let times = |path: &Path| {
        let meta = fs::symlink_metadata(path).unwrap();
        ((meta.atime(), meta.atime_nsec()), (meta.mtime(), meta.mtime_nsec()))
    };
    sys::utimens(&file, time(1, 123_456_789), time(4_000_000_000, 987_654_321)).unwrap();
    assert_eq!(times(&file), ((1, 123_456_789), (4_000_000_000, 987_654_321)));
    sys::utimens(&file, time(0, libc::UTIME_OMIT), time(77, 7)).unwrap();
    assert_eq!(times(&file), ((1, 123_456_789), (77, 7)));
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    sys::utimens(&file, time(5, 5), time(0, libc::UTIME_NOW)).unwrap();
    let (atime, mtime) = times(&file);
    assert_eq!(atime, (5, 5));
    assert!((before - 2..before + 10).contains(&mtime.0), "{mtime:?}");
    sys::utimens(&file, time(-100, 5), time(-3, 999_999_999)).unwrap();
    assert_eq!(times(&file), ((-100, 5), (-3, 999_999_999)));
    symlink("file", place.path("link")).unwrap();
    sys::utimens(&place.path("link"), time(8, 8), time(9, 9)).unwrap();
    assert_eq!(times(&place.path("link")), ((8, 8), (9, 9)));
    assert_eq!(times(&file).0, (-100, 5));
}

#[test]
fn a_time_that_was_set_survives_the_close_of_a_dirty_file() {
    let place = Place::new("times_dirty");
    for length in [10usize, 100_000, 5 << 20] {
        let path = place.path("file");
        let file = File::create(&path).unwrap();
        file.write_all_at(&vec![1; length], 0).unwrap();
        sys::futimens(&file, time(1000, 1), time(2000, 2)).unwrap();
        assert_eq!(file.metadata().unwrap().mtime(), 2000);
        drop(file);
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.mtime(), meta.mtime_nsec(), meta.len()), (2000, 2, length as u64));
        // A write after that moves it again.
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"y", 0).unwrap();
        assert!(fs::metadata(&path).unwrap().mtime() > 1_600_000_000);
    }
}

#[test]
fn changes_move_mtime_and_ctime() {
    let place = Place::new("times_move");
    let (dir, file) = (place.path("dir"), place.path("dir/file"));
    fs::create_dir(&dir).unwrap();
    let old = || sys::utimens(&dir, time(1, 0), time(1, 0)).unwrap();
    let moved = |what: &str| assert!(fs::metadata(&dir).unwrap().mtime() > 1, "{what} leaves mtime of the directory");
    old();
    fs::write(&file, b"x").unwrap();
    moved("create");
    old();
    fs::rename(&file, dir.join("renamed")).unwrap();
    moved("rename");
    old();
    fs::create_dir(dir.join("sub")).unwrap();
    moved("mkdir");
    old();
    fs::remove_file(dir.join("renamed")).unwrap();
    moved("unlink");
    fs::write(&file, b"x").unwrap();
    sys::utimens(&file, time(1, 0), time(1, 0)).unwrap();
    let ctime = |path: &Path| fs::metadata(path).map(|meta| (meta.ctime(), meta.ctime_nsec())).unwrap();
    let mut last = ctime(&file);
    let mut moves = |what: &str| {
        assert!(ctime(&file) > last, "{what} leaves ctime");
        last = ctime(&file);
        std::thread::sleep(Duration::from_millis(15)); // the clock of a local file system ticks by the jiffy
    };
    std::thread::sleep(Duration::from_millis(15));
    chmod(&file, 0o600).unwrap();
    moves("chmod");
    fs::hard_link(&file, place.path("second")).unwrap();
    moves("link");
    sys::setxattr(&file, "user.x", b"1", 0).unwrap();
    moves("setxattr");
    fs::remove_file(place.path("second")).unwrap();
    moves("unlink of another name");
    assert_eq!(fs::metadata(&file).unwrap().mtime(), 1);
    sys::truncate(&file, 10).unwrap();
    moves("truncate");
    assert!(fs::metadata(&file).unwrap().mtime() > 1);
}

#[test]
fn extended_attributes_are_kept() {
    let place = Place::new("xattr");
    let (file, dir) = (place.path("file"), place.path("dir"));
    fs::write(&file, b"").unwrap();
    fs::create_dir(&dir).unwrap();
    for path in [&file, &dir] {
        sys::setxattr(path, "user.a", b"value", 0).unwrap();
        sys::setxattr(path, "user.empty", b"", 0).unwrap();
        assert_eq!(sys::getxattr(path, "user.a").unwrap(), b"value");
        assert_eq!(sys::getxattr(path, "user.empty").unwrap(), b"");
        assert_eq!(sys::getxattr_into(path, "user.a", 0).unwrap().0, 5, "size probing");
        refused(sys::getxattr_into(path, "user.a", 4), libc::ERANGE);
        refused(sys::getxattr(path, "user.absent"), libc::ENODATA);
        refused(sys::setxattr(path, "user.a", b"x", libc::XATTR_CREATE), libc::EEXIST);
        refused(sys::setxattr(path, "user.b", b"x", libc::XATTR_REPLACE), libc::ENODATA);
        sys::setxattr(path, "user.a", b"other", libc::XATTR_REPLACE).unwrap();
        assert_eq!(sys::getxattr(path, "user.a").unwrap(), b"other");
        assert_eq!(sys::listxattr(path).unwrap(), ["user.a", "user.empty"]);
        sys::removexattr(path, "user.empty").unwrap();
        refused(sys::removexattr(path, "user.empty"), libc::ENODATA);
        assert_eq!(sys::listxattr(path).unwrap(), ["user.a"]);
        refused(sys::setxattr(path, &format!("user.{}", "n".repeat(251)), b"x", 0), libc::ERANGE);
        sys::setxattr(path, &format!("user.{}", "n".repeat(250)), b"x", 0).unwrap();
    }
    let large = pando_tests::bytes::seeded(1, if place.is_plain() { 2000 } else { 65536 });
    sys::setxattr(&file, "user.large", &large, 0).unwrap();
    assert_eq!(sys::getxattr(&file, "user.large").unwrap(), large);
    symlink("file", place.path("link")).unwrap();
    refused(sys::setxattr(&place.path("link"), "user.a", b"x", 0), libc::EPERM);
    refused(sys::getxattr(&file, "security.capability"), libc::ENODATA);
    // Asked for at every write(): the answer must not change by asking.
    for _ in 0..100 {
        refused(sys::getxattr(&file, "security.capability"), libc::ENODATA);
    }
}

#[test]
fn file_capabilities_are_kept_and_a_write_takes_them_away() {
    if !sys::is_root() {
        return;
    }
    let place = Place::new("capability");
    let file = place.path("file");
    fs::write(&file, b"x").unwrap();
    // Version 2, effective, CAP_NET_RAW.
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    sys::setxattr(&file, "security.capability", &capability, 0).unwrap();
    assert_eq!(sys::getxattr(&file, "security.capability").unwrap(), capability);
    OpenOptions::new().write(true).open(&file).unwrap().write_all_at(b"y", 0).unwrap();
    refused(sys::getxattr(&file, "security.capability"), libc::ENODATA);
}

#[test]
fn acls_give_and_take_rights() {
    if !sys::is_root() {
        return;
    }
    let place = Place::new("acl");
    let file = place.path("file");
    fs::write(&file, b"secret").unwrap();
    chmod(&file, 0o600).unwrap();
    let read = || as_user(NOBODY, NOBODY, &[], || fs::read(&file));
    refused(read(), libc::EACCES);
    must("setfacl", &["-m", "u:65534:r"], &file);
    assert_eq!(read().unwrap(), b"secret");
    assert_eq!(mode(&file), 0o640, "the group bits show the mask");
    let shown = must("getfacl", &["-cpn"], &file);
    assert!(shown.contains("user:65534:r--") && shown.contains("mask::r--"), "{shown}");
    chmod(&file, 0o600).unwrap();
    refused(read(), libc::EACCES);
    assert!(must("getfacl", &["-cpn"], &file).contains("mask::---"));
    must("setfacl", &["-b"], &file);
    assert!(!must("getfacl", &["-cpn"], &file).contains("65534"));
    // A default ACL is handed down, and the umask does not apply under it.
    let dir = place.path("dir");
    fs::create_dir(&dir).unwrap();
    must("setfacl", &["-d", "-m", "u:65534:rwx,g::rwx,o::---"], &dir);
    let made = dir.join("made");
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o666).open(&made).unwrap();
    assert_eq!(mode(&made), 0o660);
    let shown = must("getfacl", &["-cpn"], &made);
    assert!(shown.contains("user:65534:rwx") && shown.contains("mask::rw-"), "{shown}");
    fs::create_dir(dir.join("sub")).unwrap();
    assert!(must("getfacl", &["-cpn"], &dir.join("sub")).contains("default:user:65534:rwx"));
}

#[test]
fn another_user_is_held_to_the_bits() {
    if !sys::is_root() {
        return;
    }
    let place = Place::new("permissions");
    let (file, dir) = (place.path("file"), place.path("dir"));
    fs::write(&file, b"x").unwrap();
    chmod(&file, 0o640).unwrap();
    chown(&file, None, Some(777)).unwrap();
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("inside"), b"inside").unwrap();
    chmod(&dir, 0o711).unwrap();
    as_user(NOBODY, NOBODY, &[], || {
        refused(File::open(&file), libc::EACCES);
        refused(OpenOptions::new().write(true).truncate(true).open(&file), libc::EACCES);
        refused(sys::truncate(&file, 0), libc::EACCES);
        refused(chmod(&file, 0o777), libc::EPERM);
        refused(chown(&file, Some(NOBODY), None), libc::EPERM);
        refused(sys::utimens(&file, time(1, 1), time(1, 1)), libc::EPERM);
        refused(File::create(dir.join("new")), libc::EACCES);
        refused(fs::remove_file(dir.join("inside")), libc::EACCES);
        refused(fs::rename(dir.join("inside"), dir.join("other")), libc::EACCES);
        refused(fs::read_dir(&dir), libc::EACCES);
        refused(sys::access(&file, libc::R_OK), libc::EACCES);
        sys::access(&file, libc::F_OK).unwrap();
        assert_eq!(fs::read(dir.join("inside")).unwrap(), b"inside", "search needs x only");
    });
    assert_eq!(fs::read(&file).unwrap(), b"x");
    as_user(NOBODY, NOBODY, &[777], || {
        assert_eq!(fs::read(&file).unwrap(), b"x", "by a supplementary group");
        refused(OpenOptions::new().write(true).open(&file), libc::EACCES);
    });
    chmod(&dir, 0o700).unwrap();
    as_user(NOBODY, NOBODY, &[], || refused(fs::metadata(dir.join("inside")), libc::EACCES));
    // What another user makes is theirs.
    chmod(&dir, 0o777).unwrap();
    as_user(NOBODY, 4321, &[], || fs::write(dir.join("theirs"), b"").unwrap());
    let meta = fs::metadata(dir.join("theirs")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (NOBODY, 4321));
}

#[test]
fn sgid_directories_hand_down_their_group() {
    if !sys::is_root() {
        return;
    }
    let place = Place::new("sgid");
    let dir = place.path("dir");
    fs::create_dir(&dir).unwrap();
    chown(&dir, None, Some(555)).unwrap();
    chmod(&dir, 0o2777).unwrap();
    as_user(NOBODY, NOBODY, &[], || {
        fs::write(dir.join("file"), b"").unwrap();
        fs::create_dir(dir.join("sub")).unwrap();
    });
    assert_eq!(fs::metadata(dir.join("file")).unwrap().gid(), 555);
    assert_eq!(mode(&dir.join("file")) & 0o2000, 0);
    assert_eq!(fs::metadata(dir.join("sub")).unwrap().gid(), 555);
    assert_eq!(mode(&dir.join("sub")) & 0o2000, 0o2000);
}

#[test]
fn sticky_directories_protect_names() {
    if !sys::is_root() {
        return;
    }
    let place = Place::new("sticky");
    let dir = place.path("dir");
    fs::create_dir(&dir).unwrap();
    chmod(&dir, 0o1777).unwrap();
    fs::write(dir.join("roots"), b"").unwrap();
    as_user(NOBODY, NOBODY, &[], || {
        fs::write(dir.join("mine"), b"").unwrap();
        refused(fs::remove_file(dir.join("roots")), libc::EPERM);
        refused(fs::rename(dir.join("roots"), dir.join("x")), libc::EPERM);
        refused(fs::rename(dir.join("mine"), dir.join("roots")), libc::EPERM);
    });
    as_user(1234, 1234, &[], || refused(fs::remove_file(dir.join("mine")), libc::EPERM));
    as_user(NOBODY, NOBODY, &[], || fs::remove_file(dir.join("mine")).unwrap());
}

#[test]
fn programs_run_from_the_mount() {
    let place = Place::new("exec");
    let program = place.path("echo");
    fs::copy("/bin/echo", &program).unwrap();
    let mut command = Command::new(&program);
    command.arg("from the mount");
    assert_eq!(run(command, Duration::from_secs(10)).stdout, b"from the mount\n");
    let script = place.path("script");
    fs::write(&script, "#!/bin/sh\necho script $1\n").unwrap();
    refused(Command::new(&script).output(), libc::EACCES);
    chmod(&script, 0o755).unwrap();
    let mut command = Command::new(&script);
    command.arg("ran");
    assert_eq!(run(command, Duration::from_secs(10)).stdout, b"script ran\n");
    // A running program cannot be written to.
    let sleeper = place.path("sleep");
    fs::copy("/bin/sleep", &sleeper).unwrap();
    let mut child = Command::new(&sleeper).arg("20").spawn().unwrap();
    let busy = OpenOptions::new().write(true).open(&sleeper);
    child.kill().unwrap();
    child.wait().unwrap();
    refused(busy, libc::ETXTBSY);
}

#[test]
fn statfs_has_sensible_numbers() {
    let place = Place::new("statfs");
    let stat = sys::statvfs(&place.dir).unwrap();
    assert_eq!(stat.f_namemax, 255);
    assert!(stat.f_bsize >= 512 && stat.f_frsize >= 512 && stat.f_blocks > 0, "{stat:?}");
    assert!(stat.f_bavail <= stat.f_bfree && stat.f_bfree <= stat.f_blocks, "{stat:?}");
    assert!(stat.f_ffree <= stat.f_files && stat.f_favail > 0, "{stat:?}");
    assert!(stat.f_blocks * stat.f_frsize > 1 << 30, "df would show a tiny disk: {stat:?}");
    assert!(must("df", &["--output=size,avail"], &place.dir).lines().count() == 2);
}
