//! A shard's whole state as a stream of chunks, for a replica that is too far behind its log.
//!
//! ```text
//! chunk    version u8 | record ...       record   key length u32 LE | value length u32 LE | key | value
//! ```
//! Invariants: the image is a view of one moment; the applied mark is not in it and stored by the reader at the end.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pando_engine::keys::{self, KeyKind, SHARD_SLOT};
use pando_engine::kv::{Batch, Kv, View};
use pando_raft::{ImageSource, MachineError};
use pando_types::shard_map::SlotRange;

const VERSION: u8 = 1;
/// A chunk ends after this many bytes; with the largest record it stays below the 4 MiB that the group allows.
const CHUNK_BYTES: usize = 1 << 20;
const HEAD_BYTES: usize = 8;

type Chunk = Result<Bytes, MachineError>;
/// Keys from the first to before the second.
type Range = (Vec<u8>, Vec<u8>);

/// The state as of now. A thread of its own holds the view and reads as fast as chunks are taken.
pub(super) fn write<K: Kv>(kv: Arc<K>, slots: &SlotRange) -> Result<Box<dyn ImageSource>, MachineError> {
    let (chunks_to, chunks) = sync_channel(1);
    let (ready_to, ready) = sync_channel(1);
    let ranges = ranges(slots);
    std::thread::Builder::new()
        .name("image".into())
        .spawn(move || {
            let view = kv.view();
            let _ = ready_to.send(());
            send_all(&view, &ranges, &chunks_to);
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
fn send_all(view: &impl View, ranges: &[Range], to: &SyncSender<Chunk>) {
    let mut chunk = new_chunk();
    for (from, until) in ranges {
        let mut gone = false;
        let scanned = view.scan(from, until, &mut |key, value| {
            chunk.put_u32_le(key.len() as u32);
            chunk.put_u32_le(value.len() as u32);
            chunk.put_slice(key);
            chunk.put_slice(value);
            if chunk.len() >= CHUNK_BYTES {
                gone = to.send(Ok(std::mem::replace(&mut chunk, new_chunk()).freeze())).is_err();
            }
            if gone { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if let Err(error) = scanned {
            let _ = to.send(Err(MachineError::new(error)));
            return;
        }
        if gone {
            return;
        }
    }
    let _ = to.send(Ok(chunk.freeze()));
}

fn new_chunk() -> BytesMut {
    let mut chunk = BytesMut::with_capacity(CHUNK_BYTES + (128 << 10));
    chunk.put_u8(VERSION);
    chunk
}

/// Replaces the shard's records by the image's; there is no applied mark afterwards.
pub(super) fn read<K: Kv>(
    kv: &Arc<K>,
    slots: &SlotRange,
    chunks: &mut dyn Iterator<Item = Chunk>,
) -> Result<(), MachineError> {
    erase(kv, slots)?;
    for chunk in chunks {
        kv.write(parse(chunk?, slots)?).map_err(MachineError::new)?;
    }
    Ok(())
}

/// Removes all of the shard's records.
pub(super) fn erase<K: Kv>(kv: &Arc<K>, slots: &SlotRange) -> Result<(), MachineError> {
    let mut batch = Batch::default();
    batch.delete(keys::shard::applied_key(slots.shard));
    for (from, until) in ranges(slots) {
        batch.delete_range(from, until);
    }
    kv.write(batch).map_err(MachineError::new)
}

fn parse(mut chunk: Bytes, slots: &SlotRange) -> Result<Batch, MachineError> {
    let damaged = || MachineError::new("an image chunk is damaged or of another version");
    if chunk.is_empty() || chunk.get_u8() != VERSION {
        return Err(damaged());
    }
    let ranges = ranges(slots);
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
        if !ranges.iter().any(|(from, until)| (from.as_slice()..until.as_slice()).contains(&&key[..])) {
            return Err(damaged());
        }
        batch.put(key.to_vec(), value.to_vec());
    }
    Ok(batch)
}

/// Where the shard's records lie: its slots, then its own records but for the applied mark.
fn ranges(slots: &SlotRange) -> Vec<Range> {
    let mut ranges = vec![(slots.first.0.to_be_bytes().to_vec(), (slots.last.0 + 1).to_be_bytes().to_vec())];
    for kind in KeyKind::ALL.into_iter().filter(|kind| *kind != KeyKind::Applied) {
        let mut prefix = SHARD_SLOT.to_be_bytes().to_vec();
        prefix.push(kind as u8);
        prefix.extend_from_slice(&u64::from(slots.shard.0).to_be_bytes());
        let end = keys::after(&prefix);
        ranges.push((prefix, end));
    }
    ranges
}

#[cfg(test)]
mod tests {
    use pando_engine::kv::mem::MemKv;
    use pando_engine::{Engine, fsck};
    use pando_types::command::{Create, NewNode};
    use pando_types::{
        Command, Envelope, FileName, Generation, InodeId, LogEntry, OpId, SessionId, ShardId, SlotId, Timestamp,
    };

    use super::*;

    const SLOTS: SlotRange = SlotRange { first: SlotId(0), last: SlotId(SlotId::COUNT - 1), shard: ShardId(0) };

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
        let mut image = write(source.clone(), &SLOTS).unwrap();
        engine.apply(b"6", &[entry(5000..5100)]).unwrap();
        let mut chunks = Vec::new();
        while let Some(chunk) = image.next().unwrap() {
            chunks.push(Ok(chunk));
        }
        assert!(chunks.len() > 1);

        let target = Arc::new(MemKv::default());
        let mut engine = Engine::open(target.clone(), ShardId(0)).unwrap();
        engine.apply(b"2", &[entry(7000..7100)]).unwrap();
        read(&target, &SLOTS, &mut chunks.into_iter()).unwrap();
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
            assert!(parse(Bytes::from_static(bad), &SLOTS).is_err(), "{bad:?}");
        }
    }
}
