//! The engine's state: the fold of all events.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{
    AccountTotals, Address, Amount, Candidates, Canonical, Commit, Digest, EarlierUpdates,
    ErrorCode, Offer, Registration, Rejection, Report, Role, RoundNumber, RoundScope, Signed,
    Standing, TaskEnd, TaskHistory, TaskId, TaskSpec, Timestamp, UpdateHeader, UpdateId,
    UpdateReceipt, WorkOrder, WorkRecord, WorkResult,
};

use super::event::Effect;
use super::rejection::{reject, wrong_record};
use super::sharing::AccountLimit;

/// The complete state of one coordinator.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct EngineState {
    /// The latest time of any event.
    pub now: Timestamp,
    /// For each wallet and role, the registration with the latest expiry.
    pub registrations: BTreeMap<(Address, Role), RegistrationEntry>,
    /// Number of registrations that stay for good.
    pub signed_registrations: u64,
    /// The accounts that work on a limited number of rounds at a time.
    pub limits: BTreeMap<Address, AccountLimit>,
    /// Every task ever published to this coordinator.
    pub tasks: BTreeMap<TaskId, TaskState>,
}

impl Canonical for EngineState {
    const DOMAIN: &'static str = "florin v1 coordinator state";
}

/// A registration and its time of acceptance.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct RegistrationEntry {
    /// The signed registration.
    pub registration: Registration,
    /// When it was accepted.
    pub since: Timestamp,
    /// Whether it verifies the signature of an accepted update or work record: it stays for good.
    pub has_signed: bool,
    /// The deposit that backs it, as far as messages of the account have shown one.
    pub deposit: Option<DepositReading>,
}

/// The bond or stake of an account in a task, as read from the ledger with one of its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct DepositReading {
    /// The task.
    pub task: TaskId,
    /// The bond, or the stake that the task requires.
    pub amount: Amount,
    /// The earliest time at which the account can have it back, unless the task is closed.
    pub locked_until: Timestamp,
}

impl RegistrationEntry {
    /// Whether less than half of its validity is left.
    pub(super) const fn is_half_over(&self, now: Timestamp) -> bool {
        self.registration.expires.ms_since(now) < now.ms_since(self.since)
    }
}

/// One task.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct TaskState {
    /// The task's id.
    pub id: TaskId,
    /// The buyer's specification.
    pub spec: TaskSpec,
    /// Exact length in bytes of one model.
    pub model_bytes: u64,
    /// Exact length in bytes of one update.
    pub update_bytes: u64,
    /// Increases with every event that changes the task's view.
    pub sequence: u64,
    /// Blobs that are missing and that the task needs before it can start.
    pub missing_blobs: BTreeSet<Digest>,
    /// The task ends if its model or its holdout is missing after this time.
    pub blobs_by: Timestamp,
    /// The digest of the blob with all holdout rows, once it is stored. It is never disclosed.
    pub holdout: Option<Digest>,
    /// Enrolled participants, with the bond last read from the ledger, less later debits.
    pub enrolled: BTreeMap<Address, Amount>,
    /// Signed predictions of the time from an offer to a commit, in milliseconds.
    pub quotes: BTreeMap<Address, u64>,
    /// The part of each participant in the reported rounds.
    pub history: TaskHistory,
    /// The seed of the next cohort, once a round had an accepted update.
    pub cohort_seed: Option<Digest>,
    /// Accounts that enrolled when that seed may have been known.
    pub newcomers: BTreeSet<Address>,
    /// Those of them that enrolled after the running round's commits were closed.
    pub enrolled_after_commits: BTreeSet<Address>,
    /// The invitations that were used, by nonce, and the accounts that used them.
    pub invitations: BTreeMap<Digest, Address>,
    /// Participants that were selected and did not deliver. Such a participant is selected again
    /// only after it has enrolled again, and then from the given round on.
    pub sitting_out: BTreeMap<Address, Option<RoundNumber>>,
    /// The accounts that are busy for other tasks, or left to them, when the task may open a round.
    pub shared: BTreeMap<Address, Standing>,
    /// Pledged providers that have asked for work. A provider that had asked before the last work
    /// order ended, and did not submit a record for it, is not among them.
    pub providers: BTreeSet<Address>,
    /// The task's stage.
    pub stage: TaskStage,
    /// Summaries of the reported rounds; round r is at index r − 1.
    pub rounds: Vec<RoundSummary>,
    /// The reported rounds that are in memory: not archived yet, or still needed.
    pub rounds_in_memory: BTreeMap<RoundNumber, ReportedRound>,
    /// The updates of earlier reported rounds that the next round's updates are compared with, to
    /// detect duplicates.
    pub earlier: EarlierUpdates,
    /// Total paid by all reports.
    pub paid: PoolAmounts,
    /// The account totals that claims are proven from, once a settlement is final.
    pub final_totals: Option<FinalTotals>,
    /// Holdout rows that were used in a reported round.
    pub exposed: BTreeSet<u32>,
    /// Providers with work records in reported rounds.
    pub record_providers: BTreeSet<Address>,
    /// Settlements that are not final yet.
    pub pending_settlements: BTreeMap<RoundNumber, PostingStatus>,
    /// Rounds whose settlement is final.
    pub final_rounds: BTreeSet<RoundNumber>,
    /// Final rounds whose debits are not proven on the ledger yet.
    pub rounds_with_unproven_debits: BTreeSet<RoundNumber>,
    /// Every work order of the task.
    pub orders: BTreeMap<Digest, RoundNumber>,
    /// Blobs that are public because of this task.
    pub public: BTreeSet<Digest>,
    /// Why no more rounds start, once that is decided. A running round may still end.
    pub end: Option<TaskEnd>,
    /// Number of consecutive abandoned rounds, up to the last reported one.
    pub abandoned_in_a_row: u32,
    /// The refund to the buyer, once the task is closed.
    pub refund: Option<Amount>,
    /// Whether the ledger may hold a bond of the coordinator, which covers the pay that is posted:
    /// until it is returned, in a task whose arbiter is another account.
    pub awaits_bond: bool,
}

