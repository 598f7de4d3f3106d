//! A server's settings: one TOML file, unknown keys refused.
//!
//! Not here: the settings that a data directory has recorded (`data_dir.rs`). Invariant: a [`Config`] that
//! [`Config::validate`] accepts holds no secret, so it may be printed and recorded.

use std::path::{Path, PathBuf};

use pando_types::shard_map::{Labels, REPLICAS_DEFAULT};
use serde::Deserialize;

/// Where servers listen unless told otherwise.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:7420";
/// Memory for blocks of the state database unless told otherwise, in bytes: the hot part of about a million inodes.
pub const DEFAULT_CACHE_BYTES: usize = 256 << 20;
/// Less than this and the state database reads its own index from disk for every look-up.
const CACHE_BYTES_MIN: usize = 4 << 20;

/// Settings of a server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Directory of the metadata: log and state. Made when missing.
    pub data: PathBuf,
    /// `host:port` to listen on; port 0 is any free one.
    #[serde(default = "default_listen")]
    pub listen: String,
    /// `host:port` that clients are told, when it differs from `listen`.
    #[serde(default)]
    pub advertise: Option<String>,
    /// Listen also where other machines can connect. Connections are not protected yet.
    #[serde(default)]
    pub allow_remote: bool,
    /// Where file bytes are stored: `file:///ABSOLUTE/DIRECTORY` or `s3://BUCKET[/PREFIX]`. A node that joins learns it.
    #[serde(default)]
    pub object_store: String,
    /// Endpoint of an S3-compatible store, if not AWS's own.
    #[serde(default)]
    pub s3_endpoint: Option<String>,
    /// Memory for blocks of the state database, in bytes.
    #[serde(default = "default_cache_bytes")]
    pub cache_bytes: usize,
    /// Addresses of a cluster to join, each `host:port` of a member; of no use once the data directory is a member's.
    #[serde(default)]
    pub join: Vec<String>,
    /// The file with the token of the cluster to join.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// Where this node stands: what it shares with nodes that fail together with it.
    #[serde(default)]
    pub labels: Labels,
    /// How many replicas a shard of a new cluster has, once there are so many nodes: 1, 3, 5 or 7.
    #[serde(default = "default_replicas")]
    pub replicas: u8,
}

fn default_replicas() -> u8 {
    REPLICAS_DEFAULT
}

fn default_listen() -> String {
    DEFAULT_LISTEN.into()
}

fn default_cache_bytes() -> usize {
    DEFAULT_CACHE_BYTES
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML, or has a key that is missing, unknown or of another type.
    #[error("the configuration {path} cannot be used: {why}")]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// Why, with line and column.
        why: String,
    },
    /// A value makes no sense.
    #[error("{key} {why}")]
    Value {
        /// Which key.
        key: &'static str,
        /// What is wrong, and what would be right.
        why: &'static str,
    },
}

impl Config {
    /// Settings with defaults.
    pub fn new(data: impl Into<PathBuf>, object_store: impl Into<String>) -> Config {
        Config {
            data: data.into(),
            listen: default_listen(),
            advertise: None,
            allow_remote: false,
            object_store: object_store.into(),
            s3_endpoint: None,
            cache_bytes: DEFAULT_CACHE_BYTES,
            join: Vec::new(),
            token_file: None,
            labels: Labels::default(),
            replicas: REPLICAS_DEFAULT,
        }
    }

    /// Reads a TOML file. Its values are not checked: flags may go before them ([`Config::validate`]).
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_path_buf(), source })?;
        toml::from_str(&text)
            .map_err(|e| ConfigError::Malformed { path: path.to_path_buf(), why: e.to_string().trim().to_string() })
    }

    /// Checks what can be checked without touching anything.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |key, why| Err(ConfigError::Value { key, why });
        if self.data.as_os_str().is_empty() {
            return refuse("data", "is empty; name the directory of the metadata");
        }
        if ![1, 3, 5, 7].contains(&self.replicas) {
            return refuse(
                "replicas",
                "is not 1, 3, 5 or 7; an even number survives no more failures than the odd one below",
            );
        }
        for (key, url) in [("object_store", Some(&self.object_store)), ("s3_endpoint", self.s3_endpoint.as_ref())] {
            let authority =
                url.and_then(|u| u.split_once("://")).map_or("", |(_, rest)| rest.split('/').next().unwrap_or(""));
            if authority.contains('@') {
                return refuse(key, "holds credentials; give them in AWS_* variables or ~/.aws/credentials instead");
            }
        }
        if self.listen.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            return refuse("listen", "is not host:port");
        }
        if self.advertise.is_none() && (self.listen.starts_with("0.0.0.0:") || self.listen.starts_with("[::]:")) {
            return refuse(
                "advertise",
                "is missing: listen names no host that clients could connect to; give one, host:port",
            );
        }
        if self.cache_bytes < CACHE_BYTES_MIN {
            return refuse("cache_bytes", "is below 4 MiB, the least that the state database works with");
        }
        Ok(())
    }

    /// Checks what only a node without data needs: a store for a new cluster, a token for one to join.
    pub fn validate_first(&self) -> Result<(), ConfigError> {
        let refuse = |key, why| Err(ConfigError::Value { key, why });
        if self.object_store.is_empty() && self.join.is_empty() {
            return refuse("object_store", "is missing; name a directory (file:///DIR) or a bucket (s3://BUCKET)");
        }
        if !self.join.is_empty() && self.token_file.is_none() {
            return refuse("token_file", "is missing; a node joins with the token that `pando node token` prints");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("server.toml");
        std::fs::write(&path, text).unwrap();
        let config = Config::read(&path).map_err(|e| e.to_string())?;
        config.validate().and_then(|()| config.validate_first()).map_err(|e| e.to_string()).map(|()| config)
    }

    #[test]
    fn two_keys_are_enough() {
        let config = read("data = \"/d\"\nobject_store = \"file:///o\"\n").unwrap();
        assert_eq!(config, Config::new("/d", "file:///o"));
    }

    #[test]
    fn mistakes_are_named() {
        let base = "data = \"/d\"\nobject_store = \"file:///o\"\n";
        for (text, expected) in [
            (format!("{base}lisen = \"x\""), "unknown field `lisen`"),
            ("data = \"/d\"".into(), "object_store is missing"),
            (format!("{base}join = [\"h:1\"]"), "token_file is missing"),
            (format!("{base}replicas = 2"), "replicas is not"),
            (format!("{base}[labels]\nrow = \"1\""), "unknown field `row`"),
            (format!("{base}cache_bytes = \"x\""), "invalid type"),
            (format!("{base}cache_bytes = 5"), "cache_bytes is below"),
            (format!("{base}listen = \"here\""), "listen is not host:port"),
            (format!("{base}listen = \"0.0.0.0:1\""), "advertise is missing"),
            ("data = \"\"\nobject_store = \"file:///o\"".into(), "data is empty"),
            ("data = \"/d\"\nobject_store = \"s3://key:hunter2@bucket\"".into(), "object_store holds credentials"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert!(Config::read(Path::new("/nowhere")).unwrap_err().to_string().contains("cannot read the configuration"));
    }
}
