//! Complementary contributions: coalitions against their complements, stratified by size.

use super::endpoints::{EndpointValues, all_coalitions};
use super::passes_default;
use super::strata::{Strata, neyman_allocation};
use super::stratified_rounds::{PILOT, StratifiedSampler, round_length, run};
use crate::meter::EvaluationMeter;
use crate::{Coalition, Estimate, Estimator, Game, SeededRng, ValuationError};

const NAME: &str = "complementary-contributions";
const STREAM: u64 = 0x6363_2d73;

/// Complementary contributions, or CC-Shapley (J. Zhang, Q. Sun, J. Liu, L. Xiong, J. Pei and K.
/// Ren, "Efficient Sampling Approaches to Shapley Value Approximation", SIGMOD 2023): with `u(S) =
/// v(S) − v(N∖S)`, `φ_i = 1/n Σ_j E[u(S) : |S| = j, i ∈ S]`, so that each pair of evaluations is a
/// sample for every player: u(S) for a player in S, and −u(S) at the size n − |S| for all others.
///
/// A pilot covers every size twice, each time splitting a random permutation of the players into
/// coalitions of that size, so that every player is in one. After it the pairs are drawn freely,
/// with sizes in proportion to their standard deviations (Neyman allocation), which are updated as
/// the samples grow. The standard deviation of a size is predicted from the other sizes, because a
/// size that used its own would bias its own mean (measured on a voting game: by more than its
/// error, for any budget). The pairs of one player and the rest are few and are all evaluated; like
/// the grand pair they are exact.
///
/// Not efficient: the gap is noise. The error is `√(Σ_j variance/count)/n`; a variance with few
/// samples is shrunk towards that of its size, and the correlation within a pilot's permutation is
/// ignored. At least `2 + 2·Σ_j ⌈n/j⌉` passes over sizes to n/2 (every size once, no error yet); by
/// default 100·n + 2, or four times the minimum if that is more. Memory grows with n².
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ComplementaryContributions;

/// Number of pairs that cover all players with coalitions of `size`. At the middle size, the two
/// halves are one pair.
fn covering_pairs(players: usize, size: usize) -> usize {
    if 2 * size == players { 1 } else { players.div_ceil(size) }
}

fn passes_min(players: usize) -> u64 {
    let pairs: usize = (1..=players / 2).map(|size| covering_pairs(players, size)).sum();
    (2 * pairs as u64 + 2).min(all_coalitions(players))
}

impl<G: Game + ?Sized> Estimator<G> for ComplementaryContributions {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> u32 {
        1
    }

    fn passes_min(&self, players: usize) -> u64 {
        passes_min(players)
    }

    fn passes_default(&self, players: usize) -> Option<u64> {
        Some(passes_default(players, passes_min(players).saturating_mul(4)))
    }

    fn estimate(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Estimate, ValuationError> {
        run::<G, ComplementarySampler>(game, meter)
    }
}

struct ComplementarySampler {
    players: usize,
    /// By player and size of the player's coalition; size j is column j − 1.
    strata: Strata,
    /// Pairs evaluated, by the size of their smaller side.
    counts: Vec<u64>,
    draw: SeededRng,
}

impl StratifiedSampler for ComplementarySampler {
    type Item = Coalition;
    const UNITS: &'static str = "complementary pairs";

    /// Evaluates the grand pair, and all pairs of one player and the rest.
    fn new<G: Game + ?Sized>(
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
        ends: &EndpointValues,
    ) -> Result<Self, ValuationError> {
        let players = ends.players;
        let mut sampling = Self {
            players,
            strata: Strata::new(players),
            counts: vec![0; players / 2 + 1],
            draw: SeededRng::new(meter.seed(), STREAM),
        };
        sampling.add_difference(&Coalition::full(players), ends.total());
        if players > 1 {
            let mut asked: Vec<Coalition> = Vec::with_capacity(2 * players);
            for player in 0..players {
                let alone = Coalition::empty(players).with(player);
                asked.extend([alone.clone(), alone.complement()]);
            }
            let worths = meter.values(game, &asked)?;
            for (pair, worths) in asked.chunks(2).zip(worths.chunks(2)) {
                sampling.add_difference(&pair[0], worths[0] - worths[1]);
            }
        }
        Ok(sampling)
    }

