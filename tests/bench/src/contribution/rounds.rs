//! Real rounds as games: the complete table of coalition values, and the estimators that use
//! gradients of the round.

use std::cell::RefCell;

use florin_contribution::games::TableGame;
use florin_contribution::{
    AffineGame, AntitheticPermutation, ClosureSource, Estimator, FirstOrder, FixedWeights,
    OddRegression, Path, RunOptions, cosine, value,
};
use florin_learning::{AffineLoss, CoalitionMasks, Coalitions, Engine, Updates};
use serde::Serialize;

use super::clock;
use super::curve::{Curve, CurvePoint, Trial, budgets, median, quantile, relative_error};
use super::games::Instance;
use super::ours::{self, OURS};
use super::training::{TrainingRound, TrainingTask};

/// Name of the path integral in tables and plots.
pub(super) const PATH: &str = "path, 3 gradients";
/// The largest budget on real rounds; all our estimators are far below 1 % by then.
const BUDGET_MAX: u64 = 200;
/// The ratio of two consecutive budgets.
const BUDGET_RATIO: f64 = 1.15;

/// The value of a coalition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Utility {
    /// The decrease of the mean loss, in nats.
    Loss,
    /// The increase of the accuracy: a step function instead of a smooth one.
    Accuracy,
}

/// The results of the estimators that need the round itself instead of its table.
#[derive(Debug, Clone, Serialize)]
pub(super) struct GradientResults {
    /// Number of players.
    pub(super) players: usize,
    /// Regime of the round.
    pub(super) regime: &'static str,
    /// Relative error of the path integral with three gradients.
    pub(super) path: f64,
    /// Its time in seconds, including losses and gradients.
    pub(super) path_seconds: f64,
    /// Relative error of one gradient at the base model (first order).
    pub(super) first_order: f64,
    /// Its time in seconds.
    pub(super) first_order_seconds: f64,
    /// Relative error of the cosine similarities, scaled to the right sum.
    pub(super) cosine: f64,
}

/// All coalition values of a round with fixed weights, and its exact Shapley values.
pub(super) fn instance(
    task: &TrainingTask,
    round: &TrainingRound,
    utility: Utility,
    threads: usize,
) -> anyhow::Result<Instance> {
    let deltas: Vec<&[f32]> = round.deltas.iter().map(Vec::as_slice).collect();
    let shares = shares(round);
    let updates =
        Updates { model: &task.model, base: &round.base, deltas: &deltas, shares: &shares };
    let mut coalitions = Coalitions::new(updates, &task.holdout, threads)?;
    let masks = CoalitionMasks::all(deltas.len())?;
    let worths = match utility {
        Utility::Loss => {
            let losses = coalitions.mean_losses(&masks)?;
            losses.iter().map(|loss| losses[0] - loss).collect()
        }
        Utility::Accuracy => {
            let rows = task.holdout.rows() as f64;
            let right = coalitions.correct_predictions(&masks)?;
            right.iter().map(|&own| (own as f64 - right[0] as f64) / rows).collect()
        }
    };
    Ok(Instance::new(round.seed, TableGame::new(deltas.len(), worths)?))
}

fn shares(round: &TrainingRound) -> Vec<f64> {
    let all = round.rows.iter().sum::<u64>() as f64;
    round.rows.iter().map(|&rows| rows as f64 / all).collect()
}

