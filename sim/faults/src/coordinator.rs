//! The coordinator's process: the production commit batches on a failing disk, and the production
//! jobs around them. This module simulates the work of the server and the threads: it maps requests
//! to events and retries jobs.

mod answers;
mod jobs;
mod past;

use std::collections::BTreeMap;
use std::sync::Arc;

use florin_coordinator::config::JournalSettings as Settings;
use florin_coordinator::host::snapshotter::{self, SnapshotWriter, Snapshotter};
use florin_coordinator::host::{
    EffectJob, EngineRequest, JournaledEngine, NextStep, WriteAck, owner,
};
use florin_engine::{Effect, Event};
use florin_protocol::{Digest, Offer, Rejection, Report, RoundScope, TaskPhase, Timestamp};
use florin_store::{AppendError, IDENTITY_FILE, Journal, JournalEntry, Volume, recovery};

use super::bugs::Bug;
use super::disk::Machine;
use super::message::{Ask, Body, Reply};
use super::network::Node;
use super::task::COORDINATOR;
use super::world::{What, World};
use florin_sim::draw::stream;
use jobs::Slot;

const ME: Node = Node::Coordinator;
/// Number of events between two snapshots.
const SNAPSHOT_EVENTS: u64 = 24;
/// Maximum time between two checks of the clock, in milliseconds.
const SLEEP_MAX: u64 = 60_000;
/// Delay before due work is retried while the journal refuses writes.
const STUCK_MS: u64 = 1_000;
/// Number of batches with refused journal writes after which the operator restarts the process: the
/// journal can be broken for good.
const STUCK_MAX: u32 = 8;
/// Duration for which the clock of a planted bug stops at a deadline.
const STILL_MS: u64 = 2_500;

/// Input for the next batch.
#[derive(Debug)]
enum Waiting {
    /// A request.
    Ask { from: Node, id: u64, ask: Ask },
    /// The result of a job.
    Told { slot: u64, asked: EngineRequest },
}

/// The response to an input of a batch.
#[derive(Debug)]
enum Plan {
    /// A read: answered after the batch.
    Read { from: Node, id: u64, ask: Ask },
    /// A write: the answer depends on the outcome of its event.
    Write { from: Node, id: u64, ask: Ask, at: usize },
    /// A refusal before the batch.
    Refuse { from: Node, id: u64, rejection: Rejection },
    /// A job receives the outcome of its event.
    Told { slot: u64, asked: EngineRequest, at: usize },
}

#[derive(Debug)]
struct Running {
    core: JournaledEngine,
    keeper: Snapshotter,
    writing: SnapshotWriter,
    jobs: BTreeMap<u64, Slot>,
}

/// The simulated coordinator.
#[derive(Debug)]
pub(super) struct Coordinator {
    machine: Machine,
    owner: Digest,
    running: Option<Running>,
    /// Number of restarts of the process.
    life: u64,
    waiting: Vec<Waiting>,
    /// Time of the next batch.
    turn_at: Option<u64>,
    slots: u64,
    /// Number of consecutive batches in which the journal refused writes.
    stuck: u32,
    /// Number of crashes.
    pub crashes: u64,
}

impl Coordinator {
    /// A machine with an empty disk.
    #[must_use]
    pub(super) fn new(seed: u64, world: &World) -> Self {
        let machine = Machine::new(stream(seed, "disk", [0, 0]));
        if world.bug == Some(Bug::UnsyncedReceipt) {
            machine.set_lies(500);
        }
        let owner = owner(world.cast.spec.market, COORDINATOR);
        Self {
            machine,
            owner,
            running: None,
            life: 0,
            waiting: Vec::new(),
            turn_at: None,
            slots: 0,
            stuck: 0,
            crashes: 0,
        }
    }

    /// Its disk.
    #[must_use]
    pub(super) const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The core, while the process runs.
    #[must_use]
    pub(super) fn core(&self) -> Option<&JournaledEngine> {
        self.running.as_ref().map(|running| &running.core)
    }