/// An amount of each of a task's two pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct PoolAmounts {
    /// For data.
    pub data: Amount,
    /// For infrastructure.
    pub infrastructure: Amount,
}

/// The state of a settlement that is not final yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum PostingStatus {
    /// It must be posted to the ledger.
    Unposted,
    /// The ledger has it, or must be asked whether it has it.
    Posted,
}

/// The stage of a task. The running round moves from one stage to the next.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum TaskStage {
    /// The base model or the holdout is missing.
    AwaitingBlobs,
    /// Waiting for enough participants for a round.
    Enrolling {
        /// Before this time a round needs `cohort_target` participants, afterwards `cohort_min`.
        target_until: Timestamp,
    },
    /// Participants train and commit.
    Committing(Box<RunningRound>),
    /// Commits are closed; participants reveal their updates.
    Revealing(Box<RunningRound>),
    /// The round's holdout rows are drawn. Once they are disclosed, the updates are valued.
    Valuing(Box<RunningRound>),
    /// The last report's settlement is not posted to the ledger yet.
    Settling,
    /// No more rounds; waiting until all settlements are final.
    Closing,
    /// Closed on the ledger.
    Done,
}

/// A round that has no report yet.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct RunningRound {
    /// The round's offer.
    pub offer: Offer,
    /// The offer's digest.
    pub offer_digest: Digest,
    /// The candidates from which its cohort follows.
    pub candidates: Candidates,
    /// The end of the commit phase, once it is over.
    pub commits_closed: Option<Timestamp>,
    /// Commits by sender.
    pub commits: BTreeMap<Address, AcceptedCommit>,
    /// Updates by sender.
    pub updates: BTreeMap<Address, AcceptedUpdate>,
    /// Rejected uploads by sender.
    pub rejected_uploads: BTreeMap<Address, RejectedUploads>,
    /// The holdout rows that the round is evaluated on, once reveals are closed.
    pub drawn_rows: Vec<u32>,
    /// The work order, once the rows are disclosed.
    pub work_order: Option<WorkOrder>,
    /// Providers that have received the work order.
    pub order_recipients: BTreeSet<Address>,
    /// The providers' work records in order of arrival.
    pub records: Vec<ReceivedRecord>,
    /// Whether the coordinator's own valuation is due.
    pub own_valuation_due: bool,
    /// The coordinator's own result, while a provider that has the work order may still agree with
    /// it.
    pub own_result: Option<Box<WorkResult>>,
    /// Records that disagree with that result.
    pub wrong_records: BTreeSet<Digest>,
}

