//! Commands that no client should send: any field may be anything. Nothing panics, nothing halts, the state stays whole.

use std::sync::Arc;

use pando_engine::keys::slots::Slots;
use pando_engine::kv::mem::MemKv;
use pando_engine::{Engine, Kv, read};
use pando_types::command::{
    AttrChange, Commit, CommitContent, Create, FileCommit, NewNode, NewSegment, Rename, RenameMode, SetTime, XattrMode,
};
use pando_types::shard_map::ShardMap;
use pando_types::{
    Command, Envelope, Extent, FileName, FileRange, Generation, InodeId, LogEntry, MapEpoch, NodeId, OpId, SegmentId,
    SessionId, SlotId, Timestamp, XattrName,
};

use crate::random::Random;
use crate::{SHARD, assert_clean, seeds};

struct Hostile(Random);

impl Hostile {
    /// Numbers at the edges of things.
    fn number(&mut self) -> u64 {
        let edges = [0, 1, 2, 3, 4, 10, 4095, 4096, 4097, 1 << 24, 1 << 32, 1 << 44, i64::MAX as u64, u64::MAX];
        let edge = *self.0.pick(&edges);
        match self.0.below(4) {
            0 => edge.wrapping_add(self.0.below(3)).wrapping_sub(1),
            1 => self.0.below(64),
            _ => edge,
        }
    }

    fn inode(&mut self) -> InodeId {
        if self.0.one_in(8) { InodeId(self.number()) } else { InodeId(1 + self.0.below(30)) }
    }

    fn session(&mut self) -> SessionId {
        SessionId(if self.0.one_in(10) { self.number() } else { self.0.below(4) })
    }

    fn name(&mut self) -> FileName {
        FileName::new(self.0.pick(&["a", "b", "c", "d", "\u{1}", "zz"]).as_bytes()).unwrap()
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = [0, 1, 4, 12, 28, 36, 4096, 4097, 65536, 65537][self.0.below(10) as usize];
        let mut bytes = vec![0; length];
        if self.0.one_in(2) {
            // Often an ACL, sometimes a valid one.
            let tags = [1, 2, 4, 16, 32, 8, 64];
            for (at, byte) in [2, 0, 0, 0].into_iter().enumerate().take(length.min(4)) {
                bytes[at] = byte;
            }
            for (at, entry) in bytes.iter_mut().skip(4).step_by(8).enumerate() {
                *entry = if self.0.one_in(10) { *self.0.pick(&tags) } else { tags[at.min(6)] };
            }
        } else {
            bytes.iter_mut().take(64).for_each(|byte| *byte = self.0.next() as u8);
        }
        bytes
    }

    fn segment(&mut self) -> SegmentId {
        SegmentId {
            session: self.session(),
            sequence: if self.0.one_in(9) { self.number() } else { self.0.next() % 100_000 },
        }
    }

    fn change(&mut self) -> AttrChange {
        let time = SetTime::At(Timestamp(self.number() as i64));
        AttrChange {
            mode: self.0.one_in(3).then(|| self.number() as u32),
            uid: self.0.one_in(3).then(|| self.number() as u32),
            gid: self.0.one_in(3).then(|| self.number() as u32),
            atime: self.0.one_in(3).then_some(time),
            mtime: self.0.one_in(3).then_some(SetTime::Now),
            kill_privileges: self.0.one_in(2),
        }
    }

    fn node(&mut self) -> NewNode {
        let rdev = self.number() as u32;
        match self.0.below(8) {
            0..=2 => NewNode::File,
            3 | 4 => NewNode::Directory { slot: SlotId(if self.0.one_in(3) { self.number() as u32 } else { 0 }) },
            5 => NewNode::Symlink { target: self.bytes() },
            6 => NewNode::CharDevice { rdev },
            _ => NewNode::Socket,
        }
    }

    fn commit(&mut self) -> Commit {
        let whole = NewSegment { id: self.segment(), length: 1 << 20 };
        let mut segments = vec![whole];
        if self.0.one_in(6) {
            segments.push(NewSegment { id: self.segment(), length: self.number() });
        }
        let files = (0..self.0.below(4)).map(|_| self.file(whole.id)).collect();
        Commit { files, segments }
    }

    fn file(&mut self, segment: SegmentId) -> FileCommit {
        let mut extents = Vec::new();
        for at in 0..self.0.below(4) {
            let wild = self.0.one_in(6);
            let number = |hostile: &mut Hostile, tame: u64| if wild { hostile.number() } else { tame };
            extents.push(Extent {
                offset: number(self, at * 100),
                length: number(self, 90),
                segment: if wild { self.segment() } else { segment },
                segment_offset: number(self, at * 90),
            });
        }
        let bytes = self.bytes();
        FileCommit {
            inode: self.inode(),
            cut: self.0.one_in(3).then(|| self.number()),
            punch: (0..self.0.below(3)).map(|_| FileRange { offset: self.number(), length: self.number() }).collect(),
            content: if self.0.one_in(4) { CommitContent::Inline(bytes) } else { CommitContent::Extents(extents) },
            size: self.number(),
            change: self.change(),
        }
    }

