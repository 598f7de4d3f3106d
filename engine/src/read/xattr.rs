//! Extended attributes.

use std::ops::ControlFlow;

use pando_types::{Errno, InodeId, XattrName};

use super::inode::head;
use crate::error::{Corrupt, ReadError};
use crate::keys::{after, xattr};
use crate::kv::View;

/// An attribute's value. ENODATA, ENOENT. An inode without attributes answers from its own record.
pub fn getxattr(view: &impl View, inode: InodeId, name: &XattrName) -> Result<Vec<u8>, ReadError> {
    if head(view, inode)?.xattrs == 0 {
        return Err(Errno::ENODATA.into());
    }
    let value = view.get(&xattr::key(inode, name.as_bytes()))?.ok_or(Errno::ENODATA)?;
    Ok(xattr::decode(value)?)
}

/// The names of an inode's attributes, in order of their bytes.
pub fn listxattr(view: &impl View, inode: InodeId) -> Result<Vec<XattrName>, ReadError> {
    let mut names = Vec::new();
    if head(view, inode)?.xattrs == 0 {
        return Ok(names);
    }
    let prefix = xattr::prefix(inode);
    let mut damage: Option<Corrupt> = None;
    view.scan(&prefix, &after(&prefix), &mut |key, _| match xattr::parse(key) {
        Ok((_, name)) => {
            names.push(name);
            ControlFlow::Continue(())
        }
        Err(error) => {
            damage = Some(error);
            ControlFlow::Break(())
        }
    })?;
    damage.map_or(Ok(names), |error| Err(error.into()))
}
