//! The coordinator's state machine: a pure function (state, event, time) → (state, effects).
//!
//! The engine decides how a round of a federated-learning task proceeds: enrolment, cohort
//! selection, commit and reveal, disclosure of holdout rows, valuation, report, settlement and the
//! end of the task. Its input is a sequence of [`Event`]s, each with a timestamp; its
//! [`EngineState`] is the fold of that sequence. A journal of events therefore holds everything that
//! a coordinator has to persist, and replaying the journal restores the state (event sourcing).
//!
//! The engine does no I/O. It uses no sockets, files, threads, clocks, random numbers or
//! floating-point numbers. It requests expensive work and external calls as [`Effect`]s; the host
//! executes them and submits each result as another event.
//!
//! [`Engine::apply`] validates an event completely before the state changes. A rejected event
//! changes nothing and is not journaled. The caller verifies signatures before it submits an event.
//!
//! One module for each phase of a task:
//!
//! * `registrations`: node keys, and which of them give way at the limit.
//! * `publication`: publishes tasks within the limits, and ends others to make room.
//! * `enrol`: the first blobs, enrolment of participants.
//! * `offer`: waits for enough participants, selects the cohort and issues the round's offer.
//! * `sharing`: participants of several tasks, and the task that goes first.
//! * `collect`: commits, then reveals; each phase ends early or at its deadline.
//! * `disclose`: draws the holdout rows that the round is evaluated on, and discloses them.
//! * `work_orders`: the work order, the providers and their work records.
//! * `report`: builds the round's report from the valuation result; a round without a result is
//!   abandoned.
//! * `settle`: follows settlements until they are final, and ends the task.
//!
//! [`state`] defines the state, [`event`] the events and effects, and `view` the read-only queries.

#![no_std]

extern crate alloc;

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use florin_protocol::{
    Address, Amount, ErrorCode, MarketId, Rejection, Report, TaskEnd, TaskId, Timestamp,
};

mod collect;
mod disclose;
mod enrol;
pub mod event;
mod offer;
mod publication;
mod registrations;
mod rejection;
mod report;
mod settle;
mod sharing;
pub mod state;
mod view;
mod work_orders;

pub use event::{Applied, Effect, Event, EventStatus};
use publication::BlobLengths;
pub use publication::holdout_bytes;
pub use sharing::AccountLimit;
pub use state::EngineState;
use state::TaskState;
pub use view::{ProofTree, RoundLocation, UnsignedTaskView, Visibility, claim_proof};

/// Most tasks that one coordinator runs at the same time. Tasks whose end is decided stay in the
/// state and do not count. At the limit, the task with the least money gives way to one with more.
pub const TASKS_MAX: usize = 10_000;
/// Most open tasks of one buyer.
pub const TASKS_PER_BUYER_MAX: usize = 1_000;
/// Most open tasks of one buyer that wait for their model or holdout.
pub const INCOMPLETE_TASKS_PER_BUYER_MAX: usize = 16;
/// A task that has begun gives way only to one with this many times its money.
pub const BEGUN_TASK_WEIGHT: u128 = 10;
/// Time for a task's model and holdout after its publication, in milliseconds (one hour), beside
/// the time for their bytes.
pub const BLOBS_MS: u64 = 3_600 * 1_000;
/// The rate at which a task's model and holdout have to arrive, in bytes per second: a quarter of
/// the lowest rate that a coordinator's default settings accept.
pub const BLOB_BYTES_PER_SECOND_MIN: u64 = 16 * 1_024;
/// Most registrations in the state of one coordinator, beside those that verify a signature in a
/// report. At the limit, registrations that nothing backs give way.
pub const REGISTRATIONS_MAX: usize = 100_000;
/// Most registrations that give way to one new one: a fraction of the limit, so that the search for
/// them is rare.
pub const REGISTRATIONS_EVICTED_AT_ONCE: usize = 1_000;
/// The bond or stake in one open task from which on a registration never gives way (1 FLN).
pub const REGISTRATION_DEPOSIT_MIN: Amount = Amount::from_units(1_000_000_000_000_000_000);
/// Latest expiry of a registration, in milliseconds after it is made (seven days).
pub const REGISTRATION_MS_MAX: u64 = 7 * 24 * 3_600 * 1_000;
/// Most work records stored for one work order: the first ones, one for each provider.
pub const RECORDS_PER_ORDER_MAX: usize = 64;
/// Most providers stored for one task.
pub const PROVIDERS_PER_TASK_MAX: usize = 1_024;
/// Rounds that a participant sits out when it was selected, did not deliver, and enrolled again.
pub const SIT_OUT_ROUNDS: u32 = 1;
/// Most rejected uploads that are counted for one sender in one round. Later uploads are still
/// rejected, but no longer counted.
pub const REJECTED_UPLOADS_MAX: u32 = 8;

