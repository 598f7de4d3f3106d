//! Names and links, verb by verb: what Linux does on ext4 is what must happen.

use pando_types::command::{Create, NewNode, RenameMode};
use pando_types::limits::LINKS_MAX;
use pando_types::{Command, Errno, FileKind, InodeId, Reply, SlotId, Timestamp};

use crate::effect::Effect;
use crate::harness::{ROOT, World, name};
use crate::keys::inode::{Inode, key};
use crate::kv::{Batch, Kv, View};
use crate::read;

const REPLACE: RenameMode = RenameMode::Replace;
const EXCHANGE: RenameMode = RenameMode::Exchange;

fn refused(errno: Errno) -> Reply {
    Reply::Refused(errno)
}

/// Sets an inode's link count by hand: 65,000 real links take too long.
fn set_nlink(world: &World, id: InodeId, nlink: u32) {
    let mut inode = Inode::decode(&world.view().get(&key(id)).unwrap().unwrap()).unwrap();
    inode.head.nlink = nlink;
    let mut batch = Batch::default();
    batch.put(key(id), inode.encode());
    world.engine.kv().write(batch).unwrap();
}

#[test]
fn the_root_comes_with_the_first_entry_at_its_time() {
    let world = World::new();
    let root = world.attr(ROOT).unwrap();
    assert_eq!((root.kind, root.mode, root.nlink, root.uid), (FileKind::Directory, 0o755, 2, 0));
    assert_eq!(root.mtime, Timestamp(1000));
    world.fsck();
}

#[test]
fn create_makes_every_kind() {
    let mut world = World::new();
    let file = world.make(ROOT, "f", NewNode::File).unwrap();
    assert_eq!((file.kind, file.mode, file.nlink, file.uid, file.gid, file.size), (FileKind::File, 0o644, 1, 7, 8, 0));
    assert_eq!((file.mtime, file.ctime, file.atime), (file.mtime, file.mtime, file.mtime));
    let link = world.make(ROOT, "l", NewNode::Symlink { target: b"to".to_vec() }).unwrap();
    assert_eq!((link.kind, link.mode, link.size), (FileKind::Symlink, 0o777, 2));
    assert_eq!(read::readlink(&world.view(), link.inode).unwrap(), b"to");
    let device = world.make(ROOT, "c", NewNode::CharDevice { rdev: 0x103 }).unwrap();
    assert_eq!((device.kind, device.rdev), (FileKind::CharDevice, 0x103));
    let block = world.make(ROOT, "b", NewNode::BlockDevice { rdev: u32::MAX }).unwrap();
    assert_eq!((block.kind, block.rdev), (FileKind::BlockDevice, u32::MAX));
    assert_eq!(world.make(ROOT, "p", NewNode::Fifo).unwrap().kind, FileKind::Fifo);
    assert_eq!(world.make(ROOT, "s", NewNode::Socket).unwrap().kind, FileKind::Socket);
    let dir = world.make(ROOT, "d", NewNode::Directory { slot: SlotId(9) }).unwrap();
    assert_eq!((dir.kind, dir.nlink, dir.inode.slot()), (FileKind::Directory, 2, SlotId(9)));
    let root = world.attr(ROOT).unwrap();
    assert_eq!((root.size, root.nlink), (7, 3));
    assert_eq!((root.mtime, root.ctime), (dir.ctime, dir.ctime));
    let inner = world.file(dir.inode, "x");
    assert_eq!(inner.slot(), SlotId(9), "a file's inode lies with its directory");
    world.fsck();
}

#[test]
fn create_refuses_what_linux_refuses() {
    let mut world = World::new();
    let file = world.file(ROOT, "f");
    let dir = world.dir(ROOT, "d");
    assert_eq!(world.make(ROOT, "f", NewNode::File), Err(Errno::EEXIST));
    assert_eq!(world.make(ROOT, "f", NewNode::Directory { slot: SlotId(0) }), Err(Errno::EEXIST));
    assert_eq!(world.make(file, "x", NewNode::File), Err(Errno::ENOTDIR));
    assert_eq!(world.rmdir(ROOT, "d"), Reply::Done);
    assert_eq!(world.make(dir, "x", NewNode::File), Err(Errno::ENOENT), "the directory was removed");
    assert_eq!(world.make(ROOT, "y", NewNode::Symlink { target: vec![] }), Err(Errno::ENOENT));
    assert_eq!(world.make(ROOT, "y", NewNode::Symlink { target: vec![b'x'; 4096] }), Err(Errno::ENAMETOOLONG));
    assert_eq!(world.make(ROOT, "y", NewNode::Symlink { target: b"a\0b".to_vec() }), Err(Errno::EINVAL));
    assert_eq!(world.make(ROOT, "y", NewNode::Directory { slot: SlotId(SlotId::COUNT) }), Err(Errno::EINVAL));
    set_nlink(&world, ROOT, LINKS_MAX);
    assert_eq!(world.make(ROOT, "y", NewNode::Directory { slot: SlotId(0) }), Err(Errno::EMLINK));
    assert!(world.make(ROOT, "y", NewNode::File).is_ok());
}

