//! What a client asks a server, and the answers.
//!
//! Invariant: every list in an answer is bounded by limits.rs, so that an answer fits in a frame.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::attr::{Attr, FileKind};
use crate::command::{Command, Envelope, Reply};
use crate::epoch::{Generation, MapEpoch};
use crate::error::FsError;
use crate::extent::Extent;
use crate::ids::{InodeId, NodeId, SegmentId, SessionId, ShardId, SlotId};
use crate::intent::{IntentId, Step};
use crate::name::{FileName, XattrName};
use crate::shard_map::{ClusterTag, Labels, ShardMap};

/// A request with what its sender knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestMessage {
    /// Whose shard map it was routed by.
    pub cluster: ClusterTag,
    /// The shard map it was routed by.
    pub epoch: MapEpoch,
    /// The highest generation its sender has seen.
    pub generation: Generation,
    /// What is asked.
    pub request: Request,
}

/// An answer with what its sender knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseMessage {
    /// The highest generation its sender has seen.
    pub generation: Generation,
    /// The answer.
    pub result: Result<Response, FsError>,
}

/// What a server can be asked. Reads are linearizable: they see every change acknowledged before they were sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The shard map. Answer: [`Response::ShardMap`].
    ShardMap,
    /// How the cluster's data is stored, for mounts. Answer: [`Response::Mount`].
    Mount,
    /// Opens a session. Answer: [`Response::Session`].
    OpenSession,
    /// A session writes to a further shard. Answer: [`Response::Done`].
    JoinSession {
        /// Which shard.
        shard: ShardId,
        /// An open session, which has not ended anywhere.
        session: SessionId,
    },
    /// The session is alive. Answer: [`Response::Done`], or an error of kind `Stale` if the shard does not know it.
    KeepAlive {
        /// Which shard.
        shard: ShardId,
        /// Which session.
        session: SessionId,
    },
    /// The session is over. Answer: [`Response::Done`].
    CloseSession {
        /// Which shard.
        shard: ShardId,
        /// Which session.
        session: SessionId,
    },
    /// A change. Answer: [`Response::Reply`].
    Change(Envelope),
    /// A name in a directory. Answer: [`Response::Attr`], or [`Response::Elsewhere`].
    Lookup {
        /// Directory.
        parent: InodeId,
        /// Name in it.
        name: FileName,
    },
    /// Attributes. Answer: [`Response::Attr`].
    GetAttr {
        /// Which inode.
        inode: InodeId,
    },
    /// Attributes and content map of a regular file from `offset` on. Answer: [`Response::Content`].
    Content {
        /// Which inode.
        inode: InodeId,
        /// Extents that end at or before this are left out.
        offset: u64,
    },
    /// A page of a directory in name order, without `.` and `..`. Answer: [`Response::Directory`].
    ReadDir {
        /// Directory.
        inode: InodeId,
        /// Names after this one.
        after: Option<FileName>,
        /// With attributes.
        plus: bool,
        /// Most entries wanted, at most [`crate::limits::DIR_ENTRIES_PER_PAGE_MAX`].
        limit: u32,
    },
    /// A symbolic link's target. Answer: [`Response::Bytes`].
    ReadLink {
        /// Which inode.
        inode: InodeId,
    },
    /// An extended attribute. Answer: [`Response::Bytes`].
    GetXattr {
        /// Which inode.
        inode: InodeId,
        /// Name with namespace.
        name: XattrName,
    },
    /// Names of the extended attributes. Answer: [`Response::Xattrs`].
    ListXattr {
        /// Which inode.
        inode: InodeId,
    },
    /// The parent directory of a directory (`..`). Answer: [`Response::Attr`], or [`Response::Elsewhere`].
    Parent {
        /// A directory.
        inode: InodeId,
    },
    /// A shard's totals. Answer: [`Response::Totals`].
    Totals {
        /// Which shard.
        shard: ShardId,
    },
    /// Checks every invariant of a shard's state. Answer: [`Response::Fsck`].
    Fsck {
        /// Which shard.
        shard: ShardId,
    },
    /// Which of these segments the metadata refers to, or may yet (their session lives). Answer: [`Response::Segments`].
    SegmentsInUse {
        /// Which shard.
        shard: ShardId,
        /// At most 1,000, of its slots.
        segments: Vec<SegmentId>,
    },
    /// Collects a shard's orphans and dead segments now; shard 0 looks for leaked segments of all. Answer:
    /// [`Response::Collected`].
    Collect {
        /// Which shard.
        shard: ShardId,
    },
    /// The cluster's state. Answer: [`Response::Status`].
    Status,
    /// A message between the replicas of a shard. Answer: [`Response::Raft`].
    Raft {
        /// The sender's cluster.
        cluster: String,
        /// Whose replicas.
        shard: ShardId,
        /// Only they know what it means.
        message: Bytes,
    },
    /// A new node wants to be part of the cluster, or one that has moved says so. Answer: [`Response::Joined`].
    Join(Join),
    /// The receiver shall hold a replica of this shard. Answer: [`Response::Done`].
    StartReplica {
        /// The sender's cluster.
        cluster: String,
        /// Which shard.
        shard: ShardId,
        /// What it has: first and last of each run.
        slots: Vec<(SlotId, SlotId)>,
    },
    /// The receiver's replica is not part of its shard any more. Answer: [`Response::Done`].
    StopReplica {
        /// The sender's cluster.
        cluster: String,
        /// Which shard.
        shard: ShardId,
        /// Index of the log entry that named the members, the receiver not among them. A receiver that knows itself named
        /// by that entry or a later one refuses: the sender is behind.
        members_at: u64,
    },
    /// Changes what a node is for. Answer: [`Response::Done`].
    ChangeNode {
        /// Which node.
        node: NodeId,
        /// How.
        change: NodeChange,
    },
    /// A shard shall be led by this node, which has a replica. Answer: [`Response::Done`] once it has been asked to.
    TransferShard {
        /// Which shard.
        shard: ShardId,
        /// Its next leader.
        to: NodeId,
    },
    /// The replicas of the node that is asked. Answer: [`Response::Replicas`].
    Replicas,
    /// A shard shall hand about half of what it has to a new shard. Answer: [`Response::ShardMap`], in which that is written.
    SplitShard {
        /// Which shard.
        shard: ShardId,
    },
    /// A replica of a shard shall go from one node to another. Answer: [`Response::Done`]; the shard's leader sees to it.
    MoveReplica {
        /// Which shard.
        shard: ShardId,
        /// Who has it.
        from: NodeId,
        /// Who shall have it.
        to: NodeId,
    },
    /// The slots that make up about half of a shard. Answer: [`Response::Slots`].
    HalfOf {
        /// Which shard.
        shard: ShardId,
    },
    /// Another shard's leader takes part of a change to this shard: only [`Command::Prepare`] and [`Command::Finish`].
    /// Answer: [`Response::Reply`].
    TakePart {
        /// The sender's cluster.
        cluster: String,
        /// Which shard.
        shard: ShardId,
        /// What it shall do.
        command: Command,
    },
    /// What became of a change that the receiver coordinates. Answer: [`Response::Steps`], none if it will never be made.
    Outcome {
        /// The sender's cluster.
        cluster: String,
        /// Who asks.
        shard: ShardId,
        /// Which attempt.
        intent: IntentId,
    },
}

