//! The namespace: reads, and changes on their way to the log.

use std::sync::Arc;

use pando_engine::keys::slots::Slots;
use pando_engine::kv::rocks::RocksView;
use pando_engine::read::Found;
use pando_engine::{Locks, ReadError, read};
use pando_types::command::{Create, NewNode};
use pando_types::request::Response;
use pando_types::{Command, Envelope, Errno, FileName, FsError, InodeId, MapEpoch, OpId, Reply, ShardId, XattrName};

use super::check;
use crate::intents;
use crate::placement;
use crate::read::is_new;
use crate::replicas::Replicas;
use crate::shard::Shard;

/// Carries out a change, unless it can be refused without the log.
pub(super) async fn change(here: &Replicas, epoch: MapEpoch, envelope: Envelope) -> Result<Response, FsError> {
    check::envelope(&envelope)?;
    let session = envelope.op.session;
    let mut found: Option<Arc<Shard>> = None;
    for inode in envelope.command.home() {
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
        let name_locked = |locks: &Locks| locks.is_name_locked(create.parent, &create.name);
        let slot = create.parent.slot();
        let known = shard.read_of(slot, name_locked, |view, slots| exists(view, slots, &shard, envelope.op, create));
        if known.await? {
            return Ok(Response::Reply(Reply::Refused(Errno::EEXIST)));
        }
        if let NewNode::Directory { slot } = &mut create.node {
            *slot = placement::slot_of_new_directory(create.parent, &create.name);
        }
    }
    intents::carry_out(here, &shard, envelope).await.map(Response::Reply)
}

/// The name of a create that is certainly no retry exists: every rank of a job makes the same directory, and all but one
/// shall cost no log entry. A retry goes through the log, where its own earlier success is on record.
fn exists(
    view: &impl pando_engine::View,
    slots: &Slots,
    shard: &Shard,
    op: OpId,
    create: &Create,
) -> Result<bool, pando_engine::ReadError> {
    match read::lookup(view, slots, create.parent, &create.name) {
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
    let locked = |locks: &Locks| locks.is_name_locked(parent, &name);
    shard.read_of(parent.slot(), locked, |view, slots| read::lookup(view, slots, parent, &name)).await.map(found)
}

fn found(found: Found) -> Response {
    match found {
        Found::Here(attr) => Response::Attr(attr),
        Found::Elsewhere(inode) => Response::Elsewhere(inode),
    }
}

pub(super) async fn getattr(here: &Replicas, epoch: MapEpoch, inode: InodeId) -> Result<Response, FsError> {
    let shard = here.shard_of(epoch, inode)?;
    let locked = |locks: &Locks| locks.is_inode_locked(inode);
    shard.read_of(inode.slot(), locked, |view, _| read::getattr(view, inode)).await.map(Response::Attr)
}

/// What no change of several shards changes: no lock is in the way.
async fn own<T>(
    here: &Replicas,
    epoch: MapEpoch,
    inode: InodeId,
    read: impl FnOnce(&RocksView<'_>) -> Result<T, ReadError>,
) -> Result<T, FsError> {
    here.shard_of(epoch, inode)?.read_of(inode.slot(), |_| false, |view, _| read(view)).await
}

pub(super) async fn content(
    here: &Replicas,
    epoch: MapEpoch,
    inode: InodeId,
    offset: u64,
) -> Result<Response, FsError> {
    own(here, epoch, inode, |view| read::content(view, inode, offset)).await.map(Response::Content)
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
    let locked = |locks: &Locks| locks.has_names_in(inode);
    let page = shard
        .read_of(inode.slot(), locked, |view, slots| read::readdir(view, slots, inode, after.as_ref(), plus, limit));
    page.await.map(Response::Directory)
}

pub(super) async fn readlink(here: &Replicas, epoch: MapEpoch, inode: InodeId) -> Result<Response, FsError> {
    own(here, epoch, inode, |view| read::readlink(view, inode)).await.map(Response::Bytes)
}

pub(super) async fn getxattr(
    here: &Replicas,
    epoch: MapEpoch,
    inode: InodeId,
    name: XattrName,
) -> Result<Response, FsError> {
    own(here, epoch, inode, |view| read::getxattr(view, inode, &name)).await.map(Response::Bytes)
}

pub(super) async fn listxattr(here: &Replicas, epoch: MapEpoch, inode: InodeId) -> Result<Response, FsError> {
    own(here, epoch, inode, |view| read::listxattr(view, inode)).await.map(Response::Xattrs)
}

pub(super) async fn parent(here: &Replicas, epoch: MapEpoch, inode: InodeId) -> Result<Response, FsError> {
    let shard = here.shard_of(epoch, inode)?;
    let locked = |locks: &Locks| locks.is_inode_locked(inode);
    shard.read_of(inode.slot(), locked, |view, slots| read::parent(view, slots, inode)).await.map(found)
}
