//! Changes that touch several shards: prepared and finished where they take part, decided where they are coordinated.
//!
//! Two-phase commit with locks on exactly what is needed; the entry that decides is the commit point. Not here: what a verb
//! needs of others (the verbs), who asks whom (the metaserver). Invariants: what is told stays so until the change is finished
//! here; a decided change is finished once; of two that need the same, one is refused before it has changed anything.

use pando_types::intent::{Decide, Decided, Fact, IntentId, Lock, Step, Want};
use pando_types::limits::{LOCKS_PER_INTENT_MAX, PATH_PER_WANT_MAX};
use pando_types::{Errno, InodeId, OpId, Reply, SessionId};

use super::names::{self, Place};
use super::{OpError, carry_out, session, unlink, xattr};
use crate::error::{Corrupt, EngineError};
use crate::keys::dentry::{self, Dentry};
use crate::keys::inode::Inode;
use crate::keys::intent;
use crate::kv::View;
use crate::txn::{Abroad, Txn};

/// ENOSPC for a slot that has given out all ids, E2BIG beyond the locks that a change may take.
pub(super) fn prepare<V: View>(txn: &mut Txn<'_, V>, id: IntentId, wants: &[Want]) -> Result<Reply, OpError> {
    if id.shard == txn.shard() {
        return Err(Errno::EINVAL.into());
    }
    if wants.iter().any(|want| !txn.owns(want.slot())) {
        return Ok(Reply::Elsewhere);
    }
    let (mut facts, mut locks) = (Vec::new(), Vec::new());
    for want in wants {
        tell(txn, want, &mut facts, &mut locks)?;
    }
    let held = txn.locks().of(id).map_or(0, <[Lock]>::len);
    if held + locks.len() > LOCKS_PER_INTENT_MAX {
        return Err(Errno::E2BIG.into());
    }
    if locks.iter().any(|lock| txn.locks().refuses(id, lock)) {
        return Err(OpError::Busy);
    }
    for want in wants {
        if let Want::NewDirectory(slot) = want {
            facts.push(Fact::NewDirectory(txn.next_inode(*slot)?.ok_or(Errno::ENOSPC)?));
        }
    }
    let all = txn.locks_mut();
    all.begin(id);
    locks.into_iter().for_each(|lock| all.take(id, lock));
    let value = intent::encode(all.of(id).unwrap_or_default());
    txn.put(intent::key(txn.shard(), id), value);
    Ok(Reply::Facts(facts))
}

fn tell<V: View>(
    txn: &mut Txn<'_, V>,
    want: &Want,
    facts: &mut Vec<Fact>,
    locks: &mut Vec<Lock>,
) -> Result<(), EngineError> {
    match want {
        Want::Name { parent, name } => {
            locks.extend([Lock::Name(*parent, name.clone()), Lock::Place(*parent)]);
            facts.push(inode_fact(txn, *parent)?);
            let dentry = txn.get(&dentry::key(*parent, name))?.map(|value| Dentry::decode(&value)).transpose()?;
            let entry = dentry.map(|dentry| (dentry.inode, dentry.kind));
            facts.push(Fact::Name { parent: *parent, name: name.clone(), entry });
            if let Some((inode, _)) = entry.filter(|(inode, _)| txn.owns(inode.slot())) {
                locks.push(Lock::Inode(inode));
                facts.push(inode_fact(txn, inode)?);
            }
        }
        Want::Inode(inode) => {
            locks.push(Lock::Inode(*inode));
            facts.push(inode_fact(txn, *inode)?);
        }
        Want::Path(directory) => {
            let mut at = *directory;
            for _ in 0..PATH_PER_WANT_MAX {
                locks.push(Lock::Place(at));
                facts.push(inode_fact(txn, at)?);
                match txn.head(at)? {
                    Some(head) if head.parent != at && txn.owns(head.parent.slot()) => at = head.parent,
                    _ => break,
                }
            }
        }
        Want::NewDirectory(_) => {}
    }
    Ok(())
}

fn inode_fact<V: View>(txn: &mut Txn<'_, V>, inode: InodeId) -> Result<Fact, EngineError> {
    let head = txn.head(inode)?;
    let record = head.map(|head| Inode { head, tail: Vec::new() }.encode());
    Ok(Fact::Inode { inode, record })
}