/// See [`Request::Join`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// What lets nodes in.
    pub token: Secret,
    /// A member's id; `None`: a new node.
    pub node: Option<NodeId>,
    /// `host:port` where it can be reached.
    pub address: String,
    /// Where it stands.
    pub labels: Labels,
    /// Where it was told that files are; empty: it was told nothing.
    pub object_store: String,
}

/// Text that is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl Secret {
    /// Whether they are the same, in a time that does not tell how far they agree.
    pub fn is(&self, other: &Secret) -> bool {
        let (own, other) = (self.0.as_bytes(), other.0.as_bytes());
        own.len() == other.len() && own.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

/// See [`Request::ChangeNode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeChange {
    /// Its replicas shall go elsewhere.
    Drain,
    /// It may hold replicas again.
    Undrain,
    /// It will never come back.
    Remove,
}

/// Answers of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// Done.
    Done,
    /// The shard map.
    ShardMap(ShardMap),
    /// What a mount needs to know.
    Mount(MountInfo),
    /// A session's id.
    Session(SessionId),
    /// A command's reply.
    Reply(Reply),
    /// Attributes.
    Attr(Attr),
    /// Attributes and content map of a file.
    Content(Content),
    /// A page of a directory.
    Directory(DirectoryPage),
    /// A link's target or an attribute's value.
    Bytes(Vec<u8>),
    /// Names of extended attributes.
    Xattrs(Vec<XattrName>),
    /// Totals.
    Totals(Totals),
    /// What fsck found; empty is clean.
    Fsck(FsckReport),
    /// Those of the asked segments that must be kept.
    Segments(Vec<SegmentId>),
    /// What a collection did.
    Collected(Collected),
    /// The cluster's state.
    Status(Status),
    /// A replica's answer to another.
    Raft(Bytes),
    /// The node is a member.
    Joined(Joined),
    /// A node's replicas.
    Replicas(Vec<Replica>),
    /// The inode is of another shard, which knows its attributes.
    Elsewhere(InodeId),
    /// First and last of runs of slots.
    Slots(Vec<(SlotId, SlotId)>),
    /// What the asking shard has to do.
    Steps(Vec<Step>),
}

