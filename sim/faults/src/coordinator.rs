//! The coordinator's process: the production commit batches on a failing disk, and the production
//! jobs around them. This module simulates the work of the server and the threads: it maps requests
//! to events and retries jobs.

mod jobs;
mod past_rounds;
mod server;

use std::collections::BTreeMap;
use std::sync::Arc;

use florin_coordinator::config::JournalSettings as Settings;
use florin_coordinator::host::snapshotter::{self, SnapshotWriter, Snapshotter};
use florin_coordinator::host::{EffectJob, EngineRequest, JournaledEngine, NextStep, WriteAck};
use florin_coordinator::identity::Identity;
use florin_engine::{Effect, Event};
use florin_protocol::{Digest, Offer, Rejection, Report, RoundScope, TaskPhase, Timestamp};
use florin_store::{AppendError, IDENTITY_FILE, Journal, JournalEntry, Volume, recovery};

use super::bugs::Bug;
use super::context::{SimContext, SimEvent};
use super::disk::SimDisk;
use super::message::{Body, CoordinatorReply, CoordinatorRequest};
use super::network::ProcessId;
use super::setup::COORDINATOR;
use florin_sim::random::stream;
use jobs::JobSlot;

const ME: ProcessId = ProcessId::Coordinator;
/// Number of events between two snapshots.
const SNAPSHOT_EVENTS: u64 = 24;
/// Maximum time between two checks of the clock, in milliseconds.
const SLEEP_MAX: u64 = 60_000;
/// Delay before due work is retried while the journal refuses writes.
const REFUSED_RETRY_MS: u64 = 1_000;
/// Number of batches with refused journal writes after which the operator restarts the process: the
/// journal can be broken for good.
const REFUSED_BATCHES_MAX: u32 = 8;
/// Duration for which the clock of a planted bug stops at a deadline.
const STILL_MS: u64 = 2_500;

/// Input for the next batch.
#[derive(Debug)]
enum BatchInput {
    /// A request.
    Request { from: ProcessId, id: u64, ask: CoordinatorRequest },
    /// The result of a job.
    JobResult { slot: u64, asked: EngineRequest },
}

/// The response to an input of a batch.
#[derive(Debug)]
enum PendingReply {
    /// A read: answered after the batch.
    Read { from: ProcessId, id: u64, ask: CoordinatorRequest },
    /// A write: the answer depends on the outcome of its event.
    Write { from: ProcessId, id: u64, ask: CoordinatorRequest, at: usize },
    /// A refusal before the batch.
    Refuse { from: ProcessId, id: u64, rejection: Rejection },
    /// A job receives the outcome of its event.
    JobOutcome { slot: u64, asked: EngineRequest, at: usize },
}

#[derive(Debug)]
struct RunningProcess {
    core: JournaledEngine,
    snapshotter: Snapshotter,
    snapshot_writer: SnapshotWriter,
    jobs: BTreeMap<u64, JobSlot>,
}

/// The simulated coordinator.
#[derive(Debug)]
pub(super) struct SimCoordinator {
    disk: SimDisk,
    owner: Digest,
    running: Option<RunningProcess>,
    /// Number of restarts of the process.
    restarts: u64,
    waiting: Vec<BatchInput>,
    /// Time of the next batch.
    next_batch_at: Option<u64>,
    next_slot: u64,
    /// Number of consecutive batches in which the journal refused writes.
    refused_batches: u32,
    /// Number of crashes.
    pub crashes: u64,
}

impl SimCoordinator {
    /// A machine with an empty disk.
    #[must_use]
    pub(super) fn new(seed: u64, world: &SimContext) -> Self {
        let disk = SimDisk::new(stream(seed, "disk", [0, 0]));
        if world.bug == Some(Bug::UnsyncedReceipt) {
            disk.set_ignored_syncs(500);
        }
        let owner = Identity { market: world.setup.spec.market, coordinator: COORDINATOR }.owner();
        Self {
            disk,
            owner,
            running: None,
            restarts: 0,
            waiting: Vec::new(),
            next_batch_at: None,
            next_slot: 0,
            refused_batches: 0,
            crashes: 0,
        }
    }

