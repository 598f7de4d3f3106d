//! Extended attributes: namespaces, sizes as the system calls want them, and what the kernel keeps asking for.

use pando_types::command::XattrMode;
use pando_types::{Errno, FsError, InodeId, XattrName};

use super::{Caller, Fs};
use crate::volume::Volume;

/// An answer to a call that first asks for the size.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sized {
    /// The caller's buffer has no room: how much it would need, in bytes.
    Size(u32),
    /// The bytes.
    Data(Vec<u8>),
}

const ACL_NAMES: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

impl<V: Volume> Fs<V> {
    /// `size`: of the caller's buffer; 0 asks for the size.
    pub(crate) async fn getxattr(&self, inode: InodeId, name: &[u8], size: u32) -> Result<Sized, FsError> {
        let name = checked(name)?;
        if self.inodes.is_absent(inode, &name) {
            return Err(Errno::ENODATA.into());
        }
        let changes = self.inodes.xattr_changes(inode);
        match self.volume.getxattr(inode, &name).await {
            Ok(value) => sized(value, size),
            Err(e) => {
                if e.errno == Errno::ENODATA {
                    self.inodes.found_absent(inode, &name, changes);
                }
                Err(e)
            }
        }
    }

    /// Names, each with a NUL after it. `trusted.*` is for root only.
    pub(crate) async fn listxattr(&self, caller: Caller, inode: InodeId, size: u32) -> Result<Sized, FsError> {
        let names = self.volume.listxattr(inode).await?;
        let shown = names.iter().filter(|n| caller.uid == 0 || !n.as_bytes().starts_with(b"trusted."));
        let mut list = Vec::new();
        for name in shown {
            list.extend_from_slice(name.as_bytes());
            list.push(0);
        }
        sized(list, size)
    }

    /// `flags`: XATTR_CREATE or XATTR_REPLACE.
    pub(crate) async fn setxattr(
        &self,
        inode: InodeId,
        name: &[u8],
        value: Vec<u8>,
        flags: i32,
    ) -> Result<(), FsError> {
        let name = checked(name)?;
        let mode = match flags {
            0 => XattrMode::Any,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::EINVAL.into()),
        };
        self.inodes.xattrs_change(inode);
        let result = self.volume.setxattr(inode, &name, value, mode).await;
        self.inodes.xattrs_change(inode);
        result
    }

    pub(crate) async fn removexattr(&self, inode: InodeId, name: &[u8]) -> Result<(), FsError> {
        let name = checked(name)?;
        self.inodes.xattrs_change(inode);
        let result = self.volume.removexattr(inode, &name).await;
        self.inodes.xattrs_change(inode);
        match result {
            // Taking an ACL away that is not there is no error, on ext4 neither.
            Err(e) if e.errno == Errno::ENODATA && ACL_NAMES.contains(&name.as_bytes()) => Ok(()),
            result => result,
        }
    }
}

/// Names of the namespaces that exist. Who may use them has been checked by the kernel.
fn checked(name: &[u8]) -> Result<XattrName, FsError> {
    let known = [&b"user."[..], b"security.", b"trusted."].iter().any(|p| name.starts_with(p) && name.len() > p.len());
    if !known && !ACL_NAMES.contains(&name) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    Ok(XattrName::new(name)?)
}

fn sized(data: Vec<u8>, size: u32) -> Result<Sized, FsError> {
    match size as usize {
        0 => Ok(Sized::Size(data.len() as u32)),
        room if room < data.len() => Err(Errno::ERANGE.into()),
        _ => Ok(Sized::Data(data)),
    }
}
