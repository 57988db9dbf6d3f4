//! The trait [`Ledger`]: everything the market asks of whoever keeps its money. Each method lists its outcomes.

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::merkle::Totals;
use florin_protocol::{
    Address, Amount, Digest, Market, PayoutId, Report, Round, Signer, TaskId, TaskSpec, Tick,
};
use serde::{Deserialize, Serialize};

/// Names a transaction that was carried out, or found everything as it asked for: its digest.
pub type TxId = Digest;

/// What the ledger needs to know of a task.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Terms {
    /// The task's id.
    pub task: TaskId,
    /// Who opens and funds it, and has the rest refunded.
    pub buyer: Address,
    /// Who posts settlements.
    pub coordinator: Address,
    /// Who may cancel a settlement within its window, and slash.
    pub arbiter: Address,
    /// Locked for data.
    pub data: Amount,
    /// Locked for infrastructure services.
    pub infrastructure: Amount,
    /// Smallest bond.
    pub bond_min: Amount,
    /// Most that one round may debit from one bond: after round `r`, `r` times as much in all.
    pub debit_max: Amount,
    /// Smallest stake of a provider that serves the task, and the most that may be slashed from it here.
    pub stake_min: Amount,
    /// How long a settlement can be challenged.
    pub challenge_ms: u64,
    /// How long a bond stays at risk after its owner asks for it back.
    pub unbond_ms: u64,
    /// After this moment anybody may close the task.
    pub expires: Tick,
}

impl Terms {
    /// The terms of a task as its specification states them.
    #[must_use]
    pub fn of(spec: &TaskSpec) -> Self {
        Self {
            task: spec.id(),
            buyer: spec.buyer,
            coordinator: spec.coordinator,
            arbiter: spec.arbiter,
            data: spec.budget.data,
            infrastructure: spec.budget.infrastructure,
            bond_min: spec.budget.bond_min,
            debit_max: spec.budget.debit_max,
            stake_min: spec.budget.stake_min,
            challenge_ms: spec.budget.challenge_ms,
            unbond_ms: spec.budget.unbond_ms,
            expires: spec.expires,
        }
    }
}

/// One round's settlement as the coordinator posts it: of one size, however many were paid or debited. Totals are
/// running totals over the task.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Settlement {
    /// The task.
    pub task: TaskId,
    /// The settlement's name; can be posted once.
    pub payout: PayoutId,
    /// The round.
    pub round: Round,
    /// Digest of the round's report.
    pub report: Digest,
    /// Root of the settlement that this one continues: the last that stands, pending or final; zeros for the first.
    pub previous_root: Digest,
    /// Root of the tree of running totals, paid and debited.
    pub root: Digest,
    /// Paid for data in the task so far, this round included.
    pub data_total: Amount,
    /// Paid for infrastructure in the task so far, this round included.
    pub infrastructure_total: Amount,
}

impl Settlement {
    /// The settlement of a round, from its report and the report's digest.
    #[must_use]
    pub const fn from_report(report: &Report, digest: Digest) -> Self {
        Self {
            task: report.scope.task,
            payout: report.payout,
            round: report.scope.round,
            report: digest,
            previous_root: report.root_before,
            root: report.root,
            data_total: report.data_total,
            infrastructure_total: report.infrastructure_total,
        }
    }
}

/// A claim of everything that a task has come to for one account: what it is owed, and what its bond owes.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Claim {
    /// The task.
    pub task: TaskId,
    /// Who is paid and debited, whoever sends the claim.
    pub account: Address,
    /// The running totals in the final root.
    pub totals: Totals,
    /// Sibling hashes to the root.
    pub proof: Vec<Digest>,
}

/// What one claim moved.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Claimed {
    /// Paid into the account's wallet.
    pub paid: Amount,
    /// Taken from its bond: less than was debited where the bond held less.
    pub taken: Amount,
}

