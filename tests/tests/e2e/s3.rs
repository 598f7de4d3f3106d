//! The same over a real S3 server, which the test starts; and what happens when that server fails.

use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pando_tests::bytes::seeded;
use pando_tests::pando::{DEADLINE, Options, Pando, plain_dir, run, scratch, wait_for};
use pando_tests::tree::{self, Detail};
use pando_tests::{spawn, sys, tools};

use crate::{faults, programs, refused, same};

const KEY: &str = "AKPANDOTESTKEY";
const SECRET: &str = "very-secret-pando-test";

/// An S3 server over a folder.
struct Server {
    child: Option<Child>,
    port: u16,
    folder: tempfile::TempDir,
}

impl Server {
    fn start() -> Server {
        let folder = scratch();
        fs::create_dir(folder.path().join("bucket")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = Server { child: None, port, folder };
        server.resume();
        server
    }

    fn resume(&mut self) {
        let mut command = Command::new(tools::find("s3s-fs"));
        command.args(["--host", "127.0.0.1", "--access-key", KEY, "--secret-key", SECRET]);
        command.arg("--port").arg(self.port.to_string()).arg(self.folder.path());
        let log = File::options().append(true).create(true).open(self.folder.path().with_extension("log")).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log).stdin(Stdio::null()).env("RUST_LOG", "warn");
        self.child = Some(spawn::spawn(command, libc::SIGKILL).expect("s3s-fs starts"));
        let address = ("127.0.0.1", self.port);
        wait_for("the S3 server", Duration::from_secs(10), || TcpStream::connect(address).ok());
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Options of a `pando up` that stores here.
    fn options(&self, secret: &str) -> Options {
        let endpoint = format!("http://127.0.0.1:{}", self.port);
        let args = ["--object-store", "s3://bucket", "--s3-endpoint", &endpoint].map(Into::into).to_vec();
        let envs = [("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", secret), ("AWS_REGION", "us-east-1")];
        let envs = envs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        Options { args, envs, ..Options::default() }
    }

    fn objects(&self) -> usize {
        faults::segments_below(&self.folder.path().join("bucket")).len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_file(self.folder.path().with_extension("log"));
    }
}

#[test]
fn the_same_programs_work_over_s3() {
    if plain_dir().is_some() {
        return;
    }
    let server = Server::start();
    let mut pando = Pando::up_with(server.options(SECRET));
    let (dir, local) = (pando.path("work"), scratch());
    fs::create_dir(&dir).unwrap();
    programs::tar_agrees(&dir, local.path(), 500);
    programs::sqlite_agrees(&dir, local.path(), 60);
    fs::write(dir.join("kept"), seeded(1, 20 << 20)).unwrap();
    programs::large_agrees(&dir, 64 << 20);
    assert!(server.objects() > 0, "nothing was stored in the bucket");
    assert!(faults::segments(&pando).is_empty(), "segments in the local folder");
    let before = tree::read(&dir, Detail::All);
    pando.restart();
    tree::assert_same(&tree::read(&dir, Detail::All), &before);
    pando.fsck();
    let said = pando.log();
    let arguments = fs::read(format!("/proc/{}/cmdline", pando.pid().unwrap())).unwrap();
    assert!(!said.contains(SECRET) && !String::from_utf8_lossy(&arguments).contains(SECRET), "a secret was shown");
    fs::remove_dir_all(&dir).unwrap();
    wait_for("an empty bucket", DEADLINE, || {
        pando.json("gc");
        (server.objects() == 0).then_some(())
    });
}

#[test]
fn wrong_s3_credentials_are_told() {
    if plain_dir().is_some() {
        return;
    }
    let server = Server::start();
    let pando = Pando::prepare(server.options("wrong-secret-pando"));
    let said = faults::one_sentence(&run(pando.command(), DEADLINE), 1);
    assert!(said.to_lowercase().contains("credential") || said.contains("AWS_"), "{said}");
    assert!(!said.contains("wrong-secret-pando"), "{said}");
    assert!(!sys::is_mounted(pando.mount()));
    let mut absent = server.options(SECRET);
    absent.args[1] = "s3://absent".into();
    let pando = Pando::prepare(absent);
    let said = faults::one_sentence(&run(pando.command(), DEADLINE), 1);
    assert!(said.contains("absent"), "{said}");
}

/// Creates or replaces a file; what close said.
fn put(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    sys::close(file)
}

#[test]
fn a_store_that_fails_is_told_and_the_old_content_stays() {
    if plain_dir().is_some() {
        return;
    }
    let mut server = Server::start();
    let mut pando = Pando::up_with(server.options(SECRET));
    let paths: Vec<PathBuf> = ["packed", "large"].iter().map(|name| pando.path(name)).collect();
    put(&paths[0], &seeded(1, 100_000)).unwrap();
    put(&paths[1], &seeded(1, 9 << 20)).unwrap();
    server.stop();
    std::thread::scope(|scope| {
        // At close and at fsync, small and large, all at once since each waits for the retries.
        scope.spawn(|| refused(put(&paths[0], &seeded(2, 100_000)), libc::EIO));
        scope.spawn(|| refused(put(&paths[1], &seeded(2, 9 << 20)), libc::EIO));
        scope.spawn(|| {
            let file = File::create(pando.path("fsync")).unwrap();
            let written = file.write_all_at(&seeded(2, 50_000), 0);
            refused(written.and_then(|()| file.sync_all()), libc::EIO);
        });
        // What needs no store goes on: small files and names.
        let start = std::time::Instant::now();
        put(&pando.path("inline"), b"in the inode").unwrap();
        fs::rename(pando.path("inline"), pando.path("renamed")).unwrap();
        assert!(start.elapsed() < Duration::from_secs(5), "waited for the store: {:?}", start.elapsed());
    });
    server.resume();
    pando.restart();
    same(&fs::read(&paths[0]).unwrap(), &seeded(1, 100_000));
    same(&fs::read(&paths[1]).unwrap(), &seeded(1, 9 << 20));
    assert_eq!(fs::read(pando.path("renamed")).unwrap(), b"in the inode");
    put(&paths[0], &seeded(3, 100_000)).unwrap();
    same(&fs::read(&paths[0]).unwrap(), &seeded(3, 100_000));
    pando.fsck();
}

#[test]
fn a_short_outage_of_the_store_is_ridden_out() {
    if plain_dir().is_some() {
        return;
    }
    let mut server = Server::start();
    let pando = Pando::up_with(server.options(SECRET));
    server.stop();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| put(&pando.path("file"), &seeded(1, 5 << 20)));
        std::thread::sleep(Duration::from_millis(700));
        server.resume();
        writer.join().unwrap().unwrap();
    });
    same(&fs::read(pando.path("file")).unwrap(), &seeded(1, 5 << 20));
}
