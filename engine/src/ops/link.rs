//! Link: a further name of an inode.

use pando_types::limits::LINKS_MAX;
use pando_types::{Errno, FileName, InodeId, Reply};

use super::OpError;
use super::names::{self, Place};
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
    let head = names::head(txn, id)?.ok_or(Errno::ENOENT)?;
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
    names::touch(txn, parent, 1, 0)?;
    names::add_link(txn, id, place)?;
    let head = names::head(txn, id)?.ok_or(Errno::ENOENT)?;
    Ok(Reply::Inode(head.attr(id)))
}
