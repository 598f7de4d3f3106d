//! A directory tree as a value, to compare two of them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::bytes::{digest, seeded};
use crate::sys;

/// What one path is: everything that a copy which keeps all would keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Mode with the file type.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Seconds and nanoseconds; of directories left out unless asked for.
    pub mtime: Option<(i64, i64)>,
    /// Size and digest of a file's content, the target of a link, the number of a device.
    pub content: String,
    /// Extended attributes.
    pub xattrs: Vec<(String, Vec<u8>)>,
}

/// Which parts are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Kinds, permission of execution and content: what a copy by any program keeps.
    Content,
    /// Everything of [`Node`].
    All,
}

/// Every path below `root`, relative.
pub fn read(root: &Path, detail: Detail) -> BTreeMap<PathBuf, Node> {
    let mut all = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        for entry in entries {
            let path = entry.unwrap_or_else(|e| panic!("{}: {e}", folder.display())).path();
            let node = node(&path, detail);
            if node.mode & libc::S_IFMT == libc::S_IFDIR {
                folders.push(path.clone());
            }
            all.insert(path.strip_prefix(root).expect("below root").to_path_buf(), node);
        }
    }
    all
}

fn node(path: &Path, detail: Detail) -> Node {
    let fail = |e: std::io::Error| -> ! { panic!("{}: {e}", path.display()) };
    let meta = fs::symlink_metadata(path).unwrap_or_else(|e| fail(e));
    let kind = meta.file_type();
    let content = if kind.is_file() {
        let bytes = fs::read(path).unwrap_or_else(|e| fail(e));
        format!("{} bytes, {:016x}", bytes.len(), digest(&bytes))
    } else if kind.is_symlink() {
        fs::read_link(path).unwrap_or_else(|e| fail(e)).display().to_string()
    } else if kind.is_char_device() || kind.is_block_device() {
        format!("device {:x}", meta.rdev())
    } else {
        String::new()
    };
    if detail == Detail::Content {
        let mode = meta.mode() & (libc::S_IFMT | 0o100);
        return Node { mode, owner: (0, 0), mtime: None, content, xattrs: Vec::new() };
    }
    let xattrs = sys::listxattr(path).unwrap_or_default().into_iter();
    Node {
        mode: meta.mode(),
        owner: (meta.uid(), meta.gid()),
        mtime: Some((meta.mtime(), meta.mtime_nsec())),
        content,
        xattrs: xattrs.map(|name| (name.clone(), sys::getxattr(path, &name).unwrap_or_else(|e| fail(e)))).collect(),
    }
}

/// Fails with the first few paths that differ.
#[track_caller]
pub fn assert_same(got: &BTreeMap<PathBuf, Node>, want: &BTreeMap<PathBuf, Node>) {
    let mut wrong = Vec::new();
    for path in got.keys().chain(want.keys().filter(|path| !got.contains_key(*path))) {
        if got.get(path) != want.get(path) {
            wrong.push(format!("{}: {:?} instead of {:?}", path.display(), got.get(path), want.get(path)));
        }
    }
    assert!(wrong.is_empty(), "{} paths differ, first:\n{}", wrong.len(), wrong[..wrong.len().min(5)].join("\n"));
}

/// Makes `files` small files of 0.5 to 8 KiB in folders of a hundred.
pub fn make_small_files(root: &Path, files: usize) {
    for index in 0..files {
        let folder = root.join(format!("d{:02}", index / 100));
        if index % 100 == 0 {
            fs::create_dir_all(&folder).expect("a writable folder");
        }
        let length = 512 + (index * 7919) % 7681;
        fs::write(folder.join(format!("f{index:05}")), seeded(index as u64, length)).expect("a writable folder");
    }
}
