//! Training of a graph as a pipeline: each stage runs consecutive nodes, forward and backward, and
//! neighbours exchange the values that cross the cut between them, and their gradients (HyPar-Flow: Awan
//! et al., ISC 2020).
//!
//! ```text
//! stage 0 ── activations of micro-batch m ──▶ stage 1 ── … ──▶ stage P−1 ── losses
//!         ◀── their gradients ───────────────         ◀── … ──
//! ```
//!
//! The micro-batches are the virtual workers' parts of a batch. **The bits of the gradient are those of one
//! process**, for any cut:
//!
//! * A stage has all parameters, and runs the operators on tensors with the strides and the alignment of an
//!   uncut run.
//! * The gradient that comes back for a value is the first term of the sum at this value, as in an uncut
//!   pass, which begins with the last use. A parameter that several stages use is such a value, too: its
//!   gradient travels back to the first of them, which owns it.
//! * Each node draws from a seed of its own.
//! * Each stage adds its gradients over the micro-batches along the tree of
//!   [`merges`](crate::virtual_workers::merges).
//!
//! Where all ranks have the rows, the last stage takes labels and targets from its own rows, and only the
//! first one reads the features. Where rank 0 alone has them ([`PartPlacement::EndsTogether`]), it has the
//! first and the last stage. A parameter of both is handed from one to the other in the process, and no
//! parameter of theirs travels. Values that the owner receives are checked against the graph ([`forms`]).
//!
//! [`PartPlacement::EndsTogether`]: crate::pipeline::PartPlacement::EndsTogether
//!
//! Products of 16 bits are refused: a value of an autocast crosses in another type than the one in which its
//! gradients are added.

pub(in crate::torch) mod cost;
mod forms;
#[cfg(test)]
mod inverter_tests;
pub(in crate::torch) mod links;
#[cfg(test)]
mod local;
#[cfg(test)]
mod private_tests;
pub(in crate::torch) mod rank;
pub(in crate::torch) mod stage;
pub(in crate::torch) mod step;
#[cfg(test)]
mod tests;
mod travel;

use crate::engine::BackendError;
use crate::torch::ENGINE;

fn fault(why: impl Into<String>) -> BackendError {
    BackendError { engine: ENGINE, why: why.into() }
}
