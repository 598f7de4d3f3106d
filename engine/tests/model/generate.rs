//! Random commands that meet each other: few names, few directories, small files, two or three sessions, retries.

use std::collections::BTreeMap;

use pando_engine::{View, read};
use pando_types::command::{
    AttrChange, Commit, CommitContent, Create, FileCommit, NewNode, NewSegment, Rename, RenameMode, SetTime, XattrMode,
};
use pando_types::shard_map::ShardMap;
use pando_types::{
    Command, Envelope, Extent, FileKind, FileName, FileRange, Generation, InodeId, LogEntry, NodeId, OpId, SegmentId,
    SessionId, SlotId, Timestamp, XattrName,
};

use crate::random::Random;
use crate::reference::Model;
use crate::{Given, SHARD};

pub struct Generator {
    random: Random,
    time: i64,
    sequences: BTreeMap<SessionId, (u64, u64)>,
    segments: u64,
}

const XATTRS: [&[u8]; 3] = [b"trusted.a", b"security.capability", b"user.b"];

impl Generator {
    pub fn new(seed: u64) -> Generator {
        Generator { random: Random::new(seed), time: 1_000_000, sequences: BTreeMap::new(), segments: 0 }
    }

    pub fn entries(&mut self, model: &Model, view: &impl View, given: &Given) -> Vec<LogEntry> {
        (0..=self.random.below(3)).map(|_| self.entry(model, view, given)).collect()
    }

    fn entry(&mut self, model: &Model, view: &impl View, given: &Given) -> LogEntry {
        // Time sometimes stands still and sometimes goes back.
        self.time += self.random.below(100) as i64 - 20;
        let mut commands: Vec<Envelope> = Vec::new();
        for _ in 0..=self.random.below(8) {
            let envelope = self.envelope(model, view);
            if envelope.op.session != SessionId::LEADER && self.random.one_in(4) {
                commands.push(envelope.clone());
            }
            commands.push(envelope);
            if self.random.one_in(5) {
                commands.extend(self.retry(given));
            }
        }
        LogEntry { time: Timestamp(self.time), generation: Generation::FIRST, commands }
    }

    /// Something sent before whose reply its session has not acknowledged.
    fn retry(&mut self, given: &Given) -> Option<Envelope> {
        let sequences = &self.sequences;
        let open: Vec<_> =
            given.iter().filter(|(op, _)| op.sequence >= sequences[&op.session].1).map(|(_, known)| &known.0).collect();
        (!open.is_empty()).then(|| (*self.random.pick(&open)).clone())
    }

    fn envelope(&mut self, model: &Model, view: &impl View) -> Envelope {
        let sessions: Vec<SessionId> = model.sessions.keys().copied().collect();
        if sessions.len() < 2 || self.random.one_in(12) {
            let command = self.leader_command(model, view, &sessions);
            return Envelope { op: OpId { session: SessionId::LEADER, sequence: 0 }, acked: 0, command };
        }
        let session = *self.random.pick(&sessions);
        let command = self.command(model, session);
        let (sequence, acked) = self.sequences.entry(session).or_default();
        *sequence += 1;
        *acked = (*acked).max(sequence.saturating_sub(self.random.below(40)));
        Envelope { op: OpId { session, sequence: *sequence }, acked: *acked, command }
    }

    fn leader_command(&mut self, model: &Model, view: &impl View, sessions: &[SessionId]) -> Command {
        match self.random.below(7) {
            0 if sessions.len() > 2 => Command::CloseSession { session: *self.random.pick(sessions) },
            1 | 2 => {
                let mut inodes = read::free_orphans(view, SHARD, 9).unwrap();
                inodes.extend(model.nodes.iter().filter(|(_, node)| node.holder.is_some()).map(|(id, _)| *id).take(2));
                inodes.dedup();
                inodes.sort();
                inodes.dedup();
                Command::Reclaim { inodes }
            }
            4 => {
                let mut map = ShardMap::single(NodeId(1), "h:1".into());
                map.epoch.0 = model.map_epoch + self.random.below(3);
                Command::SetShardMap(Box::new(map))
            }
            3 => Command::ForgetSegments { segments: read::dead_segments(view, SHARD, 5).unwrap() },
            _ if sessions.len() > 3 => Command::CloseSession { session: sessions[0] },
            _ => Command::OpenSession,
        }
    }

