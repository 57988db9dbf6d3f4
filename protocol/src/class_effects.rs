//! The classes of the validation rows that the updates of a round improve.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

/// Parts of a share: all shares of an update together have at most this many.
pub const SHARE_PARTS: u16 = 255;
/// The sum of improvements from which an update has all parts, in nano-nats. Audits permit a difference
/// of ten nano-nats for each of 64 classes: of a smaller sum that would move more than one part.
const IMPROVEMENT_MIN_NANO: u128 = 200_000;

/// The loss of each class, and the classes that each update improves. Selection reads it: the
/// classes that an update improves on rows drawn after it are evidence of its sender's data.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ClassEffects {
    /// Mean bounded loss of the base model on the round's rows of each class, in nano-nats; `None`
    /// for a class without a row in the round.
    pub losses_nano: Vec<Option<u64>>,
    /// For each entry the share of each class in what its update alone improves, in parts of
    /// [`SHARE_PARTS`]. Empty for an update without a weight.
    pub shares: Vec<Vec<u8>>,
}

impl ClassEffects {
    /// The shares of an update that lowers the mean loss of each class by these nano-nats: losses
    /// count as zero. Each share is rounded down. All are zeros if the update improves no class.
    #[must_use]
    pub fn shares_of(lowered_nano: &[i64]) -> Vec<u8> {
        let gain = |lowered: &i64| u128::from(u64::try_from(*lowered).unwrap_or_default());
        let sum = lowered_nano.iter().map(gain).fold(0_u128, u128::saturating_add);
        let whole = sum.max(IMPROVEMENT_MIN_NANO);
        let share = |lowered: &i64| {
            let parts = gain(lowered).saturating_mul(SHARE_PARTS.into()).checked_div(whole);
            u8::try_from(parts.unwrap_or_default()).unwrap_or(u8::MAX)
        };
        lowered_nano.iter().map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::ClassEffects;

    #[test]
    fn shares_are_parts_of_what_is_improved() {
        assert_eq!(ClassEffects::shares_of(&[600_000, -1_000_000, 200_000]), [191, 0, 63]);
        assert_eq!(ClassEffects::shares_of(&[200_000]), [255]);
        assert_eq!(ClassEffects::shares_of(&[i64::MAX, i64::MAX]), [127, 127]);
    }

    #[test]
    fn an_update_that_improves_no_class_has_shares_of_zero() {
        assert!(ClassEffects::shares_of(&[]).is_empty());
        assert_eq!(ClassEffects::shares_of(&[0, -5]), [0, 0]);
    }

    #[test]
    fn ten_nano_nats_for_each_class_move_a_share_by_one_part() {
        let moved = |lowered: &[i64], sign: i64| {
            // The first class is wrong in the other direction.
            let wrong = lowered.iter().enumerate();
            let wrong: Vec<i64> =
                wrong.map(|(at, one)| one + sign * if at == 0 { -10 } else { 10 }).collect();
            let (ours, theirs) =
                (ClassEffects::shares_of(lowered), ClassEffects::shares_of(&wrong));
            let differences = ours.iter().zip(&theirs).map(|(a, b)| a.abs_diff(*b));
            differences.max().unwrap_or_default()
        };
        for sum in [0, 10, 1_000, 100_000, 199_000, 200_000, 201_000, 400_000, 10_000_000] {
            let mut one_class = vec![0; 64];
            one_class[0] = sum;
            for lowered in [one_class, vec![sum / 64; 64]] {
                for sign in [-1, 1] {
                    assert!(moved(&lowered, sign) <= 1, "{sum} {sign}");
                }
            }
        }
    }
}
