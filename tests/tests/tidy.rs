//! Keeps the house (HOUSE.md): who may import whom, the fences around third-party crates, and how files look.
//!
//! Works on text alone, line by line; what rustc or clippy can check is left to them. Every rule is a pure function from
//! text to findings, and each has a bad snippet below that it must find.
//! Invariant: a finding names the file, the line where there is one, and what to do.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The arrows of HOUSE.md §1: a crate's folder, and the folders it may import. A crate that is not here may not exist.
const LAYERS: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("rpc", &["types"]),
    ("engine", &["types"]),
    ("segments", &["types"]),
    ("raft", &["types"]),
    ("metaserver", &["types", "rpc", "engine", "raft", "segments"]),
    ("client", &["types", "rpc", "segments"]),
    ("client-fuse", &["types", "client"]),
    ("cli", &["metaserver", "client", "client-fuse"]),
    ("tests", ALL),
    ("benches", &["types", "rpc", "engine", "segments", "raft", "metaserver", "client", "client-fuse", "cli", "tests"]),
];
const ALL: &[&str] = &["types", "rpc", "engine", "segments", "raft", "metaserver", "client", "client-fuse", "cli"];

/// Crates, and the only folders that may name them.
const FENCES: &[(&str, &[&str])] = &[
    ("openraft", &["raft"]),
    ("rocksdb", &["engine", "raft"]),
    ("fuser", &["client-fuse"]),
    ("object_store", &["segments"]),
    ("anyhow", &["cli", "tests", "benches"]),
];

/// Folders whose code is a function of its input: no clock, no randomness, no network, no runtime.
const PURE: &[&str] = &["types", "engine"];
const IMPURE_CRATES: &[&str] = &[
    "tokio",
    "async-std",
    "smol",
    "mio",
    "socket2",
    "hyper",
    "reqwest",
    "rand",
    "getrandom",
    "fastrand",
    "uuid",
    "chrono",
    "time",
];
const IMPURE_WORDS: &[&str] = &["SystemTime", "Instant", "std::net", "rand::", "tokio::", "std::env"];

/// Marks of unfinished work; spelled so that this file does not contain them.
const MARKS: &[&str] = &[
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("#[ig", "nore"),
];
const UNBOUNDED: &[&str] = &["unbounded_channel", "mpsc::unbounded", "mpsc::channel()"];
const BAD_TYPE_ENDS: &[&str] = &["Manager", "Helper", "Helpers", "Util", "Utils", "Impl"];

/// The documents and scripts that must exist.
const MUST_EXIST: &[&str] =
    &["README.md", "ARCHITECTURE.md", "SEMANTICS.md", "CHANGELOG.md", "clippy.toml", "deny.toml", "dev", ".ci/run"];

/// HOUSE.md rule 13.
const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;
const TEST_LINES_MAX: usize = 200;

