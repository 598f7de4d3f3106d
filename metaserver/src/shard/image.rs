//! A shard's whole state as a stream of chunks, for a replica that is too far behind its log.
//!
//! ```text
//! chunk    version u8 | record ...       record   key length u32 LE | value length u32 LE | key | value
//! ```
//! Invariants: the image is a view of one moment; it begins with the shard's own records, its slots among them; the applied mark
//! is not in it and stored by the reader at the end.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pando_engine::keys::slots::Slots;
use pando_engine::kv::{Batch, Kv, View};
use pando_engine::{keys, read};
use pando_raft::{ImageSource, MachineError};
use pando_types::ShardId;

const VERSION: u8 = 1;
/// A chunk ends after this many bytes; with the largest record it stays below the 4 MiB that the group allows.
const CHUNK_BYTES: usize = 1 << 20;
const HEAD_BYTES: usize = 8;

type Chunk = Result<Bytes, MachineError>;
/// Keys from the first to before the second.
type Range = (Vec<u8>, Vec<u8>);

/// The state as of now. A thread of its own holds the view and reads as fast as chunks are taken.
pub(super) fn write<K: Kv>(kv: Arc<K>, shard: ShardId) -> Result<Box<dyn ImageSource>, MachineError> {
    let (chunks_to, chunks) = sync_channel(1);
    let (ready_to, ready) = sync_channel(1);
    std::thread::Builder::new()
        .name("image".into())
        .spawn(move || {
            let view = kv.view();
            let _ = ready_to.send(());
            if let Err(error) = send_all(&view, shard, &chunks_to) {
                let _ = chunks_to.send(Err(error));
            }
        })
        .map_err(MachineError::new)?;
    ready.recv().map_err(MachineError::new)?;
    Ok(Box::new(Chunks(chunks)))
}

struct Chunks(Receiver<Chunk>);

impl ImageSource for Chunks {
    fn next(&mut self) -> Result<Option<Bytes>, MachineError> {
        self.0.recv().ok().transpose()
    }
}

