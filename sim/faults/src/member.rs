//! A participant: the production decision function in a small process, which has the same
//! persistent state as the production program and crashes at random.

mod payments;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use florin_learning::{Dataset, Reference, Trainer};
use florin_participant::state_machine::{self, AgentStep, ParticipantState, RoundStage};
use florin_protocol::{
    Address, Commit, Digest, ErrorCode, Offer, Report, Role, RoundNumber, TaskView, UpdateHeader,
    UpdateReceipt, blob_digest,
};
use florin_work::{decode_model, encode_update, model_spec, training};

use super::client::RequestChannel;
use super::context::{SimContext, SimEvent};
use super::message::{CoordinatorReply, CoordinatorRequest};
use super::network::ProcessId;
use super::setup::account;

/// Interval between two checks of the task, in milliseconds.
const POLL_MS: u64 = 250;
/// Delay before a ledger request is retried.
const LEDGER_MS: u64 = 150;
/// Maximum duration of training.
const TRAINING_MS: u64 = 1_500;

/// The current activity.
#[derive(Clone, Debug, PartialEq, Eq)]
enum MemberActivity {
    /// Requests the state of the task.
    CheckingTask,
    /// Registers, bonds and enrols for the first time since its start.
    Registering,
    Bonding,
    Enrolling(u32),
    /// Enrols again.
    ReEnrolling(u32),
    ReadingReport(RoundNumber),
    FetchingModel,
    Training {
        until: u64,
    },
    Committing,
    Uploading,
    Claiming {
        finalised: u32,
    },
    Finishing,
    WithdrawingBond,
    Done,
}

/// Persistent state. Every file is replaced as a whole and synced, as in the production program: a
/// write is atomic.
#[derive(Clone, Debug, Default)]
struct PersistedState {
    updates: BTreeMap<u32, Vec<u8>>,
    /// The base models of those updates that were trained in an earlier round.
    late_bases: BTreeMap<u32, Digest>,
    /// The last update that no round received, and the model that it was trained from.
    unsent: Option<(Digest, Vec<u8>)>,
    signed: BTreeMap<u32, UpdateHeader>,
    receipts: BTreeMap<u32, UpdateReceipt>,
    reports: BTreeMap<u32, Report>,
}

impl PersistedState {
    /// Makes an update that no round received that of the view's round, if it may still count. All
    /// of it is one write.
    fn take_over_unsent(&mut self, view: &TaskView) {
        let Some(offer) = view.offer.as_ref().map(|offer| &offer.body) else { return };
        let round = view.round.0;
        if self.updates.contains_key(&round) || self.signed.contains_key(&round) {
            return;
        }
        let Some((base, bytes)) = self.unsent.take() else { return };
        let rule = view.spec.rounds.staleness;
        let earlier = self.reports.values().rev().map(|report| report.base_model);
        if rule.accepts(base, offer.base_model, earlier) {
            self.updates.insert(round, bytes);
            self.late_bases.insert(round, base);
        }
    }
}

/// The state that a crash destroys.
#[derive(Clone, Debug)]
struct MemberMemory {
    activity: MemberActivity,
    enrolled_at: Option<u32>,
    drawn_at: u32,
    read: u32,
    round: u32,
    stage: RoundStage,
    view: Option<Box<TaskView>>,
    base: Option<Vec<u8>>,
}

impl Default for MemberMemory {
    fn default() -> Self {
        Self {
            activity: MemberActivity::CheckingTask,
            enrolled_at: None,
            drawn_at: 0,
            read: 0,
            round: 0,
            stage: RoundStage::NotStarted,
            view: None,
            base: None,
        }
    }
}

/// One participant.
#[derive(Clone, Debug)]
pub(super) struct Member {
    index: usize,
    account: Address,
    rows: Dataset,
    persisted: PersistedState,
    memory: MemberMemory,
    channel: RequestChannel,
    restarts: u64,
    is_up: bool,
    finished: bool,
}

impl Member {
    /// A participant before its first step.
    #[must_use]
    pub(super) fn new(index: usize, rows: Dataset) -> Self {
        Self {
            index,
            account: account(index),
            rows,
            persisted: PersistedState::default(),
            memory: MemberMemory::default(),
            channel: RequestChannel::new(ProcessId::Member(index)),
            restarts: 0,
            is_up: true,
            finished: false,
        }
    }

