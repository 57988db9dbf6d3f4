//! Why an action of the market for compute is refused. A refused action changes nothing.

use florin_protocol::{Address, AmountError, Timestamp};

/// Why an action is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// A number of the order or the bid is out of range.
    #[error("{what} is {got}: {rule}")]
    Invalid {
        /// The field.
        what: &'static str,
        /// Its value.
        got: u128,
        /// The range.
        rule: &'static str,
    },
    /// The action belongs to another phase.
    #[error("the lease is in the phase {phase}: {action} is not possible")]
    Phase {
        /// The phase of the lease.
        phase: &'static str,
        /// The action.
        action: &'static str,
    },
    /// The phase has ended by its deadline.
    #[error("the deadline of this phase was {0}: its default applies")]
    Late(Timestamp),
    /// The phase has not ended yet.
    #[error("the deadline of this phase is {0}: the default applies after it")]
    Early(Timestamp),
    /// The account has no part in the action.
    #[error("{account} is not {role}")]
    Account {
        /// The account.
        account: Address,
        /// The part.
        role: &'static str,
    },
    /// The account has already done it.
    #[error("{account} has already {done}: only the first counts")]
    Repeated {
        /// The account.
        account: Address,
        /// The action.
        done: &'static str,
    },
    /// The opened values are not those of the commitment.
    #[error("{0} does not match its commitment: send the values and the salt that were committed")]
    Commitment(&'static str),
    /// Something is not what the order names.
    #[error("{0} is not the one that the order names")]
    Mismatch(&'static str),
    /// Too many of something.
    #[error("there are at most {max} {what}")]
    Limit {
        /// The things.
        what: &'static str,
        /// Their largest number.
        max: usize,
    },
    /// The shown links of a probe contradict it.
    #[error("the probe is not proven: {0}")]
    Probe(&'static str),
    /// An amount does not fit.
    #[error(transparent)]
    Amount(#[from] AmountError),
}

impl LeaseError {
    /// A stable code of the error.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "COMPUTE_INVALID",
            Self::Phase { .. } => "COMPUTE_PHASE",
            Self::Late(_) => "COMPUTE_LATE",
            Self::Early(_) => "COMPUTE_EARLY",
            Self::Account { .. } => "COMPUTE_ACCOUNT",
            Self::Repeated { .. } => "COMPUTE_REPEATED",
            Self::Commitment(_) => "COMPUTE_COMMITMENT",
            Self::Mismatch(_) => "COMPUTE_MISMATCH",
            Self::Limit { .. } => "COMPUTE_LIMIT",
            Self::Probe(_) => "COMPUTE_PROBE",
            Self::Amount(_) => "COMPUTE_AMOUNT",
        }
    }
}
