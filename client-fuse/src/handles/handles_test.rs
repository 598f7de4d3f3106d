//! Listings that go on while names come and go.

use std::collections::BTreeSet;

use pando_types::limits::DIR_ENTRIES_PER_PAGE_MAX;

use super::*;
use crate::fs::tests::Double;

/// Reads like the kernel: as many entries as a buffer holds, then on from the last one.
struct Reader {
    listing: Listing,
    offset: u64,
    buffer: usize,
    plus: bool,
}

impl Reader {
    fn new(buffer: usize, plus: bool) -> Reader {
        Reader { listing: Listing::new(InodeId::ROOT), offset: 0, buffer, plus }
    }

    /// One request: the names and where each ends.
    async fn step(&mut self, volume: &Double) -> Vec<(String, u64)> {
        let mut got = Vec::new();
        let (room, plus) = (self.buffer, self.plus);
        let mut emit = |e: Listed<'_>| {
            if got.len() == room {
                return true;
            }
            let name = String::from_utf8(e.name.to_vec()).unwrap();
            assert_eq!(e.attr.is_some(), plus && !name.starts_with('.'), "{name}");
            got.push((name, e.next));
            false
        };
        self.listing.read(volume, self.offset, self.plus, [InodeId::ROOT; 2], &mut emit).await.unwrap();
        if let Some((_, next)) = got.last() {
            self.offset = *next;
        }
        got
    }

    async fn rest(&mut self, volume: &Double) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let got = self.step(volume).await;
            if got.is_empty() {
                return all;
            }
            all.extend(got.into_iter().map(|(name, _)| name));
        }
    }
}

fn name(n: usize) -> String {
    format!("f{n:06}")
}

fn filled(count: usize) -> Double {
    let volume = Double::default();
    (0..count).for_each(|n| volume.add_file(&name(n)));
    volume
}

#[tokio::test]
async fn every_name_once_at_any_buffer_size() {
    for (count, buffer) in [(0, 3), (1, 1), (5, 2), (3000, 7), (3000, 100_000), (2 * DIR_ENTRIES_PER_PAGE_MAX, 50)] {
        for plus in [false, true] {
            let names = Reader::new(buffer, plus).rest(&filled(count)).await;
            let expected = [".".to_owned(), "..".to_owned()].into_iter().chain((0..count).map(name));
            assert_eq!(names, expected.collect::<Vec<_>>(), "{count} names, {buffer} at once");
        }
    }
}

#[tokio::test]
async fn what_stays_is_listed_once_while_others_come_and_go() {
    let volume = filled(5000);
    let mut reader = Reader::new(37, false);
    let mut seen = Vec::new();
    for round in 0.. {
        let got = reader.step(&volume).await;
        if got.is_empty() {
            break;
        }
        // Remove what was just read and every third name ahead; add new ones before and behind.
        for (gone, _) in &got {
            volume.remove_file(gone);
        }
        volume.remove_file(&name(3 * round));
        volume.add_file(&format!("a{round}"));
        volume.add_file(&format!("f{:06}-new", 4999 - round));
        seen.extend(got.into_iter().map(|(n, _)| n));
    }
    let once: BTreeSet<&String> = seen.iter().collect();
    assert_eq!(once.len(), seen.len(), "no name twice");
    let untouched = (0..5000).filter(|n| n % 3 != 0).map(name);
    for n in untouched {
        assert!(once.contains(&n), "{n} was there all the time");
    }
}

#[tokio::test]
async fn an_offset_leads_back_to_where_it_was() {
    let volume = filled(4000);
    let mut reader = Reader::new(100, false);
    let mut after = Vec::new();
    loop {
        let got = reader.step(&volume).await;
        if got.is_empty() {
            break;
        }
        after.extend(got);
    }
    for at in [0, 1, 2, 500, 1023, 1024, 1025, 3000, 3999, 77] {
        reader.offset = after[at].1;
        let expected = after.get(at + 1).map(|(n, _)| n.clone());
        assert_eq!(reader.step(&volume).await.first().map(|(n, _)| n.clone()), expected, "after entry {at}");
    }
    // Within the page that was just read, also after names before it have gone.
    reader.offset = after[3000].1;
    let got = reader.step(&volume).await;
    volume.remove_file(&got[10].0);
    volume.remove_file(&name(0));
    reader.offset = got[20].1;
    assert_eq!(reader.step(&volume).await[0].0, got[21].0);
}

#[tokio::test]
async fn rewinding_shows_what_is_there_now() {
    let volume = filled(3);
    let mut reader = Reader::new(100, false);
    assert_eq!(reader.rest(&volume).await.len(), 5);
    volume.add_file("added");
    volume.remove_file(&name(1));
    reader.offset = 0;
    assert_eq!(reader.rest(&volume).await, [".", "..", "added", "f000000", "f000002"]);
}

#[tokio::test]
async fn attributes_are_of_this_request_or_asked_again() {
    let volume = filled(10);
    let mut reader = Reader::new(5, true);
    reader.step(&volume).await;
    volume.set_size(&name(4), 99);
    let mut sizes = Vec::new();
    let mut emit = |e: Listed<'_>| {
        sizes.push(e.attr.map(|a| a.size));
        false
    };
    reader.listing.read(&volume, reader.offset, true, [InodeId::ROOT; 2], &mut emit).await.unwrap();
    assert_eq!(sizes[..2], [Some(0), Some(99)]);
}

#[tokio::test]
async fn marks_are_bounded() {
    let volume = filled(20_000);
    let mut reader = Reader::new(8, true);
    reader.plus = true;
    reader.rest(&volume).await;
    assert!(reader.listing.marks.len() <= MARKS_MAX);
    assert_eq!(reader.listing.marks[0].index, 0);
    reader.offset = 15_000 + DOTS;
    assert_eq!(reader.step(&volume).await[0].0, name(15_000));
}
