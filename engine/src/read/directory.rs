//! Names: lookup, pages of a directory, and `..`.

use std::ops::ControlFlow;

use pando_types::limits::DIR_ENTRIES_PER_PAGE_MAX;
use pando_types::request::{DirectoryEntry, DirectoryPage};
use pando_types::{Attr, Errno, FileName, InodeId};

use super::inode::{getattr, head};
use crate::error::{Corrupt, ReadError};
use crate::keys::dentry::{self, Dentry};
use crate::keys::inode::{self, Head};
use crate::keys::slots::Slots;
use crate::keys::{PREFIX_BYTES, after};
use crate::kv::View;

/// What is found of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// It is of this shard.
    Here(Attr),
    /// It is of another shard.
    Elsewhere(InodeId),
}

/// What a name means. An absent name is ENOENT, also under what is no directory: it costs one look at a filter.
pub fn lookup(view: &impl View, slots: &Slots, parent: InodeId, name: &FileName) -> Result<Found, ReadError> {
    let value = view.get(&dentry::key(parent, name))?.ok_or(Errno::ENOENT)?;
    let child = Dentry::decode(&value)?.inode;
    match find(view, slots, child) {
        Err(ReadError::Refused(_)) => Err(dangling(parent, name, child).into()),
        result => result,
    }
}

fn find(view: &impl View, slots: &Slots, inode: InodeId) -> Result<Found, ReadError> {
    if slots.has(inode.slot()) { getattr(view, inode).map(Found::Here) } else { Ok(Found::Elsewhere(inode)) }
}

fn dangling(parent: InodeId, name: &FileName, child: InodeId) -> Corrupt {
    Corrupt(format!("name {name} in directory {parent} means inode {child}, which does not exist"))
}

/// A page of a directory in name order, at most `limit` entries. ENOENT, ENOTDIR.
pub fn readdir(
    view: &impl View,
    slots: &Slots,
    directory: InodeId,
    after_name: Option<&FileName>,
    plus: bool,
    limit: u32,
) -> Result<DirectoryPage, ReadError> {
    if !head(view, directory)?.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    let limit = (limit as usize).clamp(1, DIR_ENTRIES_PER_PAGE_MAX);
    let prefix = dentry::prefix(directory);
    // A name has no NUL, so that this is the first possible key after the name.
    let from = after_name.map_or_else(|| prefix.clone(), |name| [&dentry::key(directory, name)[..], &[0]].concat());
    let mut page = DirectoryPage { entries: Vec::new(), end: true };
    let mut damage: Option<Corrupt> = None;
    view.scan(&from, &after(&prefix), &mut |key, value| {
        if page.entries.len() == limit {
            page.end = false;
            return ControlFlow::Break(());
        }
        match entry(key, value) {
            Ok(entry) => page.entries.push(entry),
            Err(error) => damage = Some(error),
        }
        if damage.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if let Some(error) = damage {
        return Err(error.into());
    }
    if plus {
        add_attributes(view, slots, directory, &mut page)?;
    }
    Ok(page)
}

fn entry(key: &[u8], value: &[u8]) -> Result<DirectoryEntry, Corrupt> {
    let name = FileName::new(&key[PREFIX_BYTES..]).map_err(|_| Corrupt("a directory has an invalid name".into()))?;
    let dentry = Dentry::decode(value)?;
    Ok(DirectoryEntry { name, inode: dentry.inode, kind: dentry.kind, attr: None })
}

fn add_attributes(
    view: &impl View,
    slots: &Slots,
    directory: InodeId,
    page: &mut DirectoryPage,
) -> Result<(), ReadError> {
    let own = |entry: &&mut DirectoryEntry| slots.has(entry.inode.slot());
    let mut entries: Vec<&mut DirectoryEntry> = page.entries.iter_mut().filter(own).collect();
    let keys: Vec<Vec<u8>> = entries.iter().map(|entry| inode::key(entry.inode)).collect();
    for (entry, value) in entries.iter_mut().zip(view.multi_get(&keys)?) {
        let value = value.ok_or_else(|| dangling(directory, &entry.name, entry.inode))?;
        entry.attr = Some(Head::decode(&value)?.0.attr(entry.inode));
    }
    Ok(())
}

/// The parent of a directory; the root's is itself. ENOENT, ENOTDIR.
pub fn parent(view: &impl View, slots: &Slots, directory: InodeId) -> Result<Found, ReadError> {
    let head = head(view, directory)?;
    if head.is_dir() { find(view, slots, head.parent) } else { Err(Errno::ENOTDIR.into()) }
}
