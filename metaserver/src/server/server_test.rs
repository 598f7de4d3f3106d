//! A whole server over a real store and real disk, with an rpc pool as its client.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use pando_rpc::Pool;
use pando_segments::Writer;
use pando_types::command::{Commit, CommitContent, Create, FileCommit, NewNode, NewSegment, Rename, RenameMode};
use pando_types::request::{Collected, DirectoryPage, Request, RequestMessage, Response};
use pando_types::shard_map::ClusterTag;
use pando_types::{
    Attr, Command, Envelope, Errno, ErrorKind, Extent, FileName, Generation, InodeId, MapEpoch, OpId, Reply, SegmentId,
    SessionId, ShardId, SlotId,
};

use super::*;

const LONG_TTL: Duration = Duration::from_secs(600);
const SHORT_TTL: Duration = Duration::from_millis(400);

fn config(root: &Path) -> Config {
    let objects = root.join("objects");
    std::fs::create_dir_all(&objects).unwrap();
    let mut config = Config::new(root.join("meta"), format!("file://{}", objects.display()));
    config.listen = "127.0.0.1:0".into();
    config.cache_bytes = 8 << 20;
    config
}

async fn start(root: &Path, ttl: Duration) -> (Server, Client) {
    let server = Server::start_with_ttl(config(root), ttl).await.unwrap();
    let client = Client::connect(server.address().to_string()).await;
    (server, client)
}

impl Server {
    fn applied(&self) -> u64 {
        self.replicas.list()[0].applied
    }
}

/// A client with a session.
struct Client {
    address: String,
    pool: Pool,
    epoch: MapEpoch,
    session: SessionId,
    next: AtomicU64,
}

fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes()).unwrap()
}

fn create(parent: InodeId, text: &str, node: NewNode) -> Command {
    Command::Create(Create { parent, name: name(text), node, mode: 0o755, umask: 0o022, uid: 1, gid: 1 })
}

fn directory(parent: InodeId, text: &str) -> Command {
    create(parent, text, NewNode::Directory { slot: parent.slot() })
}

fn unlink(parent: InodeId, text: &str, unheld: Option<InodeId>) -> Command {
    Command::Unlink { parent, name: name(text), unheld }
}

impl Client {
    async fn connect(address: String) -> Client {
        let (epoch, session, next) = (MapEpoch(0), SessionId(0), AtomicU64::new(1));
        let mut client = Client { address, pool: Pool::new(), epoch, session, next };
        match client.ask(Request::ShardMap).await {
            Ok(Response::ShardMap(map)) => client.epoch = map.epoch,
            other => panic!("{other:?}"),
        }
        match client.ask(Request::OpenSession).await {
            Ok(Response::Session(session)) => client.session = session,
            other => panic!("{other:?}"),
        }
        client
    }

    async fn ask(&self, request: Request) -> Result<Response, FsError> {
        self.ask_by(self.epoch, request).await
    }

    async fn ask_by(&self, epoch: MapEpoch, request: Request) -> Result<Response, FsError> {
        let cluster = ClusterTag::UNKNOWN;
        let message = RequestMessage { cluster, epoch, generation: Generation::FIRST, request };
        self.pool.call(&self.address, &message, Duration::from_secs(20)).await.unwrap().result
    }

    fn envelope(&self, command: Command) -> Envelope {
        let sequence = self.next.fetch_add(1, Ordering::Relaxed);
        Envelope { op: OpId { session: self.session, sequence }, acked: sequence.saturating_sub(100), command }
    }

    async fn send(&self, envelope: Envelope) -> Result<Reply, FsError> {
        match self.ask(Request::Change(envelope)).await? {
            Response::Reply(reply) => Ok(reply),
            other => panic!("{other:?}"),
        }
    }

    async fn change(&self, command: Command) -> Reply {
        self.send(self.envelope(command)).await.unwrap()
    }

    async fn make(&self, command: Command) -> Attr {
        match self.change(command).await {
            Reply::Inode(attr) => attr,
            other => panic!("{other:?}"),
        }
    }

