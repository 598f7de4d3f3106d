//! Reads see what is staged; what is staged does not depend on how entries are cut into batches.

use super::*;
use crate::harness::{Dump, dump};
use crate::kv::Kv;
use crate::kv::mem::MemKv;

fn stored(pairs: &[(&str, &str)]) -> MemKv {
    let kv = MemKv::new();
    let mut batch = Batch::default();
    for (key, value) in pairs {
        batch.put(key.as_bytes().to_vec(), value.as_bytes().to_vec());
    }
    kv.write(batch).unwrap();
    kv
}

fn scanned(txn: &Txn<'_, impl View>, from: &str, to: &str, limit: usize) -> String {
    let parse = |key: &[u8], value: &[u8]| Ok([key, value].concat());
    let found = txn.scan(from.as_bytes(), to.as_bytes(), limit, parse).unwrap();
    String::from_utf8(found.join(&b' ')).unwrap()
}

#[test]
fn reads_see_staged_writes() {
    let kv = stored(&[("b", "1"), ("d", "1"), ("f", "1")]);
    let view = kv.view();
    let mut txn = Txn::new(&view, ShardId(0), None, Slots::all(), Arc::default());
    txn.put(b"a".to_vec(), b"2".to_vec());
    txn.put(b"d".to_vec(), b"2".to_vec());
    txn.put(b"e".to_vec(), b"2".to_vec());
    txn.put(b"g".to_vec(), b"2".to_vec());
    txn.delete(b"f".to_vec());
    assert_eq!(txn.get(b"f").unwrap(), None);
    assert_eq!(txn.get(b"b").unwrap(), Some(b"1".to_vec()));
    assert_eq!(scanned(&txn, "a", "z", 99), "a2 b1 d2 e2 g2");
    assert_eq!(scanned(&txn, "b", "g", 99), "b1 d2 e2");
    assert_eq!(scanned(&txn, "a", "z", 2), "a2 b1");
    assert_eq!(scanned(&txn, "e", "z", 1), "e2");
    assert_eq!(scanned(&txn, "a", "z", 0), "");
    assert_eq!(scanned(&txn, "z", "a", 9), "");
    let last = |from: &str, to: &str| {
        txn.last(from.as_bytes(), to.as_bytes())
            .unwrap()
            .map(|(key, value)| String::from_utf8([key, value].concat()).unwrap())
    };
    assert_eq!(last("a", "z").as_deref(), Some("g2"));
    assert_eq!(last("a", "g").as_deref(), Some("e2"), "the deleted one is passed over");
    assert_eq!(last("f", "g"), None);
    assert_eq!(last("a", "d").as_deref(), Some("b1"));
    assert_eq!(last("a", "b").as_deref(), Some("a2"));
    assert_eq!(last("b", "a"), None);
}

#[test]
fn time_and_generation_never_go_back() {
    let kv = MemKv::new();
    let view = kv.view();
    let mut txn = Txn::new(&view, ShardId(0), None, Slots::all(), Arc::default());
    assert!(txn.begin_entry(Timestamp(5), Generation(3)), "the first entry is told");
    assert!(!txn.begin_entry(Timestamp(-5), Generation(1)));
    assert_eq!((txn.now(), txn.generation()), (Timestamp(5), Generation(3)));
}

#[test]
fn a_batch_without_entries_writes_the_mark_alone() {
    let kv = MemKv::new();
    let view = kv.view();
    let finished = Txn::new(&view, ShardId(0), None, Slots::all(), Arc::default()).finish(b"m");
    kv.write(finished.batch).unwrap();
    let expected: Dump = vec![(shard::applied_key(ShardId(0)), shard::encode_applied(b"m"))];
    assert_eq!(dump(&kv.view()), expected);
    assert!(finished.state.is_none());
}

#[test]
fn a_slot_gives_each_sequence_once_until_it_has_no_more() {
    let kv = MemKv::new();
    let mut batch = Batch::default();
    batch.put(counter::key(SlotId(3)), counter::encode((1 << 44) - 1));
    kv.write(batch).unwrap();
    let view = kv.view();
    let mut txn = Txn::new(&view, ShardId(0), None, Slots::all(), Arc::default());
    assert_eq!(txn.next_inode(SlotId(0)).unwrap(), Some(InodeId(2)));
    assert_eq!(txn.next_inode(SlotId(0)).unwrap(), Some(InodeId(3)));
    assert_eq!(txn.next_inode(SlotId(3)).unwrap(), Some(InodeId::new(SlotId(3), (1 << 44) - 1)));
    assert_eq!(txn.next_inode(SlotId(3)).unwrap(), None);
}
