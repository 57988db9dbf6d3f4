//! Read-only queries on the state, and the visibility rules of blobs.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{
    AccountTotals, Address, Amount, Candidates, ClaimProof, Digest, ErrorCode, Offer, Registration,
    Rejection, Report, Role, RoundNumber, TaskId, TaskPhase, TaskProgress, TaskSpec, TaskSummary,
    TaskView, Timestamp, claim_tree, merkle,
};

use super::Engine;
use super::rejection::reject;
use super::state::{
    FinalTotals, ReceivedRecord, ReportedRound, RunningRound, TaskStage, TaskState,
};

/// Where a reported round is stored.
#[derive(Clone, Copy, Debug)]
pub enum RoundLocation<'a> {
    /// In memory.
    InMemory(&'a ReportedRound),
    /// Archived in this blob.
    Archived(Digest),
}

/// Whether a blob may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Public.
    Public,
    /// Known to a task but not public. Only providers whose work order names it may read it.
    NotYetPublic,
    /// Unknown to every task.
    Unknown,
}

/// A task's view, whose offer the caller signs.
#[derive(Debug, Clone, PartialEq)]
pub struct UnsignedTaskView {
    /// The view, without the offer.
    pub view: TaskView,
    /// The running round's offer.
    pub offer: Option<Offer>,
}

impl Engine {
    /// The registration of a wallet in a role. Without a role: the first one that exists, in the
    /// order participant, provider, coordinator.
    ///
    /// # Errors
    /// [`ErrorCode::NotRegistered`].
    pub fn registration(
        &self,
        wallet: Address,
        role: Option<Role>,
    ) -> Result<&Registration, Rejection> {
        let any = [Role::Participant, Role::Provider, Role::Coordinator];
        let roles = any.iter().filter(|known| role.is_none_or(|role| role == **known));
        let found = roles.into_iter().find_map(|r| self.state.registrations.get(&(wallet, *r)));
        found.map(|known| &known.registration).ok_or_else(|| {
            Rejection::new(ErrorCode::NotRegistered, format!("{wallet} is not registered here"))
        })
    }

    /// The public view of a task.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownTask`].
    pub fn view(&self, id: TaskId, now: Timestamp) -> Result<UnsignedTaskView, Rejection> {
        let task = self.task(id)?;
        let running = task.running();
        let progress = self.progress(id)?;
        let view = TaskView {
            sequence: progress.sequence,
            now,
            id,
            spec: task.spec.clone(),
            phase: progress.phase,
            phase_ends: task.deadline(),
            round: progress.round,
            reported: progress.reported,
            finalised: progress.finalised,
            enrolled: progress.enrolled,
            committed: progress.committed,
            revealed: progress.revealed,
            offer: None,
            model: task.rounds.last().map_or(task.spec.base_model, |ended| ended.model),
            missing_blobs: task.missing_blobs.iter().copied().collect(),
            holdout_missing: task.holdout.is_none(),
            waiting: task.waiting_status(now),
            end: task.end,
        };
        Ok(UnsignedTaskView { view, offer: running.map(|running| running.offer.clone()) })
    }

    /// How far a task has come.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownTask`].
    pub fn progress(&self, id: TaskId) -> Result<TaskProgress, Rejection> {
        let task = self.task(id)?;
        let running = task.running();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(TaskProgress {
            sequence: task.sequence,
            phase: task.phase(),
            round: task.displayed_round(),
            reported: count(task.rounds.len()),
            finalised: count(task.final_rounds.len()),
            enrolled: count(task.enrolled.len()),
            committed: running.map_or(0, |r| count(r.commits.len())),
            revealed: running.map_or(0, |r| count(r.updates.len())),
        })
    }

    /// A summary of every task, ascending by id.
    #[must_use]
    pub fn summaries(&self) -> Vec<TaskSummary> {
        let summary = |task: &TaskState| TaskSummary {
            id: task.id,
            name: task.spec.name.clone(),
            phase: task.phase(),
            round: task.displayed_round(),
            rounds: task.spec.rounds.count,
            enrolled: u32::try_from(task.enrolled.len()).unwrap_or(u32::MAX),
            data: task.spec.budget.data,
            infrastructure: task.spec.budget.infrastructure,
            data_paid: task.paid.data,
            infrastructure_paid: task.paid.infrastructure,
        };
        self.state.tasks.values().map(summary).collect()
    }

    /// The running round's offer, if that round has this number.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownTask`].
    pub fn running_offer(
        &self,
        id: TaskId,
        round: RoundNumber,
    ) -> Result<Option<&Offer>, Rejection> {
        let running = self.task(id)?.running();
        let running = running.filter(|running| running.offer.scope.round == round);
        Ok(running.map(|running| &running.offer))
    }

    /// The candidates of the running round's cohort, if that round has this number.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownTask`].
    pub fn running_candidates(
        &self,
        id: TaskId,
        round: RoundNumber,
    ) -> Result<Option<&Candidates>, Rejection> {
        let running = self.task(id)?.running();
        let running = running.filter(|running| running.offer.scope.round == round);
        Ok(running.map(|running| &running.candidates))
    }

