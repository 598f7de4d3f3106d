//! Ranges of a file: sparse files, truncation, fallocate, holes, copy_file_range.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};

use pando_tests::bytes::seeded;
use pando_tests::sys;

use crate::{Place, refused, same};

const MIB: usize = 1 << 20;

fn create(place: &Place, name: &str) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(place.path(name)).unwrap()
}

#[test]
fn a_sparse_file_reads_zeros_and_takes_no_room() {
    let place = Place::new("sparse");
    let file = create(&place, "file");
    let far = 1u64 << 40;
    file.write_all_at(b"far away", far).unwrap();
    file.write_all_at(b"near", 5).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().len(), far + 8);
    assert!(file.metadata().unwrap().blocks() * 512 < MIB as u64, "a hole was allocated");
    drop(file);
    let file = File::open(place.path("file")).unwrap();
    let mut got = [1; 4096];
    file.read_exact_at(&mut got, far / 2).unwrap();
    assert_eq!(got, [0; 4096]);
    file.read_exact_at(&mut got[..12], 0).unwrap();
    assert_eq!(&got[..12], b"\0\0\0\0\0near\0\0\0");
    assert_eq!(file.read_at(&mut got, far - 2).unwrap(), 10);
    assert_eq!(&got[..10], b"\0\0far away");
}

#[test]
fn truncation_goes_both_ways() {
    let place = Place::new("truncate");
    for (name, length) in [("inline", 3_000usize), ("packed", 90_000), ("large", 9 * MIB)] {
        let path = place.path(name);
        fs::write(&path, seeded(1, length)).unwrap();
        sys::truncate(&path, (length / 3) as i64).unwrap();
        same(&fs::read(&path).unwrap(), &seeded(1, length)[..length / 3]);
        sys::truncate(&path, length as i64).unwrap();
        let mut want = seeded(1, length)[..length / 3].to_vec();
        want.resize(length, 0);
        same(&fs::read(&path).unwrap(), &want);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        // While dirty: bytes cut off must not come back.
        file.write_all_at(&[7; 1000], length as u64).unwrap();
        file.set_len(length as u64 + 10).unwrap();
        file.set_len(length as u64 + 20).unwrap();
        drop(file);
        want.extend([7; 10]);
        want.extend([0; 10]);
        same(&fs::read(&path).unwrap(), &want);
        sys::truncate(&path, 0).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert_eq!(fs::metadata(&path).unwrap().blocks(), 0, "{name}");
    }
    refused(File::open(place.path("inline")).unwrap().set_len(1), libc::EINVAL);
    refused(sys::truncate(&place.path("inline"), -1), libc::EINVAL);
    refused(sys::truncate(&place.path("absent"), 1), libc::ENOENT);
    refused(sys::truncate(&place.dir, 1), libc::EISDIR);
}

#[test]
fn fallocate_allocates_and_keeps_the_size_if_asked() {
    let place = Place::new("fallocate");
    let file = create(&place, "file");
    file.write_all_at(b"start", 0).unwrap();
    sys::fallocate(&file, libc::FALLOC_FL_KEEP_SIZE, 0, 5 * MIB as i64).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5);
    sys::fallocate(&file, 0, 100, 5 * MIB as i64).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 100 + 5 * MIB as u64);
    drop(file);
    let got = fs::read(place.path("file")).unwrap();
    assert_eq!(&got[..5], b"start");
    assert!(got[5..].iter().all(|byte| *byte == 0));
    assert_eq!(got.len(), 100 + 5 * MIB);
    let file = File::open(place.path("file")).unwrap();
    refused(sys::fallocate(&file, 0, 0, 10), libc::EBADF);
    let file = OpenOptions::new().write(true).open(place.path("file")).unwrap();
    refused(sys::fallocate(&file, 0, 0, 0), libc::EINVAL);
}

#[test]
fn punched_and_zeroed_ranges_read_zeros() {
    let place = Place::new("punch");
    let (punch, zero) = (
        libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
        libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
    );
    for (name, length) in [("inline", 3_000usize), ("packed", 90_000), ("large", 9 * MIB)] {
        let mut want = seeded(2, length);
        let file = create(&place, name);
        file.write_all_at(&want, 0).unwrap();
        for (index, mode) in [punch, zero, punch].into_iter().enumerate() {
            // Dirty the first time, stored the second and third.
            let (from, to) = (length / 10 * (2 * index + 1) + 3, length / 10 * (2 * index + 2));
            sys::fallocate(&file, mode, from as i64, (to - from) as i64).unwrap();
            want[from..to].fill(0);
            let mut got = vec![1; length];
            file.read_exact_at(&mut got, 0).unwrap();
            same(&got, &want);
            file.sync_all().unwrap();
        }
        sys::fallocate(&file, punch, length as i64 - 5, 1 << 30).unwrap();
        want[length - 5..].fill(0);
        assert_eq!(file.metadata().unwrap().len(), length as u64);
        sys::fallocate(&file, libc::FALLOC_FL_ZERO_RANGE, length as i64, 100).unwrap();
        want.extend([0; 100]);
        drop(file);
        same(&fs::read(place.path(name)).unwrap(), &want);
    }
}

