//! Bad input and faults: a sentence, an exit code, and nothing else harmed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use pando_tests::bytes::{digest, seeded};
use pando_tests::pando::{DEADLINE, Options, Pando, binary, plain_dir, run, scratch, text, wait_for};
use pando_tests::sys;
use pando_tests::tree::{self, Detail};

use crate::{refused, same};

/// The output is one sentence for a person, on stderr, with this exit code.
#[track_caller]
pub fn one_sentence(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}", text(output));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    assert_eq!(lines.len(), 1, "one sentence expected: {}", text(output));
    assert!(!said.contains("panicked") && !said.contains("Error {"), "{said}");
    lines[0].to_owned()
}

/// Runs `pando up` where it must be refused.
fn up_refused(pando: &Pando) -> String {
    let said = one_sentence(&run(pando.command(), DEADLINE), 1);
    assert!(!sys::is_mounted(pando.mount()), "mounted all the same");
    said
}

#[track_caller]
fn mentions(said: &str, words: &[&str]) {
    let lower = said.to_lowercase();
    assert!(words.iter().any(|word| lower.contains(&word.to_lowercase())), "none of {words:?} in: {said}");
}

/// The segments in the local store.
pub fn segments(pando: &Pando) -> Vec<(PathBuf, u64)> {
    segments_below(&pando.data().join("objects"))
}

/// Every segment in a folder of the store, with its length; what a collection deletes meanwhile may be missing.
pub fn segments_below(folder: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => folders.push(entry.path()),
                // HH/SESSION-SEQUENCE; a temporary file of the store has a further part.
                Ok(meta) if is_segment(&entry.path()) => found.push((entry.path(), meta.len())),
                _ => {}
            }
        }
    }
    found
}

fn is_segment(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    name.split_once('-').is_some_and(|(session, sequence)| hex(session) && hex(sequence))
}

#[test]
fn a_damaged_segment_is_an_error_for_its_file_alone() {
    if plain_dir().is_some() {
        return;
    }
    let mut pando = Pando::up();
    // Each closed on its own, so that each has its own segment; the damaged one is the largest.
    let files = [("before", 300_000usize), ("damaged", 2 << 20), ("after", 400_000), ("inline", 100)];
    for (name, length) in files {
        let mut file = File::create(pando.path(name)).unwrap();
        file.write_all(&seeded(length as u64, length)).unwrap();
        file.sync_all().unwrap();
    }
    pando.stop();
    let (segment, _) = segments(&pando).into_iter().max_by_key(|(_, length)| *length).expect("segments in the store");
    let file = File::options().read(true).write(true).open(&segment).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1_000_000).unwrap();
    file.write_all_at(&[!byte[0]], 1_000_000).unwrap();
    drop(file);
    pando.start();
    refused(fs::read(pando.path("damaged")), libc::EIO);
    for (name, length) in files {
        if name != "damaged" {
            same(&fs::read(pando.path(name)).unwrap(), &seeded(length as u64, length));
        }
    }
    // The undamaged part is readable, the damage is always told, never wrong bytes.
    let open = File::open(pando.path("damaged")).unwrap();
    let mut got = vec![0; 65_536];
    open.read_exact_at(&mut got, 0).unwrap();
    same(&got, &seeded(2 << 20, 65_536));
    refused(open.read_exact_at(&mut got, 983_040), libc::EIO);
    let name = segment.file_name().unwrap().to_str().unwrap();
    let log = pando.log();
    let line = log.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("no {name} in the log:\n{log}"));
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(pando.path("damaged")).unwrap());
    assert!(line.contains("damaged") || line.contains(&inode.to_string()), "the log line names no file: {line}");
    // A segment that is gone altogether is the same kind of damage.
    fs::remove_file(&segment).unwrap();
    pando.restart();
    refused(fs::read(pando.path("damaged")), libc::EIO);
    same(&fs::read(pando.path("after")).unwrap(), &seeded(400_000, 400_000));
    // The file can be replaced and removed.
    fs::write(pando.path("damaged"), b"made anew").unwrap();
    assert_eq!(fs::read(pando.path("damaged")).unwrap(), b"made anew");
    fs::remove_file(pando.path("damaged")).unwrap();
    pando.fsck();
}

#[test]
fn data_in_use_is_refused() {
    if plain_dir().is_some() {
        return;
    }
    let pando = Pando::up();
    fs::write(pando.path("file"), b"x").unwrap();
    let second = Pando::prepare(Options { data: Some(pando.data().to_owned()), ..Options::default() });
    let said = up_refused(&second);
    mentions(&said, &["in use", "already", "another", "running"]);
    assert_eq!(fs::read(pando.path("file")).unwrap(), b"x", "the first goes on");
}

