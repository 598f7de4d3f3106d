//! What a leader must do after a batch was applied. Followers drop effects.
//!
//! Losing one is harmless: each has a read that finds the same work again ([`crate::read::free_orphans`],
//! [`crate::read::dead_segments`], [`crate::read::sessions`]).

use pando_types::{InodeId, SegmentId, SessionId, ShardId};

/// Work for the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nobody holds this nameless inode: propose a `Reclaim`.
    OrphanFree(InodeId),
    /// No file refers to this segment: delete the object, then propose `ForgetSegments`.
    SegmentDead(SegmentId),
    /// A client has registered: watch that it keeps alive.
    SessionOpened(SessionId),
    /// A session has ended, and whatever orphans it held are free.
    SessionClosed(SessionId),
    /// Slots were handed to a new shard, whose replica every replica of this one starts.
    Split(ShardId),
    /// Every replica, not the leader alone, goes by the new shard map from now on.
    ShardMapChanged,
}
