//! The data folder of this machine: where it is, what of it is whose, where its server listens.
//!
//! ```text
//! DATA/meta      a metadata server's directory (metaserver)      DATA/objects   the local object store (segments)
//! DATA/ADDRESS   while a server runs: its address, its cluster   DATA/pando.log of a process in the background
//! ```
//! The directory of `pando server` is taken for a data folder too: there FORMAT lies in DATA itself.
//! Invariant: a folder that holds something else is left alone; a first start that fails leaves no trace.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

const ADDRESS: &str = "ADDRESS";
const FORMAT: &str = "FORMAT";
const LOG: &str = "pando.log";
const META: &str = "meta";
const OBJECTS: &str = "objects";
/// What a first start that was killed may have left.
const OURS: &[&str] = &[ADDRESS, "ADDRESS.part", META, OBJECTS, LOG, "pando.log.old"];

/// A data folder, which may not exist yet.
#[derive(Debug, Clone)]
pub struct Data(PathBuf);

impl Data {
    /// The given folder, or `~/.local/share/pando`.
    pub fn at(folder: Option<&Path>) -> anyhow::Result<Data> {
        let folder = folder.map_or_else(default_folder, |f| Ok(f.to_owned()))?;
        let absolute = std::path::absolute(&folder).with_context(|| format!("{} is no path", folder.display()))?;
        Ok(Data(absolute.canonicalize().unwrap_or(absolute)))
    }

    /// Its path.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// The metadata server's directory.
    pub fn meta(&self) -> PathBuf {
        if self.0.join(FORMAT).exists() { self.0.clone() } else { self.0.join(META) }
    }

    /// What lets further nodes into the cluster.
    pub fn token(&self) -> anyhow::Result<Option<String>> {
        let name = self.meta().join("TOKEN");
        match fs::read_to_string(&name) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).with_context(|| format!("cannot read {}", name.display())),
        }
    }

    /// The local object store.
    pub fn objects(&self) -> PathBuf {
        self.0.join(OBJECTS)
    }

    /// The log of a process in the background.
    pub fn log(&self) -> PathBuf {
        self.0.join(LOG)
    }

    /// Whether a server has been started on it.
    pub fn exists(&self) -> bool {
        self.meta().join(FORMAT).exists()
    }

    /// Refuses a folder with no data in it, so that no verb but `up` makes some.
    pub fn must_exist(&self) -> anyhow::Result<()> {
        match self.exists() {
            true => Ok(()),
            false => {
                bail!("there is no data in {}; give its folder with --data, or a server's address", self.0.display())
            }
        }
    }

    /// What a server on it published, and has not withdrawn.
    pub fn address(&self) -> anyhow::Result<Option<Address>> {
        let text = match fs::read_to_string(self.0.join(ADDRESS)) {
            Ok(text) => text,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", self.0.join(ADDRESS).display())),
        };
        let mut words = text.split_whitespace().map(str::to_owned);
        Ok(words.next().zip(words.next()).map(|(server, cluster)| Address { server, cluster }))
    }

    /// Tells other processes where the server listens, until the value is dropped.
    pub fn publish(&self, address: &Address) -> anyhow::Result<Published> {
        let part = self.0.join("ADDRESS.part");
        let path = self.0.join(ADDRESS);
        fs::write(&part, format!("{} {}\n", address.server, address.cluster))
            .and_then(|()| fs::rename(&part, &path))
            .with_context(|| format!("cannot write into {}; check its owner and its disk", self.0.display()))?;
        Ok(Published(path))
    }

    /// Makes what a first start needs: the folder, and the local object store if that is used. Refuses a folder that holds
    /// something else. Changes nothing once there is data.
    pub fn prepare(&self, local_store: bool) -> anyhow::Result<FirstStart> {
        let mut made = FirstStart { data: self.clone(), folders: Vec::new() };
        if self.exists() {
            return Ok(made);
        }
        self.must_be_ours()?;
        made.make(&self.0)?;
        if local_store {
            made.make(&self.objects())?;
        }
        Ok(made)
    }

    fn must_be_ours(&self) -> anyhow::Result<()> {
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => {
                return Err(e)
                    .with_context(|| format!("cannot look into {}; name a folder of yours", self.0.display()));
            }
        };
        for entry in entries {
            let name = entry.with_context(|| format!("cannot look into {}", self.0.display()))?.file_name();
            if !OURS.iter().any(|ours| name == *ours) {
                bail!(
                    "{} is not empty and holds no data of Pando; name an empty or a new folder with --data",
                    self.0.display()
                );
            }
        }
        Ok(())
    }
}