    fn shard_map(&mut self) -> ShardMap {
        let mut map = ShardMap::single(NodeId(self.number() >> 1), "h:1".into());
        map.epoch = MapEpoch(self.0.below(4));
        if self.0.one_in(3) {
            map.ranges[0].last = SlotId(self.number() as u32);
        }
        map
    }

    fn command(&mut self) -> Command {
        let names =
            ["user.a", "user.", "system.posix_acl_access", "system.posix_acl_default", "security.capability", "x"];
        let xattr = XattrName::new(self.0.pick(&names).as_bytes()).unwrap();
        let mode = *self.0.pick(&[RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]);
        let umask = self.number() as u32;
        match self.0.below(17) {
            0 => Command::OpenSession,
            1 => Command::CloseSession { session: if self.0.one_in(20) { self.session() } else { SessionId(99) } },
            2..=4 => Command::Create(Create {
                parent: self.inode(),
                name: self.name(),
                node: self.node(),
                mode: self.number() as u32,
                umask,
                uid: 0,
                gid: u32::MAX,
            }),
            5 => Command::Unlink { parent: self.inode(), name: self.name(), unheld: Some(self.inode()) },
            6 => Command::Rmdir { parent: self.inode(), name: self.name() },
            7 => Command::Rename(Rename {
                parent: self.inode(),
                name: self.name(),
                new_parent: self.inode(),
                new_name: self.name(),
                mode,
                unheld: None,
            }),
            8 => Command::Link { inode: self.inode(), parent: self.inode(), name: self.name() },
            9 => {
                let size = self.0.one_in(2).then(|| self.number());
                Command::SetAttr { inode: self.inode(), change: self.change(), size }
            }
            10 | 11 => Command::Commit(self.commit()),
            12 => Command::SetXattr { inode: self.inode(), name: xattr, value: self.bytes(), mode: XattrMode::Any },
            13 => Command::RemoveXattr { inode: self.inode(), name: xattr },
            16 => Command::SetShardMap(Box::new(self.shard_map())),
            14 => Command::ReleaseOrphans { inodes: (0..self.0.below(5)).map(|_| self.inode()).collect() },
            _ if self.0.one_in(2) => {
                Command::Reclaim { inodes: (0..self.0.below(300)).map(|_| self.inode()).collect() }
            }
            _ => Command::ForgetSegments { segments: vec![self.segment()] },
        }
    }

    fn envelope(&mut self, sequence: u64) -> Envelope {
        let sequence = if self.0.one_in(30) { self.number() } else { sequence };
        let acked = if self.0.one_in(30) { self.number() } else { sequence.saturating_sub(5) };
        Envelope { op: OpId { session: self.session(), sequence }, acked, command: self.command() }
    }
}

#[test]
fn hostile_commands_do_no_harm() {
    for seed in seeds(40) {
        let kv = Arc::new(MemKv::new());
        let mut engine = Engine::open(kv.clone(), SHARD).unwrap();
        let mut hostile = Hostile(Random::new(seed));
        for batch in 0..60 {
            let commands = (0..20).map(|at| hostile.envelope(batch * 20 + at)).collect();
            let (time, generation) = (hostile.number() as i64, if batch == 30 { hostile.number() } else { 1 });
            let entry = LogEntry { time: Timestamp(time), generation: Generation(generation), commands };
            engine.apply(b"m", &[entry]).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            if batch % 20 == 19 {
                assert_clean(&kv.view(), &format!("seed {seed}, batch {batch}"));
            }
        }
        hostile_reads(&kv, &mut hostile);
    }
}

fn hostile_reads(kv: &MemKv, hostile: &mut Hostile) {
    let (view, slots) = (kv.view(), Slots::all());
    for _ in 0..200 {
        let (inode, number, name) = (hostile.inode(), hostile.number(), hostile.name());
        let _ = (read::getattr(&view, inode), read::content(&view, inode, number), read::readlink(&view, inode));
        let _ = (
            read::lookup(&view, &slots, inode, &name),
            read::parent(&view, &slots, inode),
            read::listxattr(&view, inode),
        );
        let _ = read::readdir(&view, &slots, inode, Some(&name), true, number as u32);
        let _ = read::segments_in_use(&view, SHARD, &[hostile.segment()]);
        let _ = read::free_orphans(&view, SHARD, number as usize);
    }
}
