//! The calling side: one connection per address, shared by all callers, opened when needed and again when it broke.
//!
//! Not here: retries (client/retry.rs). A call either answers, or says that it did not within its timeout.
//! Invariants: a connection has at most [`REQUESTS_PER_CONNECTION_MAX`] calls' worth in progress, further ones wait within
//! their own timeout; a call that is dropped leaves nothing behind.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use dashmap::DashMap;
use pando_types::codec;
use pando_types::limits::{CONNECTIONS_MAX, REQUESTS_PER_CONNECTION_MAX};
use pando_types::request::{RequestMessage, ResponseMessage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, Notify, Semaphore, oneshot};
use tokio::task::AbortHandle;

use crate::fault::{Fault, Faults};
use crate::frame::READ_BYTES;
use crate::{Deadline, Local, RpcError, frame};

/// With up to this many calls in progress a caller writes itself (no task switch); with more, one task writes for many.
const DIRECT_WRITE_CALLS: usize = 2;
/// A connection that brought nothing at all for this long while a call waited is given up: its peer may be gone without a word.
const SILENCE: Duration = Duration::from_secs(5);
/// A buffer that grew beyond this for one large message is given back.
const BUFFER_KEEP_BYTES: usize = 64 << 10;

/// Connections to servers. Cheap to share; dropping it ends them.
#[derive(Default)]
pub struct Pool {
    connections: DashMap<String, Arc<Mutex<Option<Arc<Connection>>>>>,
    faults: Option<Arc<Faults>>,
    local: Option<Local>,
}

impl Pool {
    /// An empty pool.
    pub fn new() -> Pool {
        Pool::default()
    }

    /// A pool whose calls suffer these faults.
    pub fn with_faults(faults: Arc<Faults>) -> Pool {
        Pool { faults: Some(faults), ..Pool::default() }
    }

    /// A pool that reaches one server without a connection, since it is in this process.
    pub fn with_local(local: Local) -> Pool {
        Pool { local: Some(local), ..Pool::default() }
    }

    /// Sends a request to `host:port` and waits for its answer. After [`RpcError::TimedOut`] and [`RpcError::Disconnected`]
    /// the request may have been carried out.
    pub async fn call(
        &self,
        address: &str,
        request: &RequestMessage,
        timeout: Duration,
    ) -> Result<ResponseMessage, RpcError> {
        let deadline = Deadline::after(timeout);
        let timed_out = || RpcError::TimedOut { address: address.to_string(), waited_ms: deadline.waited_ms() };
        if let Some(local) = self.local.as_ref().filter(|local| local.is_at(address)) {
            return deadline.run(local.call(request.clone())).await.unwrap_or_else(|| Err(timed_out()));
        }
        let body = codec::encode(request);
        let fault = self.faults.as_ref().map_or(Fault::None, |f| f.draw());
        let mut used = None;
        let work = async {
            match fault {
                Fault::Delay(delay) => tokio::time::sleep(delay).await,
                Fault::LoseRequest => std::future::pending().await,
                Fault::None | Fault::LoseAnswer | Fault::Cut => {}
            }
            let connection = self.connection(address).await?;
            let (connection, _) = used.insert((connection.clone(), connection.shared.received.load(Ordering::Relaxed)));
            connection.call(&body, fault).await
        };
        let answer = deadline.run(work).await;
        if timeout >= SILENCE
            && let (None, Some((connection, received))) = (&answer, &used)
        {
            connection.shared.give_up_if_silent(*received);
        }
        let frame = answer.unwrap_or_else(|| Err(timed_out()))?;
        codec::decode(&frame).map_err(|source| RpcError::Damaged { address: address.to_string(), source })
    }

    /// The address's connection, opened if there is none that works.
    async fn connection(&self, address: &str) -> Result<Arc<Connection>, RpcError> {
        let place = match self.connections.get(address) {
            Some(place) => place.clone(),
            None => {
                if self.connections.len() >= CONNECTIONS_MAX {
                    // Addresses come from shard maps, so this many means that most are of the past.
                    self.connections.clear();
                }
                self.connections.entry(address.to_string()).or_default().clone()
            }
        };
        let mut place = place.lock().await;
        if let Some(connection) = place.as_ref().filter(|c| !c.shared.is_closed()) {
            return Ok(connection.clone());
        }
        let connection = Arc::new(Connection::open(address).await?);
        *place = Some(connection.clone());
        Ok(connection)
    }
}

