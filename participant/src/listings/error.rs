//! Errors of listing devices.

use florin_compute::LeaseError;
use florin_ledger::LedgerError;
use florin_protocol::{Address, Amount, SignError};

use super::store::RecordError;
use crate::agent::ClaimError;
use crate::atomic_file::FileError;
use crate::client::ClientError;
use crate::locked_file::LockError;
use crate::retry::{DepositPending, Transient};

/// Errors of a provider that lists devices.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The referee is not one of the market's.
    #[error(
        "the market's operator does not accept the referee {referee}: `GET /v1/listings/policy` has the accepted ones"
    )]
    Referee {
        /// The referee of the offer.
        referee: Address,
    },
    /// The stake is below the market's least one.
    #[error("the stake is {stake} FLN, and this market needs {least} FLN for these devices")]
    StakeTooSmall {
        /// The stake of the offer.
        stake: Amount,
        /// The least stake.
        least: Amount,
    },
    /// The life is shorter than the market needs.
    #[error("the life is {life_ms} ms, and this market needs {least_ms} ms")]
    LifeTooShort {
        /// The life of the offer.
        life_ms: u64,
        /// The least life.
        least_ms: u64,
    },
    /// The challenge window is longer than the market allows.
    #[error("the challenge window is {challenge_ms} ms, and this market allows {most_ms} ms")]
    ChallengeTooLong {
        /// The window of the offer.
        challenge_ms: u64,
        /// The longest window.
        most_ms: u64,
    },
    /// The offer pays for no probe.
    #[error("a probe costs {fee} FLN here, and the offer pays {most} FLN for all: raise fees_max")]
    FeeTooLarge {
        /// The market's fee.
        fee: Amount,
        /// The most for all probes.
        most: Amount,
    },
    /// The ledger has a task with other terms under the id of the listing.
    #[error(
        "the ledger has a task with other terms under the id of the listing, or one that expires too soon: \
         start again, which lists anew"
    )]
    TaskTaken,
    /// There is no listing to end.
    #[error(
        "this wallet has no open listing here, and no stake of an earlier one returns now: nothing was sent"
    )]
    NoListing,
    /// A rule of listings.
    #[error(transparent)]
    Rule(#[from] LeaseError),
    /// The coordinator.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// Another process proves the listings of this folder.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The stored terms.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The folder with the stored terms.
    #[error(transparent)]
    File(#[from] FileError),
    /// The wallet could not sign.
    #[error(transparent)]
    Signing(#[from] SignError),
    /// The bond.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// A probe was not computed.
    #[error("the probe was stopped before its end")]
    Stopped,
}

impl ListError {
    /// The stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Referee { .. } => "REFEREE_NOT_ACCEPTED",
            Self::StakeTooSmall { .. } => "STAKE_TOO_SMALL",
            Self::LifeTooShort { .. } => "LIFE_TOO_SHORT",
            Self::ChallengeTooLong { .. } => "CHALLENGE_TOO_LONG",
            Self::FeeTooLarge { .. } => "FEE_TOO_LARGE",
            Self::TaskTaken => "LISTING_ID_TAKEN",
            Self::NoListing => "NO_LISTING",
            Self::Rule(error) => error.code(),
            Self::Client(error) => error.code(),
            Self::Ledger(error) => crate::ledger_code(error),
            Self::Lock(error) => error.code(),
            Self::Record(error) => error.code(),
            Self::File(error) => error.code(),
            Self::Signing(_) => "SIGNING_FAILED",
            Self::Claim(error) => error.code(),
            Self::Stopped => "STOPPED",
        }
    }
}

impl Transient for ListError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Client(error) => error.is_transient(),
            Self::Ledger(error) => error.is_transient(),
            Self::Claim(error) => error.is_transient(),
            _ => false,
        }
    }
}

impl From<DepositPending> for ListError {
    fn from(DepositPending(error): DepositPending) -> Self {
        Self::Client(error)
    }
}
