//! LeverageSHAP: the linear fit to pairs with uniformly distributed sizes.

use super::sampled::{PairRegression, SizeDistribution, all_coalitions, passes_min};
use super::weighted::linear_fit;
use crate::meter::EvaluationMeter;
use crate::{Estimate, Estimator, Game, ValuationError};

/// Passes per player of a run without a limit.
const PASSES_PER_PLAYER: u64 = 200;

/// Leverage-score sampling (C. Musco and R. T. Witter, "Provably Accurate Shapley Value Estimation
/// via Leverage Score Sampling", ICLR 2025): complementary pairs without replacement, all sizes
/// equally often, and weighted least squares with each pair reweighted by its inclusion
/// probability; the values sum to `v(N) − v(∅)` by constraint.
///
/// The sizes alternate instead of being drawn, and the first n − 1 pairs lie along a random
/// permutation (which has two of each size), so that the fit is determined from 2n passes on, and
/// exact there for games of pairwise interactions. Exact for any game once all coalitions are
/// evaluated. It assumes no smoothness of the game, which is why it is the fallback of the
/// estimators that do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeverageShap;

impl<G: Game + ?Sized> Estimator<G> for LeverageShap {
    fn name(&self) -> &'static str {
        "leverage-shap"
    }

    fn version(&self) -> u32 {
        1
    }

    fn passes_min(&self, players: usize) -> u64 {
        passes_min(players)
    }

    fn passes_default(&self, players: usize) -> Option<u64> {
        let passes = (players as u64).saturating_mul(PASSES_PER_PLAYER);
        Some(passes.min(all_coalitions(players)))
    }

    fn estimate(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Estimate, ValuationError> {
        let name = Estimator::<G>::name(self);
        PairRegression {
            name,
            sizes: SizeDistribution::Uniform,
            pairs_max: usize::MAX,
            fit: linear_fit,
        }
        .run(game, meter)
    }
}
