//! Pool and server against each other, and against peers that misbehave.

use std::sync::atomic::AtomicU64;
use std::time::Instant;

use pando_types::limits::FRAME_BYTES_MAX;
use pando_types::request::{Request, Response};
use pando_types::shard_map::ClusterTag;
use pando_types::{Errno, ErrorKind, FsError, Generation, InodeId, MapEpoch, SessionId, ShardId};

use super::*;
use crate::{Handler, Rates, Server};

/// Answers by the inode number asked for: 1 at once, 2 after 20 ms, 3 never, 4 by a panic, 5 with more than a frame holds.
#[derive(Default)]
struct Echo {
    handled: AtomicU64,
}

impl Handler for Echo {
    async fn handle(&self, request: RequestMessage) -> ResponseMessage {
        self.handled.fetch_add(1, Ordering::SeqCst);
        let result = match request.request {
            Request::GetAttr { inode: InodeId(1) } => Ok(Response::Done),
            Request::GetAttr { inode: InodeId(2) } => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Ok(Response::Session(SessionId(2)))
            }
            Request::GetAttr { inode: InodeId(3) } => std::future::pending().await,
            Request::GetAttr { inode: InodeId(4) } => panic!("a defect in a handler"),
            Request::GetAttr { inode: InodeId(5) } => Ok(Response::Bytes(vec![0; FRAME_BYTES_MAX])),
            Request::KeepAlive { session, .. } => {
                if session.0.is_multiple_of(3) {
                    tokio::time::sleep(Duration::from_millis(session.0 % 7)).await;
                }
                Ok(Response::Session(session))
            }
            _ => Err(FsError::user(Errno::ENOSYS)),
        };
        ResponseMessage { generation: Generation::FIRST, result }
    }
}

fn message(request: Request) -> RequestMessage {
    RequestMessage { cluster: ClusterTag::UNKNOWN, epoch: MapEpoch(1), generation: Generation::FIRST, request }
}

fn ask(inode: u64) -> RequestMessage {
    message(Request::GetAttr { inode: InodeId(inode) })
}

