//! Names: rename, link, symlink, directories, special files, listing.

use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use pando_tests::sys;

use crate::{Place, refused};

const NOREPLACE: u32 = libc::RENAME_NOREPLACE;
const EXCHANGE: u32 = libc::RENAME_EXCHANGE;

fn names(dir: &Path) -> BTreeSet<OsString> {
    let all: Vec<OsString> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let set: BTreeSet<OsString> = all.iter().cloned().collect();
    assert_eq!(set.len(), all.len(), "a name was listed twice");
    set
}

#[test]
fn rename_replaces_by_the_rules() {
    let place = Place::new("rename");
    let (a, b) = (place.path("a"), place.path("b"));
    fs::write(&a, b"a").unwrap();
    fs::write(&b, b"b").unwrap();
    fs::rename(&a, &b).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"a");
    refused(fs::symlink_metadata(&a), libc::ENOENT);
    refused(fs::rename(&a, &b), libc::ENOENT);

    let (empty, full) = (place.path("empty"), place.path("full"));
    fs::create_dir(&empty).unwrap();
    fs::create_dir(&full).unwrap();
    fs::write(full.join("x"), b"x").unwrap();
    refused(fs::rename(&empty, &full), libc::ENOTEMPTY);
    refused(fs::rename(&b, &full), libc::EISDIR);
    refused(fs::rename(&full, &b), libc::ENOTDIR);
    refused(fs::rename(&full, full.join("below")), libc::EINVAL);
    fs::rename(&full, &empty).unwrap();
    assert_eq!(fs::read(empty.join("x")).unwrap(), b"x");

    // Two names of one inode: nothing happens.
    fs::hard_link(&b, &a).unwrap();
    fs::rename(&a, &b).unwrap();
    assert!(a.exists() && b.exists());
    // A directory between two parents takes its tree and its link count along.
    let other = place.path("other");
    fs::create_dir(&other).unwrap();
    let links = |path: &Path| fs::metadata(path).unwrap().nlink();
    let (from, to) = (links(&place.dir), links(&other));
    fs::rename(&empty, other.join("moved")).unwrap();
    assert_eq!((links(&place.dir), links(&other)), (from - 1, to + 1));
    assert_eq!(fs::read(other.join("moved/x")).unwrap(), b"x");
    assert_eq!(fs::metadata(other.join("moved/..")).unwrap().ino(), fs::metadata(&other).unwrap().ino());
}

#[test]
fn rename_noreplace_and_exchange() {
    let place = Place::new("rename2");
    let (a, b, dir) = (place.path("a"), place.path("b"), place.path("dir"));
    fs::write(&a, b"a").unwrap();
    fs::write(&b, b"b").unwrap();
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("inside"), b"inside").unwrap();
    refused(sys::rename2(&a, &b, NOREPLACE), libc::EEXIST);
    sys::rename2(&a, &b, EXCHANGE).unwrap();
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    sys::rename2(&a, &dir, EXCHANGE).unwrap();
    assert_eq!(fs::read(a.join("inside")).unwrap(), b"inside");
    assert_eq!(fs::read(&dir).unwrap(), b"b");
    refused(sys::rename2(&b, &place.path("absent"), EXCHANGE), libc::ENOENT);
    sys::rename2(&b, &place.path("absent"), NOREPLACE).unwrap();
    assert_eq!(fs::read(place.path("absent")).unwrap(), b"a");
    refused(sys::rename2(&a, &b, NOREPLACE | EXCHANGE), libc::EINVAL);
}

#[test]
fn hard_links_share_everything() {
    let place = Place::new("link");
    let (a, b) = (place.path("a"), place.path("b"));
    fs::write(&a, b"one").unwrap();
    fs::hard_link(&a, &b).unwrap();
    let (meta_a, meta_b) = (fs::metadata(&a).unwrap(), fs::metadata(&b).unwrap());
    assert_eq!((meta_a.ino(), meta_a.nlink(), meta_b.nlink()), (meta_b.ino(), 2, 2));
    fs::write(&b, b"changed").unwrap();
    assert_eq!(fs::read(&a).unwrap(), b"changed");
    refused(fs::hard_link(&a, &b), libc::EEXIST);
    refused(fs::hard_link(place.path("absent"), place.path("c")), libc::ENOENT);
    fs::create_dir(place.path("dir")).unwrap();
    refused(fs::hard_link(place.path("dir"), place.path("c")), libc::EPERM);
    fs::hard_link(&a, place.path("dir/c")).unwrap();
    fs::remove_file(&a).unwrap();
    assert_eq!(fs::metadata(&b).unwrap().nlink(), 2);
    assert_eq!(fs::read(place.path("dir/c")).unwrap(), b"changed");
    // A link of a symbolic link is to the link itself.
    symlink("b", place.path("s")).unwrap();
    fs::hard_link(place.path("s"), place.path("s2")).unwrap();
    assert_eq!(fs::read_link(place.path("s2")).unwrap(), Path::new("b"));
}

