//! GTG-Shapley: as published, and corrected.

use super::batch::CoalitionBatch;
use super::endpoints::{EndpointValues, all_coalitions, shapley_size_weights};
use super::independent_samples::{DrawnSample, Sampler, run};
use super::{gtg_published, passes_default, permutation_walk};
use crate::meter::EvaluationMeter;
use crate::{Coalition, Estimate, Estimator, Game, SeededRng, ValuationError};

/// The authors' threshold of between-round truncation, in the game's unit.
const BETWEEN_DEFAULT: f64 = 0.01;

/// The authors' threshold of within-round truncation, in the game's unit.
const WITHIN_DEFAULT: f64 = 0.001;

/// Default number of cycles of the corrected variant, if 100·n + 2 passes contain fewer.
const CYCLES_DEFAULT: u64 = 5;

/// The stream of the seed for the permutations of both variants.
const STREAM: u64 = 0x6774_672d;

/// GTG-Shapley (Z. Liu, Y. Chen, H. Yu, Y. Liu and L. Cui, "GTG-Shapley: Efficient and Accurate
/// Participant Contribution Evaluation in Federated Learning", 2022): permutation sampling in
/// cycles of n permutations, in which every player is first once and the rest is random (guided); a
/// permutation is truncated as soon as its value is within ε_i of `v(N)` (within-round truncation);
/// and the values of a game with `|v(N) − v(∅)| ≤ ε_b` are zero (between-round truncation).
///
/// [`as_published`](Self::as_published) is **for comparison only**: its values can be wrong by
/// design, even with an unlimited budget. [`corrected`](Self::mended) is the corrected variant. Both
/// are biased by ε_i like [`TruncatedMonteCarlo`](crate::TruncatedMonteCarlo). Both thresholds are
/// in the game's unit; by default ε_b = 0.01 and ε_i = 0.001, as in the authors' code. At least n²
/// − n + 2 passes: one cycle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gtg {
    between_round_threshold: f64,
    within_round_threshold: f64,
    corrected: bool,
}

impl Gtg {
    /// **For comparison only.** Reproduces the authors' code, including its defects, except that
    /// the permutations are drawn from the seed:
    ///
    /// - truncated values are cached like evaluated ones and are used by later permutations; even
    ///   `v(N)`, the reference of the truncation, is overwritten;
    /// - it stops after more than 30 permutations, at the end of a cycle, once the last ten running
    ///   means are on average within 5 % of the last one, which is no bound on the distance to the
    ///   true value. A tolerance, a budget or a time limit can only make it stop earlier.
    ///
    /// The cache affects the next permutation, so coalitions are evaluated one at a time. The
    /// error, over cycles, includes none of these defects. The result is never exact, even if all
    /// coalitions are known.
    pub fn as_published() -> Self {
        Self {
            between_round_threshold: BETWEEN_DEFAULT,
            within_round_threshold: WITHIN_DEFAULT,
            corrected: false,
        }
    }

    /// Caches only evaluated coalitions, and runs until the run's own limits; the tolerance is
    /// compared with the standard error over cycles, which are independent of each other. Unbiased
    /// with ε_i = 0: within a cycle, every player has every position equally often on average. By
    /// default 100·n + 2 passes, or five cycles if that is more.
    pub fn corrected() -> Self {
        Self {
            between_round_threshold: BETWEEN_DEFAULT,
            within_round_threshold: WITHIN_DEFAULT,
            corrected: true,
        }
    }

    /// The same with the thresholds ε_b and ε_i, in the game's unit; `within` = 0 never truncates,
    /// `between` = 0 skips only a game with a total of zero.
    ///
    /// # Errors
    /// [`ValuationError::SettingOutOfRange`] unless both are finite and not negative.
    pub fn with_thresholds(self, between: f64, within: f64) -> Result<Self, ValuationError> {
        for (key, value) in [("between", between), ("within", within)] {
            if !(value.is_finite() && value >= 0.0) {
                let estimator = self.own_name();
                let bounds = "a finite number, 0 or more";
                return Err(ValuationError::SettingOutOfRange { estimator, key, value, bounds });
            }
        }
        Ok(Self { between_round_threshold: between, within_round_threshold: within, ..self })
    }

