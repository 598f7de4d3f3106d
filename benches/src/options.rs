//! The command line.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::load::Phase;
use crate::targets::{JUICEFS, LOCAL, PANDO};

pub const HELP: &str = "usage: ./dev bench [options]
  --dir DIR     where everything is stored, on the disk to be measured (default: /var/tmp)
  --reps N      repetitions of each measurement; the median counts (default: 3)
  --scale N     divide all counts and sizes by N, for a short look (default: 1)
  --only LIST   some of: engine,cluster,names,tar,fsync,stream (default: all)
  --on LIST     some of: pando,local,juicefs (default: all that are there)
  --json FILE   where the results go (default: benches/results/TIME.json)
JuiceFS over Redis is measured too where `juicefs` (PATH, JUICEFS, or a virtual environment in the cache folder) and
`redis-server` are installed. Cold figures need root, to drop the page cache.";

#[derive(Debug, Clone)]
pub struct Options {
    pub dir: PathBuf,
    pub repetitions: usize,
    pub scale: usize,
    pub only: Vec<String>,
    pub on: Vec<String>,
    pub json: Option<PathBuf>,
}

impl Options {
    /// `None`: help was asked for.
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Options>> {
        let mut options =
            Options { dir: "/var/tmp".into(), repetitions: 3, scale: 1, only: Vec::new(), on: Vec::new(), json: None };
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "-h" | "--help" => return Ok(None),
                "--dir" => options.dir = value()?.into(),
                "--json" => options.json = Some(value()?.into()),
                "--reps" => options.repetitions = value()?.parse().context("--reps needs a number")?,
                "--scale" => options.scale = value()?.parse().context("--scale needs a number")?,
                "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
                "--on" => options.on = value()?.split(',').map(str::to_owned).collect(),
                _ => bail!("unknown option {arg}"),
            }
        }
        let phases = ["engine", "cluster", "names", "tar", "fsync", "stream"];
        let known = [("--only", &options.only, &phases[..]), ("--on", &options.on, &[PANDO, LOCAL, JUICEFS])];
        for (option, given, known) in known {
            if let Some(unknown) = given.iter().find(|name| !known.contains(&name.as_str())) {
                bail!("{option} does not know {unknown}");
            }
        }
        if options.repetitions == 0 || !(1..=100).contains(&options.scale) {
            bail!("--reps must be at least 1, --scale 1 to 100");
        }
        Ok(Some(options))
    }

    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    pub fn measures(&self, target: &str) -> bool {
        self.on.is_empty() || self.on.iter().any(|on| on == target)
    }

    pub fn phases(&self) -> impl Iterator<Item = Phase> {
        let all = [("names", Phase::Names), ("tar", Phase::Tar), ("fsync", Phase::Fsync), ("stream", Phase::Stream)];
        all.into_iter().filter(|(name, _)| self.wants(name)).map(|(_, phase)| phase)
    }
}
