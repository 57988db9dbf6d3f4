//! A provider: stakes, requests work, computes the result from the blobs of the order, sends its
//! record until it receives a verdict, and withdraws pay and stake at the end.

use std::collections::BTreeMap;

use florin_learning::Reference;
use florin_learning::mapped::UNLIMITED_MEMORY;
use florin_ledger::{Ledger, LedgerError, Refusal};
use florin_participant::claim_with_proof;
use florin_protocol::{
    Canonical, Digest, DisclosedRows, ErrorCode, Role, TaskPhase, WorkOrder, WorkRecord, WorkResult,
};
use florin_work::{EarlierUpdateBlobs, ValuationInputs};

use super::client::RequestChannel;
use super::context::{SimContext, SimEvent};
use super::ledger::DummySigner;
use super::message::{CoordinatorReply, CoordinatorRequest};
use super::network::ProcessId;
use super::setup::PROVIDER;

const ME: ProcessId = ProcessId::Provider;
/// Interval between two requests for work, in milliseconds.
const POLL_MS: u64 = 250;
/// Delay before a ledger request is retried.
const LEDGER_MS: u64 = 150;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProviderActivity {
    CheckingTask,
    Registering,
    Staking,
    RequestingWork,
    Fetching,
    SendingRecord,
    Claiming,
    WithdrawingStake,
    Done,
}

/// The state that a crash destroys.
#[derive(Clone, Debug)]
struct ProviderMemory {
    activity: ProviderActivity,
    /// Whether it is registered and has pledged its stake, as far as it knows since its last start.
    is_pledged: bool,
    order: Option<Box<WorkOrder>>,
    blobs: BTreeMap<Digest, Vec<u8>>,
}

impl ProviderMemory {
    const fn new() -> Self {
        Self {
            activity: ProviderActivity::CheckingTask,
            is_pledged: false,
            order: None,
            blobs: BTreeMap::new(),
        }
    }
}

/// The provider.
#[derive(Clone, Debug)]
pub(super) struct Provider {
    memory: ProviderMemory,
    /// Persistent state: the signed record of each order.
    records: BTreeMap<Digest, WorkRecord>,
    channel: RequestChannel,
    restarts: u64,
    is_up: bool,
    finished: bool,
}

impl Provider {
    /// A provider before its first step.
    #[must_use]
    pub(super) const fn new() -> Self {
        Self {
            memory: ProviderMemory::new(),
            records: BTreeMap::new(),
            channel: RequestChannel::new(ME),
            restarts: 0,
            is_up: true,
            finished: false,
        }
    }

    /// Whether its task is over and its pay and stake are withdrawn.
    #[must_use]
    pub(super) const fn is_finished(&self) -> bool {
        self.finished
    }

    /// Schedules the first step.
    pub(super) fn schedule_first_step(&mut self, world: &mut SimContext) {
        let pause = world.random_ms(1_000);
        self.channel.set_timer(world, pause);
    }

    fn maybe_crash(&mut self, world: &mut SimContext) -> bool {
        let crashes = world.faults.crashes;
        if !world.random_bool(crashes) {
            return false;
        }
        world.log(ME, format_args!("crashes while {:?}", self.memory.activity));
        self.memory = ProviderMemory::new();
        self.channel.reset();
        self.is_up = false;
        self.restarts += 1;
        let pause = 100 + world.random_ms(5_000);
        world.schedule(pause, SimEvent::Restart { node: ME, life: self.restarts });
        true
    }

