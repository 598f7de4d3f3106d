//! Orphans: inodes without a name, kept while their session has them open, then reclaimed.

use pando_types::{InodeId, Reply, SessionId};

use super::OpError;
use crate::effect::Effect;
use crate::error::{Corrupt, EngineError};
use crate::keys::orphan::{self, Orphan};
use crate::kv::View;
use crate::txn::Txn;

/// An inode has lost its last name. Without holder it goes at once if it is small. Tells whether it is kept for the holder.
pub(super) fn bury<V: View>(txn: &mut Txn<'_, V>, id: InodeId, holder: SessionId) -> Result<bool, EngineError> {
    if holder != SessionId::LEADER {
        put(txn, id, holder);
        return Ok(true);
    }
    if is_bare(txn, id)? {
        txn.remove(id)?;
    } else {
        put(txn, id, SessionId::LEADER);
        txn.effect(Effect::OrphanFree(id));
    }
    Ok(false)
}

/// Whether an inode's own record is all there is of it.
fn is_bare<V: View>(txn: &mut Txn<'_, V>, id: InodeId) -> Result<bool, EngineError> {
    let inode = txn.inode_mut(id)?;
    Ok(!inode.has_extents() && inode.head.xattrs == 0)
}

fn put<V: View>(txn: &mut Txn<'_, V>, id: InodeId, holder: SessionId) {
    let record = Orphan { holder, birth: txn.generation() };
    txn.put(orphan::key(id), record.encode());
    txn.put(orphan::index_key(holder, id), orphan::index_value());
}

/// The orphan record of an inode, if it is one.
pub(super) fn find<V: View>(txn: &Txn<'_, V>, id: InodeId) -> Result<Option<Orphan>, EngineError> {
    Ok(txn.get(&orphan::key(id))?.map(|value| Orphan::decode(&value)).transpose()?)
}

/// An orphan stops being one.
pub(super) fn unmark<V: View>(txn: &mut Txn<'_, V>, id: InodeId, holder: SessionId) {
    txn.delete(orphan::key(id));
    txn.delete(orphan::index_key(holder, id));
}

/// The session has closed these; those that it does not hold are left alone.
pub(super) fn release<V: View>(txn: &mut Txn<'_, V>, session: SessionId, inodes: &[InodeId]) -> Result<Reply, OpError> {
    for &id in inodes {
        if session != SessionId::LEADER && find(txn, id)?.is_some_and(|orphan| orphan.holder == session) {
            if txn.head(id)?.is_none() {
                return Err(Corrupt(format!("orphan {id} has no inode")).into());
            }
            unmark(txn, id, session);
            bury(txn, id, SessionId::LEADER)?;
        }
    }
    Ok(Reply::Done)
}
