//! A step of a pipeline: the actions of a stage, and all stages in one process.

use std::collections::BTreeMap;
use std::ops::Range;

use tch::{Device, Tensor};

use super::super::net::GraphNet;
use super::super::virtual_workers::{loss_tail, worker_seeds};
use super::fault;
use super::links::{LocalLinks, MessageTag, StageLinks};
use super::stage::{MicroBatch, Stage, StagePlan};
use crate::engine::{BackendError, TrainError};
use crate::pipeline::{
    PartAction, PipelineShape, PipelineValue, Work, decode_message, encode_message, messages,
    one_forward_one_backward,
};
use crate::torch::batches::Rows;
use crate::torch::descent::Batch;
use crate::torch::peers::TAIL;
use crate::virtual_workers::{Merge, merges, merges_after};

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

    /// Ends a step, and copies the own parts of the total to those of `flat`, which has a tail.
    ///
    /// # Errors
    /// [`TrainError`] if a micro-batch has no backward pass.
    pub(in crate::torch) fn finish(
        &mut self,
        batches: &MicroBatches,
        flat: &Tensor,
    ) -> Result<(), TrainError> {
        for merge in merges(batches.len()) {
            self.merge(merge)?;
        }
        let sum = self.sums.remove(&0);
        let sum = sum.ok_or_else(|| fault("a micro-batch has no backward pass"))?;
        for range in &self.owned {
            let (from, length) = (range.start as i64, range.len() as i64);
            flat.f_narrow(0, from, length)?.f_copy_(&sum.flat.f_narrow(0, from, length)?)?;
        }
        self.free.push(sum);
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

/// All stages of a pipeline in one process and one thread: for tests, and as the reference of a pipeline
/// on several ranks.
pub(in crate::torch) struct LocalPipeline<'n> {
    stages: Vec<StageStep<'n>>,
    params: Tensor,
    /// Bytes of the messages of the last step.
    pub(in crate::torch) sent_bytes: u64,
}

impl<'n> LocalPipeline<'n> {
    /// The stages of a plan, on aligned parameters with a tail.
    pub(in crate::torch) fn new(
        net: &'n GraphNet<'n>,
        plan: &StagePlan,
        params: &Tensor,
    ) -> Result<Self, BackendError> {
        let stages = (0..plan.parts()).map(|part| StageStep::new(net, plan, part, params));
        let stages = stages.collect::<Result<_, _>>()?;
        Ok(Self { stages, params: params.shallow_clone(), sent_bytes: 0 })
    }

    /// The gradient of a batch in the order 1F1B, with the summed loss in its tail: the bits of
    /// [`VirtualGradients`](super::super::virtual_workers::VirtualGradients).
    ///
    /// # Errors
    /// [`TrainError`] if an operator fails.
    pub(in crate::torch) fn gradient(
        &mut self,
        batches: &MicroBatches,
    ) -> Result<Tensor, TrainError> {
        let parts = self.stages.len() as u32;
        let shape = PipelineShape::new(parts, batches.len() as u32);
        let shape = shape.map_err(|error| fault(error.to_string()))?;
        let mut left: Vec<_> = (0..parts)
            .map(|part| messages(part, shape, one_forward_one_backward).into_iter().peekable())
            .collect();
        let mut links = LocalLinks::default();
        let mut has_moved = true;
        while has_moved {
            has_moved = false;
            for (part, (stage, actions)) in self.stages.iter_mut().zip(&mut left).enumerate() {
                links.part = part as u32;
                let is_ready = |action: &PartAction| match *action {
                    PartAction::Receive { from, kind, micro_batch } => {
                        links.has(from, MessageTag { kind, micro_batch })
                    }
                    _ => true,
                };
                if let Some(action) = actions.next_if(is_ready) {
                    stage.act(action, batches, &mut links)?;
                    has_moved = true;
                }
            }
        }
        if !links.is_empty() || left.iter_mut().any(|actions| actions.peek().is_some()) {
            return Err(fault("a pipeline has stopped before its end").into());
        }
        self.sent_bytes = links.sent_bytes;
        let flat = self.params.f_zeros_like()?;
        for stage in &mut self.stages {
            stage.finish(batches, &flat)?;
        }
        Ok(flat)
    }
}

/// The summed loss of a batch, from the tail of its gradient.
pub(in crate::torch) fn summed_loss(flat: &Tensor) -> Result<f64, BackendError> {
    let length = flat.size1()?;
    let tail = flat.f_narrow(0, length - TAIL, TAIL)?.f_to_device(Device::Cpu)?;
    let tail = Vec::<f32>::try_from(tail)?;
    Ok(f64::from(tail[0]) + f64::from(tail[1]))
}
