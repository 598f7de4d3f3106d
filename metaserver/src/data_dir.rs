//! A server's directory: whose it is, which format it has, and that one process uses it.
//!
//! ```text
//! FORMAT   TOML: format (version), cluster (32 hex digits), node, object_store, s3_endpoint
//! TOKEN    what lets further nodes into the cluster; readable by its owner alone
//! FOUNDING empty; there until the cluster that this directory founds has its first map
//! LOCK     empty; held by flock while a server runs
//! state/   the state database      log/   the Raft log
//! ```
//! Invariants: FORMAT is replaced whole or not at all; a refused directory is left as it was; a directory without FORMAT
//! holds nothing of value.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use pando_types::NodeId;
use pando_types::request::Secret;
use serde::Deserialize;

/// The version of everything in the directory.
pub const FORMAT_VERSION: u32 = 2;

const FORMAT: &str = "FORMAT";
const FORMAT_PART: &str = "FORMAT.part";
const LOCK: &str = "LOCK";
const TOKEN: &str = "TOKEN";
const FOUNDING: &str = "FOUNDING";
/// What a first start that was cut off may have left.
const BEFORE_FORMAT: [&str; 4] = [LOCK, FORMAT_PART, TOKEN, FOUNDING];

/// A directory that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// The file system said no.
    #[error("cannot {action} {path}: {source}; check its owner, its permissions and its disk")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// Another server runs on it.
    #[error("the data directory {path} is in use by another process; stop that one, or name another directory")]
    InUse {
        /// Which directory.
        path: PathBuf,
    },
    /// Made by another version of Pando.
    #[error(
        "the data directory {path} has format version {found}, this program reads version {FORMAT_VERSION}; use the Pando that made it"
    )]
    Version {
        /// Which directory.
        path: PathBuf,
        /// Its version.
        found: i64,
    },
    /// FORMAT is damaged.
    #[error("{path} is damaged ({why}); restore it from a backup")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Something else is in there.
    #[error("{path} is not empty and not a Pando data directory; name an empty or a new one")]
    Foreign {
        /// Which directory.
        path: PathBuf,
    },
    /// The segments are elsewhere.
    #[error(
        "the files of {path} are stored in {recorded}, but {configured} is configured; go back to the first, or use a new data directory"
    )]
    OtherStore {
        /// Which directory.
        path: PathBuf,
        /// The store of the first start.
        recorded: String,
        /// The store of this start.
        configured: String,
    },
}

/// What FORMAT says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Names the cluster for ever; random.
    pub cluster: String,
    /// Which node of the cluster this is.
    pub node: NodeId,
    /// Where the segments are.
    pub object_store: String,
    /// Endpoint of an S3-compatible store.
    pub s3_endpoint: Option<String>,
}

/// A locked directory; dropping it unlocks. A new one that was not [kept](DataDir::keep) is removed again.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    identity: Identity,
    token: Secret,
    /// It founds a cluster, which has no map yet.
    founding: bool,
    /// FORMAT is not written yet.
    fresh: bool,
    /// This value made the directory.
    made: bool,
    _lock: File,
}

impl DataDir {
    /// Locks a directory for segments in this store; a missing or empty one gets a new identity, in memory at first.
    pub fn open(path: &Path, object_store: &str, s3_endpoint: Option<&str>) -> Result<DataDir, DataDirError> {
        let made = match look(path)? {
            Found::Nothing => true,
            Found::Empty | Found::Format => false,
        };
        if made {
            fs::create_dir_all(path).map_err(|e| failed("create", path, e))?;
        }
        let lock = lock(path)?;
        // Looked at once more: another process may have made it ours or its own until the lock was held.
        let found = read_format(path)?;
        let fresh = found.is_none();
        let identity = match found {
            Some(identity) => identity,
            None => Identity {
                cluster: random_id()?,
                node: NodeId(1),
                object_store: object_store.into(),
                s3_endpoint: s3_endpoint.map(Into::into),
            },
        };
        let token = match read_token(path)? {
            Some(token) => token,
            None => Secret(random_id()?),
        };
        let founding = fresh || path.join(FOUNDING).exists();
        let dir = DataDir { path: path.to_path_buf(), identity, token, founding, fresh, made, _lock: lock };
        dir.check_store(object_store, s3_endpoint)?;
        Ok(dir)
    }

    /// Whether it has no identity on disk yet.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// A new directory is that of a node that has joined a cluster.
    pub fn join(&mut self, identity: Identity, token: Secret) {
        (self.identity, self.token, self.founding) = (identity, token, false);
    }

    /// Whether it founds a cluster that has no map yet. A founder that is a mere member later founds nothing again.
    pub fn is_founding(&self) -> bool {
        self.founding
    }

    /// The cluster has its first map.
    pub fn founded(&mut self) -> Result<(), DataDirError> {
        if std::mem::take(&mut self.founding) {
            self.remove_founding()?;
        }
        Ok(())
    }

