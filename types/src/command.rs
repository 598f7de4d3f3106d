//! Everything the log may hold: commands and their replies.
//!
//! Not here: reads (`request.rs`), and how a command is carried out (the engine).
//! Invariant: a command with its entry's stamp and the state decides its reply and effect; nothing else is consulted.

use serde::{Deserialize, Serialize};

use crate::attr::{Attr, FileKind, Timestamp};
use crate::epoch::Generation;
use crate::error::Errno;
use crate::extent::{Extent, FileRange};
use crate::ids::{InodeId, OpId, SegmentId, SessionId, ShardId, SlotId};
use crate::intent::{Decide, Fact, IntentId, Step, Want};
use crate::name::{FileName, XattrName};
use crate::shard_map::ShardMap;

/// One entry of a shard's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// The proposer's clock. The engine never lets a shard's time go backwards.
    pub time: Timestamp,
    /// Highest generation the proposer had seen.
    pub generation: Generation,
    /// Carried out in order, each with its own reply.
    pub commands: Vec<Envelope>,
}

/// A command and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// For deduplication; session [`SessionId::LEADER`] is not deduplicated.
    pub op: OpId,
    /// Every reply of this session below this sequence has arrived and may be forgotten.
    pub acked: u64,
    /// What to do.
    pub command: Command,
}

/// A change of the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Registers a client. `op.session` is [`SessionId::LEADER`]. Reply: [`Reply::Session`].
    OpenSession,
    /// Ends a session: its held orphans are released. Reply: [`Reply::Done`], also for an unknown session.
    CloseSession {
        /// Which.
        session: SessionId,
    },
    /// Makes a name and an inode. Reply: [`Reply::Inode`].
    Create(Create),
    /// Removes a name that is not a directory's. Reply: [`Reply::Unlinked`].
    Unlink {
        /// Directory.
        parent: InodeId,
        /// Name in it.
        name: FileName,
        /// The client knows this inode and has it not open: if the name is this inode's last, it need not be kept.
        unheld: Option<InodeId>,
    },
    /// Removes an empty directory. Reply: [`Reply::Done`].
    Rmdir {
        /// Directory.
        parent: InodeId,
        /// Name in it.
        name: FileName,
    },
    /// Moves a name, atomically. Reply: [`Reply::Renamed`].
    Rename(Rename),
    /// Makes a further name of an inode. Reply: [`Reply::Inode`].
    Link {
        /// Not a directory.
        inode: InodeId,
        /// Directory of the new name.
        parent: InodeId,
        /// The new name.
        name: FileName,
    },
    /// Changes attributes, and the size if asked (the data beyond a smaller size is gone). Reply: [`Reply::Inode`].
    SetAttr {
        /// Which inode.
        inode: InodeId,
        /// New attributes.
        change: AttrChange,
        /// New size.
        size: Option<u64>,
    },
    /// Makes stored bytes part of files. Reply: [`Reply::Committed`].
    Commit(Commit),
    /// Sets an extended attribute; ACLs change the mode too. Reply: [`Reply::Done`].
    SetXattr {
        /// Which inode.
        inode: InodeId,
        /// Name with namespace.
        name: XattrName,
        /// At most [`crate::limits::XATTR_VALUE_BYTES_MAX`].
        value: Vec<u8>,
        /// What may exist before.
        mode: XattrMode,
    },
    /// Removes an extended attribute. Reply: [`Reply::Done`].
    RemoveXattr {
        /// Which inode.
        inode: InodeId,
        /// Name with namespace.
        name: XattrName,
    },
    /// The session has closed these nameless inodes that were kept for it. Reply: [`Reply::Done`].
    ReleaseOrphans {
        /// As told by [`Reply::Unlinked`] and [`Reply::Renamed`].
        inodes: Vec<InodeId>,
    },
    /// The leader removes records of orphans that nobody holds. Reply: [`Reply::Reclaimed`].
    Reclaim {
        /// At most [`crate::limits::INODES_PER_RECLAIM_MAX`].
        inodes: Vec<InodeId>,
    },
    /// The leader has deleted these dead segments from the store. Reply: [`Reply::Done`].
    ForgetSegments {
        /// Those that are not dead are left alone.
        segments: Vec<SegmentId>,
    },
    /// The leader of shard 0 replaces the shard map by the next one: EAGAIN unless its epoch is one more than the
    /// present one's, so that no two changes are made of the same map. Reply: [`Reply::Done`].
    SetShardMap(Box<ShardMap>),
    /// A client that is registered elsewhere writes to this shard too. Reply: [`Reply::Done`].
    JoinSession {
        /// Which session.
        session: SessionId,
    },
    /// Another shard's leader asks for what its change needs. Locks it until [`Command::Finish`]. Reply: [`Reply::Facts`];
    /// [`Reply::Busy`] when another change has locked it.
    Prepare {
        /// Whose change; asked again, it locks more.
        intent: IntentId,
        /// What it needs.
        wants: Vec<Want>,
    },
    /// A change that touches other shards, with what they have told. Reply: the change's own.
    Decide(Box<Decide>),
    /// A change of another shard is over: carries these steps out, unlocks. Once. Reply: [`Reply::Done`].
    Finish {
        /// Which attempt.
        intent: IntentId,
        /// None if it was given up.
        steps: Vec<Step>,
    },
    /// The coordinator gives an attempt up for good, because a shard that took part has waited too long. EEXIST: it was
    /// decided. Reply: [`Reply::Done`].
    Abort {
        /// Which attempt.
        intent: IntentId,
    },
    /// All others have finished these decided changes, or nobody asks for these aborted ones any more. Reply:
    /// [`Reply::Done`].
    Forget {
        /// Which attempts.
        intents: Vec<IntentId>,
    },
    /// Hands slots to a shard that begins with it, on the same nodes. Refused with EAGAIN while changes of other shards are
    /// under way here. Slots that the shard does not own, and a shard that has begun, are left alone. Reply: [`Reply::Done`].
    Split {
        /// The new shard.
        shard: ShardId,
        /// First and last of each run of slots.
        slots: Vec<(SlotId, SlotId)>,
        /// The mark with which its replicas begin, which names its members; opaque here.
        mark: Vec<u8>,
    },
}

