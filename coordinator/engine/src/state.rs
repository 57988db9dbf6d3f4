//! What the engine remembers: the fold of everything it was told.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{
    Address, Amount, Canonical, Code, Commit, Digest, EarlierUpdates, Offer, Receipt, Registration,
    Rejection, Report, Role, Round, RoundOutcome, Scope, Signed, Standing, TaskId, TaskSpec, Tick,
    UpdateHeader, UpdateId, WorkOrder, WorkRecord, WorkResult,
};

use super::event::Effect;
use super::reject;
use super::value::wrong_record;

/// Everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct State {
    /// The latest moment it was told about.
    pub now: Tick,
    /// Who is who: the registration with the latest expiry for each wallet and role.
    pub registrations: BTreeMap<(Address, Role), Registered>,
    /// Every task ever published here.
    pub tasks: BTreeMap<TaskId, TaskState>,
}

impl Canonical for State {
    const DOMAIN: &'static str = "florin v1 coordinator state";
}

/// A registration and when it was taken.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Registered {
    /// What was signed.
    pub said: Registration,
    /// When it was taken.
    pub since: Tick,
}

impl Registered {
    /// Whether less than half of its time is left.
    pub(super) const fn is_half_over(&self, now: Tick) -> bool {
        self.said.expires.ms_since(now) < now.ms_since(self.since)
    }
}

/// One task.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct TaskState {
    /// Its id.
    pub id: TaskId,
    /// What the buyer asked for.
    pub spec: TaskSpec,
    /// Exact length in bytes of one model.
    pub model_bytes: u64,
    /// Exact length in bytes of one update.
    pub update_bytes: u64,
    /// Grows with every event that touches the task.
    pub sequence: u64,
    /// Blobs it cannot start without and does not have.
    pub wanted: BTreeSet<Digest>,
    /// Where all the rows of its holdout are kept, once they are there. Nobody is told.
    pub holdout: Option<Digest>,
    /// Who wants to be asked, with the bond last seen, less debits since.
    pub enrolled: BTreeMap<Address, Amount>,
    /// Who was asked and did not deliver. Such a participant is asked again only once it enrolled again, and then from
    /// that round on.
    pub sitting_out: BTreeMap<Address, Option<Round>>,
    /// Pledged providers that have asked for work, and answered the last order if they had asked before it ended.
    pub providers: BTreeSet<Address>,
    /// Where it is.
    pub stage: Stage,
    /// Rounds with a report, in short; round r is at position r − 1.
    pub past: Vec<Ended>,
    /// Those of them that are here whole: not kept as blobs yet, or still needed.
    pub whole: BTreeMap<Round, Past>,
    /// The updates of rounds with a report that the next round's are held against.
    pub earlier: EarlierUpdates,
    /// Paid by all reports, for data and for infrastructure.
    pub paid: [Amount; 2],
    /// The standings that claims are proven by, once a settlement is final.
    pub standings: Option<Standings>,
    /// Rows of the holdout that have judged a round.
    pub exposed: BTreeSet<u32>,
    /// Providers whose records are in rounds with a report.
    pub authors: BTreeSet<Address>,
    /// Settlements that are not final yet; true once the ledger has them, or is to be asked whether it does.
    pub unsettled: BTreeMap<Round, bool>,
    /// Rounds whose settlement is final.
    pub finalised: BTreeSet<Round>,
    /// Those of them whose debits the ledger has not taken yet.
    pub unproven: BTreeSet<Round>,
    /// Every work order there was.
    pub orders: BTreeMap<Digest, Round>,
    /// Blobs anybody may read because of this task.
    pub public: BTreeSet<Digest>,
    /// The buyer wants no more rounds, or the arbiter cancelled one.
    pub ending: bool,
    /// What went back to the buyer at the end.
    pub refund: Option<Amount>,
}

