//! Clusters of several shards: split while programs work, changes across shards over the death of every leader, and nothing half
//! done.
//!
//! `PANDO_FAULTS=N` makes the fault test go N rounds instead of a few, `PANDO_NODES=N` on so many nodes.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use pando_client::{Meta, RetryPolicy};
use pando_tests::cluster::{Cluster, number};
use pando_tests::pando::{DEADLINE, plain_dir, text, wait_for};
use pando_types::{Errno, FileName, InodeId};

/// Directories of a program, each directly below the root and so, for most, of another shard than the next.
const DIRS: usize = 6;

/// A program that moves files and directories from directory to directory until it is told to stop. An error fails the test.
struct Traveler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(BTreeSet<PathBuf>, Duration)>,
    dirs: Vec<PathBuf>,
}

impl Traveler {
    fn start(mount: &Path, name: &str) -> Traveler {
        let dirs: Vec<PathBuf> = (0..DIRS).map(|n| mount.join(format!("{name}-{n}"))).collect();
        dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let (until, of) = (stop.clone(), dirs.clone());
        Traveler { stop, thread: thread::spawn(move || travel(&of, &until)), dirs }
    }

    /// Ends it, and checks that what is there is what it was told; how many steps it made, and the longest.
    fn finish(self) -> (usize, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let (there, longest) = self.thread.join().unwrap();
        let listed: BTreeSet<PathBuf> =
            self.dirs.iter().flat_map(|dir| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path())).collect();
        assert_eq!(listed, there, "what is listed, and what the program was told is there");
        for path in there.iter().filter(|path| path.is_file()).step_by(5) {
            let number = path.file_name().unwrap().to_str().unwrap().trim_start_matches(|c: char| !c.is_ascii_digit());
            assert_eq!(fs::read_to_string(path).unwrap(), number, "{}", path.display());
        }
        (there.len(), longest)
    }
}

fn travel(dirs: &[PathBuf], stop: &AtomicBool) -> (BTreeSet<PathBuf>, Duration) {
    let mut there = BTreeSet::new();
    let mut longest = Duration::ZERO;
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        let at = |step: usize| &dirs[(n + step) % DIRS];
        let begun = Instant::now();
        let step = || -> io::Result<Vec<PathBuf>> {
            let (file, moved) = (at(0).join(format!("file{n}")), at(1).join(format!("moved{n}")));
            match n % 5 {
                // A file is moved, and has a further name in a third directory.
                0 | 1 => {
                    fs::write(&file, n.to_string())?;
                    fs::rename(&file, &moved)?;
                    let link = at(2).join(format!("link{n}"));
                    fs::hard_link(&moved, &link)?;
                    Ok(vec![moved, link])
                }
                // Of two names the first goes.
                2 => {
                    fs::write(&file, n.to_string())?;
                    let link = at(3).join(format!("link{n}"));
                    fs::hard_link(&file, &link)?;
                    fs::remove_file(&file)?;
                    Ok(vec![link])
                }
                // A file replaces another.
                3 => {
                    fs::write(&file, n.to_string())?;
                    fs::write(&moved, "it is replaced")?;
                    fs::rename(&file, &moved)?;
                    Ok(vec![moved])
                }
                // A directory moves with what is in it, back and forth, and goes.
                _ => {
                    let (dir, target) = (at(0).join(format!("dir{n}")), at(2).join(format!("dir{n}")));
                    fs::create_dir(&dir)?;
                    fs::write(dir.join("within"), n.to_string())?;
                    fs::rename(&dir, &target)?;
                    fs::remove_file(target.join("within"))?;
                    fs::remove_dir(&target)?;
                    Ok(vec![])
                }
            }
        };
        there.extend(step().unwrap_or_else(|error| panic!("step {n} after {:?}: {error}", begun.elapsed())));
        longest = longest.max(begun.elapsed());
        n += 1;
    }
    (there, longest)
}

/// Splits a shard and waits until the new one works.
fn split(cluster: &Cluster, shard: usize) {
    let before = cluster.shards().len();
    let output = cluster.verb(&["shard", "split", &shard.to_string()]);
    assert!(output.status.success(), "{}", text(&output));
    wait_for("a new shard", DEADLINE, || (cluster.shards().len() == before + 1).then_some(()));
    cluster.wait_healthy();
}