/// See [`Command::Create`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Create {
    /// Directory.
    pub parent: InodeId,
    /// New name in it.
    pub name: FileName,
    /// What to make.
    pub node: NewNode,
    /// Permission bits before `umask`.
    pub mode: u32,
    /// Applied unless the directory has a default ACL.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory hands down its own (sgid).
    pub gid: u32,
}

/// What [`Create`] makes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewNode {
    /// A regular file, empty.
    File,
    /// A directory whose children live in this slot (stamped by the leader; a client sends the parent's).
    Directory {
        /// Where.
        slot: SlotId,
    },
    /// A symbolic link.
    Symlink {
        /// 1 to [`crate::limits::SYMLINK_BYTES_MAX`] bytes, any but NUL.
        target: Vec<u8>,
    },
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device.
    CharDevice {
        /// Device number.
        rdev: u32,
    },
    /// A block device.
    BlockDevice {
        /// Device number.
        rdev: u32,
    },
}

impl NewNode {
    /// The kind of inode it becomes.
    pub fn kind(&self) -> FileKind {
        match self {
            NewNode::File => FileKind::File,
            NewNode::Directory { .. } => FileKind::Directory,
            NewNode::Symlink { .. } => FileKind::Symlink,
            NewNode::Fifo => FileKind::Fifo,
            NewNode::Socket => FileKind::Socket,
            NewNode::CharDevice { .. } => FileKind::CharDevice,
            NewNode::BlockDevice { .. } => FileKind::BlockDevice,
        }
    }
}

/// See [`Command::Rename`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rename {
    /// Directory of the old name.
    pub parent: InodeId,
    /// Old name.
    pub name: FileName,
    /// Directory of the new name.
    pub new_parent: InodeId,
    /// New name.
    pub new_name: FileName,
    /// What to do with an existing new name.
    pub mode: RenameMode,
    /// The client knows this inode and has it not open: if the rename removes its last name, it need not be kept.
    pub unheld: Option<InodeId>,
}

/// What a rename does with an existing target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replace it, by POSIX rules.
    Replace,
    /// EEXIST (`RENAME_NOREPLACE`).
    NoReplace,
    /// Swap the two, which must both exist (`RENAME_EXCHANGE`).
    Exchange,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    /// The entry's time.
    Now,
    /// This one.
    At(Timestamp),
}

/// New attributes; `None` leaves the old. ctime becomes the entry's time if anything is set.
/// A change of owner or group clears suid and sgid of a file as Linux does, and a change of mode changes the access ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AttrChange {
    /// The 12 bits of [`crate::attr::MODE_BITS`].
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Clear suid, and sgid where group execution is allowed (a write or truncation by another than root).
    pub kill_privileges: bool,
}

/// See [`Command::Commit`]. Every byte of a segment is committed by one command, to files of its slot, or never.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// At most [`crate::limits::FILES_PER_COMMIT_MAX`], each once.
    pub files: Vec<FileCommit>,
    /// The objects that `files` refers to, all stored.
    pub segments: Vec<NewSegment>,
}

/// An object that has been stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewSegment {
    /// Its id.
    pub id: SegmentId,
    /// Bytes of data in it (footer not counted).
    pub length: u64,
}

/// What changes in one file; applied in the order of the fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileCommit {
    /// A regular file.
    pub inode: InodeId,
    /// First drop all content from this byte on; the size becomes at most this.
    pub cut: Option<u64>,
    /// Then make these ranges read as zeros, the size unchanged.
    pub punch: Vec<FileRange>,
    /// Then put this content.
    pub content: CommitContent,
    /// Then the size becomes at least this.
    pub size: u64,
    /// Then these attributes; mtime, if `None`, becomes the entry's time when content changed.
    pub change: AttrChange,
}