    /// Restarts the process.
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
        match self.memory.activity {
            ProviderActivity::Staking => self.stake(world),
            ProviderActivity::Claiming => {
                self.request(world, ProviderActivity::Claiming, CoordinatorRequest::Proof(PROVIDER))
            }
            ProviderActivity::WithdrawingStake => self.withdraw_stake(world),
            ProviderActivity::SendingRecord => self.fetch(world),
            ProviderActivity::Done => {}
            ProviderActivity::RequestingWork if self.memory.is_pledged => {
                self.request(world, ProviderActivity::RequestingWork, CoordinatorRequest::OpenOrder)
            }
            _ => self.request(world, ProviderActivity::CheckingTask, CoordinatorRequest::View),
        }
    }

    fn request(
        &mut self,
        world: &mut SimContext,
        doing: ProviderActivity,
        ask: CoordinatorRequest,
    ) {
        self.memory.activity = doing;
        self.channel.send(world, ask);
    }

    fn schedule(&mut self, world: &mut SimContext, doing: ProviderActivity, pause: u64) {
        self.memory.activity = doing;
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
            (CoordinatorRequest::View, CoordinatorReply::View(view)) => match view.phase {
                TaskPhase::Done => self.request(
                    world,
                    ProviderActivity::Claiming,
                    CoordinatorRequest::Proof(PROVIDER),
                ),
                _ if !self.memory.is_pledged => {
                    self.request(
                        world,
                        ProviderActivity::Registering,
                        CoordinatorRequest::Register(Role::Provider),
                    );
                }
                _ => self.request(
                    world,
                    ProviderActivity::RequestingWork,
                    CoordinatorRequest::OpenOrder,
                ),
            },
            (CoordinatorRequest::Register(_), CoordinatorReply::Done) => self.stake(world),
            (CoordinatorRequest::OpenOrder, CoordinatorReply::Order(Some(order))) => {
                self.memory.order = Some(order);
                self.memory.blobs.clear();
                self.fetch(world);
            }
            (CoordinatorRequest::Blob(digest), CoordinatorReply::Bytes(bytes)) => {
                self.memory.blobs.insert(digest, bytes);
                self.fetch(world);
            }
            (CoordinatorRequest::Record(_), CoordinatorReply::Verdict(units)) => {
                world.log(ME, format_args!("is paid for {units} units"));
                self.schedule(world, ProviderActivity::CheckingTask, 1);
            }
            (CoordinatorRequest::Record(_), CoordinatorReply::Refused(rejection)) => {
                let waits = rejection.code == ErrorCode::TooEarly;
                world.log(ME, format_args!("record refused: {rejection}"));
                if rejection.code == ErrorCode::WorkResultMismatch {
                    world
                        .auditor
                        .report_violation("honest work is verified", rejection.to_string());
                }
                if waits {
                    self.schedule(world, ProviderActivity::SendingRecord, POLL_MS);
                } else {
                    self.schedule(world, ProviderActivity::CheckingTask, POLL_MS);
                }
            }
            (CoordinatorRequest::Proof(_), reply) => self.on_proof(world, reply),
            // The task was never published and never will be.
            (CoordinatorRequest::View, CoordinatorReply::Refused(_)) if world.is_closed() => {
                self.withdraw_stake(world)
            }
            _ => self.schedule(world, ProviderActivity::CheckingTask, POLL_MS),
        }
    }

    fn stake(&mut self, world: &mut SimContext) {
        self.memory.activity = ProviderActivity::Staking;
        let spec = &world.setup.spec;
        let (way, by, task) = (world.ledger_link(ME), DummySigner(PROVIDER), spec.id());
        let pledge = || -> Result<(), LedgerError> {
            let there = way.stake_of(PROVIDER)?;
            if there.amount < spec.budget.stake_min || there.release.is_some() {
                let missing = spec.budget.stake_min.minus(there.amount).unwrap_or_default();
                way.stake(&by, missing.max(florin_protocol::Amount::from_units(1)))?;
            }
            way.pledge(&by, task).map(drop)
        };
        let pledged = pledge();
        world.schedule_late_transactions();
        match pledged {
            Ok(()) => {
                self.memory.is_pledged = true;
                self.request(
                    world,
                    ProviderActivity::RequestingWork,
                    CoordinatorRequest::OpenOrder,
                );
            }
            Err(LedgerError::Unavailable(_)) => self.channel.set_timer(world, LEDGER_MS),
            Err(error) => {
                world.log(ME, format_args!("cannot pledge: {error}"));
                self.schedule(world, ProviderActivity::CheckingTask, 4 * POLL_MS);
            }
        }
    }

    /// Fetches the next missing blob of the order; with all blobs, computes and sends the record.
    fn fetch(&mut self, world: &mut SimContext) {
        let Some(order) = self.memory.order.clone() else {
            return self.schedule(world, ProviderActivity::CheckingTask, 1);
        };
        let digest = order.digest();
        if let Some(record) = self.records.get(&digest).cloned() {
            return self.request(
                world,
                ProviderActivity::SendingRecord,
                CoordinatorRequest::Record(Box::new(record)),
            );
        }
        let updates = order.entries.iter().map(|entry| entry.update);
        let mut all = [order.base_model, order.disclosed_rows].into_iter().chain(updates);
        let missing = all.find(|digest| !self.memory.blobs.contains_key(digest));
        let last = order.earlier_updates.iter().map(|(_, digest)| *digest);
        let last = last.chain(order.earlier_rows.iter().copied());
        let mut earlier = order.previous_models.iter().copied().chain(last);
        let missing = missing.or_else(|| earlier.find(|d| !self.memory.blobs.contains_key(d)));
        if let Some(missing) = missing {
            return self.request(
                world,
                ProviderActivity::Fetching,
                CoordinatorRequest::Blob(missing),
            );
        }
        let Some(result) = self.compute(world, &order) else {
            return self.schedule(world, ProviderActivity::CheckingTask, POLL_MS);
        };
        let market = world.setup.spec.market;
        let record = WorkRecord { market, order: digest, provider: PROVIDER, result };
        self.records.insert(digest, record.clone());
        self.request(
            world,
            ProviderActivity::SendingRecord,
            CoordinatorRequest::Record(Box::new(record)),
        );
    }

    fn compute(&self, world: &SimContext, order: &WorkOrder) -> Option<WorkResult> {
        let blob = |digest: Digest| self.memory.blobs.get(&digest).map(Vec::as_slice);
        let shown = DisclosedRows::from_bytes(blob(order.disclosed_rows)?).ok()?;
        let drawn: Vec<u32> = shown.rows.iter().map(|row| row.index).collect();
        let updates: Vec<&[u8]> =
            order.entries.iter().map(|entry| blob(entry.update)).collect::<Option<_>>()?;
        let previous: Vec<&[u8]> =
            order.previous_models.iter().map(|digest| blob(*digest)).collect::<Option<_>>()?;
        let last: Vec<&[u8]> =
            order.earlier_updates.iter().map(|(_, digest)| blob(*digest)).collect::<Option<_>>()?;
        let earlier: Vec<&[u8]> =
            order.earlier_rows.iter().map(|digest| blob(*digest)).collect::<Option<_>>()?;
        let inputs = ValuationInputs {
            spec: &world.setup.spec,
            graph: None,
            base: blob(order.base_model)?,
            row_indices: &drawn,
            disclosed_rows: blob(order.disclosed_rows)?,
            entries: &order.entries,
            updates: &updates.as_slice(),
            previous_models: &previous.as_slice(),
            earlier_updates: EarlierUpdateBlobs {
                ids: &order.earlier_updates,
                bytes: &last.as_slice(),
            },
            earlier_rows: &earlier.as_slice(),
            scratch_space: &UNLIMITED_MEMORY,
        };
        florin_work::value_and_aggregate(&inputs, &mut Reference::new())
            .ok()
            .map(|outcome| outcome.result)
    }

    fn on_proof(&mut self, world: &mut SimContext, reply: CoordinatorReply) {
        let drawn = match reply {
            CoordinatorReply::Proof(proof) => {
                let (way, by) = (world.ledger_link(ME), DummySigner(PROVIDER));
                let drawn = claim_with_proof(&way, &by, world.setup.spec.id(), proof);
                world.schedule_late_transactions();
                drawn.is_ok()
            }
            CoordinatorReply::Refused(rejection) => rejection.code == ErrorCode::NotYetPublic,
            _ => false,
        };
        if drawn {
            self.withdraw_stake(world);
        } else {
            self.schedule(world, ProviderActivity::Claiming, LEDGER_MS);
        }
    }

    fn withdraw_stake(&mut self, world: &mut SimContext) {
        self.memory.activity = ProviderActivity::WithdrawingStake;
        let (way, by) = (world.ledger_link(ME), DummySigner(PROVIDER));
        let back = || -> Result<bool, LedgerError> {
            let there = way.stake_of(PROVIDER)?;
            if there.amount.is_zero() {
                return Ok(true);
            }
            if there.release.is_none() {
                way.unstake(&by)?;
            }
            match way.withdraw_stake(&by) {
                Ok(_) => Ok(true),
                Err(LedgerError::Refused(Refusal::TooEarly { .. })) => Ok(false),
                Err(error) => Err(error),
            }
        };
        let is_back = back();
        world.schedule_late_transactions();
        if matches!(is_back, Ok(true)) {
            world.log(ME, format_args!("is done"));
            self.finished = true;
            self.memory.activity = ProviderActivity::Done;
        } else {
            self.channel.set_timer(world, LEDGER_MS);
        }
    }
}

impl Default for Provider {
    fn default() -> Self {
        Self::new()
    }
}