#[test]
fn the_house_is_tidy() {
    let root = root();
    let mut findings = Vec::new();
    let mut files = 0;
    for (folder, _) in LAYERS {
        let manifest = fs::read_to_string(root.join(folder).join("Cargo.toml")).unwrap();
        findings.extend(check_manifest(folder, &manifest));
        let sources: Vec<(String, String)> =
            rust_files(&root.join(folder)).iter().map(|path| read(&root, path)).collect();
        let tests: BTreeSet<String> = sources.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
        for (path, text) in &sources {
            findings.extend(check_file(path, text, is_test(path) || tests.contains(path)));
            files += 1;
        }
    }
    findings.extend(check_members(&fs::read_to_string(root.join("Cargo.toml")).unwrap()));
    findings.extend(check_documents(&root));
    assert!(files > LAYERS.len(), "only {files} files found below {}", root.display());
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// A file's path below the root, and its text.
fn read(root: &Path, path: &Path) -> (String, String) {
    let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
    (name, fs::read_to_string(path).unwrap())
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().unwrap() != "target" {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Who imports whom, from one Cargo.toml; dev- and build-dependencies too.
fn check_manifest(folder: &str, manifest: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let table: toml::Table = manifest.parse().unwrap();
    let may = LAYERS.iter().find(|(name, _)| *name == folder).map(|(_, may)| *may).unwrap_or_default();
    for (name, value) in dependencies(&table) {
        if let Some(crate_folder) = name.strip_prefix("pando-")
            && !may.contains(&crate_folder)
        {
            findings.push(format!(
                "{folder}/Cargo.toml: {folder} may not import {crate_folder}; see the arrows of HOUSE.md §1"
            ));
        }
        for (fenced, homes) in FENCES {
            if family(&name, fenced) && !homes.contains(&folder) {
                findings.push(format!("{folder}/Cargo.toml: {name} belongs in {} only", homes.join(" and ")));
            }
        }
        if PURE.contains(&folder) && IMPURE_CRATES.iter().any(|bad| family(&name, bad)) {
            findings.push(format!("{folder}/Cargo.toml: {name} has no place in {folder}, which is pure"));
        }
        let shared = value.get("workspace").and_then(toml::Value::as_bool) == Some(true) || value.get("path").is_some();
        if !shared {
            findings.push(format!(
                "{folder}/Cargo.toml: {name} must be `workspace = true`, so that there is one version of it"
            ));
        }
    }
    if table.get("lints").and_then(|l| l.get("workspace")).and_then(toml::Value::as_bool) != Some(true) {
        findings.push(format!("{folder}/Cargo.toml: add [lints] workspace = true"));
    }
    findings
}

/// `tokio` and its family: `tokio-util`, `tokio_stream`.
fn family(name: &str, head: &str) -> bool {
    name == head || name.strip_prefix(head).is_some_and(|rest| rest.starts_with(['-', '_']))
}

fn dependencies(table: &toml::Table) -> Vec<(String, toml::Value)> {
    let mut found = Vec::new();
    for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
        if let Some(list) = table.get(kind).and_then(toml::Value::as_table) {
            found.extend(list.iter().map(|(name, value)| (name.clone(), value.clone())));
        }
    }
    if let Some(targets) = table.get("target").and_then(toml::Value::as_table) {
        found.extend(targets.values().filter_map(toml::Value::as_table).flat_map(dependencies));
    }
    found
}

/// The workspace has the crates of [`LAYERS`], no more and no fewer.
fn check_members(workspace: &str) -> Vec<String> {
    let table: toml::Table = workspace.parse().unwrap();
    let members: Vec<&str> =
        table["workspace"]["members"].as_array().unwrap().iter().filter_map(toml::Value::as_str).collect();
    let unknown = members.iter().filter(|m| !LAYERS.iter().any(|(name, _)| name == *m));
    let lost = LAYERS.iter().map(|(name, _)| name).filter(|name| !members.contains(name));
    unknown
        .map(|m| format!("Cargo.toml: {m} has no place in the layers; give it one in HOUSE.md §1 and here"))
        .chain(lost.map(|m| format!("Cargo.toml: {m} is no member")))
        .collect()
}

fn check_documents(root: &Path) -> Vec<String> {
    let mut findings: Vec<String> =
        MUST_EXIST.iter().filter(|name| !root.join(name).is_file()).map(|name| format!("{name} is missing")).collect();
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    let map = read("ARCHITECTURE.md");
    let unmapped = LAYERS.iter().filter(|(name, _)| !map.contains(&format!("`{name}`")));
    findings.extend(unmapped.map(|(name, _)| format!("ARCHITECTURE.md does not say what `{name}` is")));
    let lost = map.split('`').skip(1).step_by(2).filter(|name| name.contains('/') && !name.contains(' '));
    let lost = lost.filter(|name| !name.starts_with("./") && !root.join(name).exists());
    findings.extend(lost.map(|name| format!("ARCHITECTURE.md names {name}, which is not there")));
    if !read(".ci/run").contains("dev\" test") {
        findings.push(".ci/run must call `./dev test`, the README's test command".into());
    }
    findings
}

/// Everything that one file can get wrong.
fn check_file(path: &str, text: &str, test: bool) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let product = &lines[..if test { 0 } else { tests_begin(&lines) }];
    let mut findings = Vec::new();
    if path.ends_with("/mod.rs") {
        findings.push(format!("{path}: no mod.rs; name it after its folder"));
    }
    if !text.starts_with("//!") {
        findings.push(format!("{path}:1: begin with //! lines: what it is for, what it is not, its invariants"));
    }
    if product.len() > FILE_LINES_MAX {
        findings.push(format!("{path}: {} product lines, {FILE_LINES_MAX} at most; split it", product.len()));
    }
    if !test && lines.len() - product.len() > TEST_LINES_MAX {
        findings.push(format!("{path}: tests past {TEST_LINES_MAX} lines move to their own _test.rs"));
    }
    let all: Vec<_> = code(&lines, false).collect();
    findings.extend(named(&all, MARKS).map(|(line, word)| format!("{path}:{line}: unfinished: {word}")));
    let product_code: Vec<_> = code(product, true).collect();
    findings.extend(check_product(path, &product_code));
    findings.extend(
        long_functions(product)
            .map(|(line, n)| format!("{path}:{line}: a function of {n} lines, {FUNCTION_LINES_MAX} at most")),
    );
    findings
}

/// Rules for what is shipped.
fn check_product(path: &str, lines: &[(usize, &str)]) -> Vec<String> {
    let folder = path.split('/').next().unwrap_or_default();
    let mut findings = Vec::new();
    let mut add = |words: &[&str], advice: &str| {
        findings.extend(named(lines, words).map(|(line, word)| format!("{path}:{line}: {word} {advice}")));
    };
    add(&[".unwrap()"], "in product code; use expect(\"why it cannot fail\") or return the error");
    add(UNBOUNDED, "has no limit; use a bounded channel with its bound in limits.rs");
    add(&["pub fn get_", "pub async fn get_"], "says nothing; name what it returns");
    if PURE.contains(&folder) {
        add(IMPURE_WORDS, "is a hidden input; it must come with the command");
    }
    for (line, text) in lines {
        let mut words = text.split_whitespace().skip_while(|w| !matches!(*w, "struct" | "enum" | "trait"));
        let name: String = words.nth(1).unwrap_or_default().chars().take_while(|c| c.is_alphanumeric()).collect();
        if BAD_TYPE_ENDS.iter().any(|end| name.ends_with(end)) {
            findings.push(format!("{path}:{line}: {name} is no name; say what it is"));
        }
    }
    if path == "client-fuse/src/adapter.rs" {
        let decides =
            lines.iter().filter(|(_, text)| text.split(|c: char| !c.is_alphanumeric()).any(|word| word == "if"));
        findings.extend(
            decides.map(|(line, _)| format!("{path}:{line}: the adapter decides nothing (rule 2); move it to fs.rs")),
        );
    }
    findings
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("_test.rs") || path.starts_with("tests/") || path.starts_with("benches/")
}

/// The files of modules that this file declares for tests alone: `#[cfg(test)]`, perhaps further attributes, `mod name;`.
fn test_modules(path: &str, text: &str) -> Vec<String> {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = name.trim_end_matches(".rs");
    let below = if matches!(stem, "lib" | "main") { folder.to_owned() } else { format!("{folder}/{stem}") };
    let mut found = Vec::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if line != "#[cfg(test)]" {
            continue;
        }
        let mut file = None;
        let declared =
            lines.by_ref().inspect(|l| file = l.strip_prefix("#[path = \"").or(file)).find(|l| !l.starts_with("#["));
        if let Some(module) = declared.and_then(|l| l.rsplit_once("mod ")?.1.strip_suffix(';')) {
            found.push(match file.and_then(|f| f.strip_suffix("\"]")) {
                Some(file) => format!("{folder}/{file}"),
                None => format!("{below}/{module}.rs"),
            });
        }
    }
    found
}

