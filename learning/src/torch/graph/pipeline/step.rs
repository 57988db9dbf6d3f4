//! A step of a pipeline: the actions of a stage, and all stages in one process.

use std::collections::BTreeMap;
use std::ops::Range;

use tch::Tensor;

use super::super::net::GraphNet;
use super::super::virtual_workers::{loss_tail, worker_seeds};
use super::fault;
use super::links::{MessageTag, StageLinks};
use super::stage::{MicroBatch, Stage, StagePlan};
use crate::engine::{BackendError, TrainError};
use crate::pipeline::{PartAction, PipelineValue, Work, decode_message, encode_message};
use crate::torch::batches::Rows;
use crate::torch::descent::Batch;
use crate::torch::peers::TAIL;
use crate::virtual_workers::{Merge, merges_after};

/// The micro-batches of a batch: the parts of its virtual workers.
pub(in crate::torch) struct MicroBatches {
    rows: Vec<Rows>,
    seeds: Vec<u64>,
    /// Those of this process, or of its pipeline.
    own: Range<usize>,
    size: usize,
    /// The scale of the loss.
    scale: f64,
}

impl MicroBatches {
    /// The parts of `workers` virtual workers of a training with this seed.
    pub(in crate::torch) fn new(
        net: &GraphNet<'_>,
        batch: &Batch,
        workers: u32,
        seed: u64,
        scale: f64,
    ) -> Result<Self, BackendError> {
        let size = batch.rows.len();
        let parts = net.parts(size, workers);
        let seeds = worker_seeds(seed, batch.step, parts.len());
        let rows = parts.iter().map(|part| batch.rows.part(part.start, part.len()));
        let (own, rows) = (0..parts.len(), rows.collect::<Result<_, _>>()?);
        Ok(Self { rows, seeds, own, size, scale })
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
        self.rows.len()
    }

    fn get(&self, number: u32) -> Result<MicroBatch<'_>, BackendError> {
        let at = number as usize;
        let found = self.rows.get(at).zip(self.seeds.get(at));
        let (rows, &worker_seed) = found.ok_or_else(|| fault("a batch has fewer parts"))?;
        let share = self.scale / self.size as f64;
        let weight = rows.len() as f64 / self.size as f64 * self.scale;
        Ok(MicroBatch { number, rows, worker_seed, share, weight })
    }
}

/// The gradient of a stage over a subtree of micro-batches: of all travelling tensors, with a tail for the
/// summed loss.
struct StageSum {
    flat: Tensor,
    slots: Vec<Tensor>,
}

/// A stage with its sums.
pub(in crate::torch) struct StageStep<'n> {
    net: &'n GraphNet<'n>,
    stage: Stage<'n>,
    params: Tensor,
    /// The parts of a sum that belong to the stage.
    owned: Vec<Range<usize>>,
    sums: BTreeMap<usize, StageSum>,
    free: Vec<StageSum>,
    /// The values that were received, or are to be sent.
    message: Vec<PipelineValue>,
}

impl<'n> StageStep<'n> {
    /// Stage `part` of a plan, on aligned parameters with a tail.
    pub(in crate::torch) fn new(
        net: &'n GraphNet<'n>,
        plan: &StagePlan,
        part: u32,
        params: &Tensor,
    ) -> Result<Self, BackendError> {
        let stage = Stage::new(net, plan, part, net.aligned_views(params)?)?;
        let owned = elements_of(net, &stage);
        let params = params.shallow_clone();
        let (sums, free) = (BTreeMap::new(), Vec::new());
        Ok(Self { net, stage, params, owned, sums, free, message: Vec::new() })
    }

