//! Leaving out rounds in which nothing happened, by a threshold that everybody knows beforehand.

use crate::meter::Meter;
use crate::{Coalition, Estimate, Estimator, Game, ValuationError, to_nano};

/// Passes that tell whether a round is worth looking at.
const PASSES: u64 = 2;

/// Whether a round that gained `total` nats is valued, under a published threshold in nano-nats: if
/// `|total|`, rounded to whole nano-nats, is above it.
///
/// In whole numbers, so that everybody who recomputes it decides alike.
pub fn worth_looking(total: f64, threshold_nano: u64) -> bool {
    // What does not fit nano-nats is larger than any threshold, and NaN is for others to refuse.
    to_nano(total).map_or(true, |nano| nano.unsigned_abs() > threshold_nano)
}

/// Truncation between rounds (T. Song, Y. Tong and S. Wei, "Profit Allocation for Federated
/// Learning", 2019; Z. Liu et al., "GTG-Shapley", 2022): a game whose `|v(N) − v(∅)|` is at or
/// below a threshold is answered with zeros, for 2 passes; any other by the estimator within.
///
/// The sum of the values is then off by at most the threshold, which the gap shows. A single value
/// can be off by more, where players cancel each other: whoever publishes a threshold decides that a
/// round in which one harmed as much as others helped is not settled either. The threshold is a
/// number published beforehand and never learnt from the rounds it is applied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TruncatedBetweenRounds<E> {
    /// The published threshold in nano-nats; 0 leaves out only what rounds to nothing.
    pub threshold_nano: u64,
    /// Who values the rounds that are worth it.
    pub inner: E,
}

impl<G: Game + ?Sized, E: Estimator<G>> Estimator<G> for TruncatedBetweenRounds<E> {
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

    fn estimate(&self, game: &mut G, meter: &mut Meter<'_>) -> Result<Estimate, ValuationError> {
        let players = game.players();
        let ends = [Coalition::empty(players), Coalition::full(players)];
        let ends = meter.values(game, &ends)?;
        let total = ends[1] - ends[0];
        if worth_looking(total, self.threshold_nano) {
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
