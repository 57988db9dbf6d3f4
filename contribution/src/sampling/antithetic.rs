//! Antithetic permutation sampling: random permutations, each with its reverse.

use super::endpoints::{EndpointValues, all_coalitions, shapley_size_weights};
use super::independent_samples::{Sampler, run};
use super::{passes_default, permutation_walk};
use crate::meter::EvaluationMeter;
use crate::{Coalition, Estimate, Estimator, Game, SeededRng, ValuationError};

/// Permutation sampling by antithetic pairs: every random order together with its reverse
/// (R. Mitchell, J. Cooper, E. Frank and G. Holmes, "Sampling Permutations for Shapley Value
/// Estimation", 2022; the pairing goes back to J. M. Hammersley and K. W. Morton, 1956).
///
/// A player that is early in one permutation is late in its reverse, so that all interactions of
/// two players cancel: on a quadratic game (single players and pairs) the first pair of
/// permutations is already exact. Unbiased and efficient on any game. One pair costs at most
/// 2·(n − 1) evaluations. The error is computed over the pairs, which are independent, not over the
/// permutations, which are not. At least 2·n passes (one pair); by default 100·n + 2, fifty pairs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AntitheticPermutation;

fn one_pair(players: usize) -> u64 {
    (players as u64).saturating_mul(2).min(all_coalitions(players))
}

impl<G: Game + ?Sized> Estimator<G> for AntitheticPermutation {
    fn name(&self) -> &'static str {
        PermutationPairs::NAME
    }

    fn version(&self) -> u32 {
        1
    }

    fn passes_min(&self, players: usize) -> u64 {
        one_pair(players)
    }

    fn passes_default(&self, players: usize) -> Option<u64> {
        Some(passes_default(players, one_pair(players)))
    }

    fn estimate(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Estimate, ValuationError> {
        run(PermutationPairs, game, meter)
    }
}

struct PermutationPairs;

impl Sampler for PermutationPairs {
    type Sample = Vec<usize>;
    const NAME: &'static str = "antithetic-permutation";
    const SAMPLE_UNIT: &'static str = "pairs of permutations";
    const STREAM: u64 = 0x616e_7469;

    fn draw(&mut self, players: usize, draw: &mut SeededRng) -> Vec<usize> {
        draw.permutation(players)
    }

    /// The prefixes of the permutation, followed by those of its reverse.
    fn coalitions(&self, order: &Vec<usize>) -> Vec<Coalition> {
        let mut passed = permutation_walk::prefixes(order);
        passed.extend(permutation_walk::prefixes(&reversed(order)));
        passed
    }

    fn player_estimates(
        &self,
        order: &Vec<usize>,
        worths: &[f64],
        ends: &EndpointValues,
    ) -> Vec<f64> {
        let (there, back) = worths.split_at(worths.len() / 2);
        let there = permutation_walk::by_player(order, &permutation_walk::marginals(there, ends));
        let back =
            permutation_walk::by_player(&reversed(order), &permutation_walk::marginals(back, ends));
        there.iter().zip(&back).map(|(there, back)| 0.5 * (there + back)).collect()
    }

    fn size_weights(&self, players: usize) -> Vec<f64> {
        shapley_size_weights(players)
    }
}

fn reversed(order: &[usize]) -> Vec<usize> {
    order.iter().rev().copied().collect()
}