    const fn process(&self) -> ProcessId {
        ProcessId::Member(self.index)
    }

    /// Whether its task is over and its pay and bond are withdrawn.
    #[must_use]
    pub(super) const fn is_finished(&self) -> bool {
        self.finished
    }

    /// Schedules the first step.
    pub(super) fn schedule_first_step(&mut self, world: &mut SimContext) {
        let pause = world.random_ms(800);
        self.channel.set_timer(world, pause);
    }

    /// Crashes with the configured probability; schedules a restart.
    fn maybe_crash(&mut self, world: &mut SimContext) -> bool {
        let crashes = world.faults.crashes;
        if !world.random_bool(crashes) {
            return false;
        }
        world.log(self.process(), format_args!("crashes while {:?}", self.memory.activity));
        self.memory = MemberMemory::default();
        self.channel.reset();
        self.is_up = false;
        self.restarts += 1;
        let pause = 100 + world.random_ms(5_000);
        world.schedule(pause, SimEvent::Restart { node: self.process(), life: self.restarts });
        true
    }

    /// Restarts the process with its persistent state only.
    pub(super) fn start(&mut self, world: &mut SimContext, life: u64) {
        if life == self.restarts && !self.is_up {
            self.is_up = true;
            self.channel.set_timer(world, 1);
        }
    }

    /// Handles a timer.
    pub(super) fn on_timer(&mut self, world: &mut SimContext, ticket: u64) {
        if !self.is_up || !self.channel.is_current_timer(ticket) || self.channel.retry_if_due(world)
        {
            return;
        }
        match self.memory.activity.clone() {
            MemberActivity::CheckingTask => self.channel.send(world, CoordinatorRequest::View),
            MemberActivity::Bonding => self.bond(world),
            MemberActivity::Training { until } if world.now >= until => self.finish_training(world),
            MemberActivity::Training { until } => {
                self.channel.set_timer(world, until.saturating_sub(world.now))
            }
            MemberActivity::WithdrawingBond => self.withdraw_bond(world),
            MemberActivity::Finishing => {
                self.channel.send(world, CoordinatorRequest::Proof(self.account))
            }
            MemberActivity::Done => {}
            // The response to its request only requires another check of the task.
            _ => self.check_again(world, 1),
        }
    }

    fn check_again(&mut self, world: &mut SimContext, pause: u64) {
        self.memory.activity = MemberActivity::CheckingTask;
        self.channel.set_timer(world, pause);
    }

    /// Handles a response.
    pub(super) fn on_reply(&mut self, world: &mut SimContext, id: u64, reply: CoordinatorReply) {
        if !self.is_up {
            return;
        }
        let Some((ask, reply)) = self.channel.take_request(id, reply) else { return };
        if self.maybe_crash(world) {
            return;
        }
        match (ask, reply) {
            (CoordinatorRequest::View, CoordinatorReply::View(view)) => self.decide(world, view),
            (CoordinatorRequest::Register(_), CoordinatorReply::Done) => self.bond(world),
            (CoordinatorRequest::Enrol, reply) => self.on_enrolled(world, &reply),
            (CoordinatorRequest::Report(round), CoordinatorReply::Report(report, _)) => {
                self.store_report(world, round, *report)
            }
            (CoordinatorRequest::Blob(_), CoordinatorReply::Bytes(base)) => {
                self.memory.base = Some(base);
                let takes = world.random_ms(TRAINING_MS);
                self.memory.activity = MemberActivity::Training { until: world.now + takes };
                self.channel.set_timer(world, takes);
            }
            (CoordinatorRequest::Commit(_), CoordinatorReply::Done) => {
                self.memory.stage = RoundStage::Committed;
                self.check_again(world, 1);
            }
            (CoordinatorRequest::Upload(header, _), CoordinatorReply::Receipt(receipt)) => {
                self.persisted.receipts.insert(header.scope.round.0, receipt);
                self.memory.stage = RoundStage::ReceiptStored;
                self.check_again(world, 1);
            }
            (CoordinatorRequest::Proof(_), reply) => self.on_proof(world, reply),
            (ask, CoordinatorReply::Refused(rejection)) => {
                self.handle_refusal(world, &ask, rejection.code)
            }
            _ => self.check_again(world, POLL_MS),
        }
    }

