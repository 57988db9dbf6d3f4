//! The floor: the part of a round's pay that does not depend on how good the updates are.
//!
//! A round with little to gain, or whose holdout is useless, would otherwise pay nothing for honest
//! work. The floor of a round is an equal part of a share of the data budget. It is split by
//! capped weights, at most the median's, among the updates that qualify; if none does, it rolls
//! over.

use std::collections::BTreeMap;

use crate::amount::{Amount, AmountError};
use crate::apportionment::{SplitError, split_by_weight};
use crate::message::VoidReason;
use crate::micro::Micro;
use crate::pay::{Account, AccountTotals, ValuedRound, payable_nano};
use crate::report::UpdateScore;
use crate::task::TaskSpec;

impl TaskSpec {
    /// The floor of each round: `⌊floor_share · data / rounds⌋`.
    ///
    /// # Errors
    /// [`AmountError`] on overflow.
    pub fn round_floor(&self) -> Result<Amount, AmountError> {
        let parts = u128::from(Micro::ONE.0).saturating_mul(self.rounds.count.max(1).into());
        self.budget.data.mul_div_down(self.budget.floor_share.0.into(), parts)
    }
}

/// Largest number of standard errors by which a score must be positive for the floor. A larger
/// `confidence_z` of the task, which its buyer chooses, does not take the floor away.
const FLOOR_Z_MAX: Micro = Micro(2_000_000);

