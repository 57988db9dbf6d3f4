//! The classes of the validation rows that the updates of a round improve.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

/// Parts of a share: all shares of an update together have at most this many.
pub const SHARE_PARTS: u16 = 255;

/// The loss of each class, and the classes that each update improves. Selection reads it: the
/// classes that an update improves on rows drawn after it are evidence of its sender's data.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ClassEffects {
    /// Mean bounded loss of the base model on the round's rows of each class, in nano-nats; `None`
    /// for a class without a row in the round.
    pub losses_nano: Vec<Option<u64>>,
    /// For each entry the share of each class in what its update alone improves, in parts of
    /// [`SHARE_PARTS`]. Empty for an update without a weight, and for one that improves no class.
    pub shares: Vec<Vec<u8>>,
}

impl ClassEffects {
    /// The shares of an update that lowers the mean loss of each class by these nano-nats: losses
    /// count as zero. Each share is rounded down.
    #[must_use]
    pub fn shares_of(lowered_nano: &[i64]) -> Vec<u8> {
        let gain = |lowered: &i64| u128::from(u64::try_from(*lowered).unwrap_or_default());
        let sum = lowered_nano.iter().map(gain).fold(0_u128, u128::saturating_add);
        if sum == 0 {
            return Vec::new();
        }
        let share = |lowered: &i64| {
            let parts = gain(lowered).saturating_mul(SHARE_PARTS.into()).checked_div(sum);
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
        assert_eq!(ClassEffects::shares_of(&[300, -1_000, 100]), [191, 0, 63]);
        assert_eq!(ClassEffects::shares_of(&[1]), [255]);
        assert_eq!(ClassEffects::shares_of(&[i64::MAX, i64::MAX]), [127, 127]);
    }

    #[test]
    fn an_update_that_improves_no_class_has_no_shares() {
        assert!(ClassEffects::shares_of(&[]).is_empty());
        assert!(ClassEffects::shares_of(&[0, -5]).is_empty());
    }
}