    fn command(&mut self, model: &Model, session: SessionId) -> Command {
        match self.random.below(20) {
            0..=4 => Command::Create(self.create(model)),
            5 | 6 => {
                let parent = self.directory(model);
                let name = self.name_in(model, parent);
                let unheld = model.nodes.get(&parent).and_then(|node| node.entries.get(&name).copied());
                Command::Unlink { parent, name, unheld: unheld.filter(|_| self.random.one_in(2)) }
            }
            7 => {
                let parent = self.directory(model);
                Command::Rmdir { parent, name: self.name_in(model, parent) }
            }
            8..=10 => Command::Rename(self.rename(model)),
            11 => Command::Link { inode: self.any(model), parent: self.directory(model), name: self.name() },
            12 | 13 => {
                let size = self.random.one_in(2).then(|| self.random.below(300));
                Command::SetAttr { inode: self.any(model), change: self.change(), size }
            }
            14..=16 => Command::Commit(self.commit(model, session)),
            17 => {
                let mode = *self.random.pick(&[XattrMode::Any, XattrMode::Create, XattrMode::Replace]);
                let value = vec![b'v'; self.random.below(5) as usize];
                Command::SetXattr { inode: self.any(model), name: self.xattr(), value, mode }
            }
            18 => Command::RemoveXattr { inode: self.any(model), name: self.xattr() },
            _ => {
                let held = |(_, node): &(&InodeId, &crate::reference::Node)| node.holder.is_some();
                let inodes = model.nodes.iter().filter(held).map(|(id, _)| *id).take(3).collect();
                Command::ReleaseOrphans { inodes }
            }
        }
    }

    fn create(&mut self, model: &Model) -> Create {
        let node = match self.random.below(10) {
            0..=3 => NewNode::File,
            4..=6 => NewNode::Directory { slot: SlotId(self.random.below(3) as u32) },
            7 => NewNode::Symlink { target: b"somewhere".to_vec() },
            8 => NewNode::Fifo,
            _ => NewNode::BlockDevice { rdev: self.random.next() as u32 },
        };
        Create {
            parent: self.directory(model),
            name: self.name(),
            node,
            mode: *self.random.pick(&[0o644, 0o777, 0o2775, 0o4755, 0o600]),
            umask: *self.random.pick(&[0o022, 0, 0o077]),
            uid: self.random.below(3) as u32,
            gid: self.random.below(3) as u32,
        }
    }

    fn rename(&mut self, model: &Model) -> Rename {
        let (parent, new_parent) = (self.directory(model), self.directory(model));
        let mode =
            *self.random.pick(&[RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]);
        let (name, new_name) = (self.name_in(model, parent), self.name_in(model, new_parent));
        let unheld = model.nodes.get(&new_parent).and_then(|node| node.entries.get(&new_name).copied());
        Rename { parent, name, new_parent, new_name, mode, unheld: unheld.filter(|_| self.random.one_in(2)) }
    }

    fn change(&mut self) -> AttrChange {
        let random = &mut self.random;
        let time = |random: &mut Random| {
            let at = SetTime::At(Timestamp(random.below(1000) as i64));
            random.one_in(5).then_some(if random.one_in(2) { SetTime::Now } else { at })
        };
        AttrChange {
            mode: random.one_in(3).then(|| *random.pick(&[0o644, 0o6755, 0o2745, 0o1777])),
            uid: random.one_in(5).then(|| random.below(3) as u32),
            gid: random.one_in(5).then(|| random.below(3) as u32),
            atime: time(random),
            mtime: time(random),
            kill_privileges: random.one_in(4),
        }
    }