/// A provider's work record.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct ReceivedRecord {
    /// The digest of its body.
    pub digest: Digest,
    /// The signed record.
    pub signed: Signed<WorkRecord>,
}

impl ReceivedRecord {
    /// The provider that signed it.
    #[must_use]
    pub fn provider(&self) -> Address {
        self.signed.body.provider
    }
}

/// The rejected uploads of one sender in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct RejectedUploads {
    /// Why the last one was rejected.
    pub last: ErrorCode,
    /// Their number.
    pub count: u32,
}

/// An accepted commit.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct AcceptedCommit {
    /// The signed commit.
    pub commit: Signed<Commit>,
    /// The sender's bond at risk, less debits that the ledger has not applied yet.
    pub bond: Amount,
    /// When it was accepted.
    pub at: Timestamp,
    /// The commit's position among the accepted commits of the round, from 1.
    pub order: u32,
}

/// An accepted update.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct AcceptedUpdate {
    /// The signed header.
    pub header: Signed<UpdateHeader>,
    /// The header's digest.
    pub id: UpdateId,
    /// When it was accepted.
    pub at: Timestamp,
}

/// A summary of a reported round: what later rounds are built on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct RoundSummary {
    /// The report's digest.
    pub report: Digest,
    /// The model after the round.
    pub model: Digest,
    /// Whether it has a settlement.
    pub settled: bool,
    /// The digest of its disclosed holdout rows.
    pub disclosed_rows: Option<Digest>,
    /// The blob in which the rest of the round is archived.
    pub archive: Option<Digest>,
}

/// The account totals after the last round whose settlement is final. They always stay in the
/// state, independent of any blob, because accounts claim their payouts from them.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct FinalTotals {
    /// The task.
    pub task: TaskId,
    /// The round.
    pub round: RoundNumber,
    /// The Merkle root of the totals.
    pub root: Digest,
    /// The totals by account.
    pub accounts: BTreeMap<Address, AccountTotals>,
}

/// A reported round in full.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct ReportedRound {
    /// The round's offer.
    pub offer: Offer,
    /// The candidates from which its cohort follows.
    pub candidates: Candidates,
    /// The round's report.
    pub report: Report,
    /// The report's digest.
    pub digest: Digest,
    /// The digest of the disclosed holdout rows.
    pub disclosed_rows: Option<Digest>,
    /// The updates, ascending by sender.
    pub updates: Vec<AcceptedUpdate>,
    /// The providers' work records in order of arrival.
    pub records: Vec<ReceivedRecord>,
    /// Records that disagree with the coordinator's own result.
    pub wrong_records: BTreeSet<Digest>,
}

impl EngineState {
    /// Every blob that must be stored for this state, over all tasks.
    #[must_use]
    pub fn required_blobs(&self) -> BTreeSet<Digest> {
        let mut needed = BTreeSet::new();
        for task in self.tasks.values() {
            needed.extend(&task.public);
            needed.extend(task.rounds.iter().filter_map(|ended| ended.archive));
            needed.extend(task.holdout);
            let Some(running) = task.running() else { continue };
            needed.extend(running.updates.values().map(|update| update.header.body.update));
            needed.extend(running.own_result.as_ref().map(|result| result.model));
        }
        needed
    }
}

impl TaskState {
    /// The running round: it has no report yet.
    #[must_use]
    pub fn running(&self) -> Option<&RunningRound> {
        match &self.stage {
            TaskStage::Committing(r) | TaskStage::Revealing(r) | TaskStage::Valuing(r) => Some(r),
            _ => None,
        }
    }

    /// The running round, mutable.
    pub(super) fn running_mut(&mut self) -> Option<&mut RunningRound> {
        match &mut self.stage {
            TaskStage::Committing(r) | TaskStage::Revealing(r) | TaskStage::Valuing(r) => Some(r),
            _ => None,
        }
    }

    /// The summary of a reported round.
    #[must_use]
    pub fn round_summary(&self, round: RoundNumber) -> Option<&RoundSummary> {
        let position = usize::try_from(round.0).ok()?.checked_sub(1)?;
        self.rounds.get(position)
    }

    /// A reported round, if it is in memory.
    #[must_use]
    pub fn reported_round(&self, round: RoundNumber) -> Option<&ReportedRound> {
        self.rounds_in_memory.get(&round)
    }

