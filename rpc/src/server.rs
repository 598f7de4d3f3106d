//! The listening side: accepts connections, hands requests to the handler, writes answers as they get ready.
//!
//! One task per connection reads, carries out what needs no wait, and writes; requests that wait get a task of their own.
//! Answers that are ready together leave in one write.
//! Invariants: a connection holds at most a frame that is arriving, requests worth [`REQUESTS_PER_CONNECTION_MAX`] in
//! progress, and their answers; a peer that sends nonsense or does not read loses its own connection and nothing else.

use std::future::Future;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use pando_types::epoch::Generation;
use pando_types::limits::{CONNECTIONS_MAX, FRAME_BYTES_MAX, REQUESTS_PER_CONNECTION_MAX};
use pando_types::request::{RequestMessage, ResponseMessage};
use pando_types::{FsError, codec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::frame::READ_BYTES;
use crate::local::{AnyHandler, Local};
use crate::{RpcError, frame};

/// A peer that connects says hello within this time.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that does not take its answers for this long is let go.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests in progress get this long to end when the server shuts down.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// Pause after a failed accept (out of file descriptors), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A buffer that grew beyond this for one large message is given back.
const BUFFER_KEEP_BYTES: usize = 64 << 10;

/// Carries requests out.
pub trait Handler: Send + Sync + 'static {
    /// Answers a request. Polled once on the connection's own task, so that a cheap read needs no task switch; must not block for
    /// long. Dropped when the connection ends before it is done.
    fn handle(&self, request: RequestMessage) -> impl Future<Output = ResponseMessage> + Send;
}

/// A listening server; dropping it ends every connection at once.
pub struct Server {
    address: SocketAddr,
    handler: Weak<dyn AnyHandler>,
    stop: CancellationToken,
    accept: JoinHandle<()>,
}

impl Server {
    /// Listens on `host:port` (port 0: any free one). Refuses an address that other machines can reach, unless allowed.
    pub async fn bind<H: Handler>(address: &str, allow_remote: bool, handler: Arc<H>) -> Result<Server, RpcError> {
        let failed = |source| RpcError::Bind { address: address.to_string(), source };
        let addresses: Vec<SocketAddr> = lookup_host(address).await.map_err(failed)?.collect();
        if !allow_remote && addresses.iter().any(|a| !a.ip().is_loopback()) {
            return Err(RpcError::NotLoopback { address: address.to_string() });
        }
        let listener = TcpListener::bind(&addresses[..]).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let stop = CancellationToken::new();
        let weak: Weak<H> = Arc::downgrade(&handler);
        let accept = tokio::spawn(accept_all(listener, handler, stop.clone()));
        Ok(Server { address, handler: weak, stop, accept })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The way to it for clients in this process.
    pub fn local(&self) -> Local {
        Local::new(self.address.to_string(), self.handler.clone(), self.stop.clone())
    }

    /// Takes no more requests, lets those in progress end (5 s at most), and closes every connection.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        if tokio::time::timeout(SHUTDOWN_GRACE, &mut self.accept).await.is_err() {
            warn!("requests were still in progress {} s after shutdown began; dropping them", SHUTDOWN_GRACE.as_secs());
            self.accept.abort();
            let _ = (&mut self.accept).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
        self.accept.abort();
    }
}

