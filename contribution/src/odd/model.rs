//! Model selection: chooses the prior of a game's interactions by cross-validation.

use super::kernel::{Gram, Kernel, Part, Products};
use super::ridge::{self, Trial};
use crate::Coalition;

/// Number of pairs for model selection; with more, the differences between models are clear.
const PAIRS_MAX: usize = 256;

/// Fewest pairs beyond one per player for which models can be compared.
const SPARE_MIN: usize = 4;

/// Largest number of players with individual partner scales: the kernel has one term per player.
const PARTNERS_MAX: usize = 64;

/// Noise levels, as shares of the kernel's variance, tried with the uniform prior: from a game with
/// exact interactions of three players to one that is hardly smooth.
const NOISES_ALIKE: [f64; 4] = [1e-9, 1e-4, 1e-2, 1.0];

/// Noise level for the comparison of scales, and the levels tried with the best scales.
const NOISE: f64 = 1e-3;
const NOISES_BEST: [f64; 2] = [1e-6, 1e-1];

/// `(γ, τ)` tried: the scale of a player is τ times its relative strength to the power γ.
const PARTNER_SHAPES: [(f64, f64); 4] = [(1.0, 0.1), (1.0, 0.3), (2.0, 0.3), (2.0, 0.9)];
const VALUE_SHAPES: [(f64, f64); 4] = [(0.5, 0.1), (1.0, 0.1), (1.0, 0.3), (2.0, 0.3)];
/// The same for the second estimate of the pairwise interactions.
const SECOND_SHAPES: [(f64, f64); 2] = [(1.0, 0.1), (1.0, 0.3)];

/// Noise levels tried for the pairwise interactions.
const NOISES_TWOS: [f64; 2] = [1e-4, 1e-2];

/// Lower bound of a scale as a share of τ, so that no player is excluded a priori.
const SCALE_MIN: f64 = 1e-4;

/// The observations of a game. The first side is the grand coalition.
#[derive(Default)]
pub(crate) struct Sample {
    pub(crate) sides: Vec<Coalition>,
    /// `(v(S) − v(Sᶜ))/2`.
    pub(crate) odd: Vec<f64>,
    /// `(v(S) + v(Sᶜ))/2`.
    pub(crate) even: Vec<f64>,
}

/// A prior of a game's interactions.
pub(crate) struct Model {
    /// A description for people.
    pub(crate) name: &'static str,
    pub(crate) kernel: Kernel,
    /// As a share of the kernel's own variance.
    pub(crate) noise: f64,
    /// The leave-one-out error: root mean square of the residuals of pairs predicted from the
    /// others.
    pub(crate) miss: f64,
    /// The same of the additive model.
    pub(crate) linear_miss: f64,
}

/// The part of a sample that models are compared on.
struct Bench<'a> {
    part: Part,
    sides: &'a [Coalition],
    data: &'a [f64],
    free: Vec<f64>,
}

impl<'a> Bench<'a> {
    fn new(part: Part, sample: &'a Sample) -> Self {
        let players = sample.sides[0].universe();
        let count = sample.sides.len().min(PAIRS_MAX.max(2 * players));
        let data = if part == Part::Odd { &sample.odd } else { &sample.even };
        let (sides, data) = (&sample.sides[..count], &data[..count]);
        Self { part, sides, data, free: ridge::free_part(part, sides) }
    }

    fn gram(&self, kernel: &Kernel) -> Option<Gram> {
        kernel.gram(self.part, self.sides)
    }

    fn trial(&self, gram: &Gram, noise: f64) -> Option<Trial> {
        ridge::try_out(Some(gram), noise, &self.free, self.data)
    }

    /// The noise level with the smallest leave-one-out error.
    fn best(&self, gram: &Gram, noises: &[f64]) -> Option<(f64, Trial)> {
        let trials = noises.iter().filter_map(|&noise| Some((noise, self.trial(gram, noise)?)));
        trials.min_by(|a, b| a.1.miss.total_cmp(&b.1.miss))
    }

    /// The shape with the smallest leave-one-out error at the noise level [`NOISE`].
    fn best_shape(
        &self,
        name: &'static str,
        shapes: &[(f64, f64)],
        scales: impl Fn(f64, f64) -> Vec<Vec<f64>>,
    ) -> Option<(Model, Gram)> {
        let tried = shapes.iter().filter_map(|&(power, largest)| {
            let kernel = Kernel::Products(Products::new(scales(power, largest)));
            let gram = self.gram(&kernel)?;
            let miss = self.trial(&gram, NOISE)?.miss;
            Some((Model { name, kernel, noise: NOISE, miss, linear_miss: f64::INFINITY }, gram))
        });
        tried.min_by(|a, b| a.0.miss.total_cmp(&b.0.miss))
    }
}

