//! The Shapley value by its definition: every coalition is evaluated once.

use crate::meter::EvaluationMeter;
use crate::statistics::{mean, standard_error};
use crate::{Coalition, Estimate, Estimator, Game, ValuationError};

/// Largest number of players: 2^24 coalitions are 128 MiB of values.
const PLAYERS_MAX: usize = 24;

/// Largest number of floats in the table of values. If coalitions × rows fit, the scores have
/// standard errors; otherwise the table contains only the means.
const TABLE_MAX: usize = 1 << PLAYERS_MAX;

/// Coalitions that are evaluated in one call of the game.
const BATCH: usize = 64;

/// The Shapley value (L. S. Shapley, "A value for n-person games", 1953) by enumeration, for at
/// most 24 players: `φ_i = 1/n Σ_s mean_{|S|=s, S∌i} (v(S∪i) − v(S))`.
///
/// It is the ground truth for the other estimators. The seed has no effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exact;

impl<G: Game + ?Sized> Estimator<G> for Exact {
    fn name(&self) -> &'static str {
        "exact"
    }

    fn version(&self) -> u32 {
        1
    }

    fn players_max(&self) -> Option<usize> {
        Some(PLAYERS_MAX)
    }

    fn passes_min(&self, players: usize) -> u64 {
        u32::try_from(players).ok().and_then(|n| 1_u64.checked_shl(n)).unwrap_or(u64::MAX)
    }

    fn estimate(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Estimate, ValuationError> {
        let players = game.players();
        let table = ValueTable::fill(game, meter)?;
        let full = table.values.len() / table.width - 1;
        let total = mean(table.row(full)) - mean(table.row(0));
        let values_by_row: Vec<Vec<f64>> =
            (0..players).map(|player| table.shapley(players, player)).collect();
        Ok(Estimate {
            values: values_by_row.iter().map(|rows| mean(rows)).collect(),
            standard_errors: values_by_row.iter().map(|rows| standard_error(rows)).collect(),
            estimator_errors: Some(vec![0.0; players]),
            total,
            ..Estimate::default()
        })
    }
}

/// Values by coalition mask, `width` numbers each: one per row if the rows fit, else only their
/// mean.
struct ValueTable {
    width: usize,
    values: Vec<f64>,
}

impl ValueTable {
    fn fill<G: Game + ?Sized>(
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Self, ValuationError> {
        let players = game.players();
        let empty_rows = meter.value_rows(game, &Coalition::empty(players))?;
        let coalitions = 1_usize << players;
        let width = if empty_rows.len() <= TABLE_MAX / coalitions { empty_rows.len() } else { 1 };
        let mut table = Self { width, values: Vec::with_capacity(coalitions * width) };
        table.push(&empty_rows);
        let masks: Vec<u64> = (1..1_u64 << players).collect();
        for masks in masks.chunks(BATCH) {
            let coalition = |mask: &u64| Coalition::from_mask(players, *mask);
            let batch: Vec<Coalition> = masks.iter().map(coalition).collect();
            meter.value_rows_of(game, &batch)?.iter().for_each(|rows| table.push(rows));
        }
        Ok(table)
    }

    fn push(&mut self, rows: &[f64]) {
        if self.width == rows.len() {
            self.values.extend_from_slice(rows);
        } else {
            self.values.push(mean(rows));
        }
    }

    fn row(&self, mask: usize) -> &[f64] {
        &self.values[mask * self.width..(mask + 1) * self.width]
    }

    /// The player's Shapley value on each row. Marginal contributions are summed within one
    /// coalition size first, in the order of the masks, so that a null player gets sums of exact
    /// zeros.
    fn shapley(&self, players: usize, player: usize) -> Vec<f64> {
        let bit = 1_usize << player;
        let mut by_size = vec![vec![0.0; self.width]; players];
        for mask in (0..1_usize << players).filter(|mask| mask & bit == 0) {
            let size = mask.count_ones() as usize;
            let pairs = self.row(mask | bit).iter().zip(self.row(mask));
            for (sum, (with, without)) in by_size[size].iter_mut().zip(pairs) {
                *sum += with - without;
            }
        }
        let mut values = vec![0.0; self.width];
        let mut choices = 1.0; // C(n−1, size), whole and exact in f64 for n ≤ 24
        for (size, sums) in by_size.iter().enumerate() {
            for (value, sum) in values.iter_mut().zip(sums) {
                *value += sum / choices;
            }
            choices = choices * (players - 1 - size) as f64 / (size + 1) as f64;
        }
        values.iter_mut().for_each(|value| *value /= players as f64);
        values
    }
}
