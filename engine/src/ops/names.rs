//! Names and links, shared by the verbs: directories looked up and touched, links added, moved and dropped. What is of another
//! shard is taken from what that has told, and left to it.

use pando_types::intent::{Step, Want};
use pando_types::{Errno, FileKind, FileName, InodeId, SessionId};

use super::{OpError, orphan};
use crate::error::{Corrupt, EngineError};
use crate::keys::dentry::{self, Dentry};
use crate::keys::inode::Head;
use crate::keys::{after, backlink};
use crate::kv::View;
use crate::txn::Txn;

/// Where a dentry is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Place<'a> {
    pub parent: InodeId,
    pub name: &'a FileName,
}

/// An inode that nobody else is about to change, if it exists, of whichever shard.
pub(super) fn head<V: View>(txn: &mut Txn<'_, V>, id: InodeId) -> Result<Option<Head>, OpError> {
    if !txn.owns(id.slot()) {
        return txn.abroad.inode(id).ok_or_else(|| OpError::Wants(vec![Want::Inode(id)]));
    }
    if txn.locks().is_inode_locked(id) { Err(OpError::Busy) } else { Ok(txn.head(id)?) }
}

/// A directory that exists: ENOENT (it was removed), ENOTDIR. One of another shard comes with a [`reach`]ed place in it.
pub(super) fn directory<V: View>(txn: &mut Txn<'_, V>, id: InodeId) -> Result<Head, OpError> {
    let head = head(txn, id)?.ok_or(Errno::ENOENT)?;
    if head.is_dir() { Ok(head) } else { Err(Errno::ENOTDIR.into()) }
}

/// Asks for a place of another shard, unless it is known.
pub(super) fn reach<V: View>(txn: &Txn<'_, V>, place: Place<'_>) -> Result<(), OpError> {
    if txn.owns(place.parent.slot()) || txn.abroad.name(place.parent, place.name).is_some() {
        return Ok(());
    }
    Err(OpError::Wants(vec![Want::Name { parent: place.parent, name: place.name.clone() }]))
}

/// What a name means.
pub(super) fn entry<V: View>(txn: &Txn<'_, V>, place: Place<'_>) -> Result<Option<(InodeId, FileKind)>, OpError> {
    reach(txn, place)?;
    if let Some(entry) = txn.abroad.name(place.parent, place.name) {
        return Ok(entry);
    }
    if txn.locks().is_name_locked(place.parent, place.name) {
        return Err(OpError::Busy);
    }
    let dentry = txn.get(&dentry::key(place.parent, place.name))?.map(|value| Dentry::decode(&value)).transpose()?;
    Ok(dentry.map(|dentry| (dentry.inode, dentry.kind)))
}

/// An inode of this shard that must exist.
pub(super) fn child<V: View>(txn: &mut Txn<'_, V>, id: InodeId) -> Result<Head, EngineError> {
    txn.head(id)?.ok_or_else(|| Corrupt(format!("a name means inode {id}, which does not exist")).into())
}

/// The inode of a name, whose links are about to change.
pub(super) fn linked<V: View>(txn: &mut Txn<'_, V>, id: InodeId) -> Result<Head, OpError> {
    if txn.owns(id.slot()) {
        let locked = txn.locks().is_inode_locked(id) || txn.locks().is_place_locked(id);
        return if locked { Err(OpError::Busy) } else { Ok(child(txn, id)?) };
    }
    let known = txn.abroad.inode(id).ok_or_else(|| OpError::Wants(vec![Want::Inode(id)]))?;
    // A name read before the inode was locked: it may have been changed since.
    known.ok_or(OpError::Busy)
}

/// Writes a dentry, over whatever was there. The directory's size is for [`touch`].
pub(super) fn point<V: View>(txn: &mut Txn<'_, V>, place: Place<'_>, inode: InodeId, kind: FileKind) {
    if !txn.owns(place.parent.slot()) {
        return txn.abroad.step(Step::Point { parent: place.parent, name: place.name.clone(), inode, kind });
    }
    let dentry = Dentry { inode, kind, birth: txn.generation() };
    txn.put(dentry::key(place.parent, place.name), dentry.encode());
}

/// Removes a dentry. The directory's size is for [`touch`].
pub(super) fn unpoint<V: View>(txn: &mut Txn<'_, V>, place: Place<'_>) {
    if !txn.owns(place.parent.slot()) {
        return txn.abroad.step(Step::Unpoint { parent: place.parent, name: place.name.clone() });
    }
    txn.delete(dentry::key(place.parent, place.name));
}

/// A directory's names have changed: by so many entries, and so many subdirectories.
pub(super) fn touch<V: View>(
    txn: &mut Txn<'_, V>,
    id: InodeId,
    entries: i64,
    subdirectories: i32,
) -> Result<(), EngineError> {
    if !txn.owns(id.slot()) {
        txn.abroad.step(Step::Touch { directory: id, entries, subdirectories });
        return Ok(());
    }
    let now = txn.now();
    let head = &mut txn.inode_mut(id)?.head;
    let wrong = || Corrupt(format!("directory {id} has fewer entries or links than it loses"));
    head.size = head.size.checked_add_signed(entries).ok_or_else(wrong)?;
    head.nlink = head.nlink.checked_add_signed(subdirectories).ok_or_else(wrong)?;
    head.mtime = now;
    head.ctime = now;
    head.version += 1;
    Ok(())
}

