//! Work orders, the providers that execute them, and the providers' work records.

use alloc::format;
use alloc::vec::Vec;

use florin_protocol::{
    Address, Canonical, Digest, ErrorCode, MissingReason, Rejection, Role, RoundNumber, Signed,
    TaskId, Timestamp, UpdateEntry, WorkOrder, WorkRecord, WorkResult,
};

use super::event::EventStatus;
use super::rejection::{expired, reject, wrong_record};
use super::state::{AcceptedCommit, ReceivedRecord, RunningRound, TaskStage, TaskState};
use super::{Engine, PROVIDERS_PER_TASK_MAX, RECORDS_PER_ORDER_MAX};

impl Engine {
    /// The task and round of a work order.
    #[must_use]
    pub fn find_order(&self, order: Digest) -> Option<(TaskId, RoundNumber)> {
        let mut tasks = self.state.tasks.iter();
        tasks.find_map(|(id, task)| task.orders.get(&order).map(|round| (*id, *round)))
    }

    pub(super) fn check_provider(
        &self,
        id: TaskId,
        provider: Address,
        now: Timestamp,
    ) -> Result<EventStatus, Rejection> {
        let task = self.task(id)?;
        self.require_registration(provider, Role::Provider)?;
        let has_order = match &task.stage {
            TaskStage::Valuing(running) if running.work_order.is_some() => {
                running.order_recipients.contains(&provider)
            }
            _ => true,
        };
        let is_known = has_order && task.providers.contains(&provider);
        let stake = self.stake_of_task(id);
        let renews = || self.renews_deposit((provider, Role::Provider), id, stake, now);
        if task.is_over() || is_known && !renews() {
            return Ok(EventStatus::Duplicate);
        }
        let new = !task.providers.contains(&provider);
        if new && task.providers.len() >= PROVIDERS_PER_TASK_MAX {
            let message = format!("a task takes at most {PROVIDERS_PER_TASK_MAX} providers");
            return reject(ErrorCode::TaskFull, message);
        }
        Ok(EventStatus::New)
    }

    pub(super) fn check_record(
        &self,
        record: &WorkRecord,
        agrees: Option<bool>,
        now: Timestamp,
    ) -> Result<EventStatus, Rejection> {
        self.check_market(record.market)?;
        self.require_registration(record.provider, Role::Provider)?;
        let gone = || {
            let message = "no such work order is open: it is completed or was never issued";
            Rejection::new(ErrorCode::WorkOrderClosed, message)
        };
        if self.record_outcome(record.order, record.digest()).is_some() {
            return Ok(EventStatus::Duplicate);
        }
        let (id, round) = self.find_order(record.order).ok_or_else(gone)?;
        let TaskStage::Valuing(running) = &self.task(id)?.stage else {
            return Err(gone());
        };
        if running.offer.scope.round != round {
            return Err(gone());
        }
        let known = running.records.iter().find(|known| known.provider() == record.provider);
        if let Some(known) = known {
            if known.signed.body == *record {
                return Ok(EventStatus::Duplicate);
            }
            let message = "this order already has another record from you; only the first counts";
            return reject(ErrorCode::ConflictingMessage, message);
        }
        if let Some(order) = running.work_order.as_ref().filter(|order| now > order.due) {
            return expired("the work order", order.due, now);
        }
        if running.own_result.is_some() && agrees.is_none() {
            return reject(
                ErrorCode::Internal,
                "a result exists: the record must be compared with it",
            );
        }
        if running.records.len() >= RECORDS_PER_ORDER_MAX {
            let message = format!("a work order accepts at most {RECORDS_PER_ORDER_MAX} records");
            return reject(ErrorCode::WorkOrderClosed, message);
        }
        Ok(EventStatus::New)
    }

    /// The coordinator's own result of an order, while providers may still submit records that
    /// agree with it.
    #[must_use]
    pub fn own_result(&self, order: Digest) -> Option<&WorkResult> {
        let (id, round) = self.find_order(order)?;
        let running = self.state.tasks.get(&id)?.running()?;
        running.own_result.as_deref().filter(|_| running.offer.scope.round == round)
    }