#[test]
fn a_sgid_directory_hands_down_its_group() {
    let mut world = World::new();
    let create =
        |parent, text: &str, node, mode| Create { parent, name: name(text), node, mode, umask: 0, uid: 1, gid: 2 };
    let dir = world.make_with(create(ROOT, "d", NewNode::Directory { slot: SlotId(0) }, 0o2775)).unwrap();
    let mut file = create(dir.inode, "f", NewNode::File, 0o660);
    file.gid = 99;
    let file = world.make_with(file).unwrap();
    assert_eq!((file.gid, file.mode), (2, 0o660));
    let mut sub = create(dir.inode, "s", NewNode::Directory { slot: SlotId(0) }, 0o700);
    sub.gid = 99;
    let sub = world.make_with(sub).unwrap();
    assert_eq!((sub.gid, sub.mode), (2, 0o2700));
    world.fsck();
}

#[test]
fn unlink_keeps_what_a_session_holds() {
    let mut world = World::new();
    let held = world.file(ROOT, "held");
    assert_eq!(world.unlink(ROOT, "held", None), Reply::Unlinked { inode: held, held: true });
    assert_eq!(world.attr(held).unwrap().nlink, 0);
    assert_eq!(world.link(held, ROOT, "again"), Err(Errno::ENOENT), "an orphan gets no new name");
    let known = world.file(ROOT, "known");
    assert_eq!(world.unlink(ROOT, "known", Some(known)), Reply::Unlinked { inode: known, held: false });
    assert_eq!(world.attr(known), None, "nothing but the inode: gone at once");
    let wrong = world.file(ROOT, "wrong");
    assert_eq!(world.unlink(ROOT, "wrong", Some(known)), Reply::Unlinked { inode: wrong, held: true });
    assert_eq!(world.unlink(ROOT, "none", None), refused(Errno::ENOENT));
    let dir = world.dir(ROOT, "d");
    assert_eq!(world.unlink(ROOT, "d", None), refused(Errno::EISDIR));
    assert_eq!(world.unlink(held, "x", None), refused(Errno::ENOTDIR));
    assert_eq!(world.rmdir(ROOT, "none"), refused(Errno::ENOENT));
    world.file(dir, "x");
    assert_eq!(world.rmdir(ROOT, "d"), refused(Errno::ENOTEMPTY));
    assert_eq!(world.rmdir(dir, "x"), refused(Errno::ENOTDIR));
    world.fsck();
    assert!(read::free_orphans(&world.view(), crate::harness::SHARD, 9).unwrap().is_empty());
    assert_eq!(world.run(Command::ReleaseOrphans { inodes: vec![held, wrong, ROOT, InodeId(77)] }), Reply::Done);
    assert_eq!((world.attr(held), world.attr(wrong)), (None, None));
    world.fsck();
}

#[test]
fn links_come_and_go_in_any_order() {
    let mut world = World::new();
    let dir = world.dir(ROOT, "d");
    let file = world.file(ROOT, "a");
    assert_eq!(world.link(file, dir, "b").unwrap().nlink, 2);
    assert_eq!(world.link(file, ROOT, "c").unwrap().nlink, 3);
    world.fsck();
    let before = world.attr(file).unwrap().ctime;
    world.unlink(ROOT, "a", None);
    assert!(world.attr(file).unwrap().ctime > before);
    world.fsck();
    assert_eq!(
        world.rename((dir, "b"), (ROOT, "e"), REPLACE),
        Reply::Renamed { inode: file, replaced: None, held: false }
    );
    world.fsck();
    world.unlink(ROOT, "c", None);
    world.fsck();
    assert_eq!(world.unlink(ROOT, "e", Some(file)), Reply::Unlinked { inode: file, held: false });
    assert_eq!(world.attr(file), None);
    world.fsck();
}

#[test]
fn link_refuses_what_linux_refuses() {
    let mut world = World::new();
    let dir = world.dir(ROOT, "d");
    let file = world.file(ROOT, "f");
    assert_eq!(world.link(dir, ROOT, "x"), Err(Errno::EPERM));
    assert_eq!(world.link(file, ROOT, "d"), Err(Errno::EEXIST));
    assert_eq!(world.link(file, file, "x"), Err(Errno::ENOTDIR));
    assert_eq!(world.link(InodeId(99), ROOT, "x"), Err(Errno::ENOENT));
    set_nlink(&world, file, LINKS_MAX);
    assert_eq!(world.link(file, ROOT, "x"), Err(Errno::EMLINK));
}

