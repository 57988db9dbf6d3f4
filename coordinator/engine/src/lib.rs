//! The round, as a function: (state, event, now) → effects.
//!
//! Everything the engine is told is an [`Event`] with the moment it was told at; its [`State`] is the fold of them, so
//! a journal of events is the whole memory of a coordinator. There are no sockets, threads, clocks, random numbers or
//! floats in here. Heavy work leaves as an [`Effect`] and comes back as an event. An event is checked whole before
//! anything changes; a rejected one changes nothing and is not journaled.
//!
//! A task's way through the files, one phase each:
//!
//! * `enrol`: registrations, the task's publication and first blobs, participants.
//! * `offer`: who is asked, and the round's offer; waiting for enough participants.
//! * `collect`: commits, then reveals; closing both early or by their deadlines.
//! * `disclose`: the rows that judge the round, drawn and shown.
//! * `value`: the work order, providers and their records.
//! * `aggregate`: the work's result becomes the round's report; a round without one is abandoned.
//! * `settle`: settlements on their way to final, and the task's end.
//!
//! Beside them [`state`] is what is remembered, [`event`] what is said, and `view` what may be read.

#![no_std]

extern crate alloc;

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use florin_protocol::{Address, Code, Market, Rejection, TaskId, Tick};

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

/// Tasks one coordinator runs at once; those that are done are remembered besides.
pub const TASKS_MAX: usize = 10_000;
/// Registrations one coordinator remembers.
pub const REGISTRATIONS_MAX: usize = 100_000;
/// Furthest expiry of a registration, in milliseconds from when it is made (two years).
pub const REGISTRATION_MS_MAX: u64 = 2 * 365 * 24 * 3_600 * 1_000;
/// Work records kept for one order: one a provider, the first so many.
pub const RECORDS_PER_ORDER_MAX: usize = 64;
/// Providers remembered as having asked for a task's work.
pub const PROVIDERS_PER_TASK_MAX: usize = 1_024;
/// Rounds that somebody sits out who was asked, did not deliver and enrolled again.
pub const SIT_OUT_ROUNDS: u32 = 1;
/// Refused uploads of one sender in one round that are remembered; more are refused all the same.
pub const REFUSALS_MAX: u32 = 8;

/// The state machine of one coordinator.
#[derive(Clone, Debug)]
pub struct Engine {
    market: Market,
    coordinator: Address,
    state: State,
}

impl Engine {
    /// An engine that has been told nothing yet.
    #[must_use]
    pub fn new(market: Market, coordinator: Address) -> Self {
        Self { market, coordinator, state: State::default() }
    }

    /// An engine that has been told what came to this state.
    #[must_use]
    pub const fn with(market: Market, coordinator: Address, state: State) -> Self {
        Self { market, coordinator, state }
    }

    /// The market it serves.
    #[must_use]
    pub const fn market(&self) -> Market {
        self.market
    }

    /// The coordinator's account.
    #[must_use]
    pub const fn coordinator(&self) -> Address {
        self.coordinator
    }

    /// Everything it remembers.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Whether `event` would be accepted at `now`, and whether it would change anything. Time never runs backwards: an
    /// earlier `now` counts as the last one.
    ///
    /// # Errors
    /// The [`Rejection`] for whoever said it.
    pub fn check(&self, event: &Event, now: Tick) -> Result<Verdict, Rejection> {
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

    /// Takes one event: checks everything, then changes everything.
    ///
    /// # Errors
    /// The [`Rejection`] for whoever said it; nothing has changed then.
    pub fn apply(&mut self, event: &Event, now: Tick) -> Result<Applied, Rejection> {
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
        // Where a round is kept is nothing that anybody could see.
        let changed = if matches!(event, Event::Kept { .. }) { Vec::new() } else { touched };
        for id in &changed {
            if let Some(task) = self.state.tasks.get_mut(id) {
                task.sequence = task.sequence.saturating_add(1);
            }
        }
        Ok(Applied { verdict: Verdict::New, effects, changed })
    }

    /// Everything that should be under way now: what a host starts after a restart.
    #[must_use]
    pub fn outstanding(&self) -> Vec<Effect> {
        let all: Vec<TaskId> = self.state.tasks.keys().copied().collect();
        self.wants(&all).into_iter().collect()
    }

    /// The next moment at which [`Event::Tick`] would change something.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Tick> {
        self.state.tasks.values().filter_map(TaskState::deadline).min()
    }

    fn check_tick(&self, now: Tick) -> Verdict {
        match self.next_deadline() {
            Some(deadline) if deadline <= now => Verdict::New,
            _ => Verdict::Repeat,
        }
    }

    /// The tasks an event may change.
    fn touched(&self, event: &Event, now: Tick) -> Vec<TaskId> {
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

    /// The one writer. Only called with an event that passed [`Engine::check`].
    fn change(&mut self, event: &Event, now: Tick) {
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

    fn change_task(&mut self, event: &Event, now: Tick) {
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

    /// The task of that id.
    fn task(&self, id: TaskId) -> Result<&TaskState, Rejection> {
        self.state.tasks.get(&id).ok_or_else(|| {
            Rejection::new(Code::UnknownTask, format!("no task {id} is published here"))
        })
    }

    fn check_market(&self, market: Market) -> Result<(), Rejection> {
        if market == self.market {
            return Ok(());
        }
        let message = format!(
            "said for chain {} and genesis {}; this market is chain {} and genesis {}",
            market.chain,
            market.genesis.short(),
            self.market.chain,
            self.market.genesis.short()
        );
        Err(Rejection::new(Code::WrongMarket, message))
    }
}

/// A rejection in one word less.
fn reject<T>(code: Code, message: impl Into<String>) -> Result<T, Rejection> {
    Err(Rejection::new(code, message))
}
