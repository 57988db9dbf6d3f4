//! The trait [`Ledger`]: every operation that the market needs of its ledger. Each method lists its
//! refusals.

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{
    Address, Amount, Digest, LedgerReceipt, MarketId, Report, RoundNumber, SettlementId, TaskId,
    Timestamp, WalletSignature, WalletSigner,
};
use serde::{Deserialize, Serialize};

pub use crate::refusal::Refusal;
pub use crate::split::MemberShare;
pub use crate::terms::Terms;

/// Identifies an executed transaction, or one that had nothing to change: the transaction's digest.
pub type TxId = Digest;

/// One round's settlement as the coordinator posts it. Its size does not depend on the number of
/// paid or debited accounts. All totals are running totals over the task.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Settlement {
    /// The task.
    pub task: TaskId,
    /// Identifies the settlement; each id can be posted once.
    pub payout: SettlementId,
    /// The round.
    pub round: RoundNumber,
    /// Digest of the round's report.
    pub report: Digest,
    /// Root of the preceding settlement, which is the latest one, pending or final; zeros for the
    /// first.
    pub previous_root: Digest,
    /// Root of the Merkle tree of running totals, paid and debited.
    pub root: Digest,
    /// Total paid for data in the task, including this round.
    pub data_total: Amount,
    /// The part of `data_total` that was paid for scores; the rest is floor.
    pub score_pay_total: Amount,
    /// Total paid for infrastructure in the task, including this round.
    pub infrastructure_total: Amount,
    /// Improvement of the task's model in nano-nats, including this round.
    pub improvement_total_nano: u64,
}

impl Settlement {
    /// The settlement that a report states; a pure function of the report.
    #[must_use]
    pub const fn from_report(report: &Report, digest: Digest) -> Self {
        Self {
            task: report.scope.task,
            payout: report.settlement_id,
            round: report.scope.round,
            report: digest,
            previous_root: report.previous_root,
            root: report.root,
            data_total: report.data_total,
            score_pay_total: report.score_pay_total,
            infrastructure_total: report.infrastructure_total,
            improvement_total_nano: report.improvement_total_nano,
        }
    }
}

/// A claim of everything due to one account in a task: the payout that it is owed, and the debit
/// that its bond owes.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Claim {
    /// The task.
    pub task: TaskId,
    /// The account that is paid and debited; any account may send the claim.
    pub account: Address,
    /// The account's running totals under the final root.
    pub totals: ClaimTotals,
    /// Merkle proof: sibling hashes from the leaf to the root.
    pub proof: Vec<Digest>,
}

/// The amounts that one claim moved.
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
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ClaimOutcome {
    /// Paid into the account's wallet, or into the wallets of its split's members.
    pub paid: Amount,
    /// Taken from the account's bond: less than the debit if the bond held less.
    pub taken: Amount,
}

/// An arbiter's request to take an amount from a bond or a pledged stake, with a reference to the
/// evidence.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Slash {
    /// The task whose rules apply.
    pub task: TaskId,
    /// The account that is slashed.
    pub account: Address,
    /// True for a provider's stake, false for a participant's bond.
    pub stake: bool,
    /// The amount requested; the ledger takes at most the available balance (of a stake: at most
    /// the task's `stake_min` in total).
    pub amount: Amount,
    /// Digest of the evidence, so that it can be verified.
    pub evidence: Digest,
}

/// An objection to an announced close: the coordinator's receipt for an update of a round that was
/// not settled.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Objection {
    /// The receipt.
    pub receipt: LedgerReceipt,
    /// The coordinator's signature of [`LedgerReceipt::signing_hash`].
    pub signature: WalletSignature,
}

/// A posted settlement that is not final yet.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct PendingSettlement {
    /// The settlement as posted.
    pub settlement: Settlement,
    /// Final after this moment.
    pub final_at: Timestamp,
}

/// The status of a settlement.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum SettlementStatus {
    /// Never posted, or cancelled; it can be posted (again).
    Unknown,
    /// Within its challenge window, or not finalised yet.
    Pending,
    /// Final: its amounts were moved to `Owed`.
    Final,
}

