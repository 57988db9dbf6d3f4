//! How far the measured work of a listed provider is from what it predicted: a cumulative sum over its leases.
//!
//! Each lease adds `measured / predicted − 1 − allowance`, within bounds, and the sum is never negative (E. S. Page,
//! *Continuous Inspection Schemes*, 1954). A card that is inflated by half passes the limit with the third lease; two
//! slow leases alone never do. A lease takes less from the sum than it may add, so that leases of a provider with
//! itself do not cheaply undo others.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::stake::PARTS;

/// The slowness of a lease that adds nothing, in parts per million: 10 %.
pub const DRIFT_ALLOWANCE: u64 = 100_000;
/// The most that one lease adds, in parts per million: 25 %.
pub const DRIFT_STEP_MAX: u64 = 250_000;
/// The most that one lease takes from the sum, in parts per million: 10 %.
pub const DRIFT_RECOVERY_MAX: u64 = 100_000;
/// The sum beyond which the measured work contradicts the card, in parts per million: 50 %.
pub const DRIFT_LIMIT: u64 = 500_000;

/// The cumulative sum, in parts per million.
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
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Drift(u64);

impl Drift {
    /// The sum after one more lease, whose steps were predicted to take a time and took another.
    #[must_use]
    pub fn after(self, predicted_us: u64, measured_us: u64) -> Self {
        let parts = u128::from(measured_us).saturating_mul(PARTS.into());
        let ratio = parts.checked_div(predicted_us.into()).unwrap_or(u128::MAX);
        let allowed = u128::from(PARTS).saturating_add(DRIFT_ALLOWANCE.into());
        let more = ratio.saturating_sub(allowed).min(DRIFT_STEP_MAX.into());
        let less = allowed.saturating_sub(ratio).min(DRIFT_RECOVERY_MAX.into());
        let sum = u128::from(self.0).saturating_add(more).saturating_sub(less);
        Self(u64::try_from(sum).unwrap_or(u64::MAX))
    }

    /// Whether the measured work contradicts the card.
    #[must_use]
    pub const fn contradicts(self) -> bool {
        self.0 > DRIFT_LIMIT
    }

    /// The sum in parts per million.
    #[must_use]
    pub const fn parts(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(ratios: &[u64]) -> Vec<u64> {
        let next = |drift: &mut Drift, measured: &u64| {
            *drift = drift.after(1_000, *measured);
            Some(drift.parts())
        };
        ratios.iter().scan(Drift::default(), next).collect()
    }

    #[test]
    fn a_card_that_is_inflated_by_half_is_contradicted_by_the_third_lease() {
        assert_eq!(sums(&[1_500, 1_500, 1_500]), [250_000, 500_000, 750_000]);
        assert!(!Drift(DRIFT_LIMIT).contradicts());
        assert!(Drift(DRIFT_LIMIT + 1).contradicts());
    }

    #[test]
    fn slow_leases_are_forgotten_by_right_ones() {
        assert_eq!(sums(&[1_100, 1_101, 1_100]), [0, 1_000, 1_000]);
        assert_eq!(sums(&[1_500, 1_050, 1_000, 1_149]), [250_000, 200_000, 100_000, 149_000]);
        assert_eq!(sums(&[9_000, 1_000, 800, 1_400]), [250_000, 150_000, 50_000, 300_000]);
        // No prediction is the fastest one; no measured time adds nothing.
        assert_eq!(Drift::default().after(0, 0), Drift(DRIFT_STEP_MAX));
        assert_eq!(Drift(7).after(1_000, 0), Drift(0));
        assert_eq!(Drift(u64::MAX).after(1, u64::MAX).parts(), u64::MAX);
    }
}
