//! The reasons for refusals, with their stable codes.

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Address, Amount, RoundNumber, SettlementId, TaskId, Timestamp};
use serde::{Deserialize, Serialize};

/// The reason for a refusal: a property of the ledger's state, so that an identical retry is
/// refused as well.
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
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum Refusal {
    /// The paying account has too little.
    #[error("{account} has {available} FLN, but {needed} FLN are needed")]
    Insufficient {
        /// The paying account.
        account: Address,
        /// Its balance.
        available: Amount,
        /// The required amount.
        needed: Amount,
    },
    /// The transaction's nonce is not the account's next one.
    #[error("nonce {got} is out of sequence: the account's next nonce is {expected}")]
    WrongNonce {
        /// The nonce sent.
        got: u64,
        /// The account's next nonce.
        expected: u64,
    },
    /// Signed by another account, or not at all.
    #[error("the signature is not by the sender of the transaction")]
    InvalidSignature,
    /// Signed for another chain or market.
    #[error("the transaction was signed for another chain or market")]
    WrongMarket,
    /// The task is unknown.
    #[error("task {0} does not exist on this ledger: open it first")]
    UnknownTask(TaskId),
    /// The task id is in use.
    #[error("task {0} exists already")]
    TaskExists(TaskId),
    /// The task is closed.
    #[error("task {0} is closed")]
    TaskClosed(TaskId),
    /// The sender lacks the permission.
    #[error("only {allowed} may do this, not {sender}")]
    Unauthorized {
        /// The sender.
        sender: Address,
        /// The account or role that is allowed.
        allowed: String,
    },
    /// A bond, a stake or a data pool below its minimum, or a coordinator's bond below the pay that a
    /// post would leave posted and not final.
    #[error("{offered} FLN are below the minimum of {smallest} FLN")]
    TooSmall {
        /// The amount offered.
        offered: Amount,
        /// The minimum.
        smallest: Amount,
    },
    /// The action is possible only later.
    #[error("not possible before {at}; the ledger's time is {now}")]
    TooEarly {
        /// The earliest moment.
        at: Timestamp,
        /// The ledger's clock.
        now: Timestamp,
    },
    /// The challenge window is over.
    #[error("the challenge window closed at {0}")]
    WindowClosed(Timestamp),
    /// Settlements are within their challenge window.
    #[error("{0} settlements are not final yet")]
    SettlementsPending(u64),
    /// Another settlement was posted under this payout id.
    #[error("another settlement was posted under payout id {0}")]
    ConflictingSettlement(SettlementId),
    /// Running totals that decrease or exceed the deposit, or debits above their limit.
    #[error("settlement of round {round}: {reason}")]
    InvalidSettlement {
        /// The round.
        round: RoundNumber,
        /// The violated rule.
        reason: String,
    },
    /// The proof does not verify against the final root.
    #[error("the proof does not match the task's final root: fetch a current proof")]
    InvalidProof,
    /// Everything was paid and debited before.
    #[error("nothing to claim: every payout was paid and every debit was taken before")]
    NothingToClaim,
    /// The bond, stake or settlement does not exist.
    #[error("{0}")]
    NotFound(String),
    /// An amount of zero, a transfer to the sender itself, or another invalid argument.
    #[error("{0}")]
    InvalidArgument(String),
    /// A limit of [`crate::limits`].
    #[error("limit exceeded: {0}")]
    LimitExceeded(String),
    /// A list of members and shares that is not a split.
    #[error("not a split: {0}")]
    SplitInvalid(String),
    /// The account has another split in the task, which stays.
    #[error("{account} has another split in task {task}, and a split is set once")]
    SplitFixed {
        /// The task.
        task: TaskId,
        /// The account.
        account: Address,
    },
    /// The account takes part in the task already.
    #[error(
        "{account} has a bond or a claim in task {task}: a split is set before the first bond; use \
         another account for another split"
    )]
    SplitTooLate {
        /// The task.
        task: TaskId,
        /// The account.
        account: Address,
    },
}

impl Refusal {
    /// The stable error code of the refusal.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Insufficient { .. } => "INSUFFICIENT_FUNDS",
            Self::WrongNonce { .. } => "WRONG_NONCE",
            Self::InvalidSignature => "INVALID_SIGNATURE",
            Self::WrongMarket => "WRONG_MARKET",
            Self::UnknownTask(_) => "UNKNOWN_TASK",
            Self::TaskExists(_) => "TASK_EXISTS",
            Self::TaskClosed(_) => "TASK_CLOSED",
            Self::Unauthorized { .. } => "UNAUTHORIZED",
            Self::TooSmall { .. } => "TOO_SMALL",
            Self::TooEarly { .. } => "TOO_EARLY",
            Self::WindowClosed(_) => "WINDOW_CLOSED",
            Self::SettlementsPending(_) => "SETTLEMENT_PENDING",
            Self::ConflictingSettlement(_) => "CONFLICTING_SETTLEMENT",
            Self::InvalidSettlement { .. } => "INVALID_SETTLEMENT",
            Self::InvalidProof => "INVALID_PROOF",
            Self::NothingToClaim => "NOTHING_TO_CLAIM",
            Self::NotFound(_) => "NOT_FOUND",
            Self::InvalidArgument(_) => "INVALID_ARGUMENT",
            Self::LimitExceeded(_) => "LIMIT_EXCEEDED",
            Self::SplitInvalid(_) => "SPLIT_INVALID",
            Self::SplitFixed { .. } => "SPLIT_FIXED",
            Self::SplitTooLate { .. } => "SPLIT_TOO_LATE",
        }
    }
}
