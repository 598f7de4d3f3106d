//! Content and attributes, verb by verb.

use pando_types::command::{AttrChange, Commit, CommitContent, FileCommit, NewNode, SetTime, XattrMode};
use pando_types::limits::{EXTENTS_PER_RECLAIM_MAX, FILE_BYTES_MAX, XATTRS_PER_INODE_MAX};
use pando_types::{Command, Errno, FileRange, InodeId, Reply, SegmentId, SessionId, SlotId, Timestamp};

use crate::effect::Effect;
use crate::harness::{ROOT, SHARD, World, extent, no_change, xname};
use crate::read;

const ANY: XattrMode = XattrMode::Any;

fn mode(mode: u32) -> AttrChange {
    AttrChange { mode: Some(mode), ..AttrChange::default() }
}

fn results(reply: Reply) -> Vec<Result<u64, Errno>> {
    match reply {
        Reply::Committed(results) => results.into_iter().map(|result| result.map(|attr| attr.size)).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_overwrite_cuts_what_it_covers() {
    let mut world = World::new();
    let file = world.file(ROOT, "f");
    world.write(file, &[(0, 100), (200, 100)]);
    world.write(file, &[(50, 10)]);
    assert_eq!(world.extents(file), [(0, 50, 0), (50, 10, 0), (60, 40, 60), (200, 100, 0)]);
    world.fsck();
    let attr = world.write(file, &[(40, 200)]);
    assert_eq!(world.extents(file), [(0, 40, 0), (40, 200, 0), (240, 60, 40)]);
    assert_eq!((attr.size, attr.allocated), (300, 300));
    assert!(matches!(world.effects.last(), Some(Effect::SegmentDead(SegmentId { sequence: 3, .. }))));
    assert_eq!(read::dead_segments(&world.view(), SHARD, 9).unwrap().len(), 1);
    world.fsck();
    let partial = read::content(&world.view(), file, 239).unwrap();
    assert_eq!(partial.extents.iter().map(|extent| extent.offset).collect::<Vec<_>>(), [40, 240]);
    assert_eq!(read::content(&world.view(), file, 240).unwrap().extents.len(), 1);
}

#[test]
fn dead_segments_wait_until_they_are_forgotten() {
    let mut world = World::new();
    let file = world.file(ROOT, "f");
    world.write(file, &[(0, 10)]);
    let old = SegmentId { session: world.session, sequence: 1 };
    world.write(file, &[(0, 10)]);
    let dead = vec![old];
    assert_eq!(read::dead_segments(&world.view(), SHARD, 9).unwrap(), dead);
    let session = world.session;
    world.lead(Command::CloseSession { session });
    let new = SegmentId { sequence: 2, ..old };
    let never = SegmentId { sequence: 3, ..old };
    assert_eq!(read::segments_in_use(&world.view(), SHARD, &[old, new, never]).unwrap(), [old, new]);
    assert_eq!(world.lead(Command::ForgetSegments { segments: vec![old, new] }), Reply::Done);
    assert_eq!(read::segments_in_use(&world.view(), SHARD, &[old, new, never]).unwrap(), [new]);
    world.fsck();
}

#[test]
fn a_segment_shared_by_files_dies_with_the_last_and_is_of_one_slot() {
    let mut world = World::new();
    let dir = world.make(ROOT, "d", NewNode::Directory { slot: SlotId(5) }).unwrap().inode;
    let (a, b, elsewhere) = (world.file(ROOT, "a"), world.file(ROOT, "b"), world.file(dir, "c"));
    let segment = world.segment(30);
    let part = |inode, at| FileCommit {
        content: CommitContent::Extents(vec![extent(0, 10, segment.id, at)]),
        ..no_change(inode)
    };
    let refused = world.commit(vec![part(a, 0), part(elsewhere, 10)], vec![segment]);
    assert_eq!(refused, Reply::Refused(Errno::EINVAL));
    assert_eq!(results(world.commit(vec![part(a, 0), part(b, 10)], vec![segment])), [Ok(10), Ok(10)]);
    world.fsck();
    world.setattr(a, AttrChange::default(), Some(0)).unwrap();
    assert!(read::dead_segments(&world.view(), SHARD, 9).unwrap().is_empty());
    world.fsck();
    world.setattr(b, AttrChange::default(), Some(0)).unwrap();
    assert_eq!(read::dead_segments(&world.view(), SHARD, 9).unwrap(), [segment.id]);
    world.fsck();
}

#[test]
fn truncation_works_both_ways_on_both_kinds_of_content() {
    let mut world = World::new();
    let file = world.file(ROOT, "f");
    world.write_inline(file, b"hello");
    let version = world.attr(file).unwrap().version;
    let attr = world.setattr(file, AttrChange::default(), Some(2)).unwrap();
    assert_eq!((attr.size, attr.allocated, world.inline(file)), (2, 2, b"he".to_vec()));
    assert!(attr.version > version && attr.mtime == Timestamp(world.time - 1000));
    assert_eq!(world.setattr(file, AttrChange::default(), Some(100)).unwrap().size, 100);
    assert_eq!(world.inline(file), b"he", "the bytes cut off do not come back");
    world.write(file, &[(50, 50)]);
    world.setattr(file, AttrChange::default(), Some(60)).unwrap();
    assert_eq!(world.extents(file), [(50, 10, 0)]);
    let attr = world.setattr(file, AttrChange::default(), Some(FILE_BYTES_MAX)).unwrap();
    assert_eq!((attr.size, attr.allocated), (FILE_BYTES_MAX, 12));
    world.fsck();
    assert_eq!(world.setattr(file, AttrChange::default(), Some(FILE_BYTES_MAX + 1)), Err(Errno::EFBIG));
    assert_eq!(world.setattr(ROOT, AttrChange::default(), Some(0)), Err(Errno::EISDIR));
    let pipe = world.make(ROOT, "p", NewNode::Fifo).unwrap().inode;
    assert_eq!(world.setattr(pipe, AttrChange::default(), Some(0)), Err(Errno::EINVAL));
    assert_eq!(world.setattr(InodeId(99), AttrChange::default(), Some(0)), Err(Errno::ENOENT));
}

#[test]
fn extents_win_over_inline_data_for_ever() {
    let mut world = World::new();
    let file = world.file(ROOT, "f");
    world.write_inline(file, b"0123456789");
    world.write(file, &[(2, 3)]);
    assert_eq!(world.inline(file), b"01\0\0\x0056789");
    world.write(file, &[(8, 20)]);
    assert_eq!(world.inline(file), b"01\0\0\x00567");
    world.fsck();
    let punch = vec![FileRange { offset: 1, length: 5 }];
    world.commit(vec![FileCommit { punch, ..no_change(file) }], vec![]);
    assert_eq!((world.inline(file), world.extents(file)), (b"0\0\0\0\0\x0067".to_vec(), vec![(8, 20, 0)]));
    world.fsck();
    let attr = world.write_inline(file, b"new");
    assert_eq!((attr.size, attr.allocated, world.extents(file)), (3, 3, vec![]));
    world.fsck();
}

#[test]
fn a_commit_applies_its_fields_in_order() {
    let mut world = World::new();
    let file = world.file(ROOT, "f");
    world.write(file, &[(0, 1000)]);
    let segment = world.segment(10);
    let commit = FileCommit {
        inode: file,
        cut: Some(100),
        punch: vec![FileRange { offset: 20, length: 10 }, FileRange { offset: 90, length: u64::MAX - 90 }],
        content: CommitContent::Extents(vec![extent(200, 10, segment.id, 0)]),
        size: 150,
        change: AttrChange { mtime: Some(SetTime::At(Timestamp(-5))), ..mode(0o600) },
    };
    let version = world.attr(file).unwrap().version;
    assert_eq!(results(world.commit(vec![commit], vec![segment])), [Ok(210)], "extents raise the size to their end");
    assert_eq!(world.extents(file), [(0, 20, 0), (30, 60, 30), (200, 10, 0)]);
    let attr = world.attr(file).unwrap();
    assert_eq!((attr.mode, attr.mtime, attr.version), (0o600, Timestamp(-5), version + 1));
    world.fsck();
    let before = attr;
    assert_eq!(results(world.commit(vec![FileCommit { size: 3, ..no_change(file) }], vec![])), [Ok(210)]);
    assert_eq!(world.attr(file).unwrap(), before, "nothing changes: no time, no version");
    let inline = FileCommit { content: CommitContent::Inline(b"x".to_vec()), size: 500, ..no_change(file) };
    assert_eq!(results(world.commit(vec![inline], vec![])), [Ok(500)]);
    world.fsck();
}

#[test]
fn a_file_that_is_gone_does_not_keep_the_others_from_being_committed() {
    let mut world = World::new();
    let file = world.file(ROOT, "f");
    let (kept, lost) = (world.segment(10), world.segment(10));
    let files = vec![
        FileCommit { content: CommitContent::Extents(vec![extent(0, 10, lost.id, 0)]), ..no_change(InodeId(99)) },
        FileCommit { content: CommitContent::Extents(vec![extent(0, 10, kept.id, 0)]), ..no_change(file) },
        no_change(ROOT),
    ];
    let reply = results(world.commit(files, vec![kept, lost]));
    assert_eq!(reply, [Err(Errno::ENOENT), Ok(10), Err(Errno::EISDIR)]);
    assert_eq!(read::dead_segments(&world.view(), SHARD, 9).unwrap(), [lost.id]);
    world.fsck();
}

#[test]
fn commits_that_contradict_themselves_are_refused() {
    let mut world = World::new();
    let file = world.file(ROOT, "f");
    let good = world.segment(100);
    let with = |extents| FileCommit { content: CommitContent::Extents(extents), ..no_change(file) };
    let foreign = SegmentId { session: SessionId(77), sequence: 1 };
    let mut used = world.segment(10);
    world.write(file, &[(0, 10)]);
    used.id.sequence += 1;
    let range = |offset, length| vec![FileRange { offset, length }];
    let cases = [
        (vec![with(vec![extent(0, 0, good.id, 0)])], vec![good], Errno::EINVAL),
        (vec![with(vec![extent(0, 101, good.id, 0)])], vec![good], Errno::EINVAL),
        (vec![with(vec![extent(0, 10, good.id, u64::MAX)])], vec![good], Errno::EINVAL),
        (vec![with(vec![extent(u64::MAX, 10, good.id, 0)])], vec![good], Errno::EFBIG),
        (vec![with(vec![extent(FILE_BYTES_MAX, 10, good.id, 0)])], vec![good], Errno::EFBIG),
        (vec![with(vec![extent(5, 10, good.id, 0), extent(10, 5, good.id, 10)])], vec![good], Errno::EINVAL),
        (vec![with(vec![extent(0, 60, good.id, 0), extent(60, 60, good.id, 0)])], vec![good], Errno::EINVAL),
        (vec![with(vec![extent(0, 10, good.id, 0)])], vec![], Errno::EINVAL),
        (vec![no_change(file), no_change(file)], vec![], Errno::EINVAL),
        (vec![no_change(file)], vec![good, good], Errno::EINVAL),
        (vec![FileCommit { size: u64::MAX, ..no_change(file) }], vec![], Errno::EFBIG),
        (vec![FileCommit { punch: range(0, 0), ..no_change(file) }], vec![], Errno::EINVAL),
        (vec![FileCommit { punch: range(2, u64::MAX), ..no_change(file) }], vec![], Errno::EINVAL),
        (vec![FileCommit { content: CommitContent::Inline(vec![0; 4097]), ..no_change(file) }], vec![], Errno::EINVAL),
        (vec![no_change(file)], vec![pando_types::command::NewSegment { id: foreign, length: 1 }], Errno::ESTALE),
        (vec![with(vec![extent(0, 10, used.id, 0)])], vec![used], Errno::EINVAL),
        (vec![no_change(file)], vec![pando_types::command::NewSegment { length: 17 << 20, ..good }], Errno::EINVAL),
    ];
    for (at, (files, segments, errno)) in cases.into_iter().enumerate() {
        let reply = world.run(Command::Commit(Commit { files, segments }));
        assert_eq!(reply, Reply::Refused(errno), "case {at}");
    }
    world.fsck();
}

#[test]
fn reclaim_is_bounded() {
    let mut world = World::new();
    let file = world.file(ROOT, "f");
    for batch in 0..2u64 {
        let segment = world.segment(EXTENTS_PER_RECLAIM_MAX as u64);
        let extents = (0..3000).map(|at| extent((batch * 3000 + at) * 2, 1, segment.id, at)).collect();
        world.commit(vec![FileCommit { content: CommitContent::Extents(extents), ..no_change(file) }], vec![segment]);
    }
    assert_eq!(world.unlink(ROOT, "f", Some(file)), Reply::Unlinked { inode: file, held: false });
    assert_eq!(world.effects.last(), Some(&Effect::OrphanFree(file)));
    world.effects.clear();
    assert_eq!(world.lead(Command::Reclaim { inodes: vec![file] }), Reply::Reclaimed { inodes: 0 });
    assert_eq!(world.attr(file).unwrap().allocated, 6000 - EXTENTS_PER_RECLAIM_MAX as u64);
    assert_eq!(world.effects.last(), Some(&Effect::OrphanFree(file)));
    world.fsck();
    assert_eq!(world.lead(Command::Reclaim { inodes: vec![file] }), Reply::Reclaimed { inodes: 1 });
    assert_eq!(
        world.lead(Command::Reclaim { inodes: vec![file] }),
        Reply::Reclaimed { inodes: 1 },
        "not an orphan any more"
    );
    assert_eq!(world.lead(Command::Reclaim { inodes: vec![ROOT; 257] }), Reply::Refused(Errno::EINVAL));
    assert_eq!(read::totals(&world.view(), SHARD).unwrap().inodes, 1);
    world.fsck();
}

#[test]
fn a_long_file_is_read_in_pages() {
    let mut world = World::new();
    let file = world.file(ROOT, "f");
    let segment = world.segment(9000);
    let extents = (0..9000).map(|at| extent(at * 2, 1, segment.id, at)).collect();
    world.commit(vec![FileCommit { content: CommitContent::Extents(extents), ..no_change(file) }], vec![segment]);
    let first = read::content(&world.view(), file, 0).unwrap();
    assert_eq!((first.extents.len(), first.more), (8192, true));
    let rest = read::content(&world.view(), file, first.extents.last().unwrap().end()).unwrap();
    assert_eq!((rest.extents.len(), rest.more), (9000 - 8192, false));
}

#[test]
fn owners_and_modes_follow_linux() {
    let mut world = World::new();
    let file = world.file(ROOT, "f");
    let chown = AttrChange { uid: Some(1), ..AttrChange::default() };
    let kill = AttrChange { kill_privileges: true, ..AttrChange::default() };
    for (before, after) in [(0o6755, 0o755), (0o6745, 0o2745), (0o4755, 0o755)] {
        for change in [chown, kill] {
            world.setattr(file, mode(before), None).unwrap();
            assert_eq!(world.setattr(file, change, None).unwrap().mode, after);
        }
    }
    let both = AttrChange { uid: Some(1), ..mode(0o4755) };
    assert_eq!(world.setattr(file, both, None).unwrap().mode, 0o4755, "an explicit mode counts");
    let dir = world.dir(ROOT, "d");
    world.setattr(dir, mode(0o2755), None).unwrap();
    assert_eq!(world.setattr(dir, chown, None).unwrap().mode, 0o2755, "directories keep sgid");
    assert_eq!(world.setattr(file, mode(u32::MAX), None).unwrap().mode, 0o7777);
    let link = world.make(ROOT, "l", NewNode::Symlink { target: b"f".to_vec() }).unwrap().inode;
    assert_eq!(world.setattr(link, mode(0o600), None), Err(Errno::EOPNOTSUPP));
    let before = world.attr(file).unwrap();
    assert_eq!(world.setattr(file, AttrChange::default(), None).unwrap(), before, "nothing asked, nothing changed");
    let times =
        AttrChange { atime: Some(SetTime::At(Timestamp(1))), mtime: Some(SetTime::Now), ..AttrChange::default() };
    let attr = world.setattr(file, times, None).unwrap();
    assert_eq!((attr.atime, attr.mtime), (Timestamp(1), attr.ctime));
    assert!(attr.ctime > before.ctime && attr.version == before.version);
}

#[test]
fn a_change_of_hands_or_content_drops_capabilities() {
    let mut world = World::new();
    let file = world.file(ROOT, "f");
    for change in [
        AttrChange { gid: Some(1), ..AttrChange::default() },
        AttrChange { kill_privileges: true, ..AttrChange::default() },
    ] {
        world.setxattr(file, "security.capability", b"cap", ANY);
        world.setattr(file, change, None).unwrap();
        assert_eq!(world.getxattr(file, "security.capability"), None);
    }
    world.setxattr(file, "security.capability", b"cap", ANY);
    world.write_inline(file, b"new");
    assert_eq!(world.getxattr(file, "security.capability"), None, "other content");
    world.setxattr(file, "security.capability", b"cap", ANY);
    world.setattr(file, AttrChange::default(), Some(1)).unwrap();
    assert_eq!(world.getxattr(file, "security.capability"), None, "less content");
    world.fsck();
}

#[test]
fn xattrs_have_modes_namespaces_and_limits() {
    let mut world = World::new();
    let file = world.file(ROOT, "f");
    let refused = Reply::Refused;
    assert_eq!(world.setxattr(file, "user.a", b"1", XattrMode::Replace), refused(Errno::ENODATA));
    assert_eq!(world.setxattr(file, "user.a", b"1", XattrMode::Create), Reply::Done);
    assert_eq!(world.setxattr(file, "user.a", b"2", XattrMode::Create), refused(Errno::EEXIST));
    assert_eq!(world.setxattr(file, "user.a", b"", XattrMode::Replace), Reply::Done);
    assert_eq!(world.getxattr(file, "user.a"), Some(vec![]));
    assert_eq!(world.setxattr(file, "user.b", &vec![0; 65536], ANY), Reply::Done);
    assert_eq!(world.setxattr(file, "user.b", &vec![0; 65537], ANY), refused(Errno::E2BIG));
    for bad in ["nonsense", "system.other", "usr.a"] {
        assert_eq!(world.setxattr(file, bad, b"1", ANY), refused(Errno::EOPNOTSUPP));
    }
    assert_eq!(world.setxattr(file, "user.", b"1", ANY), refused(Errno::EINVAL));
    let pipe = world.make(ROOT, "p", NewNode::Fifo).unwrap().inode;
    assert_eq!(world.setxattr(pipe, "user.a", b"1", ANY), refused(Errno::EPERM));
    assert_eq!(world.setxattr(pipe, "trusted.a", b"1", ANY), Reply::Done);
    assert_eq!(world.removexattr(file, "user.none"), refused(Errno::ENODATA));
    assert_eq!(world.removexattr(file, "user.b"), Reply::Done);
    assert_eq!(read::listxattr(&world.view(), file).unwrap(), [xname("user.a")]);
    for at in 1..XATTRS_PER_INODE_MAX {
        assert_eq!(world.setxattr(file, &format!("user.x{at}"), b"", ANY), Reply::Done);
    }
    assert_eq!(world.setxattr(file, "user.one-more", b"", ANY), refused(Errno::ENOSPC));
    assert_eq!(world.setxattr(file, "user.a", b"replaced", ANY), Reply::Done);
    world.fsck();
    world.unlink(ROOT, "f", Some(file));
    assert_eq!(world.lead(Command::Reclaim { inodes: vec![file] }), Reply::Reclaimed { inodes: 1 });
    world.fsck();
}

const NONE: u32 = u32::MAX;

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        bytes.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn an_access_acl_and_the_mode_are_one() {
    const ACCESS: &str = "system.posix_acl_access";
    let mut world = World::new();
    let file = world.file(ROOT, "f");
    let named = acl(&[(1, 6, NONE), (2, 6, 1000), (4, 4, NONE), (16, 6, NONE), (32, 0, NONE)]);
    world.setattr(file, mode(0o4644), None).unwrap();
    assert_eq!(world.setxattr(file, ACCESS, &named, ANY), Reply::Done);
    assert_eq!((world.attr(file).unwrap().mode, world.getxattr(file, ACCESS)), (0o4660, Some(named.clone())));
    world.setattr(file, mode(0o751), None).unwrap();
    let changed = acl(&[(1, 7, NONE), (2, 6, 1000), (4, 4, NONE), (16, 5, NONE), (32, 1, NONE)]);
    assert_eq!(world.getxattr(file, ACCESS), Some(changed), "chmod sets the mask, not the group");
    world.fsck();
    assert_eq!(world.setxattr(file, ACCESS, &acl(&[(1, 6, NONE), (4, 0, NONE), (32, 4, NONE)]), ANY), Reply::Done);
    assert_eq!((world.attr(file).unwrap().mode, world.getxattr(file, ACCESS)), (0o604, None), "the mode says it all");
    world.setxattr(file, ACCESS, &named, ANY);
    assert_eq!(world.removexattr(file, ACCESS), Reply::Done);
    assert_eq!(world.removexattr(file, ACCESS), Reply::Done, "twice is fine");
    assert_eq!((world.attr(file).unwrap().mode, world.getxattr(file, ACCESS)), (0o660, None));
    assert_eq!(world.setxattr(file, ACCESS, b"junk", ANY), Reply::Refused(Errno::EOPNOTSUPP));
    assert_eq!(world.setxattr(file, ACCESS, &named[..12], ANY), Reply::Refused(Errno::EINVAL));
    let link = world.make(ROOT, "l", NewNode::Symlink { target: b"f".to_vec() }).unwrap().inode;
    assert_eq!(world.setxattr(link, ACCESS, &named, ANY), Reply::Refused(Errno::EOPNOTSUPP));
    world.fsck();
}

#[test]
fn a_default_acl_is_inherited_instead_of_the_umask() {
    const ACCESS: &str = "system.posix_acl_access";
    const DEFAULT: &str = "system.posix_acl_default";
    let mut world = World::new();
    let (dir, file) = (world.dir(ROOT, "d"), world.file(ROOT, "f"));
    let default = acl(&[(1, 7, NONE), (2, 7, 9), (4, 7, NONE), (16, 7, NONE), (32, 5, NONE)]);
    assert_eq!(
        world.setxattr(file, DEFAULT, &default, ANY),
        Reply::Refused(Errno::EACCES),
        "only directories have one"
    );
    assert_eq!(world.setxattr(dir, DEFAULT, &default, ANY), Reply::Done);
    let child = world.make(dir, "c", NewNode::File).unwrap();
    assert_eq!(child.mode, 0o664, "0666 under the default ACL, the umask not applied");
    let access = acl(&[(1, 6, NONE), (2, 7, 9), (4, 7, NONE), (16, 6, NONE), (32, 4, NONE)]);
    assert_eq!((world.getxattr(child.inode, ACCESS), world.getxattr(child.inode, DEFAULT)), (Some(access), None));
    let sub = world.make(dir, "s", NewNode::Directory { slot: SlotId(3) }).unwrap();
    assert_eq!(world.getxattr(sub.inode, DEFAULT), Some(default));
    let link = world.make(dir, "l", NewNode::Symlink { target: b"x".to_vec() }).unwrap();
    assert_eq!((link.mode, world.getxattr(link.inode, ACCESS)), (0o777, None));
    let plain = acl(&[(1, 7, NONE), (4, 0, NONE), (32, 0, NONE)]);
    world.setxattr(dir, DEFAULT, &plain, ANY);
    let child = world.make(dir, "p", NewNode::File).unwrap();
    assert_eq!((child.mode, world.getxattr(child.inode, ACCESS)), (0o600, None));
    assert_eq!(world.setxattr(dir, DEFAULT, b"", ANY), Reply::Done);
    assert_eq!(world.make(dir, "q", NewNode::File).unwrap().mode, 0o644, "the umask again");
    world.fsck();
    world.rmdir(dir, "s");
    world.fsck();
}
