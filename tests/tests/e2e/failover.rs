//! Clusters of several nodes: they form, lose leaders, disks and whole nodes, and programs on a mount see nothing of it.
//!
//! `PANDO_FAULTS=N` makes the fault test go N rounds instead of a few.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use pando_tests::bytes::seeded;
use pando_tests::cluster::{Cluster, number};
use pando_tests::pando::{DEADLINE, plain_dir, run, text, wait_for};

use crate::same;

/// What a program was told that it did.
#[derive(Default)]
struct Told {
    there: BTreeSet<String>,
    gone: BTreeSet<String>,
    longest: Duration,
    calls: u64,
}

/// A program that makes, renames, links and removes names of its own, until it is told to stop. An error fails the test.
struct Program {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Told>,
    dir: PathBuf,
}

impl Program {
    fn start(dir: PathBuf) -> Program {
        fs::create_dir(&dir).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (until, at) = (stop.clone(), dir.clone());
        Program { stop, thread: thread::spawn(move || work(&at, &until)), dir }
    }

    /// Ends it, and checks that all that it was told is true.
    fn finish(self) -> Told {
        self.stop.store(true, Ordering::Relaxed);
        let told = self.thread.join().unwrap();
        let listed: BTreeSet<String> =
            fs::read_dir(&self.dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(listed, told.there, "what is listed, and what the program was told is there");
        for name in &told.gone {
            assert!(!self.dir.join(name).exists(), "{name} was removed");
        }
        for name in told.there.iter().step_by(7) {
            let content = fs::read(self.dir.join(name)).unwrap();
            same(&content, name.split('-').next().unwrap().as_bytes());
        }
        told
    }
}

fn work(dir: &Path, stop: &AtomicBool) -> Told {
    let mut told = Told::default();
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        let name = format!("f{n}");
        let start = Instant::now();
        let step = || -> std::io::Result<()> {
            let path = dir.join(&name);
            std::io::Write::write_all(
                &mut OpenOptions::new().write(true).create_new(true).open(&path)?,
                name.as_bytes(),
            )?;
            match n % 4 {
                1 => fs::rename(&path, dir.join(format!("{name}-moved"))),
                2 => fs::hard_link(&path, dir.join(format!("{name}-linked"))),
                3 => fs::remove_file(&path),
                _ => Ok(()),
            }
        };
        step().unwrap_or_else(|error| panic!("{name} after {:?}: {error}", start.elapsed()));
        told.longest = told.longest.max(start.elapsed());
        told.calls += 1;
        match n % 4 {
            0 => drop(told.there.insert(name)),
            1 => {
                told.there.insert(format!("{name}-moved"));
                told.gone.insert(name);
            }
            2 => told.there.extend([format!("{name}-linked"), name]),
            _ => drop(told.gone.insert(name)),
        }
        n += 1;
    }
    told
}

#[test]
fn leaders_die_and_pause_and_programs_see_neither_errors_nor_losses() {
    if plain_dir().is_some() {
        return;
    }
    let nodes = number("PANDO_NODES", 3);
    let mut cluster = Cluster::start(nodes);
    let mount = cluster.mount();
    let programs: Vec<_> = (0..2).map(|n| Program::start(mount.join(format!("program-{n}")))).collect();
    let mut worst = Duration::ZERO;
    for round in 0..number("PANDO_FAULTS", 4) {
        sleep(Duration::from_millis(500));
        let leader = cluster.leader();
        match round % 4 {
            // A follower's end is not felt at all; a leader's is a pause.
            2 => {
                let follower = (leader + 1) % nodes;
                cluster.kill(follower);
                sleep(Duration::from_millis(700));
                cluster.start_node(follower);
            }
            3 => {
                cluster.pause(leader);
                sleep(Duration::from_secs(3));
                cluster.resume(leader);
            }
            _ => {
                let killed = Instant::now();
                cluster.kill(leader);
                fs::create_dir(mount.join(format!("after-{round}"))).unwrap();
                worst = worst.max(killed.elapsed());
                cluster.start_node(leader);
            }
        }
        cluster.wait_healthy();
    }
    let told: Vec<Told> = programs.into_iter().map(Program::finish).collect();
    let (calls, longest) = (told.iter().map(|t| t.calls).sum::<u64>(), told.iter().map(|t| t.longest).max());
    println!("{calls} steps; the longest took {longest:?}; first change after a leader's death: {worst:?} at most");
    cluster.fsck();
}