    fn own_name(self) -> &'static str {
        if self.corrected { Cycles::NAME } else { "gtg-as-published" }
    }
}

fn cycles(players: usize, count: u64) -> u64 {
    let n = players as u64;
    let one = n.saturating_mul(n.saturating_sub(2)).saturating_add(n);
    one.saturating_mul(count).saturating_add(2).min(all_coalitions(players))
}

impl<G: Game + ?Sized> Estimator<G> for Gtg {
    fn name(&self) -> &'static str {
        self.own_name()
    }

    fn version(&self) -> u32 {
        1
    }

    fn passes_min(&self, players: usize) -> u64 {
        cycles(players, 1)
    }

    fn passes_default(&self, players: usize) -> Option<u64> {
        self.corrected.then(|| passes_default(players, cycles(players, CYCLES_DEFAULT)))
    }

    fn estimate(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Estimate, ValuationError> {
        let ends = EndpointValues::evaluate(game, meter)?;
        let total = ends.total();
        if total.abs() <= self.between_round_threshold {
            let (values, between) = (vec![0.0; ends.players], self.between_round_threshold);
            let remark = Some(format!("not valued: |v(N) − v(∅)| is within {between}"));
            return Ok(Estimate { values, total, remark, ..Estimate::default() });
        }
        if self.corrected {
            return run(Cycles { within: self.within_round_threshold }, game, meter);
        }
        gtg_published::run(game, meter, &ends, self.within_round_threshold)
    }
}

/// n permutations; permutation k starts with player k, and the rest is random.
fn draw_cycle(players: usize, draw: &mut SeededRng) -> Vec<Vec<usize>> {
    let order = |first| {
        let mut order: Vec<usize> = (0..players).collect();
        order.swap(0, first);
        draw.shuffle(&mut order[1..]);
        order
    };
    (0..players).map(order).collect()
}

/// The permutations of a valuation, cycle by cycle.
pub(super) struct GuidedPermutations(SeededRng);

impl GuidedPermutations {
    pub(super) fn new(seed: u64) -> Self {
        Self(SeededRng::new(seed, STREAM))
    }

    pub(super) fn cycle(&mut self, players: usize) -> Vec<Vec<usize>> {
        draw_cycle(players, &mut self.0)
    }
}

struct Cycles {
    within: f64,
}

impl Sampler for Cycles {
    type Sample = Vec<Vec<usize>>;
    const NAME: &'static str = "gtg-mended";
    const SAMPLE_UNIT: &'static str = "guided cycles";
    const STREAM: u64 = STREAM;
    /// One cycle per batch is enough.
    const BATCH: usize = 1;
    const TRUNCATES: bool = true;

    fn draw(&mut self, players: usize, draw: &mut SeededRng) -> Self::Sample {
        draw_cycle(players, draw)
    }

    fn coalitions(&self, cycle: &Self::Sample) -> Vec<Coalition> {
        cycle.iter().flat_map(|order| permutation_walk::prefixes(order)).collect()
    }

    /// The mean over the cycle; `marginals` contains the permutations one after another.
    fn player_estimates(
        &self,
        cycle: &Self::Sample,
        marginals: &[f64],
        ends: &EndpointValues,
    ) -> Vec<f64> {
        let mut values = vec![0.0; ends.players];
        for (order, marginals) in cycle.iter().zip(marginals.chunks(ends.players)) {
            order.iter().zip(marginals).for_each(|(&player, own)| values[player] += own);
        }
        values.iter_mut().for_each(|value| *value /= ends.players as f64);
        values
    }

    fn size_weights(&self, players: usize) -> Vec<f64> {
        shapley_size_weights(players)
    }

    fn evaluate<G: Game + ?Sized>(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
        ends: &EndpointValues,
        drawn: &[DrawnSample<Self::Sample>],
        _batch: &CoalitionBatch,
    ) -> Result<Vec<Vec<f64>>, ValuationError> {
        let mut found = Vec::with_capacity(drawn.len());
        for one in drawn {
            let walks: Vec<&[Coalition]> = one.coalitions.chunks(ends.players - 1).collect();
            let marginals =
                permutation_walk::truncated(game, meter, ends, &walks, self.within)?.concat();
            found.push(self.player_estimates(&one.sample, &marginals, ends));
        }
        Ok(found)
    }
}
