//! Changes that touch several shards: led through prepare, decide and finish, and brought to an end whatever happens.
//!
//! The leader of the change's own shard leads it. What must not be lost is in the logs (`pando_engine`, `ops/intent.rs`); this
//! only asks and tells. Not here: what a change needs of others, and what comes of it (engine). Invariants: a shard is told
//! to carry out steps only after it has acknowledged every lock of that attempt once, and the decision is in the log; a
//! change is answered only when all have finished it; whoever waits too long for a decision gets one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, join_all};
use pando_engine::{Kv, read, rehearse};
use pando_types::intent::{Decide, Decided, Fact, IntentId, Step, Want};
use pando_types::request::{Request, Response};
use pando_types::{Command, Envelope, Errno, FsError, OpId, Reply, SessionId, ShardId};
use tracing::{debug, info, warn};

use crate::peers::ASK_TIMEOUT;
use crate::replicas::Replicas;
use crate::shard::{Shard, Territory};

/// A change that others stand in the way of is answered as unavailable after this; its client asks again.
const PATIENCE: Duration = Duration::from_secs(6);
/// Wait after the first attempt that met another change; doubles up to the second.
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Questions that one attempt may lead to: a path of many directories, each of another shard than the one above it.
const ROUNDS_MAX: usize = 1024;
/// How often a leader looks for changes that nobody leads any more.
const RESOLVE_INTERVAL: Duration = Duration::from_millis(300);
/// A change that was decided is pressed on with after this; whoever leads it needs far less.
const DECIDED_AGE: Duration = Duration::from_secs(1);
/// A shard that has locked something asks for the decision after this.
const PREPARED_AGE: Duration = Duration::from_secs(1);
/// That an attempt was given up is remembered for this long after the last shard that may ask.
const ABORTED_AGE: Duration = Duration::from_secs(120);

