//! The values already evaluated of one game, so that an interrupted valuation can resume.

use std::collections::BTreeMap;

use crate::Coalition;

/// Largest number of floats in a cache: 128 MiB of values. Beyond it, coalitions are evaluated
/// again when they recur.
pub const CACHED_NUMBERS_MAX: usize = 1 << 24;

/// The evaluated coalitions of one game, with their values.
///
/// Pass it to a [`RunOptions`](crate::RunOptions) with [`with_cache`](crate::RunOptions::with_cache). When the game
/// fails, the cache contains every value evaluated so far except those of the unfinished
/// [`batch`](crate::Game::batch); a second run with the same cache asks the game only for the rest.
/// Both runs count used coalitions in the same way, so the result and its number of evaluations
/// equal those of an uninterrupted run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ValueCache {
    values: BTreeMap<Coalition, f64>,
    rows: BTreeMap<Coalition, Vec<f64>>,
    cached_numbers: usize,
}

impl ValueCache {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of coalitions with a known value.
    pub fn len(&self) -> usize {
        self.values.len() + self.rows.keys().filter(|key| !self.values.contains_key(*key)).count()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty() && self.rows.is_empty()
    }

    /// The known values by coalition, ascending: the table that a report can contain.
    pub fn values(&self) -> impl Iterator<Item = (&Coalition, f64)> {
        self.values.iter().map(|(coalition, worth)| (coalition, *worth))
    }

    /// Adds a value from another source, for example from a file.
    pub fn insert(&mut self, coalition: Coalition, worth: f64) {
        if self.cached_numbers < CACHED_NUMBERS_MAX
            && self.values.insert(coalition, worth).is_none()
        {
            self.cached_numbers += 1;
        }
    }

    pub(crate) fn insert_rows(&mut self, coalition: Coalition, rows: &[f64]) {
        if self.cached_numbers + rows.len() <= CACHED_NUMBERS_MAX
            && self.rows.insert(coalition, rows.to_vec()).is_none()
        {
            self.cached_numbers += rows.len();
        }
    }

    pub(crate) fn value(&self, coalition: &Coalition) -> Option<f64> {
        self.values.get(coalition).copied()
    }

    pub(crate) fn rows(&self, coalition: &Coalition) -> Option<&[f64]> {
        self.rows.get(coalition).map(Vec::as_slice)
    }
}