/// The change's own reply; without facts it is carried out as if it came alone.
pub(super) fn decide<V: View>(txn: &mut Txn<'_, V>, op: OpId, decide: &Decide) -> Result<Reply, EngineError> {
    let Decide { intent: id, facts, command } = decide;
    if id.shard != txn.shard() || !command.may_cross() {
        return Ok(Reply::Refused(Errno::EINVAL));
    }
    // It was given up, or it is an old copy of one that was carried out.
    if txn.get(&intent::decided_key(txn.shard(), *id))?.is_some() {
        return Ok(Reply::Busy);
    }
    txn.abroad = Abroad::new(facts)?;
    let reply = carry_out(txn, op, command);
    let abroad = std::mem::take(&mut txn.abroad);
    let reply = reply?;
    if !reply.is_final() || matches!(reply, Reply::Refused(_)) {
        return Ok(reply);
    }
    let decided = Decided { op, steps: abroad.into_steps(facts)? };
    txn.put(intent::decided_key(txn.shard(), *id), intent::encode_decided(&decided));
    txn.locks_mut().decide(*id, op);
    Ok(reply)
}

/// An attempt that is not known is over already.
pub(super) fn finish<V: View>(txn: &mut Txn<'_, V>, id: IntentId, steps: &[Step]) -> Result<Reply, OpError> {
    if txn.locks().of(id).is_none() {
        return Ok(Reply::Done);
    }
    for step in steps {
        carry_out_step(txn, step)?;
    }
    txn.locks_mut().release(id);
    txn.delete(intent::key(txn.shard(), id));
    Ok(Reply::Done)
}

fn carry_out_step<V: View>(txn: &mut Txn<'_, V>, step: &Step) -> Result<(), OpError> {
    if !txn.owns(step.slot()) {
        return Err(Corrupt(format!("a step for slot {} came to a shard that does not own it", step.slot())).into());
    }
    match step {
        Step::Point { parent, name, inode, kind } => {
            names::point(txn, Place { parent: *parent, name }, *inode, *kind);
            Ok(())
        }
        Step::Unpoint { parent, name } => {
            names::unpoint(txn, Place { parent: *parent, name });
            Ok(())
        }
        Step::Touch { directory, entries, subdirectories } => names::touch(txn, *directory, *entries, *subdirectories),
        Step::AddLink { inode, parent, name } => names::add_link(txn, *inode, Place { parent: *parent, name }),
        Step::MoveLink { inode, from, to } => {
            let (from, to) = (Place { parent: from.0, name: &from.1 }, Place { parent: to.0, name: &to.1 });
            names::move_link(txn, *inode, from, to)
        }
        Step::DropLink { inode, parent, name, holder } => {
            if *holder != SessionId::LEADER {
                session::join(txn, *holder)?;
            }
            names::drop_link(txn, *inode, Place { parent: *parent, name }, *holder, None).map(|_| ())
        }
        Step::RemoveDirectory { inode } => unlink::remove_directory(txn, *inode),
        Step::InsertDirectory { inode, record, xattrs } => insert_directory(txn, *inode, record, xattrs),
    }?;
    Ok(())
}

fn insert_directory<V: View>(
    txn: &mut Txn<'_, V>,
    inode: InodeId,
    record: &[u8],
    xattrs: &[(Vec<u8>, Vec<u8>)],
) -> Result<(), EngineError> {
    let mut new = Inode::decode(record)?;
    new.head.birth = txn.generation();
    txn.insert(inode, new)?;
    xattrs.iter().try_for_each(|(name, value)| xattr::put(txn, inode, name, value))
}

/// From now on the attempt is never decided. EEXIST: it has been.
pub(super) fn abort<V: View>(txn: &mut Txn<'_, V>, id: IntentId) -> Result<Reply, OpError> {
    let key = intent::decided_key(txn.shard(), id);
    if let Some(value) = txn.get(&key)? {
        let aborted = intent::decode_decided(&value)?.op.session == SessionId::LEADER;
        return if aborted { Ok(Reply::Done) } else { Err(Errno::EEXIST.into()) };
    }
    let op = OpId { session: SessionId::LEADER, sequence: 0 };
    txn.put(key, intent::encode_decided(&Decided { op, steps: Vec::new() }));
    txn.locks_mut().decide(id, op);
    Ok(Reply::Done)
}

/// All others have finished these, or nobody asks for them any more.
pub(super) fn forget<V: View>(txn: &mut Txn<'_, V>, intents: &[IntentId]) -> Result<Reply, OpError> {
    for id in intents {
        txn.delete(intent::decided_key(txn.shard(), *id));
        txn.locks_mut().forget(*id);
    }
    Ok(Reply::Done)
}
