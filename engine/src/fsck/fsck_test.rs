//! Each invariant, broken by hand, is found.

use pando_types::command::{NewNode, XattrMode};
use pando_types::{FileKind, Generation, InodeId, SegmentId, SessionId, SlotId, Timestamp};

use super::fsck;
use crate::harness::{ROOT, SHARD, World, name};
use crate::keys::dentry::{self, Dentry};
use crate::keys::inode::{self, HAS_DEFAULT_ACL, Head, Inode};
use crate::keys::orphan::{self, Orphan};
use crate::keys::segment::{self, Segment};
use crate::keys::shard::{State, state_key};
use crate::keys::usage::{self, Usage};
use crate::keys::{backlink, counter, extent, op_result, session, xattr};
use crate::kv::{Batch, Kv, View};

/// Root with `d/` (slot 4; in it `link`), `f` (inline, extents, xattr; also `d/link`), `big`; an orphan; a dead segment.
struct Sample {
    world: World,
    dir: InodeId,
    file: InodeId,
    big: InodeId,
    orphan: InodeId,
}

fn sample() -> Sample {
    let mut world = World::new();
    let dir = world.make(ROOT, "d", NewNode::Directory { slot: SlotId(4) }).unwrap().inode;
    let file = world.file(ROOT, "f");
    world.write_inline(file, b"abc");
    world.write(file, &[(10, 10), (30, 10)]);
    world.setxattr(file, "user.a", b"1", XattrMode::Any);
    world.link(file, dir, "link").unwrap();
    let big = world.file(ROOT, "big");
    world.write(big, &[(0, 50)]);
    world.write(big, &[(0, 50)]);
    let orphan = world.file(ROOT, "o");
    world.unlink(ROOT, "o", None);
    world.make(ROOT, "s", NewNode::Symlink { target: b"x".to_vec() }).unwrap();
    world.make(ROOT, "p", NewNode::Fifo).unwrap();
    world.fsck();
    Sample { world, dir, file, big, orphan }
}

impl Sample {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) {
        let mut batch = Batch::default();
        batch.put(key, value);
        self.world.engine.kv().write(batch).unwrap();
    }

    fn delete(&self, key: Vec<u8>) {
        assert!(self.world.view().get(&key).unwrap().is_some(), "there is nothing to delete");
        let mut batch = Batch::default();
        batch.delete(key);
        self.world.engine.kv().write(batch).unwrap();
    }

    fn edit(&self, id: InodeId, edit: impl Fn(&mut Inode)) {
        let mut inode = Inode::decode(&self.world.view().get(&inode::key(id)).unwrap().unwrap()).unwrap();
        edit(&mut inode);
        self.put(inode::key(id), inode.encode());
    }

    fn head(&self, id: InodeId, edit: impl Fn(&mut Head)) {
        self.edit(id, |inode| edit(&mut inode.head));
    }

    fn segment(&self, sequence: u64) -> SegmentId {
        SegmentId { session: self.world.session, sequence }
    }

    #[track_caller]
    fn finds(&self, words: &str) {
        let problems = fsck(&self.world.view(), SHARD).unwrap().problems;
        assert!(problems.iter().any(|problem| problem.contains(words)), "no \"{words}\" in {problems:#?}");
    }
}

fn entry(inode: InodeId, kind: FileKind) -> Vec<u8> {
    Dentry { inode, kind, birth: Generation::FIRST }.encode()
}

/// Breaks a fresh sample and looks for the words.
#[track_caller]
fn broken(words: &str, break_it: impl Fn(&Sample)) {
    let sample = sample();
    break_it(&sample);
    sample.finds(words);
}

#[test]
fn the_sample_is_clean_and_counted() {
    let sample = sample();
    let report = fsck(&sample.world.view(), SHARD).unwrap();
    assert_eq!((report.inodes, report.orphans, report.dead_segments), (7, 0, 1), "the orphan is held");
    sample.world.fsck();
}

#[test]
fn names() {
    let link = name("link");
    broken("does not exist", |s| s.put(dentry::key(ROOT, &name("x")), entry(InodeId(99), FileKind::File)));
    broken("is no directory", |s| s.put(dentry::key(s.big, &name("x")), entry(s.file, FileKind::File)));
    broken("another kind", |s| s.put(dentry::key(ROOT, &name("f")), entry(s.file, FileKind::Fifo)));
    broken("a further one", |s| s.put(dentry::key(ROOT, &name("f2")), entry(s.file, FileKind::File)));
    broken("whose parent is", |s| s.put(dentry::key(s.dir, &name("f2")), entry(s.file, FileKind::File)));
    broken("has no links", |s| s.put(dentry::key(ROOT, &name("f2")), entry(s.orphan, FileKind::File)));
    broken("means the root", |s| s.put(dentry::key(s.dir, &name("r")), entry(ROOT, FileKind::Directory)));
    broken("links and no name", |s| s.delete(dentry::key(ROOT, &name("f"))));
    broken("links and no name", |s| s.delete(dentry::key(ROOT, &name("d"))));
    broken("which is not its", |s| s.delete(dentry::key(s.dir, &link)));
    broken("back-links", |s| s.delete(backlink::key(s.file, s.dir, &link)));
    broken("a back-link belongs to", |s| {
        s.put(backlink::key(s.dir, ROOT, &name("d")), backlink::encode(Generation::FIRST));
    });
    broken("of no known kind", |s| s.put(vec![0, 0, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 1], vec![1]));
    broken("no place", |s| s.put(vec![0, 0, 0, 0, 0x42, 0, 0, 0, 0, 0, 0, 0, 1], vec![1]));
}

