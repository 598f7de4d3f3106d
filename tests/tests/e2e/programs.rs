//! Real programs, each compared with the same done on the local file system.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use pando_tests::bytes::{digest, seeded};
use pando_tests::pando::{run, scratch, text};
use pando_tests::tree::{self, Detail};

use crate::{Place, same};

const LIMIT: Duration = Duration::from_secs(180);

/// Runs a program that must succeed.
#[track_caller]
pub fn must(mut command: Command) -> Output {
    // What the user's own settings say must not decide a test.
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_COUNT", "1");
    command.env("GIT_CONFIG_KEY_0", "safe.directory").env("GIT_CONFIG_VALUE_0", "*");
    let what = format!("{command:?}");
    let output = run(command, LIMIT);
    assert!(output.status.success(), "{what}: {}", text(&output));
    output
}

/// A command from words.
pub fn command(program: &str, args: &[&dyn AsRef<OsStr>]) -> Command {
    let mut command = Command::new(program);
    command.args(args.iter().map(AsRef::as_ref));
    command
}

/// A Python script with paths as arguments; must succeed. Its output.
#[track_caller]
pub fn python(script: &str, args: &[&Path]) -> String {
    let mut command = Command::new("python3");
    command.arg("-c").arg(script).args(args);
    String::from_utf8_lossy(&must(command).stdout).into_owned()
}

/// Whether a program is installed.
fn installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// A bare repository with this repository's history (or, in a bare source tree, one commit of it).
fn repository(scratch: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let bare = scratch.join("bare.git");
    if source.join(".git").exists() {
        must(command("git", &[&"clone", &"-q", &"--bare", &source, &bare]));
        return bare;
    }
    let copy = scratch.join("copy");
    must(command("cp", &[&"-r", &source, &copy]));
    let identity: [&dyn AsRef<OsStr>; 4] = [&"-c", &"user.name=test", &"-c", &"user.email=test@invalid"];
    must(command("git", &[&"init", &"-q", &copy]));
    must(command("git", &[&"-C", &copy, &"add", &"."]));
    must(command("git", &[&identity[..], &[&"-C", &copy, &"commit", &"-qm", &"x"]].concat()));
    must(command("git", &[&"clone", &"-q", &"--bare", &copy, &bare]));
    bare
}

#[test]
fn git_clones_checks_and_collects() {
    let place = Place::new("git");
    let scratch = scratch();
    let bare = repository(scratch.path());
    let (here, local) = (place.path("clone"), scratch.path().join("clone"));
    for target in [&here, &local] {
        must(command("git", &[&"clone", &"-q", &"--no-hardlinks", &bare, target]));
    }
    let status = |dir: &Path| must(command("git", &[&"-C", &dir, &"status", &"--porcelain"])).stdout;
    assert_eq!(String::from_utf8_lossy(&status(&here)), "");
    must(command("git", &[&"-C", &here, &"fsck", &"--full", &"--strict"]));
    // Some history of its own: loose objects, then packed, a branch switched to and back.
    for round in 0..5u64 {
        fs::write(here.join(format!("new-{round}")), seeded(round, 20_000)).unwrap();
        must(command("git", &[&"-C", &here, &"add", &"."]));
        let (name, mail) = ("user.name=test", "user.email=test@invalid");
        must(command("git", &[&"-C", &here, &"-c", &name, &"-c", &mail, &"commit", &"-qm", &"round"]));
    }
    must(command("git", &[&"-C", &here, &"gc", &"-q", &"--prune=now"]));
    must(command("git", &[&"-C", &here, &"fsck", &"--full"]));
    must(command("git", &[&"-C", &here, &"checkout", &"-q", &"HEAD~5"]));
    assert_eq!(String::from_utf8_lossy(&status(&here)), "");
    let work = |dir: &Path| {
        let mut all = tree::read(dir, Detail::Content);
        all.retain(|path, _| !path.starts_with(".git"));
        all
    };
    tree::assert_same(&work(&here), &work(&local));
}

