//! The Banzhaf value: the mean marginal contribution to a uniformly random coalition.

use super::endpoints::{EndpointValues, all_coalitions};
use super::independent_samples::{Sampler, Summary, run};
use super::moments::VectorMoments;
use super::passes_default;
use crate::meter::EvaluationMeter;
use crate::{Coalition, Estimate, Estimator, Game, SeededRng, ValuationError};

/// The Banzhaf value (J. F. Banzhaf, "Weighted Voting Doesn't Work", 1965) by maximum sample reuse
/// (J. T. Wang and R. Jia, "Data Banzhaf: A Robust Data Valuation Framework for Machine Learning",
/// 2023): `φ_i = mean of v(S) with i in S − mean of v(S) without i`, over uniformly random
/// coalitions, so that each evaluation is a sample for every player.
///
/// Each S is evaluated together with its complement. Then neither mean is ever empty; the even part
/// of the game, which affects no player's value, cancels; and the error is that of a mean over
/// independent pairs. Unbiased. Not efficient: the values do not sum to `v(N) − v(∅)`, and the gap
/// reports the difference, unless [`normalised`](Self::normalised). At least 4 passes (one pair);
/// by default 100·n + 2.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Banzhaf {
    normalised: bool,
}

impl Banzhaf {
    /// The values times the one factor that makes them sum to `v(N) − v(∅)`. A null player still
    /// has the value zero, but the values are no longer mean marginal contributions, and sampling
    /// noise of the sum changes all values together, which the errors include.
    ///
    /// If the raw values sum to zero or to the opposite sign of `v(N) − v(∅)`, there is no such
    /// factor, and the valuation fails with [`ValuationError::Singular`].
    pub fn normalised() -> Self {
        Self { normalised: true }
    }
}

fn one_pair(players: usize) -> u64 {
    all_coalitions(players).min(4)
}

impl<G: Game + ?Sized> Estimator<G> for Banzhaf {
    fn name(&self) -> &'static str {
        if self.normalised { Normalised::NAME } else { UniformPairs::NAME }
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
        if self.normalised { run(Normalised, game, meter) } else { run(UniformPairs, game, meter) }
    }
}

struct UniformPairs;

impl Sampler for UniformPairs {
    type Sample = Coalition;
    const NAME: &'static str = "banzhaf";
    const SAMPLE_UNIT: &'static str = "pairs of coalitions";
    const STREAM: u64 = 0x636f_696e;

    fn draw(&mut self, players: usize, draw: &mut SeededRng) -> Coalition {
        let mut coalition = Coalition::empty(players);
        for player in 0..players {
            if draw.below(2) == 1 {
                coalition.insert(player);
            }
        }
        coalition
    }

    fn coalitions(&self, coalition: &Coalition) -> Vec<Coalition> {
        vec![coalition.clone(), coalition.complement()]
    }

    fn player_estimates(
        &self,
        coalition: &Coalition,
        worths: &[f64],
        ends: &EndpointValues,
    ) -> Vec<f64> {
        let more = worths[0] - worths[1];
        let value = |player| if coalition.contains(player) { more } else { -more };
        (0..ends.players).map(value).collect()
    }

    /// `C(n−1, s) / 2^(n−1)`.
    fn size_weights(&self, players: usize) -> Vec<f64> {
        let others = players.saturating_sub(1);
        let mut share = 0.5_f64.powi(i32::try_from(others).unwrap_or(i32::MAX));
        let mut shares = Vec::with_capacity(players);
        for size in 0..players {
            shares.push(share);
            share = share * (others - size) as f64 / (size + 1) as f64;
        }
        shares
    }
}

/// The same samples. Each also returns the sum of its values, and that sum added to each value, so
/// that the variances of `x`, `Σ` and `x + Σ` give the covariance of `x` and `Σ`.
struct Normalised;

impl Sampler for Normalised {
    type Sample = Coalition;
    const NAME: &'static str = "banzhaf-normalised";
    const SAMPLE_UNIT: &'static str = UniformPairs::SAMPLE_UNIT;
    const STREAM: u64 = UniformPairs::STREAM;

