//! Permutation sampling.

use super::endpoints::{EndpointValues, all_coalitions, shapley_size_weights};
use super::independent_samples::{Sampler, run};
use super::{passes_default, permutation_walk};
use crate::meter::EvaluationMeter;
use crate::{Coalition, Estimate, Estimator, Game, SeededRng, ValuationError};

/// Permutation sampling, or ApproShapley (J. Castro, D. Gómez and J. Tejada, "Polynomial
/// calculation of the Shapley value based on sampling", 2009): each player's marginal contribution,
/// averaged over random permutations.
///
/// Unbiased, and efficient for any budget: each permutation divides all of `v(N) − v(∅)`. One
/// permutation costs at most n − 1 evaluations. The error is that of a mean of independent
/// permutations. At least n + 1 passes (one permutation); by default 100·n + 2, a hundred
/// permutations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Permutation;

/// Fewest passes that value every player once along a permutation.
pub(super) fn one_permutation(players: usize) -> u64 {
    (players as u64).saturating_add(1).min(all_coalitions(players))
}

impl<G: Game + ?Sized> Estimator<G> for Permutation {
    fn name(&self) -> &'static str {
        Permutations::NAME
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
        run(Permutations, game, meter)
    }
}

struct Permutations;

impl Sampler for Permutations {
    type Sample = Vec<usize>;
    const NAME: &'static str = "permutation";
    const SAMPLE_UNIT: &'static str = "permutations";
    const STREAM: u64 = 0x7065_726d;

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
        permutation_walk::by_player(order, &permutation_walk::marginals(worths, ends))
    }

    fn size_weights(&self, players: usize) -> Vec<f64> {
        shapley_size_weights(players)
    }
}
