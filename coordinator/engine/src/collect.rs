//! Commits, then reveals. A deadline is inclusive: a message at the deadline is in time, one
//! millisecond later it is late.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use florin_protocol::{
    Address, Amount, Canonical, Commit, Digest, ErrorCode, Rejection, Role, RoundNumber,
    RoundScope, Signed, TaskId, Timestamp, UpdateHeader, UpdateId, UpdateReceipt,
};

use super::event::EventStatus;
use super::rejection::{expired, reject};
use super::state::{
    AcceptedCommit, AcceptedUpdate, RejectedUploads, RunningRound, TaskStage, TaskState,
};
use super::{Engine, REJECTED_UPLOADS_MAX};

impl Engine {
    pub(super) fn check_committed(
        &self,
        commit: &Commit,
        bond: Amount,
        now: Timestamp,
    ) -> Result<EventStatus, Rejection> {
        let (task, running) = self.check_scope(&commit.scope, commit.sender, commit.offer)?;
        if let Some(taken) = running.commits.get(&commit.sender) {
            if taken.commit.body == *commit {
                return Ok(EventStatus::Duplicate);
            }
            let message = "this round already has another commit from you; only the first counts. If \
                           another process takes part with this wallet, stop one of the two";
            return reject(ErrorCode::ConflictingMessage, message);
        }
        let by = running.offer.commit_by;
        if !matches!(task.stage, TaskStage::Committing(_)) {
            let message = format!("commits of round {} are closed", commit.scope.round);
            return reject(ErrorCode::DeadlinePassed, message);
        }
        if now > by {
            return reject(
                ErrorCode::DeadlinePassed,
                format!("commits were due by {by}, and it is {now}"),
            );
        }
        task.bond_at_risk(commit.sender, bond)?;
        Ok(EventStatus::New)
    }

    pub(super) fn check_revealed(
        &self,
        header: &UpdateHeader,
        now: Timestamp,
    ) -> Result<EventStatus, Rejection> {
        if self.receipt(header.scope, header.sender, header.digest()).is_some() {
            return Ok(EventStatus::Duplicate);
        }
        let (task, running) = self.check_scope(&header.scope, header.sender, header.offer)?;
        if !task.accepts_base(header, running) {
            let message = wrong_base_model(task, header, running);
            return reject(ErrorCode::WrongBaseModel, message);
        }
        if !header.has_valid_rows() {
            let message = format!("rows = {}: use 1 to 1000000000", header.rows);
            return reject(ErrorCode::InvalidRowCount, message);
        }
        if now > header.expires {
            return expired("the update's header", header.expires, now);
        }
        check_length(header.bytes, task.update_bytes)?;
        check_reveal_phase(task, running, now)?;
        let Some(taken) = running.commits.get(&header.sender) else {
            let message = "this round has no commit from you, so no update is accepted";
            return reject(ErrorCode::NotCommitted, message);
        };
        if running.updates.contains_key(&header.sender) {
            let message = "this round already has another update from you; only the first counts. If \
                           another process takes part with this wallet, stop one of the two";
            return reject(ErrorCode::ConflictingMessage, message);
        }
        if taken.commit.body.commitment != header.commitment() {
            let message = "the hash of update, salt and sender differs from your commitment";
            return reject(ErrorCode::CommitMismatch, message);
        }
        Ok(EventStatus::New)
    }

    /// The checks that commits and updates share: market, task, round, sender and offer.
    fn check_scope(
        &self,
        scope: &RoundScope,
        sender: Address,
        offer: Digest,
    ) -> Result<(&TaskState, &RunningRound), Rejection> {
        self.check_market(scope.market)?;
        let task = self.task(scope.task)?;
        self.require_registration(sender, Role::Participant)?;
        let running = task.running().filter(|running| running.offer.scope.round == scope.round);
        let Some(running) = running else {
            return wrong_round(task, scope.round);
        };
        if !running.is_in_cohort(sender) {
            if !task.enrolled.contains_key(&sender) {
                let message = format!("{sender} is not enrolled in task {}", scope.task.short());
                return reject(ErrorCode::NotEnrolled, message);
            }
            let message = format!("{sender} was not selected for round {}", scope.round);
            return reject(ErrorCode::NotSelected, message);
        }
        if offer != running.offer_digest {
            let message = format!(
                "the message refers to offer {}, but round {} has offer {}",
                offer.short(),
                scope.round,
                running.offer_digest.short()
            );
            return reject(ErrorCode::WrongRound, message);
        }
        Ok((task, running))
    }