/// Where a task is. The running round moves from one stage to the next.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Stage {
    /// Its base model or holdout is missing.
    AwaitingBlobs,
    /// Too few participants for a round.
    Enrolling {
        /// Until then a round takes `cohort_target` participants, from then on `cohort_min`.
        target_until: Tick,
    },
    /// Participants train and commit.
    Committing(Box<Running>),
    /// Commits are closed; updates come in.
    Revealing(Box<Running>),
    /// The rows that judge the updates are drawn; once they are shown, the updates are valued.
    Valuing(Box<Running>),
    /// The last report's settlement is on its way to the ledger.
    Settling,
    /// No more rounds; waiting for settlements to be final.
    Closing,
    /// Closed on the ledger.
    Done,
}

/// A round that has no report yet.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Running {
    /// Its offer.
    pub offer: Offer,
    /// The offer's digest.
    pub offer_digest: Digest,
    /// Commits by sender.
    pub commits: BTreeMap<Address, TakenCommit>,
    /// Updates by sender.
    pub updates: BTreeMap<Address, TakenUpdate>,
    /// Why a sender's last upload was refused, and how often that happened.
    pub refused: BTreeMap<Address, (Code, u32)>,
    /// The rows of the holdout that judge it, once reveals are closed.
    pub drawn: Vec<u32>,
    /// The work order, once those rows are shown.
    pub order: Option<WorkOrder>,
    /// Providers that have asked since the order was issued, and so have it.
    pub served: BTreeSet<Address>,
    /// Providers' records in the order they came, by the digest of their body.
    pub records: Vec<(Digest, Signed<WorkRecord>)>,
    /// Whether the coordinator computes the work itself now.
    pub own: bool,
    /// What it computed, while a provider that has the order may still agree with it.
    pub held: Option<Box<WorkResult>>,
    /// Records that do not.
    pub wrong: BTreeSet<Digest>,
}

/// A commit that was taken.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct TakenCommit {
    /// What was signed.
    pub commit: Signed<Commit>,
    /// What its sender had at risk, less debits that are not taken yet.
    pub bond: Amount,
    /// Its place among those that were taken in the round, from 1.
    pub order: u32,
}

/// An update that was taken.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct TakenUpdate {
    /// What was signed.
    pub header: Signed<UpdateHeader>,
    /// The header's digest.
    pub id: UpdateId,
    /// When it was taken.
    pub at: Tick,
}

/// A round with its report, in short: what later rounds are built on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Ended {
    /// The report's digest.
    pub report: Digest,
    /// The model it ended with.
    pub model: Digest,
    /// Whether it has a settlement.
    pub settled: bool,
    /// The blob that the rest of it is kept as, once it is.
    pub kept: Option<Digest>,
}

/// The standings after the last round whose settlement is final. They stay here, whatever happens to a blob: money is
/// claimed by them.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Standings {
    /// The task.
    pub task: TaskId,
    /// The round.
    pub round: Round,
    /// The root of their totals.
    pub root: Digest,
    /// By account.
    pub of: BTreeMap<Address, Standing>,
}

/// A round with its report, whole.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Past {
    /// Its offer.
    pub offer: Offer,
    /// Its report.
    pub report: Report,
    /// The report's digest.
    pub digest: Digest,
    /// The digest of the rows shown for it.
    pub shown: Option<Digest>,
    /// The updates, ascending by sender.
    pub updates: Vec<TakenUpdate>,
    /// Providers' records in the order they came, by the digest of their body.
    pub records: Vec<(Digest, Signed<WorkRecord>)>,
    /// Records that did not agree with the recomputation.
    pub wrong: BTreeSet<Digest>,
}

impl State {
    /// Every blob that it needs to be stored, in no task's order.
    #[must_use]
    pub fn blobs(&self) -> BTreeSet<Digest> {
        let mut needed = BTreeSet::new();
        for task in self.tasks.values() {
            needed.extend(&task.public);
            needed.extend(task.past.iter().filter_map(|ended| ended.kept));
            needed.extend(task.holdout);
            let Some(running) = task.running() else { continue };
            needed.extend(running.updates.values().map(|update| update.header.body.update));
            needed.extend(running.held.as_ref().map(|result| result.model));
        }
        needed
    }
}

impl TaskState {
    /// The round that has no report yet.
    #[must_use]
    pub fn running(&self) -> Option<&Running> {
        match &self.stage {
            Stage::Committing(r) | Stage::Revealing(r) | Stage::Valuing(r) => Some(r),
            _ => None,
        }
    }

