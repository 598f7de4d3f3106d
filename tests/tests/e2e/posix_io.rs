//! Opening, reading and writing.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::sync::Arc;

use pando_tests::bytes::{Random, seeded};
use pando_tests::sys::{self, Mapping};

use crate::{Place, refused, same};

fn rw() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

#[test]
fn open_flags_mean_what_they_say() {
    let place = Place::new("open_flags");
    let file = place.path("file");
    refused(File::open(&file), libc::ENOENT);
    fs::write(&file, b"content").unwrap();
    refused(rw().create_new(true).open(&file), libc::EEXIST);
    symlink("nowhere", place.path("dangling")).unwrap();
    refused(rw().create_new(true).open(place.path("dangling")), libc::EEXIST);
    refused(rw().custom_flags(libc::O_NOFOLLOW).open(place.path("dangling")), libc::ELOOP);
    refused(rw().custom_flags(libc::O_DIRECTORY).open(&file), libc::ENOTDIR);
    refused(OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(&file), libc::ENOTDIR);
    refused(rw().open(&place.dir), libc::EISDIR);
    refused(File::open(place.path("file/")), libc::ENOTDIR);
    refused(File::open(place.path("file/below")), libc::ENOTDIR);
    refused(File::create(place.path("absent/below")), libc::ENOENT);
    refused(File::open(&file).unwrap().write_at(b"x", 0), libc::EBADF);
    refused(OpenOptions::new().write(true).open(&file).unwrap().read_at(&mut [0; 1], 0), libc::EBADF);
    assert_eq!(fs::read(&file).unwrap(), b"content");
    // Creating through a dangling symbolic link makes its target.
    fs::write(place.path("dangling"), b"made").unwrap();
    assert_eq!(fs::read(place.path("nowhere")).unwrap(), b"made");
}

#[test]
fn o_trunc_empties_and_the_size_is_seen_at_once() {
    let place = Place::new("o_trunc");
    for (name, length) in [("inline", 3000), ("packed", 70_000), ("large", 9 << 20)] {
        let path = place.path(name);
        fs::write(&path, seeded(1, length)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), length as u64);
        let file = OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0, "{name}");
        assert_eq!(file.metadata().unwrap().len(), 0, "{name}");
        file.write_all_at(b"new", 0).unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"new", "{name}");
    }
}

#[test]
fn appends_from_many_handles_are_all_there() {
    let place = Place::new("append");
    let path = place.path("log");
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            let path = &path;
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
                for _ in 0..100 {
                    file.write_all(&[b'a' + writer; 64]).unwrap();
                }
            });
        }
    });
    let got = fs::read(&path).unwrap();
    assert_eq!(got.len(), 4 * 100 * 64);
    for record in got.chunks(64) {
        assert!(record.iter().all(|byte| *byte == record[0]), "a record was torn");
    }
    let mut appender = OpenOptions::new().append(true).read(true).open(&path).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(10).unwrap();
    appender.seek(SeekFrom::Start(0)).unwrap();
    appender.write_all(b"end").unwrap();
    assert_eq!(fs::read(&path).unwrap(), [&got[..10], b"end"].concat());
}

