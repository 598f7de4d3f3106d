//! Where segments are kept: a local directory or an S3 bucket.
//!
//! Objects are named `CLUSTER/HH/SESSION-SEQUENCE` below the store's address: HH is a hash of the rest, so that a store
//! that splits by prefix spreads them; session and sequence are in hex.
//! Not here: the layout of objects ([`crate::format`]), what is deleted when (the metadata servers' gc).
//!
//! Invariants: a name's hash never changes, since objects are found by it; a put that returned is durable; errors name
//! the store and, where there is one, the segment; no error and no log line holds a secret.

mod classify;
mod credentials;
mod local;
pub(crate) mod objects;
mod retry;
mod s3;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{GetRange, ObjectMeta};
use pando_types::SegmentId;

pub use self::credentials::Environment;
use self::objects::Objects;
pub use self::retry::RetryPolicy;
use crate::error::SegmentError;
use crate::faults::Faults;
use crate::format::{self, Owner};
use crate::reader::Reader;

/// Where a cluster's segments are. Credentials are never part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// `file:///ABSOLUTE/DIRECTORY` or `s3://BUCKET[/PREFIX]`.
    pub url: String,
    /// URL of an S3-compatible store; without it the AWS variables and files are asked, then AWS's own is used.
    pub s3_endpoint: Option<String>,
    /// The cluster's id: the folder that keeps it apart from other clusters in the same place.
    pub cluster: String,
}

/// A segment that was found in the store.
pub type Listed = (SegmentId, u64, Duration);

/// The object store of one cluster. Clones share their connections and caches.
#[derive(Debug, Clone)]
pub struct Store {
    reader: Arc<Reader>,
    cluster: Path,
}

impl Store {
    /// Opens the store, with credentials from the process's environment. A directory must exist, and gets the cluster's
    /// folders; a bucket is not asked yet ([`Store::check`]).
    pub async fn open(config: &StoreConfig) -> Result<Store, SegmentError> {
        Store::open_in(config, Environment::of_process()).await
    }

    /// As [`Store::open`], with the given variables in place of the process's.
    pub async fn open_in(config: &StoreConfig, environment: Environment) -> Result<Store, SegmentError> {
        let config = config.clone();
        // Files are read and folders are made.
        tokio::task::spawn_blocking(move || open_blocking(&config, &environment))
            .await
            .unwrap_or_else(|e| Err(address_error("...", &format!("its opening was cut off: {e}"))))
    }

    /// The same store with faults in its way.
    pub fn with_faults(self, faults: Faults) -> Store {
        self.rebuilt(|objects| objects.faults = Some(faults))
    }

    /// The same store with another schedule of retries.
    pub fn with_retry(self, policy: RetryPolicy) -> Store {
        self.rebuilt(|objects| objects.policy = policy)
    }

    fn rebuilt(self, change: impl FnOnce(&mut Objects)) -> Store {
        let mut objects = self.objects().clone();
        change(&mut objects);
        Store { reader: Arc::new(Reader::new(objects)), cluster: self.cluster }
    }

    fn objects(&self) -> &Objects {
        &self.reader.objects
    }

    /// Whether the store can be reached, listed, written and read, tried with an object that is deleted again. Fails
    /// within seconds, for a person waits.
    pub async fn check(&self) -> Result<(), SegmentError> {
        let mut objects = self.objects().clone();
        objects.policy = objects.policy.impatient();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let probe = self.cluster.clone().join(format!("probe-{:x}-{now:x}", std::process::id()));
        let content = Bytes::from_static(b"written by a check of pando; may be deleted");
        let tried = async {
            // First, since some servers make a bucket that is written to.
            objects.list(self.cluster.clone().join("00")).next().await.transpose()?;
            objects.put(&probe, vec![content.clone()]).await?;
            objects.read(&probe, GetRange::Suffix(content.len() as u64)).await
        };
        let tried = tried.await;
        // Also after a failure: the put may have been done.
        let deleted = match &tried {
            Ok(_) => objects.delete(&probe).await,
            Err(_) => Ok(()),
        };
        let found = tried.map_err(|failure| objects.refuse(failure))?;
        deleted.map_err(|failure| objects.refuse(failure))?;
        match found.bytes == content {
            true => Ok(()),
            false => Err(objects.failed("a probe came back with other bytes", false)),
        }
    }

    /// Stores a segment made by [`crate::Writer::finish`]; it is durable when this returns. Retries what may pass. The
    /// same content may be put again, also under another name.
    pub async fn put(&self, id: SegmentId, object: Vec<Bytes>) -> Result<(), SegmentError> {
        let mut object = object;
        object.push(Bytes::copy_from_slice(&format::encode_seal(id)));
        let checks = self.reader.checks_of(id, &object);
        let objects = self.objects();
        objects.put(&self.key(id), object).await.map_err(|failure| objects.refuse(failure))?;
        // Who wrote it is likely to read it: one trip less.
        if let Some(checks) = checks {
            self.reader.remember(id, checks);
        }
        Ok(())
    }

    /// Reads a range of a segment's data, checked. Fetches the 64 KiB blocks around the range and no more; what is
    /// returned is a slice of them.
    pub async fn read(&self, id: SegmentId, range: Range<u64>) -> Result<Bytes, SegmentError> {
        self.reader.read(id, self.key(id), range).await
    }

    /// Whose bytes a segment holds, and how many there are: for checks and repairs.
    pub async fn owners(&self, id: SegmentId) -> Result<(Vec<Owner>, u64), SegmentError> {
        self.reader.owners(id, self.key(id)).await
    }