/// The ledger's state of one task.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct TaskState {
    /// The terms with which the task was opened.
    pub terms: Terms,
    /// Still in escrow for data.
    pub data_locked: Amount,
    /// Still in escrow for infrastructure.
    pub infrastructure_locked: Amount,
    /// Finalised for data so far (claimed or not).
    pub data_paid: Amount,
    /// Finalised for infrastructure so far (claimed or not).
    pub infrastructure_paid: Amount,
    /// Refunded to the buyer.
    pub refunded: Amount,
    /// Final and not claimed yet.
    pub owed: Amount,
    /// Root of the last final settlement; zeros before the first.
    pub root: Digest,
    /// Round of the last final settlement.
    pub round: Option<RoundNumber>,
    /// Settlements that are not final yet, oldest first: at most [`crate::limits::PENDING_MAX`].
    pub pending: Vec<PendingSettlement>,
    /// From this moment any account may close the task, because its coordinator announced it and no
    /// account has objected.
    pub closes_at: Option<Timestamp>,
    /// Closed permanently.
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
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct BondState {
    /// Currently at risk.
    pub amount: Amount,
    /// The earliest moment of its return, if its owner has requested it; see
    /// [`Ledger::withdraw_bond`].
    pub release: Option<Timestamp>,
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
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct StakeState {
    /// Currently at risk.
    pub amount: Amount,
    /// The moment from which it can be withdrawn, if its owner has requested its return.
    pub release: Option<Timestamp>,
}

/// The result of posting a settlement.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum PostOutcome {
    /// The settlement was recorded.
    Posted,
    /// The identical settlement was recorded before: nothing changed.
    AlreadyPosted,
}