#[test]
fn o_direct_is_accepted() {
    let place = Place::new("o_direct");
    let path = place.path("file");
    // Alignment as a local disk wants it, so that the same test runs on ext4.
    let mut block = vec![0u8; 3 * 4096];
    let start = block.as_ptr().align_offset(4096);
    let aligned = &mut block[start..start + 8192];
    aligned.copy_from_slice(&seeded(3, 8192));
    let file = rw().create(true).truncate(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    file.write_all_at(aligned, 0).unwrap();
    file.write_all_at(aligned, 8192).unwrap();
    aligned.fill(0);
    file.read_exact_at(aligned, 4096).unwrap();
    same(aligned, &[&seeded(3, 8192)[4096..], &seeded(3, 8192)[..4096]].concat());
    drop(file);
    same(&fs::read(&path).unwrap(), &seeded(3, 8192).repeat(2));
}

#[test]
fn random_writes_read_back_like_memory() {
    let place = Place::new("random_writes");
    for (name, span, most) in [("inline", 4_000, 700), ("packed", 200_000, 9_000), ("large", 12 << 20, 1 << 20)] {
        let path = place.path(name);
        let mut random = Random::new(span as u64);
        let mut model: Vec<u8> = Vec::new();
        let mut file = rw().create(true).truncate(true).open(&path).unwrap();
        for step in 0..200 {
            let offset = random.below(span as u64) as usize;
            let length = random.below(most) as usize + 1;
            match random.below(10) {
                0..5 => {
                    let bytes = seeded(step, length);
                    file.write_all_at(&bytes, offset as u64).unwrap();
                    model.resize(model.len().max(offset + length), 0);
                    model[offset..offset + length].copy_from_slice(&bytes);
                }
                5..8 => {
                    let mut got = vec![0; length];
                    let count = file.read_at(&mut got, offset as u64).unwrap();
                    let end = model.len().min(offset + length);
                    same(&got[..count], &model[offset.min(end)..end]);
                }
                8 => {
                    file.set_len(offset as u64).unwrap();
                    model.resize(offset, 0);
                }
                _ => {
                    drop(file);
                    file = rw().open(&path).unwrap();
                }
            }
            assert_eq!(file.metadata().unwrap().len(), model.len() as u64, "{name}, step {step}");
        }
        drop(file);
        same(&fs::read(&path).unwrap(), &model);
    }
}

#[test]
fn what_is_written_is_seen_before_close() {
    let place = Place::new("before_close");
    let path = place.path("file");
    let mut writer = File::create(&path).unwrap();
    for (round, length) in [100usize, 5000, 300_000, 5 << 20].into_iter().enumerate() {
        let before = fs::metadata(&path).unwrap().len();
        let bytes = seeded(round as u64, length);
        writer.write_all(&bytes).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), before + length as u64);
        let mut reader = File::open(&path).unwrap();
        reader.seek(SeekFrom::Start(before)).unwrap();
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        same(&got, &bytes);
    }
    // A listing with attributes tells the same size.
    let entry = fs::read_dir(&place.dir).unwrap().next().unwrap().unwrap();
    assert_eq!(entry.metadata().unwrap().len(), 100 + 5000 + 300_000 + (5 << 20));
}

#[test]
fn fsync_of_files_and_directories() {
    let place = Place::new("fsync");
    let file = File::create(place.path("file")).unwrap();
    file.write_all_at(&seeded(1, 100_000), 0).unwrap();
    file.sync_data().unwrap();
    file.write_all_at(b"more", 100_000).unwrap();
    file.sync_all().unwrap();
    File::open(&place.dir).unwrap().sync_all().unwrap();
    File::open(&place.dir).unwrap().sync_data().unwrap();
    sys::syncfs(&file).unwrap();
    let synced = rw().create(true).truncate(true).custom_flags(libc::O_SYNC).open(place.path("sync")).unwrap();
    synced.write_all_at(b"at once", 0).unwrap();
    assert_eq!(fs::read(place.path("sync")).unwrap(), b"at once");
}

#[test]
fn the_block_size_makes_programs_write_large() {
    let place = Place::new("blksize");
    fs::write(place.path("file"), seeded(1, 1 << 20)).unwrap();
    let meta = fs::metadata(place.path("file")).unwrap();
    if !place.is_plain() {
        assert_eq!(meta.blksize(), 1 << 20);
    }
    assert!(meta.blocks() * 512 >= 1 << 20, "du would show too little");
    let python = "import sys\nf = open(sys.argv[1], 'wb')\nfor i in range(5000): f.write(b'%04d' % i * 250)\n";
    crate::programs::python(python, &[&place.path("pickled")]);
    let want: Vec<u8> = (0..5000).flat_map(|i| format!("{i:04}").repeat(250).into_bytes()).collect();
    same(&fs::read(place.path("pickled")).unwrap(), &want);
}