    /// The same, to be changed in its stage.
    pub(super) fn running_mut(&mut self) -> Option<&mut Running> {
        match &mut self.stage {
            Stage::Committing(r) | Stage::Revealing(r) | Stage::Valuing(r) => Some(r),
            _ => None,
        }
    }

    /// A round with its report, in short.
    #[must_use]
    pub fn ended(&self, round: Round) -> Option<&Ended> {
        let position = usize::try_from(round.0).ok()?.checked_sub(1)?;
        self.past.get(position)
    }

    /// A round with its report, if it is here whole.
    #[must_use]
    pub fn past(&self, round: Round) -> Option<&Past> {
        self.whole.get(&round)
    }

    /// The last round with a report, unless the task is over: the next one is built on it.
    pub(super) fn last(&self) -> Option<&Past> {
        self.whole.last_key_value().map(|(_, past)| past)
    }

    /// The number of the round that runs, or would be next.
    pub(super) fn current_round(&self) -> Round {
        let reported = u32::try_from(self.past.len()).unwrap_or(u32::MAX);
        Round(reported.saturating_add(1))
    }

    /// Whether there will be no more rounds.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Closing | Stage::Done)
    }

    /// Debits of `account` that are in reports but not taken by the ledger yet.
    #[must_use]
    pub fn pending_debits(&self, account: Address) -> Amount {
        let rounds = self.unsettled.keys().chain(&self.unproven);
        let reports = rounds.filter_map(|round| self.past(*round));
        let debits = reports.filter_map(|past| past.report.line(account)).map(|line| line.debit);
        // More than any supply means that no bond covers it.
        Amount::total(debits).unwrap_or(Amount::from_units(u128::MAX))
    }

    /// Who was debited by final rounds that are not proven, ascending.
    pub fn to_prove(&self) -> Vec<Address> {
        let rounds = self.unproven.iter().filter_map(|round| self.past(*round));
        let accounts: BTreeSet<Address> = rounds.flat_map(Past::debited).collect();
        accounts.into_iter().collect()
    }

    /// The next moment at which a tick changes this task.
    pub(super) fn deadline(&self) -> Option<Tick> {
        match &self.stage {
            Stage::AwaitingBlobs => Some(self.spec.expires.after_ms(1)),
            Stage::Enrolling { target_until } => Some(self.enrolling_deadline(*target_until)),
            Stage::Committing(running) => Some(running.offer.commit_by.after_ms(1)),
            Stage::Revealing(running) => Some(running.offer.reveal_by.after_ms(1)),
            Stage::Valuing(running) if !running.own || running.held.is_some() => {
                running.order.as_ref().map(|order| order.due.after_ms(1))
            }
            Stage::Valuing(_) | Stage::Settling | Stage::Closing | Stage::Done => None,
        }
    }

    /// What should be under way for this task.
    pub(super) fn wants(&self) -> Vec<Effect> {
        let task = self.id;
        let mut wanted = Vec::new();
        if let Stage::Valuing(running) = &self.stage {
            let round = running.offer.scope.round;
            if running.order.is_none() {
                wanted.push(Effect::Disclose { task, round });
            } else if running.own && running.held.is_none() {
                wanted.push(Effect::Value { task, round });
            }
        }
        for (round, posted) in &self.unsettled {
            wanted.push(if *posted {
                Effect::Finalize { task, round: *round }
            } else {
                Effect::Post { task, round: *round }
            });
        }
        // The last final root proves the debits of every round before it.
        if let Some(round) = self.finalised.last().filter(|_| !self.unproven.is_empty()) {
            wanted.push(Effect::Prove { task, round: *round });
        }
        let settled = self.unsettled.is_empty() && self.unproven.is_empty();
        if matches!(self.stage, Stage::Closing) && settled {
            wanted.push(Effect::Close { task });
        }
        wanted.extend(self.to_keep().map(|round| Effect::Keep { task, round }));
        wanted
    }

    /// The first round that is here whole and need not be.
    pub(super) fn to_keep(&self) -> Option<Round> {
        self.whole.keys().copied().find(|round| self.is_done_with(*round))
    }

    /// Whether nothing that is to come needs more of the round than its blob. A settlement that is not final may still
    /// become it, also one that was given up: by its report the debits are proven.
    pub(super) fn is_done_with(&self, round: Round) -> bool {
        let Some(past) = self.whole.get(&round) else {
            return false;
        };
        let built_on = !self.is_over() && self.whole.keys().next_back() == Some(&round);
        let settled = past.report.outcome == RoundOutcome::Settled;
        let settles = settled && !self.finalised.contains(&round);
        !built_on && !settles && !self.unproven.contains(&round)
    }

    /// The rest of a round is in a blob.
    pub(super) fn kept(&mut self, round: Round, digest: Digest) {
        let position = usize::try_from(round.0).ok().and_then(|round| round.checked_sub(1));
        if let Some(ended) = position.and_then(|position| self.past.get_mut(position)) {
            ended.kept = Some(digest);
            self.whole.remove(&round);
        }
    }
}