#[test]
fn linking_a_dirty_file_shows_its_bytes_under_both_names() {
    let place = Place::new("link_dirty");
    let mut file = File::create(place.path("a")).unwrap();
    file.write_all(&[5; 70_000]).unwrap();
    fs::hard_link(place.path("a"), place.path("b")).unwrap();
    assert_eq!(fs::read(place.path("b")).unwrap(), [5; 70_000]);
    assert_eq!(file.metadata().unwrap().nlink(), 2);
}

#[test]
fn symbolic_links_hold_any_text() {
    let place = Place::new("symlink");
    let long = "x/".repeat(2047);
    for target in ["file", "../symlink/file", "/absolute/and/absent", long.as_str(), "odd \n\u{7f} name"] {
        let link = place.path("link");
        symlink(target, &link).unwrap();
        assert_eq!(fs::read_link(&link).unwrap().as_os_str(), target);
        assert_eq!(fs::symlink_metadata(&link).unwrap().len(), target.len() as u64);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        refused(symlink(target, &link), libc::EEXIST);
        fs::remove_file(&link).unwrap();
    }
    fs::write(place.path("file"), b"through").unwrap();
    symlink("file", place.path("link")).unwrap();
    assert_eq!(fs::read(place.path("link")).unwrap(), b"through");
    symlink("loop2", place.path("loop1")).unwrap();
    symlink("loop1", place.path("loop2")).unwrap();
    refused(File::open(place.path("loop1")), libc::ELOOP);
    refused(fs::read_link(place.path("file")), libc::EINVAL);
    // The pattern of trainers: a new link renamed over the old.
    symlink("other", place.path("next")).unwrap();
    fs::rename(place.path("next"), place.path("link")).unwrap();
    assert_eq!(fs::read_link(place.path("link")).unwrap(), Path::new("other"));
}

#[test]
fn directories_come_and_go() {
    let place = Place::new("mkdir");
    let dir = place.path("dir");
    fs::create_dir(&dir).unwrap();
    refused(fs::create_dir(&dir), libc::EEXIST);
    refused(fs::create_dir(place.path("absent/below")), libc::ENOENT);
    assert_eq!(fs::metadata(&dir).unwrap().nlink(), 2);
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(dir.join("file"), b"").unwrap();
    assert_eq!(fs::metadata(&dir).unwrap().nlink(), 3);
    refused(fs::remove_dir(&dir), libc::ENOTEMPTY);
    refused(fs::remove_file(dir.join("sub")), libc::EISDIR);
    refused(fs::remove_dir(dir.join("file")), libc::ENOTDIR);
    refused(fs::remove_dir(dir.join("sub/.")), libc::EINVAL);
    refused(fs::remove_dir(dir.join("sub/..")), libc::ENOTEMPTY);
    let open = File::open(dir.join("sub")).unwrap();
    fs::remove_dir(dir.join("sub")).unwrap();
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    fs::remove_file(dir.join("file")).unwrap();
    fs::remove_dir(&dir).unwrap();
    refused(fs::remove_dir(&dir), libc::ENOENT);
    // mkdir of what exists, by everyone at once: one makes it, the others are told.
    let made: usize = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..8).map(|_| scope.spawn(|| usize::from(fs::create_dir(&dir).is_ok()))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).sum()
    });
    assert_eq!(made, 1);
}