/// A valid event.
struct Validated {
    status: EventStatus,
    /// The report that an [`Event::RoundValued`] leads to. The check builds it, to know that it can
    /// be built, and the change uses it.
    report: Option<Box<Report>>,
}

/// The state machine of one coordinator.
#[derive(Clone, Debug)]
pub struct Engine {
    market: MarketId,
    coordinator: Address,
    state: EngineState,
}

impl Engine {
    /// An engine in the initial state.
    #[must_use]
    pub fn new(market: MarketId, coordinator: Address) -> Self {
        Self { market, coordinator, state: EngineState::default() }
    }

    /// An engine that continues from a restored state.
    #[must_use]
    pub const fn from_state(market: MarketId, coordinator: Address, state: EngineState) -> Self {
        Self { market, coordinator, state }
    }

    /// The market that the coordinator serves.
    #[must_use]
    pub const fn market(&self) -> MarketId {
        self.market
    }

    /// The coordinator's account.
    #[must_use]
    pub const fn coordinator(&self) -> Address {
        self.coordinator
    }

    /// The complete state.
    #[must_use]
    pub const fn state(&self) -> &EngineState {
        &self.state
    }

    /// Validates `event` at time `now` and returns whether it would change the state. Time is
    /// monotonic: a `now` before the latest one counts as the latest one.
    ///
    /// # Errors
    /// The [`Rejection`] for the sender of the event.
    pub fn check(&self, event: &Event, now: Timestamp) -> Result<EventStatus, Rejection> {
        self.validate(event, now).map(|validated| validated.status)
    }

    fn validate(&self, event: &Event, now: Timestamp) -> Result<Validated, Rejection> {
        let now = now.max(self.state.now);
        let status = match event {
            Event::Registered(registration) => self.check_registered(registration, now),
            Event::TaskPublished { spec, model_bytes, update_bytes } => {
                let lengths = BlobLengths { model: *model_bytes, update: *update_bytes };
                self.check_published(spec, lengths, now)
            }
            Event::BlobArrived { task, digest } => self.check_blob(*task, *digest),
            Event::HoldoutArrived { task, .. } => self.check_holdout(*task),
            Event::Enrolled { enrol, bond } => self.check_enrolled(&enrol.body, *bond, now),
            Event::Committed { commit, bond } => self.check_committed(&commit.body, *bond, now),
            Event::Revealed(header) => self.check_revealed(&header.body, now),
            Event::UploadRejected { task, round, sender, .. } => {
                self.check_upload_rejected(*task, *round, *sender)
            }
            Event::ProviderReady { task, provider } => self.check_provider(*task, *provider, now),
            Event::WorkRecordReceived { record, agrees } => {
                self.check_record(&record.body, *agrees, now)
            }
            Event::Tick => Ok(self.check_tick(now)),
            Event::RowsDisclosed { task, round, .. } => self.check_disclosed(*task, *round),
            Event::RoundValued { task, round, result, paid, .. } => {
                return self.check_valued(*task, *round, result, *paid);
            }
            Event::ValuationFailed { task, round } => self.check_valuation_failed(*task, *round),
            Event::SettlementPosted { task, round } => self.check_posted(*task, *round),
            Event::SettlementFinal { task, round } => self.check_final(*task, *round),
            Event::SettlementCancelled { task, round } => self.check_cancelled(*task, *round),
            Event::SettlementRejected { task, round } => {
                self.check_settlement_rejected(*task, *round)
            }
            Event::CloseRequested { task } => self.check_close_requested(*task),
            Event::TaskClosed { task, .. } => self.check_closed(*task),
            Event::DebitsProven { task, round } => self.check_proven(*task, *round),
            Event::RoundArchived { task, round, .. } => self.check_round_archived(*task, *round),
            Event::BondReturned { task } => self.check_bond_returned(*task),
        };
        status.map(|status| Validated { status, report: None })
    }