    pub(super) fn check_upload_rejected(
        &self,
        id: TaskId,
        round: RoundNumber,
        sender: Address,
    ) -> Result<EventStatus, Rejection> {
        let task = self.task(id)?;
        let TaskStage::Revealing(running) = &task.stage else {
            return Ok(EventStatus::Duplicate);
        };
        let counts = running.offer.scope.round == round
            && running.commits.contains_key(&sender)
            && !running.updates.contains_key(&sender)
            && running
                .rejected_uploads
                .get(&sender)
                .is_none_or(|rejected| rejected.count < REJECTED_UPLOADS_MAX);
        Ok(if counts { EventStatus::New } else { EventStatus::Duplicate })
    }

    /// The receipt of an accepted update: always the same for the same update. `None` if the round
    /// is not in memory: [`super::state::ReportedRound::receipt`] of the archived round has it.
    #[must_use]
    pub fn receipt(
        &self,
        scope: RoundScope,
        sender: Address,
        update: UpdateId,
    ) -> Option<UpdateReceipt> {
        let task = self.state.tasks.get(&scope.task).filter(|_| scope.market == self.market)?;
        let running = task.running().filter(|running| running.offer.scope.round == scope.round);
        let Some(running) = running else {
            return task.reported_round(scope.round)?.receipt(scope, sender, update);
        };
        let (taken, commit) = (running.updates.get(&sender)?, running.commits.get(&sender)?);
        let receipt =
            UpdateReceipt { scope, sender, update, at: taken.at, commit_position: commit.order };
        (taken.id == update).then_some(receipt)
    }
}

fn wrong_round<T>(task: &TaskState, round: RoundNumber) -> Result<T, Rejection> {
    if task.is_over() {
        return reject(
            ErrorCode::TaskClosed,
            format!("task {} has no more rounds", task.id.short()),
        );
    }
    let now = match task.running() {
        Some(running) => format!("round {} is running", running.offer.scope.round),
        None => format!("round {} has not opened yet", task.current_round()),
    };
    reject(ErrorCode::WrongRound, format!("the message is for round {round}, but {now}"))
}

fn wrong_base_model(task: &TaskState, header: &UpdateHeader, running: &RunningRound) -> String {
    let (from, base) = (header.base_model, running.offer.base_model);
    match task.spec.rounds.staleness.rounds {
        0 => format!("trained from model {from}, but the base model of the offer is {base}"),
        rounds => format!(
            "trained from model {from}, which is the base model neither of the offer ({base}) nor \
             of the {rounds} rounds before it: train again"
        ),
    }
}

fn check_length(actual: u64, expected: u64) -> Result<(), Rejection> {
    let message = format!("an update of this task has {expected} bytes, not {actual}");
    match actual.cmp(&expected) {
        core::cmp::Ordering::Equal => Ok(()),
        core::cmp::Ordering::Greater => reject(ErrorCode::TooLarge, message),
        core::cmp::Ordering::Less => reject(ErrorCode::Truncated, message),
    }
}

fn check_reveal_phase(
    task: &TaskState,
    running: &RunningRound,
    now: Timestamp,
) -> Result<(), Rejection> {
    let by = running.offer.reveal_by;
    match task.stage {
        TaskStage::Committing(_) => reject(
            ErrorCode::TooEarly,
            "commits are still open: upload after they close, so that no participant can copy your \
             update",
        ),
        TaskStage::Revealing(_) if now <= by => Ok(()),
        _ => {
            reject(ErrorCode::DeadlinePassed, format!("updates were due by {by}, and it is {now}"))
        }
    }
}