#[test]
fn a_punched_file_gives_room_back() {
    let place = Place::new("punch_room");
    let file = create(&place, "file");
    file.write_all_at(&seeded(3, 8 * MIB), 0).unwrap();
    file.sync_all().unwrap();
    let before = file.metadata().unwrap().blocks();
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    sys::fallocate(&file, mode, MIB as i64, 6 * MIB as i64).unwrap();
    file.sync_all().unwrap();
    let after = file.metadata().unwrap().blocks();
    assert!(after * 512 <= before * 512 - 6 * MIB as u64, "{before} blocks before, {after} after");
}

#[test]
fn holes_and_data_are_found() {
    let place = Place::new("seek_hole");
    let file = create(&place, "file");
    file.write_all_at(&seeded(4, MIB), 0).unwrap();
    file.write_all_at(&seeded(5, MIB), 4 * MIB as u64).unwrap();
    let mib = |n: usize| (n * MIB) as i64;
    let look = |file: &File| {
        assert_eq!(sys::seek(file, 0, libc::SEEK_DATA).unwrap(), 0);
        assert_eq!(sys::seek(file, 0, libc::SEEK_HOLE).unwrap(), mib(1));
        assert_eq!(sys::seek(file, mib(1), libc::SEEK_DATA).unwrap(), mib(4));
        assert_eq!(sys::seek(file, mib(2), libc::SEEK_HOLE).unwrap(), mib(2));
        assert_eq!(sys::seek(file, mib(4) + 7, libc::SEEK_DATA).unwrap(), mib(4) + 7);
        assert_eq!(sys::seek(file, mib(4), libc::SEEK_HOLE).unwrap(), mib(5));
        refused(sys::seek(file, mib(5), libc::SEEK_DATA), libc::ENXIO);
        refused(sys::seek(file, mib(5) + 1, libc::SEEK_HOLE), libc::ENXIO);
    };
    look(&file);
    file.sync_all().unwrap();
    look(&file);
    drop(file);
    look(&File::open(place.path("file")).unwrap());
    // A file without holes ends with one; an inline file is data.
    fs::write(place.path("small"), b"abc").unwrap();
    let small = File::open(place.path("small")).unwrap();
    assert_eq!(sys::seek(&small, 1, libc::SEEK_DATA).unwrap(), 1);
    assert_eq!(sys::seek(&small, 0, libc::SEEK_HOLE).unwrap(), 3);
    let all_hole = create(&place, "hole");
    all_hole.set_len(mib(3) as u64).unwrap();
    refused(sys::seek(&all_hole, 0, libc::SEEK_DATA), libc::ENXIO);
    assert_eq!(sys::seek(&all_hole, 0, libc::SEEK_HOLE).unwrap(), 0);
}

#[test]
fn copy_file_range_copies() {
    let place = Place::new("copy_range");
    for length in [2_000usize, 150_000, 7 * MIB] {
        fs::write(place.path("from"), seeded(6, length)).unwrap();
        let from = File::open(place.path("from")).unwrap();
        let to = create(&place, "to");
        to.write_all_at(&[9; 100], 0).unwrap();
        let mut done = 0;
        while done < length {
            let got = sys::copy_file_range(&from, done as i64, &to, 50 + done as i64, length - done).unwrap();
            assert!(got > 0, "stopped at {done} of {length}");
            done += got;
        }
        assert_eq!(sys::copy_file_range(&from, length as i64, &to, 0, 10).unwrap(), 0, "past the end");
        drop(to);
        let mut want = [&[9; 50][..], &seeded(6, length)].concat();
        want.resize(want.len().max(100), 0);
        same(&fs::read(place.path("to")).unwrap(), &want);
        // From a file that is still dirty, and within one file.
        let one = create(&place, "one");
        one.write_all_at(&seeded(7, 100_000), 0).unwrap();
        assert_eq!(sys::copy_file_range(&one, 0, &one, 200_000, 50_000).unwrap(), 50_000);
        let mut got = vec![0; 50_000];
        one.read_exact_at(&mut got, 200_000).unwrap();
        same(&got, &seeded(7, 50_000));
        refused(sys::copy_file_range(&one, 0, &one, 10, 100), libc::EINVAL);
        // What programs use it through.
        assert_eq!(fs::copy(place.path("from"), place.path("copied")).unwrap(), length as u64);
        same(&fs::read(place.path("copied")).unwrap(), &seeded(6, length));
    }
}

#[test]
fn growing_over_a_hole_and_cutting_inside_a_segment_leave_no_old_bytes() {
    let place = Place::new("no_old_bytes");
    let path = place.path("file");
    fs::write(&path, seeded(1, 3 * MIB)).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.set_len(MIB as u64 + 17).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(b"end", 2 * MIB as u64).unwrap();
    file.sync_all().unwrap();
    let mut want = seeded(1, MIB + 17);
    want.resize(2 * MIB, 0);
    want.extend(b"end");
    same(&fs::read(&path).unwrap(), &want);
}

#[test]
fn small_files_grow_out_of_their_inode_and_back() {
    let place = Place::new("inline_edges");
    for length in [0usize, 1, 4095, 4096, 4097, 8192, 65_535, 65_536, 65_537] {
        let path = place.path(&format!("of_{length}"));
        fs::write(&path, seeded(length as u64, length)).unwrap();
        same(&fs::read(&path).unwrap(), &seeded(length as u64, length));
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&seeded(99, 10), length as u64).unwrap();
        drop(file);
        same(&fs::read(&path).unwrap(), &[seeded(length as u64, length), seeded(99, 10)].concat());
        sys::truncate(&path, length as i64 / 2).unwrap();
        same(&fs::read(&path).unwrap(), &seeded(length as u64, length)[..length / 2]);
    }
}
