//! Each rule, and one command that breaks it.

use pando_types::command::{Create, NewSegment};
use pando_types::{FileName, FileRange, InodeId, OpId, SlotId, XattrName};

use super::*;

const SESSION: SessionId = SessionId(4);
const SEGMENT: SegmentId = SegmentId { session: SESSION, sequence: 1 };

fn verdict(command: Command) -> Result<(), Errno> {
    let op = OpId { session: SESSION, sequence: 1 };
    envelope(&Envelope { op, acked: 0, command }).map_err(|e| e.errno)
}

fn file(content: CommitContent) -> FileCommit {
    FileCommit { inode: InodeId(9), cut: None, punch: Vec::new(), content, size: 0, change: AttrChange::default() }
}

fn extent(offset: u64, length: u64, segment_offset: u64) -> Extent {
    Extent { offset, length, segment: SEGMENT, segment_offset }
}

fn commit_of(files: Vec<FileCommit>) -> Command {
    Command::Commit(Commit { files, segments: vec![NewSegment { id: SEGMENT, length: 100 }] })
}

fn extents(extents: Vec<Extent>) -> Command {
    commit_of(vec![file(CommitContent::Extents(extents))])
}

fn create(node: NewNode, mode: u32) -> Command {
    let name = FileName::new(b"x").unwrap();
    Command::Create(Create { parent: InodeId::ROOT, name, node, mode, umask: 0o022, uid: 0, gid: 0 })
}

#[test]
fn good_commands_pass() {
    for command in [
        create(NewNode::Directory { slot: SlotId(0) }, 0o1777),
        create(NewNode::Symlink { target: vec![b'x'; SYMLINK_BYTES_MAX] }, 0o777),
        extents(vec![extent(0, 60, 40), extent(60, 40, 0)]),
        commit_of(vec![file(CommitContent::Inline(vec![0; INLINE_BYTES_MAX]))]),
        Command::SetXattr {
            inode: InodeId(1),
            name: XattrName::new(b"user.x").unwrap(),
            value: vec![0; XATTR_VALUE_BYTES_MAX],
            mode: pando_types::command::XattrMode::Any,
        },
    ] {
        assert_eq!(verdict(command.clone()), Ok(()), "{command:?}");
    }
}

#[test]
fn commands_of_the_leader_and_of_other_sessions_are_refused() {
    for command in [
        Command::OpenSession,
        Command::Reclaim { inodes: vec![] },
        Command::ForgetSegments { segments: vec![] },
        Command::CloseSession { session: SessionId(5) },
    ] {
        assert_eq!(verdict(command), Err(Errno::EPERM));
    }
    let op = OpId { session: SessionId::LEADER, sequence: 1 };
    let command = create(NewNode::File, 0);
    assert!(envelope(&Envelope { op, acked: 0, command }).is_err());
}

#[test]
fn sizes_and_counts_are_bounded() {
    let many = |n: usize| (0..n as u64).map(|i| extent(i * 2, 1, 0)).collect::<Vec<_>>();
    for (command, errno) in [
        (create(NewNode::Symlink { target: vec![] }, 0), Errno::ENOENT),
        (create(NewNode::Symlink { target: vec![b'x'; SYMLINK_BYTES_MAX + 1] }, 0), Errno::ENAMETOOLONG),
        (create(NewNode::Symlink { target: b"a\0".to_vec() }, 0), Errno::EINVAL),
        (create(NewNode::File, 0o10_0644), Errno::EINVAL),
        (commit_of(vec![file(CommitContent::Inline(vec![0; INLINE_BYTES_MAX + 1]))]), Errno::EINVAL),
        (commit_of((0..=FILES_PER_COMMIT_MAX).map(|_| file(CommitContent::Inline(vec![]))).collect()), Errno::E2BIG),
        (extents(many(EXTENTS_PER_COMMIT_MAX + 1)), Errno::E2BIG),
        (Command::ReleaseOrphans { inodes: vec![InodeId(1); INODES_PER_RELEASE_MAX + 1] }, Errno::E2BIG),
        (
            Command::SetAttr { inode: InodeId(1), change: AttrChange::default(), size: Some(FILE_BYTES_MAX + 1) },
            Errno::EFBIG,
        ),
        (
            Command::SetXattr {
                inode: InodeId(1),
                name: XattrName::new(b"user.x").unwrap(),
                value: vec![0; XATTR_VALUE_BYTES_MAX + 1],
                mode: pando_types::command::XattrMode::Any,
            },
            Errno::E2BIG,
        ),
    ] {
        assert_eq!(verdict(command), Err(errno));
    }
}

#[test]
fn a_commit_must_make_sense_by_itself() {
    let punch = |offset, length| {
        let mut f = file(CommitContent::Extents(vec![]));
        f.punch = vec![FileRange { offset, length }];
        commit_of(vec![f])
    };
    let other = SegmentId { session: SessionId(5), sequence: 1 };
    let segments = |id, length| Command::Commit(Commit { files: vec![], segments: vec![NewSegment { id, length }] });
    for (command, errno) in [
        (extents(vec![extent(0, 61, 40)]), Errno::EINVAL),
        (extents(vec![extent(0, u64::MAX, 40)]), Errno::EFBIG),
        (extents(vec![extent(0, 1, u64::MAX)]), Errno::EINVAL),
        (extents(vec![extent(0, 0, 0)]), Errno::EINVAL),
        (extents(vec![extent(5, 5, 0), extent(9, 5, 0)]), Errno::EINVAL),
        (extents(vec![Extent { segment: other, ..extent(0, 1, 0) }]), Errno::EINVAL),
        (segments(other, 1), Errno::ESTALE),
        (segments(SEGMENT, 0), Errno::EINVAL),
        (segments(SEGMENT, SEGMENT_BYTES_MAX as u64 + 1), Errno::EINVAL),
        (commit_of(vec![file(CommitContent::Inline(vec![])), file(CommitContent::Inline(vec![]))]), Errno::EINVAL),
        (punch(0, 0), Errno::EINVAL),
        (punch(FILE_BYTES_MAX, 1), Errno::EFBIG),
        (punch(u64::MAX, u64::MAX), Errno::EFBIG),
    ] {
        assert_eq!(verdict(command.clone()), Err(errno), "{command:?}");
    }
}