    fn draw(&mut self, players: usize, draw: &mut SeededRng) -> Coalition {
        UniformPairs.draw(players, draw)
    }

    fn coalitions(&self, coalition: &Coalition) -> Vec<Coalition> {
        UniformPairs.coalitions(coalition)
    }

    /// The values of all players, the values plus their sum, and the sum.
    fn player_estimates(
        &self,
        coalition: &Coalition,
        worths: &[f64],
        ends: &EndpointValues,
    ) -> Vec<f64> {
        let mut numbers = UniformPairs.player_estimates(coalition, worths, ends);
        let sum: f64 = numbers.iter().sum();
        numbers.extend_from_within(..);
        numbers[ends.players..].iter_mut().for_each(|number| *number += sum);
        numbers.push(sum);
        numbers
    }

    fn size_weights(&self, players: usize) -> Vec<f64> {
        UniformPairs.size_weights(players)
    }

    fn width(&self, players: usize) -> usize {
        2 * players + 1
    }

    fn summary(&self, tally: &VectorMoments, ends: &EndpointValues) -> Option<Summary> {
        let raw = tally.means();
        let factor = factor(raw[..ends.players].iter().sum(), ends.total())?;
        let values: Vec<f64> = raw[..ends.players].iter().map(|value| factor * value).collect();
        let moments = tally.moments();
        let spread_of_sum = moments[2 * ends.players].variance();
        let error = |player: usize| {
            let (own, both) =
                (moments[player].variance()?, moments[player + ends.players].variance()?);
            let spread_of_sum = spread_of_sum?;
            let covariance = 0.5 * (both - own - spread_of_sum);
            // The value's share of the sum varies with the sum: x − r·Σ.
            let ratio = if ends.total() == 0.0 { 0.0 } else { values[player] / ends.total() };
            let spread = own - 2.0 * ratio * covariance + ratio * ratio * spread_of_sum;
            Some(factor.abs() * (spread.max(0.0) / tally.count() as f64).sqrt())
        };
        let errors = (0..ends.players).map(error).collect();
        Some(Summary { values, errors })
    }

    fn exact_values(&self, exact: Vec<f64>, ends: &EndpointValues) -> Option<Vec<f64>> {
        let factor = factor(exact.iter().sum(), ends.total())?;
        Some(exact.iter().map(|value| factor * value).collect())
    }
}

/// The factor that scales `sum` to `total`; `None` if it would be negative or infinite.
fn factor(sum: f64, total: f64) -> Option<f64> {
    if sum == 0.0 && total == 0.0 {
        return Some(1.0);
    }
    let factor = total / sum;
    (factor.is_finite() && factor >= 0.0).then_some(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalised_error_is_that_of_the_residual_after_the_share_of_the_sum() {
        let samples = [[3.0, -1.0], [1.0, 2.0], [5.0, 0.5], [2.0, 0.0]];
        let ends = EndpointValues { players: 2, empty_value: 0.0, grand_value: 6.25 };
        let mut tally = VectorMoments::new(5);
        for [a, b] in samples {
            let sum = a + b;
            tally.add(&[a, b, a + sum, b + sum, sum]);
        }
        // Means 11/4 and 3/8, together 25/8: the factor is 2, the shares are 0.88 and 0.12.
        let found = Normalised.summary(&tally, &ends).unwrap();
        assert_eq!(found.values, [5.5, 0.75]);
        for (player, share) in [0.88, 0.12].into_iter().enumerate() {
            let mut left = VectorMoments::new(1);
            samples.iter().for_each(|of| left.add(&[2.0 * (of[player] - share * (of[0] + of[1]))]));
            let wanted = left.standard_errors().unwrap()[0];
            let error = found.errors.as_ref().unwrap()[player];
            assert!((error - wanted).abs() < 1e-14, "{error} is not {wanted}");
        }
        assert!(factor(-1.0, 1.0).is_none() && factor(0.0, 1.0).is_none());
        assert_eq!((factor(0.0, 0.0), factor(2.0, 1.0)), (Some(1.0), Some(0.5)));
    }
}
