//! The suites of others: pjdfstest and fsx, from crates.io (`./dev test` installs them).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pando_tests::pando::{Pando, run, scratch, text};
use pando_tests::{sys, tools};

use crate::Place;

const LIMIT: Duration = Duration::from_secs(240);

/// Cases that are known to fail, one a line; text after the name is the reason.
const EXPECTED: &str = include_str!("pjdfstest.expected");

fn expected() -> BTreeSet<String> {
    let lines = EXPECTED.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// pjdfstest acts as nobody and as a user `tests`; nobody's group has two names in the world.
fn config() -> String {
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let nogroup = if groups.lines().any(|line| line.starts_with("nogroup:")) { "nogroup" } else { "nobody" };
    format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nutime_now = {{}}\nutimensat = {{}}\n\
         [settings]\nnaptime = 0.01\nallow_remount = false\n\
         [dummy_auth]\nentries = [[\"nobody\", \"{nogroup}\"], [\"tests\", \"tests\"]]\n"
    )
}

#[test]
fn pjdfstest_fails_in_the_listed_cases_only() {
    let program = tools::find("pjdfstest");
    assert!(sys::is_root(), "pjdfstest needs root");
    let users = fs::read_to_string("/etc/passwd").unwrap();
    assert!(
        users.lines().any(|line| line.starts_with("tests:")),
        "no user `tests`: ./dev test makes it (useradd -M tests)"
    );
    let scratch = scratch();
    let config_path = scratch.path().join("pjdfstest.toml");
    fs::write(&config_path, config()).unwrap();
    let pando = Pando::up();
    let mut command = Command::new(program);
    command.arg("-c").arg(config_path).arg("-p").arg(pando.mount()).env("NO_COLOR", "1").env("RUST_BACKTRACE", "0");
    let output = run(command, LIMIT);
    let said = text(&output);
    let (mut failed, mut passed, mut skipped) = (BTreeSet::new(), 0, 0);
    for line in said.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [name, "FAILED"] => drop(failed.insert(name.to_owned())),
            [_, "ok"] => passed += 1,
            [_, "skipped"] => skipped += 1,
            _ => {}
        }
    }
    eprintln!("pjdfstest: {passed} passed, {} failed, {skipped} skipped", failed.len());
    assert!(passed + failed.len() + skipped > 390, "the suite did not run:\n{said}");
    assert!(
        skipped <= 23,
        "{skipped} cases were skipped; ext4 skips the cases that need another kernel or a remount only"
    );
    let details =
        |name: &String| said.lines().skip_while(|l| !l.starts_with(name)).nth(1).unwrap_or_default().trim().to_owned();
    let new: Vec<String> = failed.difference(&expected()).map(|name| format!("{name}: {}", details(name))).collect();
    assert!(new.is_empty(), "{} failures that are not listed:\n{}", new.len(), new.join("\n"));
    let mended: Vec<String> = expected().difference(&failed).cloned().collect();
    assert!(mended.is_empty(), "these pass now: take them out of pjdfstest.expected and SEMANTICS.md: {mended:?}");
    pando.fsck();
}

/// What is documented is what is tested.
#[test]
fn semantics_lists_exactly_the_known_failures() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("SEMANTICS.md");
    let page = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")).filter_map(|row| row.split('|').next());
    let case = |cell: &str| cell.trim().trim_matches('`').to_owned();
    let is_case =
        |name: &String| name.contains("::") && name.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c));
    let listed: BTreeSet<String> = rows.map(case).filter(is_case).collect();
    assert_eq!(listed, expected(), "SEMANTICS.md lists the left, tests/tests/e2e/pjdfstest.expected the right");
}

/// Every operation that fsx knows, mapped reads and writes included (on by default); closing and syncing in between.
const FSX: &str = "flen = 400000\n[weights]\nclose_open = 0.3\ninvalidate = 0.2\nfsync = 0.1\nfdatasync = 0.1\n\
                   punch_hole = 1\nposix_fallocate = 1\ncopy_file_range = 1\nsendfile = 1\nposix_fadvise = 1\n";

#[test]
fn fsx_finds_no_difference() {
    let program = tools::find("fsx");
    let place = Place::new("fsx");
    let scratch = scratch();
    let config = scratch.path().join("fsx.toml");
    fs::write(&config, FSX).unwrap();
    std::thread::scope(|scope| {
        for seed in ["7", "11", "4242"] {
            let (program, config, scratch) = (&program, &config, scratch.path());
            let file = place.path(&format!("file-{seed}"));
            scope.spawn(move || {
                let mut command = Command::new(program);
                command.args(["-N", "20000", "-S", seed, "-f"]).arg(config).arg("-P").arg(scratch).arg(&file);
                let output = run(command, LIMIT);
                assert!(output.status.success(), "fsx -S {seed}: {}", text(&output));
            });
        }
    });
}
