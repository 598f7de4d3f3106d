//! A small world for unit tests: one engine in memory, one session, time that ticks.
//!
//! Every command is sent twice: the second must have the same reply and change nothing. Every refusal must change nothing
//! either. Both are checked here, so that each test of a verb tests them too.

use std::ops::ControlFlow;
use std::sync::Arc;

use pando_types::command::{
    AttrChange, Commit, CommitContent, Create, FileCommit, NewNode, NewSegment, Rename, RenameMode, XattrMode,
};
use pando_types::{
    Attr, Command, Envelope, Errno, Extent, FileName, Generation, InodeId, LogEntry, OpId, Reply, SegmentId, SessionId,
    ShardId, Timestamp, XattrName,
};

use crate::effect::Effect;
use crate::engine::Engine;
use crate::keys::{self, KeyKind, split};
use crate::kv::mem::MemKv;
use crate::kv::{Kv, View};
use crate::{fsck, read};

pub(crate) const ROOT: InodeId = InodeId::ROOT;
pub(crate) const SHARD: ShardId = ShardId(0);

pub(crate) type Dump = Vec<(Vec<u8>, Vec<u8>)>;

pub(crate) struct World {
    pub engine: Engine<MemKv>,
    pub session: SessionId,
    pub time: i64,
    pub effects: Vec<Effect>,
    sequence: u64,
    segments: u64,
}

pub(crate) fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes()).unwrap()
}

pub(crate) fn xname(text: &str) -> XattrName {
    XattrName::new(text.as_bytes()).unwrap()
}

pub(crate) fn dump(view: &impl View) -> Dump {
    let (from, to) = keys::whole();
    let mut all = Vec::new();
    view.scan(&from, &to, &mut |key, value| {
        all.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })
    .unwrap();
    all
}

/// The file system's part of a dump: without marks, clocks and what sessions remember.
fn files(dump: &Dump) -> Dump {
    let bookkeeping = [KeyKind::State, KeyKind::Applied, KeyKind::Session, KeyKind::OpResult];
    dump.iter().filter(|(key, _)| !bookkeeping.contains(&split(key).unwrap().1)).cloned().collect()
}

impl World {
    pub fn new() -> World {
        let engine = Engine::open(Arc::new(MemKv::new()), SHARD).unwrap();
        let mut world =
            World { engine, session: SessionId::LEADER, time: 0, effects: Vec::new(), sequence: 0, segments: 0 };
        world.session = world.open_session();
        world
    }

    pub fn view(&self) -> crate::kv::mem::MemView {
        self.engine.kv().view()
    }

    pub fn dump(&self) -> Dump {
        dump(&self.view())
    }

    pub fn open_session(&mut self) -> SessionId {
        match self.lead(Command::OpenSession) {
            Reply::Session(session) => session,
            other => panic!("{other:?}"),
        }
    }

    pub fn apply(&mut self, envelope: Envelope) -> Reply {
        self.time += 1000;
        let entry = LogEntry { time: Timestamp(self.time), generation: Generation::FIRST, commands: vec![envelope] };
        let mut applied = self.engine.apply(b"mark", &[entry]).unwrap();
        self.effects.extend(applied.effects);
        applied.replies.remove(0).remove(0)
    }

    /// A command of the leader.
    pub fn lead(&mut self, command: Command) -> Reply {
        self.apply(Envelope { op: OpId { session: SessionId::LEADER, sequence: 0 }, acked: 0, command })
    }

    /// A command of the session, sent twice.
    pub fn run(&mut self, command: Command) -> Reply {
        self.sequence += 1;
        let op = OpId { session: self.session, sequence: self.sequence };
        let envelope = Envelope { op, acked: self.sequence.saturating_sub(3), command };
        let before = self.dump();
        let reply = self.apply(envelope.clone());
        let after = self.dump();
        if let Reply::Refused(_) = reply {
            assert_eq!(files(&before), files(&after), "a refusal changed something: {:?}", envelope.command);
        }
        let effects = self.effects.len();
        assert_eq!(self.apply(envelope.clone()), reply, "{:?}", envelope.command);
        assert_eq!(files(&after), files(&self.dump()), "a retry changed something: {:?}", envelope.command);
        assert_eq!(self.effects.len(), effects, "a retry had effects: {:?}", envelope.command);
        reply
    }

    pub fn fsck(&self) {
        assert_eq!(fsck::fsck(&self.view(), SHARD).unwrap().problems, Vec::<String>::new());
    }

    pub fn make(&mut self, parent: InodeId, text: &str, node: NewNode) -> Result<Attr, Errno> {
        self.make_with(Create { parent, name: name(text), node, mode: 0o666, umask: 0o022, uid: 7, gid: 8 })
    }

    pub fn make_with(&mut self, create: Create) -> Result<Attr, Errno> {
        expect_inode(self.run(Command::Create(create)))
    }

    pub fn file(&mut self, parent: InodeId, text: &str) -> InodeId {
        self.make(parent, text, NewNode::File).unwrap().inode
    }

