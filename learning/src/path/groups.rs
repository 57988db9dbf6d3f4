//! Groups of rows, and their division into blocks for an engine.

use std::ops::{ControlFlow, Range};

use super::PathError;
use crate::data::{Dataset, RowChunks};
use crate::engine::{
    EVAL_CHUNK_ROWS, EvalError, Evaluator, InputError, ParameterSegment, SegmentPoint,
};

/// Contiguous groups of rows whose sizes differ by at most one, divided into blocks of at most
/// [`EVAL_CHUNK_ROWS`] rows. The blocks depend only on the number of rows and of groups, so that
/// chunks of any size give the same sums.
pub(super) struct RowGroups {
    rows: usize,
    /// Group and rows of each block.
    blocks: Vec<(usize, Range<usize>)>,
}

/// The rows of group `group` of `groups` contiguous ones.
pub const fn group_rows(rows: usize, group: usize, groups: usize) -> Range<usize> {
    rows * group / groups..rows * (group + 1) / groups
}

/// The summed losses of each of `groups` contiguous groups of rows, scaled so that the unweighted
/// mean over the groups is the mean over the rows, like the losses in
/// [`PathGradient`](super::PathGradient).
pub fn group_means(losses: &[f64], groups: usize) -> Vec<f64> {
    let scale = groups as f64 / losses.len() as f64;
    let rows = |group| group_rows(losses.len(), group, groups);
    (0..groups).map(|group| losses[rows(group)].iter().sum::<f64>() * scale).collect()
}

impl RowGroups {
    pub(super) fn new(rows: usize, groups: usize) -> Self {
        let mut blocks = Vec::new();
        for group in 0..groups {
            let Range { start: from, end: until } = group_rows(rows, group, groups);
            for start in (from..until).step_by(EVAL_CHUNK_ROWS) {
                blocks.push((group, start..until.min(start + EVAL_CHUNK_ROWS)));
            }
        }
        Self { rows, blocks }
    }

    /// One pass over the rows: calls `show` for each block and each of the `places` with the
    /// block's group, the index of the place, and the numbers there, as in
    /// [`Evaluator::evaluate_on_segment`].
    pub(super) fn evaluate_on_segment(
        &self,
        way: ParameterSegment<'_>,
        places: &[SegmentPoint],
        rows: &mut dyn RowChunks,
        engine: &mut dyn Evaluator,
        mut show: impl FnMut(usize, usize, &[f64]),
    ) -> Result<(), PathError> {
        self.for_each_run(rows, |data, blocks| {
            let Some((_, first)) = blocks.first() else { return Ok(()) };
            let start = first.start;
            let ranges: Vec<Range<usize>> =
                blocks.iter().map(|(_, own)| own.start - start..own.end - start).collect();
            engine.evaluate_on_segment(way, places, data, &ranges, &mut |block, place, numbers| {
                show(blocks[block].0, place, numbers);
            })
        })
    }

    /// One pass over the rows: calls `show` with runs of complete blocks and exactly their rows.
    fn for_each_run(
        &self,
        rows: &mut dyn RowChunks,
        mut show: impl FnMut(&Dataset, &[(usize, Range<usize>)]) -> Result<(), EvalError>,
    ) -> Result<(), PathError> {
        let mut runs = BlockAssembler { blocks: &self.blocks, row: 0, partial_block: None };
        let mut outcome = Ok(());
        rows.each_chunk(&mut |chunk| {
            // A source with too many rows is reported below.
            outcome = match runs.row + chunk.rows() <= self.rows {
                true => runs.consume(chunk, &mut show),
                false => Err(InputError::NoRows.into()),
            };
            runs.row += chunk.rows();
            if outcome.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let (expected, got) = (self.rows, runs.row);
        match outcome {
            _ if got > expected => Err(PathError::RowCount { expected, got }),
            Err(error) => Err(error.into()),
            Ok(()) if got < expected => Err(PathError::RowCount { expected, got }),
            Ok(()) => Ok(()),
        }
    }
}

/// Assembles chunks into blocks.
struct BlockAssembler<'a> {
    /// The remaining blocks.
    blocks: &'a [(usize, Range<usize>)],
    /// Number of rows so far.
    row: usize,
    /// The first rows of the next block, if the last chunk ended within it.
    partial_block: Option<(Vec<f32>, Vec<u32>)>,
}

impl BlockAssembler<'_> {
    /// Consumes the rows of `chunk`, which begin at `self.row`.
    fn consume(
        &mut self,
        chunk: &Dataset,
        show: &mut impl FnMut(&Dataset, &[(usize, Range<usize>)]) -> Result<(), EvalError>,
    ) -> Result<(), EvalError> {
        let end = self.row + chunk.rows();
        let mut from = 0;
        if let Some((features, labels)) = &mut self.partial_block {
            let Some((_, block)) = self.blocks.first() else { return Ok(()) };
            from = block.end.min(end) - self.row;
            features.extend_from_slice(&chunk.features()[..from * chunk.width()]);
            labels.extend_from_slice(&chunk.labels()[..from]);
            if block.end > end {
                return Ok(());
            }
            let (features, labels) = self.partial_block.take().unwrap_or_default();
            let block = Dataset::new(features, labels, chunk.width(), chunk.classes());
            show(&expect_valid(block), &self.blocks[..1])?;
            self.blocks = &self.blocks[1..];
        }
        let whole = self.blocks.iter().take_while(|(_, block)| block.end <= end).count();
        let (run, rest) = self.blocks.split_at(whole);
        self.blocks = rest;
        let until = run.last().map_or(from, |(_, last)| last.end - self.row);
        if until - from == chunk.rows() {
            return show(chunk, run);
        }
        if until > from {
            show(&expect_valid(chunk.slice(from..until)), run)?;
        }
        if until < chunk.rows() {
            let rest = expect_valid(chunk.slice(until..chunk.rows()));
            self.partial_block = Some((rest.features().to_vec(), rest.labels().to_vec()));
        }
        Ok(())
    }
}

fn expect_valid(rows: Result<Dataset, crate::data::DatasetError>) -> Dataset {
    rows.expect("a part of a valid data set is valid")
}