/// Compares the estimators that use gradients of a round with its exact values.
pub(super) fn evaluate_gradient_estimators(
    task: &TrainingTask,
    round: &TrainingRound,
    exact: &[f64],
    engine: &mut dyn Engine,
) -> anyhow::Result<GradientResults> {
    let deltas: Vec<&[f32]> = round.deltas.iter().map(Vec::as_slice).collect();
    let affine = AffineLoss::new(&task.model, &round.base, &deltas, &task.holdout, engine)?;
    let affine = RefCell::new(affine);
    let source = ClosureSource::new(
        deltas.len(),
        |coefficients: &[f64]| affine.borrow_mut().losses(coefficients),
        |coefficients: &[f64]| affine.borrow_mut().directional_derivatives(coefficients),
    );
    let mut game = AffineGame::new(source, FixedWeights::over_all(&round.rows)?)?;
    let ids: Vec<usize> = (0..deltas.len()).collect();
    let begun = clock::seconds();
    let path = value(&Path::default(), &mut game, &ids, RunOptions::seeded(0))?;
    let path_seconds = clock::seconds() - begun;
    let begun = clock::seconds();
    let first = value(&FirstOrder, &mut game, &ids, RunOptions::seeded(0))?;
    let first_order_seconds = clock::seconds() - begun;
    let of = |scores: &[florin_contribution::Score<usize>]| -> Vec<f64> {
        scores.iter().map(|score| score.value).collect()
    };
    let shares = shares(round);
    let alike = cosine(&mut round.deltas.clone()[..], &shares)?;
    let weighed: Vec<f64> =
        alike.iter().zip(&shares).map(|(cosine, share)| cosine * share).collect();
    let scale = exact.iter().sum::<f64>() / weighed.iter().sum::<f64>();
    let scaled: Vec<f64> = weighed.iter().map(|value| value * scale).collect();
    Ok(GradientResults {
        players: deltas.len(),
        regime: round.regime,
        path: relative_error(&of(&path.scores), exact),
        path_seconds,
        first_order: relative_error(&of(&first.scores), exact),
        first_order_seconds,
        cosine: relative_error(&scaled, exact),
    })
}

/// The two samplers that a market would use on a round, at small budgets, over many rounds.
pub(super) struct Samplers {
    budgets: Vec<u64>,
    odd: Vec<Trial>,
    antithetic: Vec<Trial>,
    rounds: usize,
}

impl Samplers {
    /// Creates samplers for rounds of `players`.
    pub(super) fn new(players: usize) -> Self {
        let budgets = budgets(2 * players as u64, BUDGET_MAX, BUDGET_RATIO);
        Self { budgets, odd: Vec::new(), antithetic: Vec::new(), rounds: 0 }
    }

    /// Values another round.
    pub(super) fn value(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let at = self.rounds;
        self.rounds += 1;
        let pairs: [(&dyn Estimator<TableGame>, &mut Vec<Trial>); 2] =
            [(&OddRegression, &mut self.odd), (&AntitheticPermutation, &mut self.antithetic)];
        for (estimator, trials) in pairs {
            for &budget in &self.budgets {
                if let Some(found) = ours::trial(estimator, instance, budget)? {
                    trials.push(Trial { instance: at, ..found });
                }
            }
        }
        Ok(())
    }

    /// The medians over all rounds: `odd`, then antithetic permutation.
    pub(super) fn curves(&self, game: &str) -> [Curve; 2] {
        let of = |name: &str, trials: &[Trial]| {
            Curve::from_trials(&format!("{OURS} {name}"), game, trials, self.rounds)
        };
        [of("odd", &self.odd), of("antithetic permutation", &self.antithetic)]
    }
}

/// A quantile over the rounds; `None` if there are none.
pub(super) fn spread(
    rounds: &[GradientResults],
    read: impl Fn(&GradientResults) -> f64,
    share: f64,
) -> Option<f64> {
    quantile(rounds.iter().map(read), share)
}

/// The gradient-based estimators as curves of one point; their cost is counted in passes.
pub(super) fn points(rounds: &[GradientResults], game: &str) -> Vec<Curve> {
    /// Three gradients, and the losses at both ends of the path.
    const PATH_PASSES: f64 = 5.0;
    /// One gradient, and the losses at both ends of the path.
    const FIRST_PASSES: f64 = 3.0;
    type ReadResult = fn(&GradientResults) -> f64;
    let curve = |name: &str, evaluations: f64, error: ReadResult, seconds: ReadResult| {
        let error = median(rounds.iter().map(error))?;
        let seconds = median(rounds.iter().map(seconds))?;
        let points = vec![CurvePoint { evaluations, error, seconds }];
        Some(Curve { estimator: format!("{OURS} {name}"), game: game.to_owned(), points })
    };
    [
        curve(PATH, PATH_PASSES, |round| round.path, |round| round.path_seconds),
        curve(
            "first-order",
            FIRST_PASSES,
            |round| round.first_order,
            |round| round.first_order_seconds,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}
