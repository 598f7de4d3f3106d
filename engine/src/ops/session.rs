//! Sessions: opened and closed by the leader.

use pando_types::{Errno, Reply, SessionId};

use super::OpError;
use crate::effect::Effect;
use crate::kv::View;
use crate::txn::Txn;

/// ENOSPC when the shard has given out all session ids.
pub(super) fn open<V: View>(txn: &mut Txn<'_, V>) -> Result<Reply, OpError> {
    let id = txn.open_session().ok_or(Errno::ENOSPC)?;
    txn.effect(Effect::SessionOpened(id));
    Ok(Reply::Session(id))
}

/// A client of another shard writes here too. A session of this shard is not joined but opened.
pub(super) fn join<V: View>(txn: &mut Txn<'_, V>, session: SessionId) -> Result<Reply, OpError> {
    if session == SessionId::LEADER {
        return Err(Errno::EINVAL.into());
    }
    if !txn.session_alive(session)? {
        txn.join_session(session);
        txn.effect(Effect::SessionOpened(session));
    }
    Ok(Reply::Done)
}

/// Its orphans become free with it, without being touched: [`crate::read::free_orphans`] finds them.
pub(super) fn close<V: View>(txn: &mut Txn<'_, V>, session: SessionId) -> Result<Reply, OpError> {
    if session == SessionId::LEADER || !txn.close_session(session)? {
        return Ok(Reply::Done);
    }
    txn.effect(Effect::SessionClosed(session));
    Ok(Reply::Done)
}
