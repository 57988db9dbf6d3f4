//! Splits a pool by weights with the largest remainder method. The sum of the parts is exact.

use ruint::aliases::U256;

use crate::amount::Amount;

/// Why a pool cannot be split.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// Every weight is zero, so the pool has no recipient.
    #[error("{0} FLN cannot be split: every weight is zero")]
    ZeroWeights(Amount),
    /// The sum of the weights does not fit in 128 bits.
    #[error("the sum of the weights does not fit in 128 bits")]
    Overflow,
}

/// Splits `pool` in proportion to `weights`. The parts sum to the pool exactly.
///
/// Each part is first rounded down. The remaining units (fewer than there are weights) go one each
/// to the largest remainders; ties go to the earlier position (Hamilton's method). A weight of zero
/// always receives nothing.
///
/// # Errors
/// [`SplitError::ZeroWeights`] if the pool is not zero and every weight is zero;
/// [`SplitError::Overflow`].
pub fn split_by_weight(pool: Amount, weights: &[u128]) -> Result<Vec<Amount>, SplitError> {
    let total =
        weights.iter().try_fold(0u128, |sum, w| sum.checked_add(*w)).ok_or(SplitError::Overflow)?;
    if pool.is_zero() {
        return Ok(vec![Amount::ZERO; weights.len()]);
    }
    if total == 0 {
        return Err(SplitError::ZeroWeights(pool));
    }
    let mut parts = Vec::with_capacity(weights.len());
    let mut remainders = Vec::with_capacity(weights.len());
    let mut given = 0u128;
    for (position, weight) in weights.iter().enumerate() {
        // Neither step can fail: a product of two 128-bit numbers fits in 256 bits, and total is
        // not zero.
        let product = U256::from(pool.units())
            .checked_mul(U256::from(*weight))
            .ok_or(SplitError::Overflow)?;
        let down = product.checked_div(U256::from(total)).ok_or(SplitError::Overflow)?;
        let rest = product.checked_rem(U256::from(total)).ok_or(SplitError::Overflow)?;
        let down = u128::try_from(down).map_err(|_| SplitError::Overflow)?;
        given = given.checked_add(down).ok_or(SplitError::Overflow)?;
        parts.push(down);
        remainders.push((std::cmp::Reverse(rest), position));
    }
    remainders.sort_unstable();
    let left = pool.units().checked_sub(given).ok_or(SplitError::Overflow)?;
    let left = usize::try_from(left).map_err(|_| SplitError::Overflow)?;
    for (_, position) in remainders.iter().take(left) {
        if let Some(part) = parts.get_mut(*position) {
            *part = part.checked_add(1).ok_or(SplitError::Overflow)?;
        }
    }
    Ok(parts.into_iter().map(Amount::from_units).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(pool: u128, weights: &[u128]) -> Vec<u128> {
        let parts = split_by_weight(Amount::from_units(pool), weights).unwrap();
        parts.into_iter().map(Amount::units).collect()
    }

    #[test]
    fn parts_match_the_hand_computed_table() {
        assert_eq!(split(10, &[1, 1, 1]), [4, 3, 3]); // a tie: the earlier position
        assert_eq!(split(10, &[0, 1, 1, 1]), [0, 4, 3, 3]);
        assert_eq!(split(7, &[1, 2, 4]), [1, 2, 4]);
        assert_eq!(split(1, &[1, 2]), [0, 1]); // the larger remainder
        assert_eq!(split(0, &[0, 0]), [0, 0]);
        assert_eq!(split(u128::MAX, &[u128::MAX]), [u128::MAX]);
    }

    #[test]
    fn a_pool_without_positive_weights_is_refused() {
        let pool = Amount::from_units(5);
        assert_eq!(split_by_weight(pool, &[0, 0]), Err(SplitError::ZeroWeights(pool)));
        assert_eq!(split_by_weight(pool, &[]), Err(SplitError::ZeroWeights(pool)));
        assert_eq!(split_by_weight(pool, &[u128::MAX, 1]), Err(SplitError::Overflow));
    }

    proptest! {
        #[test]
        fn the_sum_is_exact_and_each_part_is_within_one_unit_of_its_share(
            pool: u128,
            weights in prop::collection::vec(0u128..u128::MAX >> 8, 1..40),
        ) {
            prop_assume!(weights.iter().any(|w| *w > 0));
            let parts = split(pool, &weights);
            let total: u128 = weights.iter().sum();
            prop_assert_eq!(parts.iter().sum::<u128>(), pool);
            for (part, weight) in parts.iter().zip(&weights) {
                let exact = U256::from(pool) * U256::from(*weight) / U256::from(total);
                let exact = u128::try_from(exact).unwrap();
                prop_assert!(*part == exact || *part == exact + 1);
                prop_assert!(*weight > 0 || *part == 0);
            }
        }
    }
}
