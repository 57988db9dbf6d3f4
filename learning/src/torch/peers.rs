//! The other processes of a training by virtual workers.

use std::fmt;
use std::ops::Range;

use tch::Tensor;

use super::partial_sums::{PartialSums, ReadyElements};
use crate::data::Dataset;
use crate::engine::TrainError;
use crate::pipeline::PinnedCut;
use crate::ranks::{PipelinePlace, RankSpeed, RankTraining};
use crate::virtual_workers::TransferCost;

/// Numbers behind a gradient, for its summed loss, and behind parameters, for [`Control`].
pub(super) const TAIL: i64 = 16;

/// The statement of rank 0 with the parameters of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Control {
    /// The next step follows.
    Next,
    /// The same step again, with another scale of the loss.
    Again,
    /// The training has ended.
    End,
}

impl Control {
    /// The number that travels.
    pub(super) fn number(self) -> f32 {
        match self {
            Self::Next => 0.0,
            Self::Again => 1.0,
            Self::End => 2.0,
        }
    }

    /// The reverse; any other number ends the training.
    #[cfg(feature = "distributed")]
    pub(super) fn of(number: f32) -> Self {
        [Self::Next, Self::Again]
            .into_iter()
            .find(|one| one.number() == number)
            .unwrap_or(Self::End)
    }
}

/// A sum that rank 0 has received, for a comparison with what the rows of its parts give.
pub(super) struct ReceivedSum {
    /// The rank that sent it.
    pub(super) from: u32,
    /// The parts whose sum it is.
    pub(super) parts: Range<usize>,
    /// Its elements, from their first one on.
    pub(super) pieces: Vec<(u64, Tensor)>,
}

/// Where a graph is to be cut.
#[cfg_attr(not(feature = "distributed"), expect(dead_code, reason = "there are no ranks"))]
pub(super) enum CutCosts {
    /// Where it was stated.
    Pinned(PinnedCut),
    /// As in the training before: the nodes of each part.
    Known(Vec<Range<usize>>),
    /// By the seconds of each part's ranks relative to rank 0, and the links between parts.
    Measured {
        /// Of the slowest rank with a part.
        slowness: Vec<f64>,
        /// From each part but the last to the next.
        links: Vec<TransferCost>,
    },
}

/// A cut that rank 0 has found.
#[cfg_attr(not(feature = "distributed"), expect(dead_code, reason = "there are no ranks"))]
pub(super) struct FoundCut {
    /// The nodes of each part.
    pub(super) nodes: Vec<Range<usize>>,
    /// Seconds of the slowest part for one worker, if they are known.
    pub(super) stage_seconds: Option<f64>,
    /// Parts of a full batch.
    pub(super) micro_batches: usize,
}

/// Numbers of rank 0 that are on their way to this process, or from it.
pub(super) trait Arrival {
    /// Waits until they are in their tensor.
    fn wait(self: Box<Self>) -> Result<(), TrainError>;
}

/// The other processes of a training. Rank 0 takes the steps.
pub(super) trait Peers: fmt::Debug + Send {
    /// The rank of this process.
    fn rank(&self) -> u32;
    /// Announces a training by rank 0 on the rows that all ranks have.
    fn announce(&mut self, training: &RankTraining, data: &Dataset) -> Result<(), TrainError>;
    /// Whether the speed of the ranks is unknown.
    fn needs_speeds(&self) -> bool;
    /// Agrees on the assignment of virtual workers and on the plan of the reduction, with the speed of this
    /// rank if it was measured. A gradient has `elements` numbers.
    fn assign(
        &mut self,
        speed: Option<RankSpeed>,
        workers: u32,
        elements: u64,
    ) -> Result<(), TrainError>;
    /// The parts of a batch of `parts` parts that this process, or its pipeline, computes.
    fn own(&self, parts: usize) -> Range<usize>;
    /// The rank, or the pipeline, that computes a part.
    fn owner(&self, part: usize) -> u32;
    /// Whether rank 0 has the time to compute the sum of this number of parts, while the others wait.
    fn can_audit(&self, parts: usize) -> bool;
    /// Whether numbers travel while others are computed.
    fn overlaps(&self) -> bool;
    /// The least bytes of parameters that travel together.
    fn bucket_bytes(&self) -> u64;
    /// Adds the sums of all ranks for a batch of `parts` parts; waits for the elements that are `ready`
    /// here. The total is then at rank 0, at part 0. Returns a received sum that `audit` draws, at rank 0.
    fn reduce(
        &mut self,
        sums: &mut PartialSums,
        parts: usize,
        ready: &ReadyElements,
        audit: Option<u64>,
    ) -> Result<Option<ReceivedSum>, TrainError>;
    /// The place of this rank in its pipeline, if it computes a part of the graph.
    fn pipeline(&self) -> Option<PipelinePlace>;
    /// The stated cut, or the ranks' costs for one, at rank 0.
    fn cut_costs(&self) -> CutCosts;
    /// Agrees on the nodes of each part, which rank 0 has found.
    fn agree_on_cut(&mut self, found: Option<FoundCut>) -> Result<Vec<Range<usize>>, TrainError>;
    /// Begins to send a tensor of the CPU to a rank. Waits until at most `open` sends to it have not ended.
    fn send(&mut self, tensor: &Tensor, to: u32, tag: u32, open: usize) -> Result<(), TrainError>;
    /// Receives a tensor of the CPU from a rank.
    fn receive(&mut self, tensor: &Tensor, from: u32, tag: u32) -> Result<(), TrainError>;
    /// Waits until everything is sent.
    fn finish_sends(&mut self) -> Result<(), TrainError>;
    /// Begins to give numbers of rank 0 to the same tensor of all ranks. They must not change before they
    /// have arrived.
    fn broadcast(&mut self, tensor: &Tensor) -> Result<Box<dyn Arrival>, TrainError>;
}
