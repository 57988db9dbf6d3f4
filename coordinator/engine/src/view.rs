//! What may be read, and by whom.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use florin_protocol::merkle::Totals;
use florin_protocol::{
    Address, Amount, ClaimProof, Code, Digest, Offer, Phase, Registration, Rejection, Report, Role,
    Round, Signed, Standing, TaskId, TaskSpec, TaskSummary, TaskView, Tick, WorkRecord, merkle,
    totals_tree,
};

use super::state::{Past, Running, Stage, Standings, TaskState};
use super::{Engine, reject};

/// Where a round with a report is.
#[derive(Clone, Copy, Debug)]
pub enum Found<'a> {
    /// In memory.
    Here(&'a Past),
    /// In this blob.
    Kept(Digest),
}

/// Who may read a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Anybody.
    Public,
    /// Nobody yet, or only providers with an order that names it.
    NotYet,
    /// No task knows it.
    Unknown,
}

impl Engine {
    /// A registration; with no role asked for, the first there is.
    ///
    /// # Errors
    /// [`Code::NotRegistered`].
    pub fn registration(
        &self,
        wallet: Address,
        role: Option<Role>,
    ) -> Result<&Registration, Rejection> {
        let any = [Role::Participant, Role::Provider, Role::Coordinator];
        let roles = any.iter().filter(|known| role.is_none_or(|role| role == **known));
        let found = roles.into_iter().find_map(|r| self.state.registrations.get(&(wallet, *r)));
        found.map(|known| &known.said).ok_or_else(|| {
            Rejection::new(Code::NotRegistered, format!("{wallet} is not registered here"))
        })
    }

    /// A task as anybody may see it, but for the running round's offer, which is returned beside it to be signed.
    ///
    /// # Errors
    /// [`Code::UnknownTask`].
    pub fn view(&self, id: TaskId, now: Tick) -> Result<(TaskView, Option<Offer>), Rejection> {
        let task = self.task(id)?;
        let running = task.running();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let view = TaskView {
            sequence: task.sequence,
            now,
            id,
            spec: task.spec.clone(),
            phase: task.phase(),
            round: task.shown_round(),
            reported: count(task.past.len()),
            finalised: count(task.finalised.len()),
            enrolled: count(task.enrolled.len()),
            committed: running.map_or(0, |r| count(r.commits.len())),
            revealed: running.map_or(0, |r| count(r.updates.len())),
            offer: None,
            model: task.past.last().map_or(task.spec.base_model, |ended| ended.model),
            wanted: task.wanted.iter().copied().collect(),
            holdout_wanted: task.holdout.is_none(),
        };
        Ok((view, running.map(|running| running.offer.clone())))
    }

    /// Every task, in the order of their ids.
    #[must_use]
    pub fn summaries(&self) -> Vec<TaskSummary> {
        let summary = |task: &TaskState| TaskSummary {
            id: task.id,
            name: task.spec.name.clone(),
            phase: task.phase(),
            round: task.shown_round(),
            rounds: task.spec.rounds.count,
            enrolled: u32::try_from(task.enrolled.len()).unwrap_or(u32::MAX),
            data: task.spec.budget.data,
            infrastructure: task.spec.budget.infrastructure,
        };
        self.state.tasks.values().map(summary).collect()
    }

    /// The offer of the round that runs, if it is this one.
    ///
    /// # Errors
    /// [`Code::UnknownTask`].
    pub fn running_offer(&self, id: TaskId, round: Round) -> Result<Option<&Offer>, Rejection> {
        let running = self.task(id)?.running();
        let running = running.filter(|running| running.offer.scope.round == round);
        Ok(running.map(|running| &running.offer))
    }

    /// The report of a round that is here whole.
    ///
    /// # Errors
    /// [`Code::UnknownTask`]; [`Code::NotYetPublic`] for a round without a report; [`Code::NotFound`] for one in a blob.
    pub fn report(&self, id: TaskId, round: Round) -> Result<&Report, Rejection> {
        match self.past(id, round)? {
            Found::Here(past) => Ok(&past.report),
            Found::Kept(digest) => {
                let message = format!("round {round} is in blob {digest}");
                Err(Rejection::new(Code::NotFound, message))
            }
        }
    }

