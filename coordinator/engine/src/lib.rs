//! The coordinator's state machine: a pure function (state, event, time) → (state, effects).
//!
//! The engine decides how a round of a federated-learning task proceeds: enrolment, cohort
//! selection, commit and reveal, disclosure of holdout rows, valuation, report, settlement and the
//! end of the task. Its input is a sequence of [`Event`]s, each with a timestamp; its [`State`] is
//! the fold of that sequence. A journal of events therefore holds everything that a coordinator has
//! to persist, and replaying the journal restores the state (event sourcing).
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
//! * `enrol`: registrations, task publication, the first blobs, enrolment of participants.
//! * `offer`: waits for enough participants, selects the cohort and issues the round's offer.
//! * `collect`: commits, then reveals; each phase ends early or at its deadline.
//! * `disclose`: draws the holdout rows that the round is evaluated on, and discloses them.
//! * `value`: the work order, the providers and their work records.
//! * `aggregate`: builds the round's report from the valuation result; a round without a result is
//!   abandoned.
//! * `settle`: follows settlements until they are final, and ends the task.
//!
//! [`state`] defines the state, [`event`] the events and effects, and `view` the read-only queries.

#![no_std]

extern crate alloc;

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use florin_protocol::{Address, ErrorCode, MarketId, Rejection, TaskId, Timestamp};

mod aggregate;
mod collect;
mod disclose;
mod enrol;
pub mod event;
mod offer;
mod settle;
pub mod state;
mod value;
mod view;

pub use event::{Applied, Effect, Event, Verdict};
pub use state::State;
use state::TaskState;
pub use view::{Found, ProofTree, Visibility, claim_proof};

/// Most tasks that one coordinator runs at the same time. Finished tasks stay in the state and do
/// not count.
pub const TASKS_MAX: usize = 10_000;
/// Most registrations in the state of one coordinator.
pub const REGISTRATIONS_MAX: usize = 100_000;
/// Latest expiry of a registration, in milliseconds after it is made (two years).
pub const REGISTRATION_MS_MAX: u64 = 2 * 365 * 24 * 3_600 * 1_000;
/// Most work records stored for one work order: the first ones, one for each provider.
pub const RECORDS_PER_ORDER_MAX: usize = 64;
/// Most providers stored for one task.
pub const PROVIDERS_PER_TASK_MAX: usize = 1_024;
/// Rounds that a participant sits out when it was selected, did not deliver, and enrolled again.
pub const SIT_OUT_ROUNDS: u32 = 1;
/// Most rejected uploads that are counted for one sender in one round. Later uploads are still
/// rejected, but no longer counted.
pub const REFUSALS_MAX: u32 = 8;

/// The state machine of one coordinator.
#[derive(Clone, Debug)]
pub struct Engine {
    market: MarketId,
    coordinator: Address,
    state: State,
}

impl Engine {
    /// An engine in the initial state.
    #[must_use]
    pub fn new(market: MarketId, coordinator: Address) -> Self {
        Self { market, coordinator, state: State::default() }
    }

    /// An engine that continues from a restored state.
    #[must_use]
    pub const fn with(market: MarketId, coordinator: Address, state: State) -> Self {
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
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Validates `event` at time `now` and returns whether it would change the state. Time is
    /// monotonic: a `now` before the latest one counts as the latest one.
    ///
    /// # Errors
    /// The [`Rejection`] for the sender of the event.
    pub fn check(&self, event: &Event, now: Timestamp) -> Result<Verdict, Rejection> {
        let now = now.max(self.state.now);
        match event {
            Event::Registered(registration) => self.check_registered(registration, now),
            Event::Published { spec, model_bytes, update_bytes } => {
                self.check_published(spec, [*model_bytes, *update_bytes], now)
            }
            Event::BlobArrived { task, digest } => self.check_blob(*task, *digest),
            Event::HoldoutArrived { task, .. } => self.check_holdout(*task),
            Event::Enrolled { enrol, bond } => self.check_enrolled(&enrol.body, *bond, now),
            Event::Committed { commit, bond } => self.check_committed(&commit.body, *bond, now),
            Event::Revealed(header) => self.check_revealed(&header.body, now),
            Event::Refused { task, round, sender, .. } => {
                self.check_refused(*task, *round, *sender)
            }
            Event::ProviderReady { task, provider } => self.check_provider(*task, *provider),
            Event::WorkRecorded { record, agrees } => self.check_record(&record.body, *agrees, now),
            Event::Tick => Ok(self.check_tick(now)),
            Event::Disclosed { task, round, .. } => self.check_disclosed(*task, *round),
            Event::Valued { task, round, result, paid, .. } => {
                self.check_valued(*task, *round, result, *paid)
            }
            Event::ValuationFailed { task, round } => self.check_failed(*task, *round),
            Event::SettlementPosted { task, round } => self.check_posted(*task, *round),
            Event::SettlementFinal { task, round } => self.check_final(*task, *round),
            Event::SettlementCancelled { task, round } => self.check_cancelled(*task, *round),
            Event::SettlementRefused { task, round } => self.check_unpostable(*task, *round),
            Event::CloseRequested { task } => self.check_close_requested(*task),
            Event::Closed { task, .. } => self.check_closed(*task),
            Event::DebitsProven { task, round } => self.check_proven(*task, *round),
            Event::Kept { task, round, .. } => self.check_kept(*task, *round),
        }
    }

    /// Applies one event: validates it completely, then changes the state.
    ///
    /// # Errors
    /// The [`Rejection`] for the sender of the event; the state is unchanged.
    pub fn apply(&mut self, event: &Event, now: Timestamp) -> Result<Applied, Rejection> {
        let now = now.max(self.state.now);
        if self.check(event, now)? == Verdict::Repeat {
            return Ok(Applied::repeat());
        }
        let touched = self.touched(event, now);
        let before = self.wants(&touched);
        self.state.now = now;
        self.change(event, now);
        let after = self.wants(&touched);
        let effects = after.difference(&before).copied().collect();
        // No view shows where a round is stored.
        let changed = if matches!(event, Event::Kept { .. }) { Vec::new() } else { touched };
        for id in &changed {
            if let Some(task) = self.state.tasks.get_mut(id) {
                task.sequence = task.sequence.saturating_add(1);
            }
        }
        Ok(Applied { verdict: Verdict::New, effects, changed })
    }

    /// Every effect that should be in progress now. The host starts these after a restart.
    #[must_use]
    pub fn outstanding(&self) -> Vec<Effect> {
        let all: Vec<TaskId> = self.state.tasks.keys().copied().collect();
        self.wants(&all).into_iter().collect()
    }

    /// The next time at which [`Event::Timestamp`] changes the state.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.state.tasks.values().filter_map(TaskState::deadline).min()
    }