    fn remove_founding(&self) -> Result<(), DataDirError> {
        let name = self.path.join(FOUNDING);
        match fs::remove_file(&name) {
            Ok(()) => File::open(&self.path).and_then(|dir| dir.sync_all()).map_err(|e| failed("sync", &self.path, e)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(failed("remove", &name, e)),
        }
    }

    /// What lets further nodes into the cluster.
    pub fn token(&self) -> &Secret {
        &self.token
    }

    /// Whose it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The state database's directory.
    pub fn state(&self) -> PathBuf {
        self.path.join("state")
    }

    /// The Raft log's directory.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Records a new identity: from now on the directory is a data directory.
    pub fn keep(&mut self) -> Result<(), DataDirError> {
        if read_token(&self.path)?.as_ref() != Some(&self.token) {
            self.write_token()?;
        }
        if !self.fresh {
            return Ok(());
        }
        match self.founding {
            true => drop(File::create(self.path.join(FOUNDING)).map_err(|e| failed("create", &self.path, e))?),
            false => self.remove_founding()?,
        }
        let part = self.path.join(FORMAT_PART);
        let written = File::create(&part)
            .and_then(|mut file| file.write_all(self.identity.to_toml().as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&part, self.path.join(FORMAT)))
            .and_then(|()| File::open(&self.path)?.sync_all())
            // The directory's own name must last, too.
            .and_then(|()| self.path.canonicalize()?.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all()));
        written.map_err(|e| failed("write", &part, e))?;
        self.fresh = false;
        Ok(())
    }

    fn write_token(&self) -> Result<(), DataDirError> {
        let name = self.path.join(TOKEN);
        let mut options = File::options();
        options.create(true).truncate(true).write(true).mode(0o600);
        let written = options
            .open(&name)
            .and_then(|mut file| file.write_all(self.token.0.as_bytes()).and_then(|()| file.sync_all()));
        written.map_err(|e| failed("write", &name, e))
    }

    fn check_store(&self, object_store: &str, s3_endpoint: Option<&str>) -> Result<(), DataDirError> {
        let name = |url: &str, endpoint: Option<&str>| match endpoint {
            Some(endpoint) => format!("{url} at {endpoint}"),
            None => url.to_string(),
        };
        // Nothing is configured: what is recorded, or what the cluster to be joined says, holds.
        if object_store.is_empty() {
            return Ok(());
        }
        let recorded = name(&self.identity.object_store, self.identity.s3_endpoint.as_deref());
        let configured = name(object_store, s3_endpoint);
        if recorded == configured {
            return Ok(());
        }
        Err(DataDirError::OtherStore { path: self.path.clone(), recorded, configured })
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        if self.fresh {
            for name in BEFORE_FORMAT {
                let _ = fs::remove_file(self.path.join(name));
            }
            if self.made {
                let _ = fs::remove_dir(&self.path);
            }
        }
    }
}

/// Whose a directory is, asked without locking it: for programs that must know its store. None before its first start.
pub fn recorded(path: &Path) -> Result<Option<Identity>, DataDirError> {
    read_format(path)
}

enum Found {
    Nothing,
    Empty,
    Format,
}

/// Refuses what is not ours before anything is touched.
fn look(path: &Path) -> Result<Found, DataDirError> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(failed("read", path, error)),
    };
    if read_format(path)?.is_some() {
        return Ok(Found::Format);
    }
    for entry in entries {
        let name = entry.map_err(|e| failed("read", path, e))?.file_name();
        if !BEFORE_FORMAT.iter().any(|ours| name == *ours) {
            return Err(DataDirError::Foreign { path: path.to_path_buf() });
        }
    }
    Ok(Found::Empty)
}

fn lock(path: &Path) -> Result<File, DataDirError> {
    let name = path.join(LOCK);
    let options = File::options().create(true).truncate(false).write(true).open(&name);
    let file = options.map_err(|e| failed("open", &name, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(DataDirError::InUse { path: path.to_path_buf() }),
        Err(TryLockError::Error(error)) => Err(failed("lock", &name, error)),
    }
}

fn read_format(path: &Path) -> Result<Option<Identity>, DataDirError> {
    let name = path.join(FORMAT);
    let text = match fs::read_to_string(&name) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", &name, error)),
    };
    let damaged = |why: String| DataDirError::Damaged { path: name.clone(), why };
    // The version first: another one may have other keys.
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| damaged(e.message().into()))?;
    match table.get("format").and_then(toml::Value::as_integer) {
        Some(version) if version == i64::from(FORMAT_VERSION) => {}
        Some(found) => return Err(DataDirError::Version { path: path.to_path_buf(), found }),
        None => return Err(damaged("no format version".into())),
    }
    Format::deserialize(table).map(|f| Some(f.into())).map_err(|e| damaged(e.message().into()))
}

/// The token of a file: one word.
pub fn read_token_file(name: &Path) -> Result<Option<Secret>, DataDirError> {
    match fs::read_to_string(name) {
        Ok(text) if !text.trim().is_empty() => Ok(Some(Secret(text.trim().to_owned()))),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", name, error)),
    }
}

/// The token of a data directory, if it has one.
pub fn read_token(path: &Path) -> Result<Option<Secret>, DataDirError> {
    read_token_file(&path.join(TOKEN))
}