/// Runs transactions in a journal mode; prints what the database holds.
const SQLITE: &str = "
import sqlite3, sys, hashlib
path, mode, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
db = sqlite3.connect(path, isolation_level=None)
assert db.execute('pragma journal_mode=' + mode).fetchone()[0] == mode
db.execute('pragma synchronous=full')
db.execute('create table t (id integer primary key, v blob)')
for i in range(count):
    db.execute('begin immediate')
    db.execute('insert into t values (?, ?)', (i, hashlib.sha256(b'%d' % i).digest() * (i % 40)))
    db.execute('update t set v = v || ? where id = ?', (b'x' * 100, i // 2))
    if i % 7 == 3: db.execute('delete from t where id = ?', (i - 2,))
    db.execute('rollback' if i % 50 == 49 else 'commit')
db.close()
db = sqlite3.connect(path)
assert db.execute('pragma integrity_check').fetchone()[0] == 'ok'
h = hashlib.sha256()
for row in db.execute('select id, cast(v as blob) from t order by id'): h.update(repr(row).encode())
print(h.hexdigest())
";

/// Rollback journal and write-ahead log on `dir`, compared with the same on the local disk.
pub fn sqlite_agrees(dir: &Path, local: &Path, transactions: u32) {
    let count = transactions.to_string();
    for mode in ["delete", "wal"] {
        let name = format!("{mode}.db");
        let transactions = |dir: &Path| python(SQLITE, &[&dir.join(&name), Path::new(mode), Path::new(&count)]);
        assert_eq!(transactions(dir), transactions(local), "journal_mode={mode}");
    }
}

#[test]
fn sqlite_keeps_its_transactions() {
    let place = Place::new("sqlite");
    sqlite_agrees(&place.dir, scratch().path(), 2000);
}

#[test]
fn sqlite_from_four_processes_loses_no_update() {
    let place = Place::new("sqlite_shared");
    let script = "
import sqlite3, subprocess, sys
path, mode = sys.argv[1:3]
if len(sys.argv) == 3:
    db = sqlite3.connect(path); db.execute('pragma journal_mode=' + mode)
    db.execute('create table c (n)'); db.execute('insert into c values (0)'); db.commit(); db.close()
    ranks = [subprocess.Popen([sys.executable, '-c', open('/proc/self/cmdline').read().split('\\0')[2], path, mode, 'rank']) for _ in range(4)]
    assert [r.wait() for r in ranks] == [0] * 4
    print(sqlite3.connect(path).execute('select n from c').fetchone()[0])
else:
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    for i in range(40):
        db.execute('begin immediate'); db.execute('update c set n = n + 1'); db.execute('commit')
";
    for mode in ["wal", "delete"] {
        let count = python(script, &[&place.path(&format!("{mode}.db")), Path::new(mode)]);
        assert_eq!(count.trim(), "160", "journal_mode={mode}");
    }
}

#[test]
fn tar_takes_small_files_in_and_out() {
    let place = Place::new("tar");
    tar_agrees(&place.dir, scratch().path(), 2000);
}

/// Unpacks an archive of small files into `dir`, packs it again there, and compares both trees.
pub fn tar_agrees(dir: &Path, scratch: &Path, files: usize) {
    let (source, archive) = (scratch.join("tree"), scratch.join("in.tar"));
    tree::make_small_files(&source, files);
    must(command("tar", &[&"-cf", &archive, &"-C", &scratch, &"tree"]));
    must(command("tar", &[&"-xf", &archive, &"-C", &dir]));
    let (here, want) = (tree::read(&dir.join("tree"), Detail::All), tree::read(&source, Detail::All));
    // tar keeps whole seconds unless told otherwise.
    let whole_seconds = |mut nodes: std::collections::BTreeMap<PathBuf, tree::Node>| {
        nodes.values_mut().for_each(|node| node.mtime = node.mtime.map(|(seconds, _)| (seconds, 0)));
        nodes
    };
    tree::assert_same(&whole_seconds(here), &whole_seconds(want));
    let out = dir.join("out.tar");
    must(command("tar", &[&"-cf", &out, &"-C", &dir, &"tree"]));
    let back = scratch.join("back");
    fs::create_dir(&back).unwrap();
    must(command("tar", &[&"-xf", &out, &"-C", &back]));
    tree::assert_same(&tree::read(&back.join("tree"), Detail::Content), &tree::read(&source, Detail::Content));
}

#[test]
fn rsync_moves_nothing_the_second_time() {
    if !installed("rsync") {
        eprintln!("rsync is not installed, this test says nothing");
        return;
    }
    let place = Place::new("rsync");
    let scratch = scratch();
    let source = scratch.path().join("tree");
    tree::make_small_files(&source, 500);
    std::os::unix::fs::symlink("d00/f00001", source.join("link")).unwrap();
    fs::hard_link(source.join("d00/f00002"), source.join("hard")).unwrap();
    // rsync leaves a directory as it is if its time is right to the second.
    must(command("find", &[&source, &"-exec", &"touch", &"-h", &"-d", &"2020-01-02 03:04:05.678", &"{}", &"+"]));
    let sync = || must(command("rsync", &[&"-aHi", &source.join(""), &place.path("copy")]));
    assert!(sync().stdout.len() > 500);
    assert_eq!(String::from_utf8_lossy(&sync().stdout), "", "the second run moved something");
    // Not every rsync sets the times of symbolic links.
    let without_link_times = |root: &Path| {
        let mut all = tree::read(root, Detail::All);
        let links = all.values_mut().filter(|node| node.mode & libc::S_IFMT == libc::S_IFLNK);
        links.for_each(|node| node.mtime = None);
        all
    };
    tree::assert_same(&without_link_times(&place.path("copy")), &without_link_times(&source));
    fs::write(source.join("d01/f00150"), b"changed").unwrap();
    assert_eq!(String::from_utf8_lossy(&sync().stdout).lines().count(), 1);
    assert_eq!(fs::read(place.path("copy/d01/f00150")).unwrap(), b"changed");
}

#[test]
fn a_python_environment_works_on_the_mount() {
    let place = Place::new("venv");
    let venv = place.path("venv");
    let with_pip = run(command("python3", &[&"-c", &"import ensurepip"]), LIMIT).status.success();
    let mut create = command("python3", &[&"-m", &"venv", &venv]);
    if !with_pip {
        create.arg("--without-pip");
    }
    create.env_remove("PYTHONDONTWRITEBYTECODE");
    must(create);
    let module = venv.join("answer.py");
    fs::write(&module, "value = 42\n").unwrap();
    let interpreter = venv.join("bin/python");
    let mut run = Command::new(&interpreter);
    run.arg("-c").arg("import sys, answer; print(sys.prefix, answer.value)").env("PYTHONPATH", &venv);
    let printed = String::from_utf8_lossy(&must(run).stdout).into_owned();
    assert_eq!(printed.trim(), format!("{} 42", venv.display()));
    if with_pip {
        let mut pip = Command::new(&interpreter);
        pip.args(["-m", "pip", "--version"]);
        assert!(String::from_utf8_lossy(&must(pip).stdout).contains(venv.to_str().unwrap()));
    }
}

#[test]
fn cargo_builds_with_its_target_on_the_mount() {
    let place = Place::new("cargo");
    let krate = place.path("crate");
    fs::create_dir_all(krate.join("src")).unwrap();
    fs::write(
        krate.join("Cargo.toml"),
        "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n",
    )
    .unwrap();
    let program = |text: &str| {
        let lib = "pub fn greet() -> &'static str { \"TEXT\" }\n".replace("TEXT", text);
        fs::write(krate.join("src/lib.rs"), lib).unwrap();
        fs::write(krate.join("src/main.rs"), "fn main() { println!(\"{}\", small::greet()); }\n").unwrap();
    };
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let build_and_run = || {
        let mut build = command(&cargo, &[&"run", &"--offline", &"-q"]);
        build.current_dir(&krate).env("CARGO_TARGET_DIR", krate.join("target")).env("CARGO_INCREMENTAL", "1");
        String::from_utf8_lossy(&must(build).stdout).into_owned()
    };
    program("first");
    assert_eq!(build_and_run(), "first\n");
    program("second, and incremental");
    assert_eq!(build_and_run(), "second, and incremental\n");
    let mut fresh = command(&cargo, &[&"build", &"--offline", &"-v"]);
    fresh.current_dir(&krate).env("CARGO_TARGET_DIR", krate.join("target")).env("CARGO_INCREMENTAL", "1");
    assert!(String::from_utf8_lossy(&must(fresh).stderr).contains("Fresh small"), "mtimes made cargo build again");
}

#[test]
fn a_large_file_is_written_copied_and_read_back() {
    let place = Place::new("large");
    large_agrees(&place.dir, 256 << 20);
}

/// Writes a file in 1 MiB writes, copies it, reads both.
pub fn large_agrees(dir: &Path, length: usize) {
    use std::io::{Read, Write};
    let (path, copy) = (dir.join("large"), dir.join("copy"));
    let mut file = fs::File::create(&path).unwrap();
    let block = |index: usize| seeded(index as u64, 1 << 20);
    for index in 0..length >> 20 {
        file.write_all(&block(index)).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    must(command("cp", &[&path, &copy]));
    for path in [&path, &copy] {
        let mut file = fs::File::open(path).unwrap();
        let mut got = vec![0; 1 << 20];
        for index in 0..length >> 20 {
            file.read_exact(&mut got).unwrap();
            assert_eq!(digest(&got[..64]), digest(&block(index)[..64]), "{}, MiB {index}", path.display());
            same(&got, &block(index));
        }
        assert_eq!(file.read(&mut got).unwrap(), 0);
    }
    fs::remove_file(path).unwrap();
    fs::remove_file(copy).unwrap();
}