    /// A round with its report, or where it is.
    ///
    /// # Errors
    /// [`Code::UnknownTask`], [`Code::NotYetPublic`].
    pub fn past(&self, id: TaskId, round: Round) -> Result<Found<'_>, Rejection> {
        let task = self.task(id)?;
        let kept = || task.ended(round)?.kept.map(Found::Kept);
        task.past(round).map(Found::Here).or_else(kept).ok_or_else(|| {
            let reported = task.past.len();
            let message = format!("round {round} has no report; {reported} rounds have one");
            Rejection::new(Code::NotYetPublic, message)
        })
    }

    /// The blob in which a round is, if it is not here whole.
    #[must_use]
    pub fn kept(&self, id: TaskId, round: Round) -> Option<Digest> {
        self.state.tasks.get(&id)?.ended(round)?.kept
    }

    /// The standings after the last round whose settlement is final on the ledger: what claims are proven from.
    ///
    /// # Errors
    /// [`Code::UnknownTask`]; [`Code::NotYetPublic`] before the first settlement is final.
    pub fn final_standings(&self, id: TaskId) -> Result<&Standings, Rejection> {
        self.task(id)?.standings.as_ref().ok_or_else(|| {
            Rejection::new(Code::NotYetPublic, "no settlement of this task is final yet")
        })
    }

    /// Who may read a blob. A whole holdout is none that anybody could ask for.
    #[must_use]
    pub fn visibility(&self, digest: Digest) -> Visibility {
        let tasks = || self.state.tasks.values();
        if tasks().any(|task| task.public.contains(&digest)) {
            return Visibility::Public;
        }
        let named = |running: &Running| running.names(digest);
        let known =
            |task: &TaskState| task.wanted.contains(&digest) || task.running().is_some_and(named);
        if tasks().any(known) { Visibility::NotYet } else { Visibility::Unknown }
    }

    /// Whether the task's open order names the blob, so that a pledged provider may read it.
    ///
    /// # Errors
    /// [`Code::UnknownTask`], [`Code::NotYetPublic`].
    pub fn check_order_names(&self, id: TaskId, digest: Digest) -> Result<(), Rejection> {
        if self.visibility(digest) == Visibility::Public {
            return Ok(());
        }
        let Stage::Valuing(running) = &self.task(id)?.stage else {
            return reject(Code::NotYetPublic, "no work order of this task is open");
        };
        let named = running.order.as_ref().is_some_and(|order| {
            order.base_model == digest || order.entries.iter().any(|entry| entry.update == digest)
        });
        if named {
            return Ok(());
        }
        reject(Code::NotYetPublic, format!("the open work order does not name blob {digest}"))
    }

    /// Whether a provider was given the task's open work order.
    #[must_use]
    pub fn has_order(&self, id: TaskId, provider: Address) -> bool {
        let running = self.state.tasks.get(&id).and_then(TaskState::running);
        running.is_some_and(|running| running.order.is_some() && running.served.contains(&provider))
    }

    /// A task, and whether its holdout is there.
    ///
    /// # Errors
    /// [`Code::UnknownTask`].
    pub fn holdout(&self, id: TaskId) -> Result<(&TaskSpec, bool), Rejection> {
        self.task(id).map(|task| (&task.spec, task.holdout.is_some()))
    }

    /// Tasks that wait for a blob.
    pub fn wanting(&self, digest: Digest) -> impl Iterator<Item = &TaskState> {
        self.state.tasks.values().filter(move |task| task.wanted.contains(&digest))
    }

    /// Whether this sender's update of this round may still come.
    #[must_use]
    pub fn awaits_update(&self, id: TaskId, round: Round, sender: Address) -> bool {
        let running = self.state.tasks.get(&id).map(|task| &task.stage);
        let Some(Stage::Revealing(running)) = running else {
            return false;
        };
        running.offer.scope.round == round
            && running.commits.contains_key(&sender)
            && !running.updates.contains_key(&sender)
    }

    /// Whether a task still waits for its model or its holdout.
    #[must_use]
    pub fn awaits_blobs(&self, id: TaskId) -> bool {
        let task = self.state.tasks.get(&id);
        task.is_some_and(|task| matches!(task.stage, Stage::AwaitingBlobs))
    }

    /// Why the bytes of this sender's update can never be taken, if they were refused for what they are: a commit is to
    /// one string of bytes.
    #[must_use]
    pub fn refused_for_good(&self, id: TaskId, round: Round, sender: Address) -> Option<Code> {
        let running = self.state.tasks.get(&id)?.running()?;
        let (code, _) = running.refused.get(&sender)?;
        let for_good = [Code::UpdateNotFinite, Code::UpdateWrongSchema, Code::UpdateNormTooLarge];
        (running.offer.scope.round == round && for_good.contains(code)).then_some(*code)
    }

    /// The records of the round that is being valued, in the order they came.
    #[must_use]
    pub fn open_records(&self, id: TaskId) -> &[(Digest, Signed<WorkRecord>)] {
        let task = self.state.tasks.get(&id);
        task.and_then(TaskState::running).map_or(&[], |running| &running.records)
    }

    /// Who pays for a task.
    ///
    /// # Errors
    /// [`Code::UnknownTask`].
    pub fn buyer(&self, id: TaskId) -> Result<Address, Rejection> {
        self.task(id).map(|task| task.spec.buyer)
    }

    /// The smallest stake of a task's providers.
    ///
    /// # Errors
    /// [`Code::UnknownTask`].
    pub fn stake_min(&self, id: TaskId) -> Result<Amount, Rejection> {
        self.task(id).map(|task| task.spec.budget.stake_min)
    }
}

