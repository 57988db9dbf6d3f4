//! Error codes: stable identifiers that programs may rely on when the market rejects a request.

use std::fmt;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Error code of a rejection. The meaning of a text form (`DEADLINE_PASSED`) never changes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize,
                 BorshDeserialize, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(borsh::BorshSchema))]
        pub enum ErrorCode {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl ErrorCode {
            /// Every code.
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
    /// Bytes that do not decode as the expected message.
    Malformed = "MALFORMED",
    /// A signature that does not verify.
    InvalidSignature = "INVALID_SIGNATURE",
    /// A node key of small order: signatures under it can be forged.
    WeakKey = "WEAK_KEY",
    /// Signed for another market or chain.
    WrongMarket = "WRONG_MARKET",
    /// The task is unknown here.
    UnknownTask = "UNKNOWN_TASK",
    /// Signed for another task.
    WrongTask = "WRONG_TASK",
    /// The task is closed.
    TaskClosed = "TASK_CLOSED",
    /// An invalid task specification.
    InvalidTask = "INVALID_TASK",
    /// The task's escrow is missing or smaller than its budget.
    NotFunded = "NOT_FUNDED",
    /// Signed for a round that is not the current one.
    WrongRound = "WRONG_ROUND",
    /// Trained from a base model other than the offered one.
    WrongBaseModel = "WRONG_BASE_MODEL",
    /// The deadline has passed.
    DeadlinePassed = "DEADLINE_PASSED",
    /// The phase has not begun yet: for example a reveal during the commit phase.
    TooEarly = "TOO_EARLY",
    /// The sender is not registered.
    NotRegistered = "NOT_REGISTERED",
    /// The sender is not enrolled in the task.
    NotEnrolled = "NOT_ENROLLED",
    /// The sender is not selected for this round.
    NotSelected = "NOT_SELECTED",
    /// The sender's bond is too small.
    BondTooSmall = "BOND_TOO_SMALL",
    /// The provider's stake is too small.
    StakeTooSmall = "STAKE_TOO_SMALL",
    /// A second, different message where only one is allowed.
    ConflictingMessage = "CONFLICTING_MESSAGE",
    /// The update does not match its commit.
    CommitMismatch = "COMMIT_MISMATCH",
    /// The sender has no commit for this update.
    NotCommitted = "NOT_COMMITTED",
    /// The body exceeds the limit.
    TooLarge = "TOO_LARGE",
    /// The body is shorter than announced.
    Truncated = "TRUNCATED",
    /// The declared number of rows is outside 1..=limit.
    InvalidRowCount = "INVALID_ROW_COUNT",
    /// The update has a NaN or an infinity.
    UpdateNotFinite = "UPDATE_NOT_FINITE",
    /// Tensor names, shapes or types differ from the model's.
    UpdateWrongSchema = "UPDATE_WRONG_SCHEMA",
    /// The update's norm exceeds the task's limit.
    UpdateNormTooLarge = "UPDATE_NORM_TOO_LARGE",
    /// A limit on concurrent items is reached.
    LimitReached = "LIMIT_REACHED",
    /// The requested item does not exist.
    NotFound = "NOT_FOUND",
    /// Not published yet.
    NotYetPublic = "NOT_YET_PUBLIC",
    /// Another provider did the work, or the order no longer exists.
    WorkOrderClosed = "WORK_ORDER_CLOSED",
    /// The result of the work does not match its recomputation.
    WorkResultMismatch = "WORK_RESULT_MISMATCH",
    /// The ledger refused a transaction.
    LedgerRejected = "LEDGER_REJECTED",
    /// The disk is full.
    StorageFull = "STORAGE_FULL",
    /// Internal error of the server.
    Internal = "INTERNAL",
    /// An address or a wallet exceeds its rate limit of requests or messages.
    RateLimited = "RATE_LIMITED",
    /// The route exists, but not with this method.
    MethodNotAllowed = "METHOD_NOT_ALLOWED",
    /// The body has a content type that the route does not accept.
    WrongContentType = "WRONG_CONTENT_TYPE",
    /// The upload's offset is not the end of the bytes received so far.
    WrongOffset = "WRONG_OFFSET",
    /// The upload quota of a sender, a task or the whole server is exhausted.
    QuotaExceeded = "QUOTA_EXCEEDED",
    /// The blob store is unavailable; retry later.
    StorageUnavailable = "STORAGE_UNAVAILABLE",
    /// The task admits only listed or invited accounts, and the sender is neither.
    NotAdmitted = "NOT_ADMITTED",
    /// The invitation is for another task or account, or its buyer did not sign it.
    InvalidInvitation = "INVALID_INVITATION",
    /// Another account has used the invitation.
    InvitationUsed = "INVITATION_USED",
    /// The coordinator does not put a bond at risk under the task's arbiter.
    ArbiterNotAccepted = "ARBITER_NOT_ACCEPTED",
    /// The model of the task is a program that the operator has not accepted.
    TrainerNotAccepted = "TRAINER_NOT_ACCEPTED",
    /// The expiry is later than the market accepts.
    InvalidExpiry = "INVALID_EXPIRY",
    /// The task has its most participants or providers, and takes no more.
    TaskFull = "TASK_FULL",
    /// Only another account may register in this role.
    WrongRole = "WRONG_ROLE",
    /// An invalid order for compute, or one that its blobs do not fit.
    InvalidOrder = "INVALID_ORDER",
    /// The rules of the lease refuse the action; the message ends with the code of the rule.
    LeaseRefused = "LEASE_REFUSED",
    /// The order takes bids of listed devices, and the bidder has none that are proven.
    NotListed = "NOT_LISTED",
    /// The rows and states of the order are not public, and the request is of no account that may read them now.
    DataRestricted = "DATA_RESTRICTED",
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error response to a sender: a stable code, and a message with what is wrong and what is
/// valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} [{code}]")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Rejection {
    /// For programs.
    pub code: ErrorCode,
    /// For people.
    pub message: String,
}

impl Rejection {
    /// A rejection with its message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}