/// An inode that has links gains one there.
pub(super) fn add_link<V: View>(txn: &mut Txn<'_, V>, id: InodeId, place: Place<'_>) -> Result<(), EngineError> {
    let (now, birth) = (txn.now(), txn.generation());
    if !txn.owns(id.slot()) {
        if let Some(head) = txn.abroad.inode_mut(id) {
            (head.nlink, head.ctime) = (head.nlink + 1, now);
        }
        txn.abroad.step(Step::AddLink { inode: id, parent: place.parent, name: place.name.clone() });
        return Ok(());
    }
    let head = &mut txn.inode_mut(id)?.head;
    head.nlink += 1;
    head.ctime = now;
    txn.put(backlink::key(id, place.parent, place.name), backlink::encode(birth));
    Ok(())
}

/// A link of an inode moves; the inode stays where the kind of link (first, or back-link) is concerned.
pub(super) fn move_link<V: View>(
    txn: &mut Txn<'_, V>,
    id: InodeId,
    from: Place<'_>,
    to: Place<'_>,
) -> Result<(), EngineError> {
    if !txn.owns(id.slot()) {
        let owned = |place: Place<'_>| (place.parent, place.name.clone());
        txn.abroad.step(Step::MoveLink { inode: id, from: owned(from), to: owned(to) });
        return Ok(());
    }
    let (now, birth) = (txn.now(), txn.generation());
    let head = txn.inode_mut(id)?;
    head.head.ctime = now;
    let several = !head.head.is_dir() && head.head.nlink > 1;
    let old = backlink::key(id, from.parent, from.name);
    if several && txn.get(&old)?.is_some() {
        txn.delete(old);
        txn.put(backlink::key(id, to.parent, to.name), backlink::encode(birth));
    } else {
        txn.inode_mut(id)?.head.parent = to.parent;
    }
    Ok(())
}

/// A link of a non-directory goes; the last one makes it an orphan or removes it. Tells whether it is kept for the session.
pub(super) fn drop_link<V: View>(
    txn: &mut Txn<'_, V>,
    id: InodeId,
    place: Place<'_>,
    session: SessionId,
    unheld: Option<InodeId>,
) -> Result<bool, EngineError> {
    let holder = if unheld == Some(id) { SessionId::LEADER } else { session };
    if !txn.owns(id.slot()) {
        let last = txn.abroad.inode(id).flatten().is_some_and(|head| head.nlink == 1);
        txn.abroad.step(Step::DropLink { inode: id, parent: place.parent, name: place.name.clone(), holder });
        return Ok(last && holder != SessionId::LEADER);
    }
    let now = txn.now();
    let head = &mut txn.inode_mut(id)?.head;
    head.ctime = now;
    head.nlink = head.nlink.checked_sub(1).ok_or_else(|| Corrupt(format!("inode {id} has a name and no links")))?;
    if head.nlink == 0 {
        head.parent = InodeId(0);
        return orphan::bury(txn, id, holder);
    }
    let link = backlink::key(id, place.parent, place.name);
    if txn.get(&link)?.is_some() {
        txn.delete(link);
        return Ok(false);
    }
    let prefix = backlink::prefix(id);
    let next = txn.scan(&prefix, &after(&prefix), 1, |key, _| backlink::parse(key))?;
    let (_, parent, name) = next.into_iter().next().ok_or_else(|| Corrupt(format!("inode {id} lacks a back-link")))?;
    txn.delete(backlink::key(id, parent, &name));
    txn.inode_mut(id)?.head.parent = parent;
    Ok(false)
}

/// Whether `ancestor` is `id` or lies above it. ELOOP when the walk is longer than any tree that can be walked.
pub(super) fn is_within<V: View>(txn: &mut Txn<'_, V>, id: InodeId, ancestor: InodeId) -> Result<bool, OpError> {
    let mut at = id;
    for _ in 0..pando_types::limits::ANCESTORS_PER_RENAME_MAX {
        if at == ancestor {
            return Ok(true);
        }
        if at == InodeId::ROOT {
            return Ok(false);
        }
        at = above(txn, at)?;
    }
    Err(Errno::ELOOP.into())
}

/// The parent of a directory, which stays that until the change is decided.
fn above<V: View>(txn: &mut Txn<'_, V>, id: InodeId) -> Result<InodeId, OpError> {
    if txn.owns(id.slot()) {
        return if txn.locks().is_inode_locked(id) { Err(OpError::Busy) } else { Ok(child(txn, id)?.parent) };
    }
    match txn.abroad.inode(id) {
        None => Err(OpError::Wants(vec![Want::Path(id)])),
        Some(None) => Err(OpError::Busy),
        Some(Some(head)) => Ok(head.parent),
    }
}