/// The running totals of a final report, ready to prove what each account was paid and debited.
#[derive(Debug)]
pub struct ProofTree {
    round: Round,
    root: Digest,
    totals: BTreeMap<Address, Totals>,
    tree: merkle::Tree,
}

impl ProofTree {
    /// Hashes the totals: not on the engine's thread.
    ///
    /// # Errors
    /// [`Code::Internal`] if the totals overflow, which the pay rule makes impossible.
    pub fn of(report: &Report) -> Result<Self, Rejection> {
        Self::over(report.scope.round, report.root, &report.standings)
    }

    /// The same of a task's last final standings.
    ///
    /// # Errors
    /// Those of [`ProofTree::of`].
    pub fn of_final(standings: &Standings) -> Result<Self, Rejection> {
        Self::over(standings.round, standings.root, &standings.of)
    }

    fn over(
        round: Round,
        root: Digest,
        standings: &BTreeMap<Address, Standing>,
    ) -> Result<Self, Rejection> {
        let broken =
            |error: florin_protocol::AmountError| Rejection::new(Code::Internal, error.to_string());
        let mut totals = BTreeMap::new();
        for (account, standing) in standings {
            totals.insert(*account, standing.totals().map_err(broken)?);
        }
        let tree = totals_tree(standings).map_err(broken)?;
        Ok(Self { round, root, totals, tree })
    }

    /// What `account` can claim; nothing, and no proof, for one that was neither paid nor debited.
    #[must_use]
    pub fn proof(&self, account: Address) -> ClaimProof {
        let totals = self.totals.get(&account).copied().unwrap_or_default();
        let proof = self.tree.proof(account, totals).unwrap_or_default();
        ClaimProof { round: self.round, root: self.root, totals, proof }
    }
}

/// What `account` can claim from a final report.
///
/// # Errors
/// Those of [`ProofTree::of`].
pub fn claim_proof(report: &Report, account: Address) -> Result<ClaimProof, Rejection> {
    ProofTree::of(report).map(|tree| tree.proof(account))
}

impl TaskState {
    /// Where it is, as anybody may see it.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        match self.stage {
            Stage::AwaitingBlobs => Phase::AwaitingBlobs,
            Stage::Enrolling { .. } => Phase::Enrolling,
            Stage::Committing(_) => Phase::Committing,
            Stage::Revealing(_) => Phase::Revealing,
            Stage::Valuing(_) => Phase::Valuing,
            Stage::Settling => Phase::Settling,
            Stage::Closing => Phase::Closing,
            Stage::Done => Phase::Done,
        }
    }

    /// The round that is running, or the last one; the first before there was any.
    fn shown_round(&self) -> Round {
        let reported = Round(self.current_round().0.saturating_sub(1).max(1));
        self.running().map_or(reported, |running| running.offer.scope.round)
    }
}
