//! Two shards over one store: what one locks, the other cannot change, and everything else can be.

use pando_types::command::{NewNode, RenameMode};
use pando_types::intent::{Decide, Fact, IntentId, Want};
use pando_types::{Command, Envelope, Errno, InodeId, Reply, SessionId, ShardId, SlotId};

use crate::engine::Engine;
use crate::harness::{ROOT, SHARD, World, name};
use crate::keys::intent::decided_key;
use crate::kv::View;
use crate::kv::mem::MemKv;

const OTHER: ShardId = ShardId(1);

/// Shard 0 with the root, and shard 1 with a directory `far` in slot 7, which is empty but for a file.
struct Two {
    world: World,
    far: InodeId,
    file: InodeId,
}

fn two() -> Two {
    let mut world = World::new();
    let far = world.make(ROOT, "far", NewNode::Directory { slot: SlotId(7) }).unwrap().inode;
    let file = world.file(far, "file");
    let split = Command::Split { shard: OTHER, slots: vec![(SlotId(7), SlotId(7))], mark: b"first".to_vec() };
    assert_eq!(world.lead(split), Reply::Done);
    Two { world, far, file }
}

impl Two {
    /// A command of the other shard's leader.
    fn other(&mut self, command: Command) -> Reply {
        let mut engine: Engine<MemKv> = Engine::open(self.world.engine.kv().clone(), OTHER).unwrap();
        std::mem::swap(&mut self.world.engine, &mut engine);
        let reply = self.world.lead(command);
        std::mem::swap(&mut self.world.engine, &mut engine);
        reply
    }

    fn prepare(&mut self, number: u64, wants: Vec<Want>) -> Reply {
        self.other(Command::Prepare { intent: id(number), wants })
    }

    fn change(&mut self, command: Command) -> Reply {
        let session = self.world.session;
        assert_eq!(self.other(Command::JoinSession { session }), Reply::Done);
        let mut engine: Engine<MemKv> = Engine::open(self.world.engine.kv().clone(), OTHER).unwrap();
        std::mem::swap(&mut self.world.engine, &mut engine);
        let reply = self.world.run(command);
        std::mem::swap(&mut self.world.engine, &mut engine);
        reply
    }
}

fn id(number: u64) -> IntentId {
    IntentId { shard: SHARD, term: 1, number }
}

fn place(parent: InodeId, text: &str) -> Want {
    Want::Name { parent, name: name(text) }
}

fn unlink(parent: InodeId, text: &str) -> Command {
    Command::Unlink { parent, name: name(text), unheld: None }
}

fn create(parent: InodeId, text: &str) -> Command {
    Command::Create(pando_types::command::Create {
        parent,
        name: name(text),
        node: NewNode::File,
        mode: 0o644,
        umask: 0,
        uid: 0,
        gid: 0,
    })
}

#[test]
fn a_shard_changes_nothing_that_it_does_not_own() {
    let mut two = two();
    let far = two.far;
    assert_eq!(two.world.run(create(far, "x")), Reply::Elsewhere);
    assert_eq!(two.other(Command::Prepare { intent: id(1), wants: vec![Want::Inode(ROOT)] }), Reply::Elsewhere);
    let wanted = two.world.run(Command::Rmdir { parent: ROOT, name: name("far") });
    assert_eq!(wanted, Reply::Wants(vec![Want::Inode(far)]));
    two.world.fsck();
}

