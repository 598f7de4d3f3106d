//! Every cap of this crate, with its reason.

use std::time::Duration;

use pando_types::limits::{ENTRY_BYTES_MAX, FRAME_BYTES_MAX};

/// Largest payload of a proposal, in bytes: an entry of commands with its envelope, and it must fit in one frame.
pub(crate) const PAYLOAD_BYTES_MAX: usize = ENTRY_BYTES_MAX + (1 << 20);
/// An append message takes no further entry beyond this many bytes; one entry always fits.
pub(crate) const APPEND_BYTES_MAX: usize = 2 << 20;
/// Most entries in one append message.
pub(crate) const APPEND_ENTRIES_MAX: u64 = 512;
/// Entries of one batch handed to the machine: about a millisecond of work.
pub(crate) const BATCH_ENTRIES_MAX: usize = 128;
/// Bytes of payloads after which a batch is handed to the machine.
pub(crate) const BATCH_BYTES_MAX: usize = 1 << 20;
/// A batch above this many bytes is applied off the runtime's worker threads: some 200 commands, half a millisecond.
pub(crate) const BATCH_INLINE_BYTES_MAX: usize = 32 << 10;
/// Largest chunk of an image, in bytes: one frame holds it.
pub(crate) const IMAGE_CHUNK_BYTES_MAX: usize = 4 << 20;
/// Proposals and messages queued for one group; further callers wait.
pub(crate) const GROUP_QUEUE_MAX: u64 = 4096;
/// Appends that may wait for one fsync, over all groups of the node.
pub(crate) const SYNC_QUEUE_MAX: usize = 64 << 10;
/// Newest entries that each group keeps in memory, in bytes of their log records: some batches of small changes.
pub(crate) const RECENT_BYTES_MAX: usize = 256 << 10;
/// Memory of the log database's write buffers, in bytes: purged entries mostly die there.
pub(crate) const LOG_WRITE_BUFFER_BYTES: usize = 64 << 20;
/// An append with entries is given up after this; the follower's fsync may queue behind others.
pub(crate) const APPEND_TIMEOUT: Duration = Duration::from_secs(5);
/// One message of an image transfer is given up after this.
pub(crate) const IMAGE_MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a sender asks whether its image has been installed.
pub(crate) const IMAGE_POLL: Duration = Duration::from_millis(50);
/// A flush of the machine for the sake of the log is waited for this long before the next attempt.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(600);
/// A group's tasks must have ended this long after its shutdown began.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

const _: () = assert!(PAYLOAD_BYTES_MAX + APPEND_BYTES_MAX < FRAME_BYTES_MAX);
const _: () = assert!(IMAGE_CHUNK_BYTES_MAX + 4096 < FRAME_BYTES_MAX);
const _: () = assert!(APPEND_BYTES_MAX <= PAYLOAD_BYTES_MAX && BATCH_BYTES_MAX <= PAYLOAD_BYTES_MAX);