    /// Applies one event: validates it completely, then changes the state.
    ///
    /// # Errors
    /// The [`Rejection`] for the sender of the event; the state is unchanged.
    pub fn apply(&mut self, event: &Event, now: Timestamp) -> Result<Applied, Rejection> {
        let now = now.max(self.state.now);
        let Validated { status, report } = self.validate(event, now)?;
        if status == EventStatus::Duplicate {
            return Ok(Applied::duplicate());
        }
        let touched = self.affected_tasks(event, now);
        let before = self.pending_effects_of(&touched);
        let worked = self.working_for(&touched);
        self.state.now = now;
        self.renew_before(event, &touched, now);
        self.change(event, report, now);
        self.note_sender(event, now);
        // A round that opens has no effect in progress yet.
        let opened = self.open_for_freed(worked, &touched, now);
        let after = self.pending_effects_of(&touched);
        let effects = after.difference(&before).copied().collect();
        // No view shows where a round is stored.
        let changed =
            if matches!(event, Event::RoundArchived { .. }) { Vec::new() } else { touched };
        let changed = [changed, opened].concat();
        for id in &changed {
            if let Some(task) = self.state.tasks.get_mut(id) {
                task.sequence = task.sequence.saturating_add(1);
            }
        }
        Ok(Applied { status: EventStatus::New, effects, changed_tasks: changed })
    }

    /// Every effect that should be in progress now. The host starts these after a restart.
    #[must_use]
    pub fn pending_effects(&self) -> Vec<Effect> {
        let all: Vec<TaskId> = self.state.tasks.keys().copied().collect();
        self.pending_effects_of(&all).into_iter().collect()
    }

