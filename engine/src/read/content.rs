//! Where a file's bytes are, and a symbolic link's target.

use std::ops::ControlFlow;

use pando_types::limits::EXTENTS_PER_PAGE_MAX;
use pando_types::request::Content;
use pando_types::{Errno, Extent, FileKind, InodeId};

use super::inode::whole;
use crate::error::{Corrupt, ReadError};
use crate::keys::{after, extent};
use crate::kv::View;

/// Attributes, inline data and the extents that end after `offset`, at most a page. EISDIR, or EINVAL for what has no content.
pub fn content(view: &impl View, inode: InodeId, offset: u64) -> Result<Content, ReadError> {
    let (head, inline) = whole(view, inode)?;
    match head.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(Errno::EISDIR.into()),
        _ => return Err(Errno::EINVAL.into()),
    }
    let mut content = Content { attr: head.attr(inode), inline, extents: Vec::new(), more: false };
    if head.allocated > content.inline.len() as u64 {
        (content.extents, content.more) = extents(view, inode, offset)?;
    }
    Ok(content)
}

fn extents(view: &impl View, inode: InodeId, offset: u64) -> Result<(Vec<Extent>, bool), ReadError> {
    let mut extents = Vec::new();
    let mut more = false;
    if let Some((key, value)) = view.last(&extent::prefix(inode), &extent::key(inode, offset))? {
        let (_, before, _) = extent::decode(&key, &value)?;
        extents.extend((before.end() > offset).then_some(before));
    }
    let mut damage: Option<Corrupt> = None;
    view.scan(&extent::key(inode, offset), &after(&extent::prefix(inode)), &mut |key, value| {
        if extents.len() == EXTENTS_PER_PAGE_MAX {
            more = true;
            return ControlFlow::Break(());
        }
        match extent::decode(key, value) {
            Ok((_, next, _)) => extents.push(next),
            Err(error) => damage = Some(error),
        }
        if damage.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    damage.map_or(Ok((extents, more)), |error| Err(error.into()))
}

/// A symbolic link's target. EINVAL for anything else.
pub fn readlink(view: &impl View, inode: InodeId) -> Result<Vec<u8>, ReadError> {
    match whole(view, inode)? {
        (head, target) if head.kind == FileKind::Symlink => Ok(target),
        _ => Err(Errno::EINVAL.into()),
    }
}
