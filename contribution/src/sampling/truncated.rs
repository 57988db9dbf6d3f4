//! Truncated Monte Carlo: random permutations, each evaluated only until little is left to gain.

use super::batch::CoalitionBatch;
use super::endpoints::{EndpointValues, shapley_size_weights};
use super::independent_samples::{DrawnSample, Sampler, run};
use super::permutation::one_permutation;
use super::{passes_default, permutation_walk};
use crate::meter::EvaluationMeter;
use crate::{Coalition, Estimate, Estimator, Game, SeededRng, ValuationError};

/// The tolerance of [`TruncatedMonteCarlo::default`].
const TOLERANCE_DEFAULT: f64 = 0.01;

/// Truncated Monte Carlo (A. Ghorbani and J. Zou, "Data Shapley", 2019): permutation sampling that
/// truncates a permutation as soon as its value is within `tolerance·|v(N) − v(∅)|` of `v(N)`, and
/// gives the remaining players nothing.
///
/// Biased by design. In a game without negative marginal contributions, each player loses at most
/// `tolerance·|v(N) − v(∅)|`, all players together lose no more than that, and no player gains; in
/// other games there is no such bound for a single player. The gap, at most the same, shows the
/// bias; the sampling error, computed over the permutations, does not include it. The permutations
/// of one batch advance in parallel, and nothing beyond a truncation is evaluated. At least n + 1
/// passes; by default 100·n + 2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TruncatedMonteCarlo {
    tolerance: f64,
}

impl TruncatedMonteCarlo {
    /// Truncates within `tolerance` of `v(N)`, as a share of `|v(N) − v(∅)|`; 0 never truncates.
    ///
    /// # Errors
    /// [`ValuationError::SettingOutOfRange`] unless `tolerance` is from 0 to 1.
    pub fn with_tolerance(tolerance: f64) -> Result<Self, ValuationError> {
        if (0.0..=1.0).contains(&tolerance) {
            return Ok(Self { tolerance });
        }
        Err(ValuationError::SettingOutOfRange {
            estimator: TruncatedPermutations::NAME,
            key: "tolerance",
            value: tolerance,
            bounds: "from 0 to 1",
        })
    }
}

impl Default for TruncatedMonteCarlo {
    /// Truncates within 1 % of `|v(N) − v(∅)|`.
    fn default() -> Self {
        Self { tolerance: TOLERANCE_DEFAULT }
    }
}

impl<G: Game + ?Sized> Estimator<G> for TruncatedMonteCarlo {
    fn name(&self) -> &'static str {
        TruncatedPermutations::NAME
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
        run(TruncatedPermutations { tolerance: self.tolerance }, game, meter)
    }
}

struct TruncatedPermutations {
    tolerance: f64,
}

impl Sampler for TruncatedPermutations {
    type Sample = Vec<usize>;
    const NAME: &'static str = "truncated-monte-carlo";
    const SAMPLE_UNIT: &'static str = "truncated permutations";
    const STREAM: u64 = 0x746d_6320;
    /// Larger than the default, because only the prefixes of one size are evaluated together.
    const BATCH: usize = 512;
    const TRUNCATES: bool = true;

    fn draw(&mut self, players: usize, draw: &mut SeededRng) -> Vec<usize> {
        draw.permutation(players)
    }

    fn coalitions(&self, order: &Vec<usize>) -> Vec<Coalition> {
        permutation_walk::prefixes(order)
    }

    fn player_estimates(
        &self,
        order: &Vec<usize>,
        marginals: &[f64],
        _ends: &EndpointValues,
    ) -> Vec<f64> {
        permutation_walk::by_player(order, marginals)
    }

    fn size_weights(&self, players: usize) -> Vec<f64> {
        shapley_size_weights(players)
    }

    fn evaluate<G: Game + ?Sized>(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
        ends: &EndpointValues,
        drawn: &[DrawnSample<Vec<usize>>],
        _batch: &CoalitionBatch,
    ) -> Result<Vec<Vec<f64>>, ValuationError> {
        let walks: Vec<&[Coalition]> = drawn.iter().map(|one| one.coalitions.as_slice()).collect();
        let threshold = self.tolerance * ends.total().abs();
        let found = permutation_walk::truncated(game, meter, ends, &walks, threshold)?;
        Ok(drawn
            .iter()
            .zip(&found)
            .map(|(one, found)| self.player_estimates(&one.sample, found, ends))
            .collect())
    }
}