    /// Deletes a segment; one that is not there is fine.
    pub async fn delete(&self, id: SegmentId) -> Result<(), SegmentError> {
        self.reader.forget(id);
        self.objects().delete(&self.key(id)).await.map_err(|failure| self.objects().refuse(failure))
    }

    /// All segments of the cluster, each with its bytes in the store and the time since it was stored, in no order.
    /// Other objects are passed over.
    pub fn list(&self) -> BoxStream<'static, Result<Listed, SegmentError>> {
        let objects = self.objects().clone();
        let depth = self.cluster.parts().count();
        let now = SystemTime::now();
        let listing = objects.list(self.cluster.clone());
        listing
            .filter_map(move |found| {
                let item = match found {
                    Ok(meta) => listed(&meta, depth, now).map(Ok),
                    Err(failure) => Some(Err(objects.refuse(failure))),
                };
                std::future::ready(item)
            })
            .boxed()
    }

    /// Removes files that puts cut off by a crash have left in a local directory, if they are older than this, and
    /// answers how many. [`Store::list`] does not show them. A bucket never has any.
    pub async fn sweep_unfinished(&self, older_than: Duration) -> Result<u64, SegmentError> {
        let objects = self.objects();
        let Some(directory) = &objects.directory else { return Ok(0) };
        let folder = directory.join(self.cluster.as_ref());
        let swept = tokio::task::spawn_blocking(move || local::sweep_unfinished(&folder, older_than)).await;
        let swept = swept.map_err(|_| objects.failed("its sweep was cut off", false))?;
        swept.map_err(|e| classify::classify_io(&e, &objects.name))
    }

    /// Bytes of the file system under a local directory: all, and free. A bucket has no bounds. May wait for a disk.
    pub fn space(&self) -> Option<(u64, u64)> {
        local::space(self.objects().directory.as_deref()?)
    }

    fn key(&self, id: SegmentId) -> Path {
        self.cluster.clone().join(format!("{:02x}", name_hash(id))).join(id.to_string())
    }
}

fn listed(meta: &ObjectMeta, depth: usize, now: SystemTime) -> Option<Listed> {
    let mut parts = meta.location.parts().skip(depth);
    let (hash, name) = (parts.next()?, parts.next()?);
    let id = SegmentId::parse(name.as_ref())?;
    if parts.next().is_some() || hash.as_ref() != format!("{:02x}", name_hash(id)) || name.as_ref() != id.to_string() {
        return None;
    }
    let stored = UNIX_EPOCH + Duration::from_millis(meta.last_modified.timestamp_millis().max(0) as u64);
    Some((id, meta.size, now.duration_since(stored).unwrap_or_default()))
}

/// One of 256 folders, equally likely for sessions and sequences that count up (the finish of splitmix64).
fn name_hash(id: SegmentId) -> u8 {
    let mut mixed = id.session.0.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(id.sequence);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed >> 56) as u8
}

fn open_blocking(config: &StoreConfig, environment: &Environment) -> Result<Store, SegmentError> {
    let url = config.url.as_str();
    let sane = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if config.cluster.is_empty() || config.cluster.len() > 64 || !config.cluster.bytes().all(sane) {
        let why = format!("the cluster id {:?} is not 1 to 64 letters, digits, - or _", config.cluster);
        return Err(address_error(url, &why));
    }
    let objects = match (url.strip_prefix("file://"), url.strip_prefix("s3://")) {
        (Some(directory), _) => open_local(directory, &config.cluster)?,
        (_, Some(rest)) => open_s3(url, rest, config.s3_endpoint.as_deref(), environment)?,
        _ if url.contains('@') => return Err(address_error("...", "it is of an unknown kind")),
        _ => return Err(address_error(url, "it is of an unknown kind")),
    };
    Ok(Store { reader: Arc::new(Reader::new(objects)), cluster: Path::from(config.cluster.as_str()) })
}

fn open_local(directory: &str, cluster: &str) -> Result<Objects, SegmentError> {
    if !directory.starts_with('/') {
        return Err(address_error(&format!("file://{directory}"), "its directory is not absolute"));
    }
    let root = PathBuf::from(directory);
    let opened = local::open(&root, cluster)?;
    Ok(Objects::new(Arc::new(opened), Some(root), directory))
}

fn open_s3(url: &str, rest: &str, endpoint: Option<&str>, environment: &Environment) -> Result<Objects, SegmentError> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let sane = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if bucket.contains('@') || bucket.contains(':') {
        return Err(address_error("s3://...", "credentials do not belong into it"));
    }
    if bucket.is_empty() || !bucket.bytes().all(sane) {
        return Err(address_error(url, "it names no bucket"));
    }
    let prefix = Path::parse(prefix.trim_matches('/')).map_err(|_| address_error(url, "its prefix is not a path"))?;
    let opened = s3::open(bucket, endpoint, environment)?;
    let name = match endpoint {
        Some(endpoint) => format!("{url} at {endpoint}"),
        None => url.to_owned(),
    };
    Ok(match prefix.as_ref().is_empty() {
        true => Objects::new(Arc::new(opened), None, &name),
        false => Objects::new(Arc::new(PrefixStore::new(opened, prefix)), None, &name),
    })
}

fn address_error(url: &str, why: &str) -> SegmentError {
    SegmentError::Address { url: url.to_owned(), why: why.to_owned() }
}

#[cfg(test)]
#[path = "store/store_test.rs"]
mod tests;
