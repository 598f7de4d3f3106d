//! A file's state by itself: what a commit holds, and what is left when it did not work.

use super::*;
use crate::file::sealed::Place;
use crate::file::testing::attr;
use crate::memory::budget::Purpose;
use pando_types::SessionId;

const NOW: Timestamp = Timestamp(77);
const MIB: u64 = 1 << 20;

fn new(budget: &Arc<Budget>) -> State {
    State::new(attr(InodeId(9)), true, budget, None)
}

fn write(state: &mut State, budget: &Arc<Budget>, offset: u64, data: &[u8]) {
    let grant = budget.try_take(Purpose::Keep, state.need(offset, data.len() as u64)).unwrap();
    state.write(offset, data, grant, NOW, false);
}

fn store(block: &Arc<Block>, sequence: u64) {
    let segment = SegmentId { session: SessionId(1), sequence };
    block.stored(Place { segment, base: 0, length: block.length });
}

fn land(state: &mut State, take_off: &TakeOff) {
    let extents = take_off.pieces.iter().map(|p| p.extent(p.block.place().unwrap())).collect();
    let mut attr = state.attr.clone();
    attr.version += 1;
    attr.size = attr.size.max(take_off.commit.size);
    state.land(attr, &CommitContent::Extents(extents));
}

#[test]
fn a_commit_that_is_too_large_is_split_at_blocks_and_ends_with_the_size() {
    let budget = Budget::new(64 * MIB, MIB);
    let mut state = new(&budget);
    for block in 0..3 {
        write(&mut state, &budget, block * 4 * MIB, &vec![1; 4 * MIB as usize]);
    }
    state.set(&AttrChange { mode: Some(0o600), ..AttrChange::default() }, NOW);
    let sealed = state.seal_full(0, 12 * MIB);
    assert_eq!(sealed.len(), 3);
    sealed.iter().for_each(|b| store(b, b.sequence));
    let wanted = Wanted { sequence: u64::MAX, pieces_max: 2, size: 0 };
    let first = state.take_off(&wanted, None).unwrap();
    assert_eq!((first.pieces.len(), first.commit.size, first.commit.change.mode), (2, 8 * MIB, Some(0o600)));
    assert_eq!(state.size(), 12 * MIB, "what is in flight is seen");
    land(&mut state, &first);
    assert!(!state.is_clean());
    let second = state.take_off(&wanted, None).unwrap();
    assert_eq!((second.pieces.len(), second.commit.size, second.commit.change.mode), (1, 12 * MIB, None));
    land(&mut state, &second);
    assert!(state.is_clean() && state.take_off(&wanted, None).is_none());
    assert!(matches!(state.source(9 * MIB, 10 * MIB), Ok((Source::Stored(_), _))));
}

#[test]
fn what_is_written_while_a_commit_is_in_flight_is_in_the_next() {
    let budget = Budget::new(64 * MIB, MIB);
    let mut state = new(&budget);
    write(&mut state, &budget, 0, b"hello world");
    state.seal_all();
    let first = state.take_off(&Wanted::ALL, None).unwrap();
    write(&mut state, &budget, 6, b"there");
    state.truncate(8, NOW, false);
    store(&first.blocks[0], 1);
    land(&mut state, &first);
    assert_eq!(state.size(), 8);
    assert!(matches!(state.source(0, 8), Ok((Source::Stored(e), 6)) if e.length == 6));
    assert!(matches!(state.source(6, 8), Ok((Source::Dirty, 8))));
    state.grow(20, NOW);
    assert!(matches!(state.source(8, 20), Ok((Source::Hole, 20))), "the cut hides what was committed beyond it");
    state.seal_all();
    let second = state.take_off(&Wanted::ALL, None).unwrap();
    assert_eq!((second.commit.cut, second.commit.size), (Some(8), 20));
}

#[test]
fn a_commit_that_is_turned_back_keeps_bytes_in_memory_and_loses_others_for_good() {
    let budget = Budget::new(64 * MIB, MIB);
    let mut state = new(&budget);
    write(&mut state, &budget, 0, b"hello");
    state.seal_all();
    state.take_off(&Wanted::ALL, None).unwrap();
    write(&mut state, &budget, 3, b"p me");
    state.turn_back();
    assert_eq!(state.inline(), Some(b"help me".to_vec()));
    state.seal_all();
    let again = state.take_off(&Wanted::ALL, None).unwrap();
    assert_eq!((again.pieces.len(), again.commit.size), (2, 7));
    store(&again.blocks[0], 1);
    state.turn_back();
    assert!(state.lost && state.size() == 0);
    assert_eq!(budget.usage().0, again.blocks.iter().filter(|b| b.runs().is_some()).count() as u64 * 768);
    state.truncate(0, NOW, false);
    assert!(!state.lost);
}

#[test]
fn a_page_of_another_version_never_mixes_with_a_commit_of_ours() {
    let budget = Budget::new(64 * MIB, MIB);
    let mut state = new(&budget);
    write(&mut state, &budget, 0, &[1; 5000]);
    state.seal_all();
    let take_off = state.take_off(&Wanted::ALL, None).unwrap();
    store(&take_off.blocks[0], 1);
    let mut attr = state.attr.clone();
    attr.version += 2; // somebody else has committed too
    attr.size = 5000;
    let extents = take_off.pieces.iter().map(|p| p.extent(p.block.place().unwrap())).collect();
    state.land(attr, &CommitContent::Extents(extents));
    assert_eq!(state.source(0, 5000).err(), Some(Missing(0)), "the map has to be asked for");
}
