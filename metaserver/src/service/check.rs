//! What a client may send: sizes, counts, and whose it is. Pure.
//!
//! Not here: whether it makes sense in the state (engine). Invariant: a command that passes fits in a log entry, is one that
//! clients may send, and speaks for no other session than its own.

use std::collections::HashSet;

use pando_types::attr::MODE_BITS;
use pando_types::command::{AttrChange, Commit, CommitContent, FileCommit, NewNode};
use pando_types::limits::{
    ENTRY_BYTES_MAX, EXTENTS_PER_COMMIT_MAX, FILE_BYTES_MAX, FILES_PER_COMMIT_MAX, INLINE_BYTES_MAX,
    INODES_PER_RELEASE_MAX, SEGMENT_BYTES_MAX, SEGMENTS_PER_REQUEST_MAX, SYMLINK_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
};
use pando_types::{Command, Envelope, Errno, Extent, FsError, SegmentId, SessionId};

use crate::propose::size_bound;

/// Refuses what no well-made client sends; the errno is what the system call would report.
pub(super) fn envelope(envelope: &Envelope) -> Result<(), FsError> {
    if envelope.op.session == SessionId::LEADER {
        return Err(FsError::user(Errno::EPERM));
    }
    command(&envelope.command, envelope.op.session)?;
    if size_bound(&envelope.command) > ENTRY_BYTES_MAX {
        return Err(FsError::user(Errno::E2BIG));
    }
    Ok(())
}

fn command(command: &Command, session: SessionId) -> Result<(), Errno> {
    match command {
        Command::OpenSession
        | Command::CloseSession { .. }
        | Command::JoinSession { .. }
        | Command::Reclaim { .. }
        | Command::ForgetSegments { .. }
        | Command::SetShardMap(_)
        | Command::Prepare { .. }
        | Command::Decide(_)
        | Command::Finish { .. }
        | Command::Abort { .. }
        | Command::Forget { .. }
        | Command::Split { .. } => Err(Errno::EPERM),
        Command::Create(create) => {
            refuse((create.mode | create.umask) & !MODE_BITS != 0, Errno::EINVAL)?;
            match &create.node {
                NewNode::Symlink { target } => symlink_target(target),
                _ => Ok(()),
            }
        }
        Command::SetAttr { change, size, .. } => {
            attr_change(change)?;
            refuse(size.is_some_and(|s| s > FILE_BYTES_MAX), Errno::EFBIG)
        }
        Command::Commit(c) => commit(c, session),
        Command::SetXattr { value, .. } => refuse(value.len() > XATTR_VALUE_BYTES_MAX, Errno::E2BIG),
        Command::ReleaseOrphans { inodes } => refuse(inodes.len() > INODES_PER_RELEASE_MAX, Errno::E2BIG),
        Command::Unlink { .. }
        | Command::Rmdir { .. }
        | Command::Rename(_)
        | Command::Link { .. }
        | Command::RemoveXattr { .. } => Ok(()),
    }
}

fn symlink_target(target: &[u8]) -> Result<(), Errno> {
    refuse(target.is_empty(), Errno::ENOENT)?;
    refuse(target.len() > SYMLINK_BYTES_MAX, Errno::ENAMETOOLONG)?;
    refuse(target.contains(&0), Errno::EINVAL)
}

fn attr_change(change: &AttrChange) -> Result<(), Errno> {
    refuse(change.mode.is_some_and(|m| m & !MODE_BITS != 0), Errno::EINVAL)
}

fn commit(commit: &Commit, session: SessionId) -> Result<(), Errno> {
    refuse(commit.files.len() > FILES_PER_COMMIT_MAX, Errno::E2BIG)?;
    refuse(commit.segments.len() > SEGMENTS_PER_REQUEST_MAX, Errno::E2BIG)?;
    // A segment of an ended session may be collected at any moment; this session's own cannot while it lives.
    refuse(commit.segments.iter().any(|s| s.id.session != session), Errno::ESTALE)?;
    refuse(commit.segments.iter().any(|s| s.length == 0 || s.length > SEGMENT_BYTES_MAX as u64), Errno::EINVAL)?;
    let segments: std::collections::HashMap<SegmentId, u64> =
        commit.segments.iter().map(|s| (s.id, s.length)).collect();
    refuse(segments.len() != commit.segments.len(), Errno::EINVAL)?;
    let mut inodes = HashSet::new();
    let (mut extents, mut punched) = (0, 0);
    for file in &commit.files {
        refuse(!inodes.insert(file.inode), Errno::EINVAL)?;
        punched += file.punch.len();
        extents += file_commit(file, |extent| {
            if extent.segment.slot() != file.inode.slot() {
                return false;
            }
            let length = segments.get(&extent.segment).copied().unwrap_or(0);
            extent.segment_offset.checked_add(extent.length).is_some_and(|end| end <= length)
        })?;
    }
    refuse(extents.max(punched) > EXTENTS_PER_COMMIT_MAX, Errno::E2BIG)
}

/// The number of extents.
fn file_commit(file: &FileCommit, in_segment: impl Fn(&Extent) -> bool) -> Result<usize, Errno> {
    attr_change(&file.change)?;
    refuse(file.size > FILE_BYTES_MAX || file.cut.is_some_and(|c| c > FILE_BYTES_MAX), Errno::EFBIG)?;
    let range = |offset: u64, length: u64| {
        refuse(length == 0, Errno::EINVAL)?;
        refuse(offset.checked_add(length).is_none_or(|end| end > FILE_BYTES_MAX), Errno::EFBIG)
    };
    file.punch.iter().try_for_each(|p| range(p.offset, p.length))?;
    let extents = match &file.content {
        CommitContent::Extents(extents) => extents,
        CommitContent::Inline(bytes) => {
            refuse(bytes.len() > INLINE_BYTES_MAX, Errno::EINVAL)?;
            return Ok(0);
        }
    };
    let mut end = 0;
    for extent in extents {
        range(extent.offset, extent.length)?;
        refuse(extent.offset < end || !in_segment(extent), Errno::EINVAL)?;
        end = extent.end();
    }
    Ok(extents.len())
}

fn refuse(bad: bool, errno: Errno) -> Result<(), Errno> {
    if bad { Err(errno) } else { Ok(()) }
}

#[cfg(test)]
#[path = "check/check_test.rs"]
mod tests;