/// Ends early when nobody takes chunks any more.
fn send_all(view: &impl View, shard: ShardId, to: &SyncSender<Chunk>) -> Result<(), MachineError> {
    let slots = read::slots(view, shard).map_err(MachineError::new)?;
    let mut chunk = new_chunk();
    for (from, until) in ranges(&slots, shard) {
        let mut gone = false;
        let scanned = view.scan(&from, &until, &mut |key, value| {
            chunk.put_u32_le(key.len() as u32);
            chunk.put_u32_le(value.len() as u32);
            chunk.put_slice(key);
            chunk.put_slice(value);
            if chunk.len() >= CHUNK_BYTES {
                gone = to.send(Ok(std::mem::replace(&mut chunk, new_chunk()).freeze())).is_err();
            }
            if gone { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        scanned.map_err(MachineError::new)?;
        if gone {
            return Ok(());
        }
    }
    let _ = to.send(Ok(chunk.freeze()));
    Ok(())
}

fn new_chunk() -> BytesMut {
    let mut chunk = BytesMut::with_capacity(CHUNK_BYTES + (128 << 10));
    chunk.put_u8(VERSION);
    chunk
}

/// Replaces the shard's records by the image's; there is no applied mark afterwards. The slots that the image is of must be
/// nobody else's on this node.
pub(super) fn read<K: Kv>(
    kv: &Arc<K>,
    shard: ShardId,
    chunks: &mut dyn Iterator<Item = Chunk>,
) -> Result<(), MachineError> {
    erase(kv, shard)?;
    let mut reader = Reader { shard, allowed: ranges(&Slots::default(), shard), slots_seen: false };
    for chunk in chunks {
        kv.write(reader.parse(chunk?)?).map_err(MachineError::new)?;
    }
    Ok(())
}

/// Removes all of the shard's records.
pub(super) fn erase<K: Kv>(kv: &Arc<K>, shard: ShardId) -> Result<(), MachineError> {
    let slots = read::slots(&kv.view(), shard).map_err(MachineError::new)?;
    let mut batch = Batch::default();
    batch.delete(keys::shard::applied_key(shard));
    ranges(&slots, shard).into_iter().for_each(|(from, until)| batch.delete_range(from, until));
    kv.write(batch).map_err(MachineError::new)
}

/// Where the shard's records lie: its own, which say which slots it has, then these.
fn ranges(slots: &Slots, shard: ShardId) -> Vec<Range> {
    let mut ranges = keys::of_owner(slots, shard);
    ranges.rotate_left(slots.runs().len());
    ranges
}

/// Takes chunks in their order.
struct Reader {
    shard: ShardId,
    allowed: Vec<Range>,
    slots_seen: bool,
}

impl Reader {
    fn parse(&mut self, mut chunk: Bytes) -> Result<Batch, MachineError> {
        let damaged = || MachineError::new("an image chunk is damaged or of another version");
        if chunk.is_empty() || chunk.get_u8() != VERSION {
            return Err(damaged());
        }
        let mut batch = Batch::default();
        while !chunk.is_empty() {
            if chunk.len() < HEAD_BYTES {
                return Err(damaged());
            }
            let (key_bytes, value_bytes) = (chunk.get_u32_le() as usize, chunk.get_u32_le() as usize);
            if chunk.len() < key_bytes.saturating_add(value_bytes) {
                return Err(damaged());
            }
            let (key, value) = (chunk.split_to(key_bytes), chunk.split_to(value_bytes));
            if !self.allowed.iter().any(|(from, until)| (from.as_slice()..until.as_slice()).contains(&&key[..])) {
                return Err(damaged());
            }
            if key[..] == keys::slots::key(self.shard)[..] && !std::mem::replace(&mut self.slots_seen, true) {
                self.allowed = ranges(&Slots::decode(&value).map_err(MachineError::new)?, self.shard);
                // What an earlier replica of any shard has left there.
                let own = self.allowed.iter().filter(|(from, _)| from[..4] != keys::SHARD_SLOT.to_be_bytes());
                own.for_each(|(from, until)| batch.delete_range(from.clone(), until.clone()));
            }
            batch.put(key.to_vec(), value.to_vec());
        }
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use pando_engine::kv::mem::MemKv;
    use pando_engine::{Engine, fsck};
    use pando_types::command::{Create, NewNode};
    use pando_types::{Command, Envelope, FileName, Generation, InodeId, LogEntry, OpId, SessionId, Timestamp};

    use super::*;

    fn entry(names: std::ops::Range<u32>) -> LogEntry {
        let command = |n: u32| {
            let name = FileName::new(format!("{n:0200}").as_bytes()).unwrap();
            let node = NewNode::File;
            Command::Create(Create { parent: InodeId::ROOT, name, node, mode: 0o644, umask: 0, uid: 0, gid: 0 })
        };
        let op = OpId { session: SessionId::LEADER, sequence: 0 };
        let commands = names.map(|n| Envelope { op, acked: 0, command: command(n) }).collect();
        LogEntry { time: Timestamp(1), generation: Generation::FIRST, commands }
    }

    fn records(kv: &MemKv) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut all = Vec::new();
        let visit = &mut |k: &[u8], v: &[u8]| {
            all.push((k.to_vec(), v.to_vec()));
            ControlFlow::Continue(())
        };
        kv.view().scan(&[], &[255; 20], visit).unwrap();
        all
    }

    /// Several chunks, a view of one moment, and whatever the reader held before is gone.
    #[test]
    fn an_image_is_the_state_of_its_moment() {
        let source = Arc::new(MemKv::default());
        let mut engine = Engine::open(source.clone(), ShardId(0)).unwrap();
        engine.apply(b"5", &[entry(0..5000)]).unwrap();
        let before = records(&source);
        let mut image = write(source.clone(), ShardId(0)).unwrap();
        engine.apply(b"6", &[entry(5000..5100)]).unwrap();
        let mut chunks = Vec::new();
        while let Some(chunk) = image.next().unwrap() {
            chunks.push(Ok(chunk));
        }
        assert!(chunks.len() > 1);

        let target = Arc::new(MemKv::default());
        let mut engine = Engine::open(target.clone(), ShardId(0)).unwrap();
        engine.apply(b"2", &[entry(7000..7100)]).unwrap();
        super::read(&target, ShardId(0), &mut chunks.into_iter()).unwrap();
        let mut engine = Engine::open(target.clone(), ShardId(0)).unwrap();
        assert_eq!(engine.applied(), None, "without the mark until all is there");
        engine.apply(b"5", &[]).unwrap();
        assert_eq!(records(&target), before);
        assert_eq!(fsck(&target.view(), ShardId(0)).unwrap().problems, Vec::<String>::new());
    }

    #[test]
    fn damage_is_refused() {
        for bad in
            [&b""[..], b"\x02", b"\x01abc", b"\x01\xff\xff\xff\xff\xff\xff\xff\xff", b"\x01\x01\0\0\0\0\0\0\0\xff"]
        {
            let mut reader =
                Reader { shard: ShardId(0), allowed: ranges(&Slots::all(), ShardId(0)), slots_seen: false };
            assert!(reader.parse(Bytes::from_static(bad)).is_err(), "{bad:?}");
        }
    }
}
