//! Antithetic permutation sampling with the sampling error of the game's rows.

use crate::meter::EvaluationMeter;
use crate::statistics::{mean, standard_error};
use crate::{Coalition, Estimate, Estimator, Game, SeededRng, ValuationError};

/// Stream of the permutations within the run's seed.
const STREAM: u64 = 0x726f_7770;

/// Permutation sampling by antithetic pairs (R. Mitchell, J. Cooper, E. Frank and G. Holmes,
/// "Sampling Permutations for Shapley Value Estimation", 2022) with the value on each row: the
/// scores have the sampling error of the rows and, separately, that of the permutations.
///
/// Each random permutation is walked together with its reverse, so that interactions of two players
/// cancel. Unbiased, and efficient: the values sum to `v(N) − v(∅)`. One pair costs at most
/// 2·(n − 1) evaluations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowPermutations {
    /// Number of pairs of permutations, at least 2.
    pub(crate) pairs: usize,
}

impl<G: Game + ?Sized> Estimator<G> for RowPermutations {
    fn name(&self) -> &'static str {
        "row-permutations"
    }

    fn version(&self) -> u32 {
        1
    }

    fn passes_min(&self, players: usize) -> u64 {
        2 + 2 * self.pairs as u64 * (players as u64).saturating_sub(1)
    }

    fn estimate(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Estimate, ValuationError> {
        let players = game.players();
        let empty = meter.value_rows(game, &Coalition::empty(players))?;
        let grand = meter.value_rows(game, &Coalition::full(players))?;
        let mut draw = SeededRng::new(meter.seed(), STREAM);
        let mut sums = vec![vec![0.0; empty.len()]; players];
        // The mean of each pair's marginal contributions, by player.
        let mut of_pairs = vec![Vec::with_capacity(self.pairs); players];
        for _ in 0..self.pairs {
            let order = draw.permutation(players);
            let reverse: Vec<usize> = order.iter().rev().copied().collect();
            let mut of_pair = vec![0.0; players];
            for order in [&order, &reverse] {
                let mut before = empty.clone();
                let mut found = meter.value_rows_of(game, &prefixes(players, order))?.into_iter();
                for &player in order {
                    let after = found.next().unwrap_or_else(|| grand.clone());
                    let marginals = after.iter().zip(&before).map(|(after, before)| after - before);
                    let marginals: Vec<f64> = marginals.collect();
                    of_pair[player] += 0.5 * mean(&marginals);
                    sums[player].iter_mut().zip(marginals).for_each(|(sum, more)| *sum += more);
                    before = after;
                }
            }
            of_pairs.iter_mut().zip(of_pair).for_each(|(of_pairs, value)| of_pairs.push(value));
        }
        let walks = 2.0 * self.pairs as f64;
        sums.iter_mut().flatten().for_each(|sum| *sum /= walks);
        Ok(Estimate {
            values: sums.iter().map(|rows| mean(rows)).collect(),
            standard_errors: sums.iter().map(|rows| standard_error(rows)).collect(),
            estimator_errors: of_pairs.iter().map(|pairs| standard_error(pairs)).collect(),
            total: mean(&grand) - mean(&empty),
            ..Estimate::default()
        })
    }
}

/// The coalitions of the first players of an order: of one, of two, and so on, without that of all.
fn prefixes(players: usize, order: &[usize]) -> Vec<Coalition> {
    let mut coalition = Coalition::empty(players);
    let (_, first) = order.split_last().unwrap_or((&0, &[]));
    let with = |&player: &usize| {
        coalition.insert(player);
        coalition.clone()
    };
    first.iter().map(with).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Exact, RunOptions, value};

    /// Four rows; on each, players add up, and pairs and triples interact.
    struct Interactions;

    impl Game for Interactions {
        fn players(&self) -> usize {
            5
        }

        fn value(&mut self, coalition: &Coalition) -> Result<f64, crate::GameError> {
            Ok(mean(&self.value_rows(coalition)?))
        }

        fn value_rows(&mut self, coalition: &Coalition) -> Result<Vec<f64>, crate::GameError> {
            let players: Vec<f64> = coalition.players().map(|player| player as f64 + 1.0).collect();
            let sum: f64 = players.iter().sum();
            Ok((0..4).map(|row| sum + sum * sum * f64::from(row) + sum.powi(3) / 50.0).collect())
        }
    }

    #[test]
    fn values_agree_with_enumeration_within_the_estimator_error() {
        let ids: Vec<usize> = (0..5).collect();
        let exact = value(&Exact, &mut Interactions, &ids, RunOptions::seeded(0)).unwrap();
        let estimator = RowPermutations { pairs: 32 };
        for seed in 0..20 {
            let run = RunOptions::seeded(seed);
            let sampled = value(&estimator, &mut Interactions, &ids, run).unwrap();
            assert!(sampled.gap.abs() < 1e-9, "seed {seed}: the scores are efficient");
            for (ours, right) in sampled.scores.iter().zip(&exact.scores) {
                let error = ours.estimator_error.unwrap();
                assert!(error > 0.0 && error < 0.05 * right.value, "seed {seed}: {error}");
                assert!((ours.value - right.value).abs() < 5.0 * error, "seed {seed}");
                let (rows, of_rows) = (ours.standard_error.unwrap(), right.standard_error.unwrap());
                assert!((rows / of_rows - 1.0).abs() < 0.05, "seed {seed}: {rows} {of_rows}");
            }
        }
    }
}
