//! A participant: the production decision function in a small process, which has the same
//! persistent state as the production program and crashes at random.

mod money;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use florin_learning::{Dataset, Reference, Trainer};
use florin_participant::step::{self, Own, Stage, Step};
use florin_protocol::{
    Address, Commit, ErrorCode, Offer, Report, Role, RoundNumber, TaskView, UpdateHeader,
    UpdateReceipt, blob_digest,
};
use florin_work::{decode_model, encode_update, model_spec, training};

use super::client::Line;
use super::message::{Ask, Reply};
use super::network::Node;
use super::task::account;
use super::world::{What, World};

/// Interval between two checks of the task, in milliseconds.
const POLL_MS: u64 = 250;
/// Delay before a ledger request is retried.
const LEDGER_MS: u64 = 150;
/// Maximum duration of training.
const TRAINING_MS: u64 = 1_500;

/// The current activity.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Doing {
    /// Requests the state of the task.
    Looks,
    /// Registers, bonds and enrols for the first time since its start.
    Registers,
    Bonds,
    Enrols(u32),
    /// Enrols again.
    EnrolsAgain(u32),
    Reads(RoundNumber),
    Fetches,
    Trains {
        until: u64,
    },
    Commits,
    Reveals,
    Draws {
        finalised: u32,
    },
    Finishes,
    HasBondBack,
    IsDone,
}

/// Persistent state. Every file is replaced as a whole and synced, as in the production program: a
/// write is atomic.
#[derive(Clone, Debug, Default)]
struct Kept {
    updates: BTreeMap<u32, Vec<u8>>,
    signed: BTreeMap<u32, UpdateHeader>,
    receipts: BTreeMap<u32, UpdateReceipt>,
    reports: BTreeMap<u32, Report>,
}

/// The state that a crash destroys.
#[derive(Clone, Debug)]
struct Memory {
    doing: Doing,
    enrolled_at: Option<u32>,
    drawn_at: u32,
    read: u32,
    round: u32,
    stage: Stage,
    view: Option<Box<TaskView>>,
    base: Option<Vec<u8>>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            doing: Doing::Looks,
            enrolled_at: None,
            drawn_at: 0,
            read: 0,
            round: 0,
            stage: Stage::Fresh,
            view: None,
            base: None,
        }
    }
}

/// One participant.
#[derive(Clone, Debug)]
pub(super) struct Member {
    number: usize,
    account: Address,
    rows: Dataset,
    kept: Kept,
    memory: Memory,
    line: Line,
    life: u64,
    up: bool,
    finished: bool,
}

impl Member {
    /// A participant before its first step.
    #[must_use]
    pub(super) fn new(number: usize, rows: Dataset) -> Self {
        Self {
            number,
            account: account(number),
            rows,
            kept: Kept::default(),
            memory: Memory::default(),
            line: Line::new(Node::Member(number)),
            life: 0,
            up: true,
            finished: false,
        }
    }

    const fn me(&self) -> Node {
        Node::Member(self.number)
    }

    /// Whether its task is over and its pay and bond are withdrawn.
    #[must_use]
    pub(super) const fn is_finished(&self) -> bool {
        self.finished
    }

    /// Schedules the first step.
    pub(super) fn begin(&mut self, world: &mut World) {
        let pause = world.some(800);
        self.line.wake(world, pause);
    }

    /// Crashes with the configured probability; schedules a restart.
    fn dies(&mut self, world: &mut World) -> bool {
        let crashes = world.weather.crashes;
        if !world.chance(crashes) {
            return false;
        }
        world.tell(self.me(), format_args!("crashes while {:?}", self.memory.doing));
        self.memory = Memory::default();
        self.line.drop_all();
        self.up = false;
        self.life += 1;
        let pause = 100 + world.some(5_000);
        world.after(pause, What::Starts { node: self.me(), life: self.life });
        true
    }

    /// Restarts the process with its persistent state only.
    pub(super) fn start(&mut self, world: &mut World, life: u64) {
        if life == self.life && !self.up {
            self.up = true;
            self.line.wake(world, 1);
        }
    }

    /// Handles a timer.
    pub(super) fn wakes(&mut self, world: &mut World, ticket: u64) {
        if !self.up || !self.line.is_newest(ticket) || self.line.waits(world) {
            return;
        }
        match self.memory.doing.clone() {
            Doing::Looks => self.line.ask(world, Ask::Look),
            Doing::Bonds => self.bond(world),
            Doing::Trains { until } if world.now >= until => self.trained(world),
            Doing::Trains { until } => self.line.wake(world, until.saturating_sub(world.now)),
            Doing::HasBondBack => self.have_bond_back(world),
            Doing::Finishes => self.line.ask(world, Ask::Proof(self.account)),
            Doing::IsDone => {}
            // The response to its request only requires another check of the task.
            _ => self.look_again(world, 1),
        }
    }