#[test]
fn special_files_exist() {
    let place = Place::new("mknod");
    let fifo = place.path("fifo");
    sys::mknod(&fifo, libc::S_IFIFO | 0o644, 0).unwrap();
    assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
    std::thread::scope(|scope| {
        scope.spawn(|| fs::write(&fifo, b"through the pipe").unwrap());
        assert_eq!(fs::read(&fifo).unwrap(), b"through the pipe");
    });
    let socket = place.path("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
    let mut client = UnixStream::connect(&socket).unwrap();
    client.write_all(b"hello").unwrap();
    drop(client);
    let mut got = String::new();
    listener.accept().unwrap().0.read_to_string(&mut got).unwrap();
    assert_eq!(got, "hello");
    sys::mknod(&place.path("regular"), libc::S_IFREG | 0o640, 0).unwrap();
    assert_eq!(fs::metadata(place.path("regular")).unwrap().mode(), libc::S_IFREG | 0o640);
    if sys::is_root() {
        let device = libc::makedev(10, 200);
        sys::mknod(&place.path("char"), libc::S_IFCHR | 0o600, device).unwrap();
        sys::mknod(&place.path("block"), libc::S_IFBLK | 0o600, libc::makedev(259, 300)).unwrap();
        let (char, block) = (fs::metadata(place.path("char")).unwrap(), fs::metadata(place.path("block")).unwrap());
        assert!(char.file_type().is_char_device() && block.file_type().is_block_device());
        assert_eq!((char.rdev(), block.rdev()), (device, libc::makedev(259, 300)));
    }
    refused(sys::mknod(&fifo, libc::S_IFIFO | 0o644, 0), libc::EEXIST);
}

#[test]
fn names_may_have_any_bytes() {
    let place = Place::new("names");
    let mut wanted = BTreeSet::new();
    for start in (1u8..=255).step_by(50) {
        let name: Vec<u8> = (0..255u32).map(|i| (u32::from(start) + i) % 256).map(|byte| byte as u8).collect();
        let name: Vec<u8> = name.iter().map(|byte| if matches!(byte, 0 | b'/') { b'_' } else { *byte }).collect();
        wanted.insert(OsString::from_vec(name));
    }
    for name in ["Case", "case", "e\u{301}", "\u{e9}", " ", "-rf", "...", "\n", "*"] {
        wanted.insert(name.into());
    }
    wanted.insert(OsString::from_vec(vec![0xff]));
    for name in &wanted {
        fs::write(place.dir.join(name), name.as_bytes()).unwrap();
    }
    assert_eq!(names(&place.dir), wanted);
    for name in &wanted {
        assert_eq!(fs::read(place.dir.join(name)).unwrap(), name.as_bytes());
        fs::remove_file(place.dir.join(name)).unwrap();
    }
    let long = OsStr::from_bytes(&[b'n'; 256]).to_owned();
    refused(File::create(place.dir.join(&long)), libc::ENAMETOOLONG);
    refused(fs::metadata(place.dir.join(&long)), libc::ENAMETOOLONG);
    refused(fs::rename(&place.dir, place.dir.with_file_name(&long)), libc::ENAMETOOLONG);
    refused(symlink("x", place.dir.join(&long)), libc::ENAMETOOLONG);
}

#[test]
fn trees_may_be_deeper_than_a_path_is_long() {
    let place = Place::new("deep");
    let script = "import os, sys\nos.chdir(sys.argv[1])\nfor i in range(60):\n  os.mkdir('d' * 200); os.chdir('d' * 200)\n\
                  open('bottom', 'w').write('reached')\nassert open('bottom').read() == 'reached'\n\
                  for i in range(60): os.chdir('..')\nassert os.getcwd() == sys.argv[1], os.getcwd()\n";
    crate::programs::python(script, &[&place.dir]);
    fs::remove_dir_all(place.path(&"d".repeat(200))).unwrap();
    assert_eq!(names(&place.dir).len(), 0);
}

#[test]
fn a_large_directory_lists_every_name_once() {
    let place = Place::new("readdir");
    let wanted: BTreeSet<OsString> = (0..5000).map(|i| OsString::from(format!("entry-{i:05}"))).collect();
    for (index, name) in wanted.iter().enumerate() {
        match index % 10 {
            0 => fs::create_dir(place.dir.join(name)).unwrap(),
            1 => symlink("target", place.dir.join(name)).unwrap(),
            _ => drop(File::create(place.dir.join(name)).unwrap()),
        }
    }
    assert_eq!(names(&place.dir), wanted);
    for entry in fs::read_dir(&place.dir).unwrap() {
        let entry = entry.unwrap();
        let meta = fs::symlink_metadata(entry.path()).unwrap();
        assert_eq!(entry.file_type().unwrap(), meta.file_type(), "{:?}", entry.file_name());
        assert_eq!(std::os::unix::fs::DirEntryExt::ino(&entry), meta.ino(), "{:?}", entry.file_name());
    }
    let output = std::process::Command::new("rm").arg("-rf").arg(&place.dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    refused(fs::metadata(&place.dir), libc::ENOENT);
}

#[test]
fn a_listing_is_right_while_names_come_and_go() {
    let place = Place::new("readdir_changing");
    let stable: BTreeSet<OsString> = (0..3000).map(|i| OsString::from(format!("stable-{i:05}"))).collect();
    for name in &stable {
        File::create(place.dir.join(name)).unwrap();
    }
    for i in 0..1000 {
        File::create(place.path(&format!("a-going-{i:05}"))).unwrap();
    }
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| {
            for i in 0..1000 {
                fs::remove_file(place.path(&format!("a-going-{i:05}"))).unwrap();
                File::create(place.path(&format!("z-coming-{i:05}"))).unwrap();
                fs::rename(place.path(&format!("z-coming-{i:05}")), place.path(&format!("b-moved-{i:05}"))).unwrap();
            }
        });
        while !changer.is_finished() {
            let seen = names(&place.dir);
            assert!(stable.is_subset(&seen), "{} stable names missing", stable.difference(&seen).count());
        }
        changer.join().unwrap();
    });
    assert_eq!(names(&place.dir).len(), 4000);
    // rm -rf as programs do it: unlink what a listing under way has shown.
    for entry in fs::read_dir(&place.dir).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert_eq!(names(&place.dir).len(), 0);
}

