//! Sessions: opened and closed by the leader.

use pando_types::{Errno, Reply, SessionId};

use super::OpError;
use crate::effect::Effect;
use crate::keys::orphan;
use crate::kv::View;
use crate::txn::Txn;

/// Orphans of a closed session that are told at once; the rest is found by [`crate::read::free_orphans`].
const ORPHANS_TOLD_MAX: usize = 1024;

/// ENOSPC when the shard has given out all session ids.
pub(super) fn open<V: View>(txn: &mut Txn<'_, V>) -> Result<Reply, OpError> {
    let id = txn.open_session().ok_or(Errno::ENOSPC)?;
    txn.effect(Effect::SessionOpened(id));
    Ok(Reply::Session(id))
}

/// Its orphans become free with it, without being touched.
pub(super) fn close<V: View>(txn: &mut Txn<'_, V>, session: SessionId) -> Result<Reply, OpError> {
    if session == SessionId::LEADER || !txn.close_session(session)? {
        return Ok(Reply::Done);
    }
    txn.effect(Effect::SessionClosed(session));
    let from = orphan::index_key(txn.shard(), session, pando_types::InodeId(0));
    let to = crate::keys::after(&from[..from.len() - 8]);
    let parse = |key: &[u8], _: &[u8]| orphan::parse_index(&key[crate::keys::PREFIX_BYTES..]);
    for (_, inode) in txn.scan(&from, &to, ORPHANS_TOLD_MAX, parse)? {
        txn.effect(Effect::OrphanFree(inode));
    }
    Ok(Reply::Done)
}