async fn start() -> (Server, Arc<Echo>, String) {
    let handler = Arc::new(Echo::default());
    let server = Server::bind("127.0.0.1:0", false, handler.clone()).await.unwrap();
    let address = server.address().to_string();
    (server, handler, address)
}

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_find_their_callers_whatever_their_order() {
    let (_server, _, address) = start().await;
    let pool = Arc::new(Pool::new());
    let calls = (0..3_000u64).map(|n| {
        let (pool, address) = (pool.clone(), address.clone());
        tokio::spawn(async move {
            let answer = pool
                .call(&address, &message(Request::KeepAlive { shard: ShardId(0), session: SessionId(n) }), LONG)
                .await
                .unwrap();
            assert_eq!(answer.result, Ok(Response::Session(SessionId(n))));
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    assert_eq!(pool.connections.len(), 1);
}

#[tokio::test]
async fn a_large_request_and_answer_pass_and_a_larger_one_is_refused() {
    let (_server, _, address) = start().await;
    let pool = Pool::new();
    let answer = pool.call(&address, &ask(5), LONG).await.unwrap();
    assert!(matches!(answer.result, Err(FsError { kind: ErrorKind::Bug, .. })), "the answer does not fit");
    let segments = vec![pando_types::SegmentId { session: SessionId(u64::MAX), sequence: u64::MAX }; 350_000];
    let large = message(Request::SegmentsInUse { shard: ShardId(0), segments: segments.clone() });
    assert_eq!(pool.call(&address, &large, LONG).await.unwrap().result, Err(FsError::user(Errno::ENOSYS)));
    let larger = message(Request::SegmentsInUse { shard: ShardId(0), segments: [segments.clone(), segments].concat() });
    assert!(matches!(pool.call(&address, &larger, LONG).await, Err(RpcError::TooLarge { .. })));
    assert_eq!(
        pool.call(&address, &ask(1), LONG).await.unwrap().result,
        Ok(Response::Done),
        "the connection still works"
    );
}

#[tokio::test]
async fn a_call_ends_at_its_timeout_and_leaves_nothing() {
    let (_server, _, address) = start().await;
    let pool = Pool::new();
    let begun = Instant::now();
    let never = pool.call(&address, &ask(3), Duration::from_millis(100)).await;
    assert!(matches!(never, Err(RpcError::TimedOut { .. })));
    assert!(begun.elapsed() < SECOND);
    let connection = pool.connection(&address).await.unwrap();
    assert!(connection.shared.lock().waiting.is_empty());
    assert_eq!(connection.shared.slots.available_permits(), REQUESTS_PER_CONNECTION_MAX);
}

#[tokio::test]
async fn a_panic_in_a_handler_is_one_failed_answer() {
    let (_server, _, address) = start().await;
    let pool = Pool::new();
    let answer = pool.call(&address, &ask(4), SECOND).await.unwrap();
    assert!(matches!(answer.result, Err(FsError { kind: ErrorKind::Bug, .. })));
    assert_eq!(pool.call(&address, &ask(1), SECOND).await.unwrap().result, Ok(Response::Done));
}

#[tokio::test]
async fn a_restarted_server_is_found_again() {
    let (server, handler, address) = start().await;
    let pool = Arc::new(Pool::new());
    assert!(pool.call(&address, &ask(1), SECOND).await.is_ok());
    let (pool2, address2) = (pool.clone(), address.clone());
    let in_progress = tokio::spawn(async move { pool2.call(&address2, &ask(2), LONG).await });
    while handler.handled.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    server.shutdown().await;
    let answer = in_progress.await.unwrap();
    assert!(answer.is_ok(), "shutdown lets a request in progress end: {answer:?}");
    assert!(matches!(
        pool.call(&address, &ask(1), SECOND).await,
        Err(RpcError::Connect { .. } | RpcError::Disconnected { .. })
    ));
    let _server = Server::bind(&address, false, Arc::new(Echo::default())).await.unwrap();
    assert_eq!(pool.call(&address, &ask(1), SECOND).await.unwrap().result, Ok(Response::Done));
}

#[tokio::test]
async fn more_calls_than_a_connection_takes_wait_for_room() {
    let (_server, handler, address) = start().await;
    let pool = Arc::new(Pool::new());
    let stuck = (0..REQUESTS_PER_CONNECTION_MAX + 50).map(|_| {
        let (pool, address) = (pool.clone(), address.clone());
        tokio::spawn(async move { pool.call(&address, &ask(3), Duration::from_millis(700)).await })
    });
    let stuck: Vec<_> = stuck.collect();
    let until = Instant::now() + Duration::from_millis(500);
    while handler.handled.load(Ordering::SeqCst) < REQUESTS_PER_CONNECTION_MAX as u64 && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(handler.handled.load(Ordering::SeqCst), REQUESTS_PER_CONNECTION_MAX as u64);
    for call in stuck {
        assert!(matches!(call.await.unwrap(), Err(RpcError::TimedOut { .. })));
    }
}

#[tokio::test]
async fn a_wrong_version_is_told_in_a_sentence_on_both_sides() {
    let (_server, _, address) = start().await;
    let mut stream = TcpStream::connect(&address).await.unwrap();
    stream.write_all(b"PANDO\0\x00\x63").await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, frame::hello(), "the server tells its version, then closes");

    for (theirs, expected) in [
        (&b"PANDO\0\x00\x63"[..], "speaks rpc version 99, this program version 2; run the same version"),
        (b"HTTP/1.1 400", "is not a Pando metadata server"),
        (b"x", "is not a Pando metadata server"),
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let call = tokio::spawn(async move { Pool::new().call(&address, &ask(1), SECOND).await });
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; 8]).await.unwrap();
        stream.write_all(theirs).await.unwrap();
        stream.shutdown().await.unwrap();
        let error = call.await.unwrap().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn only_a_loopback_address_without_permission() {
    let handler = Arc::new(Echo::default());
    let refused = Server::bind("0.0.0.0:0", false, handler.clone()).await;
    assert!(matches!(refused, Err(RpcError::NotLoopback { .. })));
    assert!(Server::bind("0.0.0.0:0", true, handler.clone()).await.is_ok());
    let taken = Server::bind("127.0.0.1:0", false, handler.clone()).await.unwrap();
    let error = Server::bind(&taken.address().to_string(), false, handler).await.err().unwrap().to_string();
    assert!(error.contains("choose another address"), "{error}");
}

#[tokio::test]
async fn nobody_there_is_an_error_and_not_a_wait() {
    let begun = Instant::now();
    let error = Pool::new().call("127.0.0.1:1", &ask(1), LONG).await.unwrap_err();
    assert!(matches!(error, RpcError::Connect { .. }) && begun.elapsed() < SECOND);
    assert_eq!(FsError::from(error).kind, ErrorKind::Unavailable);
}

/// Random bytes, as they are and after a good hello, and a frame that is claimed but never sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_at_the_port_hurts_only_its_own_connection() {
    let (_server, _, address) = start().await;
    let mut seed = 1u64;
    let mut open = Vec::new();
    let before = resident_bytes();
    for round in 0..200 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let mut bytes = if round % 2 == 0 { frame::hello().to_vec() } else { Vec::new() };
        if round % 4 == 0 {
            bytes.extend_from_slice(&(FRAME_BYTES_MAX as u32).to_le_bytes());
        }
        for _ in 0..1 + round * 7 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            bytes.push((seed >> 56) as u8);
        }
        let _ = stream.write_all(&bytes).await;
        open.push(stream);
    }
    let pool = Pool::new();
    assert_eq!(pool.call(&address, &ask(1), SECOND).await.unwrap().result, Ok(Response::Done));
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "50 claimed frames of 8 MiB took {grown} bytes");
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[tokio::test]
async fn an_undecodable_body_is_answered_and_an_oversize_frame_ends_the_connection() {
    let (_server, _, address) = start().await;
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let mut out = BytesMut::from(&frame::hello()[..]);
    frame::put(&mut out, 9, b"\x01\xff\xff").unwrap();
    stream.write_all(&out).await.unwrap();
    let mut hello = [0; frame::HELLO_BYTES];
    stream.read_exact(&mut hello).await.unwrap();
    let mut input = BytesMut::new();
    let (id, body) = loop {
        stream.read_buf(&mut input).await.unwrap();
        if let Some(frame) = frame::take(&mut input).unwrap() {
            break frame;
        }
    };
    let answer: ResponseMessage = codec::decode(&body).unwrap();
    assert_eq!(id, 9);
    assert!(answer.result.unwrap_err().detail.contains("cannot be read"));
    stream.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
    assert!(matches!(stream.read(&mut [0]).await, Ok(0) | Err(_)), "the server closes");
}

