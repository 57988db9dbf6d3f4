//! Retries with exponential back-off for transient errors, such as a refused connection or a
//! restarting coordinator.

use std::time::Duration;

use florin_ledger::{Ledger, LedgerError};
use florin_protocol::{ErrorCode, WalletSigner};

use crate::client::ClientError;
use crate::shutdown::Shutdown;

/// A back-off policy: waits double from the first to the longest, until their sum reaches the
/// total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// First wait, in milliseconds.
    pub initial_ms: u64,
    /// Longest wait, in milliseconds.
    pub max_ms: u64,
    /// Sum of all waits after which an error is final, in milliseconds.
    pub max_total_ms: u64,
}

impl Default for Backoff {
    /// From 100 ms to 5 s, for ten minutes.
    fn default() -> Self {
        Self { initial_ms: 100, max_ms: 5_000, max_total_ms: 600_000 }
    }
}

/// An error that may be transient.
pub trait Transient {
    /// Whether a retry may succeed.
    fn is_transient(&self) -> bool;
}

impl Transient for ClientError {
    fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::RateLimited { .. } | Self::LimitReached(_))
    }
}

impl Transient for LedgerError {
    fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}

/// A client error after a deposit of escrow or bond that is on the ledger. "Not funded" and "bond
/// too small" are transient then: the coordinator may wait for more confirmations, or use a node
/// that is behind.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DepositPending(pub ClientError);

impl Transient for DepositPending {
    fn is_transient(&self) -> bool {
        let Self(error) = self;
        let unseen =
            |code: ErrorCode| matches!(code, ErrorCode::NotFunded | ErrorCode::BondTooSmall);
        error.is_transient() || error.rejection().is_some_and(|rejection| unseen(rejection.code))
    }
}

/// Calls `attempt` until it succeeds, fails permanently, exceeds the total wait of the policy, or
/// shutdown is requested; then returns the last error. `attempt` must be idempotent if its response
/// can be lost. Calls the callback for every failure that is followed by a retry.
///
/// # Errors
/// The last error of `attempt`.
pub fn retry_with_backoff<T, E: Transient>(
    patience: Backoff,
    shutdown: &Shutdown,
    mut on_retry: impl FnMut(&E),
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let (mut wait_ms, mut waited_ms) = (patience.initial_ms.max(1), 0u64);
    loop {
        let error = match attempt() {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if !error.is_transient() || waited_ms >= patience.max_total_ms || shutdown.is_requested() {
            return Err(error);
        }
        on_retry(&error);
        shutdown.wait(Duration::from_millis(wait_ms));
        waited_ms = waited_ms.saturating_add(wait_ms);
        wait_ms = wait_ms.saturating_mul(2).min(patience.max_ms.max(1));
    }
}

/// Resumes this account's pending transactions: a reorganisation may have undone one, and then the
/// ledger is unavailable until the transaction is sent again. The next attempt shows the result.
pub(crate) fn resume_transactions(ledger: &dyn Ledger, wallet: &dyn WalletSigner) {
    if let Err(error) = ledger.resume(wallet) {
        tracing::debug!(%error, "a pending ledger transaction is not confirmed yet");
    }
}

#[cfg(test)]
mod tests {
    use florin_ledger::Refusal;

    use super::*;

    const QUICK: Backoff = Backoff { initial_ms: 1, max_ms: 2, max_total_ms: 5 };

    fn unavailable() -> LedgerError {
        LedgerError::Unavailable("connection refused".to_owned())
    }

    #[test]
    fn only_transient_errors_are_retried() {
        let (mut tries, mut retries) = (0, 0);
        let result = retry_with_backoff(
            QUICK,
            &Shutdown::new(),
            |_| retries += 1,
            || {
                tries += 1;
                if tries < 3 { Err(unavailable()) } else { Ok(tries) }
            },
        );
        assert_eq!((result.unwrap(), retries), (3, 2));
        let mut tries = 0;
        let result: Result<(), _> = retry_with_backoff(
            QUICK,
            &Shutdown::new(),
            |_| (),
            || {
                tries += 1;
                Err(LedgerError::from(Refusal::NothingToClaim))
            },
        );
        assert!(result.is_err() && tries == 1);
    }

    #[test]
    fn retries_end_after_the_total_wait_or_on_shutdown() {
        let mut tries = 0;
        let result: Result<(), _> = retry_with_backoff(
            QUICK,
            &Shutdown::new(),
            |_| (),
            || {
                tries += 1;
                Err(unavailable())
            },
        );
        assert!(result.is_err());
        assert_eq!(tries, 4, "after 1, 2 and 2 ms");
        let stopped = Shutdown::new();
        stopped.request();
        let mut tries = 0;
        let _: Result<(), _> = retry_with_backoff(
            Backoff::default(),
            &stopped,
            |_| (),
            || {
                tries += 1;
                Err(unavailable())
            },
        );
        assert_eq!(tries, 1);
    }
}
