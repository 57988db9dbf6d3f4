//! The publication of a task, its limits, and the tasks that end so that others find room.
//!
//! A task needs its model and its holdout by a deadline. A buyer has a limited number of open
//! tasks, and of tasks that wait for these blobs. At the limit of the whole market the task with
//! the least locked money gives way to one with more: a task that has not begun as soon as the new
//! one locks more, a task that has begun only to [`BEGUN_TASK_WEIGHT`] times its money. To shut the
//! market, an attacker has to lock a tenth of an honest budget in each of [`TASKS_MAX`] tasks. A
//! task that gives way is closed on the ledger, and its buyer has its money back.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use florin_protocol::limits::BLOB_BYTES_MAX;
use florin_protocol::{
    Address, Amount, EarlierUpdates, ErrorCode, Rejection, TaskEnd, TaskHistory, TaskId, TaskSpec,
    Timestamp,
};

use super::enrol::last_start;
use super::event::EventStatus;
use super::rejection::reject;
use super::state::{PoolAmounts, TaskStage, TaskState};
use super::{
    BEGUN_TASK_WEIGHT, BLOB_BYTES_PER_SECOND_MIN, BLOBS_MS, Engine, INCOMPLETE_TASKS_PER_BUYER_MAX,
    TASKS_MAX, TASKS_PER_BUYER_MAX,
};

/// Length of a holdout's header, before its rows.
const HOLDOUT_HEADER_BYTES: u64 = 32;

/// Exact lengths of a task's blobs, in bytes.
#[derive(Clone, Copy)]
pub(super) struct BlobLengths {
    pub(super) model: u64,
    pub(super) update: u64,
}

/// The exact length of a task's holdout: a header, then four bytes for each feature and label.
#[must_use]
pub fn holdout_bytes(spec: &TaskSpec) -> u64 {
    let row = u64::from(spec.data.width).saturating_add(1).saturating_mul(4);
    u64::from(spec.holdout.rows).saturating_mul(row).saturating_add(HOLDOUT_HEADER_BYTES)
}

impl Engine {
    pub(super) fn check_published(
        &self,
        spec: &TaskSpec,
        lengths: BlobLengths,
        now: Timestamp,
    ) -> Result<EventStatus, Rejection> {
        self.check_market(spec.market)?;
        if self.state.tasks.contains_key(&spec.id()) {
            return Ok(EventStatus::Duplicate);
        }
        spec.check().map_err(|error| Rejection::new(ErrorCode::InvalidTask, error.to_string()))?;
        if spec.coordinator != self.coordinator {
            let message = format!(
                "coordinator = {}: this coordinator is {}",
                spec.coordinator, self.coordinator
            );
            return reject(ErrorCode::InvalidTask, message);
        }
        for (what, bytes) in [("model parameters", lengths.model), ("update", lengths.update)] {
            if !(1..=BLOB_BYTES_MAX).contains(&bytes) {
                let message = format!("{what}: {bytes} bytes; the limit is {BLOB_BYTES_MAX}");
                return reject(ErrorCode::InvalidTask, message);
            }
        }
        if now > last_start(spec) {
            let message = format!(
                "expires = {}: one round, its settlement and the challenge window take {} ms, and \
                 it is {now} now: use a later time",
                spec.expires,
                spec.unbond_ms_min()
            );
            return reject(ErrorCode::InvalidTask, message);
        }
        self.check_tasks_of(spec.buyer)?;
        self.check_room_for(spec)?;
        Ok(EventStatus::New)
    }

    /// The limits of one buyer.
    fn check_tasks_of(&self, buyer: Address) -> Result<(), Rejection> {
        let own = || self.open_tasks().filter(|task| task.spec.buyer == buyer);
        let incomplete = || own().filter(|task| task.is_incomplete());
        let count = incomplete().count();
        if count >= INCOMPLETE_TASKS_PER_BUYER_MAX {
            let last = incomplete().map(|task| task.blobs_by).max().unwrap_or_default();
            let message = format!(
                "{buyer} has {count} tasks here that wait for their model or holdout, and \
                 {INCOMPLETE_TASKS_PER_BUYER_MAX} is the limit: upload these, or publish this task \
                 again after {last}, when the others have ended"
            );
            return reject(ErrorCode::LimitReached, message);
        }
        if own().count() >= TASKS_PER_BUYER_MAX {
            let message = format!(
                "{buyer} has {TASKS_PER_BUYER_MAX} open tasks here, which is the limit: close one \
                 (`florin task close`) and publish this task again"
            );
            return reject(ErrorCode::LimitReached, message);
        }
        Ok(())
    }

    /// The limit of the whole market.
    fn check_room_for(&self, spec: &TaskSpec) -> Result<(), Rejection> {
        if !self.is_full() || self.gives_way_to(spec).is_some() {
            return Ok(());
        }
        let least = self.open_tasks().map(TaskState::weight).min().unwrap_or(Amount::ZERO);
        let message = format!(
            "this coordinator runs at most {TASKS_MAX} tasks at once, and none of them gives way \
             to {} FLN: publish this task again later, or a task that locks more than {least} FLN",
            locked_by(spec)
        );
        reject(ErrorCode::LimitReached, message)
    }

