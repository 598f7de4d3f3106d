//! The parts wired differently: a server of its own, two mounts of it, and the server gone for a while.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use pando_tests::bytes::seeded;
use pando_tests::pando::{DEADLINE, binary, plain_dir, run, scratch, start_ready, text, wait_exit, wait_for};
use pando_tests::sys;

use crate::{refused, same};

/// `pando server` and mounts of it, all ended when dropped.
struct Wired {
    server: Option<Child>,
    mounts: Vec<(PathBuf, Child)>,
    address: String,
    scratch: tempfile::TempDir,
}

impl Wired {
    fn start(mounts: usize) -> Wired {
        let scratch = scratch();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let root = scratch.path().canonicalize().unwrap();
        fs::create_dir(root.join("objects")).unwrap();
        let (data, store) = (root.join("meta"), root.join("objects"));
        let config = format!("data = {data:?}\nlisten = {address:?}\nobject_store = \"file://{}\"\n", store.display());
        fs::write(root.join("server.toml"), config).unwrap();
        let mut wired = Wired { server: None, mounts: Vec::new(), address, scratch };
        wired.start_server();
        for index in 0..mounts {
            let dir = root.join(format!("mnt-{index}"));
            let mut command = Command::new(binary());
            command.arg("mount").arg(&wired.address).arg(&dir);
            let child = wired.started(command, &format!("mount-{index}"));
            wired.mounts.push((dir, child));
        }
        wired
    }

    fn started(&self, command: Command, name: &str) -> Child {
        let log = |stream: &str| self.scratch.path().join(format!("{name}.{stream}"));
        start_ready(command, &log("out"), &log("err")).unwrap_or_else(|problem| panic!("{name}: {problem}"))
    }

    fn start_server(&mut self) {
        let mut command = Command::new(binary());
        command.arg("server").arg("--config").arg(self.scratch.path().join("server.toml"));
        self.server = Some(self.started(command, "server"));
    }

    fn kill_server(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    fn mount(&self, index: usize) -> &Path {
        &self.mounts[index].0
    }
}

impl Drop for Wired {
    fn drop(&mut self) {
        let ends = self.mounts.iter_mut().map(|(_, child)| child).chain(&mut self.server);
        for child in ends {
            let _ = sys::signal(child.id(), libc::SIGTERM);
            let start = Instant::now();
            while child.try_wait().is_ok_and(|ended| ended.is_none()) && start.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        for (dir, _) in &self.mounts {
            while sys::is_mounted(dir) && sys::detach(dir).is_ok() {}
        }
    }
}

#[test]
fn a_mount_does_not_go_on_in_another_cluster_that_got_its_servers_address() {
    if plain_dir().is_some() {
        return;
    }
    let mut wired = Wired::start(1);
    fs::write(wired.mount(0).join("here"), b"x").unwrap();
    wired.kill_server();
    fs::rename(wired.scratch.path().join("meta"), wired.scratch.path().join("kept")).unwrap();
    wired.start_server();
    refused(fs::write(wired.mount(0).join("there"), b"x"), libc::EIO);
    wired.kill_server();
    fs::remove_dir_all(wired.scratch.path().join("meta")).unwrap();
    fs::rename(wired.scratch.path().join("kept"), wired.scratch.path().join("meta")).unwrap();
    wired.start_server();
    fs::write(wired.mount(0).join("there"), b"x").unwrap();
}

#[test]
fn what_one_mount_closed_another_sees_on_open() {
    if plain_dir().is_some() {
        return;
    }
    let wired = Wired::start(2);
    let (a, b) = (wired.mount(0), wired.mount(1));
    for (round, length) in [100usize, 50_000, 6 << 20, 10].into_iter().enumerate() {
        let seed = round as u64;
        // One name that is overwritten each time, read at once in the other mount.
        fs::write(a.join("file"), seeded(seed, length)).unwrap();
        same(&fs::read(b.join("file")).unwrap(), &seeded(seed, length));
        fs::write(b.join("back"), seeded(seed + 100, length)).unwrap();
        same(&fs::read(a.join("back")).unwrap(), &seeded(seed + 100, length));
    }
    // An overwrite under way shows nothing until it is closed.
    let mut file = OpenOptions::new().write(true).truncate(true).open(a.join("file")).unwrap();
    file.write_all(b"the new tracker").unwrap();
    same(&fs::read(b.join("file")).unwrap(), &seeded(3, 10));
    sys::close(file).unwrap();
    same(&fs::read(b.join("file")).unwrap(), b"the new tracker");
    // Names and attributes may come a second late.
    let soon = Duration::from_secs(3);
    fs::create_dir(a.join("dir")).unwrap();
    fs::rename(a.join("file"), a.join("dir/renamed")).unwrap();
    wait_for("a rename in the other mount", soon, || b.join("dir/renamed").exists().then_some(()));
    wait_for("the old name's end", soon, || (!b.join("file").exists()).then_some(()));
    fs::remove_file(b.join("dir/renamed")).unwrap();
    wait_for("a removal in the first mount", soon, || (!a.join("dir/renamed").exists()).then_some(()));
    refused(File::open(a.join("dir/renamed")), libc::ENOENT);
}

#[test]
fn disjoint_ranges_from_two_mounts_are_all_kept() {
    if plain_dir().is_some() {
        return;
    }
    use std::os::unix::fs::FileExt;
    let wired = Wired::start(2);
    let open = |mount: &Path| OpenOptions::new().write(true).open(mount.join("file")).unwrap();
    let (each, writers) = (3usize << 20, 4usize);
    File::create(wired.mount(0).join("file")).unwrap().set_len((each * writers) as u64).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let file = open(wired.mount(writer % 2));
            scope.spawn(move || {
                for (index, part) in seeded(writer as u64, each).chunks(1 << 20).enumerate() {
                    file.write_all_at(part, (writer * each + (index << 20)) as u64).unwrap();
                }
                sys::close(file).unwrap();
            });
        }
    });
    for mount in 0..2 {
        let got = fs::read(wired.mount(mount).join("file")).unwrap();
        for writer in 0..writers {
            same(&got[writer * each..(writer + 1) * each], &seeded(writer as u64, each));
        }
    }
}