    fn check_tick(&self, now: Timestamp) -> Verdict {
        match self.next_deadline() {
            Some(deadline) if deadline <= now => Verdict::New,
            _ => Verdict::Repeat,
        }
    }

    /// The tasks that an event may change.
    fn touched(&self, event: &Event, now: Timestamp) -> Vec<TaskId> {
        match event {
            Event::Registered(_) => Vec::new(),
            Event::Published { spec, .. } => vec![spec.id()],
            Event::Enrolled { enrol, .. } => vec![enrol.body.task],
            Event::Committed { commit, .. } => vec![commit.body.scope.task],
            Event::Revealed(header) => vec![header.body.scope.task],
            Event::WorkRecorded { record, .. } => {
                self.find_order(record.body.order).map(|(task, _)| task).into_iter().collect()
            }
            Event::BlobArrived { task, .. }
            | Event::HoldoutArrived { task, .. }
            | Event::Refused { task, .. }
            | Event::ProviderReady { task, .. }
            | Event::Disclosed { task, .. }
            | Event::Valued { task, .. }
            | Event::ValuationFailed { task, .. }
            | Event::SettlementPosted { task, .. }
            | Event::SettlementFinal { task, .. }
            | Event::SettlementCancelled { task, .. }
            | Event::SettlementRefused { task, .. }
            | Event::CloseRequested { task }
            | Event::Closed { task, .. }
            | Event::DebitsProven { task, .. }
            | Event::Kept { task, .. } => vec![*task],
            Event::Tick => {
                let due = |task: &TaskState| task.deadline().is_some_and(|t| t <= now);
                self.state.tasks.iter().filter(|(_, t)| due(t)).map(|(id, _)| *id).collect()
            }
        }
    }

    fn wants(&self, tasks: &[TaskId]) -> BTreeSet<Effect> {
        let known = tasks.iter().filter_map(|id| self.state.tasks.get(id));
        known.flat_map(TaskState::wants).collect()
    }

    /// The only function that changes the state. The event has passed [`Engine::check`].
    fn change(&mut self, event: &Event, now: Timestamp) {
        match event {
            Event::Registered(registration) => self.register(registration, now),
            Event::Published { spec, model_bytes, update_bytes } => {
                self.publish(spec, [*model_bytes, *update_bytes], now);
            }
            Event::Tick => {
                for task in self.state.tasks.values_mut() {
                    task.tick(now);
                }
            }
            Event::WorkRecorded { record, agrees } => {
                let found = self.find_order(record.body.order);
                let task = found.and_then(|(id, _)| self.state.tasks.get_mut(&id));
                if let Some(task) = task {
                    task.keep_record(record, *agrees, now);
                }
            }
            _ => self.change_task(event, now),
        }
    }

    fn change_task(&mut self, event: &Event, now: Timestamp) {
        let id = self.touched(event, now).first().copied();
        let Some(task) = id.and_then(|id| self.state.tasks.get_mut(&id)) else {
            return;
        };
        match event {
            Event::BlobArrived { digest, .. } => task.blob_arrived(*digest, now),
            Event::HoldoutArrived { digest, .. } => task.holdout_arrived(*digest, now),
            Event::Enrolled { enrol, bond } => task.enrol(enrol.body.sender, *bond, now),
            Event::Committed { commit, bond } => task.commit(commit, *bond, now),
            Event::Revealed(header) => task.reveal(header, now),
            Event::Refused { sender, code, .. } => task.refuse(*sender, *code),
            Event::ProviderReady { provider, .. } => task.provider_ready(*provider),
            Event::Disclosed { shown, .. } => task.disclosed(*shown, now),
            Event::Valued { result, paid, wrong, .. } => task.valued(result, *paid, wrong, now),
            Event::ValuationFailed { .. } => task.valuation_failed(now),
            Event::SettlementPosted { round, .. } => task.posted(*round, now),
            Event::SettlementFinal { round, .. } => task.finalised(*round, now),
            Event::SettlementCancelled { round, .. } | Event::SettlementRefused { round, .. } => {
                task.give_up_from(*round);
            }
            Event::CloseRequested { .. } => task.close_requested(),
            Event::Closed { refund, .. } => task.closed(*refund),
            Event::DebitsProven { round, .. } => task.debits_proven(*round),
            Event::Kept { round, digest, .. } => task.kept(*round, *digest),
            Event::Registered(_)
            | Event::Published { .. }
            | Event::Tick
            | Event::WorkRecorded { .. } => {}
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

/// Shorthand for an `Err` with a [`Rejection`].
fn reject<T>(code: ErrorCode, message: impl Into<String>) -> Result<T, Rejection> {
    Err(Rejection::new(code, message))
}
