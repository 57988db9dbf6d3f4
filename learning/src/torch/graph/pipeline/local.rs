//! All stages of a pipeline in one process and one thread, for tests.

use std::collections::BTreeMap;

use tch::Tensor;

use super::super::micro_batches::MicroBatches;
use super::super::net::GraphNet;
use super::fault;
use super::links::{MessageTag, StageLinks};
use super::stage::StagePlan;
use super::step::{ProcessStages, StageStep};
use crate::engine::{BackendError, TrainError};
use crate::pipeline::{PartAction, PartEvent, PartPlacement, PipelineShape};
use crate::ranks::{RankError, RankErrorCode};
use crate::torch::partial_sums::elements_of;
use crate::virtual_workers::merges;

/// A message with its stages.
type LocalMessage = (u32, u32, MessageTag);

/// The messages on their way between stages of one process.
#[derive(Debug, Default)]
pub(in crate::torch) struct LocalLinks {
    messages: BTreeMap<LocalMessage, Vec<u8>>,
    /// All messages so far.
    pub(super) sent: Vec<(LocalMessage, Vec<u8>)>,
    /// A message that is replaced on its way.
    pub(super) forged: Option<(LocalMessage, Vec<u8>)>,
}

impl LocalLinks {
    /// Whether a message for a stage has arrived.
    pub(super) fn has(&self, from: u32, to: u32, tag: MessageTag) -> bool {
        self.messages.contains_key(&(from, to, tag))
    }

    /// Whether no message is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

impl StageLinks for LocalLinks {
    fn send(
        &mut self,
        from: u32,
        to: u32,
        tag: MessageTag,
        message: Vec<u8>,
    ) -> Result<(), TrainError> {
        let forged = self.forged.take_if(|(place, _)| *place == (from, to, tag));
        self.sent.push(((from, to, tag), message.clone()));
        let message = forged.map_or(message, |(_, forged)| forged);
        match self.messages.insert((from, to, tag), message) {
            None => Ok(()),
            Some(_) => Err(fault("a message of a pipeline is sent twice").into()),
        }
    }

    fn receive(
        &mut self,
        from: u32,
        to: u32,
        tag: MessageTag,
        bytes_max: u64,
    ) -> Result<Vec<u8>, TrainError> {
        let found = self.messages.remove(&(from, to, tag));
        let found = found.ok_or_else(|| fault("a message of a pipeline is missing"))?;
        match found.len() as u64 <= bytes_max {
            true => Ok(found),
            false => {
                let why = "a message of a pipeline is too long";
                Err(RankError::new(RankErrorCode::Differs, why).into())
            }
        }
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

/// All processes of a pipeline in one process and one thread: for tests, and as the reference of a pipeline
/// on several ranks.
pub(in crate::torch) struct LocalPipeline<'n> {
    processes: Vec<ProcessStages<'n>>,
    placement: PartPlacement,
    parts: u32,
    params: Tensor,
    /// The messages of the last step.
    pub(super) links: LocalLinks,
}

impl<'n> LocalPipeline<'n> {
    /// The stages of a plan, on aligned parameters with a tail.
    pub(in crate::torch) fn new(
        net: &'n GraphNet<'n>,
        plan: &StagePlan,
        params: &Tensor,
    ) -> Result<Self, BackendError> {
        Self::with_params(net, plan, &|_| params.shallow_clone())
    }

    /// The same with parameters for each process.
    pub(super) fn with_params(
        net: &'n GraphNet<'n>,
        plan: &StagePlan,
        params: &dyn Fn(u32) -> Tensor,
    ) -> Result<Self, BackendError> {
        let (placement, parts) = (plan.placement(), plan.parts());
        let count = 1 + (0..parts).map(|part| placement.process(part, parts)).max().unwrap_or(0);
        let processes = (0..count).map(|own| ProcessStages::new(net, plan, own, &params(own)));
        let processes = processes.collect::<Result<_, _>>()?;
        Ok(Self { processes, placement, parts, params: params(0), links: LocalLinks::default() })
    }

    /// Bytes of the messages of the last step.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.links.sent.iter().map(|(_, message)| message.len() as u64).sum()
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
        self.gradient_of(&|_| batches)
    }

    /// The same with the rows of each process.
    pub(super) fn gradient_of<'b, 'r: 'b>(
        &mut self,
        batches: &dyn Fn(usize) -> &'b MicroBatches<'r>,
    ) -> Result<Tensor, TrainError> {
        let shape = PipelineShape::new(self.parts, batches(0).len() as u32);
        let shape = shape.map_err(|error| fault(error.to_string()))?;
        let mut left: Vec<_> = (0..self.processes.len() as u32)
            .map(|process| self.placement.actions(process, shape).into_iter().peekable())
            .collect();
        let links = &mut self.links;
        links.sent.clear();
        let mut has_moved = true;
        while has_moved {
            has_moved = false;
            for (at, (stages, events)) in self.processes.iter_mut().zip(&mut left).enumerate() {
                let is_ready = |event: &PartEvent| match event.action {
                    PartAction::Receive { from, kind, micro_batch } => {
                        links.has(from, event.part, MessageTag { kind, micro_batch })
                    }
                    _ => true,
                };
                if let Some(event) = events.next_if(is_ready) {
                    stages.act(event, batches(at), links)?;
                    has_moved = true;
                }
            }
        }
        if !links.is_empty() || left.iter_mut().any(|events| events.peek().is_some()) {
            return Err(fault("a pipeline has stopped before its end").into());
        }
        let flat = self.params.f_zeros_like()?;
        for stage in self.processes.iter_mut().flat_map(ProcessStages::all) {
            stage.finish(batches(0), &flat)?;
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
        let mut links = LocalLinks::default();
        links.send(1, 0, tag, vec![1, 2]).unwrap();
        assert!(links.send(1, 0, tag, vec![1, 2]).is_err());
        assert!(links.has(1, 0, tag) && !links.has(1, 0, other) && !links.has(2, 0, tag));
        assert!(links.receive(1, 0, other, 9).is_err());
        assert_eq!(links.receive(1, 0, tag, 9).unwrap(), [1, 2]);
        assert!(links.receive(1, 0, tag, 9).is_err());
        assert_eq!(links.sent.len(), 2);
        links.forged = Some(((0, 1, other), vec![3]));
        links.send(0, 1, other, vec![1, 2]).unwrap();
        assert!(links.receive(0, 1, other, 0).is_err(), "it is too long");
        links.send(0, 1, other, vec![4]).unwrap();
        assert_eq!(links.receive(0, 1, other, 1).unwrap(), [4], "one message was forged");
    }
}