/// An open connection; its two tasks end with it.
struct Connection {
    shared: Arc<Shared>,
    tasks: [AbortHandle; 2],
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// What callers and the connection's tasks share.
struct Shared {
    address: String,
    write: OwnedWriteHalf,
    state: std::sync::Mutex<State>,
    /// There is something to write, or the connection is closed.
    wake: Notify,
    slots: Semaphore,
    /// Frames that arrived.
    received: AtomicU64,
}

#[derive(Default)]
struct State {
    next_id: u64,
    waiting: HashMap<u64, oneshot::Sender<Bytes>>,
    /// Frames not yet given to the writing task.
    output: BytesMut,
    /// The writing task has bytes of its own that must leave first.
    writing: bool,
    closed: bool,
}

impl Connection {
    async fn open(address: &str) -> Result<Connection, RpcError> {
        let failed = |source| RpcError::Connect { address: address.to_string(), source };
        let mut stream = TcpStream::connect(address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.write_all(&frame::hello()).await.map_err(failed)?;
        let mut theirs = [0; frame::HELLO_BYTES];
        let read = stream.read_exact(&mut theirs).await;
        let version = match read {
            Ok(_) => frame::read_hello(&theirs),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => None,
            Err(error) => return Err(failed(error)),
        };
        match version {
            Some(frame::VERSION) => {}
            Some(theirs) => {
                return Err(RpcError::Version { address: address.to_string(), theirs, ours: frame::VERSION });
            }
            None => return Err(RpcError::NotPando { address: address.to_string() }),
        }
        let (read, write) = stream.into_split();
        let shared = Arc::new(Shared {
            address: address.to_string(),
            write,
            state: std::sync::Mutex::default(),
            wake: Notify::new(),
            slots: Semaphore::new(REQUESTS_PER_CONNECTION_MAX),
            received: AtomicU64::new(0),
        });
        let reading = tokio::spawn(shared.clone().read_all(read)).abort_handle();
        let writing = tokio::spawn(shared.clone().write_all()).abort_handle();
        Ok(Connection { shared, tasks: [reading, writing] })
    }

    /// Sends a body and waits for the answer's.
    async fn call(&self, body: &[u8], fault: Fault) -> Result<Bytes, RpcError> {
        let shared = &*self.shared;
        let cost = frame::cost(body.len()) as u32;
        let _slots = shared.slots.acquire_many(cost).await.expect("the semaphore is never closed");
        let call = Call { answer: None, id: 0, shared };
        let mut call = shared.send(body, call)?;
        match fault {
            Fault::Cut => shared.close(),
            Fault::LoseAnswer => std::future::pending().await,
            _ => {}
        }
        let answer = call.answer.as_mut().expect("a sent call has a receiver");
        answer.await.map_err(|_| shared.disconnected())
    }
}

/// A call in progress; dropped, it is forgotten.
struct Call<'a> {
    answer: Option<oneshot::Receiver<Bytes>>,
    id: u64,
    shared: &'a Shared,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.answer.is_some() {
            self.shared.lock().waiting.remove(&self.id);
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds this lock")
    }

    fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn disconnected(&self) -> RpcError {
        RpcError::Disconnected { address: self.address.clone() }
    }

    /// Fails every call in progress, and every further one.
    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.waiting.clear();
        state.output = BytesMut::new();
        self.wake.notify_one();
    }

    fn give_up_if_silent(&self, received_before: u64) {
        if self.received.load(Ordering::Relaxed) == received_before {
            self.close();
        }
    }

    fn send<'a>(&'a self, body: &[u8], mut call: Call<'a>) -> Result<Call<'a>, RpcError> {
        let mut state = self.lock();
        if state.closed {
            return Err(self.disconnected());
        }
        let state = &mut *state;
        let idle = !state.writing && state.output.is_empty();
        let id = state.next_id;
        frame::put(&mut state.output, id, body)?;
        state.next_id += 1;
        let (answer_to, answer) = oneshot::channel();
        state.waiting.insert(id, answer_to);
        call.id = id;
        call.answer = Some(answer);
        if idle && state.waiting.len() <= DIRECT_WRITE_CALLS {
            // What does not fit in the socket's buffer, and any error, is for the writing task.
            if let Ok(written) = self.write.try_write(&state.output) {
                state.output.advance(written);
            }
        }
        if !state.output.is_empty() && !state.writing {
            self.wake.notify_one();
        }
        Ok(call)
    }

    /// The writing task: takes what has gathered and writes it, until the connection is closed.
    async fn write_all(self: Arc<Self>) {
        let mut bytes = BytesMut::new();
        loop {
            {
                let mut state = self.lock();
                if state.closed {
                    return;
                }
                bytes.clear();
                if bytes.capacity() > BUFFER_KEEP_BYTES {
                    bytes = BytesMut::new();
                }
                std::mem::swap(&mut bytes, &mut state.output);
                state.writing = !bytes.is_empty();
            }
            if bytes.is_empty() {
                self.wake.notified().await;
                continue;
            }
            while !bytes.is_empty() {
                let ready = self.write.writable().await;
                match ready.and_then(|()| self.write.try_write(&bytes)) {
                    Ok(written) => bytes.advance(written),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(_) => return self.close(),
                }
            }
        }
    }

    /// The reading task: hands answers to their callers, until the connection ends.
    async fn read_all(self: Arc<Self>, mut read: OwnedReadHalf) {
        let mut input = BytesMut::new();
        loop {
            input.reserve(READ_BYTES);
            if !matches!(read.read_buf(&mut input).await, Ok(1..)) {
                return self.close();
            }
            let mut state = self.lock();
            loop {
                match frame::take(&mut input) {
                    Ok(Some((id, body))) => {
                        self.received.fetch_add(1, Ordering::Relaxed);
                        // Nobody waits any more for the answer of a call that timed out.
                        if let Some(waiting) = state.waiting.remove(&id) {
                            let _ = waiting.send(body);
                        }
                    }
                    Ok(None) => break,
                    Err(_) => {
                        drop(state);
                        return self.close();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "pool/pool_test.rs"]
mod tests;
