//! The loop of the regression estimators: draws pairs, evaluates them and fits, until a limit of
//! the run is reached.

use super::weighted::{Fit, ObservedPairs};
use crate::complementary_pairs::{InitialPairs, PairSampler};
use crate::meter::EvaluationMeter;
use crate::{Coalition, Estimate, Game, SeededRng, ValuationError};

/// Smallest number of pairs between two checks of the limits.
const STEP_MIN: usize = 32;

/// Between two checks the number of pairs grows by one part in this many, so that all fits together
/// cost a few times the last one.
const GROWTH: usize = 4;

/// The stream of the seed for drawing sizes.
const STREAM: u64 = 0x7369_7a65;

/// The distribution of the pairs' sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SizeDistribution {
    /// All sizes equally often.
    Uniform,
    /// In proportion to the Shapley kernel's total weight of the size: `1/(s·(n − s))`.
    ShapleyKernel,
}

/// The parameters that distinguish the regression estimators.
pub(crate) struct PairRegression<F> {
    pub(crate) name: &'static str,
    pub(crate) sizes: SizeDistribution,
    /// Largest number of pairs for `fit`.
    pub(crate) pairs_max: usize,
    pub(crate) fit: F,
}

/// Fewest passes that determine a fit: empty and grand coalition, and n − 1 pairs along a
/// permutation.
pub(crate) fn passes_min(players: usize) -> u64 {
    (players as u64).saturating_mul(2)
}

/// Number of all coalitions, or `u64::MAX` if it exceeds 64 bits.
pub(crate) fn all_coalitions(players: usize) -> u64 {
    u32::try_from(players).ok().and_then(|n| 1_u64.checked_shl(n)).unwrap_or(u64::MAX)
}

impl<F: Fn(&ObservedPairs<'_>) -> Option<Fit>> PairRegression<F> {
    /// Values all players of `game`.
    pub(crate) fn run<G: Game + ?Sized>(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Estimate, ValuationError> {
        let players = game.players();
        let ends = [Coalition::empty(players), Coalition::full(players)];
        let ends = meter.values(game, &ends)?;
        let total = ends[1] - ends[0];
        let mut source = PairSource::new(players, meter.seed(), self.sizes);
        let (mut sides, mut halves) = (Vec::new(), Vec::new());
        let mut wanted = players.saturating_sub(1);
        loop {
            let fresh = source.take(wanted.min(self.pairs_max - sides.len()));
            let ended = fresh.len() < wanted;
            halves.extend(half_differences(game, meter, &fresh)?);
            sides.extend(fresh);
            wanted = affordable_pairs(meter, sides.len());
            let last = ended || wanted == 0;
            if !last && meter.tolerance().is_none() {
                continue;
            }
            let observed = ObservedPairs {
                total,
                sides: &sides,
                half_differences: &halves,
                pairs: &source.pairs,
            };
            let fit = (self.fit)(&observed)
                .ok_or(ValuationError::Singular { estimator: self.name, equations: sides.len() })?;
            let converged =
                fit.errors.as_ref().is_some_and(|e| meter.has_converged(&fit.values, e));
            if last || converged {
                return Ok(estimate(fit, &observed, self.pairs_max));
            }
        }
    }
}

fn estimate(fit: Fit, observed: &ObservedPairs<'_>, pairs_max: usize) -> Estimate {
    let seen = observed.sides.len();
    let remark = if observed.is_complete() {
        format!("all {seen} pairs: the values are exact")
    } else if seen == pairs_max {
        format!("stopped at {seen} pairs, the limit of the fit")
    } else {
        format!("fitted to {seen} pairs")
    };
    let (values, estimator_errors) = (fit.values, fit.errors);
    let (total, remark) = (observed.total, Some(remark));
    Estimate { values, estimator_errors, total, remark, ..Estimate::default() }
}

/// Number of pairs to draw next: within the limits, in growing steps.
fn affordable_pairs(meter: &EvaluationMeter<'_>, seen: usize) -> usize {
    if !meter.can_afford(2) {
        return 0;
    }
    let within_budget = usize::try_from(meter.budget_left() / 2).unwrap_or(usize::MAX);
    within_budget.min(STEP_MIN.max(seen / GROWTH))
}

/// `(v(S) − v(Sᶜ))/2` of each side, evaluated in one batch.
fn half_differences<G: Game + ?Sized>(
    game: &mut G,
    meter: &mut EvaluationMeter<'_>,
    sides: &[Coalition],
) -> Result<Vec<f64>, ValuationError> {
    let both: Vec<Coalition> =
        sides.iter().flat_map(|side| [side.clone(), side.complement()]).collect();
    let worths = meter.values(game, &both)?;
    Ok(worths.chunks_exact(2).map(|pair| 0.5 * (pair[0] - pair[1])).collect())
}

/// Distinct pairs with a given distribution of sizes, after n − 1 pairs along a permutation:
/// without these, a fit to few pairs may leave players undetermined.
struct PairSource {
    pairs: PairSampler,
    law: SizeDistribution,
    sizes: SeededRng,
    chain_left: usize,
    players: usize,
}

impl PairSource {
    fn new(players: usize, seed: u64, law: SizeDistribution) -> Self {
        let pairs = PairSampler::new(players, seed, InitialPairs::PermutationPrefixes);
        let chain_left = players.saturating_sub(1);
        Self { pairs, law, sizes: SeededRng::new(seed, STREAM), chain_left, players }
    }

    /// `count` pairs, or all remaining pairs.
    fn take(&mut self, count: usize) -> Vec<Coalition> {
        (0..count).map_while(|_| self.next()).collect()
    }

    fn next(&mut self) -> Option<Coalition> {
        if self.law == SizeDistribution::Uniform || self.chain_left > 0 {
            self.chain_left = self.chain_left.saturating_sub(1);
            return self.pairs.next();
        }
        let size = self.size_by_kernel()?;
        self.pairs.next_of_size(size)
    }

    /// A size that is not exhausted, drawn in proportion to the kernel's weight.
    fn size_by_kernel(&mut self) -> Option<usize> {
        let players = self.players;
        let open = (1..=players / 2).filter(|&size| self.pairs.inclusion(size) < 1.0);
        let weighed: Vec<(usize, f64)> = open
            .map(|size| {
                let middle = if 2 * size == players { 0.5 } else { 1.0 };
                (size, middle / (size as f64 * (players - size) as f64))
            })
            .collect();
        let mut left = self.sizes.uniform() * weighed.iter().map(|(_, weight)| weight).sum::<f64>();
        for &(size, weight) in &weighed {
            left -= weight;
            if left < 0.0 {
                return Some(size);
            }
        }
        weighed.last().map(|&(size, _)| size)
    }
}
