//! Setattr: attributes, and the size with what lies beyond it.

use pando_types::attr::{MODE_BITS, MODE_SETGID, MODE_SETUID};
use pando_types::command::{AttrChange, SetTime};
use pando_types::limits::FILE_BYTES_MAX;
use pando_types::{Errno, FileKind, InodeId, Reply, Timestamp};

use super::{OpError, acl, extents, names, xattr};
use crate::error::EngineError;
use crate::kv::View;
use crate::txn::Txn;

/// Executable by the group: without it, sgid on a file means mandatory locking and is kept.
const MODE_GROUP_EXECUTE: u32 = 0o010;
/// What Linux drops when a file changes hands or content.
const CAPABILITY: &[u8] = b"security.capability";

/// ENOENT, EOPNOTSUPP (mode of a symbolic link), EISDIR and EINVAL (size of what has none), EFBIG.
pub(super) fn setattr<V: View>(
    txn: &mut Txn<'_, V>,
    id: InodeId,
    change: &AttrChange,
    size: Option<u64>,
) -> Result<Reply, OpError> {
    let head = txn.head(id)?.ok_or(Errno::ENOENT)?;
    match (size, head.kind) {
        (Some(_), FileKind::Directory) => return Err(Errno::EISDIR.into()),
        (Some(size), FileKind::File) if size > FILE_BYTES_MAX => return Err(Errno::EFBIG.into()),
        (None, _) | (Some(_), FileKind::File) => {}
        (Some(_), _) => return Err(Errno::EINVAL.into()),
    }
    if head.kind == FileKind::Symlink && change.mode.is_some() {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if let Some(size) = size {
        resize(txn, id, size)?;
    }
    self::change(txn, id, change)?;
    Ok(Reply::Inode(names::child(txn, id)?.attr(id)))
}

/// Sets a file's size; its times change even if the size does not, as with `O_TRUNC`.
fn resize<V: View>(txn: &mut Txn<'_, V>, id: InodeId, size: u64) -> Result<(), EngineError> {
    let now = txn.now();
    let old = names::child(txn, id)?.size;
    if size < old {
        extents::clear(txn, id, size, u64::MAX)?;
    }
    let head = &mut txn.inode_mut(id)?.head;
    head.version += u64::from(size != old);
    head.size = size;
    head.mtime = now;
    head.ctime = now;
    content_changed(txn, id)
}

/// Drops what vouches for a file's content, whoever changed it, as Linux does.
pub(super) fn content_changed<V: View>(txn: &mut Txn<'_, V>, id: InodeId) -> Result<(), EngineError> {
    if names::child(txn, id)?.xattrs > 0 {
        xattr::drop_one(txn, id, CAPABILITY)?;
    }
    Ok(())
}

/// Changes attributes of an inode that exists; nothing about them can be refused.
pub(super) fn change<V: View>(txn: &mut Txn<'_, V>, id: InodeId, change: &AttrChange) -> Result<(), EngineError> {
    let old = names::child(txn, id)?;
    let mut new = old;
    let now = txn.now();
    let chown = change.uid.is_some() || change.gid.is_some();
    new.uid = change.uid.unwrap_or(old.uid);
    new.gid = change.gid.unwrap_or(old.gid);
    let kills = if old.kind == FileKind::File { chown || change.kill_privileges } else { chown && !old.is_dir() };
    if kills {
        let sgid = if old.mode & MODE_GROUP_EXECUTE != 0 { MODE_SETGID } else { 0 };
        new.mode &= !(MODE_SETUID | sgid);
    }
    new.mode = change.mode.map_or(new.mode, |mode| mode & MODE_BITS);
    let at = |time: Option<SetTime>, old: Timestamp| match time {
        None => old,
        Some(SetTime::Now) => now,
        Some(SetTime::At(time)) => time,
    };
    new.atime = at(change.atime, old.atime);
    new.mtime = at(change.mtime, old.mtime);
    let asked = chown || change.mode.is_some() || change.atime.is_some() || change.mtime.is_some();
    if asked || new != old {
        new.ctime = now;
        txn.inode_mut(id)?.head = crate::keys::inode::Head { birth: txn.generation(), ..new };
    }
    if change.mode.is_some() {
        acl::chmod(txn, id, new.mode)?;
    }
    if kills && old.xattrs > 0 && xattr::drop_one(txn, id, CAPABILITY)? {
        txn.inode_mut(id)?.head.ctime = now;
    }
    Ok(())
}
