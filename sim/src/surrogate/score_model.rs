//! The score model of a group: the value of an update, and the variation between updates.
//!
//! An update with the weight `p` in the aggregate and `q` rows, where members of its group have
//! `q̄` rows on average, has the score
//!
//! ```text
//! p · ( (e + f ln(q / q̄) + a₀ ζ₀ + w z₁) · V + h + s (a₁ ζ₁ − m + ρ (√c Z + √(1−c) z₂)) )
//! ```
//! and the standard error `p · s` with `ln s = s₀ + s₁ ln V + s₂ ln(q / q̄) + s₃ z₃`. `V` is the
//! decrease of the loss in a round at this stage. ζ₀ and ζ₁ are random effects of a member, z₁ to
//! z₃ of an update, and Z of a round: all updates of a round are valued on the same holdout rows
//! and share their sampling noise.
//!
//! * `e` is the quality of the group's work, and `h` its effect at any stage.
//! * `a₀` is the spread between members while the loss falls fast, and `a₁` the spread when it
//!   hardly falls: some updates then still help and others harm, each relative to the others, so
//!   that `m` is the mean of `a₁ ζ₁` over the rows of a round.
//! * `w` is the spread of one member's work between rounds.
//! * `ρ` is the ratio of the actual noise of a score to its standard error, and `c` the correlation
//!   of that noise between the updates of a round.
//!
//! `e`, `f`, `h` and `s₀` to `s₂` are estimated by least squares, weighted by `p`, the rest by the
//! analysis of variance. All random effects are normal except z₂, which is drawn from the observed
//! residuals: a score and its error come from the same few rows, so that scores far below their
//! error are rarer than under a normal distribution, and such scores cost a bond.

use serde::Serialize;

use super::learning_curve::LearningCurve;
use super::least_squares::least_squares;
use super::observation::Observation;
use super::small_simulations::SimulationObservations;
use super::variance::VarianceComponents;

/// Minimum decrease of the loss in a round, in nats.
pub(super) const GAIN_MIN: f64 = 1e-6;

/// The fitted score model of a group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScoreModel {
    /// `e`, `f`, `h`.
    pub value_coefficients: [f64; 3],
    /// Variation between updates.
    #[serde(flatten)]
    pub variance: VarianceComponents,
    /// `s₀`, `s₁`, `s₂`.
    pub error_coefficients: [f64; 3],
    /// `s₃`.
    pub error_spread: f64,
    /// Mean number of counted rows of an update: `q̄`.
    pub rows: f64,
    /// Fraction of updates that are rejected as near-duplicates.
    pub near_duplicate_share: f64,
    /// Fraction of the other updates with neither a score nor an error.
    pub idle_share: f64,
    /// Number of updates in the fit.
    pub updates: usize,
}

/// Random effects of one update: the normal numbers z₁ and z₃, and a uniform number whose quantile
/// is z₂.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpdateNoise {
    /// z₁.
    pub(super) work: f64,
    /// Uniform number whose quantile is z₂.
    pub(super) rows: f64,
    /// z₃.
    pub(super) error: f64,
}

/// A sampled update, for the weight one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SampledUpdate {
    /// Decrease of the loss by the update, in nats. The sampling noise of the holdout rows does not
    /// affect the model.
    pub(super) work: f64,
    /// Its score, in nats.
    pub(super) score: f64,
    /// The standard error of the score.
    pub(super) error: f64,
}

/// The conditions that all updates of a round share.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundConditions {
    /// Decrease of the loss in the round, in nats.
    pub(super) gain: f64,
    /// Sampling noise of the round's holdout rows, in standard deviations.
    pub(super) sampling_noise: f64,
    /// `m`.
    pub(super) mean_offset: f64,
}

impl ScoreModel {
    /// Fits the model to the groups with these indices, whose members behave alike.
    pub(super) fn fit(
        groups: &[usize],
        curve: &LearningCurve,
        games: &[SimulationObservations],
    ) -> Self {
        let mut points = Vec::new();
        let (mut all, mut aside, mut idle) = (0.0, 0.0, 0.0);
        for (game, seen) in games.iter().enumerate() {
            for (at, (round, updates)) in seen.rounds.iter().zip(seen.updates()).enumerate() {
                let gain = curve.loss_decrease(round.loss, updates).max(GAIN_MIN);
                for update in round.updates.iter().filter(|u| groups.contains(&u.group)) {
                    all += 1.0;
                    aside += f64::from(u8::from(update.is_near_duplicate));
                    let is_idle = !update.is_near_duplicate && update.error == 0.0;
                    idle += f64::from(u8::from(is_idle));
                    if !update.is_near_duplicate && !is_idle && update.share > 0.0 {
                        points.push(Observation::of(update, (game, at), gain));
                    }
                }
            }
        }
        let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
        let weights: f64 = points.iter().map(|point| point.weight).sum();
        let rows = share(points.iter().map(|p| p.weight * p.rows).sum(), weights).max(1.0);
        let terms = |p: &Observation| [p.gain, p.gain * (p.rows / rows).ln(), 1.0];
        let lines: Vec<_> = points.iter().map(|p| (terms(p), p.score, p.weight)).collect();
        let value_coefficients = least_squares(&lines);
        let logs = points.iter().filter(|p| p.error > 0.0);
        let of_error = |p: &Observation| [1.0, p.gain.ln(), (p.rows / rows).ln()];
        let logs: Vec<_> = logs.map(|p| (of_error(p), p.error.ln(), p.weight)).collect();
        let error_coefficients = least_squares(&logs);
        let off = |(terms, value, weight): &([f64; 3], f64, f64)| {
            weight
                * (value - terms.iter().zip(&error_coefficients).map(|(t, s)| t * s).sum::<f64>())
                    .powi(2)
        };
        let of_logs: f64 = logs.iter().map(|(.., weight)| weight).sum();
        let rests: Vec<f64> = points
            .iter()
            .map(|p| {
                p.score - terms(p).iter().zip(&value_coefficients).map(|(t, w)| t * w).sum::<f64>()
            })
            .collect();
        Self {
            value_coefficients,
            variance: VarianceComponents::estimate(&points, &rests),
            error_coefficients,
            error_spread: share(logs.iter().map(off).sum(), of_logs).sqrt(),
            rows,
            near_duplicate_share: share(aside, all),
            idle_share: share(idle, all - aside),
            updates: points.len(),
        }
    }

    /// Samples an update with `rows` rows of a member with the random effects ζ₀ and ζ₁, under the
    /// conditions of a round.
    pub(super) fn sample(
        &self,
        rows: f64,
        zeta: [f64; 2],
        RoundConditions { gain, sampling_noise: luck, mean_offset: level }: RoundConditions,
        z: UpdateNoise,
    ) -> SampledUpdate {
        let (gain, spreads) = (gain.max(GAIN_MIN), &self.variance);
        let own_luck = (1.0 - spreads.round_correlation).sqrt() * spreads.quantile(z.rows);
        let chance = spreads.round_correlation.sqrt() * luck + own_luck;
        let [e, f, h] = self.value_coefficients;
        let larger = (rows.max(1.0) / self.rows.max(1.0)).ln();
        let [s0, s1, s2] = self.error_coefficients;
        let error = (s0 + s1 * gain.ln() + s2 * larger + self.error_spread * z.error).exp();
        let good = e + f * larger + spreads.member_std[0] * zeta[0] + spreads.work_std * z.work;
        let by_error = spreads.member_std[1] * zeta[1] - level + spreads.noise_ratio * chance;
        SampledUpdate { work: good * gain, score: good * gain + h + error * by_error, error }
    }
}
