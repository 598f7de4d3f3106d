//! The same commands and the same reference tree, over shards that split while they work: changes of several shards go through
//! prepare, decide and finish, with attempts given up and engines opened anew in between.

use std::collections::BTreeMap;
use std::sync::Arc;

use pando_engine::kv::mem::MemKv;
use pando_engine::{Effect, Engine, Kv, View, fsck, keys, rehearse};
use pando_types::intent::{Decide, Fact, IntentId};
use pando_types::request::Links;
use pando_types::{Command, Envelope, Generation, LogEntry, OpId, Reply, SessionId, ShardId, SlotId, Timestamp};

use crate::generate::Generator;
use crate::random::Random;
use crate::reference::Model;
use crate::{BATCHES, Given, check_reply, compare, seeds};

struct Several {
    kv: Arc<MemKv>,
    engines: Vec<Engine<MemKv>>,
    random: Random,
    attempts: u64,
    effects: Vec<Vec<Effect>>,
    /// Changes that took part in another shard, attempts given up, openings amid a change.
    crossed: u64,
    given_up: u64,
    reopened: u64,
}

impl Several {
    fn new(seed: u64) -> Several {
        let kv = Arc::new(MemKv::new());
        let engines = vec![Engine::open(kv.clone(), ShardId(0)).unwrap()];
        let random = Random::new(seed ^ 0x5e7e);
        Several { kv, engines, random, attempts: 0, effects: vec![Vec::new()], crossed: 0, given_up: 0, reopened: 0 }
    }

    fn shards(&self) -> Vec<ShardId> {
        self.engines.iter().map(Engine::shard).collect()
    }

    fn owner(&self, slot: SlotId) -> usize {
        self.engines.iter().position(|engine| engine.slots().has(slot)).unwrap_or(0)
    }

    fn apply(&mut self, at: usize, time: Timestamp, envelope: Envelope) -> Reply {
        let entry = LogEntry { time, generation: Generation::FIRST, commands: vec![envelope] };
        let mut applied = self.engines[at].apply(b"mark", &[entry]).unwrap();
        self.effects[at].extend(applied.effects);
        applied.replies.remove(0).remove(0)
    }

    fn lead(&mut self, at: usize, time: Timestamp, command: Command) -> Reply {
        let op = OpId { session: SessionId::LEADER, sequence: 0 };
        self.apply(at, time, Envelope { op, acked: 0, command })
    }

    fn split(&mut self, time: Timestamp, from: usize, slots: (u32, u32)) {
        let shard = ShardId(self.engines.len() as u32);
        let command =
            Command::Split { shard, slots: vec![(SlotId(slots.0), SlotId(slots.1))], mark: b"first".to_vec() };
        assert_eq!(self.lead(from, time, command.clone()), Reply::Done);
        self.engines.push(Engine::open(self.kv.clone(), shard).unwrap());
        self.effects.push(self.effects[from].clone());
        let before = crate::dump(&self.kv.view());
        assert_eq!(self.lead(from, time, command), Reply::Done, "again");
        assert!(crate::dump(&self.kv.view()) == before, "a split is made once");
    }

    fn reopen(&mut self) {
        self.reopened += 1;
        for engine in &mut self.engines {
            let locks = engine.locks().clone();
            *engine = Engine::open(self.kv.clone(), engine.shard()).unwrap();
            assert_eq!(*engine.locks(), locks, "the locks are those of the records");
        }
    }

    /// What a client and the leaders do, one command at a time.
    fn run(&mut self, time: Timestamp, envelope: &Envelope) -> Reply {
        let at = envelope.command.home().first().map_or(0, |inode| self.owner(inode.slot()));
        match &envelope.command {
            Command::CloseSession { .. } | Command::ForgetSegments { .. } => {
                (0..self.engines.len()).map(|at| self.apply(at, time, envelope.clone())).last().unwrap()
            }
            Command::ReleaseOrphans { inodes } | Command::Reclaim { inodes } => {
                let mut sum = 0;
                let mut reply = Reply::Done;
                for at in 0..self.engines.len() {
                    let own: Vec<_> = inodes.iter().copied().filter(|i| self.owner(i.slot()) == at).collect();
                    let command = match envelope.command {
                        Command::Reclaim { .. } => Command::Reclaim { inodes: own },
                        _ => Command::ReleaseOrphans { inodes: own },
                    };
                    self.join(at, time, envelope.op.session);
                    reply = self.apply(at, time, Envelope { command, ..envelope.clone() });
                    if let Reply::Reclaimed { inodes } = reply {
                        sum += inodes;
                    }
                }
                if matches!(reply, Reply::Reclaimed { .. }) { Reply::Reclaimed { inodes: sum } } else { reply }
            }
            _ => {
                self.join(at, time, envelope.op.session);
                self.change(at, time, envelope)
            }
        }
    }

    /// A session that lives is known to every shard that it uses.
    fn join(&mut self, at: usize, time: Timestamp, session: SessionId) {
        let lives = pando_engine::read::sessions(&self.kv.view(), ShardId(0)).unwrap().contains(&session);
        if at > 0 && lives {
            assert_eq!(self.lead(at, time, Command::JoinSession { session }), Reply::Done);
        }
    }

