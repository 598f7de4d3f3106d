//! The binary as a user meets it: exit codes, one-sentence errors, and a server without a mount.
//!
//! Not here: anything that mounts (tests/tests/e2e).

use std::path::Path;
use std::process::{Command, Output};

/// Runs `pando` with nothing of the environment that could change what it does.
fn pando(data: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pando"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PANDO_") {
            command.env_remove(name);
        }
    }
    command.args(args).env("XDG_DATA_HOME", data).output().expect("the binary runs")
}

/// Asserts the exit code, and that the error is one sentence for a person.
#[track_caller]
fn fails(output: &Output, code: i32, word: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.starts_with("pando: ") && error.contains(word), "{error}");
}

#[test]
fn mistakes_on_the_command_line_are_code_2() {
    let dir = tempfile::tempdir().expect("a directory");
    fails(&pando(dir.path(), &["status", "--nonsense"]), 2, "--nonsense");
    fails(&pando(dir.path(), &["umount"]), 2, "DIR");
    fails(&pando(dir.path(), &["fly"]), 2, "fly");
    fails(&pando(dir.path(), &["up", "--buffer-memory", "lots"]), 2, "lots");
    assert_eq!(pando(dir.path(), &[]).status.code(), Some(2));
    assert_eq!(pando(dir.path(), &["--help"]).status.code(), Some(0));
    assert_eq!(pando(dir.path(), &["fsck", "--help"]).status.code(), Some(0));
    assert!(std::fs::read_dir(dir.path()).expect("still there").next().is_none(), "nothing was made");
}

#[test]
fn failures_are_code_1_and_change_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("a plain path").to_owned();
    fails(&pando(dir.path(), &["status"]), 1, "nothing runs on");
    fails(&pando(dir.path(), &["fsck", "--data", &path("absent")]), 1, "no data");
    fails(&pando(dir.path(), &["gc"]), 1, "no data");
    fails(&pando(dir.path(), &["status", "127.0.0.1:1"]), 1, "127.0.0.1:1");
    fails(&pando(dir.path(), &["umount", &path("absent")]), 1, "nothing is mounted");
    fails(&pando(dir.path(), &["umount", "/proc"]), 1, "not of Pando");
    fails(&pando(dir.path(), &["up", "--data", &path("data"), "/proc"]), 1, "is mounted there");
    fails(&pando(dir.path(), &["up", "--data", &path("mnt/data"), &path("mnt")]), 1, "below the mount point");
    fails(&pando(dir.path(), &["server", "--config", &path("absent.toml")]), 1, "absent.toml");
    std::fs::write(path("bad.toml"), "nonsense = 1\n").expect("written");
    fails(&pando(dir.path(), &["server", "--config", &path("bad.toml")]), 1, "nonsense");
    std::fs::remove_file(path("bad.toml")).expect("removed");
    assert!(std::fs::read_dir(dir.path()).expect("still there").next().is_none(), "nothing was made");
}
