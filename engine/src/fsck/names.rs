//! Names against inodes: each dentry means an inode of its kind, each linked inode has its names, every directory hangs
//! under the root.

use std::collections::BTreeSet;

use pando_types::{FileKind, InodeId};

use super::Check;
use super::bits::Bits;
use crate::error::{Corrupt, EngineError};
use crate::keys::dentry::{self, Dentry};
use crate::keys::inode::{self, Head, Inode};
use crate::keys::{KeyKind, backlink, owner};
use crate::kv::{KvError, View};

impl<V: View> Check<'_, V> {
    /// The fixed part of an inode; a damaged one counts as absent here, and is told where the pass meets it.
    fn head(&self, id: InodeId) -> Result<Option<Head>, KvError> {
        Ok(self.view.get(&inode::key(id))?.and_then(|value| Head::decode(&value).ok().map(|(head, _)| head)))
    }

    /// The inode whose records the pass is in, read once.
    fn owner(&mut self, id: InodeId) -> Result<Option<&Inode>, KvError> {
        if self.owner.as_ref().is_none_or(|(known, _)| *known != id) {
            let value = self.view.get(&inode::key(id))?;
            self.owner = Some((id, value.and_then(|value| Inode::decode(&value).ok())));
        }
        Ok(self.owner.as_ref().and_then(|(_, inode)| inode.as_ref()))
    }

    pub(super) fn dentry(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        let (parent, name) = dentry::parse(key)?;
        let dentry = Dentry::decode(value)?;
        let id = dentry.inode;
        if !self.owner(parent)?.is_some_and(|inode| inode.head.is_dir()) {
            return Err(Corrupt(format!("name {name} lies in inode {parent}, which is no directory")).into());
        }
        if !self.slots.has(id.slot()) {
            self.report.names_of_others.add(id, parent);
            return Ok(());
        }
        let Some(head) = self.head(id)? else {
            return Err(
                Corrupt(format!("name {name} in directory {parent} means inode {id}, which does not exist")).into()
            );
        };
        self.expect(head.kind == dentry.kind, || {
            format!("name {name} in directory {parent} says another kind than inode {id}")
        });
        self.expect(id != InodeId::ROOT, || format!("name {name} in directory {parent} means the root directory"));
        if !head.is_dir() && head.nlink > 1 && self.view.get(&backlink::key(id, parent, &name))?.is_some() {
            return Ok(());
        }
        self.expect(head.nlink > 0, || {
            format!("name {name} in directory {parent} means inode {id}, which has no links")
        });
        self.expect(head.parent == parent, || {
            format!("name {name} in directory {parent} means inode {id}, whose parent is {}", head.parent)
        });
        let first = self.named.set(id.0);
        self.expect(first, || {
            format!("name {name} in directory {parent} is a further one of inode {id}, without back-link")
        });
        Ok(())
    }

    /// An extent or xattr: its inode knows of such records, and counted them where the pass met it.
    pub(super) fn owned(&mut self, kind: KeyKind, key: &[u8]) -> Result<(), EngineError> {
        let (id, _) = owner(key)?;
        let owner = self.owner(id)?;
        let known = match kind {
            KeyKind::Extent => owner.is_some_and(|inode| inode.head.kind == FileKind::File && inode.has_extents()),
            _ => owner.is_some_and(|inode| inode.head.xattrs > 0),
        };
        self.expect(known, || format!("a record of kind {kind:?} belongs to inode {id}, which does not know of any"));
        Ok(())
    }

    pub(super) fn backlink(&mut self, key: &[u8]) -> Result<(), EngineError> {
        let (id, parent, name) = backlink::parse(key)?;
        let known = self.owner(id)?.is_some_and(|inode| !inode.head.is_dir() && inode.head.nlink > 1);
        self.expect(known, || format!("a back-link belongs to inode {id}, which does not know of any"));
        if !self.slots.has(parent.slot()) {
            self.report.links_from_others.add(id, parent);
            return Ok(());
        }
        let value = self.view.get(&dentry::key(parent, &name))?;
        let meant = value.map(|value| Dentry::decode(&value)).transpose()?.map(|dentry| dentry.inode);
        self.expect(meant == Some(id), || {
            format!("inode {id} has a back-link to name {name} in directory {parent}, which is not its")
        });
        Ok(())
    }

    pub(super) fn end_names(&mut self) -> Result<(), KvError> {
        let nameless: Vec<u64> =
            self.linked.iter().filter(|id| !self.named.has(*id)).take(super::PROBLEMS_MAX).collect();
        for id in nameless {
            self.problem(format!("inode {id} has links and no name"));
        }
        let directories = std::mem::take(&mut self.directories);
        let mut reached = Bits::default();
        reached.set(InodeId::ROOT.0);
        for id in directories.iter() {
            let mut path = BTreeSet::new();
            let mut at = id;
            while !reached.has(at) && self.slots.has(InodeId(at).slot()) && path.insert(at) {
                match self.head(InodeId(at))? {
                    Some(head) if head.is_dir() => at = head.parent.0,
                    _ => break,
                }
            }
            // Above another shard's directory that shard looks.
            let hangs = reached.has(at) || !self.slots.has(InodeId(at).slot());
            self.expect(hangs, || format!("directory {id} does not hang under the root"));
            for id in path {
                reached.set(id);
            }
        }
        self.directories = directories;
        Ok(())
    }
}