/// The line at which the test module begins: `#[cfg(test)]`, perhaps further attributes, `mod`.
fn tests_begin(lines: &[&str]) -> usize {
    let starts = |at: usize| {
        let after = lines[at + 1..].iter().map(|l| l.trim()).find(|l| !l.starts_with("#[") && !l.starts_with("//"));
        lines[at].trim() == "#[cfg(test)]" && after.is_some_and(|l| l.starts_with("mod ") && !l.ends_with(';'))
    };
    (0..lines.len()).find(|at| starts(*at)).unwrap_or(lines.len())
}

/// Numbered lines; without those that are only a comment, if so wished.
fn code<'a>(lines: &'a [&'a str], skip_comments: bool) -> impl Iterator<Item = (usize, &'a str)> {
    lines
        .iter()
        .enumerate()
        .map(|(n, l)| (n + 1, *l))
        .filter(move |(_, l)| !(skip_comments && l.trim_start().starts_with("//")))
}

fn named<'a>(lines: &'a [(usize, &'a str)], words: &'a [&'a str]) -> impl Iterator<Item = (usize, &'a str)> {
    lines.iter().flat_map(move |(line, text)| words.iter().filter(|w| text.contains(**w)).map(move |w| (*line, *w)))
}

/// Line and length of each function that is too long. Relies on rustfmt: a body ends with `}` at the indent of its `fn`.
fn long_functions(lines: &[&str]) -> impl Iterator<Item = (usize, usize)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, &str)> = None;
    for (at, line) in lines.iter().enumerate() {
        let text = line.trim_start();
        if is_function(text) && !text.ends_with(';') && !text.ends_with('}') {
            open = Some((at, &line[..line.len() - text.len()]));
        } else if let Some((start, indent)) = open
            && line.strip_prefix(indent) == Some("}")
        {
            let length = at - start + 1;
            if length > FUNCTION_LINES_MAX {
                found.push((start + 1, length));
            }
            open = None;
        }
    }
    found.into_iter()
}