#[test]
fn shards_split_and_die_under_load_and_changes_across_them_are_whole() {
    if plain_dir().is_some() {
        return;
    }
    let nodes = number("PANDO_NODES", 3);
    let mut cluster = Cluster::start(nodes);
    let mount = cluster.mount();
    let travelers: Vec<_> = (0..2).map(|n| Traveler::start(&mount, &format!("traveler{n}"))).collect();
    for shard in [0, 0, 1] {
        split(&cluster, shard);
    }
    for round in 0..number("PANDO_FAULTS", 4) {
        sleep(Duration::from_millis(400));
        let shard = round % 4;
        let leader = wait_for("a leader", DEADLINE, || Some(cluster.leaders()?[shard]));
        match round % 3 {
            2 => {
                cluster.pause(leader);
                sleep(Duration::from_secs(3));
                cluster.resume(leader);
            }
            _ => {
                cluster.kill(leader);
                sleep(Duration::from_millis(300));
                cluster.start_node(leader);
            }
        }
        cluster.wait_healthy();
    }
    wait_for("leaders on every node", DEADLINE, || {
        let leaders: BTreeSet<usize> = cluster.leaders()?.into_iter().collect();
        (leaders.len() == nodes.min(4)).then_some(())
    });
    let told: Vec<_> = travelers.into_iter().map(Traveler::finish).collect();
    println!("names left and longest step: {told:?}");
    cluster.fsck();

    // What was decided in the logs is there after a power cut, too.
    (0..nodes).for_each(|node| cluster.kill(node));
    (0..nodes).for_each(|node| cluster.start_node(node));
    cluster.wait_healthy();
    cluster.fsck();
}

