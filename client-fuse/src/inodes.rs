//! What the kernel knows of each inode: how often it looked it up, and what it was last told.
//!
//! Invariants: an entry lives exactly as long as the kernel refers to its inode, so the table is bounded by the kernel's own
//! inode cache; what is remembered here is a hint that is never older than the kernel's own.

use std::time::{Duration, Instant};

use dashmap::DashMap;
use pando_types::{Attr, InodeId, Timestamp, XattrName};

/// As long as attributes are cached: the kernel asks for these at every exec, permission check or truncation.
const ABSENT_TTL: Duration = Duration::from_secs(1);

/// Extended attributes that the kernel itself asks for, and that are nearly always absent.
const ASKED_BY_KERNEL: [&[u8]; 3] = [b"security.capability", b"system.posix_acl_access", b"system.posix_acl_default"];

/// The table.
pub(crate) struct Inodes(DashMap<InodeId, Known>);

struct Known {
    lookups: u64,
    parent: Option<InodeId>,
    size: u64,
    mtime: Timestamp,
    version: u64,
    absent_since: [Option<Instant>; ASKED_BY_KERNEL.len()],
    xattr_changes: u64,
    /// Attributes of a directory that was removed here: it may be open, or be somebody's working directory.
    removed: Option<Box<Attr>>,
}

impl Known {
    fn new(lookups: u64) -> Known {
        Known {
            lookups,
            parent: None,
            size: 0,
            mtime: Timestamp(0),
            version: 0,
            absent_since: [None; 3],
            xattr_changes: 0,
            removed: None,
        }
    }

    fn note(&mut self, attr: &Attr) {
        (self.size, self.mtime, self.version) = (attr.size, attr.mtime, attr.version);
    }
}

impl Inodes {
    /// A table with the root, which the kernel knows without having looked it up.
    pub(crate) fn new() -> Inodes {
        let table = DashMap::new();
        table.insert(InodeId::ROOT, Known::new(1));
        Inodes(table)
    }

    /// The kernel is about to be told of an inode by a name in `parent`: one more lookup.
    pub(crate) fn looked_up(&self, attr: &Attr, parent: InodeId) {
        let mut known = self.0.entry(attr.inode).or_insert_with(|| Known::new(0));
        known.lookups += 1;
        known.parent = Some(parent);
        known.note(attr);
    }

    /// The kernel is about to be told attributes.
    pub(crate) fn told(&self, attr: &Attr) {
        if let Some(mut known) = self.0.get_mut(&attr.inode) {
            known.note(attr);
        }
    }

    /// Whether the size or content that the kernel was last told is not this; true for an unknown inode.
    pub(crate) fn differs(&self, attr: &Attr) -> bool {
        self.0.get(&attr.inode).is_none_or(|k| (k.size, k.mtime, k.version) != (attr.size, attr.mtime, attr.version))
    }

    /// A directory has been removed; `attr` is what it was before.
    pub(crate) fn remove(&self, attr: Attr) {
        if let Some(mut known) = self.0.get_mut(&attr.inode) {
            known.removed = Some(Box::new(Attr { nlink: 0, size: 0, ..attr }));
        }
    }

    /// What a directory that was removed here, and that the kernel still refers to, looks like.
    pub(crate) fn removed(&self, inode: InodeId) -> Option<Attr> {
        self.0.get(&inode).and_then(|k| k.removed.as_deref().cloned())
    }

    /// The kernel takes back so many lookups.
    pub(crate) fn forget(&self, inode: InodeId, lookups: u64) {
        if inode == InodeId::ROOT {
            return;
        }
        self.0.remove_if_mut(&inode, |_, known| {
            known.lookups = known.lookups.saturating_sub(lookups);
            known.lookups == 0
        });
    }

    /// The directory in which a directory was last seen.
    pub(crate) fn parent(&self, directory: InodeId) -> Option<InodeId> {
        self.0.get(&directory).and_then(|k| k.parent)
    }

    /// Whether an attribute that the kernel keeps asking for was found absent a moment ago.
    pub(crate) fn is_absent(&self, inode: InodeId, name: &XattrName) -> bool {
        let Some(at) = asked(name) else { return false };
        let since = self.0.get(&inode).and_then(|k| k.absent_since[at]);
        since.is_some_and(|s| s.elapsed() < ABSENT_TTL)
    }

    /// To be given to [`Inodes::found_absent`]; taken before the question is asked.
    pub(crate) fn xattr_changes(&self, inode: InodeId) -> u64 {
        self.0.get(&inode).map_or(0, |k| k.xattr_changes)
    }

    /// An attribute was found absent, if no change began since `changes` was taken.
    pub(crate) fn found_absent(&self, inode: InodeId, name: &XattrName, changes: u64) {
        let Some(at) = asked(name) else { return };
        if let Some(mut known) = self.0.get_mut(&inode).filter(|k| k.xattr_changes == changes) {
            known.absent_since[at] = Some(Instant::now());
        }
    }

    /// Attributes are being changed here: called before and after.
    pub(crate) fn xattrs_change(&self, inode: InodeId) {
        if let Some(mut known) = self.0.get_mut(&inode) {
            known.absent_since = [None; 3];
            known.xattr_changes += 1;
        }
    }

    #[cfg(test)]
    pub(crate) fn lookups(&self, inode: InodeId) -> u64 {
        self.0.get(&inode).map_or(0, |k| k.lookups)
    }
}

fn asked(name: &XattrName) -> Option<usize> {
    ASKED_BY_KERNEL.iter().position(|n| *n == name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::tests::file_attr;

    #[test]
    fn an_inode_is_known_until_every_lookup_is_taken_back() {
        let inodes = Inodes::new();
        let attr = file_attr(7);
        inodes.looked_up(&attr, InodeId::ROOT);
        inodes.looked_up(&attr, InodeId::ROOT);
        inodes.forget(attr.inode, 1);
        assert!(!inodes.differs(&attr));
        inodes.forget(attr.inode, 1);
        assert!(inodes.differs(&attr));
        assert_eq!(inodes.0.len(), 1, "the root stays");
        inodes.forget(InodeId::ROOT, 99);
        assert_eq!(inodes.0.len(), 1);
    }

    #[test]
    fn absence_is_forgotten_with_any_change_here() {
        let inodes = Inodes::new();
        let name = XattrName::new(b"security.capability").unwrap();
        let before = inodes.xattr_changes(InodeId::ROOT);
        inodes.found_absent(InodeId::ROOT, &name, before);
        assert!(inodes.is_absent(InodeId::ROOT, &name));
        inodes.xattrs_change(InodeId::ROOT);
        assert!(!inodes.is_absent(InodeId::ROOT, &name));
        // An answer from before the change says nothing about the time after it.
        inodes.found_absent(InodeId::ROOT, &name, before);
        assert!(!inodes.is_absent(InodeId::ROOT, &name));
        let other = XattrName::new(b"user.x").unwrap();
        inodes.found_absent(InodeId::ROOT, &other, inodes.xattr_changes(InodeId::ROOT));
        assert!(!inodes.is_absent(InodeId::ROOT, &other), "only what the kernel asks for by itself");
    }
}