#[test]
fn directories() {
    broken("entries", |s| s.head(ROOT, |head| head.size += 1));
    broken("subdirectories", |s| s.head(s.dir, |head| head.nlink += 1));
    broken("has parent", |s| s.head(ROOT, |head| head.parent = InodeId(2)));
    broken("content of its own", |s| s.edit(s.dir, |inode| inode.tail.push(1)));
    broken("no root directory", |s| s.delete(inode::key(ROOT)));
    broken("does not hang under the root", |s| {
        let below = dentry::key(s.dir, &name("loop"));
        s.delete(dentry::key(ROOT, &name("d")));
        s.put(below, entry(s.dir, FileKind::Directory));
        s.head(s.dir, |head| (head.parent, head.size, head.nlink) = (s.dir, 2, 3));
    });
}

#[test]
fn inodes() {
    broken("is not below its slot's counter", |s| s.put(counter::key(SlotId(0)), counter::encode(3)));
    broken("has not begun", |s| s.head(s.file, |head| head.birth = Generation(9)));
    broken("totals", |s| s.put(inode::key(InodeId::new(SlotId(0), 3)), vec![1]));
    broken("totals", |s| {
        let state = State::decode(&s.world.view().get(&state_key(SHARD)).unwrap().unwrap()).unwrap();
        s.put(state_key(SHARD), State { bytes: state.bytes + 1, ..state }.encode());
    });
    broken("no shard state", |s| s.delete(state_key(SHARD)));
    broken("bytes of target", |s| s.edit(s.world.lookup(ROOT, "s").unwrap(), |inode| inode.tail.push(b'y')));
    broken("special file", |s| s.head(s.world.lookup(ROOT, "p").unwrap(), |head| head.size = 1));
    broken("and says", |s| s.head(s.file, |head| head.xattrs = 2));
    broken("kind Xattr belongs to", |s| s.head(s.file, |head| head.xattrs = 0));
    broken("kind Xattr belongs to", |s| s.put(xattr::key(s.big, b"user.b"), xattr::encode(b"", Generation::FIRST)));
    broken("ACL flags", |s| s.head(s.dir, |head| head.flags = HAS_DEFAULT_ACL));
    broken("cannot be read", |s| {
        s.put(xattr::key(s.file, b"system.posix_acl_access"), xattr::encode(b"junk", Generation::FIRST))
    });
    broken("kind Xattr belongs to", |s| {
        s.put(xattr::key(InodeId(99), b"user.b"), xattr::encode(b"", Generation::FIRST))
    });
}

#[test]
fn orphans() {
    broken("no links and no orphan record", |s| s.delete(orphan::key(s.orphan)));
    broken("missing among those", |s| s.delete(orphan::index_key(s.world.session, s.orphan)));
    broken("has 1 links", |s| {
        s.put(orphan::key(s.big), Orphan { holder: SessionId(0), birth: Generation::FIRST }.encode());
    });
    broken("has no inode", |s| s.delete(inode::key(s.orphan)));
    broken("which is not so", |s| s.put(orphan::index_key(SessionId(0), s.big), orphan::index_value()));
}

#[test]
fn files() {
    broken("says it occupies", |s| s.head(s.big, |head| head.allocated -= 1));
    broken("beyond its size", |s| s.head(s.big, |head| head.size = 49));
    broken("has size", |s| s.head(s.big, |head| head.size = u64::MAX));
    broken("bytes of inline data", |s| s.edit(s.file, |inode| inode.tail = vec![0; 4097]));
    broken("inline data under", |s| s.edit(s.file, |inode| inode.tail = vec![7; 11]));
    broken("overlapping", |s| {
        let whole = crate::harness::extent(25, 10, s.segment(1), 0);
        s.put(extent::key(s.file, 25), extent::encode(&whole, Generation::FIRST));
    });
    broken("kind Extent belongs to", |s| s.head(s.big, |head| head.allocated = 0));
    broken("kind Extent belongs to", |s| {
        let whole = crate::harness::extent(0, 10, s.segment(1), 0);
        s.put(extent::key(s.dir, 0), extent::encode(&whole, Generation::FIRST));
    });
}

#[test]
fn segments() {
    let live = |live| Segment { length: 10, live, birth: Generation::FIRST }.encode();
    broken("says 9 live bytes", |s| s.put(segment::key(s.segment(1)), live(9)));
    broken("live of 10 bytes", |s| s.put(segment::key(s.segment(1)), live(11)));
    broken("and no record", |s| s.delete(segment::key(s.segment(1))));
    broken("dead and in use", |s| s.put(segment::dead_key(s.segment(1)), segment::encode_dead(10)));
    broken("slot 0 says", |s| s.put(usage::key(SlotId(0)), Usage { inodes: 1, bytes: 1 }.encode()));
}

#[test]
fn sessions() {
    let opened = session::Session { acked: 500, opened: Timestamp(0) };
    broken("never given out", |s| s.put(session::key(SHARD, SessionId(9)), opened.encode()));
    broken("outside its window", |s| s.put(session::key(SHARD, s.world.session), opened.encode()));
    broken("is not open", |s| s.delete(session::key(SHARD, s.world.session)));
    broken("cannot be read", |s| {
        let junk = op_result::OpResults([(0, vec![9])].into());
        s.put(op_result::key(SHARD, s.world.session, 1), junk.encode());
    });
}
