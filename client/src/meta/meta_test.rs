//! The metadata half against a server that misbehaves as told.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pando_rpc::{Handler, Server};
use pando_types::attr::FileKind;
use pando_types::command::NewNode;
use pando_types::epoch::{Generation, MapEpoch};
use pando_types::request::ResponseMessage;
use pando_types::{ErrorKind, NodeId, Timestamp};

use pando_types::shard_map::ShardMap;

use super::*;

/// What the server does with one change.
#[derive(Debug, Clone)]
enum Act {
    /// Carries it out and answers.
    Answer,
    /// Carries it out, and the answer is lost.
    LoseAnswer,
    /// Answers this instead.
    Fail(ErrorKind),
    /// Carries nothing out and says that the session is gone.
    Forget,
}

/// A server with a script of what happens to changes, and the engine's rules for op ids.
struct Fake {
    script: Mutex<Vec<Act>>,
    state: Mutex<State>,
    sessions_opened: AtomicUsize,
    map: Mutex<Option<ShardMap>>,
}

#[derive(Default)]
struct State {
    seen: Vec<OpId>,
    epochs: Vec<MapEpoch>,
    replies: HashMap<OpId, Reply>,
    effects: u64,
    live: Vec<SessionId>,
}

impl Fake {
    fn change(&self, epoch: MapEpoch, envelope: Envelope) -> Option<Result<Response, FsError>> {
        let act = {
            let mut script = self.script.lock().unwrap();
            if script.is_empty() { Act::Answer } else { script.remove(0) }
        };
        let mut state = self.state.lock().unwrap();
        state.seen.push(envelope.op);
        state.epochs.push(epoch);
        if let Act::Forget = act {
            state.live.clear();
        }
        if let Act::Fail(kind) = act {
            return Some(Err(FsError { kind, errno: Errno::EIO, detail: "as scripted".into() }));
        }
        if !state.live.contains(&envelope.op.session) {
            return Some(Ok(Response::Reply(Reply::Stale)));
        }
        let known = state.replies.get(&envelope.op).cloned();
        let reply = known.unwrap_or_else(|| {
            state.effects += 1;
            let reply = Reply::Inode(file(state.effects));
            state.replies.insert(envelope.op, reply.clone());
            reply
        });
        match act {
            Act::LoseAnswer => None,
            _ => Some(Ok(Response::Reply(reply))),
        }
    }
}

impl Handler for Fake {
    fn handle(&self, message: RequestMessage) -> impl Future<Output = ResponseMessage> + Send {
        let result = match message.request {
            Request::ShardMap => Some(Ok(Response::ShardMap(self.map.lock().unwrap().clone().unwrap()))),
            Request::OpenSession => {
                let id = SessionId(1 + self.sessions_opened.fetch_add(1, Ordering::Relaxed) as u64);
                self.state.lock().unwrap().live.push(id);
                Some(Ok(Response::Session(id)))
            }
            Request::Change(envelope) => self.change(message.epoch, envelope),
            Request::GetAttr { inode } => Some(Ok(Response::Attr(file(inode.0)))),
            _ => Some(Err(FsError::bug("not in this test"))),
        };
        async move {
            match result {
                Some(result) => ResponseMessage { generation: Generation(7), result },
                None => std::future::pending().await,
            }
        }
    }
}

fn file(inode: u64) -> Attr {
    Attr {
        inode: InodeId(inode),
        kind: FileKind::File,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        allocated: 0,
        atime: Timestamp(0),
        mtime: Timestamp(0),
        ctime: Timestamp(0),
        version: 0,
    }
}

struct Setup {
    fake: Arc<Fake>,
    server: Server,
    meta: Meta,
}

fn quick() -> RetryPolicy {
    RetryPolicy { deadline: Duration::from_secs(3), attempt: Duration::from_millis(200), ..RetryPolicy::default() }
}

async fn serve(script: &[Act]) -> (Arc<Fake>, Server) {
    let fake = Arc::new(Fake {
        script: Mutex::new(script.to_vec()),
        state: Mutex::default(),
        sessions_opened: AtomicUsize::new(0),
        map: Mutex::new(None),
    });
    let server = Server::bind("127.0.0.1:0", false, fake.clone()).await.unwrap();
    *fake.map.lock().unwrap() = Some(ShardMap::single(NodeId(1), server.address().to_string()));
    (fake, server)
}

async fn setup(script: &[Act]) -> Setup {
    let (fake, server) = serve(script).await;
    let meta = Meta::connect(&server.address().to_string(), quick()).await.unwrap();
    Setup { fake, server, meta }
}

fn create(name: &str) -> Create {
    Create {
        parent: InodeId::ROOT,
        name: FileName::new(name.as_bytes()).unwrap(),
        node: NewNode::File,
        mode: 0o666,
        umask: 0o022,
        uid: 0,
        gid: 0,
    }
}