    /// The last reported round, on which the next one is built. `None` if the task is over.
    pub(super) fn last(&self) -> Option<&ReportedRound> {
        self.rounds_in_memory.last_key_value().map(|(_, past)| past)
    }

    /// The number of the running round, or of the next one.
    pub(super) fn current_round(&self) -> RoundNumber {
        let reported = u32::try_from(self.rounds.len()).unwrap_or(u32::MAX);
        RoundNumber(reported.saturating_add(1))
    }

    /// Whether no more rounds will start.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.stage, TaskStage::Closing | TaskStage::Done)
    }

    /// Debits of `account` that are in reports and that the ledger has not applied yet.
    #[must_use]
    pub fn pending_debits(&self, account: Address) -> Amount {
        let rounds = self.pending_settlements.keys().chain(&self.rounds_with_unproven_debits);
        let reports = rounds.filter_map(|round| self.reported_round(*round));
        let debits = reports.filter_map(|past| past.report.line(account)).map(|line| line.debit);
        // On overflow: more than any possible supply, so that no bond covers it.
        Amount::total(debits).unwrap_or(Amount::from_units(u128::MAX))
    }

    /// The accounts with debits in final rounds that are not proven yet, ascending.
    pub fn accounts_with_unproven_debits(&self) -> Vec<Address> {
        let rounds =
            self.rounds_with_unproven_debits.iter().filter_map(|round| self.reported_round(*round));
        let accounts: BTreeSet<Address> = rounds.flat_map(ReportedRound::debited).collect();
        accounts.into_iter().collect()
    }

    /// The next time at which a tick changes this task.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        match &self.stage {
            TaskStage::AwaitingBlobs => {
                Some(self.blobs_by.min(self.spec.expires).saturating_add_ms(1))
            }
            TaskStage::Enrolling { target_until } => Some(self.enrolling_deadline(*target_until)),
            TaskStage::Committing(running) => Some(running.offer.commit_by.saturating_add_ms(1)),
            TaskStage::Revealing(running) => Some(running.offer.reveal_by.saturating_add_ms(1)),
            TaskStage::Valuing(running)
                if !running.own_valuation_due || running.own_result.is_some() =>
            {
                running.work_order.as_ref().map(|order| order.due.saturating_add_ms(1))
            }
            TaskStage::Valuing(_) | TaskStage::Settling | TaskStage::Closing | TaskStage::Done => {
                None
            }
        }
    }

    /// The effects that should be in progress for this task.
    pub(super) fn pending_effects(&self) -> Vec<Effect> {
        let task = self.id;
        let mut wanted = Vec::new();
        if let TaskStage::Valuing(running) = &self.stage {
            let round = running.offer.scope.round;
            if running.work_order.is_none() {
                wanted.push(Effect::DiscloseRows { task, round });
            } else if running.own_valuation_due && running.own_result.is_none() {
                wanted.push(Effect::ValueRound { task, round });
            }
        }
        for (round, state) in &self.pending_settlements {
            wanted.push(match state {
                PostingStatus::Posted => Effect::FinalizeSettlement { task, round: *round },
                PostingStatus::Unposted => Effect::PostSettlement { task, round: *round },
            });
        }
        // The last final root proves the debits of all earlier rounds.
        if let Some(round) =
            self.final_rounds.last().filter(|_| !self.rounds_with_unproven_debits.is_empty())
        {
            wanted.push(Effect::ProveDebits { task, round: *round });
        }
        let settled =
            self.pending_settlements.is_empty() && self.rounds_with_unproven_debits.is_empty();
        if matches!(self.stage, TaskStage::Closing) && settled {
            wanted.push(Effect::CloseTask { task });
        }
        if matches!(self.stage, TaskStage::Done) && self.awaits_bond {
            wanted.push(Effect::ReturnBond { task });
        }
        wanted
            .extend(self.next_round_to_archive().map(|round| Effect::ArchiveRound { task, round }));
        wanted
    }

    /// The first round in memory that can be archived.
    pub(super) fn next_round_to_archive(&self) -> Option<RoundNumber> {
        self.rounds_in_memory.keys().copied().find(|round| self.can_be_archived(*round))
    }

    /// Whether later events need nothing of the round but its archive. A round whose settlement is
    /// not final is still needed, even if the engine has given it up: the ledger may still finalise
    /// the settlement, and the report then proves the debits.
    pub(super) fn can_be_archived(&self, round: RoundNumber) -> bool {
        let Some(past) = self.rounds_in_memory.get(&round) else {
            return false;
        };
        let built_on = !self.is_over() && self.rounds_in_memory.keys().next_back() == Some(&round);
        let settled = past.report.has_settlement();
        let settles = settled && !self.final_rounds.contains(&round);
        !built_on && !settles && !self.rounds_with_unproven_debits.contains(&round)
    }

    /// Removes an archived round from memory.
    pub(super) fn mark_archived(&mut self, round: RoundNumber, digest: Digest) {
        let position = usize::try_from(round.0).ok().and_then(|round| round.checked_sub(1));
        if let Some(ended) = position.and_then(|position| self.rounds.get_mut(position)) {
            ended.archive = Some(digest);
            self.rounds_in_memory.remove(&round);
        }
    }
}

