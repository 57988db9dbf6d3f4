//! Reduction: the sums of virtual workers from all ranks become the total at rank 0.
//!
//! The additions are those of the tree of [`merges`](crate::virtual_workers::merges), in every
//! plan, so that all plans give the same bits. A [`ReductionPlan`] chooses the rank at which each
//! addition is made, chunk by chunk: at rank 0, along the tree, or by recursive halving. `best`
//! searches the plan of the least simulated seconds. The design follows S-Caffe (Awan, Hamidouche,
//! Hashmi and Panda, PPoPP 2017): levels of different algorithms, chunks that are pipelined,
//! transfers that begin during the backward pass, and sizes from a cost model. A chain inside a
//! group, as S-Caffe has it, would change the order of the additions, and so the bits; halving
//! takes its place.

mod actions;
mod buckets;
mod cost;
#[cfg(test)]
mod execute;
mod plan;
mod simulation;

pub use actions::{PieceTransfer, ReductionAction};
pub use buckets::{LATENCY_SHARE_MAX, bucket_bytes, buckets};
pub use cost::{
    BestReduction, ReadyStep, ReducedSums, ReductionCosts, ReductionError, best, seconds,
};
pub use plan::{CHUNKS_MAX, LevelRules, ReductionPlan, ReductionPlanError, ReductionRule};

/// The rank at which the total is needed.
const ROOT: u32 = 0;
/// Bytes of an element, a 32-bit float.
const ELEMENT_BYTES: u64 = 4;
