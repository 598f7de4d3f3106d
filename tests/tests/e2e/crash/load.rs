//! One writer of the crash test: random calls in a folder of its own, and the journal of what they promised.
//!
//! Invariant: `known` is what the last acknowledged call left; `pending` holds every other state that the call under way
//! may leave. A call that fails ends the round with `pending` as it is, since its effect may or may not have arrived.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pando_tests::bytes::{Random, difference, seeded};
use pando_tests::sys;

/// What one name is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    bytes: Arc<Vec<u8>>,
    mode: u32,
}

impl State {
    fn with(&self, bytes: Vec<u8>) -> State {
        State { bytes: Arc::new(bytes), mode: self.mode }
    }
}

/// Names and what they are; `None`: the name is absent.
type Change = BTreeMap<String, Option<State>>;

const NAMES: u64 = 14;

pub struct Writer {
    folder: PathBuf,
    random: Random,
    /// This one's files are large: they stream out while they are written.
    large: bool,
    content: u64,
    known: BTreeMap<String, State>,
    pending: Vec<Change>,
    pub acknowledged: u64,
}

impl Writer {
    pub fn new(folder: PathBuf, seed: u64, index: u64) -> Writer {
        Writer {
            folder,
            random: Random::new(seed),
            large: index == 3,
            content: seed,
            known: BTreeMap::new(),
            pending: Vec::new(),
            acknowledged: 0,
        }
    }

    pub fn make_folder(&self) {
        fs::create_dir(&self.folder).unwrap();
    }