/// The model with the smallest leave-one-out error; `None` if the additive model is as good, or if
/// there are too few pairs for interactions of three players.
pub(crate) fn choose(sample: &Sample) -> Option<Model> {
    let bench = Bench::new(Part::Odd, sample);
    let players = sample.sides[0].universe();
    let alike = bench.gram(&Kernel::Alike)?;
    if bench.sides.len() < players + SPARE_MIN {
        let trial = bench.trial(&alike, NOISE)?;
        return Some(alike_model(NOISE, trial.miss));
    }
    let linear = ridge::try_out(None, 1.0, &bench.free, bench.data)?;
    let exactly =
        if bench.sides.len() > unknowns(players) { &NOISES_ALIKE } else { &NOISES_ALIKE[1..] };
    let (noise, first) = bench.best(&alike, exactly)?;
    let values = values_of(&bench, &alike, &first);
    let mut models = vec![(alike_model(noise, first.miss), alike)];
    models.extend(bench.best_shape(
        "scales from player values",
        &VALUE_SHAPES,
        |power, largest| {
            let top = largest_of(&values);
            vec![values.iter().map(|value| scale(value.abs() / top, power, largest)).collect()]
        },
    ));
    if let Some(twos) = interactions_of_two(sample) {
        let scales = |power, largest| partner_scales(&twos, players, power, largest);
        models.extend(bench.best_shape(
            "scales from interaction partners",
            &PARTNER_SHAPES,
            scales,
        ));
    }
    let (mut best, gram) = models.into_iter().min_by(|a, b| a.0.miss.total_cmp(&b.0.miss))?;
    if matches!(best.kernel, Kernel::Products(_))
        && let Some((noise, trial)) = bench.best(&gram, &NOISES_BEST)
        && trial.miss < best.miss
    {
        (best.noise, best.miss) = (noise, trial.miss);
    }
    best.linear_miss = linear.miss;
    (best.miss < linear.miss).then_some(best)
}

/// Number of interactions of one and of three players: with more pairs than that, the fit is exact
/// on a game without other interactions.
fn unknowns(players: usize) -> usize {
    players + players * (players - 1) * players.saturating_sub(2) / 6
}

fn alike_model(noise: f64, miss: f64) -> Model {
    let (name, linear_miss) = ("uniform interactions of three players", f64::INFINITY);
    Model { name, kernel: Kernel::Alike, noise, miss, linear_miss }
}

fn values_of(bench: &Bench<'_>, gram: &Gram, trial: &Trial) -> Vec<f64> {
    let mut values = ridge::free_values(bench.sides, &trial.alpha);
    let rows = Kernel::Alike.read_out(bench.sides, gram.scale);
    for (alpha, row) in trial.alpha.iter().zip(rows.chunks_exact(values.len())) {
        crate::regression::weighted::add_scaled(&mut values, *alpha, row);
    }
    values
}

/// The strength of each pairwise interaction, by rows with zeros on the diagonal, from the even
/// part: first with a uniform prior, then again with the first estimate as the prior. `None` for
/// too many players.
fn interactions_of_two(sample: &Sample) -> Option<Vec<f64>> {
    let bench = Bench::new(Part::Even, sample);
    let players = bench.sides[0].universe();
    if players > PARTNERS_MAX {
        return None;
    }
    let gram = bench.gram(&Kernel::Alike)?;
    let (_, trial) = bench.best(&gram, &NOISES_TWOS)?;
    let first = twos_of(&bench, &trial, &vec![1.0; players * players]);
    let again = SECOND_SHAPES.iter().filter_map(|&(power, largest)| {
        let products = Products::new(partner_scales(&first, players, power, largest));
        let expected = products.twos(players);
        let gram = bench.gram(&Kernel::Products(products))?;
        Some((expected, bench.trial(&gram, NOISE)?))
    });
    let (expected, trial) = again.min_by(|a, b| a.1.miss.total_cmp(&b.1.miss))?;
    Some(twos_of(&bench, &trial, &expected))
}

/// `expected_ij·Σ_k α_k·z_ki·z_kj`, up to a common factor.
fn twos_of(bench: &Bench<'_>, trial: &Trial, expected: &[f64]) -> Vec<f64> {
    let players = bench.sides[0].universe();
    let mut twos = vec![0.0; players * players];
    let mut signs = vec![0.0; players];
    for (side, alpha) in bench.sides.iter().zip(&trial.alpha) {
        for (player, sign) in signs.iter_mut().enumerate() {
            *sign = super::kernel::side_of(side, player);
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
    let top = largest_of(twos);
    let term = |(player, row): (usize, &[f64])| {
        let own = largest_of(row);
        let strength = |other: usize| if other == player { own } else { row[other].abs() };
        (0..players).map(|other| scale(strength(other) / top, power, largest)).collect()
    };
    twos.chunks_exact(players).enumerate().map(term).collect()
}

fn largest_of(numbers: &[f64]) -> f64 {
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
