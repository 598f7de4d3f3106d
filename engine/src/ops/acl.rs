//! POSIX ACLs where they meet inodes: inherited at creation, kept with chmod, set as an attribute.

use pando_types::attr::MODE_BITS;
use pando_types::command::Create;
use pando_types::{Errno, FileKind, InodeId, Reply};

use super::{OpError, xattr};
use crate::acl::{ACCESS_XATTR, Acl, DEFAULT_XATTR, PERMISSION_BITS};
use crate::error::{Corrupt, EngineError};
use crate::keys::inode::{HAS_ACCESS_ACL, HAS_DEFAULT_ACL, Head};
use crate::kv::View;
use crate::txn::Txn;

/// Permissions of a new inode.
pub(super) struct Inherited {
    pub mode: u32,
    access: Option<Acl>,
    default: Option<Acl>,
}

/// From the directory's default ACL if it has one, else from the umask.
pub(super) fn inherit<V: View>(txn: &Txn<'_, V>, create: &Create, parent: &Head) -> Result<Inherited, EngineError> {
    let mode = create.mode & MODE_BITS;
    let kind = create.node.kind();
    if kind == FileKind::Symlink {
        return Ok(Inherited { mode: PERMISSION_BITS, access: None, default: None });
    }
    if parent.flags & HAS_DEFAULT_ACL == 0 {
        return Ok(Inherited { mode: mode & !(create.umask & PERMISSION_BITS), access: None, default: None });
    }
    let default = load(txn, create.parent, DEFAULT_XATTR)?;
    let (access, permissions) = default.inherit(mode);
    let access = access.equivalent_mode().is_none().then_some(access);
    let default = (kind == FileKind::Directory).then_some(default);
    Ok(Inherited { mode: (mode & !PERMISSION_BITS) | permissions, access, default })
}

impl Inherited {
    /// Gives the ACLs to the new inode.
    pub fn store<V: View>(&self, txn: &mut Txn<'_, V>, id: InodeId) -> Result<(), EngineError> {
        self.xattrs().iter().try_for_each(|(name, value)| xattr::put(txn, id, name, value))
    }

    /// The ACLs as attributes.
    pub fn xattrs(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let acls = [(ACCESS_XATTR, &self.access), (DEFAULT_XATTR, &self.default)];
        acls.into_iter().filter_map(|(name, acl)| Some((name.to_vec(), acl.as_ref()?.encode()))).collect()
    }
}

fn load<V: View>(txn: &Txn<'_, V>, id: InodeId, name: &[u8]) -> Result<Acl, EngineError> {
    let damaged = || Corrupt(format!("inode {id} has an ACL that cannot be read"));
    let value = xattr::get(txn, id, name)?.ok_or_else(damaged)?;
    Ok(Acl::decode(&value).ok().flatten().ok_or_else(damaged)?)
}

/// The mode was set: the access ACL follows.
pub(super) fn chmod<V: View>(txn: &mut Txn<'_, V>, id: InodeId, mode: u32) -> Result<(), EngineError> {
    let has_acl = txn.head(id)?.is_some_and(|head| head.flags & HAS_ACCESS_ACL != 0);
    if !has_acl {
        return Ok(());
    }
    let mut acl = load(txn, id, ACCESS_XATTR)?;
    acl.chmod(mode);
    xattr::put(txn, id, ACCESS_XATTR, &acl.encode())
}

/// Sets an ACL; an empty one removes it. EINVAL, EOPNOTSUPP, EACCES (a default ACL on no directory), ENOSPC.
pub(super) fn set<V: View>(
    txn: &mut Txn<'_, V>,
    id: InodeId,
    head: &Head,
    name: &[u8],
    value: &[u8],
) -> Result<Reply, OpError> {
    let acl = if value.is_empty() { None } else { Acl::decode(value)? };
    let is_default = name == DEFAULT_XATTR;
    let flag = if is_default { HAS_DEFAULT_ACL } else { HAS_ACCESS_ACL };
    if is_default && !head.is_dir() {
        return if acl.is_some() { Err(Errno::EACCES.into()) } else { Ok(Reply::Done) };
    }
    let mut permissions = None;
    let mut stored = acl;
    if let Some(acl) = stored.as_ref().filter(|_| !is_default) {
        permissions = Some(acl.mode());
        if acl.equivalent_mode().is_some() {
            stored = None;
        }
    }
    if stored.is_some() && head.flags & flag == 0 {
        xattr::check_room(head)?;
    }
    match stored {
        Some(acl) => xattr::put(txn, id, name, &acl.encode())?,
        None => drop(xattr::drop_one(txn, id, name)?),
    }
    let now = txn.now();
    let head = &mut txn.inode_mut(id)?.head;
    head.mode = permissions.map_or(head.mode, |bits| (head.mode & !PERMISSION_BITS) | bits);
    head.ctime = now;
    Ok(Reply::Done)
}