/// Carries a change out, on the leader of its own shard.
pub(crate) async fn carry_out(here: &Replicas, shard: &Shard, envelope: Envelope) -> Result<Reply, FsError> {
    let op = envelope.op;
    // What only one shard can touch is not copied for a second attempt.
    if !envelope.command.may_cross() {
        return answer(shard.proposer.propose(envelope).await?);
    }
    let deadline = Instant::now() + PATIENCE;
    let mut pause = PAUSE_FIRST;
    loop {
        let before = shard.territory();
        let reply = match shard.proposer.propose(envelope.clone()).await? {
            Reply::Wants(wants) => Attempt::new(here, shard, &envelope).run(wants, deadline).await?,
            Reply::Busy => None,
            reply => Some(answer(reply)?),
        };
        if let Some(reply) = reply {
            return finished(shard, op, deadline).await.map(|()| reply);
        }
        if Instant::now() >= deadline {
            return Err(FsError::unavailable("another change of the same files is under way"));
        }
        shard.territory_changed(&before, pause).await;
        tokio::time::sleep(pause.mul_f64(rand_part(op))).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// A part of 1 by which two changes that stand in each other's way differ.
fn rand_part(op: OpId) -> f64 {
    let mixed = (op.session.0 ^ op.sequence.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as f64 / (1u64 << 24) as f64
}

fn answer(reply: Reply) -> Result<Reply, FsError> {
    match reply {
        Reply::Elsewhere => Err(FsError::unavailable("these files are being handed to another shard")),
        Reply::Busy => Err(FsError::unavailable("another change of the same files is under way")),
        Reply::Wants(_) | Reply::Facts(_) => Err(FsError::bug(format!("a change was answered with {reply:?}"))),
        reply => Ok(reply),
    }
}

/// Waits until all shards have finished the change: it may have been decided by an earlier request of the same client.
async fn finished(shard: &Shard, op: OpId, deadline: Instant) -> Result<(), FsError> {
    let is_finished = |territory: &Arc<Territory>| territory.locks.decided().all(|(_, of)| of != op);
    let left = deadline.saturating_duration_since(Instant::now());
    match is_finished(&shard.territory()) || shard.wait_for(is_finished, left).await {
        true => Ok(()),
        false => Err(FsError::unavailable("a change that was made waits for another shard")),
    }
}

/// One try to carry out a change that touches several shards.
struct Attempt<'a> {
    here: &'a Replicas,
    shard: &'a Shard,
    envelope: &'a Envelope,
    intent: IntentId,
    facts: BTreeMap<ShardId, Vec<Fact>>,
    /// Who may have locked something.
    asked: BTreeSet<ShardId>,
}

impl<'a> Attempt<'a> {
    fn new(here: &'a Replicas, shard: &'a Shard, envelope: &'a Envelope) -> Attempt<'a> {
        let intent = shard.new_intent();
        Attempt { here, shard, envelope, intent, facts: BTreeMap::new(), asked: BTreeSet::new() }
    }

    /// The change's reply; none if another change stood in the way.
    async fn run(mut self, wants: Vec<Want>, deadline: Instant) -> Result<Option<Reply>, FsError> {
        let prepared = self.prepare(wants).await;
        if !matches!(prepared, Ok(true)) {
            self.give_up().await;
            return prepared.map(|_| None);
        }
        // Without an answer it may yet be decided: then the others ask, or are told by whoever leads this shard.
        let reply = self.shard.proposer.propose(self.decide()).await?;
        let (id, intent) = (self.shard.id, self.intent);
        let decided = self.shard.read(|view| read::decided(view, id, intent)).await?;
        match decided {
            Some(decided) if decided.op == self.envelope.op => {
                tell_all(self.here, intent, &decided, deadline).await?;
                self.shard.proposer.propose_own(Command::Forget { intents: vec![intent] }).await?;
                Ok(Some(reply))
            }
            _ => {
                self.give_up().await;
                if reply.is_final() { Ok(Some(reply)) } else { Ok(None) }
            }
        }
    }

    /// Asks and locks until nothing more is wanted; false if something is locked by another change.
    async fn prepare(&mut self, mut wants: Vec<Want>) -> Result<bool, FsError> {
        for _ in 0..ROUNDS_MAX {
            if !self.ask(wants).await? {
                return Ok(false);
            }
            let territory = self.shard.territory();
            let view = self.shard.kv.view();
            let foreseen = rehearse(&view, self.shard.id, (&territory.slots, &territory.locks), &self.decide());
            wants = match foreseen.map_err(|error| FsError::unavailable(error.to_string()))? {
                Reply::Wants(wants) => wants,
                Reply::Busy | Reply::Elsewhere => return Ok(false),
                _ => return Ok(true),
            };
        }
        Err(FsError::user(Errno::ELOOP))
    }

    async fn ask(&mut self, wants: Vec<Want>) -> Result<bool, FsError> {
        let map = self.here.cluster.map()?;
        let mut by_shard: BTreeMap<ShardId, Vec<Want>> = BTreeMap::new();
        for want in wants {
            let shard = map.shard_of(want.slot()).ok_or_else(|| FsError::bug("the shard map has a gap"))?;
            by_shard.entry(shard.id).or_default().push(want);
        }
        // The map says that it is ours, our log does not: it is on its way.
        if by_shard.contains_key(&self.shard.id) {
            return Ok(false);
        }
        self.asked.extend(by_shard.keys());
        let (here, intent) = (self.here, self.intent);
        let asked = by_shard.into_iter().map(|(shard, wants)| async move {
            (shard, here.take_part(shard, Command::Prepare { intent, wants }).await)
        });
        for (shard, told) in join_all(asked).await {
            match told? {
                Reply::Facts(told) => self.facts.entry(shard).or_default().extend(told),
                Reply::Refused(errno) => return Err(FsError::user(errno)),
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    fn decide(&self) -> Envelope {
        let facts = self.facts.clone().into_iter().collect();
        let command = self.envelope.command.clone();
        let command = Command::Decide(Box::new(Decide { intent: self.intent, facts, command }));
        Envelope { command, ..*self.envelope }
    }

    /// Lets the others unlock; whoever is not reached asks later.
    async fn give_up(&self) {
        let intent = self.intent;
        let told =
            self.asked.iter().map(|shard| self.here.take_part(*shard, Command::Finish { intent, steps: Vec::new() }));
        for error in join_all(told).await.into_iter().filter_map(Result::err) {
            debug!(%error, "a shard was not told that a change was given up");
        }
    }
}

/// Has every shard finish a decided change.
async fn tell_all(here: &Replicas, intent: IntentId, decided: &Decided, deadline: Instant) -> Result<(), FsError> {
    let told = decided.steps.iter().map(|(shard, steps)| async move {
        loop {
            let told = here.take_part(*shard, Command::Finish { intent, steps: steps.clone() }).await;
            match told {
                Ok(Reply::Done) => return Ok(()),
                Ok(other) => return Err(FsError::bug(format!("the end of a change was answered with {other:?}"))),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => tokio::time::sleep(PAUSE_MAX).await,
            }
        }
    });
    join_all(told).await.into_iter().collect()
}

impl Replicas {
    /// Has a shard, wherever it is led, take its part of a change.
    pub(crate) async fn take_part(&self, shard: ShardId, command: Command) -> Result<Reply, FsError> {
        if let Ok(led) = self.led(shard) {
            // One that has lost its lead without knowing waits in vain.
            let proposed = tokio::time::timeout(ASK_TIMEOUT, led.proposer.propose_own(command)).await;
            return proposed
                .unwrap_or_else(|_| Err(FsError::unavailable(format!("shard {shard} takes no changes now"))));
        }
        let cluster = self.cluster.id().to_owned();
        match self.ask_shard(shard, Request::TakePart { cluster, shard, command }).await? {
            Response::Reply(reply) => Ok(reply),
            other => Err(FsError::bug(format!("a part of a change was answered with {other:?}"))),
        }
    }

    /// What became of a change that is led here, for a shard that took part. One that was not decided never will be.
    pub(crate) async fn outcome(&self, intent: IntentId, asking: ShardId) -> Result<Vec<Step>, FsError> {
        let shard = self.led(intent.shard)?;
        loop {
            let id = shard.id;
            if let Some(decided) = shard.read(|view| read::decided(view, id, intent)).await? {
                let steps = decided.steps.into_iter().find(|(of, _)| *of == asking);
                return Ok(steps.map(|(_, steps)| steps).unwrap_or_default());
            }
            match shard.proposer.propose_own(Command::Abort { intent }).await? {
                Reply::Done => return Ok(Vec::new()),
                Reply::Refused(Errno::EEXIST) => {}
                other => return Err(FsError::bug(format!("giving up was answered with {other:?}"))),
            }
        }
    }
}

/// When a leader first saw what it found under way.
type Seen = HashMap<(ShardId, IntentId), Instant>;

/// Brings to an end what nobody leads any more; works until it is dropped.
pub(crate) async fn run(here: Arc<Replicas>) {
    let mut seen = Seen::new();
    loop {
        tokio::time::sleep(RESOLVE_INTERVAL).await;
        let (mut still, mut work) = (Seen::new(), Vec::new());
        for shard in here.shards().into_iter().filter(|shard| shard.group.is_leader()) {
            let locks = shard.territory().locks.clone();
            if locks.is_empty() {
                continue;
            }
            let mut age = |id: IntentId| {
                let at = *seen.get(&(shard.id, id)).unwrap_or(&Instant::now());
                still.insert((shard.id, id), at);
                at.elapsed()
            };
            let decided: Vec<_> = locks.decided().map(|(id, op)| (id, op, age(id))).collect();
            let prepared: Vec<_> = locks.intents().map(|id| (id, age(id))).collect();
            work.extend(decided.into_iter().map(|(id, op, age)| {
                let (here, shard) = (here.clone(), shard.clone());
                bounded(id, async move { press_on(&here, &shard, id, op, age).await })
            }));
            work.extend(prepared.into_iter().filter(|(_, age)| *age > PREPARED_AGE).map(|(id, _)| {
                let (here, shard) = (here.clone(), shard.clone());
                bounded(id, async move { ask_outcome(&here, &shard, id).await })
            }));
        }
        // All at once: a shard that does not answer must not keep the others waiting.
        join_all(work).await;
        seen = still;
    }
}

/// A step of the work that ends in time, whatever it waits for; what is left is done in a later round.
fn bounded(id: IntentId, step: impl Future<Output = Result<(), FsError>> + Send + 'static) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let late = || Err(FsError::unavailable("it does not answer"));
        report(tokio::time::timeout(ASK_TIMEOUT, step).await.unwrap_or_else(|_| late()), id);
    })
}

fn report(result: Result<(), FsError>, id: IntentId) {
    if let Err(error) = result {
        warn!(%error, ?id, "a change of several shards waits for another shard");
    }
}

async fn press_on(here: &Replicas, shard: &Shard, id: IntentId, op: OpId, age: Duration) -> Result<(), FsError> {
    let aborted = op.session == SessionId::LEADER;
    if age < if aborted { ABORTED_AGE } else { DECIDED_AGE } {
        return Ok(());
    }
    let own = shard.id;
    if let Some(decided) = shard.read(|view| read::decided(view, own, id)).await? {
        tell_all(here, id, &decided, Instant::now()).await?;
        shard.proposer.propose_own(Command::Forget { intents: vec![id] }).await?;
        if !aborted {
            info!(?id, "a change of several shards was finished by another leader than it was begun by");
        }
    }
    Ok(())
}

async fn ask_outcome(here: &Replicas, shard: &Shard, intent: IntentId) -> Result<(), FsError> {
    let steps = match here.led(intent.shard) {
        Ok(_) => here.outcome(intent, shard.id).await?,
        Err(_) => {
            let (cluster, asking) = (here.cluster.id().to_owned(), shard.id);
            let request = Request::Outcome { cluster, shard: asking, intent };
            match here.ask_shard(intent.shard, request).await? {
                Response::Steps(steps) => steps,
                other => return Err(FsError::bug(format!("an outcome was answered with {other:?}"))),
            }
        }
    };
    shard.proposer.propose_own(Command::Finish { intent, steps }).await.map(|_| ())
}
