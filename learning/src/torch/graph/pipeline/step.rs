//! A step of a pipeline: the actions of a stage.

use std::ops::Range;

use tch::Tensor;

use super::super::micro_batches::MicroBatches;
use super::super::net::GraphNet;
use super::super::virtual_workers::loss_tail;
use super::links::{MessageTag, StageLinks};
use super::stage::{Stage, StagePlan};
use crate::engine::{BackendError, TrainError};
use crate::pipeline::{PartAction, PartEvent, PipelineValue, Work, decode_message, encode_message};
use crate::ranks::{RankError, RankErrorCode};
use crate::torch::partial_sums::PartialSums;
use crate::torch::peers::TAIL;
use crate::virtual_workers::{Merge, merges_after};

/// The stages of a process, in their order.
pub(in crate::torch) struct ProcessStages<'n>(Vec<StageStep<'n>>);

impl<'n> ProcessStages<'n> {
    /// The stages of a process of the plan's pipeline, on aligned parameters with a tail.
    ///
    /// # Errors
    /// [`BackendError`] if the plan has no such stages.
    pub(in crate::torch) fn new(
        net: &'n GraphNet<'n>,
        plan: &StagePlan,
        process: u32,
        params: &Tensor,
    ) -> Result<Self, BackendError> {
        let parts = plan.placement().parts_of(process, plan.parts());
        let stages = parts.map(|part| StageStep::new(net, plan, part, params));
        Ok(Self(stages.collect::<Result<_, _>>()?))
    }

    /// Takes an action of a step.
    ///
    /// # Errors
    /// [`TrainError`] of the links, or of an operator; [`RankErrorCode::Differs`] for a message with other
    /// values than those of the graph.
    pub(in crate::torch) fn act(
        &mut self,
        event: PartEvent,
        batches: &MicroBatches<'_>,
        links: &mut dyn StageLinks,
    ) -> Result<(), TrainError> {
        let Some(at) = self.0.iter().position(|own| own.part == event.part) else {
            return Err(super::fault("an action is of another process").into());
        };
        self.0[at].act(event.action, batches, links)?;
        if let PartAction::Compute(Work::Backward(number)) = event.action
            && let Some(handed) = self.0[at].stage.take_handed(number)
            && let Some(first) = self.0.first_mut()
        {
            first.stage.hand(number, handed);
        }
        Ok(())
    }

    /// The stages.
    pub(in crate::torch) fn all(&mut self) -> &mut [StageStep<'n>] {
        &mut self.0
    }
}

/// A stage with its sums.
pub(in crate::torch) struct StageStep<'n> {
    net: &'n GraphNet<'n>,
    /// The number of the stage.
    part: u32,
    stage: Stage<'n>,
    /// The elements of a sum that belong to the stage.
    owned: Vec<Range<usize>>,
    sums: PartialSums,
    /// The values that were received, or are to be sent.
    message: Vec<PipelineValue>,
}

impl<'n> StageStep<'n> {
    /// Stage `part` of a plan, on aligned parameters with a tail.
    fn new(
        net: &'n GraphNet<'n>,
        plan: &StagePlan,
        part: u32,
        params: &Tensor,
    ) -> Result<Self, BackendError> {
        let stage = Stage::new(net, plan, part, net.aligned_views(params)?)?;
        let owned = elements_of(net, &stage);
        Ok(Self { net, part, stage, owned, sums: PartialSums::new(params), message: Vec::new() })
    }

    /// The number of the stage.
    pub(in crate::torch) fn part(&self) -> u32 {
        self.part
    }

    /// Takes an action of the stage.
    fn act(
        &mut self,
        action: PartAction,
        batches: &MicroBatches<'_>,
        links: &mut dyn StageLinks,
    ) -> Result<(), TrainError> {
        match action {
            PartAction::Receive { from, kind, micro_batch } => {
                let batch = batches.get(micro_batch as usize)?;
                let (tag, bytes_max) =
                    (MessageTag { kind, micro_batch }, self.stage.bytes_max(&batch, kind)?);
                let bytes = links.receive(from, self.part, tag, bytes_max)?;
                let differs = |why: String| {
                    let why = format!(
                        "the rank of part {from} has sent other values than those of the graph: {why}. \
                         Check the program of its machine, or leave it out"
                    );
                    RankError::new(RankErrorCode::Differs, why)
                };
                self.message =
                    decode_message(&bytes).map_err(|error| differs(error.to_string()))?;
                self.stage.check_message(&batch, kind, &self.message)?.map_err(differs)?;
            }
            PartAction::Send { to, kind, micro_batch } => {
                let values = std::mem::take(&mut self.message);
                let bytes = encode_message(&values).map_err(BackendError::from)?;
                links.send(self.part, to, MessageTag { kind, micro_batch }, bytes)?;
            }
            PartAction::Compute(Work::Forward(number)) => {
                let given = std::mem::take(&mut self.message);
                self.message = self.stage.forward(&batches.get(number as usize)?, &given)?;
            }
            PartAction::Compute(Work::Backward(number)) => {
                let given = std::mem::take(&mut self.message);
                let views = |flat: &_| self.net.aligned_views(flat);
                let sum = self.sums.with_views(number as usize, views)?;
                let batch = batches.get(number as usize)?;
                let (message, loss) = self.stage.backward(&batch, &given, &sum.views)?;
                self.message = message;
                if self.stage.is_last() {
                    sum.tail()?.f_copy_(&loss_tail(loss)?)?;
                }
                for merge in merges_after(number as usize, &batches.own(), batches.len()) {
                    self.merge(merge)?;
                }
            }
        }
        Ok(())
    }

    /// The sum at a micro-batch.
    ///
    /// # Errors
    /// [`BackendError`] if it is not here.
    pub(in crate::torch) fn sum(&self, at: usize) -> Result<&Tensor, BackendError> {
        Ok(&self.sums.get(at)?.flat)
    }

    /// The elements that the stage writes.
    #[cfg(test)]
    pub(super) fn owned(&self) -> &[Range<usize>] {
        &self.owned
    }

    /// Forgets the sum at a micro-batch.
    pub(in crate::torch) fn forget(&mut self, at: usize) {
        self.sums.forget(at);
    }

    /// Makes an addition whose two sums are here, in the parts of the stage.
    pub(in crate::torch) fn merge(&mut self, merge: Merge) -> Result<(), TrainError> {
        Ok(self.sums.merge(merge, &self.owned)?)
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
