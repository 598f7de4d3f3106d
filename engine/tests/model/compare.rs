//! Everything that a read can tell, against the model.

use std::collections::BTreeSet;

use pando_engine::keys::slots::Slots;
use pando_engine::read::Found;
use pando_engine::{Effect, ReadError, View, read};
use pando_types::{Errno, FileKind, InodeId, ShardId};

use crate::SHARD;
use crate::reference::{Cell, Model, Node};

/// The state, and that effects have told what now waits.
pub fn compare(view: &impl View, model: &mut Model, effects: &[Effect], what: &str) {
    compare_state(view, &[SHARD], model, what);
    compare_effects(view, SHARD, model, effects, what);
}

/// That effects have told what now waits in a shard.
pub fn compare_effects(view: &impl View, shard: ShardId, model: &Model, effects: &[Effect], what: &str) {
    for segment in read::dead_segments(view, shard, usize::MAX).unwrap() {
        assert!(effects.contains(&Effect::SegmentDead(segment)), "{what}: segment {segment} died in silence");
    }
    for orphan in read::free_orphans(view, shard, usize::MAX).unwrap() {
        let with_holder =
            model.nodes[&orphan].holder.is_some_and(|holder| effects.contains(&Effect::SessionClosed(holder)));
        let told = with_holder || effects.contains(&Effect::OrphanFree(orphan));
        assert!(told, "{what}: orphan {orphan} became free in silence");
    }
}

/// The state of these shards together.
pub fn compare_state(view: &impl View, shards: &[ShardId], model: &mut Model, what: &str) {
    let ids: Vec<InodeId> = model.nodes.keys().copied().collect();
    for &id in &ids {
        let attr = read::getattr(view, id).unwrap_or_else(|error| panic!("{what}: inode {id}: {error}"));
        assert_eq!(model.attr_differs(&attr), None, "{what}: inode {id}");
        let node = &model.nodes[&id];
        let moved = if node.changed { attr.version > node.version } else { attr.version == node.version };
        assert!(moved, "{what}: inode {id} went from version {} to {}", node.version, attr.version);
        compare_node(view, id, node, what);
        let node = model.nodes.get_mut(&id).unwrap();
        (node.version, node.changed) = (attr.version, false);
    }
    let inodes: u64 = shards.iter().map(|shard| read::totals(view, *shard).unwrap().inodes).sum();
    assert_eq!(inodes, ids.len() as u64, "{what}");
    assert_eq!(read::sessions(view, SHARD).unwrap(), model.sessions.keys().copied().collect::<Vec<_>>(), "{what}");
    let free = |shard: &ShardId| read::free_orphans(view, *shard, usize::MAX).unwrap();
    let orphans: BTreeSet<InodeId> = shards.iter().flat_map(free).collect();
    assert_eq!(orphans, model.free_orphans(), "{what}: free orphans");
    let dead = |shard: &ShardId| read::dead_segments(view, *shard, usize::MAX).unwrap();
    let dead: BTreeSet<_> = shards.iter().flat_map(dead).collect();
    assert_eq!(dead, model.dead(), "{what}: dead segments");
}

fn compare_node(view: &impl View, id: InodeId, node: &Node, what: &str) {
    match node.kind {
        FileKind::Directory => compare_directory(view, id, node, what),
        FileKind::File => assert_eq!(cells(view, id), node.data, "{what}: content of {id}"),
        FileKind::Symlink => assert_eq!(read::readlink(view, id).unwrap(), node.target, "{what}: target of {id}"),
        _ => assert!(matches!(read::content(view, id, 0), Err(ReadError::Refused(Errno::EINVAL))), "{what}"),
    }
    let names: Vec<_> = node.xattrs.keys().cloned().collect();
    assert_eq!(read::listxattr(view, id).unwrap(), names, "{what}: xattrs of {id}");
    for (name, value) in &node.xattrs {
        assert_eq!(read::getxattr(view, id, name).unwrap(), *value, "{what}: xattr {name} of {id}");
    }
}

fn compare_directory(view: &impl View, id: InodeId, node: &Node, what: &str) {
    let above = read::parent(view, &Slots::all(), id).unwrap();
    assert!(matches!(&above, Found::Here(attr) if attr.inode == node.parent), "{what}: parent of {id}: {above:?}");
    let mut found = Vec::new();
    loop {
        let last = found.last().map(|(name, _)| name);
        let page = read::readdir(view, &Slots::all(), id, last, true, 3).unwrap();
        let end = page.end;
        for entry in page.entries {
            assert_eq!(
                entry.attr.as_ref().map(|attr| (attr.inode, attr.kind)),
                Some((entry.inode, entry.kind)),
                "{what}"
            );
            let meant = read::lookup(view, &Slots::all(), id, &entry.name).ok();
            assert_eq!(meant, entry.attr.clone().map(Found::Here), "{what}");
            found.push((entry.name, entry.inode));
        }
        if end {
            break;
        }
    }
    let expected: Vec<_> = node.entries.iter().map(|(name, inode)| (name.clone(), *inode)).collect();
    assert_eq!(found, expected, "{what}: entries of {id}");
}

fn cells(view: &impl View, id: InodeId) -> Vec<Cell> {
    let content = read::content(view, id, 0).unwrap();
    assert!(!content.more);
    let mut cells = vec![Cell::Zero; content.attr.size as usize];
    for (cell, byte) in cells.iter_mut().zip(&content.inline) {
        *cell = if *byte == 0 { Cell::Zero } else { Cell::Inline(*byte) };
    }
    for extent in &content.extents {
        for at in 0..extent.length {
            cells[(extent.offset + at) as usize] = Cell::Stored(extent.segment, extent.segment_offset + at);
        }
    }
    cells
}