    /// The report of a round that is in memory.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownTask`]; [`ErrorCode::NotYetPublic`] for a round without a report;
    /// [`ErrorCode::NotFound`] for an archived round.
    pub fn report(&self, id: TaskId, round: RoundNumber) -> Result<&Report, Rejection> {
        match self.reported_round(id, round)? {
            RoundLocation::InMemory(past) => Ok(&past.report),
            RoundLocation::Archived(digest) => {
                let message = format!("round {round} is archived in blob {digest}");
                Err(Rejection::new(ErrorCode::NotFound, message))
            }
        }
    }

    /// A reported round, or the blob in which it is archived.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownTask`], [`ErrorCode::NotYetPublic`]; [`ErrorCode::NotFound`] for a round
    /// that never exists.
    pub fn reported_round(
        &self,
        id: TaskId,
        round: RoundNumber,
    ) -> Result<RoundLocation<'_>, Rejection> {
        let task = self.task(id)?;
        let archived = || task.round_summary(round)?.archive.map(RoundLocation::Archived);
        task.reported_round(round).map(RoundLocation::InMemory).or_else(archived).ok_or_else(|| {
            let reported = task.rounds.len();
            let message = format!("round {round} has no report; {reported} rounds have one");
            task.absent_round(round).unwrap_or(Rejection::new(ErrorCode::NotYetPublic, message))
        })
    }

    /// The blob in which a round is archived, if it is no longer in memory.
    #[must_use]
    pub fn archive_blob(&self, id: TaskId, round: RoundNumber) -> Option<Digest> {
        self.state.tasks.get(&id)?.round_summary(round)?.archive
    }

    /// The account totals after the last round whose settlement is final on the ledger. Claims are
    /// proven from them.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownTask`]; [`ErrorCode::NotYetPublic`] before the first settlement is final.
    pub fn final_totals(&self, id: TaskId) -> Result<&FinalTotals, Rejection> {
        self.task(id)?.final_totals.as_ref().ok_or_else(|| {
            Rejection::new(ErrorCode::NotYetPublic, "no settlement of this task is final yet")
        })
    }

    /// The visibility of a blob. A complete holdout is unknown to this query: no request may read
    /// it.
    #[must_use]
    pub fn visibility(&self, digest: Digest) -> Visibility {
        let tasks = || self.state.tasks.values();
        if tasks().any(|task| task.public.contains(&digest)) {
            return Visibility::Public;
        }
        let named = |running: &RunningRound| running.has_update(digest);
        let known = |task: &TaskState| {
            task.missing_blobs.contains(&digest) || task.running().is_some_and(named)
        };
        if tasks().any(known) { Visibility::NotYetPublic } else { Visibility::Unknown }
    }

    /// Checks that the task's open work order names the blob, so that a pledged provider may read
    /// it.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownTask`], [`ErrorCode::NotYetPublic`].
    pub fn check_order_names(&self, id: TaskId, digest: Digest) -> Result<(), Rejection> {
        if self.visibility(digest) == Visibility::Public {
            return Ok(());
        }
        let TaskStage::Valuing(running) = &self.task(id)?.stage else {
            return reject(ErrorCode::NotYetPublic, "no work order of this task is open");
        };
        let named = running.work_order.as_ref().is_some_and(|order| {
            order.base_model == digest || order.entries.iter().any(|entry| entry.update == digest)
        });
        if named {
            return Ok(());
        }
        reject(ErrorCode::NotYetPublic, format!("the open work order does not name blob {digest}"))
    }

    /// Whether a provider has received the task's open work order.
    #[must_use]
    pub fn has_order(&self, id: TaskId, provider: Address) -> bool {
        let running = self.state.tasks.get(&id).and_then(TaskState::running);
        running.is_some_and(|running| {
            running.work_order.is_some() && running.order_recipients.contains(&provider)
        })
    }

    /// A task's specification, and whether its holdout is stored.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownTask`]; [`ErrorCode::TaskClosed`] for a task that ended without one.
    pub fn spec_and_has_holdout(&self, id: TaskId) -> Result<(&TaskSpec, bool), Rejection> {
        let task = self.task(id)?;
        if task.holdout.is_none() {
            task.check_awaits_blobs()?;
        }
        Ok((&task.spec, task.holdout.is_some()))
    }

    /// The tasks that are waiting for a blob.
    pub fn tasks_missing_blob(&self, digest: Digest) -> impl Iterator<Item = &TaskState> {
        let waiting = self.state.tasks.values().filter(|task| task.is_incomplete());
        waiting.filter(move |task| task.missing_blobs.contains(&digest))
    }

    /// Whether the round is still waiting for this sender's update.
    #[must_use]
    pub fn awaits_update(&self, id: TaskId, round: RoundNumber, sender: Address) -> bool {
        let running = self.state.tasks.get(&id).map(|task| &task.stage);
        let Some(TaskStage::Revealing(running)) = running else {
            return false;
        };
        running.offer.scope.round == round
            && running.commits.contains_key(&sender)
            && !running.updates.contains_key(&sender)
    }

    /// Whether a task is still waiting for its base model or its holdout.
    #[must_use]
    pub fn awaits_blobs(&self, id: TaskId) -> bool {
        let task = self.state.tasks.get(&id);
        task.is_some_and(|task| matches!(task.stage, TaskStage::AwaitingBlobs))
    }

    /// The reason why this sender's update can never be accepted, if an upload was rejected because
    /// of its content: a commitment fixes the bytes of the update.
    #[must_use]
    pub fn permanent_rejection(
        &self,
        id: TaskId,
        round: RoundNumber,
        sender: Address,
    ) -> Option<ErrorCode> {
        let running = self.state.tasks.get(&id)?.running()?;
        let code = running.rejected_uploads.get(&sender)?.last;
        let for_good = [
            ErrorCode::UpdateNotFinite,
            ErrorCode::UpdateWrongSchema,
            ErrorCode::UpdateNormTooLarge,
        ];
        (running.offer.scope.round == round && for_good.contains(&code)).then_some(code)
    }

    /// The work records of the round that is being valued, in order of arrival.
    #[must_use]
    pub fn open_records(&self, id: TaskId) -> &[ReceivedRecord] {
        let task = self.state.tasks.get(&id);
        task.and_then(TaskState::running).map_or(&[], |running| &running.records)
    }

    /// The buyer of a task.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownTask`].
    pub fn buyer(&self, id: TaskId) -> Result<Address, Rejection> {
        self.task(id).map(|task| task.spec.buyer)
    }

    /// The minimum stake of a task's providers.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownTask`].
    pub fn stake_min(&self, id: TaskId) -> Result<Amount, Rejection> {
        self.task(id).map(|task| task.spec.budget.stake_min)
    }
}

