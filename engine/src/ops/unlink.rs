//! Unlink and rmdir: a name goes, and its inode when nothing needs it.

use pando_types::intent::Step;
use pando_types::{Errno, FileName, InodeId, Reply, SessionId};

use super::names::{self, Place};
use super::{OpError, xattr};
use crate::error::EngineError;
use crate::kv::View;
use crate::txn::Txn;

/// ENOENT, ENOTDIR, EISDIR.
pub(super) fn unlink<V: View>(
    txn: &mut Txn<'_, V>,
    session: SessionId,
    parent: InodeId,
    name: &FileName,
    unheld: Option<InodeId>,
) -> Result<Reply, OpError> {
    let place = Place { parent, name };
    names::directory(txn, parent)?;
    let (inode, _) = names::entry(txn, place)?.ok_or(Errno::ENOENT)?;
    if names::linked(txn, inode)?.is_dir() {
        return Err(Errno::EISDIR.into());
    }
    names::unpoint(txn, place);
    names::touch(txn, parent, -1, 0)?;
    let held = names::drop_link(txn, inode, place, session, unheld)?;
    Ok(Reply::Unlinked { inode, held })
}

/// ENOENT, ENOTDIR, ENOTEMPTY.
pub(super) fn rmdir<V: View>(txn: &mut Txn<'_, V>, parent: InodeId, name: &FileName) -> Result<Reply, OpError> {
    let place = Place { parent, name };
    names::directory(txn, parent)?;
    let (inode, _) = names::entry(txn, place)?.ok_or(Errno::ENOENT)?;
    let head = names::linked(txn, inode)?;
    if !head.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    if head.size > 0 {
        return Err(Errno::ENOTEMPTY.into());
    }
    names::unpoint(txn, place);
    names::touch(txn, parent, -1, -1)?;
    remove_directory(txn, inode)?;
    Ok(Reply::Done)
}

/// An empty directory without a name goes at once: unlike a file it has nothing to give to who has it open.
pub(super) fn remove_directory<V: View>(txn: &mut Txn<'_, V>, id: InodeId) -> Result<(), EngineError> {
    if !txn.owns(id.slot()) {
        txn.abroad.step(Step::RemoveDirectory { inode: id });
        return Ok(());
    }
    xattr::drop_all(txn, id)?;
    txn.remove(id)
}