#[test]
fn a_mount_point_must_be_an_empty_directory() {
    if plain_dir().is_some() {
        return;
    }
    let pando = Pando::prepare(Options::default());
    fs::write(pando.path("precious"), b"x").unwrap();
    mentions(&up_refused(&pando), &["empty"]);
    assert_eq!(fs::read(pando.path("precious")).unwrap(), b"x");
    fs::remove_file(pando.path("precious")).unwrap();
    fs::remove_dir(pando.mount()).unwrap();
    fs::write(pando.mount(), b"a file").unwrap();
    mentions(&up_refused(&pando), &["directory"]);
    assert_eq!(fs::read(pando.mount()).unwrap(), b"a file");
    // A mount point that another Pando uses.
    let running = Pando::up();
    fs::write(running.path("file"), b"x").unwrap();
    let mut command = Command::new(binary());
    command.arg("up").arg("--data").arg(pando.data()).arg(running.mount());
    one_sentence(&run(command, DEADLINE), 1);
    assert_eq!(fs::read(running.path("file")).unwrap(), b"x");
}

#[test]
fn wrong_usage_is_exit_code_two() {
    if plain_dir().is_some() {
        return;
    }
    for args in [&["up", "--no-such-flag"][..], &["nonsense"], &["mount"], &["up", "a", "b"], &[]] {
        let mut command = Command::new(binary());
        command.args(args);
        let output = run(command, DEADLINE);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output));
        assert!(!output.stderr.is_empty() || !output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn unknown_settings_are_refused() {
    if plain_dir().is_some() {
        return;
    }
    let scratch = scratch();
    let config = scratch.path().join("server.toml");
    fs::write(&config, "no_such_key = 1\n").unwrap();
    let mut command = Command::new(binary());
    command.arg("server").arg("--config").arg(&config);
    mentions(&one_sentence(&run(command, DEADLINE), 1), &["no_such_key"]);
    let mut command = Command::new(binary());
    command.arg("server").arg("--config").arg(scratch.path().join("absent.toml"));
    mentions(&one_sentence(&run(command, DEADLINE), 1), &["absent.toml"]);
}

#[test]
fn data_of_another_version_is_refused_and_left_alone() {
    if plain_dir().is_some() {
        return;
    }
    let mut pando = Pando::up();
    fs::write(pando.path("file"), b"x").unwrap();
    pando.stop();
    let format = find(pando.data(), "FORMAT").expect("a FORMAT file says what the folder is");
    let original = fs::read_to_string(&format).unwrap();
    let digit = original.find(|c: char| c.is_ascii_digit()).expect("a version in FORMAT");
    fs::write(&format, format!("{}9{}", &original[..digit], &original[digit..])).unwrap();
    let before = tree::read(pando.data(), Detail::Content);
    mentions(&up_refused(&pando), &["version"]);
    tree::assert_same(&tree::read(pando.data(), Detail::Content), &before);
    fs::write(&format, original).unwrap();
    pando.start();
    assert_eq!(fs::read(pando.path("file")).unwrap(), b"x");
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries: Vec<PathBuf> = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    entries
        .iter()
        .find(|path| path.ends_with(name))
        .cloned()
        .or_else(|| entries.iter().find_map(|path| find(path, name)))
}

#[test]
fn a_folder_that_is_not_pandos_is_left_alone() {
    if plain_dir().is_some() {
        return;
    }
    let pando = Pando::prepare(Options::default());
    fs::create_dir(pando.data()).unwrap();
    fs::write(pando.data().join("thesis.txt"), b"precious").unwrap();
    let before = tree::read(pando.data(), Detail::Content);
    up_refused(&pando);
    tree::assert_same(&tree::read(pando.data(), Detail::Content), &before);
}

#[test]
fn a_missing_object_store_is_refused() {
    if plain_dir().is_some() {
        return;
    }
    let mut pando = Pando::up();
    fs::write(pando.path("file"), seeded(1, 100_000)).unwrap();
    pando.stop();
    let (objects, aside) = (pando.data().join("objects"), pando.folder().join("aside"));
    fs::rename(&objects, &aside).unwrap();
    mentions(&up_refused(&pando), &["object store", "objects"]);
    // Not made anew: that would hide the loss.
    assert!(!objects.exists() || fs::read_dir(&objects).unwrap().next().is_none());
    let _ = fs::remove_dir_all(&objects);
    fs::rename(&aside, &objects).unwrap();
    pando.start();
    same(&fs::read(pando.path("file")).unwrap(), &seeded(1, 100_000));
}

#[test]
fn an_unreachable_s3_store_is_told() {
    if plain_dir().is_some() {
        return;
    }
    let args = ["--object-store", "s3://bucket", "--s3-endpoint", "http://127.0.0.1:9"].map(Into::into).to_vec();
    let envs = [("AWS_ACCESS_KEY_ID", "KEYIDKEYID"), ("AWS_SECRET_ACCESS_KEY", "SECRETSECRET")];
    let envs = envs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let pando = Pando::prepare(Options { args, envs, ..Options::default() });
    let start = Instant::now();
    let said = up_refused(&pando);
    mentions(&said, &["127.0.0.1:9"]);
    assert!(!said.contains("SECRETSECRET"), "{said}");
    assert!(start.elapsed() < Duration::from_secs(30), "took {:?}", start.elapsed());
}

/// A tmpfs of its own, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(path: PathBuf, bytes: u64) -> SmallDisk {
        fs::create_dir(&path).unwrap();
        sys::tmpfs(&path, bytes, false).unwrap();
        SmallDisk(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = sys::detach(&self.0);
    }
}

