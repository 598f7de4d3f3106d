//! getattr, and the one way reads fetch an inode.

use pando_types::{Attr, Errno, InodeId};

use crate::error::ReadError;
use crate::keys::inode::{self, Head};
use crate::kv::View;

/// Attributes. ENOENT when the inode is gone.
pub fn getattr(view: &impl View, inode: InodeId) -> Result<Attr, ReadError> {
    head(view, inode).map(|head| head.attr(inode))
}

/// The fixed part alone.
pub(super) fn head(view: &impl View, inode: InodeId) -> Result<Head, ReadError> {
    let value = view.get(&inode::key(inode))?.ok_or(Errno::ENOENT)?;
    Ok(Head::decode(&value)?.0)
}

/// The fixed part and the tail, which keeps its allocation.
pub(super) fn whole(view: &impl View, inode: InodeId) -> Result<(Head, Vec<u8>), ReadError> {
    let mut value = view.get(&inode::key(inode))?.ok_or(Errno::ENOENT)?;
    let (head, tail) = Head::decode(&value)?;
    let fixed = value.len() - tail.len();
    value.drain(..fixed);
    Ok((head, value))
}
