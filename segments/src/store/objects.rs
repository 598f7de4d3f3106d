//! One funnel for every call to the store: permits, injected faults, deadline, retries and the meaning of errors.
//!
//! Not here: what the objects are ([`crate::format`]) and how their bytes are checked ([`crate::reader`]).
//! Invariants: at most [`STORE_REQUESTS_MAX`] calls are under way; each try has a deadline; only an error that may pass
//! is tried again; every call may be repeated, since a name is only ever given to one content.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};
use pando_types::limits::STORE_REQUESTS_MAX;
use tokio::sync::Semaphore;

use super::classify::classify;
use super::retry::RetryPolicy;
use crate::error::SegmentError;
use crate::faults::{Fault, Faults, Operation, spoil};

/// Why a call came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There is no such object.
    Missing,
    /// The object ends before the range begins.
    Short,
    /// Anything else.
    Other(SegmentError),
}

/// Bytes of an object and the size of all of it.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub bytes: Bytes,
    pub object_bytes: u64,
}

/// The store, from below the retries up.
#[derive(Debug, Clone)]
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
    /// The store's directory, if it is one.
    pub(crate) directory: Option<PathBuf>,
    /// The store's address, for messages.
    pub(crate) name: Arc<str>,
    pub(crate) policy: RetryPolicy,
    pub(crate) faults: Option<Faults>,
    permits: Arc<Semaphore>,
}

impl Objects {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, directory: Option<PathBuf>, name: &str) -> Objects {
        let policy = match directory {
            Some(_) => RetryPolicy::LOCAL,
            None => RetryPolicy::REMOTE,
        };
        let permits = Arc::new(Semaphore::new(STORE_REQUESTS_MAX));
        Objects { store, directory, name: name.into(), policy, faults: None, permits }
    }

    /// Stores an object; durable when this returns.
    pub(crate) async fn put(&self, key: &Path, parts: Vec<Bytes>) -> Result<(), Failure> {
        let payload: PutPayload = parts.into_iter().collect();
        let bytes = payload.content_length() as u64;
        self.call(Operation::Put, bytes, |_| async {
            self.store.put(key, payload.clone()).await.map(|_| ()).map_err(|e| self.meaning(&e))
        })
        .await
    }

    /// Reads a range that is known to be in the object.
    pub(crate) async fn read_exact(&self, key: &Path, range: Range<u64>) -> Result<Bytes, Failure> {
        let wanted = range.end - range.start;
        self.call(Operation::Get, wanted, |faults| {
            let range = range.clone();
            async move {
                let got = self.store.get_ranges(key, &[range]).await.map_err(|e| self.meaning(&e))?;
                let bytes = spoil(&faults, got.into_iter().next().unwrap_or_default());
                if bytes.len() as u64 == wanted { Ok(bytes) } else { Err(Failure::Short) }
            }
        })
        .await
    }

    /// Reads what the object has of a range.
    pub(crate) async fn read(&self, key: &Path, range: GetRange) -> Result<Part, Failure> {
        let bytes = match &range {
            GetRange::Bounded(range) => range.end - range.start,
            GetRange::Suffix(bytes) => *bytes,
            GetRange::Offset(_) => 0,
        };
        self.call(Operation::Get, bytes, |faults| {
            let options = GetOptions { range: Some(range.clone()), ..GetOptions::default() };
            async move {
                let got = self.store.get_opts(key, options).await.map_err(|e| self.meaning(&e))?;
                let object_bytes = got.meta.size;
                let bytes = got.bytes().await.map_err(|e| self.meaning(&e))?;
                Ok(Part { bytes: spoil(&faults, bytes), object_bytes })
            }
        })
        .await
    }

    /// Deletes an object; one that is not there is fine.
    pub(crate) async fn delete(&self, key: &Path) -> Result<(), Failure> {
        let done = self
            .call(Operation::Delete, 0, |_| async { self.store.delete(key).await.map_err(|e| self.meaning(&e)) })
            .await;
        match done {
            Err(Failure::Missing) => Ok(()),
            done => done,
        }
    }

    /// Lists all objects below a folder; goes on where it stopped when an error passes.
    pub(crate) fn list(&self, folder: Path) -> BoxStream<'static, Result<ObjectMeta, Failure>> {
        let listing = Listing { objects: self.clone(), folder, last: None, stream: None, done: false };
        futures::stream::unfold(listing, |mut listing| async move {
            let item = listing.next().await?;
            Some((item, listing))
        })
        .boxed()
    }

    /// The error of a call for something that must exist.
    pub(crate) fn refuse(&self, failure: Failure) -> SegmentError {
        match failure {
            Failure::Other(error) => error,
            Failure::Missing if self.directory.is_some() => SegmentError::NoDirectory { path: self.name.to_string() },
            Failure::Missing => SegmentError::NoBucket { store: self.name.to_string() },
            Failure::Short => self.failed("it returned less than was stored", false),
        }
    }

    pub(crate) fn failed(&self, why: &str, transient: bool) -> SegmentError {
        SegmentError::Failed { store: self.name.to_string(), why: why.to_owned(), transient }
    }

    fn meaning(&self, error: &object_store::Error) -> Failure {
        classify(error, &self.name, self.directory.is_some())
    }

    /// Calls the store until it answers, or an error stays.
    async fn call<T, F>(
        &self,
        operation: Operation,
        bytes: u64,
        one_try: impl Fn(Vec<Fault>) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let began = Instant::now();
        let mut failed = 0;
        loop {
            let failure = match self.try_once(operation, bytes, &one_try).await {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            failed += 1;
            let pause = match &failure {
                Failure::Other(error) if error.is_transient() => self.policy.pause(failed, began.elapsed()),
                _ => None,
            };
            let Some(pause) = pause else { return Err(failure) };
            tracing::debug!(?operation, failed, ?pause, ?failure, "the object store is tried again");
            tokio::time::sleep(pause).await;
        }
    }

    async fn try_once<T, F>(
        &self,
        operation: Operation,
        bytes: u64,
        one_try: &impl Fn(Vec<Fault>) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        // Waits for no longer than the calls before it, each of which has a deadline.
        let _permit = self.permits.acquire().await.expect("the semaphore is never closed");
        let deadline = self.policy.try_deadline(bytes);
        let faults = self.faults.as_ref().map(|faults| faults.take(operation)).unwrap_or_default();
        let lost = faults.contains(&Fault::LoseAnswer);
        let answer = tokio::time::timeout(deadline, async {
            self.suffer(&faults).await?;
            one_try(faults).await
        })
        .await;
        match answer {
            Ok(_) if lost => Err(self.silent("injected: the answer was lost".to_owned())),
            Ok(answer) => answer,
            Err(_) => Err(self.silent(format!("no answer within {} s", deadline.as_secs()))),
        }
    }

    fn silent(&self, why: String) -> Failure {
        Failure::Other(SegmentError::Unreachable { store: self.name.to_string(), why })
    }

    /// Meets the faults that come before the real store is asked.
    async fn suffer(&self, faults: &[Fault]) -> Result<(), Failure> {
        let store = self.name.to_string();
        for fault in faults {
            match fault {
                Fault::Slow(by) => tokio::time::sleep(*by).await,
                Fault::Refuse => return Err(Failure::Other(self.failed("injected: too busy", true))),
                Fault::Deny => {
                    return Err(Failure::Other(SegmentError::Credentials { store, why: "injected".to_owned() }));
                }
                Fault::Full => return Err(Failure::Other(SegmentError::Full { store })),
                Fault::Forget => return Err(Failure::Missing),
                Fault::LoseAnswer | Fault::Corrupt | Fault::Cut => {}
            }
        }
        Ok(())
    }
}