/// What an arbiter takes from a bond or a pledged stake, and why.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Slash {
    /// The task under whose rules it happens.
    pub task: TaskId,
    /// Who loses it.
    pub account: Address,
    /// True for a provider's stake, false for a participant's bond.
    pub stake: bool,
    /// How much; at most what is there (for a stake: at most the task's `stake_min` in all).
    pub amount: Amount,
    /// Digest of the evidence, for whoever wants to check it.
    pub evidence: Digest,
}

/// A posted settlement that is not final yet.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PendingSettlement {
    /// What was posted.
    pub settlement: Settlement,
    /// Final after this moment.
    pub final_at: Tick,
}

/// Where a settlement is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum SettlementStatus {
    /// Never posted, or cancelled and so free to be posted again.
    Unknown,
    /// Within its challenge window, or not finalised yet.
    Pending,
    /// Final: paid into `Owed`.
    Final,
}

/// A task's books.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TaskState {
    /// What it was opened with.
    pub terms: Terms,
    /// Still in escrow for data.
    pub data_locked: Amount,
    /// Still in escrow for infrastructure.
    pub infrastructure_locked: Amount,
    /// Made final for data so far (claimed or not).
    pub data_paid: Amount,
    /// Made final for infrastructure so far (claimed or not).
    pub infrastructure_paid: Amount,
    /// Given back to the buyer.
    pub refunded: Amount,
    /// Final but not claimed yet.
    pub owed: Amount,
    /// Root of the last final settlement; zeros before the first.
    pub root: Digest,
    /// Settlements not final yet, oldest first: at most [`crate::limits::PENDING_MAX`].
    pub pending: Vec<PendingSettlement>,
    /// Closed for ever.
    pub closed: bool,
}

/// One participant's bond in one task.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BondState {
    /// At risk now.
    pub amount: Amount,
    /// Until then at least it stays at risk, if its owner has asked for it back; see [`Ledger::withdraw_bond`].
    pub release: Option<Tick>,
}

/// One provider's stake.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StakeState {
    /// At risk now.
    pub amount: Amount,
    /// When it can be withdrawn, if its owner has asked for it back.
    pub release: Option<Tick>,
}

/// What posting a settlement came to.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Posted {
    /// It stands now.
    New,
    /// Exactly this settlement stood already: nothing happened.
    Already,
}

/// Why the ledger refused: a fact about its state, which a retry does not change.
#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
    thiserror::Error,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Refusal {
    /// Not enough in the account that pays.
    #[error("{account} has {available} FLN, but {needed} FLN are needed")]
    Insufficient {
        /// Who pays.
        account: Address,
        /// What is there.
        available: Amount,
        /// What it takes.
        needed: Amount,
    },
    /// A transaction that does not continue its account's sequence.
    #[error("nonce {got} does not follow: the account's next nonce is {expected}")]
    WrongNonce {
        /// What was sent.
        got: u64,
        /// What would be right.
        expected: u64,
    },
    /// Signed by somebody else, or not at all.
    #[error("the transaction's signature is not the sender's")]
    BadSignature,
    /// Signed for another chain or market.
    #[error("the transaction is for another chain or market")]
    WrongMarket,
    /// No such task.
    #[error("task {0} is not on this ledger: open it first")]
    UnknownTask(TaskId),
    /// The id is taken.
    #[error("task {0} is open already")]
    TaskExists(TaskId),
    /// It is over.
    #[error("task {0} is closed")]
    TaskClosed(TaskId),
    /// The sender may not do this.
    #[error("only {allowed} may do this, not {sender}")]
    NotAllowed {
        /// Who sent it.
        sender: Address,
        /// Who may.
        allowed: String,
    },
    /// A bond, a stake or a data pool below the smallest allowed.
    #[error("{offered} FLN are less than the smallest allowed, {smallest} FLN")]
    TooSmall {
        /// What was offered.
        offered: Amount,
        /// The least there may be.
        smallest: Amount,
    },
    /// Not before a certain moment.
    #[error("not before {at}, and it is {now}")]
    TooEarly {
        /// When it can be.
        at: Tick,
        /// The ledger's clock.
        now: Tick,
    },
    /// The challenge window is over.
    #[error("the challenge window closed at {0}")]
    WindowClosed(Tick),
    /// Settlements wait for their window.
    #[error("{0} settlements are not final yet")]
    Pending(u64),
    /// Another settlement stands under this name.
    #[error("another settlement stands under payout id {0}")]
    ConflictingSettlement(PayoutId),
    /// Running totals that shrink, or exceed what was deposited, or debits above their limit.
    #[error("settlement of round {round}: {what}")]
    BadSettlement {
        /// The round.
        round: Round,
        /// What is wrong.
        what: String,
    },
    /// The proof does not lead to the final root.
    #[error("the proof does not lead to the task's final root: fetch a fresh one")]
    BadProof,
    /// Everything was paid and taken before.
    #[error("nothing is left to claim: what the task owes was paid, and what it debited was taken")]
    NothingToClaim,
    /// No such bond, stake or settlement.
    #[error("{0}")]
    Missing(String),
    /// An amount of zero, or an account paying itself, or another argument without meaning.
    #[error("{0}")]
    Meaningless(String),
    /// A named limit.
    #[error("limit reached: {0}")]
    Limit(String),
}