/// One directory stream of libc, for `.`, `..`, rewinding and positions.
struct Stream(*mut libc::DIR);

impl Stream {
    fn open(path: &Path) -> Stream {
        let path = sys::c(path);
        // SAFETY: the string lives through the call.
        let stream = unsafe { libc::opendir(path.as_ptr()) };
        assert!(!stream.is_null(), "{}", std::io::Error::last_os_error());
        Stream(stream)
    }

    fn next(&mut self) -> Option<(String, u64)> {
        // SAFETY: the stream is open, and the entry is copied before the next call.
        unsafe {
            let entry = libc::readdir(self.0);
            if entry.is_null() {
                return None;
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr()).to_string_lossy().into_owned();
            Some((name, (*entry).d_ino))
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: open until here.
        unsafe { libc::closedir(self.0) };
    }
}

#[test]
fn a_stream_has_dots_and_can_be_rewound_and_resumed() {
    let place = Place::new("dir_stream");
    let dir = place.path("dir");
    fs::create_dir(&dir).unwrap();
    for i in 0..50 {
        File::create(dir.join(format!("f{i:02}"))).unwrap();
    }
    let mut stream = Stream::open(&dir);
    let mut all = Vec::new();
    while let Some(entry) = stream.next() {
        all.push(entry);
    }
    assert_eq!(all.len(), 52);
    let inode = |name: &str| all.iter().find(|entry| entry.0 == name).unwrap().1;
    assert_eq!(inode("."), fs::metadata(&dir).unwrap().ino());
    assert_eq!(inode(".."), fs::metadata(&place.dir).unwrap().ino());
    File::create(dir.join("late")).unwrap();
    // SAFETY: the stream is open.
    unsafe { libc::rewinddir(stream.0) };
    let mut again = Vec::new();
    let mut position = None;
    while let Some(entry) = stream.next() {
        again.push(entry.0);
        if again.len() == 20 {
            // SAFETY: the stream is open.
            position = Some(unsafe { libc::telldir(stream.0) });
        }
    }
    assert_eq!(again.len(), 53, "a rewound stream shows the new name");
    // SAFETY: the stream is open, and the position came from it.
    unsafe { libc::seekdir(stream.0, position.unwrap()) };
    let mut rest = Vec::new();
    while let Some(entry) = stream.next() {
        rest.push(entry.0);
    }
    assert_eq!(rest, again[20..]);
}

#[test]
fn a_removed_directory_is_empty_where_it_is_open() {
    let place = Place::new("removed_open");
    let dir = place.path("dir");
    fs::create_dir(&dir).unwrap();
    let mut stream = Stream::open(&dir);
    fs::remove_dir(&dir).unwrap();
    while let Some((name, _)) = stream.next() {
        assert!(name == "." || name == "..", "{name} in a removed directory");
    }
    let script = "import os, sys\nos.mkdir(sys.argv[1]); os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])\n\
                  try: open('x', 'w')\nexcept FileNotFoundError: sys.exit(0)\nsys.exit(1)\n";
    crate::programs::python(script, &[&dir]);
}

#[test]
fn absent_names_are_told_again_and_again_and_appear_when_made() {
    let place = Place::new("absent");
    for round in 0..50 {
        let path = place.path(&format!("name-{round}"));
        for _ in 0..3 {
            refused(fs::metadata(&path), libc::ENOENT);
        }
        fs::write(&path, b"x").unwrap();
        assert!(path.exists());
        fs::remove_file(&path).unwrap();
        refused(fs::metadata(&path), libc::ENOENT);
    }
}

/// The answer to another's look at the directory, begun before a change, must not be remembered after it.
#[test]
fn a_directory_shows_a_change_at_once_however_many_others_change_it() {
    let place = Place::new("busy");
    let time = |path: &Path| fs::metadata(path).map(|m| ((m.mtime(), m.mtime_nsec()), (m.ctime(), m.ctime_nsec())));
    let (place, time) = (&place, &time);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for n in 0..600 {
                    let child = place.path(&format!("d{thread}-{n}"));
                    fs::create_dir(&child).unwrap();
                    let ((changed, _), (_, made)) = (time(&place.dir).unwrap(), time(&child).unwrap());
                    assert!(changed >= made, "the directory is of {changed:?}, its newest entry of {made:?}");
                }
            });
        }
    });
}