#[test]
fn rename_replaces_by_the_rules() {
    let mut world = World::new();
    let (a, b) = (world.dir(ROOT, "a"), world.dir(ROOT, "b"));
    let file = world.file(a, "f");
    let old = world.file(b, "g");
    assert_eq!(world.rename((a, "f"), (b, "g"), RenameMode::NoReplace), refused(Errno::EEXIST));
    assert_eq!(
        world.rename((a, "f"), (b, "g"), REPLACE),
        Reply::Renamed { inode: file, replaced: Some(old), held: true }
    );
    assert_eq!((world.lookup(a, "f"), world.lookup(b, "g")), (None, Some(file)));
    assert_eq!((world.attr(a).unwrap().size, world.attr(b).unwrap().size), (0, 1));
    assert_eq!(world.attr(file).unwrap().ctime, world.attr(b).unwrap().mtime, "the moved inode's ctime changes");
    assert_eq!(world.rename((b, "g"), (ROOT, "a"), REPLACE), refused(Errno::EISDIR));
    assert_eq!(world.rename((ROOT, "a"), (b, "g"), REPLACE), refused(Errno::ENOTDIR));
    assert_eq!(world.rename((ROOT, "a"), (ROOT, "b"), REPLACE), refused(Errno::ENOTEMPTY));
    assert_eq!(world.rename((ROOT, "zz"), (ROOT, "b"), REPLACE), refused(Errno::ENOENT));
    assert_eq!(
        world.rename((ROOT, "b"), (ROOT, "a"), REPLACE),
        Reply::Renamed { inode: b, replaced: Some(a), held: false }
    );
    assert_eq!((world.attr(a), world.attr(ROOT).unwrap().nlink, world.attr(ROOT).unwrap().size), (None, 3, 1));
    assert_eq!(world.rename((ROOT, "a"), (a, "x"), REPLACE), refused(Errno::ENOENT), "the new directory was removed");
    world.fsck();
}

#[test]
fn rename_of_two_links_of_an_inode_does_nothing() {
    let mut world = World::new();
    let file = world.file(ROOT, "a");
    world.link(file, ROOT, "b").unwrap();
    let before = (world.attr(file), world.attr(ROOT));
    for mode in [REPLACE, EXCHANGE] {
        assert!(matches!(world.rename((ROOT, "a"), (ROOT, "b"), mode), Reply::Renamed { held: false, .. }));
    }
    assert!(matches!(world.rename((ROOT, "a"), (ROOT, "a"), REPLACE), Reply::Renamed { replaced: None, .. }));
    assert_eq!(world.rename((ROOT, "a"), (ROOT, "a"), RenameMode::NoReplace), refused(Errno::EEXIST));
    assert_eq!((world.attr(file), world.attr(ROOT)), before);
    world.fsck();
}

#[test]
fn rename_makes_no_cycle() {
    let mut world = World::new();
    let a = world.dir(ROOT, "a");
    let b = world.dir(a, "b");
    let c = world.dir(b, "c");
    world.file(c, "f");
    assert_eq!(world.rename((ROOT, "a"), (c, "x"), REPLACE), refused(Errno::EINVAL));
    assert_eq!(world.rename((ROOT, "a"), (a, "x"), REPLACE), refused(Errno::EINVAL));
    assert_eq!(world.rename((ROOT, "a"), (c, "f"), EXCHANGE), refused(Errno::EINVAL));
    assert_eq!(world.rename((c, "f"), (ROOT, "a"), EXCHANGE), refused(Errno::EINVAL));
    assert_eq!(world.rename((c, "f"), (a, "b"), REPLACE), refused(Errno::ENOTEMPTY), "the target is above the source");
    assert!(matches!(world.rename((b, "c"), (ROOT, "c"), REPLACE), Reply::Renamed { .. }));
    assert_eq!(world.parent(c), ROOT);
    assert_eq!((world.attr(b).unwrap().nlink, world.attr(ROOT).unwrap().nlink), (2, 4));
    world.fsck();
}

