//! Groups of rows, and the draws of a replay.

use std::ops::Range;

use florin_contribution::SeededRng;
use florin_learning::Dataset;
use florin_learning::path::group_rows;

use crate::round::WorkError;
use crate::round_source::ROW_GROUPS;

/// The parts into which a transcript's draws are counted.
pub const TRANSCRIPT_PARTS: u32 = 32;

/// How much of a transcript is computed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TranscriptSample {
    /// Seed of the draws. The writer of the transcript must not know it.
    pub seed: u64,
    /// Drawn groups of 32 groups of rows, and drawn segments of 32 segments: rounded up, at least 1.
    pub parts_of_32: u32,
}

/// The draws of a replay.
pub(super) struct ReplayDraws {
    rng: SeededRng,
    parts_of_32: u32,
}

impl ReplayDraws {
    pub(super) fn new(sample: TranscriptSample) -> Self {
        Self { rng: SeededRng::new(sample.seed, 0), parts_of_32: sample.parts_of_32 }
    }

    /// Distinct numbers below `count`, ascending.
    pub(super) fn draw(&mut self, count: usize) -> Vec<usize> {
        let parts = usize::try_from(self.parts_of_32).unwrap_or(usize::MAX);
        let wanted = count.saturating_mul(parts).div_ceil(TRANSCRIPT_PARTS as usize);
        let wanted = wanted.clamp(1, count.max(1));
        let mut drawn = self.rng.permutation(count);
        drawn.truncate(wanted);
        drawn.sort_unstable();
        drawn
    }
}

/// Contiguous groups of rows whose sizes differ by at most one.
#[derive(Clone, Copy)]
pub(super) struct RowGroups {
    rows: usize,
    pub(super) count: usize,
}

impl RowGroups {
    /// The groups in which rows are drawn.
    pub(super) fn of(rows: usize) -> Self {
        Self { rows, count: rows.min(ROW_GROUPS) }
    }

    /// The same with another number of groups, at most the rows.
    pub(super) const fn with_count(self, count: usize) -> Self {
        Self { count, ..self }
    }

    pub(super) const fn range(self, group: usize) -> Range<usize> {
        group_rows(self.rows, group, self.count)
    }

    /// The factor that turns a mean over the rows of a group into a cell: the mean of the cells is the mean
    /// over all rows.
    pub(super) fn share(self, group: usize) -> f64 {
        self.range(group).len() as f64 * self.count as f64 / self.rows as f64
    }

    /// The indices of the rows of some groups.
    pub(super) fn rows_of(self, groups: &[usize]) -> Vec<usize> {
        groups.iter().flat_map(|group| self.range(*group)).collect()
    }
}

/// Some rows of a data set.
pub(super) fn subset(data: &Dataset, rows: &[usize]) -> Result<Dataset, WorkError> {
    data.subset(rows).map_err(|error| WorkError::Model(error.to_string()))
}
