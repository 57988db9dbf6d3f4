//! Odd regression: Shapley values from half the differences between coalitions and their
//! complements.

mod kernel;
mod model_selection;
mod ridge;

use crate::complementary_pairs::{InitialPairs, PairSampler};
use crate::meter::EvaluationMeter;
use crate::regression::{Fit, ObservedPairs, linear_fit};
use crate::{Coalition, Estimate, Estimator, Game, ValuationError};
use model_selection::{InteractionModel, PairValues};
use ridge::OddFit;

/// Passes per player of a run without a limit: about 1 % error on games of 20 players with strong
/// overlap.
const PASSES_PER_PLAYER: u64 = 40;

/// Smallest number of pairs between two checks of the limits.
const STEP_MIN: usize = 4;

/// Between two checks the number of pairs grows by one part in this many, so that all fits together
/// cost a few times the last one.
const GROWTH: usize = 4;

/// Largest number of pairs of the fit with interactions: its system takes quadratic memory and
/// cubic time. Additional pairs enter by a linear fit.
const PAIRS_FITTED_MAX: usize = 1_024;

/// Largest number of players for a fit with interactions: model selection takes cubic time in it.
const PLAYERS_MAX: usize = 256;

/// A fit whose residual exceeds this share of the residual of the linear fit gets a linear
/// correction too, once there are [`CORRECTION_PAIRS_PER_PLAYER`] pairs per player: on a discontinuous game, the
/// kernel's prior would bias the values forever.
const RESIDUAL_SHARE_MAX: f64 = 0.5;
const CORRECTION_PAIRS_PER_PLAYER: usize = 10;

/// Number of groups of pairs in the jackknife.
const GROUPS: usize = 10;

/// Odd regression. The Shapley value depends only on half the differences `d(S) = (v(S) − v(Sᶜ))/2`
/// of coalitions and their complements, and these only on interactions of odd numbers of players.
/// This estimator fits d to distinct pairs (single players first, then all sizes equally often) by
/// kernel ridge regression. The linear part is unpenalised, and interactions of three and more
/// players have one of three priors: uniform; scaled by the players' values; or scaled by the
/// interaction partners, which the sums `v(S) + v(Sᶜ)` reveal without further evaluations.
/// Cross-validation selects the prior that best predicts held-out pairs. If none predicts better
/// than the additive model, the estimator is LeverageSHAP (Musco and Witter, 2025) on the same
/// pairs.
///
/// 2n evaluations are exact for games with interactions of up to two players, all 2^n for every
/// game. Standard errors come from leaving out a tenth of the pairs at a time. That complementary
/// pairs observe odd orders only is in "PolySHAP: extending KernelSHAP with interaction-informed
/// polynomial regression" (2026); the closed-form Shapley values of the kernels and the choice of
/// scales from the even part are derived here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OddRegression;

impl<G: Game + ?Sized> Estimator<G> for OddRegression {
    fn name(&self) -> &'static str {
        "odd"
    }

    fn version(&self) -> u32 {
        1
    }

    fn passes_min(&self, players: usize) -> u64 {
        (players as u64).saturating_mul(2)
    }

    fn passes_default(&self, players: usize) -> Option<u64> {
        let all = u32::try_from(players).ok().and_then(|n| 1_u64.checked_shl(n));
        let passes = (players as u64).saturating_mul(PASSES_PER_PLAYER);
        Some(all.map_or(passes, |all| all.min(passes)))
    }

    fn estimate(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Estimate, ValuationError> {
        let mut sight = Observations::new(game, meter)?;
        let mut wanted = sight.players.saturating_sub(1);
        loop {
            let came = sight.sample_pairs(game, meter, wanted)?;
            let is_over = came < wanted || sight.is_complete() || !meter.can_afford(2);
            wanted = step(meter, sight.pairs_seen());
            if !is_over && meter.tolerance().is_none() {
                continue;
            }
            let answer = sight.estimate()?;
            let errors = answer.estimator_errors.as_ref();
            if is_over || errors.is_some_and(|errors| meter.has_converged(&answer.values, errors)) {
                return Ok(answer);
            }
        }
    }
}