    /// Takes an action of a step, in the order of [`messages`].
    ///
    /// # Errors
    /// [`TrainError`] of the links, of an operator, or for a message that is not of the cut.
    pub(in crate::torch) fn act(
        &mut self,
        action: PartAction,
        batches: &MicroBatches,
        links: &mut dyn StageLinks,
    ) -> Result<(), TrainError> {
        match action {
            PartAction::Receive { from, kind, micro_batch } => {
                let bytes = links.receive(from, MessageTag { kind, micro_batch })?;
                self.message = decode_message(&bytes).map_err(BackendError::from)?;
            }
            PartAction::Send { to, kind, micro_batch } => {
                let values = std::mem::take(&mut self.message);
                let bytes = encode_message(&values).map_err(BackendError::from)?;
                links.send(to, MessageTag { kind, micro_batch }, bytes)?;
            }
            PartAction::Compute(Work::Forward(number)) => {
                let given = std::mem::take(&mut self.message);
                self.message = self.stage.forward(&batches.get(number)?, &given)?;
            }
            PartAction::Compute(Work::Backward(number)) => {
                let given = std::mem::take(&mut self.message);
                let sum = self.take_free()?;
                let batch = batches.get(number)?;
                let (message, loss) = self.stage.backward(&batch, &given, &sum.slots)?;
                self.message = message;
                if self.stage.is_last() {
                    let length = self.net.aligned_length() as i64;
                    sum.flat.f_narrow(0, length, TAIL)?.f_copy_(&loss_tail(loss)?)?;
                }
                self.sums.insert(number as usize, sum);
                for merge in merges_after(number as usize, &batches.own, batches.len()) {
                    self.merge(merge)?;
                }
            }
        }
        Ok(())
    }

    fn take_free(&mut self) -> Result<StageSum, BackendError> {
        if let Some(sum) = self.free.pop() {
            return Ok(sum);
        }
        let flat = self.params.f_zeros_like()?;
        let slots = self.net.aligned_views(&flat)?;
        Ok(StageSum { flat, slots })
    }

    /// The sum at a micro-batch.
    ///
    /// # Errors
    /// [`BackendError`] if it is not here.
    pub(in crate::torch) fn sum(&self, at: usize) -> Result<&Tensor, BackendError> {
        let sum = self.sums.get(&at).map(|sum| &sum.flat);
        sum.ok_or_else(|| fault("a sum of the tree is missing"))
    }

    /// The elements that the stage writes.
    #[cfg(test)]
    pub(super) fn owned(&self) -> &[Range<usize>] {
        &self.owned
    }

    /// Forgets the sum at a micro-batch.
    pub(in crate::torch) fn forget(&mut self, at: usize) {
        self.free.extend(self.sums.remove(&at));
    }

    /// Makes an addition whose two sums are here, in the parts of the stage.
    pub(in crate::torch) fn merge(&mut self, merge: Merge) -> Result<(), TrainError> {
        let Some(right) = self.sums.remove(&merge.from) else { return Ok(()) };
        let left = self.sums.get(&merge.into);
        let left = left.ok_or_else(|| fault("a sum of the tree is missing"))?;
        for range in &self.owned {
            let (from, length) = (range.start as i64, range.len() as i64);
            let mut sum = left.flat.f_narrow(0, from, length)?;
            let _ = sum.f_add_(&right.flat.f_narrow(0, from, length)?)?;
        }
        self.free.push(right);
        Ok(())
    }
}

/// The elements that part `part` of a plan writes, of an aligned vector with a tail.
///
/// # Errors
/// [`BackendError`] if the plan has no such part.
pub(in crate::torch) fn owned_ranges(
    net: &GraphNet<'_>,
    plan: &StagePlan,
    part: u32,
    params: &Tensor,
) -> Result<Vec<Range<usize>>, BackendError> {
    Ok(elements_of(net, &Stage::new(net, plan, part, net.aligned_views(params)?)?))
}

fn elements_of(net: &GraphNet<'_>, stage: &Stage<'_>) -> Vec<Range<usize>> {
    let ranges = net.aligned_ranges();
    let mut owned: Vec<Range<usize>> = Vec::new();
    for &place in stage.owned() {
        let range = ranges[place].clone();
        match owned.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => owned.push(range),
        }
    }
    if stage.is_last() {
        let length = net.aligned_length();
        owned.push(length..length + TAIL as usize);
    }
    owned
}
