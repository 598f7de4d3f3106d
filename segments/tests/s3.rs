//! The store against a real S3 server, the program `s3s-fs`: everything a cluster asks of it, and everything that is
//! commonly wrong with a bucket, an endpoint or a key.
//!
//! `./dev test` installs the server. Without it this test fails; it is never skipped.
#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use pando_segments::{Environment, Fault, Faults, Operation, RetryPolicy, SegmentError, Store, StoreConfig, Writer};
use pando_types::{InodeId, SegmentId, SessionId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const KEY: &str = "AKIAPANDOTEST";
const SECRET: &str = "a-secret-that-must-never-be-printed";
const BUCKET: &str = "grove";

/// A running server; killed and forgotten when dropped.
struct Server {
    child: Child,
    port: u16,
    root: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Server {
    fn start() -> Server {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join(BUCKET)).unwrap();
        // Between finding a free port and using it, another program may take it.
        for _ in 0..5 {
            let port = free_port();
            let mut child = spawn(root.path(), port);
            if answers(&mut child, port) {
                return Server { child, port, root };
            }
        }
        panic!("s3s-fs did not start on any of five free ports");
    }

    fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn restart(&mut self) {
        self.kill();
        self.child = spawn(self.root.path(), self.port);
    }

    fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn config(&self, url: &str) -> StoreConfig {
        StoreConfig { url: url.into(), s3_endpoint: Some(self.endpoint()), cluster: "c1".into() }
    }

    async fn store(&self, url: &str) -> Store {
        Store::open_in(&self.config(url), keys(KEY, SECRET)).await.unwrap()
    }

    /// The file of an object, found by its name.
    fn file(&self, id: SegmentId) -> PathBuf {
        let mut folders = vec![self.root.path().join(BUCKET)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false if path.file_name().unwrap() == id.to_string().as_str() => return path,
                    false => {}
                }
            }
        }
        panic!("{id} is not in the bucket");
    }
}

fn spawn(root: &std::path::Path, port: u16) -> Child {
    let program = program();
    Command::new(&program)
        .args(["--host", "127.0.0.1", "--port", &port.to_string()])
        .args(["--access-key", KEY, "--secret-key", SECRET])
        .arg(root)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|e| panic!("the S3 server {} cannot be run: {e}", program.display()))
}

/// `PANDO_S3S_FS`, else in `PATH`, else where `./dev` puts it.
fn program() -> PathBuf {
    if let Some(named) = std::env::var_os("PANDO_S3S_FS") {
        return named.into();
    }
    let cache = std::env::var_os("PANDO_CACHE").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home).map(|cache| cache.join("pando"))
    });
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<_> = std::env::split_paths(&path).collect();
    folders.extend(cache.map(|cache| cache.join("tools/bin")));
    folders.into_iter().map(|folder| folder.join("s3s-fs")).find(|file| file.is_file()).unwrap_or_else(|| {
        panic!(
            "the S3 server s3s-fs is not installed; run `./dev test`, which installs it, or `cargo install s3s-fs \
             --version 0.14.1 --features binary --locked` and set PANDO_S3S_FS"
        )
    })
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

fn answers(child: &mut Child, port: u16) -> bool {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}

fn keys(id: &str, secret: &str) -> Environment {
    Environment::of([("AWS_ACCESS_KEY_ID", id), ("AWS_SECRET_ACCESS_KEY", secret), ("AWS_REGION", "us-east-1")])
}

