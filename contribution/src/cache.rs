//! What is already known of a game, so that a valuation that died half-way goes on where it was.

use std::collections::BTreeMap;

use crate::Coalition;

/// Most numbers a cache keeps: 128 MiB of worths. Beyond it coalitions are evaluated again when
/// they come back.
pub const CACHED_NUMBERS_MAX: usize = 1 << 24;

/// The worths of coalitions that were evaluated, of one game.
///
/// Lend it to a [`Run`](crate::Run) with [`remembering`](crate::Run::remembering); when the game
/// fails, everything evaluated until then is in it, but an unfinished
/// [`batch`](crate::Game::batch), and a second run with the same cache asks the game only for the
/// rest. Both runs count what they used alike, so the result and its number of evaluations are
/// those of a run that was never interrupted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cache {
    worths: BTreeMap<Coalition, f64>,
    rows: BTreeMap<Coalition, Vec<f64>>,
    numbers: usize,
}

impl Cache {
    /// Knows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many coalitions it knows the worth of.
    pub fn len(&self) -> usize {
        self.worths.len() + self.rows.keys().filter(|key| !self.worths.contains_key(*key)).count()
    }

    /// Whether it knows nothing.
    pub fn is_empty(&self) -> bool {
        self.worths.is_empty() && self.rows.is_empty()
    }

    /// What is known by coalition, ascending: the table that a report may carry.
    pub fn worths(&self) -> impl Iterator<Item = (&Coalition, f64)> {
        self.worths.iter().map(|(coalition, worth)| (coalition, *worth))
    }

    /// Teaches it a worth from elsewhere, for example from a file.
    pub fn insert(&mut self, coalition: Coalition, worth: f64) {
        if self.numbers < CACHED_NUMBERS_MAX && self.worths.insert(coalition, worth).is_none() {
            self.numbers += 1;
        }
    }

    pub(crate) fn insert_rows(&mut self, coalition: Coalition, rows: &[f64]) {
        if self.numbers + rows.len() <= CACHED_NUMBERS_MAX
            && self.rows.insert(coalition, rows.to_vec()).is_none()
        {
            self.numbers += rows.len();
        }
    }

    pub(crate) fn worth(&self, coalition: &Coalition) -> Option<f64> {
        self.worths.get(coalition).copied()
    }

    pub(crate) fn rows(&self, coalition: &Coalition) -> Option<&[f64]> {
        self.rows.get(coalition).map(Vec::as_slice)
    }
}