fn is_function(text: &str) -> bool {
    let mut words = text.split_whitespace();
    let qualifier = |w: &str| w.starts_with("pub") || matches!(w, "async" | "unsafe" | "const" | "extern" | "\"C\"");
    words.find(|w| !qualifier(w)) == Some("fn")
}

/// Asserts that a snippet is found fault with, for the reason given, and that the text without it is not.
#[track_caller]
fn finds(path: &str, text: &str, reason: &str) {
    let findings = check_file(path, text, is_test(path));
    assert!(findings.iter().any(|f| f.contains(reason)), "{reason:?} is not among {findings:?}");
}

#[test]
fn a_good_file_is_left_alone() {
    let good = "//! What it is for.\n\n// .unwrap() in a comment\npub fn size() -> u64 {\n    7\n}\n\n#[cfg(test)]\n\
                #[allow(clippy::unwrap_used)]\nmod tests {\n    fn f() {\n        x.unwrap();\n    }\n}\n";
    assert_eq!(check_file("rpc/src/frame.rs", good, false), Vec::<String>::new());
    assert_eq!(check_file("rpc/src/doubles.rs", "//! Tests.\nfn f() { x.unwrap() }\n", true), Vec::<String>::new());
    assert!(is_test("rpc/src/frame/frame_test.rs") && is_test("tests/src/pando.rs") && !is_test("rpc/src/frame.rs"));
}

#[test]
fn files_for_tests_alone_are_known_by_their_declaration() {
    let text = "mod frame;\n#[cfg(test)]\nmod doubles;\n#[cfg(test)]\n#[path = \"frame/all.rs\"]\npub(crate) mod all;\n\
                #[cfg(test)]\nmod tests {\n    mod inner;\n}\n";
    assert_eq!(test_modules("rpc/src/lib.rs", text), ["rpc/src/doubles.rs", "rpc/src/frame/all.rs"]);
    assert_eq!(test_modules("rpc/src/pool.rs", "#[cfg(test)]\nmod doubles;\n"), ["rpc/src/pool/doubles.rs"]);
}