/// Every fault ends in an answer or an error, within the timeout; a lost answer was carried out all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_are_errors_and_never_wrong_answers() {
    let (_server, handler, address) = start().await;
    let faults = Arc::new(Faults::new(7, Rates { lose_answer: 1000, ..Rates::default() }));
    let pool = Arc::new(Pool::with_faults(faults.clone()));
    let lost = pool.call(&address, &ask(1), Duration::from_millis(50)).await;
    assert!(matches!(lost, Err(RpcError::TimedOut { .. })));
    assert_eq!(handler.handled.load(Ordering::SeqCst), 1);
    faults.set(Rates { lose_request: 1000, ..Rates::default() });
    assert!(pool.call(&address, &ask(1), Duration::from_millis(50)).await.is_err());
    assert_eq!(handler.handled.load(Ordering::SeqCst), 1, "a lost request does not arrive");
    faults.set(Rates { cut: 1000, ..Rates::default() });
    assert!(matches!(pool.call(&address, &ask(3), LONG).await, Err(RpcError::Disconnected { .. })));

    faults.set(Rates { lose_request: 50, lose_answer: 50, cut: 50, delay: 100, delay_for: Duration::from_millis(5) });
    let calls = (0..500u64).map(|n| {
        let (pool, address) = (pool.clone(), address.clone());
        tokio::spawn(async move {
            let request = message(Request::KeepAlive { shard: ShardId(0), session: SessionId(n) });
            for _ in 0..100 {
                if let Ok(answer) = pool.call(&address, &request, Duration::from_millis(200)).await {
                    assert_eq!(answer.result, Ok(Response::Session(SessionId(n))));
                    return;
                }
            }
            panic!("no answer in 100 tries");
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
}

#[tokio::test]
async fn a_server_of_this_process_is_called_without_a_connection_and_under_the_same_rules() {
    let (server, handler, address) = start().await;
    let pool = Pool::with_local(server.local());
    let answer = pool.call(&address, &ask(1), SECOND).await.unwrap();
    assert_eq!((answer.result, handler.handled.load(Ordering::SeqCst)), (Ok(Response::Done), 1));
    assert!(pool.connections.is_empty());
    let answer = pool.call(&address, &ask(4), SECOND).await.unwrap();
    assert_eq!(answer.result.unwrap_err().kind, ErrorKind::Bug);
    let error = pool.call(&address, &ask(3), Duration::from_millis(20)).await.unwrap_err();
    assert!(matches!(error, RpcError::TimedOut { .. }), "{error}");

    let (_other, others_handler, other) = start().await;
    pool.call(&other, &ask(1), LONG).await.unwrap();
    assert_eq!((pool.connections.len(), others_handler.handled.load(Ordering::SeqCst)), (1, 1));

    server.shutdown().await;
    drop(handler);
    let error = pool.call(&address, &ask(1), SECOND).await.unwrap_err();
    assert!(matches!(error, RpcError::Connect { .. }), "{error}");
}
