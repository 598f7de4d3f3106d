//! A command through the engine: deduplicated, carried out, its reply kept. Once, for all commands.
//!
//! Each verb has a file that checks, then stages, then replies; a refusal must come before the first staged change. Nothing here
//! or below consults anything but the command, the transaction and constants.

use pando_types::intent::Want;
use pando_types::{Command, Envelope, Errno, FileKind, InodeId, OpId, Reply, SessionId, ShardId};

use crate::error::{Corrupt, EngineError};
use crate::keys::inode::{Head, Inode};
use crate::keys::slots::Slots;
use crate::kv::View;
use crate::txn::{Admission, Txn};

mod acl;
mod commit;
mod create;
mod extents;
mod intent;
mod link;
mod names;
mod orphan;
mod reclaim;
mod rename;
mod segments;
mod session;
mod setattr;
mod shard_map;
mod split;
mod unlink;
mod xattr;

/// Why an operation did not happen.
#[derive(Debug)]
pub(crate) enum OpError {
    /// It may not: a reply.
    Refused(Errno),
    /// Not now: a change under way has locked what it needs.
    Busy,
    /// Not yet: this is to be known of other shards.
    Wants(Vec<Want>),
    /// It could not: the replica halts.
    Engine(EngineError),
}

impl From<Errno> for OpError {
    fn from(errno: Errno) -> OpError {
        OpError::Refused(errno)
    }
}

impl From<EngineError> for OpError {
    fn from(error: EngineError) -> OpError {
        OpError::Engine(error)
    }
}

impl From<Corrupt> for OpError {
    fn from(error: Corrupt) -> OpError {
        OpError::Engine(error.into())
    }
}

/// Mode of a new root directory.
const ROOT_MODE: u32 = 0o755;

/// The first entry of shard 0 gives it every slot and makes the root directory.
pub(crate) fn root<V: View>(txn: &mut Txn<'_, V>) -> Result<(), EngineError> {
    if txn.shard() != ShardId(0) {
        return Ok(());
    }
    txn.set_slots(Slots::all());
    let head = Head {
        mode: ROOT_MODE,
        nlink: 2,
        parent: InodeId::ROOT,
        ..Head::new(FileKind::Directory, txn.now(), txn.generation())
    };
    txn.insert(InodeId::ROOT, Inode { head, tail: Vec::new() })
}

/// Carries out one command.
pub(crate) fn apply<V: View>(txn: &mut Txn<'_, V>, envelope: &Envelope) -> Result<Reply, EngineError> {
    let op = envelope.op;
    if let Some(errno) = forbidden(op.session, &envelope.command) {
        return Ok(Reply::Refused(errno));
    }
    // Ending a session forgets its replies, its own included: it is repeatable by nature.
    if op.session == SessionId::LEADER || matches!(envelope.command, Command::CloseSession { .. }) {
        return carry_out(txn, op, &envelope.command);
    }
    match txn.admit(op, envelope.acked)? {
        Admission::Known(reply) => Ok(reply),
        Admission::Stale => Ok(Reply::Stale),
        Admission::New => {
            if envelope.command.home().iter().any(|inode| !txn.owns(inode.slot())) {
                return Ok(Reply::Elsewhere);
            }
            let reply = carry_out(txn, op, &envelope.command)?;
            if reply.is_final() {
                txn.record(op, &reply)?;
            }
            Ok(reply)
        }
    }
}

/// What a client may not ask for.
fn forbidden(session: SessionId, command: &Command) -> Option<Errno> {
    let allowed = match command {
        Command::OpenSession
        | Command::JoinSession { .. }
        | Command::Reclaim { .. }
        | Command::ForgetSegments { .. }
        | Command::SetShardMap(_)
        | Command::Prepare { .. }
        | Command::Finish { .. }
        | Command::Abort { .. }
        | Command::Forget { .. }
        | Command::Split { .. } => session == SessionId::LEADER,
        Command::CloseSession { session: closed } => session == SessionId::LEADER || session == *closed,
        _ => true,
    };
    (!allowed).then_some(Errno::EPERM)
}

fn carry_out<V: View>(txn: &mut Txn<'_, V>, op: OpId, command: &Command) -> Result<Reply, EngineError> {
    let session = op.session;
    let result = match command {
        Command::OpenSession => session::open(txn),
        Command::CloseSession { session } => session::close(txn, *session),
        Command::Create(create) => create::create(txn, create),
        Command::Unlink { parent, name, unheld } => unlink::unlink(txn, session, *parent, name, *unheld),
        Command::Rmdir { parent, name } => unlink::rmdir(txn, *parent, name),
        Command::Rename(rename) => rename::rename(txn, session, rename),
        Command::Link { inode, parent, name } => link::link(txn, *inode, *parent, name),
        Command::SetAttr { inode, change, size } => setattr::setattr(txn, *inode, change, *size),
        Command::Commit(commit) => commit::commit(txn, commit),
        Command::SetXattr { inode, name, value, mode } => xattr::set(txn, *inode, name, value, *mode),
        Command::RemoveXattr { inode, name } => xattr::remove(txn, *inode, name),
        Command::ReleaseOrphans { inodes } => orphan::release(txn, session, inodes),
        Command::Reclaim { inodes } => reclaim::reclaim(txn, inodes),
        Command::ForgetSegments { segments } => segments::forget(txn, segments),
        Command::SetShardMap(map) => shard_map::set(txn, map),
        Command::JoinSession { session } => session::join(txn, *session),
        Command::Prepare { intent, wants } => intent::prepare(txn, *intent, wants),
        Command::Decide(decide) => return intent::decide(txn, op, decide),
        Command::Finish { intent, steps } => intent::finish(txn, *intent, steps),
        Command::Abort { intent } => intent::abort(txn, *intent),
        Command::Forget { intents } => intent::forget(txn, intents),
        Command::Split { shard, slots, mark } => split::split(txn, *shard, slots, mark),
    };
    match result {
        Ok(reply) => Ok(reply),
        Err(OpError::Refused(errno)) => Ok(Reply::Refused(errno)),
        Err(OpError::Busy) => Ok(Reply::Busy),
        Err(OpError::Wants(wants)) => Ok(Reply::Wants(wants)),
        Err(OpError::Engine(error)) => Err(error),
    }
}

#[cfg(test)]
#[path = "ops/ops_test.rs"]
mod tests;

#[cfg(test)]
#[path = "ops/data_test.rs"]
mod data_tests;

#[cfg(test)]
#[path = "ops/intent_test.rs"]
mod intent_tests;
