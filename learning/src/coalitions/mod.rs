//! Fast evaluation of many coalitions of a round's updates on a holdout, with the same bits on
//! every machine.
//!
//! A coalition S is the model `base + Σ_{i∈S} pᵢ·Δᵢ` with fixed shares p. If the first layer is
//! dense, its output is also a sum over the members, so it is computed once per player and row, not
//! once per coalition; coalitions with the same first members share that part of the sum. The
//! remaining work per coalition is one addition per unit of the first layer, the deeper layers, and
//! the loss.
//!
//! **Same bits on every machine.** Numbers are `f32`; losses are summed in `f64`. Every sum has one
//! order: over a unit's inputs, over a coalition's members (ascending), over a tile of 32 rows,
//! over the tiles. Products and additions are rounded separately, and the exponential and the
//! logarithm consist of them. So the result for a coalition does not depend on its batch, on the
//! division of the rows into chunks, on the number of threads, or on the machine, as long as it
//! implements IEEE 754. Compared with the engines, which compute in `f64`, a mean loss is off by at
//! most [`COALITION_TOLERANCE_NANO`].

mod aligned;
mod kernel;
mod layout;
mod loss;
mod masks;
mod plan;
mod walk;
mod window;

#[cfg(test)]
mod tests;

use std::ops::ControlFlow;

use pulp::Arch;
use thiserror::Error;

use crate::data::{ChunkError, RowChunks};
use crate::engine::{BackendError, InputError};
use crate::model::ModelSpec;
use crate::parallel::parallel_map;
use crate::params::first_not_finite;
use aligned::Aligned;
use layout::{LayerStack, TILE_ROWS};
pub use masks::{CoalitionMasks, ENUMERATED_PLAYERS_MAX};
use plan::WalkPlan;
use walk::{Quantity, Walk};
use window::{TileWindow, WindowBuilder};

/// Largest deviation of a coalition's mean loss from the one in `f64`, in billionths of a nat, for
/// losses below ten nats: an `f32` has seven digits.
pub const COALITION_TOLERANCE_NANO: i64 = 500;

/// Largest number of bytes of results that a pass over a window stores before it sums them up.
const ANSWER_BYTES: usize = 32 << 20;
/// Smallest number of coalitions per task.
const SEGMENT_MIN: usize = 32;
/// Tasks per thread, for load balancing.
const TASKS_PER_THREAD: usize = 4;

/// The updates of a round and their shares in the aggregate.
#[derive(Debug, Clone, Copy)]
pub struct Updates<'a> {
    /// The model.
    pub model: &'a ModelSpec,
    /// The parameters before the round.
    pub base: &'a [f32],
    /// The update of each player.
    pub deltas: &'a [&'a [f32]],
    /// The share of each player.
    pub shares: &'a [f64],
}

/// Memory limits of an evaluator in bytes, in addition to the updates and their deeper layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// For the rows of one window; at least 32 rows are always in memory.
    pub window: usize,
    /// For results that are retained between calls. If the holdout needs more, every call makes a
    /// pass over its rows.
    pub retained: usize,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self { window: 64 << 20, retained: 1 << 30 }
    }
}

/// The evaluation of coalitions failed.
#[derive(Debug, Error)]
pub enum CoalitionError {
    /// The model, the parameters, the updates or the rows do not match.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The rows could not be read.
    #[error(transparent)]
    Rows(#[from] ChunkError),
    /// The engine failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The number of shares differs from the number of updates.
    #[error("{got} shares for {expected} updates")]
    Shares {
        /// Number of updates.
        expected: usize,
        /// Number of shares.
        got: usize,
    },
    /// A share is NaN or infinite.
    #[error("the share of update {at} is {value}: must be a finite number")]
    Share {
        /// Index of the update, from 0.
        at: usize,
        /// The share.
        value: f64,
    },
    /// A mask is invalid.
    #[error(
        "coalition {at}: {got} words: must be {expected} for {players} players, without other bits"
    )]
    Mask {
        /// Index in the batch, from 0.
        at: usize,
        /// Number of players.
        players: usize,
        /// Words per mask.
        expected: usize,
        /// Words given.
        got: usize,
    },
    /// Too many players for an enumeration of all coalitions.
    #[error(
        "{players} players: all coalitions can be enumerated for at most {ENUMERATED_PLAYERS_MAX}"
    )]
    TooManyToEnumerate {
        /// Number of players.
        players: usize,
    },
    /// The coalitions have another number of players.
    #[error("the coalitions have {got} players, but there are {expected} updates")]
    Players {
        /// Number of updates.
        expected: usize,
        /// Players of the batch.
        got: usize,
    },
    /// The source returned another number of rows than announced.
    #[error("the holdout returned {got} rows, but announced {expected}")]
    RowCount {
        /// Number of rows announced.
        expected: usize,
        /// Number of rows returned.
        got: usize,
    },
    /// A coalition's model has a loss that is not finite.
    #[error("coalition {at} has no finite loss: an update is too large for 32-bit numbers")]
    NotFinite {
        /// Index in the batch, from 0.
        at: usize,
    },
}