    fn look_again(&mut self, world: &mut World, pause: u64) {
        self.memory.doing = Doing::Looks;
        self.line.wake(world, pause);
    }

    /// Handles a response.
    pub(super) fn hear(&mut self, world: &mut World, id: u64, reply: Reply) {
        if !self.up {
            return;
        }
        let Some((ask, reply)) = self.line.answered(id, reply) else { return };
        if self.dies(world) {
            return;
        }
        match (ask, reply) {
            (Ask::Look, Reply::View(view)) => self.decide(world, view),
            (Ask::Register(_), Reply::Done) => self.bond(world),
            (Ask::Enrol, reply) => self.enrolled(world, &reply),
            (Ask::Report(round), Reply::Report(report, _)) => self.read(world, round, *report),
            (Ask::Blob(_), Reply::Bytes(base)) => {
                self.memory.base = Some(base);
                let takes = world.some(TRAINING_MS);
                self.memory.doing = Doing::Trains { until: world.now + takes };
                self.line.wake(world, takes);
            }
            (Ask::Commit(_), Reply::Done) => {
                self.memory.stage = Stage::Committed;
                self.look_again(world, 1);
            }
            (Ask::Upload(header, _), Reply::Receipt(receipt)) => {
                self.kept.receipts.insert(header.scope.round.0, receipt);
                self.memory.stage = Stage::Receipted;
                self.look_again(world, 1);
            }
            (Ask::Proof(_), reply) => self.proven(world, reply),
            (ask, Reply::Refused(rejection)) => self.refused(world, &ask, rejection.code),
            _ => self.look_again(world, POLL_MS),
        }
    }

    /// Handles a refusal as the production program does: the participant gives up the round or
    /// retries later.
    fn refused(&mut self, world: &mut World, ask: &Ask, code: ErrorCode) {
        world.tell(self.me(), format_args!("{} is refused: {code}", ask.name()));
        if code == ErrorCode::UnknownTask && world.is_closed() {
            // The task was never published and never will be.
            return self.have_bond_back(world);
        }
        let early = matches!(ask, Ask::Upload(..)) && code == ErrorCode::TooEarly;
        if matches!(ask, Ask::Commit(_) | Ask::Upload(..)) && !early {
            self.memory.stage = Stage::Lost;
        }
        self.look_again(world, POLL_MS);
    }

    fn enrolled(&mut self, world: &mut World, reply: &Reply) {
        match (&self.memory.doing, reply) {
            (Doing::Enrols(reported), Reply::Done) | (Doing::EnrolsAgain(reported), _) => {
                self.memory.enrolled_at = Some(*reported);
                self.look_again(world, 1);
            }
            // The coordinator sees a bond a little later than the ledger.
            _ => self.look_again(world, POLL_MS),
        }
    }

    /// Decides on the round in the view with the production function, and executes the decision.
    fn decide(&mut self, world: &mut World, view: Box<TaskView>) {
        self.enter(&view);
        let memory = &self.memory;
        let own = Own {
            enrolled_at: memory.enrolled_at,
            drawn_at: memory.drawn_at,
            read: memory.read,
            stage: memory.stage,
        };
        let step = step::next(&view, self.account, own);
        let reported = view.reported;
        let offer = view.offer.as_ref().map(|offer| offer.body.clone());
        let phase = view.phase;
        self.memory.view = Some(view);
        if !matches!(step, Step::Wait | Step::Read(_)) {
            world.tell(self.me(), format_args!("{step:?} while {phase:?}"));
        }
        match (step, offer) {
            (Step::Read(round), _) => match self.kept.reports.get(&round.0).cloned() {
                Some(report) => self.read(world, round, report),
                None => self.says(world, Doing::Reads(round), Ask::Report(round)),
            },
            (Step::Join, _) => {
                self.says(world, Doing::Registers, Ask::Register(Role::Participant));
            }
            (Step::Enrol, _) => self.says(world, Doing::EnrolsAgain(reported), Ask::Enrol),
            (Step::Draw, _) => {
                let doing = Doing::Draws { finalised: self.finalised() };
                self.says(world, doing, Ask::Proof(self.account));
            }
            (Step::Train, Some(offer)) => {
                self.says(world, Doing::Fetches, Ask::Blob(offer.base_model));
            }
            (Step::Commit, Some(offer)) => self.commit(world, &offer),
            (Step::Reveal, _) => self.reveal(world),
            (Step::Finish, _) => {
                self.says(world, Doing::Finishes, Ask::Proof(self.account));
            }
            _ => self.look_again(world, POLL_MS),
        }
    }