    /// Starts the process: recovers from journal and snapshots, and restarts the outstanding jobs.
    pub(super) fn start(&mut self, world: &mut World, life: u64) {
        if life != self.life || self.running.is_some() {
            return;
        }
        let volume: Arc<dyn Volume> = Arc::new(self.machine.clone());
        let opened =
            JournaledEngine::open(&volume, self.owner, world.cast.spec.market, COORDINATOR);
        let core = match opened {
            Ok(core) => core,
            Err(error) => {
                world.tell(ME, format_args!("cannot start: {error}"));
                if !self.machine.is_dead() && !is_passing(&error) {
                    world.auditor.found("the journal can be opened", error.to_string());
                }
                self.crash(world, "while it starts");
                return;
            }
        };
        if self.identify().is_err() {
            self.crash(world, "while it starts");
            return;
        }
        let state = core.engine().state();
        world.tell(ME, format_args!("starts with {} records", core.journal().records()));
        let (market, task) = (world.cast.spec.market, world.cast.spec.id());
        let has = |round, sender, update| {
            let scope = RoundScope { market, task, round };
            let found = past::receipt((core.engine(), &self.machine), scope, sender, update);
            found.is_ok_and(|receipt| receipt.is_some())
        };
        world.auditor.restarted(state, &has);
        let settings = Settings { snapshot_events: SNAPSHOT_EVENTS, ..Settings::default() };
        let (keeper, writing) = Snapshotter::new(settings);
        let outstanding = core.engine().pending_effects();
        self.running = Some(Running { core, keeper, writing, jobs: BTreeMap::new() });
        self.dispatch(world, &outstanding);
        self.nudge(world, 0);
    }

    /// Writes the identity file of the data folder, once a journal exists.
    fn identify(&self) -> std::io::Result<()> {
        if self.machine.open(IDENTITY_FILE).is_ok() {
            return Ok(());
        }
        let mut file = self.machine.append_to(IDENTITY_FILE)?;
        file.append(&self.owner.0)?;
        file.sync()?;
        self.machine.sync()
    }

    /// Ends the process, with or without a power failure of the machine, and schedules a restart.
    pub(super) fn crash(&mut self, world: &mut World, when: &str) {
        let power = world.weather.power;
        let power = world.chance(power);
        self.crash_how(world, when, power);
    }

    fn crash_how(&mut self, world: &mut World, when: &str, power: bool) {
        let how = if power { "the power fails" } else { "the process is killed" };
        world.tell(ME, format_args!("{how} {when}"));
        if power {
            self.machine.power_fails();
        } else {
            self.machine.process_ends();
        }
        self.running = None;
        self.waiting.clear();
        self.turn_at = None;
        self.life += 1;
        self.crashes += 1;
        let pause = 50 + world.some(3_000);
        world.after(pause, What::Starts { node: ME, life: self.life });
    }

    /// Handles a message.
    pub(super) fn hear(&mut self, world: &mut World, from: Node, id: u64, ask: Ask) {
        if self.running.is_none() {
            return;
        }
        self.waiting.push(Waiting::Ask { from, id, ask });
        let pause = world.some(4);
        self.nudge(world, pause);
    }

    /// Schedules a batch.
    fn nudge(&mut self, world: &mut World, pause: u64) {
        let at = world.now + pause;
        if self.turn_at.is_none_or(|planned| at < planned) {
            self.turn_at = Some(at);
            world.after(pause, What::Turn { life: self.life });
        }
    }

