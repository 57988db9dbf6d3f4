//! The values of the empty and the grand coalition, and exact values once every coalition is known.

use crate::meter::EvaluationMeter;
use crate::{Coalition, Game, ValuationError};

/// Largest number of players for which exhaustion of all 2^n coalitions is tracked: a table of 128
/// MiB.
const EXACT_PLAYERS_MAX: usize = 24;

/// Coalitions per request when the whole table is evaluated.
const TABLE_CHUNK: u64 = 4_096;

/// Number of all coalitions of `players` players; `u64::MAX` if it exceeds 64 bits.
pub(super) fn all_coalitions(players: usize) -> u64 {
    u32::try_from(players).ok().and_then(|n| 1_u64.checked_shl(n)).unwrap_or(u64::MAX)
}

/// The probability of each number of predecessors under the Shapley value: uniform.
pub(super) fn shapley_size_weights(players: usize) -> Vec<f64> {
    vec![1.0 / players as f64; players]
}

/// The values of the empty and the grand coalition, which every estimator evaluates first.
pub(super) struct EndpointValues {
    pub(super) players: usize,
    pub(super) empty_value: f64,
    pub(super) grand_value: f64,
}

impl EndpointValues {
    pub(super) fn evaluate<G: Game + ?Sized>(
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Self, ValuationError> {
        let players = game.players();
        let both = [Coalition::empty(players), Coalition::full(players)];
        let worths = meter.values(game, &both)?;
        Ok(Self { players, empty_value: worths[0], grand_value: worths[1] })
    }

    /// `v(N) − v(∅)`.
    pub(super) fn total(&self) -> f64 {
        self.grand_value - self.empty_value
    }

    /// Number of coalitions not yet evaluated; `None` if there are too many for a complete table.
    pub(super) fn unevaluated(&self, meter: &EvaluationMeter<'_>) -> Option<u64> {
        let countable = self.players <= EXACT_PLAYERS_MAX;
        countable.then(|| all_coalitions(self.players).saturating_sub(meter.evaluations()))
    }

    /// The exact semivalue from all coalitions: `Σ_s shares[s]·mean_{|S|=s, S∌i} (v(S∪i) − v(S))`.
    pub(super) fn exact<G: Game + ?Sized>(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
        shares: &[f64],
    ) -> Result<Vec<f64>, ValuationError> {
        let n = self.players;
        let count = 1_u64 << n;
        let mut worths = Vec::with_capacity(count as usize);
        for from in (0..count).step_by(TABLE_CHUNK as usize) {
            let masks = from..count.min(from + TABLE_CHUNK);
            let chunk: Vec<Coalition> = masks.map(|mask| Coalition::from_mask(n, mask)).collect();
            worths.extend(meter.values(game, &chunk)?);
        }
        Ok((0..n).map(|player| semivalue(&worths, player, shares)).collect())
    }
}

/// One player's semivalue from the table of values by mask. Marginal contributions of one size are
/// summed first, in the order of the masks.
fn semivalue(worths: &[f64], player: usize, shares: &[f64]) -> f64 {
    let bit = 1_usize << player;
    let mut by_size = vec![0.0; shares.len()];
    for mask in (0..worths.len()).filter(|mask| mask & bit == 0) {
        by_size[mask.count_ones() as usize] += worths[mask | bit] - worths[mask];
    }
    let mut choices = 1.0; // C(n−1, size), whole and exact for n ≤ 24
    let mut value = 0.0;
    for (size, (sum, share)) in by_size.iter().zip(shares).enumerate() {
        value += share * (sum / choices);
        choices = choices * (shares.len() - 1 - size) as f64 / (size + 1) as f64;
    }
    value
}
