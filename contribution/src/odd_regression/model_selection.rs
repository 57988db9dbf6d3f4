//! Model selection: chooses the prior of a game's interactions by cross-validation.

use super::kernel::{GamePart, GramMatrix, InteractionKernel, ProductKernel};
use super::ridge::{self, LeaveOneOutResult};
use crate::Coalition;

/// Number of pairs for model selection; with more, the differences between models are clear.
const PAIRS_MAX: usize = 256;

/// Fewest pairs beyond one per player for which models can be compared.
const SPARE_PAIRS_MIN: usize = 4;

/// Largest number of players with individual partner scales: the kernel has one term per player.
const PARTNERS_MAX: usize = 64;

/// Noise levels, as shares of the kernel's variance, tried with the uniform prior: from a game with
/// exact interactions of three players to one that is hardly smooth.
const UNIFORM_NOISES: [f64; 4] = [1e-9, 1e-4, 1e-2, 1.0];

/// Noise level for the comparison of scales, and the levels tried with the best scales.
const NOISE: f64 = 1e-3;
const NOISES_BEST: [f64; 2] = [1e-6, 1e-1];

/// `(γ, τ)` tried: the scale of a player is τ times its relative strength to the power γ.
const PARTNER_SHAPES: [(f64, f64); 4] = [(1.0, 0.1), (1.0, 0.3), (2.0, 0.3), (2.0, 0.9)];
const VALUE_SHAPES: [(f64, f64); 4] = [(0.5, 0.1), (1.0, 0.1), (1.0, 0.3), (2.0, 0.3)];
/// The same for the second estimate of the pairwise interactions.
const SECOND_SHAPES: [(f64, f64); 2] = [(1.0, 0.1), (1.0, 0.3)];

/// Noise levels tried for the pairwise interactions.
const PAIRWISE_NOISES: [f64; 2] = [1e-4, 1e-2];

/// Lower bound of a scale as a share of τ, so that no player is excluded a priori.
const SCALE_MIN: f64 = 1e-4;

/// The observations of a game. The first side is the grand coalition.
#[derive(Default)]
pub(crate) struct PairValues {
    pub(crate) sides: Vec<Coalition>,
    /// `(v(S) − v(Sᶜ))/2`.
    pub(crate) odd: Vec<f64>,
    /// `(v(S) + v(Sᶜ))/2`.
    pub(crate) even: Vec<f64>,
}

/// A prior of a game's interactions.
pub(crate) struct InteractionModel {
    /// A description for people.
    pub(crate) name: &'static str,
    pub(crate) kernel: InteractionKernel,
    /// As a share of the kernel's own variance.
    pub(crate) noise: f64,
    /// The leave-one-out error: root mean square of the residuals of pairs predicted from the
    /// others.
    pub(crate) rmse: f64,
    /// The same of the additive model.
    pub(crate) linear_rmse: f64,
}

/// The part of a sample that models are compared on.
struct ModelComparison<'a> {
    part: GamePart,
    sides: &'a [Coalition],
    data: &'a [f64],
    free: Vec<f64>,
}

impl<'a> ModelComparison<'a> {
    fn new(part: GamePart, sample: &'a PairValues) -> Self {
        let players = sample.sides[0].universe();
        let count = sample.sides.len().min(PAIRS_MAX.max(2 * players));
        let data = if part == GamePart::Odd { &sample.odd } else { &sample.even };
        let (sides, data) = (&sample.sides[..count], &data[..count]);
        Self { part, sides, data, free: ridge::unpenalised_gram(part, sides) }
    }

    fn gram(&self, kernel: &InteractionKernel) -> Option<GramMatrix> {
        kernel.gram(self.part, self.sides)
    }

    fn leave_one_out_error(&self, gram: &GramMatrix, noise: f64) -> Option<LeaveOneOutResult> {
        ridge::leave_one_out_error(Some(gram), noise, &self.free, self.data)
    }