    fn says(&mut self, world: &mut World, doing: Doing, ask: Ask) {
        self.memory.doing = doing;
        self.line.ask(world, ask);
    }

    fn finalised(&self) -> u32 {
        self.memory.view.as_ref().map_or(0, |view| view.finalised)
    }

    /// Restores the progress of a round from the persistent state after a restart.
    fn enter(&mut self, view: &TaskView) {
        let memory = &mut self.memory;
        if view.offer.is_none() || memory.read + 1 != view.round.0 || memory.round == view.round.0 {
            return;
        }
        let round = view.round.0;
        memory.round = round;
        memory.stage = if self.kept.receipts.contains_key(&round) {
            Stage::Receipted
        } else if self.kept.signed.contains_key(&round) {
            Stage::Signed
        } else if self.kept.updates.contains_key(&round) {
            Stage::Trained
        } else {
            Stage::Fresh
        };
    }

    fn read(&mut self, world: &mut World, round: RoundNumber, report: Report) {
        world.auditor.member_read(&report);
        self.kept.updates.remove(&round.0);
        self.kept.reports.insert(round.0, report);
        self.memory.read = round.0;
        self.look_again(world, 1);
    }

    fn offer(&self) -> Option<Offer> {
        let view = self.memory.view.as_ref()?;
        view.offer.as_ref().map(|offer| offer.body.clone())
    }

    /// Really trains on its own rows and stores the update.
    fn trained(&mut self, world: &mut World) {
        let (Some(offer), Some(base)) = (self.offer(), self.memory.base.take()) else {
            return self.look_again(world, 1);
        };
        let Some(bytes) = self.update(world, &offer, &base) else {
            self.memory.stage = Stage::Lost;
            return self.look_again(world, POLL_MS);
        };
        self.kept.updates.insert(offer.scope.round.0, bytes);
        self.memory.stage = Stage::Trained;
        self.look_again(world, 1);
    }

    fn update(&self, world: &World, offer: &Offer, base: &[u8]) -> Option<Vec<u8>> {
        let spec = &world.cast.spec;
        let start = decode_model(spec, base).ok()?;
        let (model, how) = (model_spec(&spec.model), training(&spec.training));
        let seed = spec.salt ^ (u64::from(offer.scope.round.0) << 32) ^ self.number as u64;
        let go_on = &mut |_| ControlFlow::Continue(());
        let trained = Reference::new().train(&model, &start, &self.rows, &how, seed, go_on).ok()?;
        let delta = trained.params.iter().zip(&start).map(|(new, old)| new - old).collect();
        encode_update(spec, delta, None, seed).ok().map(|encoded| encoded.bytes)
    }

    /// Stores the signed header before sending the commit.
    fn commit(&mut self, world: &mut World, offer: &Offer) {
        let round = offer.scope.round.0;
        let Some(bytes) = self.kept.updates.get(&round) else {
            self.memory.stage = Stage::Fresh;
            return self.look_again(world, 1);
        };
        let update = blob_digest(bytes);
        let header = UpdateHeader {
            scope: offer.scope,
            sender: self.account,
            offer: florin_protocol::Canonical::digest(offer),
            base_model: offer.base_model,
            rows: self.rows.rows() as u64,
            update,
            bytes: bytes.len() as u64,
            salt: blob_digest(&[self.account.0.as_slice(), &update.0].concat()),
            expires: offer.reveal_by,
        };
        let header = self.kept.signed.entry(round).or_insert(header).clone();
        self.memory.stage = Stage::Signed;
        if self.dies(world) {
            return;
        }
        let commit = Commit {
            scope: header.scope,
            sender: header.sender,
            offer: header.offer,
            commitment: header.commitment(),
        };
        self.says(world, Doing::Commits, Ask::Commit(commit));
    }

    fn reveal(&mut self, world: &mut World) {
        let round = self.memory.round;
        let (header, bytes) = (self.kept.signed.get(&round), self.kept.updates.get(&round));
        let (Some(header), Some(bytes)) = (header.cloned(), bytes.cloned()) else {
            self.memory.stage = Stage::Lost;
            return self.look_again(world, POLL_MS);
        };
        self.says(world, Doing::Reveals, Ask::Upload(Box::new(header), bytes));
    }
}
