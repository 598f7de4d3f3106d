//! Extended attributes: set and removed, with Linux's rules for their namespaces.

use pando_types::command::XattrMode;
use pando_types::limits::{XATTR_VALUE_BYTES_MAX, XATTRS_PER_INODE_MAX};
use pando_types::{Errno, FileKind, InodeId, Reply, XattrName};

use super::{OpError, acl, names};
use crate::acl::{ACCESS_XATTR, DEFAULT_XATTR};
use crate::error::EngineError;
use crate::keys::inode::{HAS_ACCESS_ACL, HAS_DEFAULT_ACL, Head};
use crate::keys::{after, xattr};
use crate::kv::View;
use crate::txn::Txn;

/// ENOENT, E2BIG, EEXIST, ENODATA, ENOSPC (too many), EPERM (`user.` on neither file nor directory), EOPNOTSUPP, EINVAL.
pub(super) fn set<V: View>(
    txn: &mut Txn<'_, V>,
    id: InodeId,
    name: &XattrName,
    value: &[u8],
    mode: XattrMode,
) -> Result<Reply, OpError> {
    let head = txn.head(id)?.ok_or(Errno::ENOENT)?;
    check_name(name, &head)?;
    if value.len() > XATTR_VALUE_BYTES_MAX {
        return Err(Errno::E2BIG.into());
    }
    if is_acl(name.as_bytes()) {
        return acl::set(txn, id, &head, name.as_bytes(), value);
    }
    let exists = txn.get(&xattr::key(id, name.as_bytes()))?.is_some();
    match (mode, exists) {
        (XattrMode::Create, true) => return Err(Errno::EEXIST.into()),
        (XattrMode::Replace, false) => return Err(Errno::ENODATA.into()),
        _ => {}
    }
    if !exists {
        check_room(&head)?;
    }
    let now = txn.now();
    put(txn, id, name.as_bytes(), value)?;
    txn.inode_mut(id)?.head.ctime = now;
    Ok(Reply::Done)
}

/// ENOENT, ENODATA (but not for ACLs, whose absence is a fine result), EPERM, EOPNOTSUPP.
pub(super) fn remove<V: View>(txn: &mut Txn<'_, V>, id: InodeId, name: &XattrName) -> Result<Reply, OpError> {
    let head = txn.head(id)?.ok_or(Errno::ENOENT)?;
    check_name(name, &head)?;
    let now = txn.now();
    if drop_one(txn, id, name.as_bytes())? {
        txn.inode_mut(id)?.head.ctime = now;
        Ok(Reply::Done)
    } else if is_acl(name.as_bytes()) {
        Ok(Reply::Done)
    } else {
        Err(Errno::ENODATA.into())
    }
}

fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_XATTR || name == DEFAULT_XATTR
}

/// There is room for one more attribute.
pub(super) fn check_room(head: &Head) -> Result<(), Errno> {
    if usize::from(head.xattrs) >= XATTRS_PER_INODE_MAX { Err(Errno::ENOSPC) } else { Ok(()) }
}

/// The namespace exists, the name has more than a namespace, and the kind of inode may have it.
fn check_name(name: &XattrName, head: &Head) -> Result<(), Errno> {
    let name = name.as_bytes();
    if is_acl(name) {
        return if head.kind == FileKind::Symlink { Err(Errno::EOPNOTSUPP) } else { Ok(()) };
    }
    let namespaces: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let namespace = namespaces.into_iter().find(|namespace| name.starts_with(namespace)).ok_or(Errno::EOPNOTSUPP)?;
    if name == namespace {
        return Err(Errno::EINVAL);
    }
    let takes_user = matches!(head.kind, FileKind::File | FileKind::Directory);
    if namespace == b"user." && !takes_user { Err(Errno::EPERM) } else { Ok(()) }
}

fn acl_flag(name: &[u8]) -> u8 {
    match name {
        ACCESS_XATTR => HAS_ACCESS_ACL,
        DEFAULT_XATTR => HAS_DEFAULT_ACL,
        _ => 0,
    }
}

/// Writes an attribute, for which there is room.
pub(super) fn put<V: View>(txn: &mut Txn<'_, V>, id: InodeId, name: &[u8], value: &[u8]) -> Result<(), EngineError> {
    let key = xattr::key(id, name);
    let new = txn.get(&key)?.is_none();
    let head = &mut txn.inode_mut(id)?.head;
    head.xattrs += u16::from(new);
    head.flags |= acl_flag(name);
    let value = xattr::encode(value, txn.generation());
    txn.put(key, value);
    Ok(())
}

/// An attribute's bytes.
pub(super) fn get<V: View>(txn: &Txn<'_, V>, id: InodeId, name: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
    Ok(txn.get(&xattr::key(id, name))?.map(xattr::decode).transpose()?)
}

/// Removes an attribute; tells whether it was there.
pub(super) fn drop_one<V: View>(txn: &mut Txn<'_, V>, id: InodeId, name: &[u8]) -> Result<bool, EngineError> {
    let key = xattr::key(id, name);
    if names::child(txn, id)?.xattrs == 0 || txn.get(&key)?.is_none() {
        return Ok(false);
    }
    txn.delete(key);
    let head = &mut txn.inode_mut(id)?.head;
    head.xattrs = head.xattrs.saturating_sub(1);
    head.flags &= !acl_flag(name);
    Ok(true)
}

/// Removes all attributes, of which there are few.
pub(super) fn drop_all<V: View>(txn: &mut Txn<'_, V>, id: InodeId) -> Result<(), EngineError> {
    if names::child(txn, id)?.xattrs == 0 {
        return Ok(());
    }
    let prefix = xattr::prefix(id);
    for key in txn.scan(&prefix, &after(&prefix), usize::MAX, |key, _| Ok(key.to_vec()))? {
        txn.delete(key);
    }
    let head = &mut txn.inode_mut(id)?.head;
    (head.xattrs, head.flags) = (0, 0);
    Ok(())
}
