//! Reclaim: the records of orphans that nobody holds go, a bounded number of extents per command.

use pando_types::limits::{EXTENTS_PER_RECLAIM_MAX, INODES_PER_RECLAIM_MAX};
use pando_types::{Errno, InodeId, Reply, SessionId};

use super::{OpError, extents, orphan, xattr};
use crate::effect::Effect;
use crate::kv::View;
use crate::txn::Txn;

/// EINVAL for more inodes than a command may name. What the bound leaves is told again by an effect.
pub(super) fn reclaim<V: View>(txn: &mut Txn<'_, V>, inodes: &[InodeId]) -> Result<Reply, OpError> {
    if inodes.len() > INODES_PER_RECLAIM_MAX {
        return Err(Errno::EINVAL.into());
    }
    let mut budget = EXTENTS_PER_RECLAIM_MAX;
    let mut gone = 0;
    for &id in inodes {
        let Some(record) = orphan::find(txn, id)?.filter(|_| txn.owns(id.slot())) else {
            gone += 1;
            continue;
        };
        if record.holder != SessionId::LEADER && txn.session_alive(record.holder)? {
            continue;
        }
        budget -= extents::remove_some(txn, id, budget)?;
        if txn.inode_mut(id)?.has_extents() {
            txn.effect(Effect::OrphanFree(id));
            continue;
        }
        xattr::drop_all(txn, id)?;
        orphan::unmark(txn, id, record.holder);
        txn.remove(id)?;
        gone += 1;
    }
    Ok(Reply::Reclaimed { inodes: gone })
}