#[test]
fn bad_files_are_found() {
    let path = "rpc/src/frame.rs";
    finds(path, "use std::fmt;\n", "begin with //!");
    finds("rpc/src/frame/mod.rs", "//! x\n", "no mod.rs");
    finds(path, "//! x\nfn f() { x.unwrap() }\n", ":2: .unwrap()");
    finds(path, "//! x\n#[cfg(test)]\nmod frame_test;\nfn f() { x.unwrap() }\n", ":4: .unwrap()");
    for mark in MARKS {
        finds(path, &format!("//! x\n// {mark}\n"), "unfinished");
        finds("tests/tests/e2e/main.rs", &format!("//! x\n{mark}\n"), "unfinished");
    }
    finds(path, "//! x\nlet (a, b) = tokio::sync::mpsc::unbounded_channel();\n", "has no limit");
    finds(path, "//! x\npub(crate) struct LeaseManager {\n", "LeaseManager is no name");
    finds(path, "//! x\npub fn get_size() {}\n", "says nothing");
    finds("engine/src/ops.rs", "//! x\nlet t = SystemTime::now();\n", "hidden input");
    finds("client-fuse/src/adapter.rs", "//! x\n    if size > 0 {\n", "decides nothing");
}

#[test]
fn sizes_are_counted() {
    let path = "rpc/src/frame.rs";
    let long_file = format!("//! x\n{}", "const A: u8 = 0;\n".repeat(FILE_LINES_MAX));
    finds(path, &long_file, "product lines");
    let function = |lines: usize| {
        format!("//! x\nimpl A {{\n    pub(crate) async fn f(\n{}    }}\n}}\n", "        a();\n".repeat(lines - 2))
    };
    finds(path, &function(FUNCTION_LINES_MAX + 1), ":3: a function of 71 lines");
    assert_eq!(check_file(path, &function(FUNCTION_LINES_MAX), false), Vec::<String>::new());
    let tests = format!("//! x\n#[cfg(test)]\nmod tests {{\n{}}}\n", "    // y\n".repeat(TEST_LINES_MAX));
    finds(path, &tests, "move to their own");
}

#[test]
fn bad_imports_are_found() {
    let rest = "[lints]\nworkspace = true\n";
    let check = |folder: &str, text: &str| check_manifest(folder, &format!("{text}\n{rest}")).join("\n");
    assert_eq!(check("engine", "[dependencies]\npando-types.workspace = true\nrocksdb.workspace = true"), "");
    for (folder, text, reason) in [
        ("engine", "[dependencies]\npando-rpc.workspace = true", "may not import rpc"),
        ("client", "[dev-dependencies]\npando-metaserver.workspace = true", "may not import metaserver"),
        ("client", "[target.'cfg(unix)'.dependencies]\npando-raft.workspace = true", "may not import raft"),
        ("metaserver", "[dependencies]\nopenraft.workspace = true", "belongs in raft only"),
        ("client", "[dev-dependencies]\nrocksdb.workspace = true", "belongs in engine and raft only"),
        ("cli", "[dependencies]\nfuser.workspace = true", "belongs in client-fuse only"),
        ("rpc", "[dependencies]\nobject_store.workspace = true", "belongs in segments only"),
        ("rpc", "[dependencies]\nanyhow.workspace = true", "belongs in cli"),
        ("types", "[dependencies]\ntokio-util.workspace = true", "which is pure"),
        ("engine", "[build-dependencies]\nrand.workspace = true", "which is pure"),
        ("rpc", "[dependencies]\nbytes = \"1\"", "must be `workspace = true`"),
    ] {
        assert!(check(folder, text).contains(reason), "{folder}: {text} must be found: {reason}");
    }
    assert!(check_manifest("rpc", "[dependencies]").concat().contains("[lints]"));
    assert!(check_members("[workspace]\nmembers = [\"types\", \"utils\"]").concat().contains("utils has no place"));
    assert!(check_members("[workspace]\nmembers = [\"types\"]").concat().contains("rpc is no member"));
}