impl Refusal {
    /// The stable code of each refusal.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Insufficient { .. } => "INSUFFICIENT_FUNDS",
            Self::WrongNonce { .. } => "WRONG_NONCE",
            Self::BadSignature => "BAD_SIGNATURE",
            Self::WrongMarket => "WRONG_MARKET",
            Self::UnknownTask(_) => "UNKNOWN_TASK",
            Self::TaskExists(_) => "TASK_EXISTS",
            Self::TaskClosed(_) => "TASK_CLOSED",
            Self::NotAllowed { .. } => "NOT_ALLOWED",
            Self::TooSmall { .. } => "TOO_SMALL",
            Self::TooEarly { .. } => "TOO_EARLY",
            Self::WindowClosed(_) => "WINDOW_CLOSED",
            Self::Pending(_) => "SETTLEMENT_PENDING",
            Self::ConflictingSettlement(_) => "CONFLICTING_SETTLEMENT",
            Self::BadSettlement { .. } => "BAD_SETTLEMENT",
            Self::BadProof => "BAD_PROOF",
            Self::NothingToClaim => "NOTHING_TO_CLAIM",
            Self::Missing(_) => "NOT_FOUND",
            Self::Meaningless(_) => "MEANINGLESS",
            Self::Limit(_) => "LIMIT_REACHED",
        }
    }
}

