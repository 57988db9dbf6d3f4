//! Sampling of the multilinear extension: every player joins with the same probability.

use super::endpoints::{EndpointValues, all_coalitions, shapley_size_weights};
use super::independent_samples::{Sampler, run};
use super::passes_default;
use crate::meter::EvaluationMeter;
use crate::{Coalition, Estimate, Estimator, Game, SeededRng, ValuationError};

/// Number of strata of the probabilities from 0 to ½; all of them are sampled before one is
/// repeated.
const LEVELS: usize = 8;

/// Sampling of the multilinear extension (G. Owen, "Multilinear Extensions of Games", 1972; R.
/// Okhrati and A. Lipani, "A Multilinear Sampling Algorithm to Estimate Shapley Values", 2021):
/// `φ_i = ∫₀¹ E[v(S_q ∪ i) − v(S_q ∖ i)] dq`, where every player is in `S_q` with probability q.
///
/// Antithetic: `S_q` is evaluated together with its complement, which is an `S_{1−q}`, so that q is
/// drawn below ½ only, and quadratic games are exact from the first pair on. q is uniform within
/// eight strata in random order, instead of on a fixed grid, whose quadrature error would be a
/// bias. Unbiased; not efficient at a finite budget: the gap is noise. One pair costs at most
/// 2·(n + 1) evaluations. The error is computed over the pairs as if q were not stratified, which
/// overstates it slightly. At least 2·n + 4 passes (one pair); by default 100·n + 2.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owen;

fn one_pair(players: usize) -> u64 {
    (players as u64).saturating_mul(2).saturating_add(4).min(all_coalitions(players))
}

impl<G: Game + ?Sized> Estimator<G> for Owen {
    fn name(&self) -> &'static str {
        StratifiedProbabilities::NAME
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
        run(StratifiedProbabilities { left: Vec::new() }, game, meter)
    }
}

struct StratifiedProbabilities {
    /// The strata left in this round.
    left: Vec<usize>,
}

impl Sampler for StratifiedProbabilities {
    type Sample = Coalition;
    const NAME: &'static str = "owen";
    const SAMPLE_UNIT: &'static str = "pairs of coalitions with all their neighbours";
    const STREAM: u64 = 0x6f77_656e;

    fn draw(&mut self, players: usize, draw: &mut SeededRng) -> Coalition {
        if self.left.is_empty() {
            self.left = draw.permutation(LEVELS);
        }
        let level = self.left.pop().unwrap_or(0);
        let probability = 0.5 * (level as f64 + draw.uniform()) / LEVELS as f64;
        let mut coalition = Coalition::empty(players);
        for player in 0..players {
            if draw.uniform() < probability {
                coalition.insert(player);
            }
        }
        coalition
    }

    /// The coalition and its neighbours (one player added or removed), followed by the complements.
    fn coalitions(&self, coalition: &Coalition) -> Vec<Coalition> {
        let mut asked = with_neighbours(coalition);
        asked.extend(with_neighbours(&coalition.complement()));
        asked
    }

    fn player_estimates(
        &self,
        coalition: &Coalition,
        worths: &[f64],
        ends: &EndpointValues,
    ) -> Vec<f64> {
        let (own, complement) = worths.split_at(ends.players + 1);
        let effect = |worths: &[f64], player: usize, inside: bool| {
            if inside { worths[0] - worths[player + 1] } else { worths[player + 1] - worths[0] }
        };
        let value = |player| {
            let inside = coalition.contains(player);
            0.5 * (effect(own, player, inside) + effect(complement, player, !inside))
        };
        (0..ends.players).map(value).collect()
    }

    fn size_weights(&self, players: usize) -> Vec<f64> {
        shapley_size_weights(players)
    }
}

fn with_neighbours(coalition: &Coalition) -> Vec<Coalition> {
    let neighbour = |player| {
        if coalition.contains(player) { coalition.without(player) } else { coalition.with(player) }
    };
    std::iter::once(coalition.clone()).chain((0..coalition.universe()).map(neighbour)).collect()
}
