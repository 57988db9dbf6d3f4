//! The rules by which a valued round is void: its scores do not explain its improvement, or there
//! is none.
//!
//! A void round leaves the model as it is, and neither pays nor debits scores. Its provider is paid.

use crate::message::VoidReason;
use crate::report::{CrossCheck, ScoreEstimator, UpdateScore, Valuation, ValuationStage};

/// A gap up to one part in this many of the improvement is resolved.
const GAP_PARTS: u64 = 50;
/// A gap up to this many nano-nats is resolved: 10⁻⁴ nats.
const GAP_NANO_MIN: u64 = 100_000;

/// The largest gap that is small beside an improvement, in nano-nats.
fn largest_small_gap(total_nano: i64) -> u64 {
    (total_nano.unsigned_abs() / GAP_PARTS).max(GAP_NANO_MIN)
}

impl ValuationStage {
    /// Whether the scores of the stage explain its improvement.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        is_gap_resolved(self.gap_nano, self.total_nano)
    }
}

/// Whether a gap is small: at most 2 % of the improvement, or 10⁻⁴ nats.
#[must_use]
pub fn is_gap_resolved(gap_nano: i64, total_nano: i64) -> bool {
    gap_nano.unsigned_abs() <= largest_small_gap(total_nano)
}

/// Whether a second estimate confirms a score: the two differ by at most the score's standard
/// error, or by a gap that is small beside the improvement. A score of 0 with an error of 0 is that
/// of an update without effect, and needs no confirmation.
#[must_use]
pub fn is_score_confirmed(
    score_nano: i64,
    error_nano: u64,
    second_nano: i64,
    total_nano: i64,
) -> bool {
    let is_null_player = score_nano == 0 && error_nano == 0;
    is_null_player
        || score_nano.abs_diff(second_nano) <= error_nano.max(largest_small_gap(total_nano))
}

/// A score and its standard error, in nano-nats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreEstimate {
    /// The score.
    pub score_nano: i64,
    /// Its standard error.
    pub error_nano: u64,
}

impl CrossCheck {
    /// Whether the cross-check has one score for each of `scores`, and confirms all of them.
    pub fn confirms(
        &self,
        scores: impl Iterator<Item = ScoreEstimate> + Clone,
        total_nano: i64,
    ) -> bool {
        scores.clone().count() == self.scores_nano.len()
            && scores.zip(&self.scores_nano).all(|(score, second)| {
                is_score_confirmed(score.score_nano, score.error_nano, *second, total_nano)
            })
    }
}

/// Why a round whose stages are resolved is void, if it is.
#[must_use]
pub fn void_reason(scores: &[UpdateScore], improvement_nano: i64) -> Option<VoidReason> {
    let weight = |excluded: bool| -> u128 {
        let own = scores.iter().filter(|score| score.excluded == excluded);
        // Fewer than 2³² weights below 2⁶⁴ never saturate.
        own.fold(0, |sum, score| sum.saturating_add(score.preprocessing.weight.into()))
    };
    let (remaining, excluded) = (weight(false), weight(true));
    if remaining == 0 {
        Some(VoidReason::NoUpdateRemains)
    } else if excluded > remaining {
        Some(VoidReason::MajorityExcluded)
    } else if improvement_nano <= 0 {
        Some(VoidReason::NoImprovement)
    } else {
        None
    }
}

impl Valuation {
    /// The improvement of the model in nano-nats: the value of the updates that are not excluded,
    /// and at most what the aggregated model improves. Not positive in a round without improvement.
    #[must_use]
    pub fn improvement_nano(&self) -> i64 {
        self.total_nano.min(self.loss_before_nano.saturating_sub(self.model_loss_nano))
    }