    /// Commits a batch, if one is scheduled for now.
    pub(super) fn turn(&mut self, world: &mut World, life: u64) {
        if life != self.life || self.turn_at != Some(world.now) {
            return;
        }
        self.turn_at = None;
        let Some(mut running) = self.running.take() else { return };
        let waiting = std::mem::take(&mut self.waiting);
        let now = self.now(world, &running, &waiting);
        let (asked, plans) = self.prepare(world, &running, waiting);
        if self.machine.is_dead() {
            self.crash(world, "while it stores a blob");
            return;
        }
        let (mut wrote, mut broken) = (false, false);
        let (bug, fate) = (world.bug, &mut world.fate);
        let turn = running.core.commit_batch(asked, now, &mut |journal, records| {
            wrote = true;
            let appended = append(journal, records, bug, fate);
            broken |= matches!(appended, Err(AppendError::Broken(_)));
            appended
        });
        if self.machine.is_dead() {
            self.crash(world, "while it writes its journal");
            return;
        }
        if turn.next == NextStep::Continue {
            let (engine, journal) = running.core.parts();
            running.keeper.snapshot_if_due(journal, engine);
        }
        if self.machine.is_dead() {
            self.crash(world, "while it truncates its journal");
            return;
        }
        self.running = Some(running);
        self.dispatch(world, &turn.effects);
        self.finish(world, plans, &turn.replies, turn.now);
        if wrote {
            self.compare(world);
        }
        self.write_snapshots(world);
        self.plan(world, turn.next, broken);
    }

    /// The time on its clock. Planted bug: the clock stops at the upload deadline.
    fn now(&self, world: &World, running: &Running, waiting: &[Waiting]) -> Timestamp {
        let now = world.clock(ME);
        let late = |waiting: &Waiting| matches!(waiting, Waiting::Ask { ask: Ask::Upload(..), .. });
        if world.bug != Some(Bug::LateUpdateAccepted) {
            return now;
        }
        let tasks = running.core.engine().state().tasks.values();
        let open = tasks.filter(|task| task.phase() == TaskPhase::Revealing);
        let by = open.filter_map(|task| task.running()).map(|round| round.offer.reveal_by).min();
        match by {
            Some(by) if now > by && (now.ms_since(by) < STILL_MS || waiting.iter().any(late)) => by,
            _ => now,
        }
    }

    /// Replay of all durable records must give the state in memory.
    fn compare(&self, world: &mut World) {
        let Some(running) = &self.running else { return };
        match running.core.replay_durable() {
            Ok(engine) if engine.state() == running.core.engine().state() => {}
            Ok(_) => world.auditor.found(
                "replay of the journal equals the live state",
                format!("after {} records", running.core.journal().records()),
            ),
            Err(error) => world.auditor.found("the journal can be read", error.to_string()),
        }
    }

    fn write_snapshots(&mut self, world: &mut World) {
        let Some(running) = &self.running else { return };
        running.writing.drain(&self.machine, self.owner);
        if self.machine.is_dead() {
            self.crash(world, "while it writes a snapshot");
        }
    }

    /// Schedules the next batch.
    fn plan(&mut self, world: &mut World, next: NextStep, broken: bool) {
        let Some(running) = &self.running else { return };
        self.stuck = if next == NextStep::RetryLater { self.stuck + 1 } else { 0 };
        if next == NextStep::Stop || broken || self.stuck > STUCK_MAX {
            // Only a restart helps; the operator restarts the process.
            self.stuck = 0;
            self.crash_how(world, "because its journal refuses writes", false);
            return;
        }
        let now = world.clock(ME);
        let deadline = running.core.engine().next_deadline();
        let left = deadline.map_or(SLEEP_MAX, |at| at.ms_since(now)).min(SLEEP_MAX);
        let stands_still = world.bug == Some(Bug::LateUpdateAccepted) && left == 0;
        let pause = match next {
            NextStep::RetryLater => left.max(STUCK_MS),
            _ if stands_still => STILL_MS,
            _ => left,
        };
        self.nudge(world, pause);
    }

    fn dispatch(&mut self, world: &mut World, effects: &[Effect]) {
        for effect in effects {
            let Some(running) = &mut self.running else { return };
            if world.bug == Some(Bug::NeverCloses) && matches!(effect, Effect::CloseTask { .. }) {
                continue;
            }
            let Some(mut job) = EffectJob::from_effect(running.core.engine(), *effect) else {
                continue;
            };
            if world.bug == Some(Bug::PayoutRounding) {
                answers::round_settlement_up(running.core.engine(), &mut job);
            }
            let slot = self.slots;
            self.slots += 1;
            running.jobs.insert(slot, Slot::new(job));
            let pause = 1 + world.some(120);
            world.after(pause, What::Job { life: self.life, slot });
        }
    }

