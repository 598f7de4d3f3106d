//! Changes that touch several shards: what is asked of the others, what they tell, and what they are to do.
//!
//! The shard of the change's own directory coordinates it. It asks the others to lock what the change needs and to tell it
//! ([`Want`], [`Fact`]); its log decides; the others carry out their [`Step`]s and unlock. Not here: who sends what when (the
//! metaserver), and what a step does (the engine).

use serde::{Deserialize, Serialize};

use crate::attr::FileKind;
use crate::command::Command;
use crate::ids::{InodeId, OpId, SessionId, ShardId, SlotId};
use crate::name::FileName;

/// Names one attempt to carry out such a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct IntentId {
    /// Who coordinates it.
    pub shard: ShardId,
    /// The term in which its leader began it.
    pub term: u64,
    /// Unique within the term.
    pub number: u64,
}

/// Something of another shard that a change needs to know, and that shall not change until it is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Want {
    /// What a name means, its directory, and the inode if it is of the same shard.
    Name {
        /// Directory.
        parent: InodeId,
        /// Name in it.
        name: FileName,
    },
    /// An inode whose links are about to change.
    Inode(InodeId),
    /// A directory and those above it, as far as they are of the same shard: they shall not be moved or removed.
    Path(InodeId),
    /// The id of a new directory in a slot.
    NewDirectory(SlotId),
}

impl Want {
    /// Whose shard is asked.
    pub fn slot(&self) -> SlotId {
        match self {
            Want::Name { parent: inode, .. } | Want::Inode(inode) | Want::Path(inode) => inode.slot(),
            Want::NewDirectory(slot) => *slot,
        }
    }
}

/// Something that is so, and stays so while it is locked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fact {
    /// What a name means.
    Name {
        /// Directory.
        parent: InodeId,
        /// Name in it.
        name: FileName,
        /// Nothing, or an inode of this kind.
        entry: Option<(InodeId, FileKind)>,
    },
    /// An inode's record without its tail, as engines store it; `None`: it does not exist.
    Inode {
        /// Which.
        inode: InodeId,
        /// Its fixed part.
        record: Option<Vec<u8>>,
    },
    /// This id will be given to nobody else.
    NewDirectory(InodeId),
}

/// What a change under way has locked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Lock {
    /// What a name means.
    Name(InodeId, FileName),
    /// An inode's links, and a directory's names.
    Inode(InodeId),
    /// That a directory is where it is; may be locked by several.
    Place(InodeId),
}

/// What a shard does for a change that was decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// The name means this inode from now on.
    Point {
        /// Directory.
        parent: InodeId,
        /// Name in it.
        name: FileName,
        /// What it means.
        inode: InodeId,
        /// What that is.
        kind: FileKind,
    },
    /// The name goes.
    Unpoint {
        /// Directory.
        parent: InodeId,
        /// Name in it.
        name: FileName,
    },
    /// The directory has so many more entries and subdirectories, and has changed.
    Touch {
        /// Which.
        directory: InodeId,
        /// More entries.
        entries: i64,
        /// More subdirectories.
        subdirectories: i32,
    },
    /// The inode has a further name.
    AddLink {
        /// Which.
        inode: InodeId,
        /// Directory of the name.
        parent: InodeId,
        /// The name.
        name: FileName,
    },
    /// A name of the inode has moved.
    MoveLink {
        /// Which.
        inode: InodeId,
        /// From this directory and name ...
        from: (InodeId, FileName),
        /// ... to these.
        to: (InodeId, FileName),
    },
    /// A name of the inode, no directory, is gone. If it was the last, the inode is kept for the holder.
    DropLink {
        /// Which.
        inode: InodeId,
        /// Directory of the name.
        parent: InodeId,
        /// The name.
        name: FileName,
        /// [`SessionId::LEADER`]: nobody has it open.
        holder: SessionId,
    },
    /// The directory, empty and nameless, goes.
    RemoveDirectory {
        /// Which.
        inode: InodeId,
    },
    /// The directory begins to exist.
    InsertDirectory {
        /// Its id, as told by [`Fact::NewDirectory`].
        inode: InodeId,
        /// Its record, as engines store it.
        record: Vec<u8>,
        /// Names and values of its extended attributes.
        xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    },
}

impl Step {
    /// Whose shard carries it out.
    pub fn slot(&self) -> SlotId {
        match self {
            Step::Point { parent: inode, .. }
            | Step::Unpoint { parent: inode, .. }
            | Step::Touch { directory: inode, .. }
            | Step::AddLink { inode, .. }
            | Step::MoveLink { inode, .. }
            | Step::DropLink { inode, .. }
            | Step::RemoveDirectory { inode }
            | Step::InsertDirectory { inode, .. } => inode.slot(),
        }
    }
}

/// See [`Command::Decide`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decide {
    /// Which attempt.
    pub intent: IntentId,
    /// What each shard that was asked has told.
    pub facts: Vec<(ShardId, Vec<Fact>)>,
    /// The change.
    pub command: Command,
}

/// A change that its coordinator has decided and that others have not yet carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// Whose change it is.
    pub op: OpId,
    /// What is left to do, by shard; a shard without steps only unlocks.
    pub steps: Vec<(ShardId, Vec<Step>)>,
}