/// What a new member has to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Its id.
    pub node: NodeId,
    /// How the cluster's data is stored.
    pub mount: MountInfo,
    /// The map, with the new node in it.
    pub map: ShardMap,
}

/// One replica as its node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    /// Of which shard.
    pub shard: ShardId,
    /// Who leads it.
    pub leader: Option<NodeId>,
    /// The term that this replica is in.
    pub term: u64,
    /// The last log entry that it has applied.
    pub applied: u64,
    /// Those whose votes count, as this replica knows them, in order.
    pub voters: Vec<NodeId>,
    /// It takes part: neither it nor its node's log has failed.
    pub working: bool,
}

/// How the cluster's data is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountInfo {
    /// The object store's URL without credentials: `file:///...` or `s3://bucket/prefix`.
    pub object_store: String,
    /// Endpoint of an S3-compatible store, if not AWS's own.
    pub s3_endpoint: Option<String>,
    /// Names the cluster; segments lie under it.
    pub cluster: String,
}

/// Where a file's bytes are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// Attributes of the same moment.
    pub attr: Attr,
    /// Bytes from offset 0 where no extent lies over them; beyond both, zeros.
    pub inline: Vec<u8>,
    /// At most [`crate::limits::EXTENTS_PER_PAGE_MAX`], ascending, without overlap.
    pub extents: Vec<Extent>,
    /// There are more extents after the last.
    pub more: bool,
}

/// A page of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryPage {
    /// In name order.
    pub entries: Vec<DirectoryEntry>,
    /// There are no names after the last entry.
    pub end: bool,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryEntry {
    /// The name.
    pub name: FileName,
    /// The inode.
    pub inode: InodeId,
    /// What it is.
    pub kind: FileKind,
    /// Its attributes, if asked for and if it is of the directory's shard.
    pub attr: Option<Attr>,
}

/// Sums over the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Inodes that exist, orphans included.
    pub inodes: u64,
    /// Bytes allocated to files.
    pub bytes: u64,
}

/// What fsck found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FsckReport {
    /// Inodes looked at.
    pub inodes: u64,
    /// A sentence per broken invariant; at most 1,000.
    pub problems: Vec<String>,
    /// Orphans waiting to be reclaimed: no problem, but worth knowing.
    pub orphans: u64,
    /// Dead segments waiting to be deleted.
    pub dead_segments: u64,
    /// Names here of inodes of other shards; over all shards the same as the next.
    pub names_of_others: Links,
    /// Links of inodes here from names in other shards.
    pub links_from_others: Links,
}

/// A set of links between shards, such that equal sets have equal values, and others almost certainly not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Links {
    /// How many.
    pub count: u64,
    /// Sum of a hash of each.
    pub digest: u64,
}

impl Links {
    /// One more, of this inode from this directory. The hash is SplitMix64's finalizer over both.
    pub fn add(&mut self, inode: InodeId, directory: InodeId) {
        let mix = |mut z: u64| {
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        self.count += 1;
        self.digest = self.digest.wrapping_add(mix(mix(inode.0).wrapping_add(directory.0)));
    }

    /// Both together.
    pub fn and(self, other: Links) -> Links {
        Links { count: self.count + other.count, digest: self.digest.wrapping_add(other.digest) }
    }
}

/// What a collection did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Collected {
    /// Orphaned inodes removed.
    pub orphans: u64,
    /// Segments that lost their last reference, deleted.
    pub dead_segments: u64,
    /// Segments that never had one (a client died before its commit), deleted.
    pub leaked_segments: u64,
    /// Segments in the store that were looked at.
    pub objects: u64,
}

/// A node as the leader of shard 0 finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Which.
    pub id: NodeId,
    /// Its replicas; `None` if it does not answer.
    pub replicas: Option<Vec<Replica>>,
}

/// The cluster's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The map it serves by.
    pub shard_map: ShardMap,
    /// Live sessions.
    pub sessions: u64,
    /// Sums.
    pub totals: Totals,
    /// Last index applied from the log.
    pub applied: u64,
    /// Who leads shard 0 and answers this.
    pub leader: NodeId,
    /// Every node.
    pub nodes: Vec<NodeStatus>,
    /// What is not as it should be, a sentence each.
    pub problems: Vec<String>,
    /// Program version.
    pub version: String,
}