    async fn lookup(&self, parent: InodeId, text: &str) -> Result<Attr, Errno> {
        match self.ask(Request::Lookup { parent, name: name(text) }).await {
            Ok(Response::Attr(attr)) => Ok(attr),
            Err(FsError { kind: ErrorKind::User, errno, .. }) => Err(errno),
            other => panic!("{other:?}"),
        }
    }

    async fn names(&self, inode: InodeId) -> Vec<String> {
        let request = Request::ReadDir { inode, after: None, plus: true, limit: 1000 };
        let Ok(Response::Directory(DirectoryPage { entries, end: true })) = self.ask(request).await else {
            panic!("no directory")
        };
        entries.iter().map(|e| e.name.to_string()).collect()
    }

    async fn collect(&self) -> Collected {
        match self.ask(Request::Collect { shard: ShardId(0) }).await {
            Ok(Response::Collected(collected)) => collected,
            other => panic!("{other:?}"),
        }
    }

    async fn assert_clean(&self) {
        let Ok(Response::Fsck(report)) = self.ask(Request::Fsck { shard: ShardId(0) }).await else {
            panic!("no report")
        };
        assert_eq!(report.problems, Vec::<String>::new());
    }

    /// The store as a mount opens it.
    async fn store(&self) -> Store {
        let Ok(Response::Mount(mount)) = self.ask(Request::Mount).await else { panic!("no mount info") };
        open_store(&mount).await.unwrap()
    }

    async fn put_segment(&self, store: &Store, sequence: u64) -> SegmentId {
        let id = SegmentId { session: self.session, sequence };
        let mut writer = Writer::new();
        writer.push_slice(InodeId(2), 0, &[7; 10_000]);
        let (object, _) = writer.finish();
        store.put(id, object).await.unwrap();
        id
    }

    async fn commit_segment(&self, inode: InodeId, id: SegmentId) -> Reply {
        let extent = Extent { offset: 0, length: 10_000, segment: id, segment_offset: 0 };
        let content = CommitContent::Extents(vec![extent]);
        let file =
            FileCommit { inode, cut: None, punch: Vec::new(), content, size: 10_000, change: Default::default() };
        self.change(Command::Commit(Commit { files: vec![file], segments: vec![NewSegment { id, length: 10_000 }] }))
            .await
    }
}

async fn in_store(store: &Store) -> Vec<SegmentId> {
    use futures::StreamExt;
    let mut ids: Vec<_> = store.list().map(|item| item.unwrap().0).collect().await;
    ids.sort();
    ids
}