/// Folders made for a first start; removed again if it does not come to data in them.
#[derive(Debug)]
pub struct FirstStart {
    data: Data,
    folders: Vec<PathBuf>,
}

impl FirstStart {
    fn make(&mut self, folder: &Path) -> anyhow::Result<()> {
        if !folder.is_dir() {
            fs::create_dir_all(folder).with_context(|| {
                format!("cannot make {}; check the owner and the disk of the folder above", folder.display())
            })?;
            self.folders.push(folder.to_owned());
        }
        Ok(())
    }
}

impl Drop for FirstStart {
    fn drop(&mut self) {
        if !self.data.exists() {
            for folder in self.folders.iter().rev() {
                // Nothing but what this start put there can be in a folder that it made.
                fs::remove_dir_all(folder).ok();
            }
        }
    }
}

/// Where a server listens, and for which cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// `HOST:PORT`.
    pub server: String,
    /// The cluster's id: another server may have the port one day.
    pub cluster: String,
}

/// An address that others can find.
#[derive(Debug)]
pub struct Published(PathBuf);

impl Drop for Published {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(%error, "could not remove {}", self.0.display());
        }
    }
}

/// Where data is kept if nothing else is said.
pub fn default_folder() -> anyhow::Result<PathBuf> {
    if let Some(base) = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|p| p.is_absolute()) {
        return Ok(base.join("pando"));
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    Ok(home.context("HOME is not set; say where the data is with --data")?.join(".local/share/pando"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(dir: &Path) -> Data {
        Data::at(Some(dir)).expect("a folder")
    }

    #[test]
    fn an_address_is_there_while_it_is_published() {
        let dir = tempfile::tempdir().expect("a directory");
        let data = data(dir.path());
        assert_eq!(data.address().expect("readable"), None);
        let address = Address { server: "127.0.0.1:7".into(), cluster: "c0ffee".into() };
        let published = data.publish(&address).expect("writable");
        assert_eq!(data.address().expect("readable"), Some(address));
        drop(published);
        assert_eq!(data.address().expect("readable"), None);
    }

    #[test]
    fn a_first_start_that_fails_leaves_no_trace() {
        let dir = tempfile::tempdir().expect("a directory");
        let fresh = data(&dir.path().join("new"));
        drop(fresh.prepare(true).expect("a new folder"));
        assert!(!fresh.folder().exists());
        let started = fresh.prepare(true).expect("a new folder");
        fs::create_dir(fresh.meta()).and_then(|()| fs::write(fresh.meta().join(FORMAT), "x")).expect("written");
        drop(started);
        assert!(fresh.objects().is_dir(), "there is data now");
        fs::remove_dir(fresh.objects()).expect("empty");
        drop(fresh.prepare(true).expect("data"));
        assert!(!fresh.objects().exists(), "a lost store is not made anew");
    }

    #[test]
    fn a_folder_of_somebody_else_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("thesis.txt"), "x").expect("written");
        let refused = data(dir.path()).prepare(true).expect_err("foreign").to_string();
        assert!(refused.contains("not empty"), "{refused}");
        assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 1);
        assert!(data(dir.path()).must_exist().is_err());
    }
}