#[test]
fn exchange_swaps_and_keeps_the_links_right() {
    let mut world = World::new();
    let (a, b) = (world.dir(ROOT, "a"), world.dir(ROOT, "b"));
    let (dir, file) = (world.dir(a, "d"), world.file(b, "f"));
    world.link(file, a, "hard").unwrap();
    assert_eq!(world.rename((a, "d"), (b, "none"), EXCHANGE), refused(Errno::ENOENT));
    let reply = world.rename((a, "d"), (b, "f"), EXCHANGE);
    assert_eq!(reply, Reply::Renamed { inode: dir, replaced: Some(file), held: false });
    assert_eq!((world.lookup(a, "d"), world.lookup(b, "f")), (Some(file), Some(dir)));
    assert_eq!((world.attr(a).unwrap().nlink, world.attr(b).unwrap().nlink), (2, 3));
    assert_eq!(world.parent(dir), b);
    let ctimes = [dir, file].map(|id| world.attr(id).unwrap().ctime);
    assert_eq!(ctimes[0], ctimes[1]);
    world.fsck();
    let empty = world.dir(a, "e");
    world.rename((a, "e"), (b, "f"), EXCHANGE);
    assert_eq!((world.lookup(a, "e"), world.lookup(b, "f")), (Some(dir), Some(empty)));
    world.rename((a, "e"), (a, "d"), EXCHANGE);
    world.fsck();
    set_nlink(&world, b, LINKS_MAX);
    world.rename((b, "f"), (ROOT, "x"), REPLACE);
    set_nlink(&world, b, LINKS_MAX);
    world.file(b, "plain");
    assert_eq!(world.rename((ROOT, "x"), (b, "plain"), EXCHANGE), refused(Errno::EMLINK));
    assert_eq!(world.rename((ROOT, "x"), (b, "y"), REPLACE), refused(Errno::EMLINK));
}

#[test]
fn a_closed_session_leaves_its_orphans_free() {
    let mut world = World::new();
    let held = world.file(ROOT, "f");
    world.setxattr(held, "user.a", b"1", pando_types::command::XattrMode::Any);
    world.write(held, &[(0, 100)]);
    world.unlink(ROOT, "f", None);
    assert_eq!(world.lead(Command::Reclaim { inodes: vec![held] }), Reply::Reclaimed { inodes: 0 }, "it is held");
    let session = world.session;
    assert_eq!(world.lead(Command::CloseSession { session }), Reply::Done);
    assert_eq!(world.lead(Command::CloseSession { session }), Reply::Done, "also for an unknown session");
    assert!(world.effects.ends_with(&[Effect::SessionClosed(session)]));
    assert_eq!(read::free_orphans(&world.view(), crate::harness::SHARD, 9).unwrap(), [held]);
    world.fsck();
    assert_eq!(world.lead(Command::Reclaim { inodes: vec![held] }), Reply::Reclaimed { inodes: 1 });
    assert_eq!(world.attr(held), None);
    assert!(matches!(world.effects.last(), Some(Effect::SegmentDead(..))));
    world.fsck();
    assert_eq!(world.dump().iter().filter(|(key, _)| key[4] == 0x23 || key[4] == 0x22).count(), 0);
}

#[test]
fn operations_of_unknown_sessions_and_outside_the_window_are_stale() {
    use pando_types::limits::SESSION_WINDOW_OPS;
    use pando_types::{Envelope, OpId, SessionId};
    let mut world = World::new();
    let session = world.session;
    let mut send = |session, sequence, acked| {
        let command = Command::Unlink { parent: ROOT, name: name("x"), unheld: None };
        world.apply(Envelope { op: OpId { session, sequence }, acked, command })
    };
    let fresh = refused(Errno::ENOENT);
    assert_eq!(send(SessionId(99), 1, 0), Reply::Stale);
    assert_eq!(send(session, 5, 0), fresh);
    assert_eq!(send(session, SESSION_WINDOW_OPS - 1, 0), fresh);
    assert_eq!(send(session, SESSION_WINDOW_OPS, 0), Reply::Stale, "too far ahead");
    assert_eq!(send(session, SESSION_WINDOW_OPS, 6), fresh);
    assert_eq!(send(session, 5, 0), Reply::Stale, "acknowledged before");
    assert_eq!(send(session, 7, 8), Reply::Stale, "acknowledges itself");
    assert_eq!(send(session, 2000, 2000), fresh);
    assert_eq!(send(session, u64::MAX, u64::MAX), fresh);
    world.fsck();
    assert_eq!(world.dump().iter().filter(|(key, _)| key[4] == 0x43).count(), 1, "acknowledged replies are forgotten");
}

#[test]
fn clients_may_not_lead() {
    let mut world = World::new();
    let other = world.open_session();
    for command in [
        Command::OpenSession,
        Command::Reclaim { inodes: vec![] },
        Command::ForgetSegments { segments: vec![] },
        Command::CloseSession { session: other },
    ] {
        assert_eq!(world.run(command), refused(Errno::EPERM));
    }
    let session = world.session;
    assert_eq!(world.run(Command::CloseSession { session }), Reply::Done, "but end themselves");
    assert_eq!(read::sessions(&world.view(), crate::harness::SHARD).unwrap(), [other]);
}