/// A listing under way.
struct Listing {
    objects: Objects,
    folder: Path,
    /// The last object that was given out.
    last: Option<Path>,
    stream: Option<BoxStream<'static, object_store::Result<ObjectMeta>>>,
    done: bool,
}

impl Listing {
    async fn next(&mut self) -> Option<Result<ObjectMeta, Failure>> {
        if self.done {
            return None;
        }
        let began = Instant::now();
        let mut failed = 0;
        loop {
            let failure = match self.try_next().await {
                Ok(Some(meta)) => {
                    self.last = Some(meta.location.clone());
                    return Some(Ok(meta));
                }
                Ok(None) => {
                    self.done = true;
                    return None;
                }
                Err(failure) => failure,
            };
            self.stream = None;
            failed += 1;
            // A directory is not listed in order, so that a listing of it cannot go on from a name.
            let restartable = self.objects.directory.is_none() || self.last.is_none();
            let pause = match &failure {
                Failure::Other(error) if error.is_transient() && restartable => {
                    self.objects.policy.pause(failed, began.elapsed())
                }
                _ => None,
            };
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => {
                    self.done = true;
                    return Some(Err(failure));
                }
            }
        }
    }

    async fn try_next(&mut self) -> Result<Option<ObjectMeta>, Failure> {
        let objects = &self.objects;
        if self.stream.is_none() {
            let faults = objects.faults.as_ref().map(|faults| faults.take(Operation::List)).unwrap_or_default();
            objects.suffer(&faults).await?;
            self.stream = Some(match &self.last {
                Some(last) => objects.store.list_with_offset(Some(&self.folder), last),
                None => objects.store.list(Some(&self.folder)),
            });
        }
        let Some(stream) = &mut self.stream else { return Ok(None) };
        let deadline: Duration = objects.policy.try_deadline(0);
        match tokio::time::timeout(deadline, stream.next()).await {
            Ok(next) => next.transpose().map_err(|e| objects.meaning(&e)),
            Err(_) => Err(objects.silent(format!("no answer within {} s", deadline.as_secs()))),
        }
    }
}