    /// The noise level with the smallest leave-one-out error.
    fn best(&self, gram: &GramMatrix, noises: &[f64]) -> Option<(f64, LeaveOneOutResult)> {
        let trials = noises
            .iter()
            .filter_map(|&noise| Some((noise, self.leave_one_out_error(gram, noise)?)));
        trials.min_by(|a, b| a.1.rmse.total_cmp(&b.1.rmse))
    }

    /// The shape with the smallest leave-one-out error at the noise level [`NOISE`].
    fn best_shape(
        &self,
        name: &'static str,
        shapes: &[(f64, f64)],
        scales: impl Fn(f64, f64) -> Vec<Vec<f64>>,
    ) -> Option<(InteractionModel, GramMatrix)> {
        let tried = shapes.iter().filter_map(|&(power, largest)| {
            let kernel = InteractionKernel::Products(ProductKernel::new(scales(power, largest)));
            let gram = self.gram(&kernel)?;
            let miss = self.leave_one_out_error(&gram, NOISE)?.rmse;
            Some((
                InteractionModel {
                    name,
                    kernel,
                    noise: NOISE,
                    rmse: miss,
                    linear_rmse: f64::INFINITY,
                },
                gram,
            ))
        });
        tried.min_by(|a, b| a.0.rmse.total_cmp(&b.0.rmse))
    }
}

/// The model with the smallest leave-one-out error; `None` if the additive model is as good, or if
/// there are too few pairs for interactions of three players.
pub(crate) fn select_model(sample: &PairValues) -> Option<InteractionModel> {
    let bench = ModelComparison::new(GamePart::Odd, sample);
    let players = sample.sides[0].universe();
    let alike = bench.gram(&InteractionKernel::Uniform)?;
    if bench.sides.len() < players + SPARE_PAIRS_MIN {
        let trial = bench.leave_one_out_error(&alike, NOISE)?;
        return Some(uniform_model(NOISE, trial.rmse));
    }
    let linear = ridge::leave_one_out_error(None, 1.0, &bench.free, bench.data)?;
    let exactly =
        if bench.sides.len() > unknowns(players) { &UNIFORM_NOISES } else { &UNIFORM_NOISES[1..] };
    let (noise, first) = bench.best(&alike, exactly)?;
    let values = fitted_values(&bench, &alike, &first);
    let mut models = vec![(uniform_model(noise, first.rmse), alike)];
    models.extend(bench.best_shape(
        "scales from player values",
        &VALUE_SHAPES,
        |power, largest| {
            let top = largest_magnitude(&values);
            vec![values.iter().map(|value| scale(value.abs() / top, power, largest)).collect()]
        },
    ));
    if let Some(twos) = pairwise_interactions(sample) {
        let scales = |power, largest| partner_scales(&twos, players, power, largest);
        models.extend(bench.best_shape(
            "scales from interaction partners",
            &PARTNER_SHAPES,
            scales,
        ));
    }
    let (mut best, gram) = models.into_iter().min_by(|a, b| a.0.rmse.total_cmp(&b.0.rmse))?;
    if matches!(best.kernel, InteractionKernel::Products(_))
        && let Some((noise, trial)) = bench.best(&gram, &NOISES_BEST)
        && trial.rmse < best.rmse
    {
        (best.noise, best.rmse) = (noise, trial.rmse);
    }
    best.linear_rmse = linear.rmse;
    (best.rmse < linear.rmse).then_some(best)
}

/// Number of interactions of one and of three players: with more pairs than that, the fit is exact
/// on a game without other interactions.
fn unknowns(players: usize) -> usize {
    players + players * (players - 1) * players.saturating_sub(2) / 6
}

fn uniform_model(noise: f64, miss: f64) -> InteractionModel {
    let (name, linear_miss) = ("uniform interactions of three players", f64::INFINITY);
    InteractionModel {
        name,
        kernel: InteractionKernel::Uniform,
        noise,
        rmse: miss,
        linear_rmse: linear_miss,
    }
}