impl CoalitionError {
    /// A stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Input(_) => "COALITION_INPUT",
            Self::Rows(_) => "COALITION_ROWS",
            Self::Backend(_) => "COALITION_BACKEND",
            Self::Shares { .. } => "COALITION_SHARES",
            Self::Share { .. } => "COALITION_SHARE",
            Self::Mask { .. } => "COALITION_MASK",
            Self::TooManyToEnumerate { .. } => "COALITIONS_TOO_MANY",
            Self::Players { .. } => "COALITION_PLAYERS",
            Self::RowCount { .. } => "COALITION_ROW_COUNT",
            Self::NotFinite { .. } => "COALITION_NOT_FINITE",
        }
    }
}

impl Updates<'_> {
    /// Checks that lengths, numbers and shares match, and that the rows fit the model.
    pub(crate) fn check(&self, width: usize, classes: usize) -> Result<(), CoalitionError> {
        let Self { model, base, deltas, shares } = *self;
        model.check().map_err(InputError::Model)?;
        model.check_shape(width, classes).map_err(InputError::Model)?;
        let expected = model.parameters();
        let check = |what: String, values: &[f32]| {
            if values.len() != expected {
                return Err(InputError::Length { what, expected, got: values.len() });
            }
            match first_not_finite(values) {
                Some(index) => Err(InputError::NotFinite { what, index }),
                None => Ok(()),
            }
        };
        check("the base".to_owned(), base)?;
        for (at, delta) in deltas.iter().enumerate() {
            check(format!("update {at}"), delta)?;
        }
        if shares.len() != deltas.len() {
            return Err(CoalitionError::Shares { expected: deltas.len(), got: shares.len() });
        }
        match shares.iter().position(|share| !share.is_finite()) {
            Some(at) => Err(CoalitionError::Share { at, value: shares[at] }),
            None => Ok(()),
        }
    }
}

/// Evaluates coalitions of a round's updates on a holdout. Retains the members' first-layer outputs
/// (see [`MemoryLimits`]), so that later batches do not recompute them.
pub struct Coalitions<'a, R> {
    prepared: PreparedUpdates<'a>,
    rows: R,
    retained: Option<Vec<TileWindow>>,
}

/// The updates in the layout of the layers.
struct PreparedUpdates<'a> {
    updates: Updates<'a>,
    net: LayerStack,
    /// The packed parameters of the deeper layers: the base's, then each player's times its share.
    deeper: Vec<Aligned>,
    threads: usize,
    window_tiles: usize,
}

impl<'a, R: RowChunks> Coalitions<'a, R> {
    /// Prepares the updates for the rows, on up to `threads` threads.
    ///
    /// # Errors
    /// [`CoalitionError`] if the updates, the shares and the rows do not match.
    pub fn new(updates: Updates<'a>, rows: R, threads: usize) -> Result<Self, CoalitionError> {
        Self::with_memory(MemoryLimits::default(), updates, rows, threads)
    }