    fn open_tasks(&self) -> impl Iterator<Item = &TaskState> {
        self.state.tasks.values().filter(|task| task.end.is_none())
    }

    fn is_full(&self) -> bool {
        self.state.tasks.len() >= TASKS_MAX && self.open_tasks().count() >= TASKS_MAX
    }

    /// In a full market, the task that ends to make room for a new one.
    pub(super) fn gives_way_to(&self, spec: &TaskSpec) -> Option<TaskId> {
        if !self.is_full() {
            return None;
        }
        let least = self.open_tasks().min_by_key(|task| (task.weight(), task.id))?;
        (least.weight() < locked_by(spec)).then_some(least.id)
    }

    pub(super) fn publish(&mut self, spec: &TaskSpec, lengths: BlobLengths, now: Timestamp) {
        let gone = self.gives_way_to(spec);
        if let Some(task) = gone.and_then(|id| self.state.tasks.get_mut(&id)) {
            task.end_soon(TaskEnd::GaveWay, now);
        }
        let id = spec.id();
        let task = TaskState {
            id,
            spec: spec.clone(),
            model_bytes: lengths.model,
            update_bytes: lengths.update,
            sequence: 0,
            missing_blobs: spec.blobs().collect(),
            blobs_by: blobs_by(spec, lengths, now),
            holdout: None,
            enrolled: BTreeMap::new(),
            cohort_seed: None,
            newcomers: BTreeSet::new(),
            quotes: BTreeMap::new(),
            history: TaskHistory::default(),
            enrolled_after_commits: BTreeSet::new(),
            invitations: BTreeMap::new(),
            sitting_out: BTreeMap::new(),
            shared: BTreeMap::new(),
            providers: BTreeSet::new(),
            stage: TaskStage::AwaitingBlobs,
            rounds: Vec::new(),
            rounds_in_memory: BTreeMap::new(),
            earlier: EarlierUpdates::default(),
            paid: PoolAmounts::default(),
            final_totals: None,
            exposed: BTreeSet::new(),
            record_providers: BTreeSet::new(),
            pending_settlements: BTreeMap::new(),
            final_rounds: BTreeSet::new(),
            rounds_with_unproven_debits: BTreeSet::new(),
            orders: BTreeMap::new(),
            public: BTreeSet::new(),
            end: None,
            abandoned_in_a_row: 0,
            refund: None,
            awaits_bond: spec.arbiter != spec.coordinator,
        };
        self.state.now = self.state.now.max(now);
        self.state.tasks.insert(id, task);
    }
}

impl TaskState {
    /// Whether the task waits for its model or its holdout.
    pub(super) const fn is_incomplete(&self) -> bool {
        matches!(self.stage, TaskStage::AwaitingBlobs)
    }

    /// Checks that a model or a holdout can still arrive.
    pub(super) fn check_awaits_blobs(&self) -> Result<(), Rejection> {
        if self.is_incomplete() {
            return Ok(());
        }
        let message = format!(
            "task {} has ended: its model and holdout were due by {}, and in a full market a task \
             with little money ends earlier. Its budget returns to the buyer; publish the task \
             again with another salt",
            self.id.short(),
            self.blobs_by
        );
        reject(ErrorCode::TaskClosed, message)
    }

    /// The money by which a full market compares the task with a new one.
    fn weight(&self) -> Amount {
        let (budget, paid) = (&self.spec.budget, &self.paid);
        let data = budget.data.minus(paid.data).unwrap_or(Amount::ZERO);
        let infrastructure =
            budget.infrastructure.minus(paid.infrastructure).unwrap_or(Amount::ZERO);
        let most = Amount::from_units(u128::MAX);
        let locked = data.plus(infrastructure).unwrap_or(most);
        let has_begun = !self.rounds.is_empty() || self.running().is_some();
        let factor = if has_begun { BEGUN_TASK_WEIGHT } else { 1 };
        locked.mul_div_down(factor, 1).unwrap_or(most)
    }
}

/// The money that a new task locks.
fn locked_by(spec: &TaskSpec) -> Amount {
    let both = spec.budget.data.plus(spec.budget.infrastructure);
    both.unwrap_or(Amount::from_units(u128::MAX))
}

/// The latest time for a task's model and holdout. A large upload that keeps the lowest rate is in
/// time.
fn blobs_by(spec: &TaskSpec, lengths: BlobLengths, now: Timestamp) -> Timestamp {
    let blobs = spec.blobs().filter_map(|digest| spec.blob_bytes(digest, lengths.model));
    let bytes = blobs.fold(holdout_bytes(spec), u64::saturating_add);
    let transfer_ms = bytes.saturating_mul(1_000).checked_div(BLOB_BYTES_PER_SECOND_MIN);
    now.saturating_add_ms(BLOBS_MS).saturating_add_ms(transfer_ms.unwrap_or(u64::MAX))
}
