//! The fsync of the node: one thread, one fsync for everything that was written while the last one ran.
//!
//! Not here: what is written. Invariant: after a failed write or fsync nobody is told that anything is durable, since
//! the kernel may have dropped the pages; only a restart reads what the disk really has.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use rocksdb::DB;

use crate::limits::SYNC_QUEUE_MAX;
use crate::raft_types::Flushed;

/// Runs in place of each fsync of the log first, so that tests can make it fail.
pub type SyncFault = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// Remembers the first failure of the log.
pub(crate) struct Failure {
    dir: PathBuf,
    first: OnceLock<String>,
}

impl Failure {
    pub fn new(dir: &Path) -> Failure {
        Failure { dir: dir.to_owned(), first: OnceLock::new() }
    }

    /// The first failure as a sentence for the operator.
    pub fn message(&self) -> Option<&str> {
        self.first.get().map(String::as_str)
    }

    pub fn check(&self) -> io::Result<()> {
        match self.message() {
            None => Ok(()),
            Some(message) => Err(io::Error::other(message)),
        }
    }

    /// From now on everything is refused, with this cause.
    pub fn record(&self, cause: &dyn Display) -> io::Error {
        let message = self.first.get_or_init(|| {
            let message = format!(
                "the raft log in {} failed ({cause}) and accepts nothing until the server is restarted; check that disk",
                self.dir.display()
            );
            tracing::error!("{message}");
            message
        });
        io::Error::other(message.clone())
    }

    /// For a record that cannot be understood: it stops its group, not the others.
    pub fn corrupt(&self, what: &dyn Display) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, format!("the raft log in {} is damaged: {what}", self.dir.display()))
    }

    pub fn stopped(&self) -> io::Error {
        self.check().err().unwrap_or_else(|| io::Error::other("the raft log is closed"))
    }
}

/// The thread that syncs.
pub(super) struct Syncer {
    queue: Option<SyncSender<Flushed>>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    pub fn start(db: Arc<DB>, failure: Arc<Failure>, fault: Option<SyncFault>) -> io::Result<Syncer> {
        let (queue, waiters) = sync_channel(SYNC_QUEUE_MAX);
        let thread = std::thread::Builder::new()
            .name("pando-raft-log".to_owned())
            .spawn(move || run(&waiters, &db, &failure, fault.as_ref()))?;
        Ok(Syncer { queue: Some(queue), thread: Some(thread) })
    }

    /// Queues a waiter for the next fsync that begins.
    pub fn submit(&self, waiter: Flushed) {
        let queue = self.queue.as_ref().expect("the queue is taken only by drop");
        // A dead thread drops its queue and with it the waiters; the failure is already recorded.
        if let Err(refused) = queue.send(waiter) {
            refused.0.io_completed(Err(io::Error::other("the raft log's sync thread has ended")));
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(waiters: &Receiver<Flushed>, db: &DB, failure: &Failure, fault: Option<&SyncFault>) {
    let mut batch = Vec::new();
    while let Ok(first) = waiters.recv() {
        batch.push(first);
        batch.extend(waiters.try_iter().take(SYNC_QUEUE_MAX));
        let result = sync(db, failure, fault);
        for waiter in batch.drain(..) {
            waiter.io_completed(match &result {
                Ok(()) => Ok(()),
                Err(e) => Err(io::Error::other(e.to_string())),
            });
        }
    }
}

fn sync(db: &DB, failure: &Failure, fault: Option<&SyncFault>) -> io::Result<()> {
    failure.check()?;
    if let Some(fault) = fault {
        fault().map_err(|e| failure.record(&e))?;
    }
    db.flush_wal(true).map_err(|e| failure.record(&e))
}