#[test]
fn nodes_join_by_token_and_nothing_else_gets_in() {
    if plain_dir().is_some() {
        return;
    }
    let mut cluster = Cluster::start(1);
    assert_eq!(cluster.replicas(), [1]);
    let refusal = |cluster: &mut Cluster, change: &dyn Fn(String) -> String| {
        let at = cluster.len();
        // The same as a node that would be let in, but for one line.
        let good = format!(
            "data = {:?}\nlisten = \"127.0.0.1:0\"\njoin = [{:?}]\ntoken_file = {:?}\n",
            cluster.data(at),
            cluster.address(0),
            cluster.token()
        );
        let config = cluster.config(at);
        fs::write(&config, change(good)).unwrap();
        let mut command = Command::new(pando_tests::pando::binary());
        command.arg("server").arg("--config").arg(&config);
        let output = run(command, DEADLINE);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(!cluster.data(at).exists(), "a refused node leaves no data directory");
        text(&output)
    };
    let wrong = cluster.data(0).join("../wrong");
    fs::write(&wrong, "0123456789abcdef\n").unwrap();
    let token = cluster.token().display().to_string();
    let said = refusal(&mut cluster, &|good| good.replace(&token, &wrong.display().to_string()));
    assert!(said.contains("the token is not that of this cluster") && !said.contains("0123456789abcdef"), "{said}");
    let said = refusal(&mut cluster, &|good| good + "object_store = \"file:///elsewhere\"\n");
    assert!(said.contains("leave object_store out"), "{said}");
    let taken = cluster.address(0).to_owned();
    let said = refusal(&mut cluster, &|good| good + &format!("advertise = {taken:?}\n"));
    assert!(said.contains("already a member"), "{said}");
    let said = refusal(&mut cluster, &|good| good.replace("token_file", "#"));
    assert!(said.contains("token_file is missing"), "{said}");

    cluster.add("[labels]\nzone = \"a\"\n");
    assert_eq!(cluster.replicas(), [1], "two replicas would survive no more than one");
    cluster.add("[labels]\nzone = \"a\"\n");
    wait_for("three replicas", DEADLINE, || (cluster.replicas() == [1, 2, 3]).then_some(()));
    let status = cluster.status().unwrap();
    let problems = status["problems"].to_string();
    assert!(problems.contains("share a zone"), "{problems}");
    cluster.add("[labels]\nzone = \"b\"\n");
    wait_for("replicas in two zones", DEADLINE, || (cluster.replicas() == [1, 2, 4]).then_some(()));
    cluster.wait_healthy();
}

#[test]
fn a_drained_node_can_go_and_a_lost_one_is_replaced() {
    if plain_dir().is_some() {
        return;
    }
    let mut cluster = Cluster::start(3);
    let mount = cluster.mount();
    for n in 0..20 {
        fs::write(mount.join(format!("file-{n}")), seeded(n, 3000)).unwrap();
    }
    let fourth = cluster.add("");
    // The founder, which leads: of all nodes the one that could take itself for the whole cluster.
    let founder = 0;
    let output = cluster.verb(&["shard", "transfer", "0", "1"]);
    assert!(output.status.success(), "{}", text(&output));
    let output = cluster.verb(&["node", "drain", "1"]);
    assert!(output.status.success(), "{}", text(&output));
    wait_for("a drained founder", DEADLINE, || {
        let status = cluster.status()?;
        status["problems"].to_string().contains("node 1 is drained").then_some(())
    });
    // Killed before it has forgotten its log, it comes back as a former member and is told again.
    let said = wait_for("a founder that has forgotten its log", DEADLINE, || {
        wait_for("a founder without a replica", DEADLINE, || (cluster.held(founder) == Some(0)).then_some(()));
        cluster.kill(founder);
        cluster.try_start_node(founder).err()
    });
    assert!(said.contains("name members in `join`"), "it founds nothing again, and says what it lacks: {said}");
    cluster.joins(founder);
    cluster.start_node(founder);
    assert!(mount.join("file-0").exists() && cluster.leader() != founder);
    cluster.stop(founder);
    let output = cluster.verb(&["node", "remove", "1"]);
    assert!(output.status.success(), "{}", text(&output));
    cluster.wait_healthy();

    // The new node's disk is lost, and it with it: one that comes in its place gets the data from the others.
    cluster.kill(fourth);
    fs::remove_dir_all(cluster.data(fourth)).unwrap();
    let output = cluster.verb(&["node", "remove", &(fourth + 1).to_string()]);
    assert!(output.status.success(), "{}", text(&output));
    cluster.add("");
    cluster.wait_healthy();
    assert_eq!(cluster.replicas().len(), 3);
    let last = cluster.leader();
    cluster.kill(last);
    for n in 0..20 {
        same(&fs::read(mount.join(format!("file-{n}"))).unwrap(), &seeded(n, 3000));
    }
    cluster.start_node(last);
    cluster.wait_healthy();
    cluster.fsck();
}

#[test]
fn a_rolling_restart_is_not_seen_by_tar_and_the_whole_cluster_comes_back_after_a_power_cut() {
    if plain_dir().is_some() {
        return;
    }
    let mut cluster = Cluster::start(3);
    let mount = cluster.mount();
    let source = tempfile::tempdir().unwrap();
    let tree = source.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for n in 0..600 {
        fs::write(tree.join(format!("f{n}")), seeded(n, 500 + n as usize * 11)).unwrap();
    }
    let archive = source.path().join("tree.tar");
    let tar = |args: &[&str]| {
        let mut command = Command::new("tar");
        command.args(args);
        run(command, 2 * DEADLINE)
    };
    let packed = tar(&["-C", &source.path().display().to_string(), "-cf", &archive.display().to_string(), "tree"]);
    assert!(packed.status.success(), "{}", text(&packed));
    let unpacking = {
        let (archive, mount) = (archive.display().to_string(), mount.display().to_string());
        thread::spawn(move || {
            let mut command = Command::new("tar");
            command.args(["-C", &mount, "-xf", &archive]);
            run(command, 2 * DEADLINE)
        })
    };
    for node in 0..3 {
        cluster.stop(node);
        cluster.start_node(node);
        cluster.wait_healthy();
    }
    let unpacked = unpacking.join().unwrap();
    assert!(unpacked.status.success(), "{}", text(&unpacked));

    (0..3).for_each(|node| cluster.kill(node));
    (0..3).for_each(|node| cluster.start_node(node));
    cluster.wait_healthy();
    for n in 0..600 {
        let name = format!("tree/f{n}");
        same(&fs::read(mount.join(&name)).unwrap(), &seeded(n, 500 + n as usize * 11));
    }
    cluster.fsck();
}