    /// Calls until one is refused because the process behind the mount is gone.
    pub fn run_until_refused(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            match self.step() {
                Ok(()) => self.acknowledged += 1,
                Err(error) => {
                    let gone = [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO, libc::EINTR, libc::ENODEV];
                    assert!(error.raw_os_error().is_some_and(|errno| gone.contains(&errno)), "{error}");
                    return;
                }
            }
        }
    }

    fn step(&mut self) -> io::Result<()> {
        let name = format!("file-{:02}", self.random.below(NAMES));
        let known = self.known.get(&name).cloned();
        match (self.random.below(20), known) {
            (0..4, known) => self.write_whole(name, known),
            (4..8, known) => self.publish(name, known),
            (8..11, Some(known)) => self.append(name, &known),
            (11..14, Some(known)) => self.patch(name, &known),
            (14, Some(known)) => self.cut(name, &known),
            (15, Some(known)) => self.change_mode(name, &known),
            (16..18, Some(known)) => self.rename(name, known),
            (18.., Some(_)) => self.unlink(name),
            (_, None) => self.write_whole(name, None),
        }
    }

    /// New content; two of them never look alike.
    fn fresh(&mut self) -> Vec<u8> {
        self.content += 1;
        let length = match self.random.below(if self.large { 3 } else { 10 }) {
            0 => 1 + self.random.below(4096),
            _ if self.large => 1 + self.random.below(11 << 20),
            1..5 => 1 + self.random.below(9_000),
            _ => 1 + self.random.below(200_000),
        };
        seeded(self.content, length as usize)
    }

    fn begin(&mut self, changes: Vec<Change>) {
        self.pending = changes;
    }

    /// The call returned: this is the state now.
    fn acknowledge(&mut self, change: Change) {
        self.pending.clear();
        for (name, state) in change {
            match state {
                Some(state) => drop(self.known.insert(name, state)),
                None => drop(self.known.remove(&name)),
            }
        }
    }

    /// Creates or truncates, writes, closes; every second time with fsync.
    fn write_whole(&mut self, name: String, known: Option<State>) -> io::Result<()> {
        let bytes = self.fresh();
        let new = State { bytes: Arc::new(bytes), mode: known.as_ref().map_or(0o644, |known| known.mode) };
        let mut changes = vec![Change::from([(name.clone(), Some(new.clone()))])];
        if known.is_none() {
            // The name is made before its content: an ordinary program sees that too.
            changes.push(Change::from([(name.clone(), Some(new.with(Vec::new())))]));
        }
        self.begin(changes);
        let sync = self.random.below(2) == 0;
        self.put(&name, &new.bytes, |file| if sync { file.sync_all() } else { Ok(()) })?;
        self.acknowledge(Change::from([(name, Some(new))]));
        Ok(())
    }

    fn put(&self, name: &str, bytes: &[u8], then: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o644).open(self.folder.join(name))?;
        for chunk in bytes.chunks(128 << 10) {
            file.write_all(chunk)?;
        }
        then(&file)?;
        sys::close(file)
    }

    /// A temporary name, renamed over the final one without fsync, while open or after close.
    fn publish(&mut self, name: String, known: Option<State>) -> io::Result<()> {
        let temporary = format!("{name}.tmp");
        let new = State { bytes: Arc::new(self.fresh()), mode: 0o644 };
        let half = |state: State| Change::from([(temporary.clone(), Some(state)), (name.clone(), known.clone())]);
        let done = Change::from([(temporary.clone(), None), (name.clone(), Some(new.clone()))]);
        self.begin(vec![half(new.with(Vec::new())), half(new.clone()), done.clone()]);
        let (from, to) = (self.folder.join(&temporary), self.folder.join(&name));
        if self.random.below(2) == 0 {
            self.put(&temporary, &new.bytes, |_| fs::rename(&from, &to))?;
        } else {
            self.put(&temporary, &new.bytes, |_| Ok(()))?;
            fs::rename(&from, &to)?;
        }
        self.acknowledge(done);
        Ok(())
    }

    fn append(&mut self, name: String, known: &State) -> io::Result<()> {
        let more = self.fresh();
        let new = known.with([&known.bytes[..], &more].concat());
        let done = Change::from([(name.clone(), Some(new))]);
        self.begin(vec![done.clone()]);
        let mut file = OpenOptions::new().append(true).open(self.folder.join(&name))?;
        file.write_all(&more)?;
        file.sync_all()?;
        self.acknowledge(done);
        sys::close(file)
    }

    /// Overwrites some ranges in place; one fsync makes them all durable, or none.
    fn patch(&mut self, name: String, known: &State) -> io::Result<()> {
        let mut bytes = known.bytes.to_vec();
        let mut patches = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let mut patch = self.fresh();
            patch.truncate(100_000);
            let at = self.random.below(bytes.len() as u64 + 1) as usize;
            bytes.resize(bytes.len().max(at + patch.len()), 0);
            bytes[at..at + patch.len()].copy_from_slice(&patch);
            patches.push((at as u64, patch));
        }
        let done = Change::from([(name.clone(), Some(known.with(bytes)))]);
        self.begin(vec![done.clone()]);
        let file = OpenOptions::new().write(true).open(self.folder.join(&name))?;
        for (at, patch) in &patches {
            file.write_all_at(patch, *at)?;
        }
        file.sync_data()?;
        self.acknowledge(done);
        sys::close(file)
    }

    fn cut(&mut self, name: String, known: &State) -> io::Result<()> {
        let mut bytes = known.bytes.to_vec();
        let length = self.random.below(bytes.len() as u64 * 2 + 1);
        bytes.resize(length as usize, 0);
        let done = Change::from([(name.clone(), Some(known.with(bytes)))]);
        self.begin(vec![done.clone()]);
        let file = OpenOptions::new().write(true).open(self.folder.join(&name))?;
        file.set_len(length)?;
        sys::close(file)?;
        self.acknowledge(done);
        Ok(())
    }

    fn change_mode(&mut self, name: String, known: &State) -> io::Result<()> {
        let mode = [0o600, 0o640, 0o755, 0o604][self.random.below(4) as usize];
        let done = Change::from([(name.clone(), Some(State { mode, ..known.clone() }))]);
        self.begin(vec![done.clone()]);
        fs::set_permissions(self.folder.join(&name), fs::Permissions::from_mode(mode))?;
        self.acknowledge(done);
        Ok(())
    }

    fn rename(&mut self, name: String, known: State) -> io::Result<()> {
        let other = format!("file-{:02}", self.random.below(NAMES));
        if other == name {
            return Ok(());
        }
        let done = Change::from([(name.clone(), None), (other.clone(), Some(known))]);
        self.begin(vec![done.clone()]);
        fs::rename(self.folder.join(&name), self.folder.join(&other))?;
        self.acknowledge(done);
        Ok(())
    }

    fn unlink(&mut self, name: String) -> io::Result<()> {
        let done = Change::from([(name.clone(), None)]);
        self.begin(vec![done.clone()]);
        fs::remove_file(self.folder.join(&name))?;
        self.acknowledge(done);
        Ok(())
    }

    /// Compares the folder with the journal, and goes on from what it found.
    pub fn verify(&mut self, when: &str) {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.folder).unwrap_or_else(|e| panic!("{when}: {}: {e}", self.folder.display())) {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let bytes = fs::read(entry.path()).unwrap_or_else(|e| panic!("{when}: {name}: {e}"));
            let meta = entry.metadata().unwrap();
            assert_eq!(meta.len(), bytes.len() as u64, "{when}: {name}");
            found.insert(name, State { bytes: Arc::new(bytes), mode: meta.permissions().mode() & 0o7777 });
        }
        let mut closest = compare(&found, &self.known);
        for change in &self.pending {
            let mut allowed = self.known.clone();
            for (name, state) in change {
                match state {
                    Some(state) => drop(allowed.insert(name.clone(), state.clone())),
                    None => drop(allowed.remove(name)),
                }
            }
            let wrong = compare(&found, &allowed);
            if wrong.len() < closest.len() {
                closest = wrong;
            }
        }
        let in_flight: Vec<&String> = self.pending.iter().flat_map(BTreeMap::keys).collect();
        assert!(
            closest.is_empty(),
            "{when}: {} is in none of {} allowed states (in flight: {in_flight:?}); nearest differs in\n{}",
            self.folder.display(),
            self.pending.len() + 1,
            closest.join("\n")
        );
        self.known = found;
        self.pending.clear();
    }
}

/// A line for each name that differs.
fn compare(found: &BTreeMap<String, State>, allowed: &BTreeMap<String, State>) -> Vec<String> {
    let names = found.keys().chain(allowed.keys().filter(|name| !found.contains_key(*name)));
    let differ = |name: &String| match (found.get(name), allowed.get(name)) {
        (Some(found), Some(allowed)) => {
            let bytes = difference(&found.bytes, &allowed.bytes).map(|text| format!("{name}: {text}"));
            let mode = || {
                (found.mode != allowed.mode).then(|| format!("{name}: mode {:o}, not {:o}", found.mode, allowed.mode))
            };
            bytes.or_else(mode)
        }
        (Some(found), None) => Some(format!("{name}: there, {} bytes, and should not be", found.bytes.len())),
        (None, _) => Some(format!("{name}: missing")),
    };
    names.filter_map(differ).collect()
}
