//! Starting, stopping, unmounting, and finding everything again.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::Duration;

use pando_tests::bytes::seeded;
use pando_tests::pando::{DEADLINE, Options, Pando, binary, plain_dir, run, text, wait_for};
use pando_tests::sys::{self, time};
use pando_tests::tree::{self, Detail};

use crate::{refused, same};

/// One of everything.
fn make_everything(dir: &Path) {
    for (name, length) in [("empty", 0usize), ("inline", 4000), ("packed", 100_000), ("large", 21 << 20)] {
        fs::write(dir.join(name), seeded(length as u64, length)).unwrap();
    }
    let sparse = File::create(dir.join("sparse")).unwrap();
    sparse.write_all_at(b"far", 1 << 24).unwrap();
    sparse.set_len(1 << 25).unwrap();
    fs::create_dir_all(dir.join("a/b/c")).unwrap();
    fs::hard_link(dir.join("packed"), dir.join("a/b/linked")).unwrap();
    symlink("../inline", dir.join("a/soft")).unwrap();
    sys::mknod(&dir.join("fifo"), libc::S_IFIFO | 0o600, 0).unwrap();
    sys::setxattr(&dir.join("packed"), "user.note", b"kept", 0).unwrap();
    sys::setxattr(&dir.join("a"), "user.note", b"kept too", 0).unwrap();
    fs::set_permissions(dir.join("inline"), fs::Permissions::from_mode(0o4750)).unwrap();
    sys::utimens(&dir.join("large"), time(5, 6), time(7, 8)).unwrap();
    if sys::is_root() {
        sys::mknod(&dir.join("device"), libc::S_IFCHR | 0o600, libc::makedev(1, 3)).unwrap();
        std::os::unix::fs::chown(dir.join("packed"), Some(1), Some(2)).unwrap();
    }
    tree::make_small_files(&dir.join("small"), 300);
    fs::rename(dir.join("a/b"), dir.join("a/renamed")).unwrap();
    fs::remove_file(dir.join("small/d01/f00100")).unwrap();
    sys::truncate(&dir.join("small/d01/f00101"), 100).unwrap();
}

#[test]
fn everything_is_there_after_a_restart() {
    let mut pando = Pando::up();
    make_everything(pando.mount());
    let before = tree::read(pando.mount(), Detail::All);
    assert!(before.len() > 300);
    for _ in 0..2 {
        pando.restart();
        tree::assert_same(&tree::read(pando.mount(), Detail::All), &before);
        pando.fsck();
    }
}

/// Writes files of several sizes until the mount goes, and tells which had been closed.
fn write_until_stopped(dir: &Path, closed: &Mutex<BTreeMap<PathBuf, (u64, usize)>>, seed: u64) {
    for index in 0..if plain_dir().is_some() { 50 } else { u64::MAX } {
        let path = dir.join(format!("{seed}-{index}"));
        let length = [100, 5_000, 80_000, 3 << 20][index as usize % 4];
        let content = seed * 1_000_000 + index;
        let done = File::create(&path).and_then(|mut file| {
            file.write_all(&seeded(content, length))?;
            sys::close(file)
        });
        match done {
            Ok(()) => drop(closed.lock().unwrap().insert(path, (content, length))),
            Err(_) => return,
        }
    }
}

#[test]
fn sigterm_while_writing_loses_nothing_that_was_closed() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut pando = Pando::up();
        let dir = pando.path("load");
        fs::create_dir(&dir).unwrap();
        let closed = Mutex::new(BTreeMap::new());
        // Kept open and dirty over the stop: what had been fsynced must be there.
        let mut open = OpenOptions::new().read(true).write(true).create_new(true).open(pando.path("open")).unwrap();
        open.write_all(&seeded(1, 200_000)).unwrap();
        open.sync_all().unwrap();
        std::thread::scope(|scope| {
            for seed in 1..4 {
                let (dir, closed) = (&dir, &closed);
                scope.spawn(move || write_until_stopped(dir, closed, seed));
            }
            std::thread::sleep(Duration::from_millis(700));
            if let Some(pid) = pando.pid() {
                sys::signal(pid, signal).unwrap();
                let status = pando.wait_end().unwrap();
                assert!(status.success(), "signal {signal}: {status}\n{}", pando.log());
                assert!(!sys::is_mounted(pando.mount()), "still mounted");
            }
        });
        drop(open);
        let closed = closed.into_inner().unwrap();
        assert!(closed.len() > 10, "only {} files were written", closed.len());
        pando.start();
        for (path, (content, length)) in &closed {
            same(&fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())), &seeded(*content, *length));
        }
        same(&fs::read(pando.path("open")).unwrap()[..200_000], &seeded(1, 200_000));
        pando.fsck();
    }
}