/// FORMAT as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Format {
    #[serde(rename = "format")]
    _format: u32,
    cluster: String,
    node: u64,
    object_store: String,
    s3_endpoint: Option<String>,
}

impl From<Format> for Identity {
    fn from(f: Format) -> Identity {
        Identity { cluster: f.cluster, node: NodeId(f.node), object_store: f.object_store, s3_endpoint: f.s3_endpoint }
    }
}

impl Identity {
    fn to_toml(&self) -> String {
        let quoted = |text: &str| toml::Value::String(text.into()).to_string();
        let mut text = format!(
            "format = {FORMAT_VERSION}\ncluster = {}\nnode = {}\nobject_store = {}\n",
            quoted(&self.cluster),
            self.node,
            quoted(&self.object_store)
        );
        if let Some(endpoint) = &self.s3_endpoint {
            text.push_str(&format!("s3_endpoint = {}\n", quoted(endpoint)));
        }
        text
    }
}

/// 128 random bits in hexadecimal.
fn random_id() -> Result<String, DataDirError> {
    let mut bytes = [0; 16];
    let source = Path::new("/dev/urandom");
    File::open(source).and_then(|mut f| f.read_exact(&mut bytes)).map_err(|e| failed("read", source, e))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> DataDirError {
    DataDirError::Io { action, path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: &str = "file:///objects";

    fn open(path: &Path) -> Result<DataDir, DataDirError> {
        DataDir::open(path, STORE, None)
    }

    /// Names and contents of everything below.
    fn picture(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
        let mut all: Vec<_> = entries.map(|e| e.unwrap().path()).map(|p| (p.clone(), fs::read(p).unwrap())).collect();
        all.sort();
        all
    }

    #[test]
    fn an_identity_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let mut first = open(&path).unwrap();
        first.keep().unwrap();
        let identity = first.identity().clone();
        assert_eq!(identity.cluster.len(), 32);
        assert!(matches!(open(&path), Err(DataDirError::InUse { .. })));
        drop(first);
        assert_eq!(open(&path).unwrap().identity(), &identity);
        let mut other = open(&dir.path().join("c")).unwrap();
        other.keep().unwrap();
        assert_ne!(other.identity().cluster, identity.cluster);
    }

    #[test]
    fn a_new_directory_that_is_not_kept_leaves_no_trace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        drop(open(&path).unwrap());
        assert!(!path.exists());
        drop(open(dir.path()).unwrap());
        assert_eq!(picture(dir.path()), []);
    }

    #[test]
    fn a_crash_before_the_format_was_written_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(LOCK), "").unwrap();
        fs::write(dir.path().join(FORMAT_PART), "form").unwrap();
        open(dir.path()).unwrap().keep().unwrap();
        open(dir.path()).unwrap();
    }

    #[test]
    fn what_is_refused_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let text = |format: &str| format!("format = {format}\ncluster = \"c\"\nnode = 1\nobject_store = \"{STORE}\"\n");
        for (file, content, expected) in [
            (FORMAT, text("1"), "has format version 1, this program reads version 2"),
            (FORMAT, text("2") + "more = 1\n", "is damaged (unknown field"),
            (FORMAT, text("2").replace("node = 1\n", ""), "is damaged (missing field"),
            (FORMAT, String::new(), "is damaged (no format version"),
            (FORMAT, text("2").replace("file", "s3"), "go back to the first"),
            ("thesis.tex", String::new(), "is not empty and not a Pando data directory"),
        ] {
            let file = dir.path().join(file);
            fs::write(&file, content).unwrap();
            let before = picture(dir.path());
            let error = open(dir.path()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            let mut after = picture(dir.path());
            after.retain(|(name, _)| !name.ends_with(LOCK));
            assert_eq!(after, before);
            let _ = fs::remove_file(dir.path().join(LOCK));
            fs::remove_file(file).unwrap();
        }
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(open(&file).unwrap_err().to_string().contains("cannot read"));
    }

    #[test]
    fn another_store_or_endpoint_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        DataDir::open(dir.path(), "s3://b", Some("http://h:1")).unwrap().keep().unwrap();
        for (url, endpoint) in [("s3://c", Some("http://h:1")), ("s3://b", Some("http://h:2")), ("s3://b", None)] {
            assert!(matches!(DataDir::open(dir.path(), url, endpoint), Err(DataDirError::OtherStore { .. })));
        }
        DataDir::open(dir.path(), "s3://b", Some("http://h:1")).unwrap();
    }

    /// Golden: this file is a format.
    #[test]
    fn format_is_written_so() {
        let identity = Identity {
            cluster: "00ff".into(),
            node: NodeId(1),
            object_store: "s3://b/p".into(),
            s3_endpoint: Some("http://h".into()),
        };
        let golden =
            "format = 2\ncluster = \"00ff\"\nnode = 1\nobject_store = \"s3://b/p\"\ns3_endpoint = \"http://h\"\n";
        assert_eq!(identity.to_toml(), golden);
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FORMAT), golden).unwrap();
        assert_eq!(read_format(dir.path()).unwrap(), Some(identity));
    }
}