fn is_full_or_failed(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EIO | libc::EDQUOT))
}

/// Writes 1 MiB files until one is refused; returns those that were closed, and the refusal.
fn fill(pando: &Pando) -> (Vec<(PathBuf, u64)>, io::Error) {
    let mut kept = Vec::new();
    for index in 0..1000u64 {
        let path = pando.path(format!("file-{index:03}"));
        let done = File::create(&path).and_then(|mut file| {
            file.write_all(&seeded(index, 1 << 20))?;
            sys::close(file)
        });
        match done {
            Ok(()) => kept.push((path, index)),
            Err(error) => return (kept, error),
        }
    }
    panic!("a disk of 64 MiB took 1000 MiB");
}

#[test]
fn a_full_disk_is_told_and_nothing_acknowledged_is_lost() {
    if plain_dir().is_some() || !sys::is_root() {
        return;
    }
    let scratch = scratch();
    let disk = SmallDisk::new(scratch.path().join("disk"), 64 << 20);
    let mut pando = Pando::up_with(Options { data: Some(disk.0.join("data")), ..Options::default() });
    let start = Instant::now();
    let (kept, error) = fill(&pando);
    assert!(is_full_or_failed(&error), "{error}");
    assert!(start.elapsed() < DEADLINE * 2, "took {:?}", start.elapsed());
    assert!(kept.len() >= 20, "only {} MiB fit on 64 MiB", kept.len());
    let intact = |pando: &Pando| {
        for (path, seed) in &kept {
            let got = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}\n{}", path.display(), pando.log()));
            assert_eq!(digest(&got), digest(&seeded(*seed, 1 << 20)), "{}", path.display());
            assert!(path.starts_with(pando.mount()));
        }
    };
    intact(&pando);
    // Room on the disk and a restart: everything is there, and it can be written again.
    pando.terminate();
    let _ = sys::detach(pando.mount());
    sys::tmpfs(&disk.0, 160 << 20, true).unwrap();
    pando.start();
    intact(&pando);
    pando.fsck();
    fs::write(pando.path("again"), seeded(7, 5 << 20)).unwrap();
    same(&fs::read(pando.path("again")).unwrap(), &seeded(7, 5 << 20));
    pando.stop();
    drop(pando);
}

#[test]
fn a_disk_that_is_full_at_the_first_start_is_told() {
    if plain_dir().is_some() || !sys::is_root() {
        return;
    }
    let scratch = scratch();
    let disk = SmallDisk::new(scratch.path().join("disk"), 1 << 20);
    let mut ballast = File::create(disk.0.join("ballast")).unwrap();
    while ballast.write_all(&[1; 4096]).is_ok() {}
    let pando = Pando::prepare(Options { data: Some(disk.0.join("data")), ..Options::default() });
    mentions(&up_refused(&pando), &["space", "full", "disk"]);
}

#[test]
fn a_killed_mount_does_not_hang_its_users() {
    if plain_dir().is_some() {
        return;
    }
    let mut pando = Pando::up();
    let file = File::create(pando.path("file")).unwrap();
    let reader = std::thread::spawn(move || {
        let start = Instant::now();
        while file.write_all_at(&[1; 4096], 0).is_ok() && start.elapsed() < DEADLINE {}
        file.sync_all()
    });
    std::thread::sleep(Duration::from_millis(100));
    pando.kill();
    wait_for("the user of a dead mount", Duration::from_secs(10), || reader.is_finished().then_some(()));
    // The kernel says ECONNABORTED of a request that was on its way, ENOTCONN of those after it.
    let error = reader.join().unwrap().unwrap_err().raw_os_error();
    assert!([Some(libc::ENOTCONN), Some(libc::ECONNABORTED)].contains(&error), "{error:?}");
}
