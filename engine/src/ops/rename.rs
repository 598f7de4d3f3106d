//! Rename: a name moves, replaces, or is exchanged. The order of checks is Linux's (`do_renameat2`, `vfs_rename`).

use pando_types::command::{Rename, RenameMode};
use pando_types::limits::LINKS_MAX;
use pando_types::{Errno, InodeId, Reply, SessionId};

use super::names::{self, Place};
use super::{OpError, unlink};
use crate::keys::inode::Head;
use crate::kv::View;
use crate::txn::Txn;

/// An inode under one of the two names.
#[derive(Clone, Copy)]
struct Named<'a> {
    place: Place<'a>,
    id: InodeId,
    head: Head,
}

/// ENOENT, ENOTDIR, EISDIR, EEXIST, ENOTEMPTY, EINVAL (into its own subtree), EMLINK, ELOOP.
pub(super) fn rename<V: View>(txn: &mut Txn<'_, V>, session: SessionId, rename: &Rename) -> Result<Reply, OpError> {
    let from = Place { parent: rename.parent, name: &rename.name };
    let to = Place { parent: rename.new_parent, name: &rename.new_name };
    names::reach(txn, to)?;
    names::directory(txn, from.parent)?;
    names::directory(txn, to.parent)?;
    let (id, _) = names::entry(txn, from)?.ok_or(Errno::ENOENT)?;
    let source = named(txn, from, id)?;
    let target = names::entry(txn, to)?.map(|(id, _)| named(txn, to, id)).transpose()?;
    match (rename.mode, target) {
        (RenameMode::NoReplace, Some(_)) => Err(Errno::EEXIST.into()),
        (RenameMode::Exchange, None) => Err(Errno::ENOENT.into()),
        (RenameMode::Exchange, Some(target)) => exchange(txn, source, target),
        (_, target) => replace(txn, session, rename.unheld, source, to, target),
    }
}

fn named<'a, V: View>(txn: &mut Txn<'_, V>, place: Place<'a>, id: InodeId) -> Result<Named<'a>, OpError> {
    Ok(Named { place, id, head: names::linked(txn, id)? })
}

/// Refuses a directory that would come to lie in itself, as `errno`.
fn refuse_cycle<V: View>(txn: &mut Txn<'_, V>, moved: Named<'_>, to: InodeId, errno: Errno) -> Result<(), OpError> {
    let apart = !moved.head.is_dir() || moved.place.parent == to || !names::is_within(txn, to, moved.id)?;
    if apart { Ok(()) } else { Err(errno.into()) }
}

fn exchange<V: View>(txn: &mut Txn<'_, V>, source: Named<'_>, target: Named<'_>) -> Result<Reply, OpError> {
    let (from, to) = (source.place, target.place);
    refuse_cycle(txn, source, to.parent, Errno::EINVAL)?;
    refuse_cycle(txn, target, from.parent, Errno::EINVAL)?;
    let reply = Reply::Renamed { inode: source.id, replaced: Some(target.id), held: false };
    if source.id == target.id {
        return Ok(reply);
    }
    // What each directory gains in subdirectories.
    let gain = i32::from(source.head.is_dir()) - i32::from(target.head.is_dir());
    if from.parent != to.parent && gain != 0 {
        let gainer = if gain > 0 { to.parent } else { from.parent };
        refuse_full(txn, gainer)?;
    }
    names::point(txn, from, target.id, target.head.kind);
    names::point(txn, to, source.id, source.head.kind);
    names::move_link(txn, source.id, from, to)?;
    names::move_link(txn, target.id, to, from)?;
    if from.parent == to.parent {
        names::touch(txn, from.parent, 0, 0)?;
    } else {
        names::touch(txn, from.parent, 0, -gain)?;
        names::touch(txn, to.parent, 0, gain)?;
    }
    Ok(reply)
}

fn refuse_full<V: View>(txn: &mut Txn<'_, V>, directory: InodeId) -> Result<(), OpError> {
    if names::directory(txn, directory)?.nlink >= LINKS_MAX { Err(Errno::EMLINK.into()) } else { Ok(()) }
}

fn replace<V: View>(
    txn: &mut Txn<'_, V>,
    session: SessionId,
    unheld: Option<InodeId>,
    source: Named<'_>,
    to: Place<'_>,
    target: Option<Named<'_>>,
) -> Result<Reply, OpError> {
    let from = source.place;
    refuse_cycle(txn, source, to.parent, Errno::EINVAL)?;
    if let Some(target) = target {
        // A target above the source is a directory that is not empty.
        refuse_cycle(txn, target, from.parent, Errno::ENOTEMPTY)?;
        if target.id == source.id {
            return Ok(Reply::Renamed { inode: source.id, replaced: None, held: false });
        }
        match (source.head.is_dir(), target.head.is_dir()) {
            (true, false) => return Err(Errno::ENOTDIR.into()),
            (false, true) => return Err(Errno::EISDIR.into()),
            (true, true) if target.head.size > 0 => return Err(Errno::ENOTEMPTY.into()),
            _ => {}
        }
    }
    let moves_dir = source.head.is_dir();
    let replaces = target.is_some();
    if moves_dir && !replaces && from.parent != to.parent {
        refuse_full(txn, to.parent)?;
    }

    let mut held = false;
    if let Some(target) = target {
        if target.head.is_dir() {
            unlink::remove_directory(txn, target.id)?;
        } else {
            held = names::drop_link(txn, target.id, to, session, unheld)?;
        }
    }
    names::unpoint(txn, from);
    names::point(txn, to, source.id, source.head.kind);
    names::move_link(txn, source.id, from, to)?;
    // The new parent gains a directory with the source, and loses one with the target.
    names::touch(txn, from.parent, -1, -i32::from(moves_dir))?;
    names::touch(txn, to.parent, i64::from(!replaces), i32::from(moves_dir && !replaces))?;
    Ok(Reply::Renamed { inode: source.id, replaced: target.map(|target| target.id), held })
}
