//! Link: a further name of an inode.

use pando_types::intent::Want;
use pando_types::limits::LINKS_MAX;
use pando_types::{Errno, FileName, InodeId, Reply};

use super::OpError;
use super::names::{self, Place};
use crate::keys::inode::Head;
use crate::kv::View;
use crate::txn::Txn;

/// ENOENT (also for an orphan), ENOTDIR, EEXIST, EPERM (a directory), EMLINK.
pub(super) fn link<V: View>(
    txn: &mut Txn<'_, V>,
    id: InodeId,
    parent: InodeId,
    name: &FileName,
) -> Result<Reply, OpError> {
    let place = Place { parent, name };
    let head = source(txn, id)?;
    names::directory(txn, parent)?;
    if names::entry(txn, place)?.is_some() {
        return Err(Errno::EEXIST.into());
    }
    match head.nlink {
        _ if head.is_dir() => return Err(Errno::EPERM.into()),
        0 => return Err(Errno::ENOENT.into()),
        n if n >= LINKS_MAX => return Err(Errno::EMLINK.into()),
        _ => {}
    }
    names::point(txn, place, id, head.kind);
    let before = head;
    names::touch(txn, parent, 1, 0)?;
    names::add_link(txn, id, place)?;
    let head = if txn.owns(id.slot()) { txn.head(id)? } else { txn.abroad.inode(id).flatten() };
    Ok(Reply::Inode(head.unwrap_or(before).attr(id)))
}

/// The inode that gets a further name; it may be gone, or have no name.
fn source<V: View>(txn: &mut Txn<'_, V>, id: InodeId) -> Result<Head, OpError> {
    let head = if txn.owns(id.slot()) {
        if txn.locks().is_inode_locked(id) {
            return Err(OpError::Busy);
        }
        txn.head(id)?
    } else {
        txn.abroad.inode(id).ok_or_else(|| OpError::Wants(vec![Want::Inode(id)]))?
    };
    Ok(head.ok_or(Errno::ENOENT)?)
}