/// The error of a ledger operation.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The ledger refused the request. Nothing changed.
    #[error("{0} [{code}]", code = .0.code())]
    Refused(#[from] Refusal),
    /// The ledger could not be reached, or its response was lost: it is unknown whether anything
    /// changed. Query the ledger before repeating the write.
    #[error("the ledger is unavailable: {0} [LEDGER_UNAVAILABLE]")]
    Unavailable(String),
    /// The ledger's own records are inconsistent. The ledger stops using them.
    #[error("the ledger is corrupt: {0} [LEDGER_CORRUPT]")]
    Corrupt(String),
    /// A transaction whose gas the sender cannot pay, or whose gas would cost more than the sender
    /// allows. Nothing changed.
    #[error("{0} [GAS_NOT_PAID]")]
    Gas(String),
    /// The outbox, the record of the wallet's sent transactions, is unusable. Nothing was sent.
    #[error("outbox: {0} [OUTBOX_FAILED]")]
    Outbox(String),
    /// The wallet could not sign.
    #[error("{0} [SIGNING_FAILED]")]
    Signing(#[from] florin_protocol::SignError),
}

/// The accounts of a market. `by` signs every write. Every method may also return
/// [`LedgerError::Unavailable`], [`LedgerError::Corrupt`] or (writes) [`LedgerError::Signing`]. A
/// refused write changes nothing and leaves no record. Neither does a write that would change
/// nothing: the ledger returns its result and records no transaction.
pub trait Ledger: Send + Sync {
    /// The market this ledger belongs to: chain id and genesis.
    fn market(&self) -> MarketId;

    /// Completes the transactions that an earlier run of this account left unfinished, and resends
    /// those that a reorganisation of the chain has reverted. Call it before reading any state that
    /// decides about a write, and again after [`LedgerError::Unavailable`]. A ledger that returns
    /// only after a write is durable has nothing to do here.
    ///
    /// # Errors
    /// [`LedgerError`]; the rest can be resumed later.
    fn resume(&self, by: &dyn WalletSigner) -> Result<(), LedgerError> {
        let _ = by;
        Ok(())
    }

    /// The ledger's clock, which decides about deadlines and windows.
    fn now(&self) -> Result<Timestamp, LedgerError>;

    /// The balance of a wallet; zero for an unknown account.
    fn balance(&self, account: Address) -> Result<Amount, LedgerError>;

    /// The balance of the treasury: all debits and slashed amounts.
    fn treasury(&self) -> Result<Amount, LedgerError>;

    /// The state of a task; `None` for a task that was never opened.
    fn task(&self, task: TaskId) -> Result<Option<TaskState>, LedgerError>;

    /// A participant's bond in a task; zero if there is none.
    fn bond_of(&self, task: TaskId, account: Address) -> Result<BondState, LedgerError>;

    /// A provider's stake; zero if there is none.
    fn stake_of(&self, account: Address) -> Result<StakeState, LedgerError>;

    /// Whether a provider has pledged its stake to a task.
    fn is_pledged(&self, task: TaskId, provider: Address) -> Result<bool, LedgerError>;

    /// The totals of an account's claims in a task: the amount paid to it, and the debits proven,
    /// which its bond may not have covered.
    fn claimed_totals(&self, task: TaskId, account: Address) -> Result<ClaimTotals, LedgerError>;

    /// The split of an account's pay in a task, in the order of the members' addresses; empty if
    /// the account has none.
    fn split_of(&self, task: TaskId, account: Address) -> Result<Vec<MemberShare>, LedgerError>;

    /// The status of a settlement.
    fn settlement_status(
        &self,
        task: TaskId,
        payout: SettlementId,
    ) -> Result<SettlementStatus, LedgerError>;

    /// Moves tokens between wallets.
    /// Refused: `Insufficient`, `InvalidArgument` (zero, to the sender itself, or to the zero
    /// address).
    fn transfer(
        &self,
        by: &dyn WalletSigner,
        to: Address,
        amount: Amount,
    ) -> Result<TxId, LedgerError>;

    /// Locks a task's budget in escrow; `by` must be the buyer.
    /// Refused: `TaskExists`, `Insufficient`, `Unauthorized`, `InvalidArgument` (the arbiter is the
    /// buyer or the zero address, no rounds, a challenge window of 0, a floor share above 1),
    /// `TooSmall` (a data pool below [`florin_protocol::DATA_PER_ROUND_MIN`]), `LimitExceeded` (a
    /// window or a delay above 30 days, an expiry more than 366 days from now).
    fn open_task(&self, by: &dyn WalletSigner, terms: &Terms) -> Result<TxId, LedgerError>;

    /// Divides the sender's pay in a task among members, permanently: each claim of the sender's
    /// totals then pays the members, see [`crate::split`]. Bonds and debits stay the sender's. The
    /// identical split again changes nothing.
    /// Refused: `UnknownTask`, `TaskClosed`, `LimitExceeded` (more than
    /// [`crate::limits::SPLIT_MEMBERS_MAX`] members), `SplitInvalid` (see
    /// [`crate::split::check_split`]), `SplitFixed` (another split), `SplitTooLate` (the sender has a
    /// bond in the task, or has claimed).
    fn set_split(
        &self,
        by: &dyn WalletSigner,
        task: TaskId,
        members: &[MemberShare],
    ) -> Result<TxId, LedgerError>;

    /// Adds to the sender's bond in a task; cancels a pending unbonding.
    /// Refused: `UnknownTask`, `TaskClosed`, `TooSmall` (the bond would be below the task's
    /// minimum, which does not apply to a coordinator that is not the arbiter), `Insufficient`.
    fn bond(
        &self,
        by: &dyn WalletSigner,
        task: TaskId,
        amount: Amount,
    ) -> Result<TxId, LedgerError>;

    /// Requests the return of the sender's bond: it stays at risk for `unbond_ms`, and then until
    /// every settlement posted before that moment can be proven. A repeated request does not change
    /// the moment.
    /// Refused: `UnknownTask`, `NotFound`.
    fn unbond(&self, by: &dyn WalletSigner, task: TaskId) -> Result<TxId, LedgerError>;

    /// Returns an unbonded bond to its owner's wallet, from
    /// `max(release, min(last_post, release) + 2 · challenge_ms)` on. `last_post` is the moment at
    /// which the task's latest settlement was posted; without any settlement the bond is free from
    /// `release` on. A settlement posted before `release` is final one window later, and during
    /// another window any account can prove a debit. A settlement posted later does not affect the
    /// bond, so that no coordinator can hold a bond for longer than `release + 2 · challenge_ms`.
    /// After the task is closed no request is needed: the bond is free from
    /// `last_post + 2 · challenge_ms` on, or at once without any settlement. The bond of a coordinator
    /// that is not the arbiter covers pay, and returns only after the close.
    /// Refused: `UnknownTask`, `NotFound` (no bond, or no request, or a coordinator's in an open
    /// task), `TooEarly` (with that moment).
    fn withdraw_bond(&self, by: &dyn WalletSigner, task: TaskId) -> Result<Amount, LedgerError>;

    /// Adds to the sender's stake; cancels a pending unstaking.
    /// Refused: `Insufficient`, `InvalidArgument`.
    fn stake(&self, by: &dyn WalletSigner, amount: Amount) -> Result<TxId, LedgerError>;

    /// Pledges the sender's stake to a task, so that the task's arbiter can slash up to the task's
    /// `stake_min` from it; cancels a pending unstaking. A repeated pledge changes nothing. A
    /// pledge from which `stake_min` was slashed is used up, and a pledge ends when the stake is
    /// withdrawn.
    /// Refused: `UnknownTask`, `TaskClosed`, `TooSmall` (a stake below `stake_min`, or none at
    /// all), `LimitExceeded`.
    fn pledge(&self, by: &dyn WalletSigner, task: TaskId) -> Result<TxId, LedgerError>;

    /// Requests the return of the stake; it stays at risk for the longest `unbond_ms` of the open
    /// tasks it is pledged to.
    /// Refused: `NotFound`.
    fn unstake(&self, by: &dyn WalletSigner) -> Result<TxId, LedgerError>;

    /// Returns an unstaked stake to its owner's wallet.
    /// Refused: `NotFound`, `TooEarly`.
    fn withdraw_stake(&self, by: &dyn WalletSigner) -> Result<Amount, LedgerError>;

    /// Posts a round's settlement; `by` must be the task's coordinator. It becomes final after the
    /// challenge window. Posting the identical settlement again returns
    /// [`PostOutcome::AlreadyPosted`].
    /// Refused: `UnknownTask`, `TaskClosed`, `Unauthorized`, `ConflictingSettlement`,
    /// `InvalidSettlement` (totals that decrease or exceed the rounds' part of the deposit, score pay
    /// above [`Terms::score_pay_max`], other data pay above [`Terms::floor_max`], a round that is not
    /// later than the previous one or later than the last, a `previous_root` that is not the root of the latest settlement, a
    /// payout id that is not the round's, an expired task: a coordinator that continues to post
    /// could keep the buyer's money locked), `LimitExceeded`, `TooSmall` (unless the coordinator is
    /// the arbiter: its bond does not cover all pay that is then posted and not final; a bond whose
    /// return was requested covers nothing).
    fn post(
        &self,
        by: &dyn WalletSigner,
        settlement: &Settlement,
    ) -> Result<PostOutcome, LedgerError>;

    /// Cancels a settlement, and every later one of the task, within its window; `by` must be the
    /// task's arbiter.
    /// Refused: `UnknownTask`, `Unauthorized`, `NotFound`, `WindowClosed`.
    fn cancel(
        &self,
        by: &dyn WalletSigner,
        task: TaskId,
        payout: SettlementId,
    ) -> Result<TxId, LedgerError>;

    /// Finalises every settlement of a task whose window is over; any account may call it. Returns
    /// the number of settlements finalised; 0 is not a refusal.
    /// Refused: `UnknownTask`.
    fn finalize(&self, by: &dyn WalletSigner, task: TaskId) -> Result<u64, LedgerError>;

    /// Executes the running totals of `claim.account` under the task's last final root, by Merkle
    /// proof. Any account may send it, also after the task is closed. Pays the account, or the
    /// members of its split, the
    /// difference between `totals.paid` and the amount paid before, and takes the difference
    /// between `totals.debited` and the amount proven before from its bond, to the treasury. A
    /// debit that exceeds the bond is not owed later.
    /// Refused: `UnknownTask`, `InvalidProof`, `NothingToClaim` (neither total has increased),
    /// `InvalidSettlement` (a root that promises more than its own totals; running totals that
    /// decreased; more debited than `debit_max` for each round up to the last final one).
    fn claim(&self, by: &dyn WalletSigner, claim: &Claim) -> Result<ClaimOutcome, LedgerError>;

    /// Closes a task and refunds the amount still in escrow. Settlements whose window is over are
    /// finalised first. Returns the refund. Any account may close after `expires`, or from the moment
    /// that [`Ledger::announce_close`] set. The coordinator may close at any time if its last round is
    /// final, if a settlement was cancelled, or if it is the arbiter: then no other account decides.
    /// Refused: `UnknownTask`, `TaskClosed`, `SettlementsPending`, `TooEarly` (with the moment of an
    /// announced close, or of the expiry).
    fn close(&self, by: &dyn WalletSigner, task: TaskId) -> Result<Amount, LedgerError>;

    /// Announces that the coordinator will close the task before its expiry; `by` must be the
    /// coordinator. The close is possible one challenge window later, unless an account objects or
    /// a settlement is posted after it. A repeated announcement changes nothing.
    /// Refused: `UnknownTask`, `Unauthorized`, `TaskClosed`, `SettlementsPending` (finalise them
    /// first: an objection depends on the last final round).
    fn announce_close(&self, by: &dyn WalletSigner, task: TaskId) -> Result<TxId, LedgerError>;

    /// Objects to an announced close with the coordinator's receipt for an update of a round after
    /// the last final one. Any account may object. The announcement is withdrawn, and the
    /// coordinator's whole bond in the task goes to the treasury. Returns that amount, which may be 0.
    /// Refused: `UnknownTask`, `TaskClosed`, `NotFound` (no close is announced), `SettlementsPending`
    /// (one of them may settle the round), `InvalidArgument` (the round is settled),
    /// `InvalidSignature` (not the coordinator's).
    fn object(&self, by: &dyn WalletSigner, objection: &Objection) -> Result<Amount, LedgerError>;

    /// Moves part of a bond or pledged stake to the treasury; `by` must be the task's arbiter.
    /// Returns the amount taken: at most `stake_min` of one pledge, and at most `bond_min` of all
    /// bonds of one account in the task, except of a coordinator that is not the arbiter.
    /// Refused: `UnknownTask`, `Unauthorized`, `TaskClosed` (except for the bond of a coordinator that
    /// is not the arbiter), `InvalidArgument` (zero), `NotFound`
    /// (no bond, no pledge, or nothing left of it).
    fn slash(&self, by: &dyn WalletSigner, slash: &Slash) -> Result<Amount, LedgerError>;
}
