//! The namespace: reads, and changes on their way to the log.

use std::sync::Arc;

use pando_engine::read;
use pando_types::command::{Create, NewNode};
use pando_types::request::Response;
use pando_types::{Command, Envelope, Errno, FileName, FsError, InodeId, MapEpoch, OpId, Reply, ShardId, XattrName};

use super::check;
use crate::placement;
use crate::read::is_new;
use crate::replicas::Replicas;
use crate::shard::Shard;

/// Carries out a change, unless it can be refused without the log.
pub(super) async fn change(here: &Replicas, epoch: MapEpoch, envelope: Envelope) -> Result<Response, FsError> {
    check::envelope(&envelope)?;
    let session = envelope.op.session;
    if let Command::CloseSession { session } = envelope.command {
        return here.led(ShardId(0))?.close_session(session).await.map(Response::Reply);
    }
    let mut found: Option<Arc<Shard>> = None;
    for inode in check::inodes(&envelope.command) {
        let shard = here.shard_of(epoch, inode)?;
        if found.as_ref().is_some_and(|other| other.id != shard.id) {
            return Err(FsError::user(Errno::EXDEV));
        }
        found = Some(shard);
    }
    let shard = match found {
        Some(shard) => shard,
        None => here.led(ShardId(0))?,
    };
    shard.sessions.touch(session);
    let mut envelope = envelope;
    if let Command::Create(create) = &mut envelope.command {
        if shard.read(|view| exists(view, &shard, envelope.op, create)).await? {
            return Ok(Response::Reply(Reply::Refused(Errno::EEXIST)));
        }
        if let NewNode::Directory { slot } = &mut create.node {
            *slot = placement::slot_of_new_directory(create.parent, &create.name);
        }
    }
    shard.proposer.propose(envelope).await.map(Response::Reply)
}

/// The name of a create that is certainly no retry exists: every rank of a job makes the same directory, and all but one
/// shall cost no log entry. A retry goes through the log, where its own earlier success is on record.
fn exists(
    view: &impl pando_engine::View,
    shard: &Shard,
    op: OpId,
    create: &Create,
) -> Result<bool, pando_engine::ReadError> {
    match read::lookup(view, create.parent, &create.name) {
        Ok(_) => is_new(view, shard.id, op),
        Err(pando_engine::ReadError::Refused(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) async fn lookup(
    here: &Replicas,
    epoch: MapEpoch,
    parent: InodeId,
    name: FileName,
) -> Result<Response, FsError> {
    let shard = here.shard_of(epoch, parent)?;
    shard.read(|view| read::lookup(view, parent, &name)).await.map(Response::Attr)
}

pub(super) async fn getattr(here: &Replicas, epoch: MapEpoch, inode: InodeId) -> Result<Response, FsError> {
    let shard = here.shard_of(epoch, inode)?;
    shard.read(|view| read::getattr(view, inode)).await.map(Response::Attr)
}

pub(super) async fn content(
    here: &Replicas,
    epoch: MapEpoch,
    inode: InodeId,
    offset: u64,
) -> Result<Response, FsError> {
    let shard = here.shard_of(epoch, inode)?;
    shard.read(|view| read::content(view, inode, offset)).await.map(Response::Content)
}

pub(super) async fn readdir(
    here: &Replicas,
    epoch: MapEpoch,
    inode: InodeId,
    after: Option<FileName>,
    plus: bool,
    limit: u32,
) -> Result<Response, FsError> {
    let shard = here.shard_of(epoch, inode)?;
    shard.read(|view| read::readdir(view, inode, after.as_ref(), plus, limit)).await.map(Response::Directory)
}

pub(super) async fn readlink(here: &Replicas, epoch: MapEpoch, inode: InodeId) -> Result<Response, FsError> {
    let shard = here.shard_of(epoch, inode)?;
    shard.read(|view| read::readlink(view, inode)).await.map(Response::Bytes)
}

pub(super) async fn getxattr(
    here: &Replicas,
    epoch: MapEpoch,
    inode: InodeId,
    name: XattrName,
) -> Result<Response, FsError> {
    let shard = here.shard_of(epoch, inode)?;
    shard.read(|view| read::getxattr(view, inode, &name)).await.map(Response::Bytes)
}

pub(super) async fn listxattr(here: &Replicas, epoch: MapEpoch, inode: InodeId) -> Result<Response, FsError> {
    let shard = here.shard_of(epoch, inode)?;
    shard.read(|view| read::listxattr(view, inode)).await.map(Response::Xattrs)
}

pub(super) async fn parent(here: &Replicas, epoch: MapEpoch, inode: InodeId) -> Result<Response, FsError> {
    let shard = here.shard_of(epoch, inode)?;
    shard.read(|view| read::parent(view, inode)).await.map(Response::Attr)
}