#[test]
fn an_ioctl_that_is_not_for_files_is_refused() {
    let place = Place::new("ioctl");
    let file = File::create(place.path("file")).unwrap();
    // SAFETY: termios is plain data of the size TCGETS writes.
    let mut terminal: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: descriptor and buffer are ours.
    let result = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&file), libc::TCGETS, &raw mut terminal) };
    assert_eq!(result, -1);
    refused::<()>(Err(std::io::Error::last_os_error()), libc::ENOTTY);
}

#[test]
fn a_mapping_reads_the_file() {
    let place = Place::new("mmap_read");
    for (name, length) in [("inline", 2_000usize), ("large", 6 << 20)] {
        let path = place.path(name);
        fs::write(&path, seeded(5, length)).unwrap();
        let file = File::open(&path).unwrap();
        for flags in [libc::MAP_PRIVATE, libc::MAP_SHARED] {
            let map = Mapping::new(&file, length, libc::PROT_READ, flags).unwrap();
            same(map.bytes(), &seeded(5, length));
        }
    }
}

#[test]
fn a_private_mapping_changes_nothing() {
    let place = Place::new("mmap_private");
    let path = place.path("file");
    fs::write(&path, seeded(6, 100_000)).unwrap();
    let file = File::open(&path).unwrap();
    let mut map = Mapping::new(&file, 100_000, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE).unwrap();
    map.bytes_mut().fill(9);
    drop(map);
    same(&fs::read(&path).unwrap(), &seeded(6, 100_000));
}

#[test]
fn a_shared_mapping_writes_the_file() {
    let place = Place::new("mmap_shared");
    let path = place.path("file");
    let length = 3 << 20;
    let file = rw().create(true).truncate(true).open(&path).unwrap();
    file.set_len(length as u64).unwrap();
    let mut map = Mapping::new(&file, length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED).unwrap();
    map.bytes_mut().copy_from_slice(&seeded(7, length));
    map.sync().unwrap();
    same(&fs::read(&path).unwrap(), &seeded(7, length));
    // A write by call is seen in the mapping, and the other way round.
    file.write_all_at(b"by write", 4096).unwrap();
    assert_eq!(&map.bytes()[4096..4104], b"by write");
    map.bytes_mut()[10] = b'!';
    map.sync().unwrap();
    let mut got = [0];
    file.read_exact_at(&mut got, 10).unwrap();
    assert_eq!(got, *b"!");
    // Without msync: what was written is there after munmap and close.
    map.bytes_mut()[length - 1] = b'?';
    drop(map);
    sys::close(file).unwrap();
    assert_eq!(fs::read(&path).unwrap()[length - 1], b'?');
}

#[test]
fn many_writers_fill_one_file_at_their_own_offsets() {
    let place = Place::new("many_writers");
    let path = place.path("checkpoint");
    let (writers, each, chunk) = (8usize, 6usize << 20, 256usize << 10);
    let file = Arc::new(rw().create(true).truncate(true).open(&path).unwrap());
    file.set_len((writers * each) as u64).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let file = file.clone();
            scope.spawn(move || {
                let bytes = seeded(writer as u64, each);
                for (index, part) in bytes.chunks(chunk).enumerate() {
                    file.write_all_at(part, (writer * each + index * chunk) as u64).unwrap();
                }
            });
        }
    });
    file.sync_all().unwrap();
    let got = fs::read(&path).unwrap();
    for writer in 0..writers {
        same(&got[writer * each..(writer + 1) * each], &seeded(writer as u64, each));
    }
}

