//! Beta Shapley: semivalues that weight marginal contributions by coalition size.

use super::endpoints::EndpointValues;
use super::independent_samples::{Sampler, run};
use super::permutation::one_permutation;
use super::{passes_default, permutation_walk};
use crate::meter::EvaluationMeter;
use crate::{Coalition, Estimate, Estimator, Game, SeededRng, ValuationError};

/// Bounds of both parameters.
const PARAMETER_MIN: f64 = 0.01;
const PARAMETER_MAX: f64 = 1_000.0;

/// Threshold above which all weights are rescaled, to prevent overflow.
const SCALE: f64 = 1e200;

/// Beta Shapley (Y. Kwon and J. Zou, "Beta Shapley: a Unified and Noise-reduced Data Valuation
/// Framework for Machine Learning", 2022): each player's marginal contribution, weighted by the
/// number of its predecessors. The weight at position j of n is `n·C(n−1, j−1)·B(j+β−1, n−j+α) /
/// B(α, β)`.
///
/// α = β = 1 is the Shapley value; a larger α favours small coalitions, a larger β large ones. Not
/// efficient unless α = β = 1: the gap is the undivided rest. Sampled along random permutations,
/// each marginal contribution times its weight; the error is that of a mean of independent
/// permutations. Unbiased. At least n + 1 passes (one permutation); by default 100·n + 2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BetaShapley {
    alpha: f64,
    beta: f64,
}

impl BetaShapley {
    /// The semivalue of (`alpha`, `beta`).
    ///
    /// # Errors
    /// [`ValuationError::SettingOutOfRange`] unless both are from 0.01 to 1000.
    pub fn new(alpha: f64, beta: f64) -> Result<Self, ValuationError> {
        for (key, value) in [("alpha", alpha), ("beta", beta)] {
            if !(PARAMETER_MIN..=PARAMETER_MAX).contains(&value) {
                let (estimator, bounds) = (WeightedPermutations::NAME, "from 0.01 to 1000");
                return Err(ValuationError::SettingOutOfRange { estimator, key, value, bounds });
            }
        }
        Ok(Self { alpha, beta })
    }

    /// The probability of each number of predecessors: the weights divided by n, computed by their
    /// successive ratios, so that no gamma function is needed.
    fn shares(&self, players: usize) -> Vec<f64> {
        let n = players as f64;
        let mut weights = Vec::with_capacity(players);
        let mut weight = 1.0;
        for before in 0..players {
            weights.push(weight);
            let j = before as f64 + 1.0;
            weight *= (n - j) / j * ((j + self.beta - 1.0) / (n - j - 1.0 + self.alpha));
            if weight > SCALE {
                weight /= SCALE;
                weights.iter_mut().for_each(|earlier| *earlier /= SCALE);
            }
        }
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    }
}

impl<G: Game + ?Sized> Estimator<G> for BetaShapley {
    fn name(&self) -> &'static str {
        WeightedPermutations::NAME
    }

    fn version(&self) -> u32 {
        1
    }

    fn passes_min(&self, players: usize) -> u64 {
        one_permutation(players)
    }

    fn passes_default(&self, players: usize) -> Option<u64> {
        Some(passes_default(players, one_permutation(players)))
    }

    fn estimate(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Estimate, ValuationError> {
        run(WeightedPermutations { shares: self.shares(game.players()) }, game, meter)
    }
}

struct WeightedPermutations {
    shares: Vec<f64>,
}

impl Sampler for WeightedPermutations {
    type Sample = Vec<usize>;
    const NAME: &'static str = "beta-shapley";
    const SAMPLE_UNIT: &'static str = "weighted permutations";
    const STREAM: u64 = 0x6265_7461;

    fn draw(&mut self, players: usize, draw: &mut SeededRng) -> Vec<usize> {
        draw.permutation(players)
    }

    fn coalitions(&self, order: &Vec<usize>) -> Vec<Coalition> {
        permutation_walk::prefixes(order)
    }

    fn player_estimates(
        &self,
        order: &Vec<usize>,
        worths: &[f64],
        ends: &EndpointValues,
    ) -> Vec<f64> {
        let mut marginals = permutation_walk::marginals(worths, ends);
        let n = ends.players as f64;
        marginals.iter_mut().zip(&self.shares).for_each(|(marginal, share)| *marginal *= n * share);
        permutation_walk::by_player(order, &marginals)
    }

    fn size_weights(&self, _players: usize) -> Vec<f64> {
        self.shares.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beta_weights_match_hand_computed_values() {
        // n = 3, α = 2, β = 1: C(2, j−1)·B(j, 5−j) is 1/4, 1/6, 1/12, and B(2, 1) = 1/2.
        let shares = BetaShapley::new(2.0, 1.0).unwrap().shares(3);
        for (share, wanted) in shares.iter().zip([1.0 / 2.0, 1.0 / 3.0, 1.0 / 6.0]) {
            assert!((share - wanted).abs() < 1e-15, "{shares:?}");
        }
        let even = BetaShapley::new(1.0, 1.0).unwrap().shares(300);
        assert!(even.iter().all(|share| (share - 1.0 / 300.0).abs() < 1e-15));
    }

    #[test]
    fn beta_weights_stay_finite_at_the_parameter_bounds() {
        for (alpha, beta) in [(0.01, 1_000.0), (1_000.0, 0.01), (0.01, 0.01), (1_000.0, 1_000.0)] {
            let shares = BetaShapley::new(alpha, beta).unwrap().shares(1_000);
            assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{alpha} {beta}");
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        }
    }
}
