//! Stable codes: what a machine may rely on when the market refuses something.

use std::fmt;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why something was refused. The text form (`DEADLINE_PASSED`) never changes its meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize,
                 BorshDeserialize, Serialize, Deserialize)]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl Code {
            /// Every code there is.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The text form.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

codes! {
    /// Bytes that are not the message they should be.
    Malformed = "MALFORMED",
    /// A signature that does not verify.
    BadSignature = "BAD_SIGNATURE",
    /// A node key of small order: anybody could sign for it.
    WeakKey = "WEAK_KEY",
    /// Said in another market or chain.
    WrongMarket = "WRONG_MARKET",
    /// No such task here.
    UnknownTask = "UNKNOWN_TASK",
    /// Said for another task.
    WrongTask = "WRONG_TASK",
    /// The task is not open any more.
    TaskClosed = "TASK_CLOSED",
    /// A task description that cannot work.
    BadTask = "BAD_TASK",
    /// The task's escrow is missing or smaller than its budget.
    NotFunded = "NOT_FUNDED",
    /// Said for a round that is not the current one.
    WrongRound = "WRONG_ROUND",
    /// Trained from another model than the one offered.
    WrongBaseModel = "WRONG_BASE_MODEL",
    /// After the deadline.
    DeadlinePassed = "DEADLINE_PASSED",
    /// Before its phase: a reveal while commits are still open.
    TooEarly = "TOO_EARLY",
    /// The sender is not registered.
    NotRegistered = "NOT_REGISTERED",
    /// The sender is not enrolled in the task.
    NotEnrolled = "NOT_ENROLLED",
    /// The sender was not asked in this round.
    NotSelected = "NOT_SELECTED",
    /// The sender's bond is too small.
    BondTooSmall = "BOND_TOO_SMALL",
    /// The provider's stake is too small.
    StakeTooSmall = "STAKE_TOO_SMALL",
    /// A second, different message where only one may be.
    Conflicting = "CONFLICTING",
    /// The update does not match its commit.
    CommitMismatch = "COMMIT_MISMATCH",
    /// No commit was made for this update.
    NotCommitted = "NOT_COMMITTED",
    /// Body larger than the limit.
    TooLarge = "TOO_LARGE",
    /// Body shorter than announced.
    Truncated = "TRUNCATED",
    /// A declared number of rows outside 1..=limit.
    BadRows = "BAD_ROWS",
    /// A NaN or an infinity in the update.
    UpdateNotFinite = "UPDATE_NOT_FINITE",
    /// Tensor names, shapes or types are not the model's.
    UpdateWrongSchema = "UPDATE_WRONG_SCHEMA",
    /// The update's norm is above the task's limit.
    UpdateNormTooLarge = "UPDATE_NORM_TOO_LARGE",
    /// Too many of something at once.
    LimitReached = "LIMIT_REACHED",
    /// No such thing.
    NotFound = "NOT_FOUND",
    /// Not published yet.
    NotYetPublic = "NOT_YET_PUBLIC",
    /// The work was done by somebody else or the order is gone.
    WorkGone = "WORK_GONE",
    /// The work's result does not match its recomputation.
    WorkWrong = "WORK_WRONG",
    /// The ledger refused a transaction.
    LedgerRefused = "LEDGER_REFUSED",
    /// The disk is full.
    StorageFull = "STORAGE_FULL",
    /// Something broke on our side.
    Internal = "INTERNAL",
    /// More requests or messages than an address or a wallet may send.
    RateLimited = "RATE_LIMITED",
    /// The route exists, but not with this method.
    MethodNotAllowed = "METHOD_NOT_ALLOWED",
    /// A body of another type than the route takes.
    WrongContentType = "WRONG_CONTENT_TYPE",
    /// An upload that goes on where the bytes that are here do not end.
    WrongOffset = "WRONG_OFFSET",
    /// What uploads may take together is taken: a sender's, a task's or everybody's.
    QuotaExceeded = "QUOTA_EXCEEDED",
    /// Where blobs are kept does not answer: the same works later.
    StorageUnavailable = "STORAGE_UNAVAILABLE",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An answer to a sender: a stable code and a sentence that says what would be right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} [{code}]")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Rejection {
    /// For machines.
    pub code: Code,
    /// For people.
    pub message: String,
}

impl Rejection {
    /// A rejection with its sentence.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}