/// `pando umount DIR`.
fn umount(dir: &Path) -> Output {
    let mut command = Command::new(binary());
    command.arg("umount").arg(dir);
    run(command, DEADLINE)
}

#[test]
fn the_umount_verb_ends_the_process_and_loses_nothing() {
    if plain_dir().is_some() {
        return;
    }
    let mut pando = Pando::up();
    fs::write(pando.path("file"), seeded(1, 100_000)).unwrap();
    let output = umount(pando.mount());
    assert!(output.status.success(), "{}", text(&output));
    assert!(!sys::is_mounted(pando.mount()));
    assert!(pando.wait_end().unwrap().success(), "{}", pando.log());
    let again = umount(pando.mount());
    crate::faults::one_sentence(&again, 1);
    pando.start();
    same(&fs::read(pando.path("file")).unwrap(), &seeded(1, 100_000));
}

#[test]
fn a_dead_mount_point_is_freed() {
    if plain_dir().is_some() {
        return;
    }
    // By the umount verb ...
    let mut pando = Pando::up();
    fs::write(pando.path("file"), b"kept").unwrap();
    pando.kill();
    refused(fs::read_dir(pando.mount()), libc::ENOTCONN);
    let output = umount(pando.mount());
    assert!(output.status.success(), "{}", text(&output));
    assert!(!sys::is_mounted(pando.mount()));
    assert_eq!(fs::read_dir(pando.mount()).unwrap().count(), 0);
    // ... and by the next start.
    pando.start();
    pando.kill();
    pando.start();
    assert_eq!(fs::read(pando.path("file")).unwrap(), b"kept");
    pando.stop();
    assert!(!sys::is_mounted(pando.mount()), "a mount was left below");
}

#[test]
fn a_daemon_returns_when_the_mount_answers() {
    if plain_dir().is_some() {
        return;
    }
    let pando = Pando::prepare(Options::default());
    let mut command = pando.command();
    command.arg("--daemon");
    let log = File::create(pando.folder().join("daemon.log")).unwrap();
    command.stdout(log.try_clone().unwrap()).stderr(log);
    let status = command.status().unwrap();
    assert!(status.success(), "{status}");
    let stop = scopeguard(|| drop(umount(pando.mount())));
    fs::write(pando.path("file"), b"at once").unwrap();
    let status = pando.json("status");
    assert!(status.to_string().contains("sessions"), "{status}");
    drop(stop);
    wait_for("the daemon's end", DEADLINE, || (!sys::is_mounted(pando.mount())).then_some(()));
    // Its lock goes with it: the data can be used again.
    wait_for("the data to be free", DEADLINE, || pando.verb(&["fsck"]).status.success().then_some(()));
}

/// Runs an action when dropped, also on panic.
fn scopeguard(action: impl FnMut()) -> impl Drop {
    struct Guard<F: FnMut()>(F);
    impl<F: FnMut()> Drop for Guard<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    Guard(action)
}

#[test]
fn status_fsck_and_gc_speak_json() {
    if plain_dir().is_some() {
        return;
    }
    let mut pando = Pando::up();
    tree::make_small_files(pando.mount(), 20);
    for running in [true, false] {
        if !running {
            pando.stop();
        }
        let fsck = pando.json("fsck");
        assert_eq!(fsck["problems"].as_array().map(Vec::len), Some(0), "{fsck}");
        assert!(fsck["inodes"].as_u64().unwrap() >= 22, "{fsck}");
        pando.json("gc");
    }
}

#[test]
fn what_is_removed_leaves_the_store() {
    if plain_dir().is_some() {
        return;
    }
    let pando = Pando::up();
    let dir = pando.path("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("large"), seeded(1, 30 << 20)).unwrap();
    tree::make_small_files(&dir, 200);
    let stored = crate::faults::segments(&pando).iter().map(|(_, length)| length).sum::<u64>();
    assert!(stored > 30 << 20, "{stored} bytes in the store");
    // Overwritten, cut and removed: nothing refers to the old bytes any more.
    fs::write(dir.join("large"), b"small now").unwrap();
    fs::remove_dir_all(&dir).unwrap();
    wait_for("an empty store", DEADLINE, || {
        pando.json("gc");
        crate::faults::segments(&pando).is_empty().then_some(())
    });
    pando.fsck();
}