/// Number of pairs to draw next: within the budget, in growing steps.
fn step(meter: &EvaluationMeter<'_>, seen: usize) -> usize {
    let within_budget = usize::try_from(meter.budget_left() / 2).unwrap_or(usize::MAX);
    within_budget.min(STEP_MIN.max(seen / GROWTH))
}

/// The observations of a game so far.
struct Observations {
    players: usize,
    total: f64,
    pairs: PairSampler,
    /// The grand pair, followed by the pairs drawn.
    pair_values: PairValues,
}

impl Observations {
    fn new<G: Game + ?Sized>(
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Self, ValuationError> {
        let players = game.players();
        // Single players first are the better start, but only if the budget covers all of them.
        let least = 2_u64.saturating_mul(players as u64).saturating_add(2);
        let start = if meter.can_afford(least) {
            InitialPairs::Singles
        } else {
            InitialPairs::PermutationPrefixes
        };
        let pairs = PairSampler::new(players, meter.seed(), start);
        let mut sight = Self { players, total: 0.0, pairs, pair_values: PairValues::default() };
        sight.evaluate(game, meter, vec![Coalition::full(players)])?;
        sight.total = 2.0 * sight.pair_values.odd[0];
        Ok(sight)
    }

    /// Evaluates `wanted` more pairs, or all remaining pairs; returns their number.
    fn sample_pairs<G: Game + ?Sized>(
        &mut self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
        wanted: usize,
    ) -> Result<usize, ValuationError> {
        let fresh: Vec<Coalition> = self.pairs.by_ref().take(wanted).collect();
        let came = fresh.len();
        self.evaluate(game, meter, fresh)?;
        Ok(came)
    }

    fn evaluate<G: Game + ?Sized>(
        &mut self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
        sides: Vec<Coalition>,
    ) -> Result<(), ValuationError> {
        let both: Vec<Coalition> =
            sides.iter().flat_map(|side| [side.clone(), side.complement()]).collect();
        for pair in meter.values(game, &both)?.chunks_exact(2) {
            self.pair_values.odd.push(0.5 * (pair[0] - pair[1]));
            self.pair_values.even.push(0.5 * (pair[0] + pair[1]));
        }
        self.pair_values.sides.extend(sides);
        Ok(())
    }

    /// Number of observed pairs, without the grand pair.
    fn pairs_seen(&self) -> usize {
        self.pair_values.sides.len() - 1
    }

    fn is_complete(&self) -> bool {
        self.pairs_seen() as u64 == self.pairs.total_pairs()
    }

    fn estimate(&self) -> Result<Estimate, ValuationError> {
        let seen = self.pairs_seen();
        if self.is_complete() {
            return self.linear_estimate(format!("all {seen} pairs: the values are exact"));
        }
        let fitted = if self.players <= PLAYERS_MAX { self.odd_estimate() } else { None };
        match fitted {
            Some(answer) => Ok(answer),
            None if seen < self.players => {
                self.linear_estimate(format!("{seen} pairs along a permutation"))
            }
            None => {
                self.linear_estimate(format!("{seen} pairs; the additive model predicts them best"))
            }
        }
    }

    /// The linear fit with leverage-score weights.
    fn linear_estimate(&self, remark: String) -> Result<Estimate, ValuationError> {
        let fit = self.fit_linear(self.total, &self.pair_values.odd[1..])?;
        Ok(self.to_estimate(fit.values, fit.errors, remark))
    }

    fn fit_linear(&self, total: f64, halves: &[f64]) -> Result<Fit, ValuationError> {
        let sides = &self.pair_values.sides[1..];
        if sides.is_empty() {
            return Ok(Fit { values: vec![total], errors: Some(vec![0.0]) });
        }
        let observed = ObservedPairs { total, sides, half_differences: halves, pairs: &self.pairs };
        let estimator = "odd";
        linear_fit(&observed).ok_or(ValuationError::Singular { estimator, equations: sides.len() })
    }

    /// The fit with interactions; `None` if no such model is better than the linear fit.
    fn odd_estimate(&self) -> Option<Estimate> {
        let model = model_selection::select_model(&self.pair_values)?;
        let count = self.pair_values.sides.len().min(PAIRS_FITTED_MAX + 1);
        let (sides, data) = (&self.pair_values.sides[..count], &self.pair_values.odd[..count]);
        let gram = model.kernel.gram(kernel::GamePart::Odd, sides)?;
        let fit = OddFit::new(&gram, model.noise, sides, data)?;
        let read_out = model.kernel.shapley_values(sides, gram.scale);
        let mut values = fit.values(&read_out);
        enforce_sum(&mut values, self.total);
        let remark = format!("{} pairs; {}", self.pairs_seen(), model.name);
        let jumps = model.rmse > RESIDUAL_SHARE_MAX * model.linear_rmse;
        let is_rich = self.pairs_seen() >= CORRECTION_PAIRS_PER_PLAYER * self.players;
        if count < self.pair_values.sides.len() || (jumps && is_rich) {
            return self.corrected(&model, &fit, gram.scale, values, remark);
        }
        let errors = jackknife(&fit, &read_out, self.players);
        Some(self.to_estimate(values, errors, remark))
    }

    /// Fits the residual of each pair, predicted from the others, linearly: LeverageSHAP on the
    /// residual game, which converges to the exact values.
    fn corrected(
        &self,
        model: &InteractionModel,
        fit: &OddFit,
        scale: f64,
        mut values: Vec<f64>,
        remark: String,
    ) -> Option<Estimate> {
        let fitted =
            &self.pair_values.sides[..self.pair_values.sides.len().min(PAIRS_FITTED_MAX + 1)];
        let mut missed = Vec::with_capacity(self.pairs_seen());
        for pair in 1..fitted.len() {
            missed.extend(fit.leave_out_residuals(&[pair])?);
        }
        for (side, half) in
            self.pair_values.sides.iter().zip(&self.pair_values.odd).skip(fitted.len())
        {
            missed.push(half - fit.predict(side, &model.kernel.row(side, fitted, scale)));
        }
        let rest = self.fit_linear(0.0, &missed).ok()?;
        values.iter_mut().zip(&rest.values).for_each(|(value, rest)| *value += rest);
        Some(self.to_estimate(values, rest.errors, remark + ", corrected by a linear fit"))
    }

    fn to_estimate(&self, values: Vec<f64>, errors: Option<Vec<f64>>, remark: String) -> Estimate {
        let total = self.total;
        let remark = Some(remark);
        Estimate { values, estimator_errors: errors, total, remark, ..Estimate::default() }
    }
}

/// Adds a constant to all values so that they sum to `total`.
fn enforce_sum(values: &mut [f64], total: f64) {
    let missing = (total - values.iter().sum::<f64>()) / values.len() as f64;
    values.iter_mut().for_each(|value| *value += missing);
}

/// The jackknife standard error of each value, leaving out one of [`GROUPS`] groups of pairs at a
/// time, without refitting: leaving a group out is equivalent to replacing its data by the
/// predictions of the others. `None` if a group is needed to determine the fit.
fn jackknife(fit: &OddFit, read_out: &[f64], players: usize) -> Option<Vec<f64>> {
    let sides = read_out.len() / players;
    if sides <= GROUPS {
        return None;
    }
    let responses = fit.sensitivities(read_out);
    let mut moves: Vec<Vec<f64>> = Vec::with_capacity(GROUPS);
    for first in 1..=GROUPS {
        let group: Vec<usize> = (first..sides).step_by(GROUPS).collect();
        let misses = fit.leave_out_residuals(&group)?;
        let moved = |response: &[f64]| -> f64 {
            group.iter().zip(&misses).map(|(&k, miss)| response[k] * miss).sum()
        };
        let mut moved: Vec<f64> = responses.chunks_exact(sides).map(moved).collect();
        enforce_sum(&mut moved, 0.0);
        moves.push(moved);
    }
    let groups = GROUPS as f64;
    let error = |player: usize| {
        let mean = moves.iter().map(|moved| moved[player]).sum::<f64>() / groups;
        let squares: f64 = moves.iter().map(|moved| (moved[player] - mean).powi(2)).sum();
        (squares * (groups - 1.0) / groups).sqrt()
    };
    Some((0..players).map(error).collect())
}
