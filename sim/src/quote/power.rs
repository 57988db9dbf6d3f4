//! The power of a task's scores: whether honest work can exceed `budget.confidence_z` standard errors.
//!
//! A score is paid once the sum of a member's scores S exceeds z·√V, where V is the sum of its squared
//! standard errors. An honest member gains δ nats a round on average, and one row measures its score
//! with a standard deviation σ, so that k rounds of n rows give
//!
//! ```text
//! S / √V = √(k·n) · δ / σ
//! ```
//!
//! The ratio of a member varies around this mean by about 1, because V is the variance of S. The
//! simulation measures S and V after every round; δ falls while the model converges, and the ratio
//! has a maximum over the rounds. Pay is impossible if z exceeds that maximum by more than 1.645:
//! then fewer than one in twenty honest members is ever paid for a score. It is unlikely if z
//! exceeds the maximum at all: then fewer than half are.

use std::collections::BTreeMap;

use florin_protocol::limits::HOLDOUT_ROWS_PER_ROUND_MAX;
use florin_protocol::pay::payable_nano;
use florin_protocol::{Address, Micro, Report, TaskSpec};

use super::simulate::SeedOutcome;

/// Nano-nats in a nat.
const NANO: f64 = 1e9;
/// The 95 % quantile of the normal distribution.
const QUANTILE: f64 = 1.645;

/// The scores of the honest members of one simulation after a round, in nats.
#[derive(Clone, Debug, Default)]
pub(super) struct Standing {
    /// Mean of their summed scores.
    pub(super) score: f64,
    /// Mean of their summed squared standard errors.
    pub(super) variance: f64,
    /// How many have a positive payable score, among how many.
    pub(super) payable: [u32; 2],
}

impl Standing {
    /// The standing of these members in a report.
    pub(super) fn new(report: &Report, honest: &[Address], z: Micro) -> Self {
        let totals: BTreeMap<_, _> = honest
            .iter()
            .filter_map(|account| Some((account, report.account_totals.get(account)?)))
            .collect();
        let count = honest.len().max(1) as f64;
        let score: f64 = totals.values().map(|own| own.score_sum_nano as f64).sum();
        let variance: f64 = totals.values().map(|own| own.variance_nano2 as f64).sum();
        let payable = totals.values().filter(|own| payable_nano(z, own).is_some_and(|n| n > 0));
        Self {
            score: score / NANO / count,
            variance: variance / (NANO * NANO) / count,
            payable: [payable.count() as u32, honest.len() as u32],
        }
    }
}

/// The power of a task's scores, measured in its simulations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Power {
    /// δ: mean score of an honest member in a round, in nats.
    pub score: f64,
    /// σ: standard deviation of its score on one row, in nats.
    pub row_deviation: f64,
    /// Largest mean of S/√V over the rounds: the standard errors by which honest scores exceed zero.
    pub ratio: f64,
    /// The round with that ratio, from 1.
    pub round: u32,
    /// z of the task.
    pub confidence_z: f64,
    /// Honest members with a positive payable score in that round, in all simulations, per cent.
    pub payable_percent: u32,
    /// n: rows of a round.
    pub rows_per_round: u32,
}

/// Whether an honest member can be paid for its scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerVerdict {
    /// More than half of the honest members are.
    Likely,
    /// Fewer than half are.
    Unlikely,
    /// Fewer than one in twenty is.
    Impossible,
    /// Honest updates do not improve the model on the holdout.
    NoImprovement,
}

impl Power {
    pub(super) fn measure(spec: &TaskSpec, simulated_rows: u32, seeds: &[SeedOutcome]) -> Self {
        let rounds = seeds.iter().map(|seed| seed.standings.len()).max().unwrap_or(0);
        let mean = |round: usize, value: &dyn Fn(&Standing) -> f64| {
            let all = seeds.iter().filter_map(|seed| seed.standings.get(round));
            let (sum, count) = all.fold((0.0, 0u32), |(s, n), own| (s + value(own), n + 1));
            sum / f64::from(count.max(1))
        };
        // A simulation may have fewer rows in a round than the task.
        let rows = spec.holdout.rows_per_round;
        let gain = (f64::from(rows) / f64::from(simulated_rows.max(1))).sqrt();
        let ratio = |round: usize| {
            let deviation = mean(round, &|own| own.variance).sqrt();
            if deviation > 0.0 { gain * mean(round, &|own| own.score) / deviation } else { 0.0 }
        };
        let best = (0..rounds).max_by(|a, b| ratio(*a).total_cmp(&ratio(*b))).unwrap_or(0);
        let played = (best + 1) as f64;
        let share = |standing: &Standing| {
            f64::from(standing.payable[0]) / f64::from(standing.payable[1].max(1))
        };
        let variance = mean(best, &|own| own.variance) / played;
        Self {
            score: mean(best, &|own| own.score) / played,
            row_deviation: (variance * f64::from(simulated_rows)).sqrt(),
            ratio: ratio(best),
            round: best as u32 + 1,
            confidence_z: spec.budget.confidence_z.0 as f64 / 1e6,
            payable_percent: (100.0 * mean(best, &share)).round() as u32,
            rows_per_round: rows,
        }
    }

