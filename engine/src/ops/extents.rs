//! A file's extents and inline data: put, cut, and kept apart. Sizes and times are for the verbs.
//!
//! Invariant: where an extent lies, there is no inline data but zeros, so that cutting the extent reveals nothing.

use pando_types::{Extent, InodeId};

use super::segments;
use crate::error::EngineError;
use crate::keys::{after, extent};
use crate::kv::View;
use crate::txn::Txn;

/// Makes `[from, to)` read as zeros.
pub(super) fn clear<V: View>(txn: &mut Txn<'_, V>, id: InodeId, from: u64, to: u64) -> Result<(), EngineError> {
    clear_inline(txn, id, from, to)?;
    clear_extents(txn, id, from, to)
}

/// Puts an extent over whatever was there. Its segment's live bytes are counted by the commit.
pub(super) fn put<V: View>(txn: &mut Txn<'_, V>, id: InodeId, new: &Extent) -> Result<(), EngineError> {
    clear(txn, id, new.offset, new.end())?;
    store(txn, id, new);
    txn.allocate(id, new.length, 0)
}

/// Replaces all content by inline data.
pub(super) fn put_inline<V: View>(txn: &mut Txn<'_, V>, id: InodeId, data: &[u8]) -> Result<(), EngineError> {
    clear(txn, id, 0, u64::MAX)?;
    txn.inode_mut(id)?.tail = data.to_vec();
    txn.allocate(id, data.len() as u64, 0)
}

/// Removes up to `limit` extents of a file that nobody will read again; tells how many.
pub(super) fn remove_some<V: View>(txn: &mut Txn<'_, V>, id: InodeId, limit: usize) -> Result<usize, EngineError> {
    if limit == 0 || !txn.inode_mut(id)?.has_extents() {
        return Ok(0);
    }
    let prefix = extent::prefix(id);
    let found =
        txn.scan(&prefix, &after(&prefix), limit, |key, value| extent::decode(key, value).map(|parts| parts.1))?;
    for old in &found {
        remove(txn, id, old, old.length)?;
    }
    Ok(found.len())
}

fn clear_inline<V: View>(txn: &mut Txn<'_, V>, id: InodeId, from: u64, to: u64) -> Result<(), EngineError> {
    let tail = &mut txn.inode_mut(id)?.tail;
    let length = tail.len() as u64;
    if from >= length {
        return Ok(());
    }
    if to < length {
        tail[from as usize..to as usize].fill(0);
        return Ok(());
    }
    tail.truncate(from as usize);
    txn.allocate(id, 0, length - from)
}

fn clear_extents<V: View>(txn: &mut Txn<'_, V>, id: InodeId, from: u64, to: u64) -> Result<(), EngineError> {
    let inode = txn.inode_mut(id)?;
    if !inode.has_extents() || from >= inode.head.size {
        return Ok(());
    }
    let prefix = extent::prefix(id);
    let start = extent::key(id, from);
    let mut hit = Vec::new();
    if let Some((key, value)) = txn.last(&prefix, &start)? {
        let (_, before, _) = extent::decode(&key, &value)?;
        hit.extend((before.end() > from).then_some(before));
    }
    let end = if to == u64::MAX { after(&prefix) } else { extent::key(id, to) };
    hit.extend(txn.scan(&start, &end, usize::MAX, |key, value| extent::decode(key, value).map(|parts| parts.1))?);
    for old in hit {
        let left = old.clip(0, from);
        let right = old.clip(to, u64::MAX);
        let kept: u64 = left.iter().chain(&right).map(|part| part.length).sum();
        remove(txn, id, &old, old.length - kept)?;
        left.iter().chain(&right).for_each(|part| store(txn, id, part));
    }
    Ok(())
}

/// Deletes an extent's record; `bytes` of it are lost.
fn remove<V: View>(txn: &mut Txn<'_, V>, id: InodeId, old: &Extent, bytes: u64) -> Result<(), EngineError> {
    txn.delete(extent::key(id, old.offset));
    txn.allocate(id, 0, bytes)?;
    segments::release(txn, old.segment, bytes)
}

fn store<V: View>(txn: &mut Txn<'_, V>, id: InodeId, extent: &Extent) {
    txn.put(extent::key(id, extent.offset), extent::encode(extent, txn.generation()));
}
