//! The other processes of a training by virtual workers.

use std::fmt;
use std::ops::Range;

use tch::Tensor;

use super::partial_sums::{PartialSums, ReadyElements};
use crate::data::Dataset;
use crate::engine::TrainError;
use crate::ranks::{RankSpeed, RankTraining};

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
    /// The parts of a batch of `parts` parts that this process computes.
    fn own(&self, parts: usize) -> Range<usize>;
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
    /// Begins to give numbers of rank 0 to the same tensor of all ranks. They must not change before they
    /// have arrived.
    fn broadcast(&mut self, tensor: &Tensor) -> Result<Box<dyn Arrival>, TrainError>;
}
