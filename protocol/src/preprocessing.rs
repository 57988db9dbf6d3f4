//! Rules for the preprocessing of updates: norms, near-duplicates and weights.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

/// Preprocessing of updates before their valuation, so that neither the norm nor a copy of an
/// update earns extra, and no bond buys a round.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct PreprocessingRules {
    /// Rescaling of the norms.
    pub norm_scaling: NormScaling,
    /// Treatment of near-duplicates.
    pub near_duplicates: DuplicatePolicy,
    /// Largest weight of an update: this multiple of the lower median of the counted rows of the
    /// round's updates. 0 sets no limit.
    pub weight_cap: u16,
}

impl PreprocessingRules {
    /// The rules of a task that states none.
    pub const DEFAULT: Self = Self {
        norm_scaling: NormScaling::Median,
        near_duplicates: DuplicatePolicy::Reject,
        weight_cap: 0,
    };
    /// No preprocessing.
    pub const NONE: Self = Self {
        norm_scaling: NormScaling::None,
        near_duplicates: DuplicatePolicy::Accept,
        weight_cap: 0,
    };
}

impl Default for PreprocessingRules {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Rescaling of the norms of a round's updates.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum NormScaling {
    /// No rescaling; only `delta_norm_max` applies.
    None,
    /// Rescale to the median norm of the round's updates, weighted by their counted rows: larger
    /// updates are scaled down, smaller ones up, at most by a factor of two.
    #[default]
    Median,
}

/// Treatment of an update that is a near-duplicate of an earlier commit, of an earlier round's
/// update or of the global model deltas of earlier rounds.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum DuplicatePolicy {
    /// Accepted like any other update.
    Accept,
    /// Rejected: its value is zero and its rows do not count. Only the earliest commit is paid.
    #[default]
    Reject,
}