impl Standings {
    /// Those of a report.
    pub(super) fn of(report: &Report) -> Self {
        let (scope, root) = (report.scope, report.root);
        Self { task: scope.task, round: scope.round, root, of: report.standings.clone() }
    }
}

impl Past {
    /// What became of a record of the round's order: the units paid, or why none are; `None` for one never taken.
    #[must_use]
    pub fn verdict(&self, record: Digest) -> Option<Result<u64, Rejection>> {
        if !self.records.iter().any(|(digest, _)| *digest == record) {
            return None;
        }
        if let Some(line) = self.report.infrastructure.iter().find(|line| line.record == record) {
            return Some(Ok(line.units));
        }
        Some(if self.wrong.contains(&record) {
            wrong_record()
        } else {
            reject(Code::WorkGone, "somebody else's record of this order was verified first")
        })
    }

    /// The receipt of an update that was taken: always the same for the same update.
    #[must_use]
    pub fn receipt(&self, scope: Scope, sender: Address, update: UpdateId) -> Option<Receipt> {
        let taken = self.updates.iter().find(|taken| taken.header.body.sender == sender)?;
        let order = self.report.entries.iter().find(|entry| entry.sender == sender)?.order;
        let receipt = Receipt { scope, sender, update, at: taken.at, order };
        (scope == self.report.scope && taken.id == update).then_some(receipt)
    }

    /// Whether it takes something from a bond.
    pub(super) fn debits(&self) -> bool {
        self.debited().next().is_some()
    }

    /// From whom it takes something.
    fn debited(&self) -> impl Iterator<Item = Address> + '_ {
        let lines = self.report.lines.iter().filter(|line| !line.debit.is_zero());
        lines.map(|line| line.account)
    }
}

impl Running {
    pub(super) fn of(offer: Offer) -> Self {
        Self {
            offer_digest: offer.digest(),
            offer,
            commits: BTreeMap::new(),
            updates: BTreeMap::new(),
            refused: BTreeMap::new(),
            drawn: Vec::new(),
            order: None,
            served: BTreeSet::new(),
            records: Vec::new(),
            own: false,
            held: None,
            wrong: BTreeSet::new(),
        }
    }

    /// Whether a provider's record was taken.
    pub(super) fn answered(&self, provider: Address) -> bool {
        self.records.iter().any(|(_, record)| record.body.provider == provider)
    }

    /// Whether a provider may still send its record of the order.
    pub(super) fn awaits_records(&self, now: Tick) -> bool {
        let in_time = self.order.as_ref().is_some_and(|order| now <= order.due);
        in_time && self.served.iter().any(|provider| !self.answered(*provider))
    }

    /// Whether the blob is one of its updates.
    pub(super) fn names(&self, digest: Digest) -> bool {
        self.updates.values().any(|update| update.header.body.update == digest)
    }

    /// Whether `sender` was asked.
    #[must_use]
    pub fn asked(&self, sender: Address) -> bool {
        self.offer.cohort.binary_search(&sender).is_ok()
    }
}
