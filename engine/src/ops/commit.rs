//! Commit: stored bytes become part of files; sizes and attributes with them.
//!
//! The command is refused as a whole when it contradicts itself or names segments that it may not; a file that is gone only
//! concerns itself. Invariant: extents end within the file's size.

use std::collections::{BTreeMap, BTreeSet};

use pando_types::command::{AttrChange, Commit, CommitContent, FileCommit, SetTime};
use pando_types::limits::{
    EXTENTS_PER_COMMIT_MAX, FILE_BYTES_MAX, FILES_PER_COMMIT_MAX, INLINE_BYTES_MAX, SEGMENT_BYTES_MAX,
};
use pando_types::{Attr, Errno, Extent, FileKind, Reply, SegmentId};

use super::{OpError, extents, names, segments, setattr};
use crate::error::EngineError;
use crate::kv::View;
use crate::txn::Txn;

/// Bytes that this commit makes live, per segment.
type Live = BTreeMap<SegmentId, u64>;

/// EINVAL, EFBIG; ESTALE for segments of a session that has ended, since they may be collected any moment. Per file: ENOENT, EISDIR, EINVAL.
pub(super) fn commit<V: View>(txn: &mut Txn<'_, V>, commit: &Commit) -> Result<Reply, OpError> {
    check(commit)?;
    for new in &commit.segments {
        if !txn.session_alive(new.id.session)? {
            return Err(Errno::ESTALE.into());
        }
        // A segment is committed once: after that it may die and be deleted.
        if segments::is_known(txn, new.id)? {
            return Err(Errno::EINVAL.into());
        }
    }
    let mut live = Live::new();
    let mut results = Vec::with_capacity(commit.files.len());
    for file in &commit.files {
        results.push(match commit_file(txn, file, &mut live) {
            Ok(attr) => Ok(attr),
            Err(OpError::Refused(errno)) => Err(errno),
            Err(other) => return Err(other),
        });
    }
    for new in &commit.segments {
        segments::add(txn, new.id, new.length, live.remove(&new.id).unwrap_or(0));
    }
    Ok(Reply::Committed(results))
}

/// What can be checked without the state.
fn check(commit: &Commit) -> Result<(), Errno> {
    let files: BTreeSet<_> = commit.files.iter().map(|file| file.inode).collect();
    let mut room: BTreeMap<SegmentId, (u64, u64)> = BTreeMap::new();
    for new in &commit.segments {
        if new.length == 0 || new.length > SEGMENT_BYTES_MAX as u64 || room.insert(new.id, (new.length, 0)).is_some() {
            return Err(Errno::EINVAL);
        }
    }
    if files.len() != commit.files.len() || files.len() > FILES_PER_COMMIT_MAX {
        return Err(Errno::EINVAL);
    }
    let mut ranges = 0;
    for file in &commit.files {
        ranges += check_file(file, &mut room)?;
    }
    if ranges > EXTENTS_PER_COMMIT_MAX { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Tells how many ranges and extents the file has.
fn check_file(file: &FileCommit, room: &mut BTreeMap<SegmentId, (u64, u64)>) -> Result<usize, Errno> {
    if file.size > FILE_BYTES_MAX {
        return Err(Errno::EFBIG);
    }
    if file.punch.iter().any(|range| range.length == 0 || range.offset.checked_add(range.length).is_none()) {
        return Err(Errno::EINVAL);
    }
    match &file.content {
        CommitContent::Inline(data) if data.len() > INLINE_BYTES_MAX => Err(Errno::EINVAL),
        CommitContent::Inline(_) => Ok(file.punch.len()),
        CommitContent::Extents(extents) => {
            let mut end = 0;
            for extent in extents {
                if extent.segment.slot() != file.inode.slot() {
                    return Err(Errno::EINVAL);
                }
                end = check_extent(extent, end, room)?;
            }
            Ok(file.punch.len() + extents.len())
        }
    }
}

/// Tells where the extent ends; the one before ended at `from`.
fn check_extent(extent: &Extent, from: u64, room: &mut BTreeMap<SegmentId, (u64, u64)>) -> Result<u64, Errno> {
    let (length, used) = room.get_mut(&extent.segment).ok_or(Errno::EINVAL)?;
    let segment_end = extent.segment_offset.checked_add(extent.length).ok_or(Errno::EINVAL)?;
    let end = extent.offset.checked_add(extent.length).ok_or(Errno::EFBIG)?;
    if extent.length == 0 || extent.offset < from || segment_end > *length || extent.length > *length - *used {
        return Err(Errno::EINVAL);
    }
    *used += extent.length;
    if end > FILE_BYTES_MAX { Err(Errno::EFBIG) } else { Ok(end) }
}

fn commit_file<V: View>(txn: &mut Txn<'_, V>, file: &FileCommit, live: &mut Live) -> Result<Attr, OpError> {
    let id = file.inode;
    let old = txn.head(id)?.ok_or(Errno::ENOENT)?;
    match old.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(Errno::EISDIR.into()),
        _ => return Err(Errno::EINVAL.into()),
    }
    let mut size = old.size;
    if let Some(cut) = file.cut.filter(|cut| *cut < size) {
        extents::clear(txn, id, cut, u64::MAX)?;
        size = cut;
        txn.inode_mut(id)?.head.size = size;
    }
    for range in &file.punch {
        extents::clear(txn, id, range.offset, range.end())?;
    }
    let written = put_content(txn, file, &mut size, live)?;
    size = size.max(file.size);
    let changed = written || file.cut.is_some() || !file.punch.is_empty() || size != old.size;
    let now = txn.now();
    let head = &mut txn.inode_mut(id)?.head;
    head.size = size;
    if changed {
        head.version += 1;
        head.ctime = now;
        setattr::content_changed(txn, id)?;
    }
    let mtime = file.change.mtime.or(changed.then_some(SetTime::Now));
    setattr::change(txn, id, &AttrChange { mtime, ..file.change })?;
    Ok(names::child(txn, id)?.attr(id))
}

/// Tells whether there was any content. `size` is the size so far, before and after.
fn put_content<V: View>(
    txn: &mut Txn<'_, V>,
    file: &FileCommit,
    size: &mut u64,
    live: &mut Live,
) -> Result<bool, EngineError> {
    let id = file.inode;
    match &file.content {
        CommitContent::Inline(data) => {
            extents::put_inline(txn, id, data)?;
            *size = data.len() as u64;
            Ok(true)
        }
        CommitContent::Extents(new) => {
            for extent in new {
                extents::put(txn, id, extent)?;
                *live.entry(extent.segment).or_default() += extent.length;
                *size = (*size).max(extent.end());
            }
            Ok(!new.is_empty())
        }
    }
}