#[test]
fn replicas_of_two_shards_move_to_a_new_node_and_bad_requests_are_refused() {
    if plain_dir().is_some() {
        return;
    }
    let mut cluster = Cluster::start(3);
    let mount = cluster.mount();
    for n in 0..20 {
        let dir = mount.join(format!("dir{n}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("file"), n.to_string()).unwrap();
    }
    // A node that is away while a shard is split makes it up, and one that is new to the shard gets its state from others.
    let away = (cluster.leader() + 1) % 3;
    cluster.kill(away);
    let output = cluster.verb(&["shard", "split", "0"]);
    assert!(output.status.success(), "{}", text(&output));
    wait_for("a new shard", DEADLINE, || (cluster.leaders()?.len() == 2).then_some(()));
    fs::rename(mount.join("dir0"), mount.join("dir1/dir0")).unwrap();
    fs::rename(mount.join("dir1/dir0"), mount.join("dir0")).unwrap();
    cluster.start_node(away);
    cluster.wait_healthy();
    cluster.add("");
    wait_for("a replica on the new node", DEADLINE, || {
        (cluster.shards().iter().filter(|members| members.contains(&4)).count() == 1).then_some(())
    });
    cluster.wait_healthy();
    let refused = |args: &[&str], why: &str| {
        let output = cluster.verb(args);
        assert!(!output.status.success() && text(&output).contains(why), "{}", text(&output));
    };
    refused(&["shard", "split", "9"], "there is no shard 9");
    refused(&["shard", "move", "9", "1", "2"], "there is no shard 9");
    let members = cluster.shards().swap_remove(1);
    let [a, b] = [members[0].to_string(), members[1].to_string()];
    refused(&["shard", "move", "1", &a, &b], "move one of them to another node");
    refused(&["shard", "move", "1", "1", "7"], "node 7 is not there");

    let whole = (0..2).find(|shard| !cluster.shards()[*shard].contains(&4)).unwrap();
    // One that has a replica of both, so that the nodes are as evenly used afterwards as before.
    let shards = cluster.shards();
    let from = *shards[whole].iter().find(|node| shards[1 - whole].contains(node)).unwrap();
    let output = cluster.verb(&["shard", "move", &whole.to_string(), &from.to_string(), "4"]);
    assert!(output.status.success(), "{}", text(&output));
    wait_for("a moved replica", DEADLINE, || {
        let members = &cluster.shards()[whole];
        (members.contains(&4) && !members.contains(&from)).then_some(())
    });
    cluster.wait_healthy();
    assert!(cluster.shards()[whole].contains(&4), "what was asked for is not taken back");

    // A node without a replica of shard 0 knows the map again when it comes back, and can lead what it has.
    let outside = (1..=4).find(|node| !cluster.shards()[0].contains(node)).unwrap();
    let place = usize::try_from(outside).unwrap() - 1;
    cluster.kill(place);
    cluster.start_node(place);
    cluster.wait_healthy();
    wait_for("the outsider leads", DEADLINE, || {
        let output = cluster.verb(&["shard", "transfer", "1", &outside.to_string()]);
        (output.status.success() && cluster.leaders()?[1] == place).then_some(())
    });
    for n in 0..20 {
        assert_eq!(fs::read_to_string(mount.join(format!("dir{n}/file"))).unwrap(), n.to_string());
        fs::rename(mount.join(format!("dir{n}")), mount.join(format!("moved{n}"))).unwrap();
    }
    cluster.fsck();
}

/// Two directories that are moved into each other at the same time, again and again: at most one may succeed.
#[test]
fn directories_moved_into_each_other_across_shards_never_form_a_cycle() {
    if plain_dir().is_some() {
        return;
    }
    let mut cluster = Cluster::start(1);
    let mounts = [cluster.mount(), cluster.mount()];
    for n in 0..12 {
        fs::create_dir(mounts[0].join(format!("tree{n}"))).unwrap();
        fs::create_dir(mounts[0].join(format!("tree{n}/inner"))).unwrap();
    }
    split(&cluster, 0);
    split(&cluster, 1);
    let mut won = 0;
    for n in 0..6 {
        let (a, b) = (format!("tree{n}"), format!("tree{}", n + 6));
        let movers = [(a.clone(), b.clone()), (b, a)].into_iter().zip(&mounts).map(|((from, to), mount)| {
            let (from, to) = (mount.join(&from), mount.join(to).join("inner").join(from));
            thread::spawn(move || fs::rename(from, to))
        });
        let results: Vec<_> = movers.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect();
        let ok = results.iter().filter(|result| result.is_ok()).count();
        assert!(ok <= 1, "both were moved: {results:?}");
        won += ok;
    }
    assert!(won > 0, "one of two is moved as a rule");
    cluster.fsck();
}

/// Who sees that a file has left its old directory sees it in the new one, at once and in another shard; and who sees it in
/// the new one does not see it in the old one any more.
#[test]
fn a_rename_across_shards_is_seen_at_one_moment() {
    const FILES: usize = 60;
    if plain_dir().is_some() {
        return;
    }
    let mut cluster = Cluster::start(1);
    let mount = cluster.mount();
    let dirs: Vec<PathBuf> = (0..8).map(|n| mount.join(format!("dir{n}"))).collect();
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    split(&cluster, 0);
    for n in 0..FILES {
        dirs.iter().for_each(|dir| fs::write(dir.join(format!("file{n}")), "x").unwrap());
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mover = thread::spawn({
        let dirs = dirs.clone();
        move || {
            for n in 0..FILES {
                for at in 0..dirs.len() {
                    let to = dirs[(at + 1) % dirs.len()].join(format!("from{at}-{n}"));
                    fs::rename(dirs[at].join(format!("file{n}")), to).unwrap();
                }
            }
        }
    });
    let watchers = [false, true].into_iter().map(|newest_first| {
        let (address, stop) = (cluster.address(0).to_owned(), stop.clone());
        thread::spawn(move || watch(&address, FILES, newest_first, &stop))
    });
    let watchers: Vec<_> = watchers.collect();
    mover.join().unwrap();
    stop.store(true, Ordering::Relaxed);
    let seen: u64 = watchers.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert!(seen > 50, "only {seen} moves were watched");
    cluster.fsck();
}

/// Looks at the two names of a file one after the other, without a kernel's cache, as the files are moved; how often a file was
/// met that had just been moved.
fn watch(address: &str, files: usize, newest_first: bool, stop: &AtomicBool) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let meta = Meta::connect(address, RetryPolicy::default()).await.unwrap();
        let name = |text: String| FileName::new(text.as_bytes()).unwrap();
        let mut dirs = Vec::new();
        for n in 0..8 {
            dirs.push(meta.lookup(InodeId::ROOT, &name(format!("dir{n}"))).await.unwrap().inode);
        }
        let there = async |dir: InodeId, text: String| match meta.lookup(dir, &name(text)).await {
            Ok(_) => true,
            Err(error) if error.errno == Errno::ENOENT => false,
            Err(error) => panic!("{error}"),
        };
        let mut seen = 0;
        for n in 0..files {
            for at in 0..dirs.len() {
                let (old, new) =
                    ((dirs[at], format!("file{n}")), (dirs[(at + 1) % dirs.len()], format!("from{at}-{n}")));
                let (first, second) = if newest_first { (new, old) } else { (old, new) };
                // Until the first look says that it has been moved.
                while there(first.0, first.1.clone()).await != newest_first {
                    if stop.load(Ordering::Relaxed) {
                        return seen;
                    }
                }
                assert_ne!(
                    there(second.0, second.1).await,
                    newest_first,
                    "file{n} of dir{at} was in both, or in neither"
                );
                seen += 1;
            }
        }
        seen
    })
}

#[test]
fn a_cluster_with_nodes_to_spare_splits_by_itself_once() {
    if plain_dir().is_some() {
        return;
    }
    let mut cluster = Cluster::start(6);
    let mount = cluster.mount();
    for n in 0..40 {
        fs::create_dir(mount.join(format!("dir{n}"))).unwrap();
    }
    wait_for("a replica on each of six nodes", DEADLINE, || {
        let used: BTreeSet<u64> = cluster.shards().into_iter().flatten().collect();
        (used.len() == 6).then_some(())
    });
    cluster.wait_healthy();
    for n in 0..40 {
        fs::rename(mount.join(format!("dir{n}")), mount.join(format!("moved{n}"))).unwrap();
    }
    assert_eq!(cluster.shards().len(), 2, "no more than there are nodes for");
    cluster.fsck();
}