fn id(sequence: u64) -> SegmentId {
    SegmentId { session: SessionId(0xfeed), sequence }
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn segment(data: &[u8]) -> Vec<Bytes> {
    let mut writer = Writer::new();
    writer.push(InodeId(7), 4096, Bytes::copy_from_slice(data));
    writer.finish().0
}

async fn checked(config: &StoreConfig, environment: Environment) -> Result<(), SegmentError> {
    Store::open_in(config, environment).await?.check().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segments_are_kept_read_listed_and_deleted() {
    let server = Server::start();
    for url in ["s3://grove", "s3://grove/a/prefix"] {
        let store = server.store(url).await;
        store.check().await.unwrap();
        assert_eq!(store.space(), None);
        assert_eq!(store.sweep_unfinished(Duration::ZERO).await, Ok(0));

        let large = bytes(16 << 20);
        let small = bytes(5000);
        store.put(id(1), segment(&large)).await.unwrap();
        store.put(id(2), segment(&small)).await.unwrap();
        store.put(id(2), segment(&small)).await.unwrap();
        for store in [store.clone(), server.store(url).await] {
            for range in [0..1, 65_535..65_537, 0..16 << 20, (16 << 20) - 1..16 << 20, 3_000_000..9_999_999] {
                let want = &large[range.start as usize..range.end as usize];
                assert!(store.read(id(1), range.clone()).await.unwrap() == want, "{range:?}");
            }
            assert_eq!(store.read(id(2), 4000..5000).await.unwrap(), small[4000..]);
            let (owners, length) = store.owners(id(2)).await.unwrap();
            assert_eq!((owners[0].inode, owners[0].file_offset, length), (InodeId(7), 4096, 5000));
        }

        let mut found: Vec<_> = store.list().map(|item| item.unwrap()).collect().await;
        found.sort_by_key(|(id, ..)| *id);
        assert_eq!(found.iter().map(|(id, ..)| *id).collect::<Vec<_>>(), [id(1), id(2)]);
        assert!(found[0].1 > 16 << 20 && found[1].1 < 6000 && found[0].2 < Duration::from_secs(600), "{found:?}");

        store.delete(id(1)).await.unwrap();
        store.delete(id(1)).await.unwrap();
        let error = server.store(url).await.read(id(1), 0..1).await.unwrap_err();
        assert!(matches!(error, SegmentError::Missing { segment, .. } if segment == id(1)), "{error}");
        assert_eq!(store.list().count().await, 1);
        store.delete(id(2)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_puts_and_reads_at_once() {
    let server = Server::start();
    let store = server.store("s3://grove").await;
    let data = bytes(300_000);
    let puts = (0..200).map(|n| store.put(id(n), segment(&data[n as usize..])));
    for put in futures::future::join_all(puts).await {
        put.unwrap();
    }
    let reads = (0..200).map(|n| store.read(id(n), 1000..70_000));
    for (n, read) in futures::future::join_all(reads).await.into_iter().enumerate() {
        assert_eq!(read.unwrap(), data[n..][1000..70_000]);
    }
    assert_eq!(store.list().count().await, 200);
}

#[tokio::test]
async fn damage_in_the_bucket_is_found() {
    let server = Server::start();
    let store = server.store("s3://grove").await;
    let data = bytes(200_000);
    for n in 1..=3 {
        store.put(id(n), segment(&data)).await.unwrap();
    }
    let spoil = |n, change: &dyn Fn(&mut Vec<u8>)| {
        let path = server.file(id(n));
        let mut object = std::fs::read(&path).unwrap();
        change(&mut object);
        std::fs::write(path, object).unwrap();
    };
    spoil(1, &|object| object[150_000] ^= 4);
    spoil(2, &|object| object.truncate(100_000));
    spoil(3, &|object| object.clear());
    // With the checks at hand and without.
    for store in [store, server.store("s3://grove").await] {
        for n in 1..=3 {
            let error = store.read(id(n), 140_000..180_000).await.unwrap_err();
            assert!(matches!(&error, SegmentError::Corrupt { segment, .. } if *segment == id(n)), "{n}: {error}");
        }
        assert_eq!(store.read(id(1), 0..60_000).await.unwrap(), data[..60_000]);
    }
}

#[tokio::test]
async fn what_is_wrong_is_said_in_a_sentence_without_secrets() {
    let server = Server::start();
    let good = server.config("s3://grove");
    let closed = StoreConfig { s3_endpoint: Some(format!("http://127.0.0.1:{}", free_port())), ..good.clone() };
    let nowhere = StoreConfig { s3_endpoint: Some("http://no-such-host.invalid".into()), ..good.clone() };
    let other_bucket = server.config("s3://no-such-bucket/x");
    let bad_bucket = server.config("s3://x");
    let cases = [
        (&good, keys(KEY, "a-wrong-secret"), "does not accept the credentials"),
        (&good, keys("AKIAUNKNOWN", SECRET), "does not accept the credentials"),
        (&good, Environment::of([]), "no usable S3 credentials"),
        (&other_bucket, keys(KEY, SECRET), "the bucket of s3://no-such-bucket/x"),
        (&bad_bucket, keys(KEY, SECRET), "name of its bucket"),
        (&closed, keys(KEY, SECRET), "does not answer"),
        (&nowhere, keys(KEY, SECRET), "does not answer"),
    ];
    for (config, environment, tells) in cases {
        let began = Instant::now();
        let error = checked(config, environment).await.unwrap_err();
        let told = error.to_string();
        assert!(told.contains(tells), "{told}");
        assert!(!told.contains('\n') && told.len() < 300, "one sentence: {told}");
        for secret in [SECRET, "a-wrong-secret", "AKIA"] {
            assert!(!told.contains(secret) && !format!("{error:?}").contains(secret), "{told}");
        }
        assert!(began.elapsed() < Duration::from_secs(8), "a person waits");
    }
}

#[tokio::test]
async fn credentials_are_taken_from_a_profile() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("credentials");
    let text = format!(
        "[default]\naws_access_key_id = x\naws_secret_access_key = y\n\
         [grove]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    );
    std::fs::write(&file, text).unwrap();
    let environment =
        |profile| Environment::of([("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap()), ("AWS_PROFILE", profile)]);
    checked(&server.config("s3://grove"), environment("grove")).await.unwrap();
    let error = checked(&server.config("s3://grove"), environment("default")).await.unwrap_err();
    assert!(matches!(error, SegmentError::Credentials { .. }), "{error}");
}

#[tokio::test]
async fn a_restart_of_the_server_is_waited_for() {
    let mut server = Server::start();
    let store = server.store("s3://grove").await;
    let data = bytes(1 << 20);
    store.put(id(1), segment(&data)).await.unwrap();
    server.kill();
    let (put, read, ()) = tokio::join!(store.put(id(2), segment(&data)), store.read(id(1), 0..100), async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        server.restart();
    });
    put.unwrap();
    assert_eq!(read.unwrap(), data[..100]);
    assert_eq!(store.read(id(2), 0..1 << 20).await.unwrap(), data);
}

#[tokio::test]
async fn a_lost_answer_does_no_harm() {
    let server = Server::start();
    let faults = Faults::new();
    let store = server.store("s3://grove").await.with_faults(faults.clone());
    for operation in [Operation::Put, Operation::Get, Operation::Delete] {
        faults.inject(operation, Fault::LoseAnswer, 1);
    }
    faults.inject(Operation::List, Fault::Refuse, 1);
    store.put(id(1), segment(b"abc")).await.unwrap();
    assert_eq!(store.read(id(1), 0..3).await.unwrap(), &b"abc"[..]);
    assert_eq!(store.list().count().await, 1);
    store.delete(id(1)).await.unwrap();
    assert_eq!(store.list().count().await, 0);
}

/// A server that is too busy, and one that takes requests and never answers.
#[tokio::test]
async fn a_server_that_does_not_serve_is_given_up_in_time() {
    let policy = RetryPolicy {
        tries: 3,
        first_pause: Duration::from_millis(10),
        try_timeout: Duration::from_millis(300),
        ..RetryPolicy::REMOTE
    };
    for (answer, tells) in [
        (
            Some(
                "HTTP/1.1 503 Slow Down\r\ncontent-length: 44\r\n\r\n\
                <Error><Code>SlowDown</Code></Error>        ",
            ),
            "SlowDown",
        ),
        (None, "no answer within"),
    ] {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let mut connections = Vec::new();
            for asked in 1.. {
                let Ok(Ok((mut stream, _))) = tokio::time::timeout(Duration::from_secs(3), listener.accept()).await
                else {
                    return asked - 1;
                };
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                if let Some(answer) = answer {
                    let _ = stream.write_all(answer.as_bytes()).await;
                    let _ = stream.shutdown().await;
                } else {
                    connections.push(stream);
                }
            }
            unreachable!()
        });
        let config = StoreConfig { url: "s3://grove".into(), s3_endpoint: Some(endpoint), cluster: "c1".into() };
        let store = Store::open_in(&config, keys(KEY, SECRET)).await.unwrap().with_retry(policy);
        let error = store.put(id(1), segment(b"abc")).await.unwrap_err();
        assert!(error.is_transient() && error.to_string().contains(tells), "{error}");
        assert_eq!(server.await.unwrap(), 3, "each try asked once");
    }
}
