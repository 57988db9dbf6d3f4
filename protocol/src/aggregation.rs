//! Aggregation rules: how updates become the next model.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::micro::Micro;

/// Aggregation of the updates into the next model.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case", tag = "rule", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum Aggregation {
    /// Mean weighted by counted rows. The valuation is exact for this rule.
    Mean,
    /// Coordinate-wise median.
    Median,
    /// Coordinate-wise mean without the largest and smallest values.
    TrimmedMean {
        /// Share trimmed at each end, below one half.
        trim: Micro,
    },
    /// The update nearest to its neighbours (Blanchard et al. 2017).
    Krum {
        /// Number of Byzantine updates to tolerate.
        byzantine: u32,
    },
    /// Mean weighted by rows, with each update clipped to the cohort's median norm.
    ClippedMean,
}