    pub fn dir(&mut self, parent: InodeId, text: &str) -> InodeId {
        self.make(parent, text, NewNode::Directory { slot: parent.slot() }).unwrap().inode
    }

    pub fn link(&mut self, inode: InodeId, parent: InodeId, text: &str) -> Result<Attr, Errno> {
        expect_inode(self.run(Command::Link { inode, parent, name: name(text) }))
    }

    pub fn unlink(&mut self, parent: InodeId, text: &str, unheld: Option<InodeId>) -> Reply {
        self.run(Command::Unlink { parent, name: name(text), unheld })
    }

    pub fn rmdir(&mut self, parent: InodeId, text: &str) -> Reply {
        self.run(Command::Rmdir { parent, name: name(text) })
    }

    pub fn rename(&mut self, from: (InodeId, &str), to: (InodeId, &str), mode: RenameMode) -> Reply {
        self.run(Command::Rename(Rename {
            parent: from.0,
            name: name(from.1),
            new_parent: to.0,
            new_name: name(to.1),
            mode,
            unheld: None,
        }))
    }

    pub fn setattr(&mut self, inode: InodeId, change: AttrChange, size: Option<u64>) -> Result<Attr, Errno> {
        expect_inode(self.run(Command::SetAttr { inode, change, size }))
    }

    pub fn setxattr(&mut self, inode: InodeId, text: &str, value: &[u8], mode: XattrMode) -> Reply {
        self.run(Command::SetXattr { inode, name: xname(text), value: value.to_vec(), mode })
    }

    pub fn getxattr(&self, inode: InodeId, text: &str) -> Option<Vec<u8>> {
        read::getxattr(&self.view(), inode, &xname(text)).ok()
    }

    pub fn removexattr(&mut self, inode: InodeId, text: &str) -> Reply {
        self.run(Command::RemoveXattr { inode, name: xname(text) })
    }

    pub fn segment(&mut self, length: u64) -> NewSegment {
        self.segments += 1;
        NewSegment { id: SegmentId { session: self.session, sequence: self.segments }, length }
    }

    pub fn commit(&mut self, files: Vec<FileCommit>, segments: Vec<NewSegment>) -> Reply {
        self.run(Command::Commit(Commit { files, segments }))
    }

    /// Commits whole new segments at these offsets.
    pub fn write(&mut self, inode: InodeId, ranges: &[(u64, u64)]) -> Attr {
        let segments: Vec<NewSegment> = ranges.iter().map(|(_, length)| self.segment(*length)).collect();
        let extents =
            ranges.iter().zip(&segments).map(|(range, segment)| extent(range.0, range.1, segment.id, 0)).collect();
        match self.commit(vec![FileCommit { content: CommitContent::Extents(extents), ..no_change(inode) }], segments) {
            Reply::Committed(mut results) => results.remove(0).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub fn write_inline(&mut self, inode: InodeId, data: &[u8]) -> Attr {
        let content = CommitContent::Inline(data.to_vec());
        match self.commit(vec![FileCommit { content, ..no_change(inode) }], vec![]) {
            Reply::Committed(mut results) => results.remove(0).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub fn attr(&self, inode: InodeId) -> Option<Attr> {
        read::getattr(&self.view(), inode).ok()
    }

    pub fn lookup(&self, parent: InodeId, text: &str) -> Option<InodeId> {
        match read::lookup(&self.view(), self.engine.slots(), parent, &name(text)).ok()? {
            read::Found::Here(attr) => Some(attr.inode),
            read::Found::Elsewhere(inode) => Some(inode),
        }
    }

    pub fn parent(&self, directory: InodeId) -> InodeId {
        match read::parent(&self.view(), self.engine.slots(), directory).unwrap() {
            read::Found::Here(attr) => attr.inode,
            read::Found::Elsewhere(inode) => inode,
        }
    }

    /// Offsets, lengths and segment offsets of a file's extents.
    pub fn extents(&self, inode: InodeId) -> Vec<(u64, u64, u64)> {
        let content = read::content(&self.view(), inode, 0).unwrap();
        content.extents.iter().map(|extent| (extent.offset, extent.length, extent.segment_offset)).collect()
    }

    pub fn inline(&self, inode: InodeId) -> Vec<u8> {
        read::content(&self.view(), inode, 0).unwrap().inline
    }
}

pub(crate) fn extent(offset: u64, length: u64, segment: SegmentId, segment_offset: u64) -> Extent {
    Extent { offset, length, segment, segment_offset }
}

pub(crate) fn no_change(inode: InodeId) -> FileCommit {
    let content = CommitContent::Extents(vec![]);
    FileCommit { inode, cut: None, punch: vec![], content, size: 0, change: AttrChange::default() }
}

pub(crate) fn expect_inode(reply: Reply) -> Result<Attr, Errno> {
    match reply {
        Reply::Inode(attr) => Ok(attr),
        Reply::Refused(errno) => Err(errno),
        other => panic!("{other:?}"),
    }
}
