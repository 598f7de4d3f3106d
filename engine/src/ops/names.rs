//! Names and links, shared by the verbs: directories looked up and touched, links added, moved and dropped.

use pando_types::{Errno, FileName, InodeId, SessionId};

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

/// A directory that exists: ENOENT (it was removed), ENOTDIR.
pub(super) fn directory<V: View>(txn: &mut Txn<'_, V>, id: InodeId) -> Result<Head, OpError> {
    let head = txn.head(id)?.ok_or(Errno::ENOENT)?;
    if head.is_dir() { Ok(head) } else { Err(Errno::ENOTDIR.into()) }
}

/// What a name means.
pub(super) fn entry<V: View>(txn: &Txn<'_, V>, place: Place<'_>) -> Result<Option<Dentry>, EngineError> {
    let value = txn.get(&dentry::key(place.parent, place.name))?;
    Ok(value.map(|value| Dentry::decode(&value)).transpose()?)
}

/// The inode of a dentry.
pub(super) fn child<V: View>(txn: &mut Txn<'_, V>, id: InodeId) -> Result<Head, EngineError> {
    txn.head(id)?.ok_or_else(|| Corrupt(format!("a name means inode {id}, which does not exist")).into())
}

/// Writes a dentry, over whatever was there. The directory's size is for [`touch`].
pub(super) fn point<V: View>(txn: &mut Txn<'_, V>, place: Place<'_>, inode: InodeId, head: &Head) {
    let dentry = Dentry { inode, kind: head.kind, birth: txn.generation() };
    txn.put(dentry::key(place.parent, place.name), dentry.encode());
}

/// Removes a dentry. The directory's size is for [`touch`].
pub(super) fn unpoint<V: View>(txn: &mut Txn<'_, V>, place: Place<'_>) {
    txn.delete(dentry::key(place.parent, place.name));
}

/// A directory's names have changed: by so many entries, and so many subdirectories.
pub(super) fn touch<V: View>(
    txn: &mut Txn<'_, V>,
    id: InodeId,
    entries: i64,
    subdirectories: i32,
) -> Result<(), EngineError> {
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
    let now = txn.now();
    let head = &mut txn.inode_mut(id)?.head;
    head.ctime = now;
    head.nlink = head.nlink.checked_sub(1).ok_or_else(|| Corrupt(format!("inode {id} has a name and no links")))?;
    if head.nlink == 0 {
        head.parent = InodeId(0);
        let holder = if unheld == Some(id) { SessionId::LEADER } else { session };
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
        at = child(txn, at)?.parent;
    }
    Err(Errno::ELOOP.into())
}
