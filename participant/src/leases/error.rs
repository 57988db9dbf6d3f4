//! Errors of taking part in leases.

use florin_compute::LeaseError;
use florin_learning::checkpoint::StateError;
use florin_ledger::LedgerError;
use florin_protocol::{Amount, SignError};
use florin_work::LeasedTrainingError;

use super::executors::ExecutorError;
use super::policy::LeasePolicyError;
use crate::agent::ClaimError;
use crate::atomic_file::FileError;
use crate::client::ClientError;
use crate::locked_file::LockError;
use crate::retry::Transient;

/// Errors of the daemon that takes part in leases. Those of one order only delay that order.
#[derive(Debug, thiserror::Error)]
pub enum LeaseServeError {
    /// The engine has no class of bits.
    #[error(
        "the engine {engine} has no class of bits, so no auditor could repeat its segments: use \
         libtorch on the processor (--engine torch), with a program that has the part `distributed`, as \
         `cargo build` makes it; `florin doctor` shows what this machine provides"
    )]
    NoClass {
        /// The engine.
        engine: &'static str,
    },
    /// The policy is not usable.
    #[error("the policy of orders: {0}")]
    Policy(#[from] LeasePolicyError),
    /// The coordinator.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The data folder.
    #[error(transparent)]
    File(#[from] FileError),
    /// Another process has the data folder.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A rule of the lease.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The training of a segment.
    #[error(transparent)]
    Training(#[from] LeasedTrainingError),
    /// The bytes of a state.
    #[error(transparent)]
    State(#[from] StateError),
    /// An executor.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// The wallet could not sign.
    #[error(transparent)]
    Signing(#[from] SignError),
    /// A claim.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The bids of the order have not begun, so it has no lease.
    #[error("the coordinator has no lease of this order yet")]
    NoLease,
    /// The bid that was sealed is not in the data folder.
    #[error(
        "the sealed bid is not in the data folder, so it cannot be opened: its bond will be lost"
    )]
    BidLost,
    /// The limit of the policy on deposits.
    #[error("a deposit of {added} FLN is above the limit of the policy: {left} FLN are left of it")]
    DepositLimit {
        /// The deposit.
        added: Amount,
        /// The rest of the limit.
        left: Amount,
    },
}

impl LeaseServeError {
    /// The stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoClass { .. } => "NO_COMPUTE_CLASS",
            Self::Policy(_) => "INVALID_POLICY",
            Self::Client(error) => error.code(),
            Self::Ledger(error) => crate::ledger_code(error),
            Self::File(error) => error.code(),
            Self::Lock(error) => error.code(),
            Self::Lease(error) => error.code(),
            Self::Training(_) => "SEGMENT_FAILED",
            Self::State(_) => "INVALID_STATE",
            Self::Executor(_) => "EXECUTOR_FAILED",
            Self::Signing(_) => "SIGNING_FAILED",
            Self::Claim(error) => error.code(),
            Self::NoLease => "NO_LEASE",
            Self::BidLost => "BID_LOST",
            Self::DepositLimit { .. } => "DEPOSIT_LIMIT",
        }
    }

    pub(super) const fn is_ledger_error(&self) -> bool {
        matches!(self, Self::Ledger(_) | Self::Claim(ClaimError::Ledger(_)))
    }

    /// Whether another record of the lease could end the error.
    pub(super) const fn is_of_record(&self) -> bool {
        matches!(self, Self::Client(_) | Self::Lease(_))
    }

    /// Whether an error of the list of orders ends the daemon: no later request can succeed.
    pub(super) const fn is_final(&self) -> bool {
        matches!(
            self,
            Self::NoClass { .. }
                | Self::Executor(_)
                | Self::Policy(_)
                | Self::File(_)
                | Self::Lock(_)
                | Self::Client(
                    ClientError::CoordinatorChanged { .. }
                        | ClientError::BadUrl { .. }
                        | ClientError::TlsNotTrusted { .. }
                )
        )
    }
}

impl Transient for LeaseServeError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Client(error) => error.is_transient(),
            Self::Ledger(error) => error.is_transient(),
            Self::Claim(error) => error.is_transient(),
            _ => false,
        }
    }
}