    fn next_round(&mut self, number: u64) -> Vec<Coalition> {
        let mut round = Vec::new();
        match (number < PILOT, self.allocation_weights()) {
            (false, Some(spreads)) => {
                let counts: Vec<u64> = self.sizes().map(|size| self.counts[size]).collect();
                let often = neyman_allocation(&spreads, &counts, round_length(&counts));
                for (size, often) in self.sizes().zip(often) {
                    round.extend((0..often).map(|_| self.draw.coalition(self.players, size)));
                }
            }
            _ => self.sizes().for_each(|size| self.split_permutation(size, &mut round)),
        }
        self.draw.shuffle(&mut round);
        round
    }

    fn pair(&mut self, coalition: &Coalition) -> [Coalition; 2] {
        [coalition.clone(), coalition.complement()]
    }

    fn add_difference(&mut self, coalition: &Coalition, difference: f64) {
        self.counts[coalition.len()] += 1;
        self.add_difference(coalition, difference);
    }

    fn strata(&self) -> &Strata {
        &self.strata
    }

    /// All columns except those of the sizes 1, n − 1 and n.
    fn sampled(&self) -> Vec<usize> {
        (1..self.players.saturating_sub(2)).collect()
    }
}

impl ComplementarySampler {
    /// Adds the difference of a pair to the strata of all players.
    fn add_difference(&mut self, coalition: &Coalition, difference: f64) {
        let size = coalition.len();
        for player in 0..self.players {
            if coalition.contains(player) {
                self.strata.add(player, size - 1, difference);
            } else {
                self.strata.add(player, self.players - size - 1, -difference);
            }
        }
    }

    /// The sampled sizes of smaller sides.
    fn sizes(&self) -> std::ops::RangeInclusive<usize> {
        2..=self.players / 2
    }

    /// Splits a random permutation of the players into coalitions of `size`; the last one wraps
    /// around to the beginning.
    fn split_permutation(&mut self, size: usize, into: &mut Vec<Coalition>) {
        let order = self.draw.permutation(self.players);
        for block in 0..covering_pairs(self.players, size) {
            let mut coalition = Coalition::empty(self.players);
            for place in block * size..(block + 1) * size {
                coalition.insert(order[place % self.players]);
            }
            into.push(coalition);
        }
    }

    /// The benefit of one more pair of each size, up to a common factor: the standard deviation of
    /// a difference of that size, times its effect on the means of all players' two strata, where a
    /// player is in the smaller side of j players with probability j/n. The variance is predicted
    /// from the other sizes, with the largest weight on the adjacent ones, and never from the size
    /// itself: a size whose first pairs happen to agree would be abandoned early, and a size with a
    /// rare large difference would be oversampled.
    fn allocation_weights(&self) -> Option<Vec<f64>> {
        let n = self.players as f64;
        let mean = |size: usize| {
            let (small, large) = (
                self.strata.shrunk_variances(size - 1)?,
                self.strata.shrunk_variances(self.players - size - 1)?,
            );
            Some(small.iter().chain(&large).sum::<f64>() / (2.0 * n))
        };
        let means: Option<Vec<f64>> = self.sizes().map(mean).collect();
        let means = means?;
        let sum: f64 = means.iter().sum();
        let spread = |(at, size): (usize, usize)| {
            let neighbours = [at.checked_sub(1), Some(at + 1)].into_iter().flatten();
            let near: Vec<f64> = neighbours.filter_map(|at| means.get(at).copied()).collect();
            let others = (sum - means[at]).max(0.0) / (means.len() - 1).max(1) as f64;
            let foreseen = (near.iter().sum::<f64>() + others) / (near.len() + 1) as f64;
            let (small, large) = (size as f64, n - size as f64);
            let reach = if small == large { 1.0 } else { n / small + n / large };
            (foreseen * reach).sqrt()
        };
        Some(self.sizes().enumerate().map(|(at, size)| spread((at, size))).collect())
    }
}