    /// The same with other memory limits.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_memory(
        memory: MemoryLimits,
        updates: Updates<'a>,
        mut rows: R,
        threads: usize,
    ) -> Result<Self, CoalitionError> {
        updates.check(rows.width(), rows.classes())?;
        if rows.rows() == 0 {
            return Err(InputError::NoRows.into());
        }
        let net = LayerStack::new(updates.model);
        let tile_bytes = TileWindow::tile_bytes(&net, updates.deltas.len());
        let tiles = rows.rows().div_ceil(TILE_ROWS);
        let window_tiles = (memory.window / tile_bytes).clamp(1, tiles);
        let mut deeper = vec![net.pack_deeper(updates.base, 1.0)];
        let own = updates.deltas.iter().zip(updates.shares);
        deeper.extend(own.map(|(delta, &share)| net.pack_deeper(delta, share)));
        let prepared = PreparedUpdates { updates, net, deeper, threads, window_tiles };
        let mut retained = None;
        if tiles.saturating_mul(tile_bytes) <= memory.retained {
            let mut windows = Vec::new();
            prepared.for_each_window(&mut rows, |window| windows.push(window))?;
            retained = Some(windows);
        }
        Ok(Self { prepared, rows, retained })
    }

    /// Number of players.
    pub fn players(&self) -> usize {
        self.prepared.updates.deltas.len()
    }

    /// The mean loss of each coalition, in nats.
    ///
    /// # Errors
    /// [`CoalitionError::Players`] for a batch of another number of players,
    /// [`CoalitionError::NotFinite`] for a model with a loss that is not finite, and errors of
    /// reading the rows.
    pub fn mean_losses(&mut self, masks: &CoalitionMasks) -> Result<Vec<f64>, CoalitionError> {
        let rows = self.rows.rows() as f64;
        let mut sums = self.results(masks, Quantity::Loss)?;
        sums.iter_mut().for_each(|sum| *sum /= rows);
        Ok(sums)
    }

    /// The loss of each row for each coalition, `[coalition][row]`, in nats.
    ///
    /// # Errors
    /// As [`mean_losses`](Self::mean_losses).
    pub fn row_losses(&mut self, masks: &CoalitionMasks) -> Result<Vec<Vec<f64>>, CoalitionError> {
        let all = self.results(masks, Quantity::Rows)?;
        Ok(all.chunks_exact(self.rows.rows()).map(<[f64]>::to_vec).collect())
    }

    /// Number of rows that each coalition classifies correctly.
    ///
    /// # Errors
    /// As [`mean_losses`](Self::mean_losses).
    pub fn correct_predictions(
        &mut self,
        masks: &CoalitionMasks,
    ) -> Result<Vec<usize>, CoalitionError> {
        let counts = self.results(masks, Quantity::CorrectPredictions)?;
        // Integers far below 2⁵³.
        Ok(counts.into_iter().map(|count| count as usize).collect())
    }

    /// The results of each coalition: one for all rows, or one per row.
    fn results(
        &mut self,
        masks: &CoalitionMasks,
        question: Quantity,
    ) -> Result<Vec<f64>, CoalitionError> {
        let (expected, got) = (self.players(), masks.players());
        if expected != got {
            return Err(CoalitionError::Players { expected, got });
        }
        let each = if question == Quantity::Rows { self.rows.rows() } else { 1 };
        let mut totals = CoalitionTotals {
            order: masks.prefix_order(),
            results_per_coalition: each,
            row: 0,
            values: vec![0.0; each * masks.len()],
        };
        let prepared = &self.prepared;
        match &self.retained {
            Some(windows) => {
                for window in windows {
                    prepared.measure(window, masks, question, &mut totals);
                }
            }
            None => prepared.for_each_window(&mut self.rows, |window| {
                prepared.measure(&window, masks, question, &mut totals);
            })?,
        }
        match totals.values.iter().position(|value| !value.is_finite()) {
            Some(at) => Err(CoalitionError::NotFinite { at: at / each }),
            None => Ok(totals.values),
        }
    }
}

/// The results so far.
struct CoalitionTotals {
    /// The coalitions in the order of the walk.
    order: Vec<u32>,
    /// Results per coalition: one, or one per row.
    results_per_coalition: usize,
    /// Rows so far.
    row: usize,
    /// `[coalition][result]`, in the order of the batch.
    values: Vec<f64>,
}