    /// Sends the responses, once the batch is durable.
    fn finish(
        &mut self,
        world: &mut World,
        plans: Vec<Plan>,
        answers: &[Result<WriteAck, Rejection>],
        now: Timestamp,
    ) {
        for plan in plans {
            match plan {
                Plan::Refuse { from, id, rejection } => {
                    self.reply(world, from, id, None, Reply::Refused(rejection));
                }
                Plan::Read { from, id, ask } => {
                    let reply = self.answer(world, from, &ask, now);
                    self.reply(world, from, id, Some(&ask), reply);
                }
                Plan::Write { from, id, ask, at } => {
                    let became = answers.get(at).cloned();
                    let reply = match became {
                        Some(Ok(_)) => self.answer(world, from, &ask, now),
                        Some(Err(rejection)) => self
                            .planted_receipt(world, &ask, &rejection, now)
                            .unwrap_or(Reply::Refused(rejection)),
                        None => continue,
                    };
                    self.reply(world, from, id, Some(&ask), reply);
                }
                Plan::Told { slot, asked, at } => {
                    if let Some(became) = answers.get(at) {
                        self.told(world, slot, &asked, became);
                    }
                }
            }
        }
    }

    /// The report and offer of every round, as the coordinator discloses them. A round that cannot
    /// be read is lost.
    #[must_use]
    pub(super) fn all_rounds(&self, world: &mut World) -> Vec<(Report, Offer)> {
        let Some(core) = self.core() else { return Vec::new() };
        let (read, lost) = answers::all_rounds(core.engine(), &self.machine, world);
        for what in lost {
            world.auditor.found("every round can be read", what);
        }
        read
    }

    /// Final check: replay of all records from the first one, without snapshots, must give the
    /// state in memory.
    pub(super) fn replay_whole(&self, world: &mut World) {
        let Some(core) = self.core() else {
            world.auditor.found("the coordinator runs after healing", "it is not running");
            return;
        };
        let (market, engine) = (world.cast.spec.market, core.engine());
        let read = snapshotter::with_replay_target(market, COORDINATOR, |fold| {
            recovery::recover_all(&self.machine, self.owner, fold, &mut |_, _| {})
        });
        match read {
            Ok(read) if read.state.state() == engine.state() => {}
            Ok(_) => world
                .auditor
                .found("replay of the journal equals the live state", "from its first record"),
            Err(error) => world.auditor.found("the journal can be read", error.to_string()),
        }
    }

    fn reply(&self, world: &mut World, to: Node, id: u64, ask: Option<&Ask>, reply: Reply) {
        if let Some(ask) = ask {
            world.auditor.replied(to, ask, &reply);
        }
        world.send(ME, to, id, &Body::Reply(reply));
    }
}

/// Whether a retry can succeed.
fn is_passing(error: &florin_store::OpenError) -> bool {
    matches!(error, florin_store::OpenError::Unusable { .. })
}

/// Writes to the journal, modified by the planted bug.
fn append(
    journal: &mut Journal,
    records: &[JournalEntry],
    bug: Option<Bug>,
    fate: &mut rand_chacha::ChaCha8Rng,
) -> Result<(), AppendError> {
    match bug {
        Some(Bug::LostJournalWrite) if florin_sim::draw::below(fate, 50) == 0 => Ok(()),
        Some(Bug::EnrolmentForgotten) => {
            let is_other = |record: &&JournalEntry| !matches!(record.event, Event::Enrolled { .. });
            let others: Vec<JournalEntry> = records.iter().filter(is_other).cloned().collect();
            if others.is_empty() { Ok(()) } else { journal.append(&others) }
        }
        _ => journal.append(records),
    }
}