/// What can come back instead of success.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The ledger said no. Nothing changed.
    #[error("{0} [{code}]", code = .0.code())]
    Refused(#[from] Refusal),
    /// The ledger could not be asked, or its answer was lost: it is not known whether anything changed. Ask again
    /// before repeating.
    #[error("the ledger does not answer: {0} [LEDGER_UNAVAILABLE]")]
    Unavailable(String),
    /// The ledger's own records contradict themselves. Nothing more is done with them.
    #[error("the ledger is damaged: {0} [LEDGER_CORRUPT]")]
    Corrupt(String),
    /// A transaction that cannot be paid for, or that would cost more than its sender allows. Nothing changed.
    #[error("{0} [GAS_NOT_PAID]")]
    Gas(String),
    /// The record of what a wallet has sent cannot be used. Nothing was sent.
    #[error("the outbox: {0} [OUTBOX_FAILED]")]
    Outbox(String),
    /// The wallet could not sign.
    #[error("{0} [SIGNING_FAILED]")]
    Signing(#[from] florin_protocol::SignError),
}

/// Who owns what. Every write is signed by `by`; every method may also come back with [`LedgerError::Unavailable`],
/// [`LedgerError::Corrupt`] or (writes) [`LedgerError::Signing`]. Refusals change nothing and leave no record, and no
/// more does a write that finds everything as it asks for: it is answered, and that is all.
pub trait Ledger: Send + Sync {
    /// The market this ledger belongs to: chain id and genesis.
    fn market(&self) -> Market;

    /// Sees through what an earlier run of this account left unfinished, and does anew what a reorganisation of the chain
    /// has undone. To be called before anything is read to decide what to write, and again after
    /// [`LedgerError::Unavailable`]. A ledger that answers when all is durable has nothing to do here.
    ///
    /// # Errors
    /// [`LedgerError`]; what is left can be resumed later.
    fn resume(&self, by: &dyn Signer) -> Result<(), LedgerError> {
        let _ = by;
        Ok(())
    }

    /// The ledger's clock, by which deadlines and windows are judged.
    fn now(&self) -> Result<Tick, LedgerError>;

    /// What a wallet holds; zero for an account never seen.
    fn balance(&self, account: Address) -> Result<Amount, LedgerError>;

    /// What everybody's debits and slashes have come to.
    fn treasury(&self) -> Result<Amount, LedgerError>;

    /// A task's books; `None` for a task never opened.
    fn task(&self, task: TaskId) -> Result<Option<TaskState>, LedgerError>;

    /// A bond; zero for one never made.
    fn bond_of(&self, task: TaskId, account: Address) -> Result<BondState, LedgerError>;

    /// A stake; zero for one never made.
    fn stake_of(&self, account: Address) -> Result<StakeState, LedgerError>;

    /// Whether a provider has pledged its stake to a task.
    fn pledged(&self, task: TaskId, provider: Address) -> Result<bool, LedgerError>;

    /// What an account's claims in a task have come to: what it was paid, and the debits that were proven, which its
    /// bond may not have covered.
    fn claimed(&self, task: TaskId, account: Address) -> Result<Totals, LedgerError>;

    /// Where a settlement is.
    fn settlement(&self, task: TaskId, payout: PayoutId) -> Result<SettlementStatus, LedgerError>;

    /// Moves tokens between wallets.
    /// Refused: `Insufficient`, `Meaningless` (zero, to oneself, or to the zero address).
    fn transfer(&self, by: &dyn Signer, to: Address, amount: Amount) -> Result<TxId, LedgerError>;

    /// Locks a task's budget in escrow; `by` must be its buyer.
    /// Refused: `TaskExists`, `Insufficient`, `NotAllowed`, `Meaningless` (the buyer is the arbiter), `TooSmall` (a
    /// data pool below [`florin_protocol::DUST_PER_ROUND`]), `Limit` (a window or delay above 30 days).
    fn open_task(&self, by: &dyn Signer, terms: &Terms) -> Result<TxId, LedgerError>;

    /// Adds to the sender's bond in a task; cancels a running unbonding.
    /// Refused: `UnknownTask`, `TaskClosed`, `TooSmall` (the bond would be below the task's minimum), `Insufficient`.
    fn bond(&self, by: &dyn Signer, task: TaskId, amount: Amount) -> Result<TxId, LedgerError>;

    /// Asks for the sender's bond back: it stays at risk for `unbond_ms`, and then until what was posted meanwhile can
    /// be proven.
    /// Asking again does not move the moment.
    /// Refused: `UnknownTask`, `Missing`.
    fn unbond(&self, by: &dyn Signer, task: TaskId) -> Result<TxId, LedgerError>;

    /// Returns an unbonded bond to its owner's wallet, from `max(release, min(last_post, release) + 2 · challenge_ms)`
    /// on, `last_post` being the moment at which the task's latest settlement was posted; from `release` on if there
    /// was none. What was posted before `release` is final one window later, and another window is the time in which
    /// anybody can prove a debit; what is posted later concerns the bond no more, so that nobody can keep it for
    /// longer than `release + 2 · challenge_ms`. When the task is closed, nobody needs to ask: from
    /// `last_post + 2 · challenge_ms` on, or at once if there was none.
    /// Refused: `UnknownTask`, `Missing`, `TooEarly` (with that moment).
    fn withdraw_bond(&self, by: &dyn Signer, task: TaskId) -> Result<Amount, LedgerError>;

    /// Adds to the sender's stake; cancels a running unstaking.
    /// Refused: `Insufficient`, `Meaningless`.
    fn stake(&self, by: &dyn Signer, amount: Amount) -> Result<TxId, LedgerError>;

    /// Puts the sender's stake under a task's arbiter, up to the task's `stake_min`; cancels a running unstaking.
    /// Again: nothing happens. A pledge of which `stake_min` was slashed is used up, and one ends when the stake is
    /// withdrawn.
    /// Refused: `UnknownTask`, `TaskClosed`, `TooSmall` (a stake below `stake_min`, or none at all), `Limit`.
    fn pledge(&self, by: &dyn Signer, task: TaskId) -> Result<TxId, LedgerError>;

    /// Asks for the stake back; it stays at risk for the longest `unbond_ms` of the open tasks it is pledged to.
    /// Refused: `Missing`.
    fn unstake(&self, by: &dyn Signer) -> Result<TxId, LedgerError>;

    /// Returns an unstaked stake to its owner's wallet.
    /// Refused: `Missing`, `TooEarly`.
    fn withdraw_stake(&self, by: &dyn Signer) -> Result<Amount, LedgerError>;

    /// Posts a round's settlement; `by` must be the task's coordinator. It becomes final after the challenge window.
    /// Posting exactly the same again is [`Posted::Already`].
    /// Refused: `UnknownTask`, `TaskClosed`, `NotAllowed`, `ConflictingSettlement`, `BadSettlement` (totals that
    /// shrink or exceed the deposit, a round that does not follow, a `previous_root` that is not the last standing
    /// settlement's, a payout id that is not the round's, a task that has expired: a coordinator that goes on posting
    /// could keep the buyer's money locked), `Limit`.
    fn post(&self, by: &dyn Signer, settlement: &Settlement) -> Result<Posted, LedgerError>;

    /// Cancels a settlement, and every later one of the task, within its window; `by` must be the task's arbiter.
    /// Refused: `UnknownTask`, `NotAllowed`, `Missing`, `WindowClosed`.
    fn cancel(&self, by: &dyn Signer, task: TaskId, payout: PayoutId) -> Result<TxId, LedgerError>;

    /// Makes final every settlement of a task whose window is over; anybody may. Returns how many there were; 0 is
    /// no refusal.
    /// Refused: `UnknownTask`.
    fn finalize(&self, by: &dyn Signer, task: TaskId) -> Result<u64, LedgerError>;

    /// Carries out what the task's last final root says about `claim.account`, by proof; anybody may send it, and when
    /// the task is closed too. Pays it the difference between `totals.paid` and what it was paid before, and takes the
    /// difference between `totals.debited` and what was proven before from its bond, to the treasury. What the bond
    /// does not hold (any more) is not owed later either.
    /// Refused: `UnknownTask`, `BadProof`, `NothingToClaim` (neither is more than before), `BadSettlement` (a root that
    /// promises more than its own totals; running totals that shrank; more debited than `debit_max` for each round up
    /// to the last final one).
    fn claim(&self, by: &dyn Signer, claim: &Claim) -> Result<Claimed, LedgerError>;

    /// Closes a task and refunds what is still in escrow: its coordinator may at any time, anybody after `expires`;
    /// settlements whose window is over are made final first. Returns the refund.
    /// Refused: `UnknownTask`, `TaskClosed`, `Pending`, `TooEarly`.
    fn close(&self, by: &dyn Signer, task: TaskId) -> Result<Amount, LedgerError>;

    /// Moves part of a bond or pledged stake to the treasury; `by` must be the task's arbiter. Returns what was taken.
    /// Refused: `UnknownTask`, `NotAllowed`, `TaskClosed`, `Meaningless` (zero), `Missing` (no bond, no pledge, or
    /// nothing left of it).
    fn slash(&self, by: &dyn Signer, slash: &Slash) -> Result<Amount, LedgerError>;
}