    fn change(&mut self, at: usize, time: Timestamp, envelope: &Envelope) -> Reply {
        loop {
            self.attempts += 1;
            let intent = IntentId { shard: ShardId(at as u32), term: 1, number: self.attempts };
            let mut facts: BTreeMap<ShardId, Vec<Fact>> = BTreeMap::new();
            let reply = loop {
                let decide = self.envelope(envelope, intent, &facts);
                let engine = &self.engines[at];
                let view = self.kv.view();
                match rehearse(&view, engine.shard(), (engine.slots(), engine.locks()), &decide).unwrap() {
                    Reply::Wants(wants) => {
                        for want in wants {
                            let other = self.owner(want.slot());
                            match self.lead(other, time, Command::Prepare { intent, wants: vec![want] }) {
                                Reply::Facts(told) => facts.entry(ShardId(other as u32)).or_default().extend(told),
                                other => panic!("{other:?}"),
                            }
                        }
                    }
                    Reply::Busy => panic!("nothing else is under way"),
                    foreseen => break foreseen,
                }
            };
            if self.random.one_in(9) {
                self.reopen();
            }
            if !facts.is_empty() && self.random.one_in(5) {
                self.given_up += 1;
                self.end(time, intent, facts.keys().map(|shard| (*shard, Vec::new())).collect());
                continue;
            }
            let decide = self.envelope(envelope, intent, &facts);
            let given = self.apply(at, time, decide);
            let kind = std::mem::discriminant::<Reply>;
            assert_eq!(kind(&given), kind(&reply), "{given:?} was foreseen as {reply:?}");
            let record = self.kv.view().get(&keys::intent::decided_key(ShardId(at as u32), intent)).unwrap();
            let left = match record {
                Some(record) => keys::intent::decode_decided(&record).unwrap().steps,
                None => facts.keys().map(|shard| (*shard, Vec::new())).collect(),
            };
            self.crossed += u64::from(!left.is_empty());
            if self.random.one_in(9) {
                self.reopen();
            }
            self.end(time, intent, left);
            self.lead(at, time, Command::Forget { intents: vec![intent] });
            return given;
        }
    }

    fn envelope(&self, envelope: &Envelope, intent: IntentId, facts: &BTreeMap<ShardId, Vec<Fact>>) -> Envelope {
        if facts.is_empty() {
            return envelope.clone();
        }
        let facts = facts.clone().into_iter().collect();
        let command = Command::Decide(Box::new(Decide { intent, facts, command: envelope.command.clone() }));
        Envelope { command, ..envelope.clone() }
    }

    /// Finishes everywhere, twice: the second time nothing happens.
    fn end(&mut self, time: Timestamp, intent: IntentId, left: Vec<(ShardId, Vec<pando_types::intent::Step>)>) {
        for (shard, steps) in left {
            let command = Command::Finish { intent, steps };
            assert_eq!(self.lead(shard.0 as usize, time, command.clone()), Reply::Done);
            let before = crate::dump(&self.kv.view());
            assert_eq!(self.lead(shard.0 as usize, time, command), Reply::Done);
            assert!(crate::dump(&self.kv.view()) == before, "finished twice");
        }
    }

    fn check(&self, model: &mut Model, what: &str) {
        let view = self.kv.view();
        let (mut names, mut links) = (Links::default(), Links::default());
        for shard in self.shards() {
            let report = fsck(&view, shard).unwrap();
            assert_eq!(report.problems, Vec::<String>::new(), "{what}, shard {shard}");
            (names, links) = (names.and(report.names_of_others), links.and(report.links_from_others));
            compare::compare_effects(&view, shard, model, &self.effects[shard.0 as usize], what);
        }
        assert_eq!(names, links, "{what}: names and links of other shards");
        compare::compare_state(&view, &self.shards(), model, what);
        assert!(self.engines.iter().all(|engine| engine.locks().is_empty()), "{what}: nothing is left locked");
    }
}

#[test]
fn shards_that_split_do_together_what_one_does() {
    let (mut crossed, mut given_up, mut reopened) = (0, 0, 0);
    for seed in seeds(120) {
        let mut several = Several::new(seed);
        let mut generator = Generator::new(seed);
        let (mut model, mut given) = (Model::default(), Given::new());
        let mut time = Timestamp(0);
        for batch in 0..BATCHES {
            for entry in generator.entries(&model, &several.kv.view(), &given) {
                // Each shard keeps its own time from going back; the model has one for all.
                time = time.max(entry.time);
                model.begin_entry(time);
                match batch {
                    10 if several.engines.len() == 1 => several.split(time, 0, (1, 1)),
                    20 if several.engines.len() == 2 => several.split(time, 0, (2, SlotId::COUNT - 1)),
                    _ => {}
                }
                for envelope in &entry.commands {
                    let reply = several.run(time, envelope);
                    check_reply(&mut model, &mut given, envelope, &reply, seed);
                }
            }
            if batch % 8 == 7 {
                several.check(&mut model, &format!("seed {seed}, batch {batch}"));
            }
        }
        assert_eq!(several.engines.len(), 3);
        crossed += several.crossed;
        given_up += several.given_up;
        reopened += several.reopened;
    }
    println!("{crossed} changes of several shards, {given_up} attempts given up, {reopened} times opened anew");
    if std::env::var("PANDO_SEED").is_err() {
        assert!(crossed > 5000 && given_up > 1000 && reopened > 1000);
    }
}
