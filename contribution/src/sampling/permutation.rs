//! Permutation sampling.

use super::ends::{Ends, all_coalitions, shapley_shares};
use super::samples::{Sampler, carry_out};
use super::{passes_default, walk};
use crate::meter::Meter;
use crate::{Coalition, Draw, Estimate, Estimator, Game, ValuationError};

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
pub(super) fn one_walk(players: usize) -> u64 {
    (players as u64).saturating_add(1).min(all_coalitions(players))
}

impl<G: Game + ?Sized> Estimator<G> for Permutation {
    fn name(&self) -> &'static str {
        Orders::NAME
    }

    fn version(&self) -> u32 {
        1
    }

    fn passes_min(&self, players: usize) -> u64 {
        one_walk(players)
    }

    fn passes_default(&self, players: usize) -> Option<u64> {
        Some(passes_default(players, one_walk(players)))
    }

    fn estimate(&self, game: &mut G, meter: &mut Meter<'_>) -> Result<Estimate, ValuationError> {
        carry_out(Orders, game, meter)
    }
}

struct Orders;

impl Sampler for Orders {
    type Sample = Vec<usize>;
    const NAME: &'static str = "permutation";
    const UNITS: &'static str = "permutations";
    const STREAM: u64 = 0x7065_726d;

    fn draw(&mut self, players: usize, draw: &mut Draw) -> Vec<usize> {
        draw.permutation(players)
    }

    fn coalitions(&self, order: &Vec<usize>) -> Vec<Coalition> {
        walk::prefixes(order)
    }

    fn read(&self, order: &Vec<usize>, worths: &[f64], ends: &Ends) -> Vec<f64> {
        walk::by_player(order, &walk::marginals(worths, ends))
    }

    fn shares(&self, players: usize) -> Vec<f64> {
        shapley_shares(players)
    }
}
