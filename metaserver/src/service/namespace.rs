//! The namespace: reads, and changes on their way to the log.

use pando_engine::read;
use pando_types::command::{Create, NewNode};
use pando_types::request::Response;
use pando_types::{Command, Envelope, Errno, FileName, FsError, InodeId, MapEpoch, OpId, Reply, XattrName};

use super::{Service, check};
use crate::placement;
use crate::read::is_new;
use crate::shard::Shard;

/// Carries out a change, unless it can be refused without the log.
pub(super) async fn change(service: &Service, epoch: MapEpoch, envelope: Envelope) -> Result<Response, FsError> {
    check::envelope(&envelope)?;
    let session = envelope.op.session;
    if let Command::CloseSession { session } = envelope.command {
        return service.shard.close_session(session).await.map(Response::Reply);
    }
    let mut shard = &service.shard;
    for inode in check::inodes(&envelope.command) {
        shard = service.shard_of(epoch, inode)?;
    }
    shard.sessions.touch(session);
    let mut envelope = envelope;
    if let Command::Create(create) = &mut envelope.command {
        if shard.read(|view| exists(view, shard, envelope.op, create)).await? {
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
    service: &Service,
    epoch: MapEpoch,
    parent: InodeId,
    name: FileName,
) -> Result<Response, FsError> {
    let shard = service.shard_of(epoch, parent)?;
    shard.read(|view| read::lookup(view, parent, &name)).await.map(Response::Attr)
}

pub(super) async fn getattr(service: &Service, epoch: MapEpoch, inode: InodeId) -> Result<Response, FsError> {
    let shard = service.shard_of(epoch, inode)?;
    shard.read(|view| read::getattr(view, inode)).await.map(Response::Attr)
}

pub(super) async fn content(
    service: &Service,
    epoch: MapEpoch,
    inode: InodeId,
    offset: u64,
) -> Result<Response, FsError> {
    let shard = service.shard_of(epoch, inode)?;
    shard.read(|view| read::content(view, inode, offset)).await.map(Response::Content)
}

pub(super) async fn readdir(
    service: &Service,
    epoch: MapEpoch,
    inode: InodeId,
    after: Option<FileName>,
    plus: bool,
    limit: u32,
) -> Result<Response, FsError> {
    let shard = service.shard_of(epoch, inode)?;
    shard.read(|view| read::readdir(view, inode, after.as_ref(), plus, limit)).await.map(Response::Directory)
}

pub(super) async fn readlink(service: &Service, epoch: MapEpoch, inode: InodeId) -> Result<Response, FsError> {
    let shard = service.shard_of(epoch, inode)?;
    shard.read(|view| read::readlink(view, inode)).await.map(Response::Bytes)
}

pub(super) async fn getxattr(
    service: &Service,
    epoch: MapEpoch,
    inode: InodeId,
    name: XattrName,
) -> Result<Response, FsError> {
    let shard = service.shard_of(epoch, inode)?;
    shard.read(|view| read::getxattr(view, inode, &name)).await.map(Response::Bytes)
}

pub(super) async fn listxattr(service: &Service, epoch: MapEpoch, inode: InodeId) -> Result<Response, FsError> {
    let shard = service.shard_of(epoch, inode)?;
    shard.read(|view| read::listxattr(view, inode)).await.map(Response::Xattrs)
}

pub(super) async fn parent(service: &Service, epoch: MapEpoch, inode: InodeId) -> Result<Response, FsError> {
    let shard = service.shard_of(epoch, inode)?;
    shard.read(|view| read::parent(view, inode)).await.map(Response::Attr)
}