#[test]
fn renaming_an_open_dirty_file_takes_its_bytes_along() {
    let place = Place::new("rename_dirty");
    for length in [1_000usize, 200_000, 6 << 20] {
        let (temporary, name) = (place.path(".tmp"), place.path("published"));
        let mut file = rw().create_new(true).open(&temporary).unwrap();
        file.set_len(length as u64).unwrap();
        file.write_all(&seeded(8, length)).unwrap();
        fs::rename(&temporary, &name).unwrap();
        same(&fs::read(&name).unwrap(), &seeded(8, length));
        file.write_all(b"afterwards").unwrap();
        drop(file);
        same(&fs::read(&name).unwrap(), &[&seeded(8, length)[..], b"afterwards"].concat());
        refused(File::open(&temporary), libc::ENOENT);
    }
}

#[test]
fn an_unlinked_open_file_lives_until_it_is_closed() {
    let place = Place::new("unlinked_open");
    for length in [500usize, 100_000, 5 << 20] {
        let path = place.path("file");
        fs::write(&path, seeded(9, length)).unwrap();
        let file = rw().open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        refused(File::open(&path), libc::ENOENT);
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        file.write_all_at(b"still here", length as u64).unwrap();
        file.sync_all().unwrap();
        let mut got = vec![0; length + 10];
        file.read_exact_at(&mut got, 0).unwrap();
        same(&got, &[&seeded(9, length)[..], b"still here"].concat());
        file.set_len(3).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 3);
        // The name may be used again meanwhile, by another file.
        fs::write(&path, b"another").unwrap();
        assert_eq!(file.read_at(&mut got, 0).unwrap(), 3);
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"another");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_file_replaced_by_rename_stays_readable_where_it_is_open() {
    let place = Place::new("replaced_open");
    let (old, new) = (place.path("old"), place.path("new"));
    fs::write(&old, seeded(1, 50_000)).unwrap();
    let file = File::open(&old).unwrap();
    fs::write(&new, seeded(2, 50_000)).unwrap();
    fs::rename(&new, &old).unwrap();
    let mut got = vec![0; 50_000];
    file.read_exact_at(&mut got, 0).unwrap();
    same(&got, &seeded(1, 50_000));
    same(&fs::read(&old).unwrap(), &seeded(2, 50_000));
}

#[test]
fn handles_opened_before_an_overwrite_see_the_new_bytes() {
    let place = Place::new("reader_before_writer");
    let path = place.path("file");
    fs::write(&path, seeded(1, 300_000)).unwrap();
    let reader = File::open(&path).unwrap();
    let mut got = vec![0; 300_000];
    reader.read_exact_at(&mut got, 0).unwrap();
    fs::write(&path, seeded(2, 250_000)).unwrap();
    assert_eq!(reader.metadata().unwrap().len(), 250_000);
    reader.read_exact_at(&mut got[..250_000], 0).unwrap();
    same(&got[..250_000], &seeded(2, 250_000));
    assert_eq!(reader.read_at(&mut got, 250_000).unwrap(), 0);
}

/// The kernel refuses it only after the file system has carried out the truncation that comes with the open.
#[test]
fn a_running_program_cannot_be_emptied() {
    let place = Place::new("running");
    let program = place.path("sleep");
    fs::copy("/bin/sleep", &program).unwrap();
    let whole = fs::read(&program).unwrap();
    let mut child = std::process::Command::new(&program).arg("60").spawn().unwrap();
    for flags in [libc::O_RDONLY | libc::O_TRUNC, libc::O_WRONLY, libc::O_WRONLY | libc::O_TRUNC] {
        let path = std::ffi::CString::new(program.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: the path is a C string that lives long enough.
        let opened = unsafe { libc::open(path.as_ptr(), flags) };
        assert_eq!((opened, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ETXTBSY)), "{flags:#x}");
    }
    same(&fs::read(&program).unwrap(), &whole);
    assert!(child.try_wait().unwrap().is_none(), "it still runs");
    child.kill().unwrap();
    child.wait().unwrap();
    for _ in 0..50 {
        let mut child = std::process::Command::new(&program).arg("0").spawn().unwrap();
        child.wait().unwrap();
        fs::copy("/bin/sleep", &program).unwrap();
    }
}