    /// Handles a refusal as the production program does: the participant gives up the round or
    /// retries later.
    fn handle_refusal(
        &mut self,
        world: &mut SimContext,
        ask: &CoordinatorRequest,
        code: ErrorCode,
    ) {
        world.log(self.process(), format_args!("{} is refused: {code}", ask.name()));
        if code == ErrorCode::UnknownTask && world.is_closed() {
            // The task was never published and never will be.
            return self.withdraw_bond(world);
        }
        let early = matches!(ask, CoordinatorRequest::Upload(..)) && code == ErrorCode::TooEarly;
        if matches!(ask, CoordinatorRequest::Commit(_) | CoordinatorRequest::Upload(..)) && !early {
            self.memory.stage = RoundStage::Failed;
        }
        self.check_again(world, POLL_MS);
    }

    fn on_enrolled(&mut self, world: &mut SimContext, reply: &CoordinatorReply) {
        match (&self.memory.activity, reply) {
            (MemberActivity::Enrolling(reported), CoordinatorReply::Done)
            | (MemberActivity::ReEnrolling(reported), _) => {
                self.memory.enrolled_at = Some(*reported);
                self.check_again(world, 1);
            }
            // The coordinator sees a bond a little later than the ledger.
            _ => self.check_again(world, POLL_MS),
        }
    }

    /// Decides on the round in the view with the production function, and executes the decision.
    fn decide(&mut self, world: &mut SimContext, view: Box<TaskView>) {
        self.restore_round(&view);
        let memory = &self.memory;
        let own = ParticipantState {
            reported_at_enrolment: memory.enrolled_at,
            finalised_at_claim: memory.drawn_at,
            reports_read: memory.read,
            stage: memory.stage,
        };
        let step = state_machine::next_step(&view, self.account, own);
        let reported = view.reported;
        let offer = view.offer.as_ref().map(|offer| offer.body.clone());
        let phase = view.phase;
        self.memory.view = Some(view);
        if !matches!(step, AgentStep::Wait | AgentStep::ReadReport(_)) {
            world.log(self.process(), format_args!("{step:?} while {phase:?}"));
        }
        match (step, offer) {
            (AgentStep::ReadReport(round), _) => {
                match self.persisted.reports.get(&round.0).cloned() {
                    Some(report) => self.store_report(world, round, report),
                    None => self.request(
                        world,
                        MemberActivity::ReadingReport(round),
                        CoordinatorRequest::Report(round),
                    ),
                }
            }
            (AgentStep::Join, _) => {
                self.request(
                    world,
                    MemberActivity::Registering,
                    CoordinatorRequest::Register(Role::Participant),
                );
            }
            (AgentStep::EnrolAgain, _) => self.request(
                world,
                MemberActivity::ReEnrolling(reported),
                CoordinatorRequest::Enrol,
            ),
            (AgentStep::Claim, _) => {
                let doing = MemberActivity::Claiming { finalised: self.finalised() };
                self.request(world, doing, CoordinatorRequest::Proof(self.account));
            }
            (AgentStep::Train, Some(offer)) => {
                self.request(
                    world,
                    MemberActivity::FetchingModel,
                    CoordinatorRequest::Blob(offer.base_model),
                );
            }
            (AgentStep::Commit, Some(offer)) => self.commit(world, &offer),
            (AgentStep::Reveal, _) => self.upload(world),
            (AgentStep::Finish, _) => {
                self.request(
                    world,
                    MemberActivity::Finishing,
                    CoordinatorRequest::Proof(self.account),
                );
            }
            _ => self.check_again(world, POLL_MS),
        }
    }

    fn request(&mut self, world: &mut SimContext, doing: MemberActivity, ask: CoordinatorRequest) {
        self.memory.activity = doing;
        self.channel.send(world, ask);
    }

    fn finalised(&self) -> u32 {
        self.memory.view.as_ref().map_or(0, |view| view.finalised)
    }