    /// Whether honest members can be paid for their scores.
    #[must_use]
    pub fn verdict(&self) -> PowerVerdict {
        if self.ratio <= 0.0 {
            PowerVerdict::NoImprovement
        } else if self.confidence_z > self.ratio + QUANTILE {
            PowerVerdict::Impossible
        } else if self.confidence_z > self.ratio {
            PowerVerdict::Unlikely
        } else {
            PowerVerdict::Likely
        }
    }

    /// Rows per round with which most honest members are paid: with their ratio at z + 1.645. `None`
    /// if no number of rows suffices.
    #[must_use]
    pub fn rows_needed(&self) -> Option<u32> {
        if self.ratio <= 0.0 {
            return None;
        }
        let factor = ((self.confidence_z + QUANTILE) / self.ratio).powi(2);
        let rows = (f64::from(self.rows_per_round) * factor).ceil();
        (rows <= f64::from(HOLDOUT_ROWS_PER_ROUND_MAX)).then_some(rows as u32)
    }

    /// The largest z, in tenths rounded down, with which at least half of the honest members are
    /// paid.
    #[must_use]
    pub fn largest_z(&self) -> f64 {
        (self.ratio.max(0.0) * 10.0).floor() / 10.0
    }
}

#[cfg(test)]
mod tests {
    use florin_protocol::Amount;

    use super::*;

    /// Four rounds of 25 rows with σ = 0.5 and a score of 0.1 nats each, but none in the last.
    fn seed() -> SeedOutcome {
        let standing = |(round, score)| Standing {
            score,
            variance: 0.01 * f64::from(round),
            payable: [round, 4],
        };
        let standings = [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.3)].map(standing).to_vec();
        SeedOutcome {
            earned: Vec::new(),
            data_spent: Amount::ZERO,
            work_units: 0,
            accuracy_before: 0,
            accuracy: 0,
            loss_before: 0,
            loss: 0,
            void_rounds: 0,
            standings,
        }
    }

    fn power(z: u64, rows_per_round: u32) -> Power {
        let mut spec = TaskSpec::example();
        spec.budget.confidence_z = Micro(z);
        spec.holdout.rows_per_round = rows_per_round;
        Power::measure(&spec, 25, &[seed(), seed()])
    }

    #[test]
    fn the_ratio_is_that_of_score_and_deviation_over_rounds_and_rows() {
        let power = power(2_000_000, 25);
        assert!((power.score - 0.1).abs() < 1e-12 && (power.row_deviation - 0.5).abs() < 1e-12);
        // √(3 · 25) · 0.1 / 0.5 in round 3; it is lower in the other rounds.
        assert_eq!((power.round, power.payable_percent), (3, 75));
        let by_formula = (3.0_f64 * 25.0).sqrt() * power.score / power.row_deviation;
        assert!((power.ratio - by_formula).abs() < 1e-12, "{power:?}");
        assert!((power.ratio - 3.0_f64.sqrt()).abs() < 1e-12, "{power:?}");
    }

    #[test]
    fn more_rows_in_the_task_than_in_its_simulation_raise_the_ratio() {
        let power = power(2_000_000, 100);
        assert!((power.ratio - 2.0 * 3.0_f64.sqrt()).abs() < 1e-12, "{power:?}");
        assert!((power.row_deviation - 0.5).abs() < 1e-12, "{power:?}");
    }

    #[test]
    fn pay_is_impossible_beyond_the_ratio_and_a_quantile() {
        for (z, verdict) in [
            (0, PowerVerdict::Likely),
            (1_732_000, PowerVerdict::Likely),
            (1_733_000, PowerVerdict::Unlikely),
            (3_377_000, PowerVerdict::Unlikely),
            (3_378_000, PowerVerdict::Impossible),
        ] {
            assert_eq!(power(z, 25).verdict(), verdict, "{z}");
        }
        let useless = Power { ratio: 0.0, ..power(0, 25) };
        assert_eq!((useless.verdict(), useless.rows_needed()), (PowerVerdict::NoImprovement, None));
    }

    #[test]
    fn the_stated_rows_and_the_stated_z_make_pay_likely() {
        let impossible = power(4_000_000, 25);
        // 25 · ((4 + 1.645) / √3)² = 265.5…
        let rows = impossible.rows_needed();
        assert_eq!(rows, Some(266));
        assert_eq!(power(4_000_000, 266).verdict(), PowerVerdict::Likely);
        assert!((impossible.largest_z() - 1.7).abs() < 1e-12);
        assert_eq!(power(1_700_000, 25).verdict(), PowerVerdict::Likely);
        let hopeless = Power { ratio: 0.01, ..impossible };
        assert_eq!(hopeless.rows_needed(), None, "beyond the limit on rows per round");
    }
}
