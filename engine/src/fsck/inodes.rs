//! An inode against its own records: entries, extents, inline data, xattrs, back-links, orphan.

use std::ops::ControlFlow;

use pando_types::limits::{FILE_BYTES_MAX, INLINE_BYTES_MAX, SYMLINK_BYTES_MAX, XATTRS_PER_INODE_MAX};
use pando_types::{Extent, FileKind, InodeId};

use super::Check;
use crate::acl::{ACCESS_XATTR, Acl, DEFAULT_XATTR};
use crate::error::{Corrupt, EngineError};
use crate::keys::dentry::{self, Dentry};
use crate::keys::inode::{HAS_ACCESS_ACL, HAS_DEFAULT_ACL, Inode};
use crate::keys::{PREFIX_BYTES, after, backlink, extent, orphan, xattr};
use crate::kv::View;

impl<V: View> Check<'_, V> {
    pub(super) fn inode(&mut self, id: InodeId, value: &[u8]) -> Result<(), EngineError> {
        let inode = Inode::decode(value)?;
        let head = inode.head;
        self.report.inodes += 1;
        self.bytes = self.bytes.saturating_add(head.allocated);
        self.found.inodes += 1;
        self.found.bytes = self.found.bytes.saturating_add(head.allocated);
        let next = self.next;
        let slot_known = id.slot().0 == self.slot;
        self.expect(slot_known, || format!("inode {id} lies in another slot than its id says"));
        self.expect(id.sequence() < next, || format!("inode {id} is not below its slot's counter, {next}"));
        let generation = self.state.map_or(head.birth, |state| state.generation);
        self.expect(head.birth <= generation, || {
            format!("inode {id} was born in generation {}, which has not begun", head.birth.0)
        });
        match head.kind {
            FileKind::Directory => self.directory(id, &inode)?,
            FileKind::File => self.file(id, &inode)?,
            FileKind::Symlink => {
                let length = inode.tail.len();
                let fits =
                    head.size == length as u64 && (1..=SYMLINK_BYTES_MAX).contains(&length) && head.allocated == 0;
                self.expect(fits, || format!("symbolic link {id} has {length} bytes of target and size {}", head.size));
            }
            _ => {
                let empty = head.size == 0 && head.allocated == 0 && inode.tail.is_empty();
                self.expect(empty, || format!("special file {id} has content"));
            }
        }
        if !head.is_dir() {
            self.links(id, &inode)?;
        }
        self.xattrs(id, &inode)
    }

    fn directory(&mut self, id: InodeId, inode: &Inode) -> Result<(), EngineError> {
        let head = inode.head;
        self.directories.set(id.0);
        if id != InodeId::ROOT {
            self.link(id, head.parent);
        }
        self.expect(head.allocated == 0 && inode.tail.is_empty(), || format!("directory {id} has content of its own"));
        let prefix = dentry::prefix(id);
        let (mut entries, mut subdirectories) = (0u64, 0u64);
        self.view.scan(&prefix, &after(&prefix), &mut |_, value| {
            entries += 1;
            subdirectories += u64::from(Dentry::decode(value).is_ok_and(|dentry| dentry.kind == FileKind::Directory));
            ControlFlow::Continue(())
        })?;
        self.expect(head.size == entries, || format!("directory {id} has size {} and {entries} entries", head.size));
        self.expect(u64::from(head.nlink) == 2 + subdirectories, || {
            format!("directory {id} has {} links and {subdirectories} subdirectories", head.nlink)
        });
        let root = (id == InodeId::ROOT) == (head.parent == id);
        self.expect(root, || format!("directory {id} has parent {}", head.parent));
        Ok(())
    }

    fn file(&mut self, id: InodeId, inode: &Inode) -> Result<(), EngineError> {
        let head = inode.head;
        let inline = inode.tail.len();
        self.expect(head.size <= FILE_BYTES_MAX, || format!("file {id} has size {}", head.size));
        self.expect(inline <= INLINE_BYTES_MAX && inline as u64 <= head.size, || {
            format!("file {id} has {inline} bytes of inline data and size {}", head.size)
        });
        let prefix = extent::prefix(id);
        let mut extents: Vec<Result<Extent, Corrupt>> = Vec::new();
        let mut allocated = inline as u64;
        let mut end = 0;
        let mut from = prefix.clone();
        // In pages, so that a file of any size fits in memory.
        while inode.has_extents() {
            extents.clear();
            self.view.scan(&from, &after(&prefix), &mut |key, value| {
                extents.push(extent::decode(key, value).map(|parts| parts.1));
                if extents.len() == 4096 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            for extent in extents.drain(..) {
                let extent = extent?;
                self.extent(id, inode, &extent, end);
                allocated = allocated.saturating_add(extent.length);
                end = extent.end();
                from = [&extent::key(id, extent.offset)[..], &[0]].concat();
            }
            if self.view.last(&from, &after(&prefix))?.is_none() {
                break;
            }
        }
        self.expect(head.allocated == allocated, || {
            format!("file {id} says it occupies {} bytes, and occupies {allocated}", head.allocated)
        });
        Ok(())
    }

    fn extent(&mut self, id: InodeId, inode: &Inode, extent: &Extent, end: u64) {
        let (at, size) = (extent.offset, inode.head.size);
        self.expect(at >= end, || format!("file {id} has overlapping extents at {at}"));
        self.expect(extent.end() <= size, || format!("file {id} has an extent at {at} beyond its size, {size}"));
        let covered = inode.tail.iter().skip(at as usize).take(extent.length as usize);
        let hidden = covered.copied().all(|byte| byte == 0);
        self.expect(hidden, || format!("file {id} has inline data under its extent at {at}"));
        let live = self.live.entry(extent.segment).or_default();
        *live = live.saturating_add(extent.length);
    }

    /// Back-links, or the orphan record, of what is no directory.
    fn links(&mut self, id: InodeId, inode: &Inode) -> Result<(), EngineError> {
        let nlink = inode.head.nlink;
        let mut links = 0u64;
        if nlink > 1 {
            let prefix = backlink::prefix(id);
            self.view.scan(&prefix, &after(&prefix), &mut |_, _| {
                links += 1;
                ControlFlow::Continue(())
            })?;
        }
        self.expect(links == u64::from(nlink.saturating_sub(1)), || {
            format!("inode {id} has {nlink} links and {links} back-links")
        });
        let orphaned = nlink > 0 || self.view.get(&orphan::key(id))?.is_some();
        self.expect(orphaned, || format!("inode {id} has no links and no orphan record"));
        if nlink > 0 {
            self.link(id, inode.head.parent);
        }
        Ok(())
    }

    /// The inode's first link is a name in this directory.
    fn link(&mut self, id: InodeId, parent: InodeId) {
        if self.slots.has(parent.slot()) {
            self.linked.set(id.0);
        } else {
            self.report.links_from_others.add(id, parent);
        }
    }

    fn xattrs(&mut self, id: InodeId, inode: &Inode) -> Result<(), EngineError> {
        let head = inode.head;
        let (mut count, mut flags, mut readable) = (0u64, 0, true);
        let prefix = xattr::prefix(id);
        // One that says it has none is found out by its first attribute.
        let end = if head.xattrs == 0 { prefix.clone() } else { after(&prefix) };
        self.view.scan(&prefix, &end, &mut |key, value| {
            count += 1;
            let acl = match &key[PREFIX_BYTES..] {
                ACCESS_XATTR => HAS_ACCESS_ACL,
                DEFAULT_XATTR => HAS_DEFAULT_ACL,
                _ => 0,
            };
            flags |= acl;
            readable &= match xattr::decode(value.to_vec()) {
                Ok(bytes) => acl == 0 || matches!(Acl::decode(&bytes), Ok(Some(_))),
                Err(_) => false,
            };
            ControlFlow::Continue(())
        })?;
        self.expect(count == u64::from(head.xattrs) && count <= XATTRS_PER_INODE_MAX as u64, || {
            format!("inode {id} has {count} xattrs and says {}", head.xattrs)
        });
        self.expect(flags == head.flags, || format!("inode {id} has ACL flags {} and ACLs {flags}", head.flags));
        self.expect(readable, || format!("inode {id} has an xattr or ACL that cannot be read"));
        Ok(())
    }
}
