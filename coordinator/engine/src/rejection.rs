//! Rejections that several phases of a task share.

use alloc::format;
use alloc::string::String;

use florin_protocol::{ErrorCode, Rejection, Timestamp};

/// Shorthand for an `Err` with a [`Rejection`].
pub(super) fn reject<T>(code: ErrorCode, message: impl Into<String>) -> Result<T, Rejection> {
    Err(Rejection::new(code, message))
}

/// The message called `what` arrived after its time of expiry.
pub(super) fn expired<T>(what: &str, expires: Timestamp, now: Timestamp) -> Result<T, Rejection> {
    reject(ErrorCode::DeadlinePassed, format!("{what} expired at {expires}, and it is {now}"))
}

/// The work record does not match the coordinator's own result.
pub(super) fn wrong_record<T>() -> Result<T, Rejection> {
    reject(
        ErrorCode::WorkResultMismatch,
        "the result does not match its recomputation: it is not paid",
    )
}
