//! Failures among ranks.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::place::PlaceError;

/// A failure among the ranks of a training. No update was sent, and nothing was deposited by it.
#[derive(Debug, Clone, Error, PartialEq, Eq, Serialize, Deserialize)]
#[error("{why}")]
pub struct RankError {
    /// The kind of failure.
    pub code: RankErrorCode,
    /// The reason, with the rank, and what helps.
    pub why: String,
}

/// The stable code of a failure among ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankErrorCode {
    /// The launcher's environment is incomplete.
    EnvironmentInvalid,
    /// This build has no c10d.
    Unavailable,
    /// The store of the rendezvous cannot be reached.
    RendezvousFailed,
    /// A rank has not joined in time.
    Missing,
    /// Ranks have other tasks, models, rows, seeds or programs.
    Disagree,
    /// A rank is gone.
    Lost,
    /// A rank has not answered in time.
    Stalled,
    /// A rank has sent a gradient that its rows do not give.
    Differs,
    /// There is no such network interface.
    InterfaceMissing,
    /// The plan belongs to other ranks or virtual workers.
    PlanInvalid,
    /// This training is not one for several ranks.
    Unsupported,
    /// A transfer failed for another reason.
    Failed,
}

impl RankErrorCode {
    /// The code as text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EnvironmentInvalid => "RANK_ENVIRONMENT_INVALID",
            Self::Unavailable => "RANKS_UNAVAILABLE",
            Self::RendezvousFailed => "RENDEZVOUS_FAILED",
            Self::Missing => "RANK_MISSING",
            Self::Disagree => "RANKS_DISAGREE",
            Self::Lost => "RANK_LOST",
            Self::Stalled => "RANK_STALLED",
            Self::Differs => "RANK_DIFFERS",
            Self::InterfaceMissing => "INTERFACE_MISSING",
            Self::PlanInvalid => "RANK_PLAN_INVALID",
            Self::Unsupported => "RANKS_UNSUPPORTED",
            Self::Failed => "RANKS_FAILED",
        }
    }
}

impl RankErrorCode {
    /// Whether another command or environment helps, and nothing has failed.
    #[must_use]
    pub const fn is_input(self) -> bool {
        matches!(self, Self::EnvironmentInvalid | Self::Unsupported | Self::PlanInvalid)
    }
}

impl fmt::Display for RankErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl RankError {
    /// A failure with a reason.
    #[must_use]
    pub fn new(code: RankErrorCode, why: impl Into<String>) -> Self {
        Self { code, why: why.into() }
    }
}

impl From<PlaceError> for RankError {
    fn from(error: PlaceError) -> Self {
        Self::new(RankErrorCode::EnvironmentInvalid, error.to_string())
    }
}
