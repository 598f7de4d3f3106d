//! Whole groups: one replica and three, over crashes, cuts, purges and images.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pando_types::{NodeId, codec};

use super::*;
use crate::host::Host;
use crate::raft_types::{LeaderId, Vote};
use crate::testing::*;
use crate::transport::Solo;

const ONE: NodeId = NodeId(1);

fn bytes(text: &str) -> Bytes {
    Bytes::from(text.to_owned())
}

/// Timings with which an election by timer would take longer than the test waits.
fn slow_timers() -> Options {
    let (heartbeat, election) = (Duration::from_secs(400), Duration::from_secs(1000));
    Options { heartbeat, election_min: election, election_max: election * 2, ..Options::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_one_leads_at_once_also_after_a_restart() {
    let mut cluster = Cluster::new(1, slow_timers());
    let group = cluster.up(ONE).await;
    group.initialize(cluster.members()).await.unwrap();
    assert_eq!(group.wait_leader(Duration::from_secs(20)).await.unwrap(), ONE);
    group.read_fence().await.unwrap();
    assert_eq!(group.propose(bytes("a")).await.unwrap(), reply(0, b"a"));
    group.initialize(cluster.members()).await.unwrap();
    drop(group);

    cluster.shutdown(ONE).await;
    let group = cluster.up(ONE).await;
    assert_eq!(group.wait_leader(Duration::from_secs(20)).await.unwrap(), ONE);
    group.read_fence().await.unwrap();
    assert_eq!(cluster.content(ONE), [bytes("a")], "the fence waits until everything acknowledged is applied");
    group.initialize(cluster.members()).await.unwrap();
    assert_eq!(group.propose(bytes("b")).await.unwrap(), reply(1, b"b"));
    assert_eq!(group.members(), cluster.members());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_proposals_are_batched_and_each_gets_its_own_reply() {
    let cluster = Cluster::found(1, options()).await;
    let (_, group) = cluster.leader().await;
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..1000 {
        let group = group.clone();
        tasks.spawn(async move { (i, group.propose(bytes(&i.to_string())).await.unwrap()) });
    }
    let replies: BTreeMap<i32, Bytes> = tasks.join_all().await.into_iter().collect();
    let content = cluster.content(ONE);
    assert_eq!(content.len(), 1000);
    for (position, payload) in content.iter().enumerate() {
        let i: i32 = std::str::from_utf8(payload).unwrap().parse().unwrap();
        assert_eq!(replies[&i], reply(position, payload));
    }
    let largest = cluster.disks[&ONE].largest_batch.load(Ordering::Relaxed);
    assert!(largest > 1 && largest <= 128, "largest batch: {largest}");
    assert_eq!(group.applied_index(), 1001, "membership, blank and a thousand proposals from index 0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proposals_polled_in_order_apply_in_order() {
    let cluster = Cluster::found(1, options()).await;
    let (_, group) = cluster.leader().await;
    let proposals = (0..300).map(|i| {
        let (group, payload) = (group.clone(), bytes(&i.to_string()));
        async move { group.propose(payload).await }
    });
    let replies = futures::future::join_all(proposals).await;
    for (i, found) in replies.into_iter().enumerate() {
        assert_eq!(found.unwrap(), reply(i, i.to_string().as_bytes()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_machine_lost_in_a_crash_is_applied_again_from_the_log() {
    let mut cluster = Cluster::found(1, options()).await;
    cluster.propose_all(0..30).await;
    assert_eq!(cluster.disks[&ONE].payloads().len(), 0, "the test's point: nothing is flushed");
    cluster.crash(ONE).await;
    cluster.up(ONE).await;
    assert_eq!(cluster.propose("30").await, reply(30, b"30"));

    // Flushed in the middle: only the rest is applied again.
    off_workers(|| cluster.nodes[&ONE].group.0.state.flush()).unwrap();
    cluster.propose_all(31..40).await;
    assert_eq!(cluster.disks[&ONE].payloads().len(), 31);
    cluster.crash(ONE).await;
    cluster.up(ONE).await;
    cluster.leader().await;
    assert_eq!(once(&cluster.content(ONE)), numbers(0..40));
    assert_eq!(cluster.content(ONE).len(), 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_shutdown_flushes_and_leaves_no_task() {
    let mut cluster = Cluster::found(1, options()).await;
    cluster.propose_all(0..10).await;
    let (_, group) = cluster.leader().await;
    cluster.shutdown(ONE).await;
    assert_eq!(once(&cluster.disks[&ONE].payloads()), numbers(0..10));
    let tasks = tokio::runtime::Handle::current().metrics();
    until("all tasks have ended", || tasks.num_alive_tasks() == 0).await;
    assert!(matches!(group.propose(bytes("x")).await, Err(ProposeError::Unavailable(_))));
    assert!(group.read_fence().await.is_err());
    assert!(!group.is_leader());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_group_of_three_leaves_no_task_either() {
    let mut cluster = Cluster::found(3, options()).await;
    cluster.propose_all(0..3).await;
    for id in cluster.ids() {
        if id == ONE { cluster.shutdown(id).await } else { cluster.crash(id).await }
    }
    let tasks = tokio::runtime::Handle::current().metrics();
    until("all tasks have ended", || tasks.num_alive_tasks() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_purged_behind_flushes_and_every_crash_is_survived() {
    let mut cluster = Cluster::found(1, Options { flush_entries: 10, ..options() }).await;
    let mut next = 0;
    for round in 0..6 {
        cluster.propose_all(next..next + 37).await;
        next += 37;
        let flushes = cluster.disks[&ONE].flushes.clone();
        until("the machine is flushed", || flushes.load(Ordering::Relaxed) > round).await;
        // Never above what the disk would give back: everything is there again.
        cluster.crash(ONE).await;
        cluster.up(ONE).await;
        cluster.leader().await;
        assert_eq!(once(&cluster.content(ONE)), numbers(0..next));
    }
    let (_, group) = cluster.leader().await;
    cluster.propose_all(next..next + 100).await;
    let purged = |group: &Group| group.0.metrics.borrow_watched().purged.map_or(0, |id| id.index);
    until("the log is purged", || purged(&group) > u64::from(next)).await;
    let durable = group.0.state.durable_next();
    assert!(purged(&group) < durable, "purged {} with {durable} flushed", purged(&group));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_lose_one_and_it_catches_up_by_log_or_by_image() {
    let mut cluster = Cluster::found(3, Options { flush_entries: 20, ..options() }).await;
    cluster.propose_all(0..5).await;

    // Away for a few entries: the log has them.
    let (leader, _) = cluster.leader().await;
    let [short, long] = cluster.ids().into_iter().filter(|id| *id != leader).collect::<Vec<_>>()[..] else { panic!() };
    cluster.crash(short).await;
    cluster.propose_all(5..10).await;
    cluster.up(short).await;
    cluster.caught_up(short).await;
    assert_eq!(cluster.disks[&short].images_read.load(Ordering::Relaxed), 0);

    // Away for longer than the log is kept: an image, then the log.
    cluster.crash(long).await;
    cluster.propose_all(10..150).await;
    let (_, group) = cluster.leader().await;
    until("the log is purged", || group.0.metrics.borrow_watched().purged.is_some_and(|id| id.index > 60)).await;
    drop(group);
    cluster.up(long).await;
    cluster.caught_up(long).await;
    assert!(cluster.disks[&long].images_read.load(Ordering::Relaxed) > 0, "an image was installed");
    cluster.propose("150").await;
    cluster.caught_up(long).await;
    assert_eq!(once(&cluster.content(long)), numbers(0..151));
    let images = cluster.path(long).join("images");
    assert_eq!(std::fs::read_dir(images).unwrap().count(), 0, "an installed image's file is removed");

    // All from disk.
    for id in cluster.ids() {
        cluster.crash(id).await;
    }
    for id in cluster.ids() {
        cluster.up(id).await;
    }
    cluster.propose("151").await;
    for id in cluster.ids() {
        cluster.caught_up(id).await;
        assert_eq!(once(&cluster.content(id)), numbers(0..152));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_installation_that_was_cut_short_is_finished_after_restart() {
    let mut cluster = Cluster::found(3, Options { flush_entries: 20, ..options() }).await;
    cluster.propose_all(0..5).await;
    let (leader, _) = cluster.leader().await;
    let away = cluster.ids().into_iter().find(|id| *id != leader).unwrap();
    cluster.crash(away).await;
    cluster.propose_all(5..100).await;
    let (_, group) = cluster.leader().await;
    until("the log is purged", || group.0.metrics.borrow_watched().purged.is_some_and(|id| id.index > 40)).await;

    let disk = cluster.disks[&away].clone();
    disk.fail_installation.store(true, Ordering::Relaxed);
    cluster.up(away).await;
    until("the installation has failed", || !disk.fail_installation.load(Ordering::Relaxed)).await;
    assert_eq!(disk.payloads().len(), 0, "half installed is worse than nothing");
    cluster.crash(away).await;
    // Without any help of the others.
    cluster.net.cut(away);
    let read = disk.images_read.load(Ordering::Relaxed);
    cluster.up(away).await;
    assert_eq!(disk.images_read.load(Ordering::Relaxed), read + 1);
    assert!(disk.payloads().len() > 40);
    cluster.net.heal();
    cluster.propose("100").await;
    cluster.caught_up(away).await;
    assert_eq!(once(&cluster.content(away)), numbers(0..101));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_answers_no_read_once_another_has_acknowledged() {
    let cluster = Cluster::found(3, options()).await;
    cluster.propose("before").await;
    let (old, old_group) = cluster.leader().await;
    for node in cluster.nodes.values().filter(|node| !node.group.is_leader()) {
        let refused = node.group.read_fence().await.unwrap_err();
        assert!(matches!(refused, ProposeError::NotLeader { .. }), "{refused}");
        let refused = node.group.propose(bytes("x")).await.unwrap_err();
        assert!(matches!(refused, ProposeError::NotLeader { .. }), "{refused}");
    }
    cluster.net.cut(old);
    let others: Vec<Group> =
        cluster.nodes.iter().filter(|(id, _)| **id != old).map(|(_, node)| node.group.clone()).collect();
    'acknowledged: loop {
        for group in &others {
            if group.propose(bytes("after")).await.is_ok() {
                break 'acknowledged;
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(old_group.read_fence().await.is_err(), "its state lacks what was acknowledged");
    cluster.net.heal();
    cluster.caught_up(old).await;
    assert_eq!(once(&cluster.content(old))[..2], ["before", "after"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_handed_over_and_members_change() {
    let mut cluster = Cluster::found(3, options()).await;
    cluster.propose("a").await;
    let (leader, group) = cluster.leader().await;
    let to = cluster.ids().into_iter().find(|id| *id != leader).unwrap();
    cluster.caught_up(to).await;
    group.transfer(to).await.unwrap();
    until("leadership has moved", || cluster.nodes[&to].group.is_leader()).await;

    // A fourth node joins and the old leader leaves.
    cluster.up(NodeId(4)).await;
    let mut members = cluster.members();
    members.remove(&leader);
    let (_, group) = cluster.leader().await;
    group.change_members(members.clone()).await.unwrap();
    assert_eq!(group.members(), members);
    cluster.propose("b").await;
    cluster.caught_up(NodeId(4)).await;
    assert_eq!(once(&cluster.content(NodeId(4))), ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_replica_keeps_its_promise_to_the_leader() {
    let mut cluster = Cluster::found(3, slow_timers_but_elected()).await;
    cluster.propose("a").await;
    let (leader, _) = cluster.leader().await;
    let follower = cluster.ids().into_iter().find(|id| *id != leader).unwrap();
    cluster.caught_up(follower).await;
    cluster.crash(follower).await;
    let group = cluster.up(follower).await;
    let vote = Vote { leader_id: LeaderId { term: 99, node_id: 77 }, committed: false };
    let last = group
        .0
        .state
        .applied()
        .or(Some(crate::raft_types::LogId { leader_id: LeaderId { term: 98, node_id: 77 }, index: 1_000_000 }));
    let request = openraft::raft::VoteRequest::new(vote, last);
    for message in [Message::Vote(request.clone()), Message::PreVote(request.clone())] {
        let message = codec::encode(&Envelope { to: follower, message });
        let answer: Answer = codec::decode(&group.receive(&message).await.unwrap()).unwrap();
        assert!(matches!(answer, Answer::Refused(_)));
    }
    let elsewhere = codec::encode(&Envelope { to: leader, message: Message::Vote(request) });
    let answer: Answer = codec::decode(&group.receive(&elsewhere).await.unwrap()).unwrap();
    assert!(matches!(answer, Answer::Refused(_)), "a message for another node");
    assert!(group.receive(b"noise").await.is_err());
}

/// The lease outlasts the test, so that only the promise can be the reason of a refusal.
fn slow_timers_but_elected() -> Options {
    Options { election_min: Duration::from_millis(300), election_max: Duration::from_secs(3), ..options() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_fsync_stops_all_groups_of_the_node_and_loses_nothing_acknowledged() {
    let broken = Arc::new(AtomicBool::new(false));
    let fault: crate::host::SyncFault = {
        let broken = broken.clone();
        Arc::new(move || if broken.load(Ordering::Relaxed) { Err(std::io::Error::other("EIO")) } else { Ok(()) })
    };
    let mut cluster = Cluster::found(1, Options { sync_fault: Some(fault), ..options() }).await;
    let other =
        cluster.nodes[&ONE].host.start(ShardId(8), ONE, Disk::default().machine(), Arc::new(Solo)).await.unwrap();
    other.initialize(cluster.members()).await.unwrap();
    cluster.propose_all(0..5).await;
    broken.store(true, Ordering::Relaxed);
    let (_, group) = cluster.leader().await;
    let dir = cluster.path(ONE).display().to_string();
    for group in [&group, &group, &other, &other] {
        let error = group.propose(bytes("lost")).await.unwrap_err();
        assert!(matches!(&error, ProposeError::Fatal(message) if message.contains(&dir)), "{error}");
        assert!(group.read_fence().await.is_err());
    }
    broken.store(false, Ordering::Relaxed);
    assert!(group.propose(bytes("still")).await.is_err(), "only a restart helps");
    drop((group, other));
    cluster.crash(ONE).await;
    cluster.up(ONE).await;
    assert_eq!(cluster.propose("5").await.last(), Some(&b'5'));
    assert!(once(&cluster.content(ONE)).starts_with(&numbers(0..5)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_fails_stops_its_replica_only() {
    let cluster = Cluster::found(1, options()).await;
    let host = &cluster.nodes[&ONE].host;
    let other = host.start(ShardId(8), ONE, Disk::default().machine(), Arc::new(Solo)).await.unwrap();
    other.initialize(cluster.members()).await.unwrap();
    let (_, group) = cluster.leader().await;
    assert!(matches!(group.propose(bytes("poison")).await, Err(ProposeError::Fatal(_))));
    assert!(matches!(group.propose(bytes("more")).await, Err(ProposeError::Fatal(_))));
    assert_eq!(other.propose(bytes("fine")).await.unwrap(), reply(0, b"fine"));
    assert_eq!(host.groups(), [GROUP, ShardId(8)]);
    let again = host.start(GROUP, ONE, Disk::default().machine(), Arc::new(Solo)).await;
    assert!(matches!(again, Err(RaftError::AlreadyStarted(GROUP))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_and_log_must_belong_together() {
    let mut cluster = Cluster::found(1, Options { flush_entries: 10, ..options() }).await;
    cluster.propose_all(0..60).await;
    let (_, group) = cluster.leader().await;
    until("the log is purged", || group.0.metrics.borrow_watched().purged.is_some_and(|id| id.index > 10)).await;
    drop(group);
    cluster.shutdown(ONE).await;

    let kept = std::mem::take(&mut *cluster.disks[&ONE].content.lock().unwrap());
    let error = cluster.try_up(ONE).await.unwrap_err().to_string();
    assert!(error.contains("the state was lost"), "{error}");
    *cluster.disks[&ONE].content.lock().unwrap() = kept;
    until("the log is free again", || cluster.try_open(ONE)).await;
    cluster.up(ONE).await;
    cluster.leader().await;
    cluster.shutdown(ONE).await;

    std::fs::remove_dir_all(cluster.path(ONE)).unwrap();
    let error = cluster.try_up(ONE).await.unwrap_err().to_string();
    assert!(error.contains("there is no log"), "{error}");
}

#[tokio::test]
async fn too_large_a_payload_is_refused_at_once_and_the_largest_is_taken() {
    let cluster = Cluster::found(1, options()).await;
    let (_, group) = cluster.leader().await;
    let refused = group.propose(Bytes::from(vec![0; PAYLOAD_BYTES_MAX + 1])).await.unwrap_err();
    assert!(matches!(refused, ProposeError::TooLarge { .. }));
    group.propose(Bytes::from(vec![0; PAYLOAD_BYTES_MAX])).await.unwrap();
}

#[tokio::test]
async fn a_group_that_was_not_founded_has_no_leader() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::open(dir.path(), options()).unwrap();
    let group = host.start(GROUP, ONE, Disk::default().machine(), Arc::new(Solo)).await.unwrap();
    let waited = group.wait_leader(Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(waited, RaftError::NoLeader { .. }));
    assert_eq!(group.propose(bytes("x")).await.unwrap_err(), ProposeError::NotLeader { leader: None });
    assert_eq!(group.read_fence().await.unwrap_err(), ProposeError::NotLeader { leader: None });
    let stranger = BTreeMap::from([(NodeId(2), "b".to_owned())]);
    assert!(matches!(group.initialize(stranger).await, Err(RaftError::Members { .. })));
    host.shutdown().await.unwrap();
}

/// A group that begins with a state that its members have: nobody founds it, and who lacks the state gets an image.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seeded_group_elects_a_leader_and_helps_who_has_no_state() {
    let mut cluster = Cluster::new(3, options());
    let mark = Host::first_mark(cluster.members()).unwrap();
    for id in [1, 2].map(NodeId) {
        cluster.seed(id, &mark).await;
    }
    for id in cluster.ids() {
        cluster.up(id).await;
    }
    let (leader, group) = cluster.leader().await;
    assert_ne!(leader, NodeId(3), "it has no state and cannot know of the group");
    assert_eq!(group.members(), cluster.members());
    assert_eq!(group.propose(bytes("a")).await.unwrap(), reply(1, b"a"));
    until("all have the same", || {
        cluster.ids().into_iter().all(|id| cluster.content(id) == [bytes("seed"), bytes("a")])
    })
    .await;
}