fn fitted_values(
    bench: &ModelComparison<'_>,
    gram: &GramMatrix,
    trial: &LeaveOneOutResult,
) -> Vec<f64> {
    let mut values = ridge::unpenalised_values(bench.sides, &trial.alpha);
    let rows = InteractionKernel::Uniform.shapley_values(bench.sides, gram.scale);
    for (alpha, row) in trial.alpha.iter().zip(rows.chunks_exact(values.len())) {
        crate::regression::weighted::add_scaled(&mut values, *alpha, row);
    }
    values
}

/// The strength of each pairwise interaction, by rows with zeros on the diagonal, from the even
/// part: first with a uniform prior, then again with the first estimate as the prior. `None` for
/// too many players.
fn pairwise_interactions(sample: &PairValues) -> Option<Vec<f64>> {
    let bench = ModelComparison::new(GamePart::Even, sample);
    let players = bench.sides[0].universe();
    if players > PARTNERS_MAX {
        return None;
    }
    let gram = bench.gram(&InteractionKernel::Uniform)?;
    let (_, trial) = bench.best(&gram, &PAIRWISE_NOISES)?;
    let first = estimate_pairwise(&bench, &trial, &vec![1.0; players * players]);
    let again = SECOND_SHAPES.iter().filter_map(|&(power, largest)| {
        let products = ProductKernel::new(partner_scales(&first, players, power, largest));
        let expected = products.pairwise_variances(players);
        let gram = bench.gram(&InteractionKernel::Products(products))?;
        Some((expected, bench.leave_one_out_error(&gram, NOISE)?))
    });
    let (expected, trial) = again.min_by(|a, b| a.1.rmse.total_cmp(&b.1.rmse))?;
    Some(estimate_pairwise(&bench, &trial, &expected))
}

/// `expected_ij·Σ_k α_k·z_ki·z_kj`, up to a common factor.
fn estimate_pairwise(
    bench: &ModelComparison<'_>,
    trial: &LeaveOneOutResult,
    expected: &[f64],
) -> Vec<f64> {
    let players = bench.sides[0].universe();
    let mut twos = vec![0.0; players * players];
    let mut signs = vec![0.0; players];
    for (side, alpha) in bench.sides.iter().zip(&trial.alpha) {
        for (player, sign) in signs.iter_mut().enumerate() {
            *sign = super::kernel::sign_of(side, player);
        }
        for (row, sign) in twos.chunks_exact_mut(players).zip(&signs) {
            crate::regression::weighted::add_scaled(row, alpha * sign, &signs);
        }
    }
    twos.iter_mut().zip(expected).for_each(|(two, expected)| *two *= expected);
    (0..players).for_each(|player| twos[player * players + player] = 0.0);
    twos
}

/// One term per player: the strengths of its interactions with the others. Its own entry equals its
/// strongest partner's, since no observation shows how a player interacts with itself.
fn partner_scales(twos: &[f64], players: usize, power: f64, largest: f64) -> Vec<Vec<f64>> {
    let top = largest_magnitude(twos);
    let term = |(player, row): (usize, &[f64])| {
        let own = largest_magnitude(row);
        let strength = |other: usize| if other == player { own } else { row[other].abs() };
        (0..players).map(|other| scale(strength(other) / top, power, largest)).collect()
    };
    twos.chunks_exact(players).enumerate().map(term).collect()
}

fn largest_magnitude(numbers: &[f64]) -> f64 {
    numbers.iter().fold(f64::MIN_POSITIVE, |largest, number| largest.max(number.abs()))
}

/// `share` to the power ½, 1 or 2, without a library's `powf`, whose last bit depends on the
/// machine.
fn scale(share: f64, power: f64, largest: f64) -> f64 {
    let raised = if power < 1.0 {
        share.sqrt()
    } else if power > 1.0 {
        share * share
    } else {
        share
    };
    largest * raised.max(SCALE_MIN)
}
