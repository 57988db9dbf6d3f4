//! LeverageSHAP: the linear fit to pairs of evenly spread sizes.

use super::sampled::{Law, Plan, all_coalitions, passes_min};
use super::weighted::linear_fit;
use crate::meter::Meter;
use crate::{Estimate, Estimator, Game, ValuationError};

/// Passes per player where a run sets no limit.
const PASSES_PER_PLAYER: u64 = 200;

/// Leverage-score sampling (C. Musco and R. T. Witter, "Provably Accurate Shapley Value Estimation
/// via Leverage Score Sampling", ICLR 2025): complementary pairs without replacement, every size
/// alike, and weighted least squares with each pair reweighed by its inclusion probability; the
/// values sum to `v(N) − v(∅)` by constraint.
///
/// Sizes take turns instead of being drawn, and the first n − 1 pairs lie along a random
/// permutation (which has two of each size), so that the fit is decided from 2n passes on and exact
/// there for games of pairwise interactions. Exact for any game once all coalitions are seen. Makes
/// no assumption that the game is smooth, which is why it is the fallback of those that do.
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

    fn estimate(&self, game: &mut G, meter: &mut Meter<'_>) -> Result<Estimate, ValuationError> {
        let name = Estimator::<G>::name(self);
        Plan { name, law: Law::Even, pairs_max: usize::MAX, fit: linear_fit }.carry_out(game, meter)
    }
}