/// New content of a [`FileCommit`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommitContent {
    /// Extents in ascending order without overlap; may be empty.
    Extents(Vec<Extent>),
    /// The whole content, at most [`crate::limits::INLINE_BYTES_MAX`]: all extents are dropped, and the size is its length
    /// (or the commit's `size`, if larger).
    Inline(Vec<u8>),
}

/// What may exist before a [`Command::SetXattr`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    /// Anything.
    Any,
    /// Nothing, else EEXIST.
    Create,
    /// The attribute, else ENODATA.
    Replace,
}

/// What a command answered; kept with the session for retries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Carried out, nothing to tell.
    Done,
    /// Refused, nothing changed.
    Refused(Errno),
    /// The session is not known, or the operation is older than what the session has acknowledged; nothing changed.
    Stale,
    /// The new session.
    Session(SessionId),
    /// The inode after the change.
    Inode(Attr),
    /// A name is gone.
    Unlinked {
        /// The inode it named.
        inode: InodeId,
        /// The inode has no name left and is kept for this session until [`Command::ReleaseOrphans`].
        held: bool,
    },
    /// A name has moved.
    Renamed {
        /// The moved inode.
        inode: InodeId,
        /// The inode that lost the new name, if one did; when exchanging: the other one.
        replaced: Option<InodeId>,
        /// The replaced inode has no name left and is kept for this session until [`Command::ReleaseOrphans`].
        held: bool,
    },
    /// One result per file of the commit, in order. A file that is gone does not keep the others from being committed.
    Committed(Vec<Result<Attr, Errno>>),
    /// How far a reclaim came.
    Reclaimed {
        /// Inodes that are not orphans any more.
        inodes: u64,
    },
    /// Nothing happened: this is needed of other shards. Never kept for retries.
    Wants(Vec<Want>),
    /// What was wanted, now locked.
    Facts(Vec<Fact>),
    /// Nothing happened: a change under way has locked what is needed. Never kept for retries.
    Busy,
    /// Nothing happened: this shard does not own the slot. Never kept for retries.
    Elsewhere,
}

impl Reply {
    /// Whether the change was answered for good: a retry gets the same reply.
    pub fn is_final(&self) -> bool {
        !matches!(self, Reply::Wants(_) | Reply::Facts(_) | Reply::Busy | Reply::Elsewhere | Reply::Stale)
    }
}

impl Command {
    /// Whether it may touch several shards: it changes names and the links of what they mean.
    pub fn may_cross(&self) -> bool {
        matches!(
            self,
            Command::Create(_)
                | Command::Unlink { .. }
                | Command::Rmdir { .. }
                | Command::Rename(_)
                | Command::Link { .. }
        )
    }

    /// Of which inodes' shard the change is: the directory of the (old) name, or the inodes themselves. One shard has all.
    pub fn home(&self) -> Vec<InodeId> {
        match self {
            Command::Create(create) => vec![create.parent],
            Command::Unlink { parent, .. } | Command::Rmdir { parent, .. } | Command::Link { parent, .. } => {
                vec![*parent]
            }
            Command::Rename(rename) => vec![rename.parent],
            Command::SetAttr { inode, .. } | Command::SetXattr { inode, .. } | Command::RemoveXattr { inode, .. } => {
                vec![*inode]
            }
            Command::Commit(commit) => commit.files.iter().map(|f| f.inode).collect(),
            Command::ReleaseOrphans { inodes } | Command::Reclaim { inodes } => inodes.clone(),
            Command::Decide(decide) => decide.command.home(),
            Command::OpenSession
            | Command::CloseSession { .. }
            | Command::JoinSession { .. }
            | Command::ForgetSegments { .. }
            | Command::SetShardMap(_)
            | Command::Prepare { .. }
            | Command::Finish { .. }
            | Command::Abort { .. }
            | Command::Forget { .. }
            | Command::Split { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;

    /// Golden bytes: the log is a format, so this may only grow.
    #[test]
    fn a_log_entry_keeps_its_format() {
        let entry = LogEntry {
            time: Timestamp(5),
            generation: Generation::FIRST,
            commands: vec![Envelope {
                op: OpId { session: SessionId(3), sequence: 9 },
                acked: 8,
                command: Command::Unlink {
                    parent: InodeId::ROOT,
                    name: FileName::new(b"x").expect("a valid name"),
                    unheld: None,
                },
            }],
        };
        let bytes = codec::encode(&entry);
        assert_eq!(bytes, [1, 10, 1, 1, 3, 9, 8, 3, 1, 1, b'x', 0]);
        assert_eq!(codec::decode::<LogEntry>(&bytes), Ok(entry));
    }
}