/// The Merkle tree over the running totals of a final report, which proves payouts and debits for
/// each account.
#[derive(Debug)]
pub struct ProofTree {
    round: RoundNumber,
    root: Digest,
    totals: BTreeMap<Address, ClaimTotals>,
    tree: merkle::ClaimTree,
}

impl ProofTree {
    /// Builds the tree from a report. This hashes every account; do not call it on the engine's
    /// thread.
    ///
    /// # Errors
    /// [`ErrorCode::Internal`] if the totals overflow, which the pay rule makes impossible.
    pub fn from_report(report: &Report) -> Result<Self, Rejection> {
        Self::build(report.scope.round, report.root, &report.account_totals)
    }

    /// Builds the tree from a task's last final account totals.
    ///
    /// # Errors
    /// Those of [`ProofTree::from_report`].
    pub fn from_final_totals(standings: &FinalTotals) -> Result<Self, Rejection> {
        Self::build(standings.round, standings.root, &standings.accounts)
    }

    fn build(
        round: RoundNumber,
        root: Digest,
        standings: &BTreeMap<Address, AccountTotals>,
    ) -> Result<Self, Rejection> {
        let broken = |error: florin_protocol::AmountError| {
            Rejection::new(ErrorCode::Internal, error.to_string())
        };
        let mut totals = BTreeMap::new();
        for (account, standing) in standings {
            totals.insert(*account, standing.claim_totals().map_err(broken)?);
        }
        let tree = claim_tree(standings).map_err(broken)?;
        Ok(Self { round, root, totals, tree })
    }

    /// The claim proof of `account`. For an account without payouts and debits, the totals are zero
    /// and the proof is empty.
    #[must_use]
    pub fn proof(&self, account: Address) -> ClaimProof {
        let totals = self.totals.get(&account).copied().unwrap_or_default();
        let proof = self.tree.proof(account, totals).unwrap_or_default();
        ClaimProof { round: self.round, root: self.root, totals, proof }
    }
}

/// The claim proof of `account` from a final report.
///
/// # Errors
/// Those of [`ProofTree::from_report`].
pub fn claim_proof(report: &Report, account: Address) -> Result<ClaimProof, Rejection> {
    ProofTree::from_report(report).map(|tree| tree.proof(account))
}

impl TaskState {
    /// The task's phase in public views.
    #[must_use]
    pub const fn phase(&self) -> TaskPhase {
        match self.stage {
            TaskStage::AwaitingBlobs => TaskPhase::AwaitingBlobs,
            TaskStage::Enrolling { .. } => TaskPhase::Enrolling,
            TaskStage::Committing(_) => TaskPhase::Committing,
            TaskStage::Revealing(_) => TaskPhase::Revealing,
            TaskStage::Valuing(_) => TaskPhase::Valuing,
            TaskStage::Settling => TaskPhase::Settling,
            TaskStage::Closing => TaskPhase::Closing,
            TaskStage::Done => TaskPhase::Done,
        }
    }

    /// The number of the running round, else of the last reported round; 1 before the first report.
    fn displayed_round(&self) -> RoundNumber {
        let reported = RoundNumber(self.current_round().0.saturating_sub(1).max(1));
        self.running().map_or(reported, |running| running.offer.scope.round)
    }
}
