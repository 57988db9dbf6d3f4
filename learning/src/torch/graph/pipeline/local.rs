//! All stages of a pipeline in one process and one thread, for tests.

use std::collections::BTreeMap;

use tch::Tensor;

use super::super::micro_batches::MicroBatches;
use super::super::net::GraphNet;
use super::fault;
use super::links::{MessageTag, StageLinks};
use super::stage::StagePlan;
use super::step::StageStep;
use crate::engine::{BackendError, TrainError};
use crate::pipeline::{PartAction, PipelineShape, messages, one_forward_one_backward};
use crate::torch::partial_sums::elements_of;
use crate::virtual_workers::merges;

/// The messages on their way between stages of one process.
#[derive(Debug, Default)]
pub(in crate::torch) struct LocalLinks {
    /// The stage whose links these are now.
    pub(super) part: u32,
    messages: BTreeMap<(u32, u32, MessageTag), Vec<u8>>,
    /// Bytes sent so far.
    pub(super) sent_bytes: u64,
}

impl LocalLinks {
    /// Whether a message for the stage has arrived.
    pub(super) fn has(&self, from: u32, tag: MessageTag) -> bool {
        self.messages.contains_key(&(from, self.part, tag))
    }

    /// Whether no message is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

impl StageLinks for LocalLinks {
    fn send(&mut self, to: u32, tag: MessageTag, message: Vec<u8>) -> Result<(), TrainError> {
        self.sent_bytes += message.len() as u64;
        match self.messages.insert((self.part, to, tag), message) {
            None => Ok(()),
            Some(_) => Err(fault("a message of a pipeline is sent twice").into()),
        }
    }

    fn receive(&mut self, from: u32, tag: MessageTag) -> Result<Vec<u8>, TrainError> {
        let found = self.messages.remove(&(from, self.part, tag));
        Ok(found.ok_or_else(|| fault("a message of a pipeline is missing"))?)
    }
}

impl StageStep<'_> {
    /// Ends a step, and copies the own parts of the total to those of `flat`, which has a tail.
    ///
    /// # Errors
    /// [`TrainError`] if a micro-batch has no backward pass.
    pub(in crate::torch) fn finish(
        &mut self,
        batches: &MicroBatches<'_>,
        flat: &Tensor,
    ) -> Result<(), TrainError> {
        for merge in merges(batches.len()) {
            self.merge(merge)?;
        }
        let sum = self.sum(0)?;
        for range in self.owned() {
            elements_of(flat, range)?.f_copy_(&elements_of(sum, range)?)?;
        }
        self.forget(0);
        Ok(())
    }
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
        batches: &MicroBatches<'_>,
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

mod tests {
    use crate::pipeline::MessageKind;

    use super::*;

    #[test]
    fn a_message_arrives_once_at_its_stage() {
        let tag = MessageTag { kind: MessageKind::Gradient, micro_batch: 3 };
        let other = MessageTag { kind: MessageKind::Activation, ..tag };
        assert_eq!((tag.number(), other.number()), (7, 6));
        let mut links = LocalLinks { part: 1, ..LocalLinks::default() };
        links.send(0, tag, vec![1, 2]).unwrap();
        assert!(links.send(0, tag, vec![1, 2]).is_err());
        links.part = 0;
        assert!(links.has(1, tag) && !links.has(1, other) && !links.has(2, tag));
        assert!(links.receive(1, other).is_err());
        assert_eq!(links.receive(1, tag).unwrap(), [1, 2]);
        assert!(links.receive(1, tag).is_err());
        assert_eq!(links.sent_bytes, 4);
    }
}