    /// Its disk.
    #[must_use]
    pub(super) const fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// The core, while the process runs.
    #[must_use]
    pub(super) fn core(&self) -> Option<&JournaledEngine> {
        self.running.as_ref().map(|running| &running.core)
    }

    /// Starts the process: recovers from journal and snapshots, and restarts the outstanding jobs.
    pub(super) fn start(&mut self, world: &mut SimContext, life: u64) {
        if life != self.restarts || self.running.is_some() {
            return;
        }
        let volume: Arc<dyn Volume> = Arc::new(self.disk.clone());
        let opened =
            JournaledEngine::open(&volume, self.owner, world.setup.spec.market, COORDINATOR);
        let core = match opened {
            Ok(core) => core,
            Err(error) => {
                world.log(ME, format_args!("cannot start: {error}"));
                if !self.disk.is_crashed() && !is_transient(&error) {
                    world.auditor.report_violation("the journal can be opened", error.to_string());
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
        world.log(ME, format_args!("starts with {} records", core.journal().records()));
        let (market, task) = (world.setup.spec.market, world.setup.spec.id());
        let has = |round, sender, update| {
            let scope = RoundScope { market, task, round };
            let found = past_rounds::receipt((core.engine(), &self.disk), scope, sender, update);
            found.is_ok_and(|receipt| receipt.is_some())
        };
        world.auditor.check_restart(state, &has);
        let settings = Settings { snapshot_events: SNAPSHOT_EVENTS, ..Settings::default() };
        let (keeper, writing) = Snapshotter::new(settings);
        let outstanding = core.engine().pending_effects();
        self.running = Some(RunningProcess {
            core,
            snapshotter: keeper,
            snapshot_writer: writing,
            jobs: BTreeMap::new(),
        });
        self.dispatch(world, &outstanding);
        self.schedule_batch(world, 0);
    }

    /// Writes the identity file of the data folder, once a journal exists.
    fn identify(&self) -> std::io::Result<()> {
        if self.disk.open(IDENTITY_FILE).is_ok() {
            return Ok(());
        }
        let mut file = self.disk.append_to(IDENTITY_FILE)?;
        file.append(&self.owner.0)?;
        file.sync()?;
        self.disk.sync()
    }

    /// Ends the process, with or without a power failure of the machine, and schedules a restart.
    pub(super) fn crash(&mut self, world: &mut SimContext, when: &str) {
        let power = world.faults.power_failures;
        let power = world.random_bool(power);
        self.crash_with(world, when, power);
    }

    fn crash_with(&mut self, world: &mut SimContext, when: &str, power: bool) {
        let how = if power { "the power fails" } else { "the process is killed" };
        world.log(ME, format_args!("{how} {when}"));
        if power {
            self.disk.power_fails();
        } else {
            self.disk.end_process();
        }
        self.running = None;
        self.waiting.clear();
        self.next_batch_at = None;
        self.restarts += 1;
        self.crashes += 1;
        let pause = 50 + world.random_ms(3_000);
        world.schedule(pause, SimEvent::Restart { node: ME, life: self.restarts });
    }

    /// Handles a message.
    pub(super) fn on_request(
        &mut self,
        world: &mut SimContext,
        from: ProcessId,
        id: u64,
        ask: CoordinatorRequest,
    ) {
        if self.running.is_none() {
            return;
        }
        self.waiting.push(BatchInput::Request { from, id, ask });
        let pause = world.random_ms(4);
        self.schedule_batch(world, pause);
    }

    /// Schedules a batch.
    fn schedule_batch(&mut self, world: &mut SimContext, pause: u64) {
        let at = world.now + pause;
        if self.next_batch_at.is_none_or(|planned| at < planned) {
            self.next_batch_at = Some(at);
            world.schedule(pause, SimEvent::CommitBatch { life: self.restarts });
        }
    }

    /// Commits a batch, if one is scheduled for now.
    pub(super) fn commit_batch(&mut self, world: &mut SimContext, life: u64) {
        if life != self.restarts || self.next_batch_at != Some(world.now) {
            return;
        }
        self.next_batch_at = None;
        let Some(mut running) = self.running.take() else { return };
        let waiting = std::mem::take(&mut self.waiting);
        let now = self.now(world, &running, &waiting);
        let (asked, plans) = self.prepare(world, &running, waiting);
        if self.disk.is_crashed() {
            self.crash(world, "while it stores a blob");
            return;
        }
        let (mut wrote, mut broken) = (false, false);
        let (bug, fate) = (world.bug, &mut world.process_rng);
        let turn = running.core.commit_batch(asked, now, &mut |journal, records| {
            wrote = true;
            let appended = append(journal, records, bug, fate);
            broken |= matches!(appended, Err(AppendError::Broken(_)));
            appended
        });
        if self.disk.is_crashed() {
            self.crash(world, "while it writes its journal");
            return;
        }
        if turn.next == NextStep::Continue {
            let (engine, journal) = running.core.parts();
            running.snapshotter.snapshot_if_due(journal, engine);
        }
        if self.disk.is_crashed() {
            self.crash(world, "while it truncates its journal");
            return;
        }
        self.running = Some(running);
        self.dispatch(world, &turn.effects);
        self.send_replies(world, plans, &turn.replies, turn.now);
        if wrote {
            self.check_replay(world);
        }
        self.write_snapshots(world);
        self.schedule_next(world, turn.next, broken);
    }

    /// The time on its clock. Planted bug: the clock stops at the upload deadline.
    fn now(
        &self,
        world: &SimContext,
        running: &RunningProcess,
        waiting: &[BatchInput],
    ) -> Timestamp {
        let now = world.clock(ME);
        let late = |waiting: &BatchInput| {
            matches!(waiting, BatchInput::Request { ask: CoordinatorRequest::Upload(..), .. })
        };
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
    fn check_replay(&self, world: &mut SimContext) {
        let Some(running) = &self.running else { return };
        match running.core.replay_durable() {
            Ok(engine) if engine.state() == running.core.engine().state() => {}
            Ok(_) => world.auditor.report_violation(
                "replay of the journal equals the live state",
                format!("after {} records", running.core.journal().records()),
            ),
            Err(error) => {
                world.auditor.report_violation("the journal can be read", error.to_string())
            }
        }
    }

    fn write_snapshots(&mut self, world: &mut SimContext) {
        let Some(running) = &self.running else { return };
        running.snapshot_writer.drain(&self.disk, self.owner);
        if self.disk.is_crashed() {
            self.crash(world, "while it writes a snapshot");
        }
    }

    /// Schedules the next batch.
    fn schedule_next(&mut self, world: &mut SimContext, next: NextStep, broken: bool) {
        let Some(running) = &self.running else { return };
        self.refused_batches =
            if next == NextStep::RetryLater { self.refused_batches + 1 } else { 0 };
        if next == NextStep::Stop || broken || self.refused_batches > REFUSED_BATCHES_MAX {
            // Only a restart helps; the operator restarts the process.
            self.refused_batches = 0;
            self.crash_with(world, "because its journal refuses writes", false);
            return;
        }
        let now = world.clock(ME);
        let deadline = running.core.engine().next_deadline();
        let left = deadline.map_or(SLEEP_MAX, |at| at.ms_since(now)).min(SLEEP_MAX);
        let stands_still = world.bug == Some(Bug::LateUpdateAccepted) && left == 0;
        let pause = match next {
            NextStep::RetryLater => left.max(REFUSED_RETRY_MS),
            _ if stands_still => STILL_MS,
            _ => left,
        };
        self.schedule_batch(world, pause);
    }

    fn dispatch(&mut self, world: &mut SimContext, effects: &[Effect]) {
        for effect in effects {
            let Some(running) = &mut self.running else { return };
            if world.bug == Some(Bug::TaskNeverClosed) && matches!(effect, Effect::CloseTask { .. })
            {
                continue;
            }
            let Some(mut job) = EffectJob::from_effect(running.core.engine(), *effect) else {
                continue;
            };
            if world.bug == Some(Bug::PayoutRounding) {
                server::plant_rounded_settlement(running.core.engine(), &mut job);
            }
            let slot = self.next_slot;
            self.next_slot += 1;
            running.jobs.insert(slot, JobSlot::new(job));
            let pause = 1 + world.random_ms(120);
            world.schedule(pause, SimEvent::Job { life: self.restarts, slot });
        }
    }

    /// Sends the responses, once the batch is durable.
    fn send_replies(
        &mut self,
        world: &mut SimContext,
        plans: Vec<PendingReply>,
        answers: &[Result<WriteAck, Rejection>],
        now: Timestamp,
    ) {
        for plan in plans {
            match plan {
                PendingReply::Refuse { from, id, rejection } => {
                    self.reply(world, from, id, None, CoordinatorReply::Refused(rejection));
                }
                PendingReply::Read { from, id, ask } => {
                    let reply = self.answer(world, from, &ask, now);
                    self.reply(world, from, id, Some(&ask), reply);
                }
                PendingReply::Write { from, id, ask, at } => {
                    let became = answers.get(at).cloned();
                    let reply = match became {
                        Some(Ok(_)) => self.answer(world, from, &ask, now),
                        Some(Err(rejection)) => self
                            .planted_receipt(world, &ask, &rejection, now)
                            .unwrap_or(CoordinatorReply::Refused(rejection)),
                        None => continue,
                    };
                    self.reply(world, from, id, Some(&ask), reply);
                }
                PendingReply::JobOutcome { slot, asked, at } => {
                    if let Some(became) = answers.get(at) {
                        self.on_job_outcome(world, slot, &asked, became);
                    }
                }
            }
        }
    }

    /// The report and offer of every round, as the coordinator discloses them. A round that cannot
    /// be read is lost.
    #[must_use]
    pub(super) fn all_rounds(&self, world: &mut SimContext) -> Vec<(Report, Offer)> {
        let Some(core) = self.core() else { return Vec::new() };
        let (read, lost) = server::all_rounds(core.engine(), &self.disk, world);
        for what in lost {
            world.auditor.report_violation("every round can be read", what);
        }
        read
    }

    /// Final check: replay of all records from the first one, without snapshots, must give the
    /// state in memory.
    pub(super) fn check_full_replay(&self, world: &mut SimContext) {
        let Some(core) = self.core() else {
            world
                .auditor
                .report_violation("the coordinator runs after healing", "it is not running");
            return;
        };
        let (market, engine) = (world.setup.spec.market, core.engine());
        let read = snapshotter::with_replay_target(market, COORDINATOR, |fold| {
            recovery::recover_all(&self.disk, self.owner, fold, &mut |_, _| {})
        });
        match read {
            Ok(read) if read.state.state() == engine.state() => {}
            Ok(_) => world.auditor.report_violation(
                "replay of the journal equals the live state",
                "from its first record",
            ),
            Err(error) => {
                world.auditor.report_violation("the journal can be read", error.to_string())
            }
        }
    }

    fn reply(
        &self,
        world: &mut SimContext,
        to: ProcessId,
        id: u64,
        ask: Option<&CoordinatorRequest>,
        reply: CoordinatorReply,
    ) {
        if let Some(ask) = ask {
            world.auditor.observe_reply(to, ask, &reply);
        }
        world.send(ME, to, id, &Body::Reply(reply));
    }
}

/// Whether a retry can succeed.
fn is_transient(error: &florin_store::OpenError) -> bool {
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
        Some(Bug::LostJournalWrite) if florin_sim::random::uniform_below(fate, 50) == 0 => Ok(()),
        Some(Bug::EnrolmentNotJournaled) => {
            let is_other = |record: &&JournalEntry| !matches!(record.event, Event::Enrolled { .. });
            let others: Vec<JournalEntry> = records.iter().filter(is_other).cloned().collect();
            if others.is_empty() { Ok(()) } else { journal.append(&others) }
        }
        _ => journal.append(records),
    }
}