#[test]
fn a_server_that_comes_back_is_waited_for() {
    if plain_dir().is_some() {
        return;
    }
    let mut wired = Wired::start(1);
    let dir = wired.mount(0).to_owned();
    fs::write(dir.join("before"), seeded(1, 100_000)).unwrap();
    for round in 0..3u64 {
        wired.kill_server();
        std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                // mkdir is not idempotent: a retry that took effect twice would say EEXIST.
                fs::create_dir(dir.join(format!("dir-{round}")))?;
                fs::write(dir.join(format!("file-{round}")), seeded(round, 70_000))?;
                fs::rename(dir.join(format!("file-{round}")), dir.join(format!("renamed-{round}")))
            });
            std::thread::sleep(Duration::from_millis(500));
            wired.start_server();
            work.join().unwrap().unwrap();
        });
        same(&fs::read(dir.join(format!("renamed-{round}"))).unwrap(), &seeded(round, 70_000));
    }
    same(&fs::read(dir.join("before")).unwrap(), &seeded(1, 100_000));
    let mut fsck = Command::new(binary());
    fsck.arg("fsck").arg(&wired.address);
    let output = run(fsck, DEADLINE);
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn a_mount_without_a_server_is_refused() {
    if plain_dir().is_some() {
        return;
    }
    let scratch = scratch();
    let dir = scratch.path().join("mnt");
    let mut command = Command::new(binary());
    command.arg("mount").arg("127.0.0.1:9").arg(&dir);
    let said = crate::faults::one_sentence(&run(command, DEADLINE), 1);
    assert!(said.contains("127.0.0.1:9"), "{said}");
    assert!(!sys::is_mounted(&dir));
    // A mount whose server is stopped for good still ends on SIGTERM.
    let mut wired = Wired::start(1);
    fs::write(wired.mount(0).join("file"), b"x").unwrap();
    wired.kill_server();
    let (dir, child) = &mut wired.mounts[0];
    sys::signal(child.id(), libc::SIGTERM).unwrap();
    wait_exit(child, "the end of a mount without its server", DEADLINE);
    assert!(!sys::is_mounted(dir), "still mounted");
}