    /// Restores the progress of a round from the persistent state after a restart.
    fn restore_round(&mut self, view: &TaskView) {
        let memory = &mut self.memory;
        if view.offer.is_none() || memory.read + 1 != view.round.0 || memory.round == view.round.0 {
            return;
        }
        let round = view.round.0;
        memory.round = round;
        self.persisted.take_over_unsent(view);
        let memory = &mut self.memory;
        memory.stage = if self.persisted.receipts.contains_key(&round) {
            RoundStage::ReceiptStored
        } else if self.persisted.signed.contains_key(&round) {
            RoundStage::Signed
        } else if self.persisted.updates.contains_key(&round) {
            RoundStage::Trained
        } else {
            RoundStage::NotStarted
        };
    }

    fn store_report(&mut self, world: &mut SimContext, round: RoundNumber, report: Report) {
        world.auditor.member_read(&report);
        if let Some(bytes) = self.persisted.updates.remove(&round.0)
            && !self.persisted.signed.contains_key(&round.0)
        {
            let base = self.persisted.late_bases.get(&round.0).copied();
            self.persisted.unsent = Some((base.unwrap_or(report.base_model), bytes));
        }
        self.persisted.reports.insert(round.0, report);
        self.memory.read = round.0;
        self.check_again(world, 1);
    }

    fn offer(&self) -> Option<Offer> {
        let view = self.memory.view.as_ref()?;
        view.offer.as_ref().map(|offer| offer.body.clone())
    }

    /// Really trains on its own rows and stores the update.
    fn finish_training(&mut self, world: &mut SimContext) {
        let (Some(offer), Some(base)) = (self.offer(), self.memory.base.take()) else {
            return self.check_again(world, 1);
        };
        let Some(bytes) = self.train_update(world, &offer, &base) else {
            self.memory.stage = RoundStage::Failed;
            return self.check_again(world, POLL_MS);
        };
        self.persisted.updates.insert(offer.scope.round.0, bytes);
        self.persisted.late_bases.remove(&offer.scope.round.0);
        self.memory.stage = RoundStage::Trained;
        self.check_again(world, 1);
    }

    fn train_update(&self, world: &SimContext, offer: &Offer, base: &[u8]) -> Option<Vec<u8>> {
        let spec = &world.setup.spec;
        let start = decode_model(spec, base).ok()?;
        let (model, how) = (model_spec(&spec.model), training(spec, offer.scope.round));
        let seed = spec.salt ^ (u64::from(offer.scope.round.0) << 32) ^ self.index as u64;
        let go_on = &mut |_| ControlFlow::Continue(());
        let trained = Reference::new().train(&model, &start, &self.rows, &how, seed, go_on).ok()?;
        let delta = trained.params.iter().zip(&start).map(|(new, old)| new - old).collect();
        encode_update(spec, delta, None, seed).ok().map(|encoded| encoded.bytes)
    }

    /// Stores the signed header before sending the commit.
    fn commit(&mut self, world: &mut SimContext, offer: &Offer) {
        let round = offer.scope.round.0;
        let Some(bytes) = self.persisted.updates.get(&round) else {
            self.memory.stage = RoundStage::NotStarted;
            return self.check_again(world, 1);
        };
        let update = blob_digest(bytes);
        let header = UpdateHeader {
            scope: offer.scope,
            sender: self.account,
            offer: florin_protocol::Canonical::digest(offer),
            base_model: self.persisted.late_bases.get(&round).copied().unwrap_or(offer.base_model),
            rows: self.rows.rows() as u64,
            update,
            bytes: bytes.len() as u64,
            salt: blob_digest(&[self.account.0.as_slice(), &update.0].concat()),
            expires: offer.reveal_by,
        };
        let header = self.persisted.signed.entry(round).or_insert(header).clone();
        self.memory.stage = RoundStage::Signed;
        if self.maybe_crash(world) {
            return;
        }
        let commit = Commit {
            scope: header.scope,
            sender: header.sender,
            offer: header.offer,
            commitment: header.commitment(),
        };
        self.request(world, MemberActivity::Committing, CoordinatorRequest::Commit(commit));
    }

    fn upload(&mut self, world: &mut SimContext) {
        let round = self.memory.round;
        let (header, bytes) =
            (self.persisted.signed.get(&round), self.persisted.updates.get(&round));
        let (Some(header), Some(bytes)) = (header.cloned(), bytes.cloned()) else {
            self.memory.stage = RoundStage::Failed;
            return self.check_again(world, POLL_MS);
        };
        self.request(
            world,
            MemberActivity::Uploading,
            CoordinatorRequest::Upload(Box::new(header), bytes),
        );
    }
}