#[tokio::test]
async fn what_can_pass_is_retried_with_the_same_op_id() {
    let script =
        [Act::Fail(ErrorKind::Throttled(30)), Act::Fail(ErrorKind::Unavailable), Act::LoseAnswer, Act::LoseAnswer];
    let s = setup(&script).await;
    let began = Instant::now();
    s.meta.create(create("x")).await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(30), "waits as long as it was told to");
    let state = s.fake.state.lock().unwrap();
    assert_eq!(state.seen.len(), 5);
    assert!(state.seen.iter().all(|op| *op == state.seen[0]), "{:?}", state.seen);
    assert_eq!(state.effects, 1, "a lost answer must not make it happen twice");
}

#[tokio::test]
async fn a_refusal_is_not_retried() {
    let s = setup(&[Act::Fail(ErrorKind::Corrupt)]).await;
    assert_eq!(s.meta.create(create("x")).await.unwrap_err().kind, ErrorKind::Corrupt);
    assert_eq!(s.fake.state.lock().unwrap().seen.len(), 1);
}

#[tokio::test]
async fn a_redirect_is_followed_with_the_new_epoch() {
    let (new, new_server) = serve(&[]).await;
    let mut map = new.map.lock().unwrap().clone().unwrap();
    map.epoch = MapEpoch(9);
    let s = setup(&[Act::Fail(ErrorKind::Redirect(Box::new(map)))]).await;
    // The session was opened with the old server, and its shard moves with its sessions.
    new.state.lock().unwrap().live.push(SessionId(1));
    s.meta.create(create("x")).await.unwrap();
    assert_eq!(new.state.lock().unwrap().epochs, [MapEpoch(9)]);
    assert_eq!(new.state.lock().unwrap().seen, s.fake.state.lock().unwrap().seen);
    drop(new_server);
}

#[tokio::test]
async fn a_stale_session_is_replaced_and_the_change_made() {
    let s = setup(&[Act::Answer, Act::Forget]).await;
    s.meta.create(create("x")).await.unwrap();
    let first = s.meta.segment_id(InodeId::ROOT).await.unwrap();
    s.meta.create(create("y")).await.unwrap();
    assert_eq!(s.fake.sessions_opened.load(Ordering::Relaxed), 2);
    assert_eq!(s.fake.state.lock().unwrap().effects, 2);
    assert_ne!(s.meta.segment_id(InodeId::ROOT).await.unwrap().session, first.session);
}

#[tokio::test]
async fn an_outcome_that_cannot_be_known_is_an_error() {
    let s = setup(&[Act::LoseAnswer, Act::Forget, Act::LoseAnswer, Act::Forget]).await;
    let error = s.meta.create(create("x")).await.unwrap_err();
    assert_eq!((error.kind, error.errno), (ErrorKind::Unavailable, Errno::EIO));
    assert_eq!(s.fake.state.lock().unwrap().effects, 1, "not made again under another op id");
    // Setting a mode twice is setting it once.
    s.meta.setattr(InodeId::ROOT, AttrChange::default(), None).await.unwrap();
}

#[tokio::test]
async fn segments_of_an_ended_session_are_not_committed() {
    let s = setup(&[]).await;
    let id = s.meta.segment_id(InodeId::ROOT).await.unwrap();
    s.fake.script.lock().unwrap().push(Act::Forget);
    s.meta.create(create("x")).await.unwrap();
    let file = pando_types::command::FileCommit {
        inode: InodeId(5),
        cut: None,
        punch: Vec::new(),
        content: pando_types::command::CommitContent::Extents(Vec::new()),
        size: 1,
        change: AttrChange::default(),
    };
    let segments = vec![pando_types::command::NewSegment { id, length: 1 }];
    let error = s.meta.commit(Commit { files: vec![file], segments }).await.unwrap_err();
    assert_eq!(error.errno, Errno::EIO);
    assert_eq!(s.fake.state.lock().unwrap().effects, 1);
}

#[tokio::test]
async fn an_outage_ends_in_eio_within_the_deadline() {
    let s = setup(&[]).await;
    s.server.shutdown().await;
    let policy = RetryPolicy { deadline: Duration::from_millis(300), ..quick() };
    let inner = &s.meta.0;
    let began = Instant::now();
    let mut message = inner.message(Request::GetAttr { inode: InodeId(3) });
    let deadline = Instant::now() + policy.deadline;
    let error: FsError =
        retry::call(&inner.router, SlotId(0), &mut message, &policy, deadline).await.unwrap_err().into();
    assert_eq!(error.errno, Errno::EIO);
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn the_generation_is_learned_from_answers() {
    let s = setup(&[]).await;
    s.meta.getattr(InodeId(3)).await.unwrap();
    assert_eq!(s.meta.0.router.generation(), Generation(7));
}

#[tokio::test]
async fn many_changes_at_once_stay_in_the_window() {
    let s = setup(&[]).await;
    let calls = (0..3000).map(|n| {
        let meta = s.meta.clone();
        async move { meta.create(create(&format!("{n}"))).await.unwrap() }
    });
    futures::future::join_all(calls).await;
    let state = s.fake.state.lock().unwrap();
    assert_eq!(state.effects, 3000);
    assert_eq!(s.fake.sessions_opened.load(Ordering::Relaxed), 1, "many first operations open one session");
}
