//! A batch in the parts of virtual workers, which are the micro-batches of a pipeline.

use std::ops::Range;

use rand_chacha::rand_core::Rng;

use super::net::GraphNet;
use crate::engine::BackendError;
use crate::rng::{Purpose, rng};
use crate::torch::ENGINE;
use crate::torch::batches::Rows;
use crate::torch::descent::Batch;

/// The part of a batch for one worker.
pub(in crate::torch) struct MicroBatch {
    pub(in crate::torch) number: u32,
    pub(in crate::torch) rows: Rows,
    /// The seed of its worker, from which dropout and stochastic depth draw.
    pub(in crate::torch) worker_seed: u64,
    /// The factor of its summed losses: the scale of the loss by the rows of the batch. So the gradient is
    /// that of the mean loss of the batch.
    pub(in crate::torch) share: f64,
    /// The factor of its buffers: the scale of the loss times its share of the batch's rows.
    pub(in crate::torch) weight: f64,
}

/// The micro-batches of a batch: the parts of its virtual workers.
pub(in crate::torch) struct MicroBatches<'b> {
    batch: &'b Batch,
    /// The rows of each part.
    ranges: Vec<Range<usize>>,
    seeds: Vec<u64>,
    /// Those of this process, or of its pipeline.
    own: Range<usize>,
    /// The scale of the loss.
    scale: f64,
}

impl<'b> MicroBatches<'b> {
    /// The parts of `workers` virtual workers of a training with this seed, all for this process.
    pub(in crate::torch) fn new(
        net: &GraphNet<'_>,
        batch: &'b Batch,
        workers: u32,
        seed: u64,
        scale: f64,
    ) -> Self {
        let ranges = net.parts(batch.rows.len(), workers);
        let (seeds, own) = (worker_seeds(seed, batch.step, ranges.len()), 0..ranges.len());
        Self { batch, ranges, seeds, own, scale }
    }

    /// The same with some of them for this process.
    pub(in crate::torch) fn with_own(self, own: Range<usize>) -> Self {
        Self { own, ..self }
    }

    /// Those of this process.
    pub(in crate::torch) fn own(&self) -> Range<usize> {
        self.own.clone()
    }

    /// Their number.
    pub(in crate::torch) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Rows of the largest one.
    pub(in crate::torch) fn rows_max(&self) -> usize {
        self.ranges.iter().map(Range::len).max().unwrap_or(0)
    }

    /// One of them.
    ///
    /// # Errors
    /// [`BackendError`] if there are fewer.
    pub(in crate::torch) fn get(&self, number: usize) -> Result<MicroBatch, BackendError> {
        let found = self.ranges.get(number).zip(self.seeds.get(number));
        let missing = || BackendError { engine: ENGINE, why: "a batch has fewer parts".to_owned() };
        let (range, &worker_seed) = found.ok_or_else(missing)?;
        let rows = self.batch.rows.part(range.start, range.len())?;
        let size = self.batch.rows.len() as f64;
        let (share, weight) = (self.scale / size, rows.len() as f64 / size * self.scale);
        Ok(MicroBatch { number: number as u32, rows, worker_seed, share, weight })
    }
}

/// The seeds of the workers in a step.
fn worker_seeds(seed: u64, step: u64, workers: usize) -> Vec<u64> {
    let mut seeds = rng(seed, Purpose::VirtualWorkers, step as u32);
    (0..workers).map(|_| seeds.next_u64()).collect()
}
