//! Truncated Monte Carlo: random permutations, each evaluated only until little is left to gain.

use super::batch::Batch;
use super::ends::{Ends, shapley_shares};
use super::permutation::one_walk;
use super::samples::{Drawn, Sampler, carry_out};
use super::{passes_default, walk};
use crate::meter::Meter;
use crate::{Coalition, Draw, Estimate, Estimator, Game, ValuationError};

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
            estimator: TruncatedOrders::NAME,
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
        TruncatedOrders::NAME
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
        carry_out(TruncatedOrders { tolerance: self.tolerance }, game, meter)
    }
}

struct TruncatedOrders {
    tolerance: f64,
}

impl Sampler for TruncatedOrders {
    type Sample = Vec<usize>;
    const NAME: &'static str = "truncated-monte-carlo";
    const UNITS: &'static str = "truncated permutations";
    const STREAM: u64 = 0x746d_6320;
    /// Larger than the default, because only the prefixes of one size are evaluated together.
    const BATCH: usize = 512;
    const TRUNCATES: bool = true;

    fn draw(&mut self, players: usize, draw: &mut Draw) -> Vec<usize> {
        draw.permutation(players)
    }

    fn coalitions(&self, order: &Vec<usize>) -> Vec<Coalition> {
        walk::prefixes(order)
    }

    fn read(&self, order: &Vec<usize>, marginals: &[f64], _ends: &Ends) -> Vec<f64> {
        walk::by_player(order, marginals)
    }

    fn shares(&self, players: usize) -> Vec<f64> {
        shapley_shares(players)
    }

    fn measure<G: Game + ?Sized>(
        &self,
        game: &mut G,
        meter: &mut Meter<'_>,
        ends: &Ends,
        drawn: &[Drawn<Vec<usize>>],
        _batch: &Batch,
    ) -> Result<Vec<Vec<f64>>, ValuationError> {
        let walks: Vec<&[Coalition]> = drawn.iter().map(|one| one.coalitions.as_slice()).collect();
        let threshold = self.tolerance * ends.total().abs();
        let found = walk::truncated(game, meter, ends, &walks, threshold)?;
        Ok(drawn
            .iter()
            .zip(&found)
            .map(|(one, found)| self.read(&one.sample, found, ends))
            .collect())
    }
}