    /// Whether the cross-check confirms the scores of the updates that are not excluded. Only
    /// scores of the path integral need it.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        let estimator = self.stages.last().map(|stage| stage.estimator);
        let (Some(ScoreEstimator::Path(_)), Some(check)) = (estimator, &self.evidence.cross_check)
        else {
            return true;
        };
        let included = self.scores.iter().filter(|score| !score.excluded);
        let estimate = |score: &UpdateScore| ScoreEstimate {
            score_nano: score.score_nano,
            error_nano: score.error_nano,
        };
        check.confirms(included.map(estimate), self.total_nano)
    }

    /// Why the round is void, if it is.
    #[must_use]
    pub fn void_reason(&self) -> Option<VoidReason> {
        match self.is_confirmed() && self.stages.iter().all(ValuationStage::is_resolved) {
            true => void_reason(&self.scores, self.improvement_nano()),
            false => Some(VoidReason::Unresolved),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Address;
    use crate::report::{Preprocessing, ValuationEvidence};

    fn stage(total_nano: i64, gap_nano: i64) -> ValuationStage {
        ValuationStage { estimator: ScoreEstimator::Path(3), total_nano, gap_nano, units: 5 }
    }

    /// A round of updates with these weights; those in `excluded` are excluded.
    fn valuation(weights: &[(u64, bool)], total_nano: i64, model_loss_nano: i64) -> Valuation {
        let score = |(n, (weight, excluded)): (u8, &(u64, bool))| UpdateScore {
            account: Address([n; 20]),
            score_nano: 1,
            error_nano: 1,
            excluded: *excluded,
            preprocessing: Preprocessing { weight: *weight, ..Preprocessing::default() },
        };
        Valuation {
            loss_before_nano: 1_000,
            loss_after_nano: 1_000 - total_nano,
            total_nano,
            gap_nano: 0,
            model_loss_nano,
            stages: vec![stage(total_nano, 0)],
            scores: (1..).zip(weights).map(score).collect(),
            units: 5,
            evidence: ValuationEvidence::default(),
        }
    }

    #[test]
    fn a_gap_is_resolved_up_to_two_per_cent_or_a_ten_thousandth_of_a_nat() {
        for (gap, total, resolved) in [
            (20_000_000, 1_000_000_000, true),
            (-20_000_000, -1_000_000_000, true),
            (20_000_001, 1_000_000_000, false),
            (100_000, 0, true),
            (-100_001, 0, false),
            (i64::MIN, i64::MAX, false),
            (0, i64::MIN, true),
        ] {
            assert_eq!(stage(total, gap).is_resolved(), resolved, "{gap} of {total}");
        }
    }

    #[test]
    fn the_improvement_is_at_most_that_of_the_aggregated_model() {
        assert_eq!(valuation(&[(1, false)], 10, 980).improvement_nano(), 10);
        assert_eq!(valuation(&[(1, false)], 10, 996).improvement_nano(), 4);
        assert_eq!(valuation(&[(1, false)], 10, 1_003).improvement_nano(), -3);
    }

    #[test]
    fn a_round_is_void_for_one_stated_reason() {
        let three = [(10, false), (10, false), (19, true)];
        assert_eq!(valuation(&three, 10, 990).void_reason(), None);
        let half = [(10, false), (10, false), (20, true)];
        assert_eq!(valuation(&half, 10, 990).void_reason(), None, "half is no majority");
        let majority = [(10, false), (10, false), (21, true)];
        let reason = |valuation: Valuation| valuation.void_reason();
        assert_eq!(reason(valuation(&majority, 10, 990)), Some(VoidReason::MajorityExcluded));
        let none = [(0, false), (5, true)];
        assert_eq!(reason(valuation(&none, 10, 990)), Some(VoidReason::NoUpdateRemains));
        assert_eq!(reason(valuation(&three, 0, 990)), Some(VoidReason::NoImprovement));
        assert_eq!(reason(valuation(&three, 10, 1_000)), Some(VoidReason::NoImprovement));
        for at in [0, 1] {
            let mut unresolved = valuation(&none, 0, 1_000);
            unresolved.stages = vec![stage(0, 0), stage(0, 0)];
            unresolved.stages[at] = stage(0, 100_001);
            assert_eq!(reason(unresolved), Some(VoidReason::Unresolved), "before all others");
        }
    }

    #[test]
    fn a_second_estimate_confirms_a_score_within_its_error_or_a_small_gap() {
        for (score, error, second, total, confirmed) in [
            (300_000, 200_000, 500_000, 0, true),
            (300_000, 200_000, 500_001, 0, false),
            (-300_000, 0, -400_000, 0, true),
            (-300_000, 0, -400_001, 0, false),
            (0, 1, 20_000_000, 1_000_000_000, true),
            (0, 1, -20_000_001, -1_000_000_000, false),
            (0, 0, i64::MIN, 0, true),
            (1, 0, i64::MIN, 0, false),
            (i64::MIN, u64::MAX, i64::MAX, 0, true),
        ] {
            let ours = is_score_confirmed(score, error, second, total);
            assert_eq!(ours, confirmed, "{score} ± {error} and {second} of {total}");
        }
    }

    #[test]
    fn a_round_whose_cross_check_denies_a_score_is_unresolved() {
        let with_check = |scores: &[i64], estimator| {
            let mut round = valuation(&[(10, false), (19, true), (10, false)], 10, 990);
            round.stages[0].estimator = estimator;
            let (version, seed, passes, table) = (1, 0, 6, Vec::new());
            let scores_nano = scores.to_vec();
            round.evidence.cross_check =
                Some(CrossCheck { version, seed, passes, table, scores_nano });
            round.void_reason()
        };
        let path = ScoreEstimator::Path(3);
        assert_eq!(with_check(&[100_001, 1], path), None, "the excluded update has no score");
        for denied in [&[100_002, 1][..], &[1, 100_002], &[1], &[1, 1, 1]] {
            assert_eq!(with_check(denied, path), Some(VoidReason::Unresolved), "{denied:?}");
            let exact = with_check(denied, ScoreEstimator::Shapley);
            assert_eq!(exact, None, "enumeration needs no second opinion");
        }
    }
}
