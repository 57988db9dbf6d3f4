//! Paired KernelSHAP: the linear fit to pairs whose sizes follow the Shapley kernel.

use super::sampled::{PairRegression, SizeDistribution, all_coalitions, passes_min};
use super::weighted::linear_fit;
use crate::meter::EvaluationMeter;
use crate::{Estimate, Estimator, Game, ValuationError};

/// Passes per player of a run without a limit.
const PASSES_PER_PLAYER: u64 = 200;

/// Paired KernelSHAP (S. M. Lundberg and S.-I. Lee, "A Unified Approach to Interpreting Model
/// Predictions", NeurIPS 2017; pairs: I. Covert and S.-I. Lee, "Improving KernelSHAP", AISTATS
/// 2021), with `Σφ = v(N) − v(∅)` as a constraint of the fit.
///
/// Sizes are drawn in proportion to the kernel's total weight of the size, `1/(s·(n − s))`. Unlike
/// the published version it draws pairs *without* replacement and reweights them by their inclusion
/// probability, because a repeated coalition adds no information. The first n − 1 pairs lie along a
/// random permutation, so that the fit is determined from 2n passes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelShap;

impl<G: Game + ?Sized> Estimator<G> for KernelShap {
    fn name(&self) -> &'static str {
        "kernel-shap"
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
        let plan = PairRegression {
            name,
            sizes: SizeDistribution::ShapleyKernel,
            pairs_max: usize::MAX,
            fit: linear_fit,
        };
        plan.run(game, meter)
    }
}