    /// The outcome of a record: the units paid, or the rejection. `None` for a record that is not
    /// verified yet or was never accepted, and for one of a round that is not in memory.
    #[must_use]
    pub fn record_outcome(&self, order: Digest, record: Digest) -> Option<Result<u64, Rejection>> {
        let (id, round) = self.find_order(order)?;
        let task = self.state.tasks.get(&id)?;
        if task.running().is_some_and(|running| running.wrong_records.contains(&record)) {
            return Some(wrong_record());
        }
        task.reported_round(round)?.record_outcome(record)
    }

    /// The open order that `provider` can execute: its deadline has not passed, and the provider
    /// has not submitted a record.
    #[must_use]
    pub fn open_order(&self, id: TaskId, provider: Address, now: Timestamp) -> Option<&WorkOrder> {
        let TaskStage::Valuing(running) = &self.state.tasks.get(&id)?.stage else {
            return None;
        };
        let done = running.records.iter().any(|record| record.provider() == provider);
        running.work_order.as_ref().filter(|order| !done && now <= order.due)
    }
}

impl TaskState {
    pub(super) fn provider_ready(&mut self, provider: Address) {
        self.providers.insert(provider);
        if let TaskStage::Valuing(running) = &mut self.stage
            && running.work_order.is_some()
        {
            running.order_recipients.insert(provider);
        }
    }

    /// Issues the work order. Providers execute it if some have asked for work; otherwise the
    /// coordinator does.
    pub(super) fn issue_work_order(&mut self, order: WorkOrder) {
        let no_providers = self.providers.is_empty();
        let (digest, round) = (order.digest(), order.scope.round);
        if let Some(running) = self.running_mut() {
            running.work_order = Some(order);
            running.own_valuation_due = no_providers;
            self.orders.insert(digest, round);
        }
    }

    /// The accepted updates as report entries, ascending by sender.
    pub(super) fn entries(&self, running: &RunningRound) -> Vec<UpdateEntry> {
        let both = running.updates.iter().filter_map(|(sender, update)| {
            running.commits.get(sender).map(|commit| (update, commit))
        });
        both.map(|(update, &AcceptedCommit { bond, order, .. })| {
            let header = &update.header.body;
            UpdateEntry {
                sender: header.sender,
                header: update.id,
                update: header.update,
                salt: header.salt,
                rows_declared: header.rows,
                rows_counted: self.spec.rows_counted(header.rows, bond),
                bond,
                commit_position: order,
                staleness: self.history.staleness(header.sender),
            }
        })
        .collect()
    }

    /// Adds a provider's record. The first record triggers the coordinator's own computation. Once
    /// its result exists, a record that agrees with it ends the round; after one that disagrees,
    /// other providers with the order still have until its deadline.
    pub(super) fn add_record(
        &mut self,
        record: &Signed<WorkRecord>,
        agrees: Option<bool>,
        now: Timestamp,
    ) {
        let Some(running) = self.running_mut() else {
            return;
        };
        let digest = record.body.digest();
        running.records.push(ReceivedRecord { digest, signed: record.clone() });
        running.own_valuation_due = true;
        if agrees == Some(false) {
            running.wrong_records.insert(digest);
        }
        if running.own_result.is_some() {
            self.finish_or_wait(agrees.and_then(|agrees| agrees.then_some(digest)), now);
        }
    }

    /// The order's deadline has passed: the coordinator's own result counts, or is computed now.
    pub(super) fn order_due(&mut self, now: Timestamp) {
        let Some(running) = self.running_mut() else {
            return;
        };
        running.own_valuation_due = true;
        if running.own_result.is_some() {
            self.finish_or_wait(None, now);
        }
    }
}

impl RunningRound {
    /// The cohort members without an accepted update, with the reason; ascending.
    pub(super) fn missing(&self) -> Vec<(Address, MissingReason)> {
        let absent = self.offer.cohort.iter().filter(|who| !self.updates.contains_key(who));
        let why = |who: &Address| match (self.rejected_uploads.get(who), self.commits.get(who)) {
            (Some(rejected), _) => MissingReason::Rejected(rejected.last),
            (None, Some(_)) => MissingReason::NoReveal,
            (None, None) => MissingReason::NoCommit,
        };
        absent.map(|who| (*who, why(who))).collect()
    }
}
