//! Every cap of Pando, with its reason. A limit that is not here does not exist.

/// Longest file name, in bytes (POSIX NAME_MAX on Linux).
pub const NAME_BYTES_MAX: usize = 255;
/// Longest symbolic link target, in bytes (PATH_MAX less its NUL).
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Longest name of an extended attribute, in bytes (XATTR_NAME_MAX).
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Largest value of an extended attribute, in bytes (XATTR_SIZE_MAX).
pub const XATTR_VALUE_BYTES_MAX: usize = 65536;
/// All extended attributes of an inode together, in bytes: what listxattr can return (XATTR_LIST_MAX) and four values.
pub const XATTRS_PER_INODE_MAX: usize = 256;
/// Most hard links to one inode (as on ext4).
pub const LINKS_MAX: u32 = 65_000;
/// Most directories that a rename walks up to see that it makes no cycle; deeper ones refuse it (ELOOP). Far beyond PATH_MAX.
pub const ANCESTORS_PER_RENAME_MAX: usize = 65_536;
/// Largest file, in bytes: 2^63-1 is what the system calls can express (loff_t).
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Files of up to this many bytes live in their inode (DESIGN.md §8).
pub const INLINE_BYTES_MAX: usize = 4096;
/// Bytes under one CRC32C in a segment.
pub const CHECKSUM_BLOCK_BYTES: usize = 64 << 10;
/// Largest segment, in bytes of data.
pub const SEGMENT_BYTES_MAX: usize = 16 << 20;
/// Most runs of file bytes in one segment: its extents fit in one commit.
pub const OWNERS_PER_SEGMENT_MAX: usize = EXTENTS_PER_COMMIT_MAX;
/// Bytes of segment checksums that a store keeps in memory: those of about 7,000 segments of the largest size.
pub const FOOTER_CACHE_BYTES: usize = 8 << 20;
/// Most requests to the object store in progress at once; further ones wait. Beyond it, requests only queue at the store.
pub const STORE_REQUESTS_MAX: usize = 128;
/// Segment size for the first [`SMALL_BLOCKS_UNTIL`] bytes of a file and for random writers.
pub const BLOCK_BYTES_SMALL: usize = 4 << 20;
/// Segment size of a stream beyond [`SMALL_BLOCKS_UNTIL`].
pub const BLOCK_BYTES_LARGE: usize = 16 << 20;
/// File offset from which large blocks are used.
pub const SMALL_BLOCKS_UNTIL: u64 = 64 << 20;
/// Files up to this size share segments with others that are closed at the same time.
pub const PACKED_FILE_BYTES_MAX: usize = 1 << 20;

/// Most commands in one log entry: enough to amortize an fsync, small enough to apply in a millisecond or two.
pub const COMMANDS_PER_ENTRY_MAX: usize = 256;
/// Most bytes of commands in one log entry; one command always fits.
pub const ENTRY_BYTES_MAX: usize = 4 << 20;
/// Most commands that wait for a place in a log entry; a further one is answered `Throttled`.
pub const PROPOSALS_QUEUED_MAX: usize = 8192;
/// Most bytes of commands that wait for a place in a log entry.
pub const PROPOSAL_BYTES_QUEUED_MAX: usize = 64 << 20;
/// Most effects that wait for the leader's collectors; further ones are dropped, and found again by the next scan.
pub const EFFECTS_QUEUED_MAX: usize = 16 << 10;
/// Most inodes in one release of orphans.
pub const INODES_PER_RELEASE_MAX: usize = 4096;
/// Most segments in one question or command about segments.
pub const SEGMENTS_PER_REQUEST_MAX: usize = 1000;
/// Most files in one commit command.
pub const FILES_PER_COMMIT_MAX: usize = 1024;
/// Most extents in one commit command; a client splits larger commits.
pub const EXTENTS_PER_COMMIT_MAX: usize = 16 << 10;
/// Most extents in one answer.
pub const EXTENTS_PER_PAGE_MAX: usize = 8 << 10;
/// Most entries in one readdir answer.
pub const DIR_ENTRIES_PER_PAGE_MAX: usize = 1024;
/// Most inodes whose records one reclaim command removes.
pub const INODES_PER_RECLAIM_MAX: usize = 256;
/// Most extents that one reclaim command removes; what is left stays an orphan for the next.
pub const EXTENTS_PER_RECLAIM_MAX: usize = 4096;
/// Most operations of a session that may be without acknowledgement: the size of its dedup record.
pub const SESSION_WINDOW_OPS: u64 = 1024;
/// Most open sessions of a shard: clients are mounts, and each may keep a dedup record of [`SESSION_WINDOW_OPS`] replies.
pub const SESSIONS_MAX: usize = 16 << 10;
/// A session that has been silent for this long is ended through the log, in milliseconds.
pub const SESSION_TTL_MS: u64 = 30_000;

/// Most nodes of a cluster: each knows and pings all others.
pub const NODES_MAX: usize = 256;
/// Most shards of a cluster.
pub const SHARDS_MAX: usize = 4096;
/// Longest `host:port`, in bytes: a DNS name has at most 253.
pub const ADDRESS_BYTES_MAX: usize = 300;

/// Largest rpc frame, in bytes: an answer with [`DIR_ENTRIES_PER_PAGE_MAX`] entries or a command of [`ENTRY_BYTES_MAX`] fits.
pub const FRAME_BYTES_MAX: usize = 8 << 20;
/// Most requests of one connection that may be in progress; further ones wait unread.
pub const REQUESTS_PER_CONNECTION_MAX: usize = 1024;
/// Most connections a server keeps open: clients, and the other nodes; each holds at most a frame that is arriving.
pub const CONNECTIONS_MAX: usize = 4096;

const _: () = assert!(FRAME_BYTES_MAX >= 2 * ENTRY_BYTES_MAX);
const _: () = assert!(PROPOSAL_BYTES_QUEUED_MAX >= 2 * ENTRY_BYTES_MAX);
const _: () = assert!(DIR_ENTRIES_PER_PAGE_MAX * (NAME_BYTES_MAX + 256) < FRAME_BYTES_MAX);
const _: () = assert!(EXTENTS_PER_PAGE_MAX * 64 < FRAME_BYTES_MAX);
const _: () = assert!(EXTENTS_PER_COMMIT_MAX * 64 <= ENTRY_BYTES_MAX);
const _: () = assert!(XATTR_VALUE_BYTES_MAX < ENTRY_BYTES_MAX);
const _: () = assert!(SEGMENT_BYTES_MAX.is_multiple_of(CHECKSUM_BLOCK_BYTES));
const _: () = assert!(BLOCK_BYTES_LARGE <= SEGMENT_BYTES_MAX && BLOCK_BYTES_SMALL <= BLOCK_BYTES_LARGE);
const _: () = assert!(SMALL_BLOCKS_UNTIL.is_multiple_of(BLOCK_BYTES_LARGE as u64));
const _: () = assert!(COMMANDS_PER_ENTRY_MAX as u64 <= SESSION_WINDOW_OPS);
/// Locks that a change of several shards may take in one of them.
pub const LOCKS_PER_INTENT_MAX: usize = 4096;
/// Directories that one question for a path tells of.
pub const PATH_PER_WANT_MAX: usize = 128;
