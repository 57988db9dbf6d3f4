//! The weighted least-squares fit of an additive game to complementary pairs, with the efficiency
//! constraint and with standard errors from the pairs.

use crate::Coalition;
use crate::complementary_pairs::PairSampler;
use crate::linear::{Cholesky, dot};

/// A pair that alone determines a direction of the fit has no residual to estimate its error from;
/// leverages this close to 1 count as such.
const LEVERAGE_SLACK: f64 = 1e-9;

/// The observations of a game: pairs drawn by `pairs`, in the order of drawing.
pub(crate) struct ObservedPairs<'a> {
    /// `v(N) − v(∅)`.
    pub(crate) total: f64,
    /// One side of each pair, as returned by [`PairSampler`].
    pub(crate) sides: &'a [Coalition],
    /// `(v(S) − v(Sᶜ))/2` of each pair.
    pub(crate) half_differences: &'a [f64],
    /// The sampler of the pairs, which provides their inclusion probabilities.
    pub(crate) pairs: &'a PairSampler,
}

impl ObservedPairs<'_> {
    /// Number of players of the game.
    pub(crate) fn players(&self) -> usize {
        self.sides.first().map_or(1, Coalition::universe)
    }

    /// The weight of each pair, such that the sum over the observed pairs estimates the Shapley
    /// kernel's sum over all pairs; scaled to a mean of 1.
    pub(crate) fn weights(&self) -> Vec<f64> {
        let raw = self.sides.iter().map(|side| self.pairs.kernel_weight(side.len()));
        let mut weights: Vec<f64> = raw.collect();
        let scale = weights.len() as f64 / weights.iter().sum::<f64>();
        weights.iter_mut().for_each(|weight| *weight *= scale);
        weights
    }

    /// The finite population correction of each pair: the share of pairs of its size that were not
    /// observed. The sampling error of the fit is proportional to its root; it is zero if all pairs
    /// of a size are observed.
    pub(crate) fn finite_population_corrections(&self) -> Vec<f64> {
        let of = |side: &Coalition| (1.0 - self.pairs.inclusion(side.len())).max(0.0);
        self.sides.iter().map(of).collect()
    }

    /// The pairs as rows of signs: +1 for players on the side, −1 for the others.
    pub(crate) fn signs(&self) -> Vec<f64> {
        let mut signs = Vec::with_capacity(self.sides.len() * self.players());
        for side in self.sides {
            let sign = |player| if side.contains(player) { 1.0 } else { -1.0 };
            signs.extend((0..self.players()).map(sign));
        }
        signs
    }

    /// Whether all pairs are observed.
    pub(crate) fn is_complete(&self) -> bool {
        self.sides.len() as u64 == self.pairs.total_pairs()
    }
}

/// Values with their standard errors.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fit {
    /// One value per player; they sum to the total.
    pub(crate) values: Vec<f64>,
    /// One standard error per player; `None` if there are no more pairs than unknowns, or if a
    /// single pair determines a direction of the fit.
    pub(crate) errors: Option<Vec<f64>>,
}

