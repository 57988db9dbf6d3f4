//! What nobody and everybody is worth, and the exact values when everything between is known too.

use crate::meter::Meter;
use crate::{Coalition, Game, ValuationError};

/// Most players whose 2^n coalitions are ever counted on to become known: a table of 128 MiB.
const EXACT_PLAYERS_MAX: usize = 24;

/// Coalitions that the whole table is asked for at once.
const TABLE_CHUNK: u64 = 4_096;

/// All coalitions of so many players; `u64::MAX` where they cannot be counted.
pub(super) fn all_coalitions(players: usize) -> u64 {
    u32::try_from(players).ok().and_then(|n| 1_u64.checked_shl(n)).unwrap_or(u64::MAX)
}

/// How likely each number of predecessors is under the Shapley value: all alike.
pub(super) fn shapley_shares(players: usize) -> Vec<f64> {
    vec![1.0 / players as f64; players]
}

/// The worths of nobody and of everybody, which every estimator asks for first.
pub(super) struct Ends {
    pub(super) players: usize,
    pub(super) nobody: f64,
    pub(super) everybody: f64,
}

impl Ends {
    pub(super) fn of<G: Game + ?Sized>(
        game: &mut G,
        meter: &mut Meter<'_>,
    ) -> Result<Self, ValuationError> {
        let players = game.players();
        let both = [Coalition::empty(players), Coalition::full(players)];
        let worths = meter.values(game, &both)?;
        Ok(Self { players, nobody: worths[0], everybody: worths[1] })
    }

    /// `v(N) − v(∅)`.
    pub(super) fn total(&self) -> f64 {
        self.everybody - self.nobody
    }

    /// How many coalitions the meter does not know yet; `None` where there are too many to ever
    /// know them all.
    pub(super) fn unknown(&self, meter: &Meter<'_>) -> Option<u64> {
        let countable = self.players <= EXACT_PLAYERS_MAX;
        countable.then(|| all_coalitions(self.players).saturating_sub(meter.evaluations()))
    }

    /// The semivalue itself, from all coalitions: `Σ_s shares[s]·mean_{|S|=s, S∌i} (v(S∪i) − v(S))`.
    pub(super) fn exact<G: Game + ?Sized>(
        &self,
        game: &mut G,
        meter: &mut Meter<'_>,
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

/// One player's semivalue from the table of worths by mask. Marginals of one size are summed first,
/// in the order of the masks.
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