    fn commit(&mut self, model: &Model, session: SessionId) -> Commit {
        let mut inodes: Vec<InodeId> = (0..=self.random.below(3)).map(|_| self.any_file(model)).collect();
        inodes.sort();
        inodes.dedup();
        // A segment is of one slot.
        let slot = self.random.pick(&inodes).slot();
        inodes.retain(|inode| inode.slot() == slot);
        self.segments += 1;
        let segment = NewSegment { id: SegmentId::new(session, slot, self.segments), length: 500 };
        let mut used = 0;
        let files = inodes.into_iter().map(|inode| self.file_commit(inode, segment.id, &mut used)).collect();
        let segments = if used > 0 { vec![segment] } else { vec![] };
        Commit { files, segments }
    }

    fn file_commit(&mut self, inode: InodeId, segment: SegmentId, used: &mut u64) -> FileCommit {
        let content = if self.random.one_in(3) {
            let length = self.random.below(60);
            CommitContent::Inline((0..length).map(|_| self.random.below(255) as u8 + 1).collect())
        } else {
            let mut extents = Vec::new();
            let mut offset = self.random.below(150);
            for _ in 0..self.random.below(4) {
                let length = self.random.below(40) + 1;
                extents.push(Extent { offset, length, segment, segment_offset: *used });
                offset += length + self.random.below(20);
                *used += length;
            }
            CommitContent::Extents(extents)
        };
        let punch = (0..self.random.below(2))
            .map(|_| FileRange { offset: self.random.below(200), length: self.random.below(80) + 1 });
        let punch = punch.collect();
        FileCommit {
            inode,
            cut: self.random.one_in(4).then(|| self.random.below(200)),
            punch,
            content,
            size: if self.random.one_in(3) { self.random.below(250) } else { 0 },
            change: if self.random.one_in(3) { self.change() } else { AttrChange::default() },
        }
    }

    fn name(&mut self) -> FileName {
        FileName::new(self.random.pick(&["a", "b", "c", "d", "e", "f", "g"]).as_bytes()).unwrap()
    }

    /// Mostly a name that exists.
    fn name_in(&mut self, model: &Model, parent: InodeId) -> FileName {
        match model.nodes.get(&parent) {
            Some(node) if !node.entries.is_empty() && !self.random.one_in(4) => {
                let names: Vec<&FileName> = node.entries.keys().collect();
                (*self.random.pick(&names)).clone()
            }
            _ => self.name(),
        }
    }

    fn xattr(&mut self) -> XattrName {
        XattrName::new(self.random.pick::<&[u8]>(&XATTRS)).unwrap()
    }

    fn directory(&mut self, model: &Model) -> InodeId {
        if self.random.one_in(15) {
            return self.any(model);
        }
        self.of_kind(model, FileKind::Directory)
    }

    fn any_file(&mut self, model: &Model) -> InodeId {
        if self.random.one_in(10) { self.any(model) } else { self.of_kind(model, FileKind::File) }
    }

    fn of_kind(&mut self, model: &Model, kind: FileKind) -> InodeId {
        let ids: Vec<InodeId> = model.nodes.iter().filter(|(_, node)| node.kind == kind).map(|(id, _)| *id).collect();
        if ids.is_empty() { InodeId::ROOT } else { *self.random.pick(&ids) }
    }

    /// Any inode, now and then one that does not exist.
    fn any(&mut self, model: &Model) -> InodeId {
        let ids: Vec<InodeId> = model.nodes.keys().copied().collect();
        if ids.is_empty() || self.random.one_in(10) {
            InodeId::new(SlotId(0), 500_000 + self.random.below(9))
        } else {
            *self.random.pick(&ids)
        }
    }
}
