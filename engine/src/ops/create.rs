//! Create: a name and a new inode.

use pando_types::attr::{MODE_BITS, MODE_SETGID};
use pando_types::command::{Create, NewNode};
use pando_types::intent::{Step, Want};
use pando_types::limits::{LINKS_MAX, SYMLINK_BYTES_MAX};
use pando_types::{Errno, FileKind, Reply, SlotId};

use super::names::{self, Place};
use super::{OpError, acl};
use crate::keys::inode::{Head, Inode};
use crate::kv::View;
use crate::txn::Txn;

/// ENOENT, ENOTDIR, EEXIST, EMLINK, ENOSPC; EINVAL for what no client should send.
pub(super) fn create<V: View>(txn: &mut Txn<'_, V>, create: &Create) -> Result<Reply, OpError> {
    let place = Place { parent: create.parent, name: &create.name };
    let parent = names::directory(txn, create.parent)?;
    if names::entry(txn, place)?.is_some() {
        return Err(Errno::EEXIST.into());
    }
    let slot = check(create, &parent)?;
    let inherited = acl::inherit(txn, create, &parent)?;
    let id = match txn.owns(slot) {
        true => txn.next_inode(slot)?.ok_or(Errno::ENOSPC)?,
        false => txn.abroad.new_directory(slot).ok_or_else(|| OpError::Wants(vec![Want::NewDirectory(slot)]))?,
    };

    let is_dir = create.node.kind() == FileKind::Directory;
    let mut inode = new_inode(txn, create, &parent);
    inode.head.mode |= inherited.mode;
    let kind = inode.head.kind;
    let head = if txn.owns(slot) {
        txn.insert(id, inode)?;
        inherited.store(txn, id)?;
        names::child(txn, id)?
    } else {
        let head = inode.head;
        txn.abroad.step(Step::InsertDirectory { inode: id, record: inode.encode(), xattrs: inherited.xattrs() });
        head
    };
    names::point(txn, place, id, kind);
    names::touch(txn, create.parent, 1, i32::from(is_dir))?;
    Ok(Reply::Inode(head.attr(id)))
}

/// The slot of the new inode, once everything about it is allowed.
fn check(create: &Create, parent: &Head) -> Result<SlotId, Errno> {
    match &create.node {
        NewNode::Directory { slot } if slot.0 >= SlotId::COUNT => Err(Errno::EINVAL),
        NewNode::Directory { .. } if parent.nlink >= LINKS_MAX => Err(Errno::EMLINK),
        NewNode::Directory { slot } => Ok(*slot),
        NewNode::Symlink { target } if target.is_empty() => Err(Errno::ENOENT),
        NewNode::Symlink { target } if target.len() > SYMLINK_BYTES_MAX => Err(Errno::ENAMETOOLONG),
        NewNode::Symlink { target } if target.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(create.parent.slot()),
    }
}

/// The inode but for its permission bits.
fn new_inode<V: View>(txn: &Txn<'_, V>, create: &Create, parent: &Head) -> Inode {
    let kind = create.node.kind();
    let mut head = Head::new(kind, txn.now(), txn.generation());
    head.uid = create.uid;
    head.gid = create.gid;
    head.parent = create.parent;
    if parent.mode & MODE_SETGID != 0 {
        head.gid = parent.gid;
        head.mode |= if kind == FileKind::Directory { MODE_SETGID } else { 0 };
    }
    let mut tail = Vec::new();
    match &create.node {
        NewNode::Directory { .. } => head.nlink = 2,
        NewNode::Symlink { target } => tail.clone_from(target),
        NewNode::CharDevice { rdev } | NewNode::BlockDevice { rdev } => head.rdev = *rdev,
        NewNode::File | NewNode::Fifo | NewNode::Socket => {}
    }
    head.size = tail.len() as u64;
    head.mode &= MODE_BITS;
    Inode { head, tail }
}