impl PreparedUpdates<'_> {
    /// One pass over the rows; calls `show` for each window.
    fn for_each_window(
        &self,
        rows: &mut dyn RowChunks,
        mut show: impl FnMut(TileWindow),
    ) -> Result<(), CoalitionError> {
        let Updates { base, deltas, shares, .. } = self.updates;
        let own = deltas.iter().zip(shares).map(|(&delta, &share)| (delta, share));
        let players: Vec<(&[f32], f64)> = std::iter::once((base, 1.0)).chain(own).collect();
        let mut filling = WindowBuilder::new(self.net.inputs, self.window_tiles);
        let (expected, mut got) = (rows.rows(), 0);
        rows.each_chunk(&mut |data| {
            got += data.rows();
            if got > expected {
                return ControlFlow::Break(());
            }
            let mut from = 0;
            while from < data.rows() {
                from += filling.add_rows(data, from);
                if filling.is_full() {
                    show(filling.finish(&self.net, &players, self.threads));
                }
            }
            ControlFlow::Continue(())
        })?;
        if got != expected {
            return Err(CoalitionError::RowCount { expected, got });
        }
        if !filling.is_empty() {
            show(filling.finish(&self.net, &players, self.threads));
        }
        Ok(())
    }

    /// Walks over all coalitions for one window, and adds their results, tile after tile.
    fn measure(
        &self,
        window: &TileWindow,
        masks: &CoalitionMasks,
        question: Quantity,
        totals: &mut CoalitionTotals,
    ) {
        let bytes = window.tiles() * question.results_per_tile() * size_of::<f64>();
        let most = (ANSWER_BYTES / bytes).max(1);
        let band = self.tiles_per_band(window.tiles());
        let bands = window.tiles().div_ceil(band);
        for first in (0..masks.len()).step_by(most) {
            let batch = &totals.order[first..masks.len().min(first + most)];
            let wanted = if self.threads > 1 { TASKS_PER_THREAD * self.threads } else { 1 };
            let segments = wanted.div_ceil(bands).min(batch.len().div_ceil(SEGMENT_MIN));
            let segment = batch.len().div_ceil(segments.max(1)).max(1);
            let plans: Vec<WalkPlan> =
                batch.chunks(segment).map(|order| WalkPlan::new(masks, order)).collect();
            let mut tasks = Vec::new();
            for plan in &plans {
                for from in (0..window.tiles()).step_by(band) {
                    let tiles = from..window.tiles().min(from + band);
                    let (net, deeper) = (&self.net, self.deeper.as_slice());
                    tasks.push(Walk { net, deeper, window, tiles, plan, question });
                }
            }
            let answers = parallel_map(self.threads, tasks, |walk| Arch::new().dispatch(walk));
            let batch = batch.to_vec();
            for (order, answers) in batch.chunks(segment).zip(answers.chunks(bands)) {
                totals.add(order, answers, question, window.rows());
            }
        }
        totals.row += window.rows();
    }

    /// Number of tiles that a walk processes together: more if the deeper layers have many
    /// parameters, which the walk sums once for all of them.
    fn tiles_per_band(&self, tiles: usize) -> usize {
        let band = match self.net.deeper_parameters() {
            0..4_096 => 1,
            4_096..262_144 => 4,
            _ => 16,
        };
        band.min(tiles)
    }
}

impl CoalitionTotals {
    /// Adds a window's results for the coalitions `order`: for each band of tiles
    /// `[coalition][tile][result]`.
    fn add(&mut self, order: &[u32], bands: &[Vec<f64>], question: Quantity, rows: usize) {
        let mut row = self.row;
        for band in bands {
            let per = band.len() / order.len();
            for (&coalition, answers) in order.iter().zip(band.chunks_exact(per)) {
                let own = coalition as usize * self.results_per_coalition;
                if question == Quantity::Rows {
                    let count = per.min(self.row + rows - row);
                    let to = own + row;
                    self.values[to..to + count].copy_from_slice(&answers[..count]);
                } else {
                    answers.iter().for_each(|answer| self.values[own] += answer);
                }
            }
            row += per;
        }
    }
}
