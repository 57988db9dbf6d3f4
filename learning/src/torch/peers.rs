//! The other processes of a training by virtual workers.

use std::fmt;
use std::ops::Range;

use tch::Tensor;

use crate::data::Dataset;
use crate::engine::TrainError;
use crate::ranks::RankTraining;

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

/// The other processes of a training. Rank 0 takes the steps.
pub(super) trait Peers: fmt::Debug + Send {
    /// The rank of this process.
    fn rank(&self) -> u32;
    /// Announces a training by rank 0 on the rows that all ranks have.
    fn announce(&mut self, training: &RankTraining, data: &Dataset) -> Result<(), TrainError>;
    /// Whether the speed of the ranks is unknown.
    fn needs_speeds(&self) -> bool;
    /// Agrees on the assignment of virtual workers, with the seconds that one of them takes here if they
    /// were measured. `bytes` is the size of a gradient.
    fn assign(&mut self, seconds: Option<f64>, workers: u32, bytes: u64) -> Result<(), TrainError>;
    /// The parts of a batch of `parts` parts that this process computes.
    fn own(&self, parts: usize) -> Range<usize>;
    /// The rank that computes a part.
    fn owner(&self, part: usize) -> u32;
    /// Begins to send the sum at a part to a rank.
    fn send(&mut self, sum: &Tensor, to: u32, part: usize) -> Result<(), TrainError>;
    /// Receives the sum at a part from a rank, adds it to a sum, and returns a copy of it if `copies`.
    fn add_received(
        &mut self,
        sum: &Tensor,
        from: u32,
        part: usize,
        copies: bool,
    ) -> Result<Option<Tensor>, TrainError>;
    /// Waits until all sums are sent.
    fn finish_sends(&mut self) -> Result<(), TrainError>;
    /// Gives the parameters of rank 0 to all ranks.
    fn share(&mut self, params: &Tensor) -> Result<(), TrainError>;
}