impl TaskState {
    pub(super) fn commit(&mut self, commit: &Signed<Commit>, bond: Amount, now: Timestamp) {
        let sender = commit.body.sender;
        let bond = bond.minus(self.pending_debits(sender)).unwrap_or(Amount::ZERO);
        self.enrolled.insert(sender, bond);
        let target = usize::try_from(self.spec.rounds.cohort_target).unwrap_or(usize::MAX);
        let Some(running) = self.running_mut() else {
            return;
        };
        let order = u32::try_from(running.commits.len()).unwrap_or(u32::MAX).saturating_add(1);
        let accepted = AcceptedCommit { commit: commit.clone(), bond, at: now, order };
        running.commits.insert(sender, accepted);
        let taken = running.commits.len();
        if taken >= target || taken == running.offer.cohort.len() {
            self.close_commits(now);
        }
    }

    pub(super) fn reveal(&mut self, header: &Signed<UpdateHeader>, now: Timestamp) {
        let Some(running) = self.running_mut() else {
            return;
        };
        let taken = AcceptedUpdate { header: header.clone(), id: header.body.digest(), at: now };
        running.updates.insert(header.body.sender, taken);
        if running.updates.len() == running.commits.len() {
            self.close_reveals(now);
        }
    }

    pub(super) fn count_rejected_upload(&mut self, sender: Address, code: ErrorCode) {
        if let Some(running) = self.running_mut() {
            let first = RejectedUploads { last: code, count: 0 };
            let rejected = running.rejected_uploads.entry(sender).or_insert(first);
            rejected.last = code;
            rejected.count = rejected.count.saturating_add(1);
        }
    }

    /// A participant that did not commit until the deadline is not selected again until it enrols
    /// again: a participant that never responds would delay every round. Where late updates count,
    /// that holds for one whose training may not go on, also if commits end early: it would occupy a
    /// place for good.
    fn exclude_silent(&mut self, now: Timestamp) {
        let rule = self.spec.rounds.staleness;
        let excludes =
            |running: &&RunningRound| now > running.offer.commit_by || rule.admits_late();
        let Some(running) = self.running().filter(excludes) else {
            return;
        };
        let round = running.offer.scope.round;
        let cohort = running.offer.cohort.iter();
        let silent = cohort.filter(|who| !running.commits.contains_key(who));
        let silent = silent.filter(|who| !self.history.may_continue(rule, **who, round));
        let silent: Vec<_> = silent.map(|who| (*who, None)).collect();
        self.sitting_out.extend(silent);
    }

    /// Closes commits. The reveals start, unless there are too few commits.
    pub(super) fn close_commits(&mut self, now: Timestamp) {
        self.exclude_silent(now);
        let Some(mut running) = self.take_running() else {
            return;
        };
        running.commits_closed = Some(now);
        if running.commits.len() < self.cohort_min() {
            self.abandon_too_few(&running, now);
        } else {
            self.stage = TaskStage::Revealing(running);
        }
    }

    /// Closes reveals. The valuation starts, unless there are too few updates.
    pub(super) fn close_reveals(&mut self, now: Timestamp) {
        let Some(running) = self.take_running() else {
            return;
        };
        let senders = running.commits.keys();
        let silent = senders.filter(|who| !running.updates.contains_key(who));
        self.sitting_out.extend(silent.map(|who| (*who, None)));
        if running.updates.len() < self.cohort_min() {
            self.abandon_too_few(&running, now);
        } else {
            self.draw_holdout_rows(running);
        }
    }

    fn cohort_min(&self) -> usize {
        usize::try_from(self.spec.rounds.cohort_min).unwrap_or(usize::MAX)
    }

    /// Takes the running round out of its stage. The caller sets the next stage.
    pub(super) fn take_running(&mut self) -> Option<Box<RunningRound>> {
        match core::mem::replace(&mut self.stage, TaskStage::Closing) {
            TaskStage::Committing(r) | TaskStage::Revealing(r) | TaskStage::Valuing(r) => Some(r),
            other => {
                self.stage = other;
                None
            }
        }
    }
}