async fn until<F: Future<Output = bool>>(what: impl Fn() -> F) {
    let begun = Instant::now();
    while !what().await {
        assert!(begun.elapsed() < Duration::from_secs(20), "it never happened");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_namespace_works_and_outlives_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let (server, client) = start(root.path(), LONG_TTL).await;
    let dir = client.make(directory(InodeId::ROOT, "data")).await;
    assert_ne!(dir.inode.slot(), SlotId(0), "the first level is spread");
    let sub = client.make(directory(dir.inode, "sub")).await;
    assert_eq!(sub.inode.slot(), dir.inode.slot(), "further levels stay");
    let file = client.make(create(dir.inode, "a", NewNode::File)).await;
    assert_eq!(client.lookup(dir.inode, "a").await, Ok(file.clone()));
    let rename = Rename {
        parent: dir.inode,
        name: name("a"),
        new_parent: sub.inode,
        new_name: name("b"),
        mode: RenameMode::Replace,
        unheld: None,
    };
    assert!(matches!(client.change(Command::Rename(rename)).await, Reply::Renamed { .. }));
    assert_eq!(client.lookup(dir.inode, "a").await, Err(Errno::ENOENT));
    assert_eq!(client.names(dir.inode).await, ["sub"]);
    assert_eq!(client.names(sub.inode).await, ["b"]);
    client.assert_clean().await;
    server.shutdown().await.unwrap();

    let (server, client) = start(root.path(), LONG_TTL).await;
    assert_eq!(client.lookup(sub.inode, "b").await.map(|a| a.inode), Ok(file.inode));
    assert!(matches!(
        client.change(unlink(sub.inode, "b", Some(file.inode))).await,
        Reply::Unlinked { held: false, .. }
    ));
    assert_eq!(client.names(sub.inode).await, Vec::<String>::new());
    let other = client.make(create(dir.inode, "c", NewNode::File)).await;
    assert_ne!(other.inode, file.inode, "inode ids are not given twice");
    client.assert_clean().await;
    server.shutdown().await.unwrap();
}

/// What is dropped without a shutdown is what a kill leaves: the log alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_loses_nothing_that_was_answered_and_a_retry_counts_once() {
    let root = tempfile::tempdir().unwrap();
    let (server, client) = start(root.path(), LONG_TTL).await;
    let dir = client.make(directory(InodeId::ROOT, "d")).await;
    let envelope = client.envelope(create(dir.inode, "x", NewNode::File));
    let first = client.send(envelope.clone()).await.unwrap();
    assert_eq!(client.send(envelope.clone()).await.unwrap(), first, "a retry gets the same reply");
    let mkdir = client.envelope(directory(InodeId::ROOT, "e"));
    let made = client.send(mkdir.clone()).await.unwrap();
    assert_eq!(client.send(mkdir.clone()).await.unwrap(), made, "the short cut for existing names spares retries");
    for n in 0..50 {
        client.make(create(dir.inode, &format!("f{n}"), NewNode::File)).await;
    }
    let session = client.session;
    let copy = tempfile::tempdir().unwrap();
    copy_tree(root.path(), copy.path());
    server.shutdown().await.unwrap();

    let mut config = config(copy.path());
    // The copy says that its segments are where the original's are.
    config.object_store = format!("file://{}", root.path().join("objects").display());
    let server = Server::start_with_ttl(config, LONG_TTL).await.unwrap();
    let mut client = Client::connect(server.address().to_string()).await;
    assert_eq!(client.names(dir.inode).await.len(), 51);
    assert_eq!(client.send(envelope).await.unwrap(), first, "also after the crash");
    assert_eq!(client.send(mkdir).await.unwrap(), made);
    assert_eq!(client.names(dir.inode).await.len(), 51);
    client.session = session;
    assert_eq!(
        client.ask(Request::KeepAlive { shard: ShardId(0), session }).await,
        Ok(Response::Done),
        "the session lives on"
    );
    client.assert_clean().await;
    server.shutdown().await.unwrap();
}