/// Minimises `Σ_k w_k·(2·d_k − Σ_i z_ki·φ_i)²` with `Σ_i φ_i = total`: the fit of LeverageSHAP and
/// of paired KernelSHAP, and exactly the Shapley value once every pair is observed.
///
/// Errors are those of a closed-form jackknife over the pairs: leaving pair k out changes the
/// values by `A⁻¹·z_k·w_k·e_k/(1 − h_k)`, with its residual e and its leverage h. The squares add
/// up, each times its finite population correction. `None` if the pairs do not determine the fit; n
/// − 1 pairs along a permutation do.
pub(crate) fn linear_fit(observed: &ObservedPairs<'_>) -> Option<Fit> {
    let players = observed.players();
    if players == 1 {
        return Some(Fit { values: vec![observed.total], errors: Some(vec![0.0]) });
    }
    let even = observed.total / players as f64;
    let (weights, signs) = (observed.weights(), observed.signs());
    let rows = || signs.chunks_exact(players).zip(observed.half_differences).zip(&weights);

    let mut a = vec![0.0; players * players];
    let mut b = vec![0.0; players];
    for ((row, half), weight) in rows() {
        let wanted = 2.0 * half - even * row.iter().sum::<f64>();
        add_scaled(&mut b, weight * wanted, row);
        for (sign, sums) in row.iter().zip(a.chunks_exact_mut(players)) {
            add_scaled(sums, weight * sign, row);
        }
    }
    centre_rows_and_columns(&mut a, players);
    let factor = Cholesky::factor(a, players)?;
    centre(&mut b);
    let mut deviations = factor.solve(&b);
    centre(&mut deviations);
    let values: Vec<f64> = deviations.iter().map(|apart| even + apart).collect();

    let mut variances = vec![0.0; players];
    let mut errors_determined = observed.sides.len() >= players || observed.is_complete();
    for (((row, half), weight), unseen) in rows().zip(observed.finite_population_corrections()) {
        if unseen == 0.0 {
            continue;
        }
        let residual = 2.0 * half - dot(row, &values);
        let mut from_even = row.to_vec();
        centre(&mut from_even);
        let moved = factor.solve(&from_even);
        let free = 1.0 - weight * dot(&from_even, &moved);
        errors_determined &= free > LEVERAGE_SLACK;
        let pull = weight * residual / free;
        for (variance, moved) in variances.iter_mut().zip(&moved) {
            *variance += unseen * (pull * moved) * (pull * moved);
        }
    }
    let errors = errors_determined.then(|| variances.into_iter().map(f64::sqrt).collect());
    Some(Fit { values, errors })
}

/// `sums += factor·row`.
pub(crate) fn add_scaled(sums: &mut [f64], factor: f64, row: &[f64]) {
    for (sum, x) in sums.iter_mut().zip(row) {
        *sum += factor * x;
    }
}

/// Subtracts the mean.
pub(crate) fn centre(of: &mut [f64]) {
    let mean = crate::statistics::mean(of);
    of.iter_mut().for_each(|x| *x -= mean);
}

/// `P·A·P + c·(1 − P)`, where P subtracts means: A on the differences between values, and a number
/// of its magnitude on their common level, which the constraint determines.
fn centre_rows_and_columns(a: &mut [f64], n: usize) {
    let level = (0..n).map(|i| a[i * n + i]).sum::<f64>() / n as f64;
    let means: Vec<f64> = a.chunks_exact(n).map(crate::statistics::mean).collect();
    let overall = crate::statistics::mean(&means);
    for (row, mean) in a.chunks_exact_mut(n).zip(&means) {
        for (x, other) in row.iter_mut().zip(&means) {
            *x += overall - mean - other + level / n as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regression::reference_fit::{self, RandomPairs, assert_close};

    #[test]
    fn linear_fit_and_errors_match_explicit_leave_one_out_fits() {
        for (players, count, seed) in [(3, 3, 1), (5, 9, 2), (6, 14, 3), (9, 40, 4)] {
            let sample = RandomPairs::new(players, count, seed);
            let fit = linear_fit(&sample.observed()).unwrap();
            let plain = reference_fit::fit(&sample.observed(), &[1], 0.0);
            assert_close(&fit.values, &plain.values, 1e-10);
            assert_close(&fit.errors.unwrap(), &plain.errors.unwrap(), 1e-10);
        }
    }

    #[test]
    fn fewer_pairs_than_a_permutation_do_not_determine_the_fit() {
        let sample = RandomPairs::new(8, 5, 1);
        assert_eq!(linear_fit(&sample.observed()), None);
        let sample = RandomPairs::new(8, 7, 1);
        assert_eq!(linear_fit(&sample.observed()).unwrap().errors, None);
    }
}