impl FinalTotals {
    /// The account totals of a report.
    pub(super) fn from_report(report: &Report) -> Self {
        let (scope, root) = (report.scope, report.root);
        Self { task: scope.task, round: scope.round, root, accounts: report.account_totals.clone() }
    }
}

impl ReportedRound {
    /// The outcome of a record for the round's order: the units paid, or the rejection. `None` for
    /// a record that was never accepted.
    #[must_use]
    pub fn record_outcome(&self, record: Digest) -> Option<Result<u64, Rejection>> {
        if !self.records.iter().any(|received| received.digest == record) {
            return None;
        }
        if let Some(line) = self.report.infrastructure.iter().find(|line| line.record == record) {
            return Some(Ok(line.units));
        }
        Some(if self.wrong_records.contains(&record) {
            wrong_record()
        } else {
            reject(
                ErrorCode::WorkOrderClosed,
                "another provider's record of this order was verified first",
            )
        })
    }

    /// The receipt of an accepted update: always the same for the same update.
    #[must_use]
    pub fn receipt(
        &self,
        scope: RoundScope,
        sender: Address,
        update: UpdateId,
    ) -> Option<UpdateReceipt> {
        let taken = self.updates.iter().find(|taken| taken.header.body.sender == sender)?;
        let order =
            self.report.entries.iter().find(|entry| entry.sender == sender)?.commit_position;
        let receipt = UpdateReceipt { scope, sender, update, at: taken.at, commit_position: order };
        (scope == self.report.scope && taken.id == update).then_some(receipt)
    }

    /// Whether the report debits any bond.
    pub(super) fn has_debits(&self) -> bool {
        self.debited().next().is_some()
    }

    /// The accounts that the report debits.
    fn debited(&self) -> impl Iterator<Item = Address> + '_ {
        let lines = self.report.lines.iter().filter(|line| !line.debit.is_zero());
        lines.map(|line| line.account)
    }
}

impl RunningRound {
    pub(super) fn new(offer: Offer, candidates: Candidates) -> Self {
        Self {
            offer_digest: offer.digest(),
            offer,
            candidates,
            commits_closed: None,
            commits: BTreeMap::new(),
            updates: BTreeMap::new(),
            rejected_uploads: BTreeMap::new(),
            drawn_rows: Vec::new(),
            work_order: None,
            order_recipients: BTreeSet::new(),
            records: Vec::new(),
            own_valuation_due: false,
            own_result: None,
            wrong_records: BTreeSet::new(),
        }
    }

    /// Whether a record of this provider was accepted.
    pub(super) fn answered(&self, provider: Address) -> bool {
        self.records.iter().any(|record| record.provider() == provider)
    }

    /// Whether a provider that has the order may still submit a record.
    pub(super) fn awaits_records(&self, now: Timestamp) -> bool {
        let in_time = self.work_order.as_ref().is_some_and(|order| now <= order.due);
        in_time && self.order_recipients.iter().any(|provider| !self.answered(*provider))
    }

    /// Whether the blob is one of the round's updates.
    pub(super) fn has_update(&self, digest: Digest) -> bool {
        self.updates.values().any(|update| update.header.body.update == digest)
    }

    /// Whether `sender` is in the cohort.
    #[must_use]
    pub fn is_in_cohort(&self, sender: Address) -> bool {
        self.offer.cohort.binary_search(&sender).is_ok()
    }

    /// Whether the account is in the cohort and has not committed.
    pub(super) fn waits_for(&self, account: Address) -> bool {
        self.is_in_cohort(account) && !self.commits.contains_key(&account)
    }
}