/// A picture of the files while the server runs: appended files may be ahead of what was synced, never behind.
fn copy_tree(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_exists_costs_no_log_entry() {
    let root = tempfile::tempdir().unwrap();
    let (server, client) = start(root.path(), LONG_TTL).await;
    client.make(directory(InodeId::ROOT, "shared")).await;
    let before = server.applied();
    for _ in 0..50 {
        assert_eq!(client.change(directory(InodeId::ROOT, "shared")).await, Reply::Refused(Errno::EEXIST));
    }
    assert_eq!(server.applied(), before);
    server.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_at_once_share_log_entries() {
    let root = tempfile::tempdir().unwrap();
    let (server, client) = start(root.path(), LONG_TTL).await;
    let dir = client.make(directory(InodeId::ROOT, "d")).await;
    let before = server.applied();
    let client = Arc::new(client);
    let calls: Vec<_> = (0..1000)
        .map(|n| {
            let client = client.clone();
            // Sent by hand: nothing here may be outside the session's window.
            let op = OpId { session: client.session, sequence: 2 + n };
            let envelope = Envelope { op, acked: 0, command: create(dir.inode, &format!("f{n}"), NewNode::File) };
            tokio::spawn(async move { client.send(envelope).await })
        })
        .collect();
    for call in calls {
        assert!(matches!(call.await.unwrap(), Ok(Reply::Inode(_))));
    }
    let entries = server.applied() - before;
    assert!(entries < 500, "{entries} entries for 1000 commands");
    assert_eq!(client.lookup(InodeId::ROOT, "d").await.map(|a| a.size), Ok(1000));
    client.assert_clean().await;
    server.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_session_ends_and_lets_its_orphans_go() {
    let root = tempfile::tempdir().unwrap();
    let (server, alive) = start(root.path(), SHORT_TTL).await;
    let silent = Client::connect(alive.address.clone()).await;
    let file = silent.make(create(InodeId::ROOT, "f", NewNode::File)).await;
    assert!(matches!(silent.change(unlink(InodeId::ROOT, "f", None)).await, Reply::Unlinked { held: true, .. }));
    let getattr = Request::GetAttr { inode: file.inode };
    assert!(alive.ask(getattr.clone()).await.is_ok(), "kept while its session lives");
    let keep = Request::KeepAlive { shard: ShardId(0), session: alive.session };
    until(|| async {
        assert_eq!(alive.ask(keep.clone()).await, Ok(Response::Done));
        alive.ask(getattr.clone()).await.is_err()
    })
    .await;
    let stale = silent.ask(Request::KeepAlive { shard: ShardId(0), session: silent.session }).await.unwrap_err();
    assert_eq!(stale.kind, ErrorKind::Stale);
    assert_eq!(silent.change(unlink(InodeId::ROOT, "g", None)).await, Reply::Stale);
    // A session that was never opened, and one that is closed by its owner.
    assert!(alive.ask(Request::KeepAlive { shard: ShardId(0), session: SessionId(999) }).await.is_err());
    let close = Request::CloseSession { shard: ShardId(0), session: alive.session };
    assert_eq!(alive.ask(close).await, Ok(Response::Done));
    assert_eq!(alive.ask(keep).await.unwrap_err().kind, ErrorKind::Stale);
    Client::connect(alive.address.clone()).await.assert_clean().await;
    server.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segments_of_the_dead_are_collected_and_those_of_the_living_are_not() {
    let root = tempfile::tempdir().unwrap();
    let (server, alive) = start(root.path(), LONG_TTL).await;
    let dead = Client::connect(alive.address.clone()).await;
    let store = alive.store().await;
    let file = dead.make(create(InodeId::ROOT, "f", NewNode::File)).await;
    let committed = dead.put_segment(&store, 1).await;
    assert!(matches!(dead.commit_segment(file.inode, committed).await, Reply::Committed(_)));
    let leaked = dead.put_segment(&store, 2).await;
    let living = alive.put_segment(&store, 1).await;
    assert_eq!(alive.collect().await, Collected { objects: 3, ..Collected::default() }, "both sessions live");

    let close = Request::CloseSession { shard: ShardId(0), session: dead.session };
    assert_eq!(dead.ask(close).await, Ok(Response::Done));
    assert_eq!(alive.collect().await, Collected { leaked_segments: 1, objects: 3, ..Collected::default() });
    let mut kept = vec![committed, living];
    kept.sort();
    assert_eq!(in_store(&store).await, kept);
    let Ok(Response::Segments(in_use)) =
        alive.ask(Request::SegmentsInUse { shard: ShardId(0), segments: vec![committed, leaked, living] }).await
    else {
        panic!("no answer")
    };
    assert_eq!(in_use, [committed, living]);

    // The last reference goes: the object follows, by the effect alone.
    alive.change(unlink(InodeId::ROOT, "f", Some(file.inode))).await;
    until(|| async { in_store(&store).await == [living] }).await;
    until(|| async {
        let Ok(Response::Fsck(report)) = alive.ask(Request::Fsck { shard: ShardId(0) }).await else {
            panic!("no report")
        };
        (report.orphans, report.dead_segments) == (0, 0)
    })
    .await;
    alive.assert_clean().await;
    // Bytes of another's session could be collected at any moment: they are not taken.
    let other = alive.make(create(InodeId::ROOT, "g", NewNode::File)).await;
    let commit = Commit { files: vec![], segments: vec![NewSegment { id: committed, length: 1 }] };
    assert!(alive.send(alive.envelope(Command::Commit(commit))).await.is_err());
    assert!(matches!(alive.commit_segment(other.inode, living).await, Reply::Committed(_)));
    server.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_missed_while_it_was_down_is_collected() {
    let root = tempfile::tempdir().unwrap();
    let (server, client) = start(root.path(), LONG_TTL).await;
    let store = client.store().await;
    let file = client.make(create(InodeId::ROOT, "f", NewNode::File)).await;
    let segment = client.put_segment(&store, 1).await;
    client.commit_segment(file.inode, segment).await;
    assert!(matches!(client.change(unlink(InodeId::ROOT, "f", None)).await, Reply::Unlinked { held: true, .. }));
    client.put_segment(&store, 2).await;
    server.shutdown().await.unwrap();

    let (server, after) = start(root.path(), SHORT_TTL).await;
    let keep = Request::KeepAlive { shard: ShardId(0), session: after.session };
    until(|| async {
        assert_eq!(after.ask(keep.clone()).await, Ok(Response::Done));
        after.collect().await;
        in_store(&store).await.is_empty()
    })
    .await;
    after.assert_clean().await;
    let Ok(Response::Status(status)) = after.ask(Request::Status).await else { panic!("no status") };
    assert_eq!((status.sessions, status.totals.inodes), (1, 1));
    server.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_map_is_redirected_and_nothing_done() {
    let root = tempfile::tempdir().unwrap();
    let (server, client) = start(root.path(), LONG_TTL).await;
    let change = Request::Change(client.envelope(create(InodeId::ROOT, "f", NewNode::File)));
    for request in [change, Request::GetAttr { inode: InodeId::ROOT }] {
        let error = client.ask_by(MapEpoch(0), request.clone()).await.unwrap_err();
        let ErrorKind::Redirect(map) = error.kind else { panic!("{error:?}") };
        assert_eq!(map.validate(), Ok(()));
        assert_eq!(map.address_of(pando_types::NodeId(1)), Some(client.address.as_str()));
        assert_eq!(client.ask_by(MapEpoch(2), request).await.unwrap_err().kind, ErrorKind::Unavailable);
    }
    assert_eq!(client.names(InodeId::ROOT).await, Vec::<String>::new());
    // The map itself is for everybody.
    assert!(matches!(client.ask_by(MapEpoch(0), Request::ShardMap).await, Ok(Response::ShardMap(_))));
    server.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_refuses_to_be_stopped_by_who_does_not_know_that_it_is_one() {
    let root = tempfile::tempdir().unwrap();
    let (server, client) = start(root.path(), LONG_TTL).await;
    let error = server.replicas.stop(ShardId(0), 0).await.unwrap_err();
    assert!(error.detail.contains("a member by a later entry"), "{}", error.detail);
    client.make(directory(InodeId::ROOT, "still")).await;
    server.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_start_says_why_and_leaves_no_trace() {
    let root = tempfile::tempdir().unwrap();
    let good = config(root.path());
    let refused = |config: Config| async {
        match Server::start(config).await {
            Ok(_) => panic!("it started"),
            Err(error) => error.to_string(),
        }
    };
    let mut no_store = good.clone();
    no_store.object_store = format!("file://{}/nowhere", root.path().display());
    assert!(refused(no_store).await.contains("does not exist"));
    let mut nonsense = good.clone();
    nonsense.object_store = "ftp://x".into();
    assert!(refused(nonsense).await.contains("cannot be used"));
    assert!(!good.data.exists(), "nothing was made");

    let server = Server::start(good.clone()).await.unwrap();
    assert!(refused(good.clone()).await.contains("in use by another process"));
    let mut taken = config(&root.path().join("second"));
    taken.listen = server.address().to_string();
    assert!(refused(taken).await.contains("cannot listen on"));
    let mut remote = config(&root.path().join("third"));
    remote.listen = "0.0.0.0:0".into();
    remote.advertise = Some("host:1".into());
    assert!(refused(remote).await.contains("allow_remote"));
    server.shutdown().await.unwrap();
    let mut moved = good.clone();
    moved.object_store = format!("file://{}", root.path().display());
    assert!(refused(moved).await.contains("go back to the first"));
    Server::start(good).await.unwrap().shutdown().await.unwrap();
}
