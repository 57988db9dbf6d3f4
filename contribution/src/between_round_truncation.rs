//! Truncation between rounds: skips rounds without effect, by a published threshold.

use crate::meter::EvaluationMeter;
use crate::{Coalition, Estimate, Estimator, Game, ValuationError, to_nano};

/// Passes that decide whether a round is valued.
const PASSES: u64 = 2;

/// Whether a round with a gain of `total` nats is valued under a published threshold in nano-nats:
/// if `|total|`, rounded to whole nano-nats, exceeds it.
///
/// The comparison uses integers, so that every recomputation gives the same decision.
pub fn exceeds_threshold(total: f64, threshold_nano: u64) -> bool {
    // A total beyond nano-nats exceeds any threshold, and NaN is rejected elsewhere.
    to_nano(total).map_or(true, |nano| nano.unsigned_abs() > threshold_nano)
}

/// Truncation between rounds (T. Song, Y. Tong and S. Wei, "Profit Allocation for Federated
/// Learning", 2019; Z. Liu et al., "GTG-Shapley", 2022): if `|v(N) − v(∅)|` is at most the
/// threshold, all values are zero, at a cost of 2 passes; otherwise the inner estimator runs.
///
/// The sum of the values is then off by at most the threshold, which the gap shows. A single value
/// can be off by more if players cancel each other: with a threshold, a round in which one player
/// harmed as much as the others helped is not settled either. Publish the threshold in advance, and
/// never derive it from the rounds it applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BetweenRoundTruncation<E> {
    /// The published threshold in nano-nats; 0 skips only rounds whose gain rounds to zero.
    pub threshold_nano: u64,
    /// The estimator of the rounds above the threshold.
    pub inner: E,
}

impl<G: Game + ?Sized, E: Estimator<G>> Estimator<G> for BetweenRoundTruncation<E> {
    fn name(&self) -> &'static str {
        "truncated-between-rounds"
    }

    fn version(&self) -> u32 {
        self.inner.version()
    }

    fn players_max(&self) -> Option<usize> {
        self.inner.players_max()
    }

    fn passes_min(&self, players: usize) -> u64 {
        self.inner.passes_min(players).saturating_add(PASSES)
    }

    fn passes_default(&self, players: usize) -> Option<u64> {
        self.inner.passes_default(players).map(|passes| passes.saturating_add(PASSES))
    }

    fn estimate(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Estimate, ValuationError> {
        let players = game.players();
        let ends = [Coalition::empty(players), Coalition::full(players)];
        let ends = meter.values(game, &ends)?;
        let total = ends[1] - ends[0];
        if exceeds_threshold(total, self.threshold_nano) {
            return self.inner.estimate(game, meter);
        }
        let threshold = self.threshold_nano;
        Ok(Estimate {
            values: vec![0.0; players],
            total,
            remark: Some(format!(
                "not valued: |v(N) − v(∅)| = {:e} is within the published {threshold} nano",
                total.abs()
            )),
            ..Estimate::default()
        })
    }
}