    /// The next time at which [`Event::Tick`] changes the state.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.state.tasks.values().filter_map(TaskState::deadline).min()
    }

    fn check_tick(&self, now: Timestamp) -> EventStatus {
        match self.next_deadline() {
            Some(deadline) if deadline <= now => EventStatus::New,
            _ => EventStatus::Duplicate,
        }
    }

    /// The tasks that an event may change.
    fn affected_tasks(&self, event: &Event, now: Timestamp) -> Vec<TaskId> {
        match event {
            Event::Registered(_) => Vec::new(),
            Event::TaskPublished { spec, .. } => {
                self.gives_way_to(spec).into_iter().chain([spec.id()]).collect()
            }
            Event::Enrolled { enrol, .. } => vec![enrol.body.task],
            Event::Committed { commit, .. } => vec![commit.body.scope.task],
            Event::Revealed(header) => vec![header.body.scope.task],
            Event::WorkRecordReceived { record, .. } => {
                self.find_order(record.body.order).map(|(task, _)| task).into_iter().collect()
            }
            Event::BlobArrived { task, .. }
            | Event::HoldoutArrived { task, .. }
            | Event::UploadRejected { task, .. }
            | Event::ProviderReady { task, .. }
            | Event::RowsDisclosed { task, .. }
            | Event::RoundValued { task, .. }
            | Event::ValuationFailed { task, .. }
            | Event::SettlementPosted { task, .. }
            | Event::SettlementFinal { task, .. }
            | Event::SettlementCancelled { task, .. }
            | Event::SettlementRejected { task, .. }
            | Event::CloseRequested { task }
            | Event::TaskClosed { task, .. }
            | Event::DebitsProven { task, .. }
            | Event::RoundArchived { task, .. }
            | Event::BondReturned { task } => vec![*task],
            Event::Tick => {
                let due = |task: &TaskState| task.deadline().is_some_and(|t| t <= now);
                self.state.tasks.iter().filter(|(_, t)| due(t)).map(|(id, _)| *id).collect()
            }
        }
    }

    fn pending_effects_of(&self, tasks: &[TaskId]) -> BTreeSet<Effect> {
        let known = tasks.iter().filter_map(|id| self.state.tasks.get(id));
        known.flat_map(TaskState::pending_effects).collect()
    }

    /// The only function that changes the state. The event has passed [`Engine::check`].
    fn change(&mut self, event: &Event, report: Option<Box<Report>>, now: Timestamp) {
        match event {
            Event::Registered(registration) => self.register(registration, now),
            Event::TaskPublished { spec, model_bytes, update_bytes } => {
                let lengths = BlobLengths { model: *model_bytes, update: *update_bytes };
                self.publish(spec, lengths, now);
            }
            Event::Tick => {
                for id in self.affected_tasks(event, now) {
                    self.renew_shared(id, now);
                    if let Some(task) = self.state.tasks.get_mut(&id) {
                        task.tick(now);
                    }
                }
            }
            Event::WorkRecordReceived { record, agrees } => {
                let found = self.find_order(record.body.order);
                let task = found.and_then(|(id, _)| self.state.tasks.get_mut(&id));
                if let Some(task) = task {
                    task.add_record(record, *agrees, now);
                }
            }
            Event::RoundValued { task, result, paid, wrong_records: wrong, .. } => {
                if let (Some(task), Some(report)) = (self.state.tasks.get_mut(task), report) {
                    task.valued(result, *paid, wrong, *report, now);
                }
            }
            _ => self.change_task(event, now),
        }
    }

    fn change_task(&mut self, event: &Event, now: Timestamp) {
        let id = self.affected_tasks(event, now).first().copied();
        let Some(task) = id.and_then(|id| self.state.tasks.get_mut(&id)) else {
            return;
        };
        match event {
            Event::BlobArrived { digest, .. } => task.blob_arrived(*digest, now),
            Event::HoldoutArrived { digest, .. } => task.holdout_arrived(*digest, now),
            Event::Enrolled { enrol, bond } => task.enrol(&enrol.body, *bond, now),
            Event::Committed { commit, bond } => task.commit(commit, *bond, now),
            Event::Revealed(header) => task.reveal(header, now),
            Event::UploadRejected { sender, code, .. } => {
                task.count_rejected_upload(*sender, *code)
            }
            Event::ProviderReady { provider, .. } => task.provider_ready(*provider),
            Event::RowsDisclosed { rows: shown, .. } => task.rows_disclosed(*shown, now),
            Event::ValuationFailed { .. } => task.valuation_failed(now),
            Event::SettlementPosted { round, .. } => task.posted(*round, now),
            Event::SettlementFinal { round, .. } => task.finalised(*round, now),
            Event::SettlementCancelled { round, .. } | Event::SettlementRejected { round, .. } => {
                task.give_up_settlements_from(*round);
            }
            Event::CloseRequested { .. } => task.end_soon(TaskEnd::ClosedByBuyer, now),
            Event::TaskClosed { refund, .. } => task.closed(*refund),
            Event::DebitsProven { round, .. } => task.debits_proven(*round),
            Event::RoundArchived { round, digest, .. } => task.mark_archived(*round, *digest),
            Event::BondReturned { .. } => task.awaits_bond = false,
            Event::Registered(_)
            | Event::TaskPublished { .. }
            | Event::Tick
            | Event::WorkRecordReceived { .. }
            | Event::RoundValued { .. } => {}
        }
    }

    /// The task with this id.
    fn task(&self, id: TaskId) -> Result<&TaskState, Rejection> {
        self.state.tasks.get(&id).ok_or_else(|| {
            Rejection::new(ErrorCode::UnknownTask, format!("no task {id} is published here"))
        })
    }

    fn check_market(&self, market: MarketId) -> Result<(), Rejection> {
        if market == self.market {
            return Ok(());
        }
        let message = format!(
            "the message is for chain {} and genesis {}; this market is chain {} and genesis {}",
            market.chain,
            market.genesis.short(),
            self.market.chain,
            self.market.genesis.short()
        );
        Err(Rejection::new(ErrorCode::WrongMarket, message))
    }
}