async fn accept_all<H: Handler>(listener: TcpListener, handler: Arc<H>, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((_, peer)) if connections.len() >= CONNECTIONS_MAX => {
                warn!(%peer, "refused a connection: {CONNECTIONS_MAX} are open already");
            }
            Ok((stream, peer)) => {
                let (handler, stop) = (handler.clone(), stop.clone());
                connections.spawn(async move {
                    match serve(stream, handler, stop).await {
                        Ok(()) => {}
                        Err(why) => debug!(%peer, why, "connection ended"),
                    }
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Serves one connection to its end; the error says why it ended early.
async fn serve<H: Handler>(mut stream: TcpStream, handler: Arc<H>, stop: CancellationToken) -> Result<(), String> {
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    let mut theirs = [0; frame::HELLO_BYTES];
    let hello = tokio::time::timeout(HELLO_TIMEOUT, async {
        stream.read_exact(&mut theirs).await?;
        // A peer that is not Pando is told nothing; one of another version is told ours, and says so to its user.
        if frame::read_hello(&theirs).is_some() { stream.write_all(&frame::hello()).await } else { Ok(()) }
    });
    hello.await.map_err(|_| "no hello in time".to_string())?.map_err(|e| e.to_string())?;
    match frame::read_hello(&theirs) {
        Some(frame::VERSION) => {}
        Some(version) => return Err(format!("the peer speaks rpc version {version}, we {}", frame::VERSION)),
        None => return Err("the peer is not a Pando client".into()),
    }
    Connection { stream, handler, load: 0, tasks: JoinSet::new(), input: BytesMut::new(), output: BytesMut::new() }
        .run(stop)
        .await
}

struct Connection<H> {
    stream: TcpStream,
    handler: Arc<H>,
    /// What the requests in `tasks` cost.
    load: usize,
    tasks: JoinSet<Done>,
    input: BytesMut,
    output: BytesMut,
}

/// An answer, and what its request cost.
struct Done {
    id: u64,
    cost: usize,
    answer: ResponseMessage,
}

impl<H: Handler> Connection<H> {
    async fn run(mut self, stop: CancellationToken) -> Result<(), String> {
        let mut stopping = false;
        loop {
            let may_read = !stopping && self.load < REQUESTS_PER_CONNECTION_MAX;
            self.input.reserve(READ_BYTES);
            tokio::select! {
                // Reading goes before finished tasks: those are drained below after each read anyway.
                biased;
                () = stop.cancelled(), if !stopping => stopping = true,
                read = self.stream.read_buf(&mut self.input), if may_read => {
                    if read.map_err(|e| e.to_string())? == 0 {
                        return Ok(());
                    }
                }
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => self.finish(done),
            }
            while let Some(done) = self.tasks.try_join_next() {
                self.finish(done);
            }
            if !stopping {
                self.take_requests().await?;
            }
            self.write().await?;
            if stopping && self.tasks.is_empty() {
                return Ok(());
            }
        }
    }

    /// Starts every whole request that has arrived, as far as the limits allow.
    async fn take_requests(&mut self) -> Result<(), String> {
        while self.load < REQUESTS_PER_CONNECTION_MAX {
            let Some((id, body)) = frame::take(&mut self.input).map_err(|e| e.to_string())? else { break };
            self.start(id, body);
            if self.output.len() >= FRAME_BYTES_MAX {
                self.write().await?;
            }
        }
        if self.input.is_empty() && self.input.capacity() > BUFFER_KEEP_BYTES {
            self.input = BytesMut::new();
        }
        Ok(())
    }

    fn start(&mut self, id: u64, body: Bytes) {
        let cost = frame::cost(body.len());
        let request = match codec::decode::<RequestMessage>(&body) {
            Ok(request) => request,
            Err(error) => return self.answer(id, &failed(format!("the request cannot be read: {error}"))),
        };
        drop(body);
        let handler = self.handler.clone();
        let mut work = Box::pin(
            AssertUnwindSafe(async move { handler.handle(request).await })
                .catch_unwind()
                .map(|r| r.unwrap_or_else(|_| failed("the server failed while it carried out the request"))),
        );
        match poll_once(work.as_mut()) {
            Poll::Ready(answer) => self.answer(id, &answer),
            Poll::Pending => {
                self.load += cost;
                self.tasks.spawn(async move { Done { id, cost, answer: work.await } });
            }
        }
    }

    fn finish(&mut self, done: Result<Done, tokio::task::JoinError>) {
        let done = done.expect("a handler's panic is caught, and tasks are aborted only with the connection");
        self.load -= done.cost;
        self.answer(done.id, &done.answer);
    }

    fn answer(&mut self, id: u64, answer: &ResponseMessage) {
        if let Err(error) = frame::put(&mut self.output, id, &codec::encode(answer)) {
            warn!(%error, "an answer does not fit in a frame");
            let instead = codec::encode(&failed(format!("the answer is too large: {error}")));
            frame::put(&mut self.output, id, &instead).expect("a sentence fits in a frame");
        }
    }

    async fn write(&mut self) -> Result<(), String> {
        if self.output.is_empty() {
            return Ok(());
        }
        tokio::time::timeout(WRITE_TIMEOUT, self.stream.write_all(&self.output))
            .await
            .map_err(|_| "the peer does not read its answers".to_string())?
            .map_err(|e| e.to_string())?;
        self.output.clear();
        if self.output.capacity() > BUFFER_KEEP_BYTES {
            self.output = BytesMut::new();
        }
        Ok(())
    }
}

/// Polls without being woken again; the task that gets the future polls it anew.
fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}

pub(crate) fn failed(detail: impl Into<String>) -> ResponseMessage {
    ResponseMessage { generation: Generation::FIRST, result: Err(FsError::bug(detail)) }
}