/// Splits the floor of a round among the updates that qualify: those that are not excluded and whose
/// sender's summed score is positive by more than z standard errors, where z is at most
/// [`FLOOR_Z_MAX`]. Then the holdout separates good updates from noise. If it separates none, all
/// that are not excluded qualify. In a void round all with a weight qualify, except that a round
/// without improvement pays only the former if there are any: the task has converged. `totals`
/// include this round. Zeros if none qualifies.
///
/// # Errors
/// [`SplitError`] if the weights overflow.
pub(crate) fn split_floor(
    floor: Amount,
    round: ValuedRound<'_>,
    totals: &BTreeMap<Account, AccountTotals>,
    confidence_z: Micro,
) -> Result<Vec<Amount>, SplitError> {
    let scores = round.scores();
    let stands_out = |score: &UpdateScore| {
        let z = confidence_z.min(FLOOR_Z_MAX);
        let payable = totals.get(&score.account).and_then(|own| payable_nano(z, own));
        !score.excluded && score.preprocessing.weight > 0 && payable.is_some_and(|nano| nano > 0)
    };
    let separates = scores.iter().any(stands_out);
    let qualifies = |score: &UpdateScore| match round {
        ValuedRound::Void(VoidReason::NoImprovement, _) => !separates || stands_out(score),
        ValuedRound::Void(..) => true,
        ValuedRound::Improved(..) if separates => stands_out(score),
        ValuedRound::Improved(..) => !score.excluded,
        ValuedRound::Abandoned => false,
    };
    let mut weights: Vec<u64> = scores.iter().map(|score| score.preprocessing.weight).collect();
    let mut positive: Vec<u64> = weights.iter().copied().filter(|weight| *weight > 0).collect();
    positive.sort_unstable();
    let median = positive.get(positive.len().saturating_sub(1) / 2).copied().unwrap_or(0);
    for (weight, score) in weights.iter_mut().zip(scores) {
        *weight = if qualifies(score) { median.min(*weight) } else { 0 };
    }
    let weights: Vec<u128> = weights.into_iter().map(u128::from).collect();
    if weights.iter().all(|weight| *weight == 0) {
        return Ok(vec![Amount::ZERO; scores.len()]);
    }
    split_by_weight(floor, &weights)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Address;
    use crate::report::Preprocessing;

    fn amount(units: u128) -> Amount {
        Amount::from_units(units)
    }

    /// Updates with a weight, whether they are excluded, and their sender's summed score; the
    /// standard error of each sum is 10, and z is 2.
    fn split(floor: u128, updates: &[(u64, bool, i128)], void: Option<VoidReason>) -> Vec<u128> {
        split_with(Micro(2_000_000), floor, updates, void)
    }

    fn split_with(
        z: Micro,
        floor: u128,
        updates: &[(u64, bool, i128)],
        void: Option<VoidReason>,
    ) -> Vec<u128> {
        let account = |n: usize| Address([n as u8; 20]);
        let scores: Vec<UpdateScore> = updates
            .iter()
            .enumerate()
            .map(|(n, (weight, excluded, _))| UpdateScore {
                account: account(n),
                score_nano: 0,
                error_nano: 0,
                excluded: *excluded,
                preprocessing: Preprocessing { weight: *weight, ..Preprocessing::default() },
            })
            .collect();
        let totals = updates.iter().enumerate().map(|(n, (.., sum))| {
            let totals =
                AccountTotals { score_sum_nano: *sum, variance_nano2: 100, ..Default::default() };
            (account(n), totals)
        });
        let round = match void {
            Some(reason) => ValuedRound::Void(reason, &scores),
            None => ValuedRound::Improved(1, &scores),
        };
        let split = split_floor(amount(floor), round, &totals.collect(), z).unwrap();
        split.into_iter().map(Amount::units).collect()
    }

    #[test]
    fn the_floor_of_a_round_is_an_equal_part_of_the_share() {
        let mut spec = TaskSpec::example();
        spec.rounds.count = 8;
        spec.budget.data = amount(1_000_000_000_000_000_003);
        spec.budget.floor_share = Micro(200_000);
        assert_eq!(spec.round_floor().unwrap(), amount(25_000_000_000_000_000));
        spec.budget.floor_share = Micro::ZERO;
        assert_eq!(spec.round_floor().unwrap(), Amount::ZERO);
        spec.budget.floor_share = Micro::ONE;
        assert_eq!(spec.round_floor().unwrap(), amount(125_000_000_000_000_000));
    }

    #[test]
    fn the_floor_goes_to_payable_scores_up_to_the_median_weight() {
        let updates = [
            (10, false, 21),
            (20, false, 21),
            (60, false, i128::MAX),
            (20, true, 50),
            (20, false, 20),
            (20, false, -21),
            (0, false, 21),
        ];
        // The median of 10, 20, 20, 20, 20, 60 is 20, so three updates share 10 : 20 : 20.
        assert_eq!(split(100, &updates, None), [20, 40, 40, 0, 0, 0, 0]);
        // So do they in a round without improvement.
        let converged = Some(VoidReason::NoImprovement);
        assert_eq!(split(100, &updates, converged), [20, 40, 40, 0, 0, 0, 0]);
        // In any other void round every weight counts: 10 : 20 : 20 : 20 : 20 : 20.
        for reason in [VoidReason::MajorityExcluded, VoidReason::Unresolved] {
            assert_eq!(split(110, &updates, Some(reason)), [10, 20, 20, 20, 20, 20, 0]);
        }
        // And if the holdout separates no update from noise.
        let useless = [(10, false, 20), (10, true, 90), (0, false, 90)];
        assert_eq!(split(100, &useless, converged), [50, 50, 0]);
    }

    #[test]
    fn the_median_weight_is_the_lower_one_of_the_positive_weights() {
        let of = |weights: &[u64]| -> Vec<_> { weights.iter().map(|w| (*w, false, 21)).collect() };
        // Of 10, 20, 30, 40 and 50 the median is 30: 10 : 20 : 30 : 30 : 30, of 120.
        assert_eq!(split(120, &of(&[50, 0, 40, 10, 0, 30, 20]), None), [30, 0, 30, 10, 0, 30, 20]);
        // Of 10, 20, 30 and 40 the lower one is 20: 10 : 20 : 20 : 20.
        assert_eq!(split(70, &of(&[40, 10, 30, 20]), None), [20, 10, 20, 20]);
    }

    #[test]
    fn the_floor_goes_to_all_if_the_holdout_separates_no_update_from_noise() {
        let updates = [(10, false, 20), (30, false, -20), (10, true, 90), (0, false, 20)];
        assert_eq!(split(100, &updates, None), [50, 50, 0, 0]);
    }

    #[test]
    fn a_high_threshold_of_the_buyer_does_not_take_the_floor_away() {
        let updates = [(10, false, 21), (10, false, 20), (10, false, -20)];
        for z in [2_000_000, 2_000_001, 10_000_000, u64::MAX] {
            assert_eq!(split_with(Micro(z), 100, &updates, None), [100, 0, 0], "z = {z}");
        }
        // A low threshold pays more members.
        assert_eq!(split_with(Micro(1_000_000), 100, &updates, None), [50, 50, 0]);
    }

    #[test]
    fn a_floor_without_a_qualified_update_is_not_spent() {
        assert_eq!(split(100, &[(10, true, 20), (10, true, 90)], None), [0, 0]);
        let void = Some(VoidReason::MajorityExcluded);
        assert_eq!(split(100, &[(0, false, 90)], void), [0]);
        assert_eq!(split(100, &[], void), [0; 0]);
    }
}
