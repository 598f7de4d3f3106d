//! What open files ask of the metadata servers; a double of it stands in for them in tests.
//!
//! Not here: names and directories, which files know nothing of.

use futures::future::BoxFuture;
use pando_types::command::Commit;
use pando_types::request::Content;
use pando_types::{Attr, Errno, FsError, InodeId, SegmentId, ShardId};

use crate::meta::Meta;

/// The answers of a commit, one per file.
pub(crate) type Committed = Result<Vec<Result<Attr, Errno>>, FsError>;

/// See the module. Each call ends by itself within a deadline.
pub(crate) trait Metadata: Send + Sync + 'static {
    /// A page of a file's content map, with the attributes of the same moment.
    fn content(&self, inode: InodeId, offset: u64) -> BoxFuture<'_, Result<Content, FsError>>;
    /// Makes stored bytes part of files, all of one shard. An error means that nobody knows whether it was done.
    fn commit(&self, commit: Commit) -> BoxFuture<'_, Committed>;
    /// These nameless inodes, all of one shard, are not open any more.
    fn release_orphans(&self, inodes: Vec<InodeId>) -> BoxFuture<'_, Result<(), FsError>>;
    /// A new name for an object that is committed to this inode's shard.
    fn segment_id(&self, inode: InodeId) -> BoxFuture<'_, Result<SegmentId, FsError>>;
    /// The shard that holds an inode, as far as it is known: what one commit can change.
    fn shard(&self, inode: InodeId) -> ShardId;
}

impl Metadata for Meta {
    fn content(&self, inode: InodeId, offset: u64) -> BoxFuture<'_, Result<Content, FsError>> {
        Box::pin(Meta::content(self, inode, offset))
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Committed> {
        Box::pin(Meta::commit(self, commit))
    }

    fn release_orphans(&self, inodes: Vec<InodeId>) -> BoxFuture<'_, Result<(), FsError>> {
        Box::pin(Meta::release_orphans(self, inodes))
    }

    fn segment_id(&self, inode: InodeId) -> BoxFuture<'_, Result<SegmentId, FsError>> {
        Box::pin(Meta::segment_id(self, inode))
    }

    fn shard(&self, inode: InodeId) -> ShardId {
        Meta::shard(self, inode)
    }
}