#[test]
fn what_is_locked_is_refused_until_the_change_is_over_and_the_rest_goes_on() {
    let mut two = two();
    let (far, file) = (two.far, two.file);
    let Reply::Facts(facts) = two.prepare(1, vec![place(far, "file")]) else { panic!("not prepared") };
    assert!(facts.iter().any(|fact| matches!(fact, Fact::Inode { inode, record: Some(_) } if *inode == file)));
    assert_eq!(two.prepare(2, vec![place(far, "file")]), Reply::Busy);
    assert_eq!(two.prepare(2, vec![Want::Inode(file)]), Reply::Busy);
    assert_eq!(two.prepare(2, vec![Want::Inode(far)]), Reply::Busy, "its directory must stay");
    assert!(matches!(two.prepare(3, vec![place(far, "another"), Want::Path(far)]), Reply::Facts(_)));
    assert_eq!(two.change(unlink(far, "file")), Reply::Busy);
    assert!(matches!(two.change(create(far, "new")), Reply::Inode(_)), "another name of the directory is free");
    let split = Command::Split { shard: ShardId(2), slots: vec![(SlotId(7), SlotId(7))], mark: Vec::new() };
    assert_eq!(two.other(split), Reply::Refused(Errno::EAGAIN));
    for number in [1, 3] {
        assert_eq!(two.other(Command::Finish { intent: id(number), steps: vec![] }), Reply::Done);
    }
    assert!(matches!(two.change(unlink(far, "file")), Reply::Unlinked { .. }));
    let engine: Engine<MemKv> = Engine::open(two.world.engine.kv().clone(), OTHER).unwrap();
    assert!(engine.locks().is_empty());
}

#[test]
fn a_directory_on_the_way_to_a_moving_one_is_neither_moved_nor_removed() {
    let mut two = two();
    let far = two.far;
    let made = two.change(Command::Create(pando_types::command::Create {
        parent: far,
        name: name("inner"),
        node: NewNode::Directory { slot: SlotId(7) },
        mode: 0o755,
        umask: 0,
        uid: 0,
        gid: 0,
    }));
    let Reply::Inode(inner) = made else { panic!("{made:?}") };
    let Reply::Facts(path) = two.prepare(1, vec![Want::Path(inner.inode)]) else { panic!("not prepared") };
    assert_eq!(path.len(), 2, "the directory and the one above it");
    assert_eq!(two.change(Command::Rmdir { parent: far, name: name("inner") }), Reply::Busy);
    let rename = pando_types::command::Rename {
        parent: far,
        name: name("inner"),
        new_parent: far,
        new_name: name("outer"),
        mode: RenameMode::Replace,
        unheld: None,
    };
    assert_eq!(two.change(Command::Rename(rename)), Reply::Busy);
}

#[test]
fn an_attempt_that_was_given_up_is_never_decided() {
    let mut two = two();
    let far = two.far;
    let Reply::Facts(facts) = two.prepare(1, vec![Want::Inode(far)]) else { panic!("not prepared") };
    assert_eq!(two.world.lead(Command::Abort { intent: id(1) }), Reply::Done);
    assert_eq!(two.world.lead(Command::Abort { intent: id(1) }), Reply::Done, "again");
    let link = Command::Link { inode: two.file, parent: ROOT, name: name("link") };
    let decide = |number, facts, command| {
        Command::Decide(Box::new(Decide { intent: id(number), facts: vec![(OTHER, facts)], command }))
    };
    assert_eq!(two.world.run(decide(1, facts, link.clone())), Reply::Busy);
    assert_eq!(two.other(Command::Finish { intent: id(1), steps: vec![] }), Reply::Done);
    let Reply::Facts(facts) = two.prepare(2, vec![Want::Inode(two.file)]) else { panic!("not prepared") };
    assert!(matches!(two.world.run(decide(2, facts, link)), Reply::Inode(attr) if attr.nlink == 2));
    assert_eq!(two.world.lead(Command::Abort { intent: id(2) }), Reply::Refused(Errno::EEXIST), "it was decided");
    let view = two.world.view();
    assert!(view.get(&decided_key(SHARD, id(2))).unwrap().is_some());
    two.world.lead(Command::Forget { intents: vec![id(1), id(2)] });
    assert!(two.world.engine.locks().is_empty());
}

/// What only leaders may say is refused to clients.
#[test]
fn clients_take_no_part_in_the_protocol() {
    let mut two = two();
    let session = two.world.session;
    for command in [
        Command::Prepare { intent: id(1), wants: vec![] },
        Command::Finish { intent: id(1), steps: vec![] },
        Command::Abort { intent: id(1) },
        Command::Forget { intents: vec![] },
        Command::JoinSession { session: SessionId(99) },
        Command::Split { shard: OTHER, slots: vec![], mark: vec![] },
    ] {
        let op = pando_types::OpId { session, sequence: 900 };
        assert_eq!(two.world.apply(Envelope { op, acked: 0, command }), Reply::Refused(Errno::EPERM));
    }
}
