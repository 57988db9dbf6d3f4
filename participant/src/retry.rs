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
pub struct Patience {
    /// First wait, in milliseconds.
    pub first_ms: u64,
    /// Longest wait, in milliseconds.
    pub longest_ms: u64,
    /// Sum of all waits after which an error is final, in milliseconds.
    pub total_ms: u64,
}

impl Default for Patience {
    /// From 100 ms to 5 s, for ten minutes.
    fn default() -> Self {
        Self { first_ms: 100, longest_ms: 5_000, total_ms: 600_000 }
    }
}

/// An error that may be transient.
pub trait Passing {
    /// Whether a retry may succeed.
    fn is_passing(&self) -> bool;
}

impl Passing for ClientError {
    fn is_passing(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::TooOften { .. })
    }
}

impl Passing for LedgerError {
    fn is_passing(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}

/// A client error after a deposit of escrow or bond that is on the ledger. "Not funded" and "bond
/// too small" are transient then: the coordinator may wait for more confirmations, or use a node
/// that is behind.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct UntilSeen(pub ClientError);

impl Passing for UntilSeen {
    fn is_passing(&self) -> bool {
        let Self(error) = self;
        let unseen =
            |code: ErrorCode| matches!(code, ErrorCode::NotFunded | ErrorCode::BondTooSmall);
        error.is_passing() || error.rejection().is_some_and(|rejection| unseen(rejection.code))
    }
}

/// Calls `attempt` until it succeeds, fails permanently, exceeds the total wait of the policy, or
/// shutdown is requested; then returns the last error. `attempt` must be idempotent if its response
/// can be lost. Calls the callback for every failure that is followed by a retry.
///
/// # Errors
/// The last error of `attempt`.
pub fn patiently<T, E: Passing>(
    patience: Patience,
    shutdown: &Shutdown,
    mut failed: impl FnMut(&E),
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let (mut wait_ms, mut waited_ms) = (patience.first_ms.max(1), 0u64);
    loop {
        let error = match attempt() {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if !error.is_passing() || waited_ms >= patience.total_ms || shutdown.requested() {
            return Err(error);
        }
        failed(&error);
        shutdown.wait(Duration::from_millis(wait_ms));
        waited_ms = waited_ms.saturating_add(wait_ms);
        wait_ms = wait_ms.saturating_mul(2).min(patience.longest_ms.max(1));
    }
}

/// Resumes this account's pending transactions: a reorganisation may have undone one, and then the
/// ledger is unavailable until the transaction is sent again. The next attempt shows the result.
pub(crate) fn see_through(ledger: &dyn Ledger, wallet: &dyn WalletSigner) {
    if let Err(error) = ledger.resume(wallet) {
        tracing::debug!(%error, "a pending ledger transaction is not confirmed yet");
    }
}

#[cfg(test)]
mod tests {
    use florin_ledger::Refusal;

    use super::*;

    const QUICK: Patience = Patience { first_ms: 1, longest_ms: 2, total_ms: 5 };

    fn unavailable() -> LedgerError {
        LedgerError::Unavailable("connection refused".to_owned())
    }

    #[test]
    fn only_transient_errors_are_retried() {
        let (mut tries, mut told) = (0, 0);
        let result = patiently(
            QUICK,
            &Shutdown::new(),
            |_| told += 1,
            || {
                tries += 1;
                if tries < 3 { Err(unavailable()) } else { Ok(tries) }
            },
        );
        assert_eq!((result.unwrap(), told), (3, 2));
        let mut tries = 0;
        let result: Result<(), _> = patiently(
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
        let result: Result<(), _> = patiently(
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
        let _: Result<(), _> = patiently(
            Patience::default(),
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
