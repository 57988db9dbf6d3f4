//! The memory of a training step: its trace, and plans for steps that are larger than the memory.
//!
//! A step on few rows is recorded at two sizes. The sizes of its allocations are linear in the rows, and
//! their order does not depend on them, so that the [`MemoryTrace`] gives the memory of a step of any
//! size. If that is above a limit, a [`MemoryPlan`] states for each tensor that the backward pass needs
//! whether it stays, is written to a file and read again in time, or is computed again (OC-DNN: Awan et
//! al., HiPC 2018; recomputation: Chen et al. 2016).

mod plan;
#[cfg(test)]
mod plan_tests;
mod quote;
mod settings;
mod trace;
#[cfg(test)]
mod trace_tests;

pub use plan::{Admission, MemoryPlan, MemoryRates, PlannedBuffer, Recompute, SavedRule, admit};
pub use quote::{MemoryQuote, PlannedMemory, quote_memory};
pub use settings::{MemoryError, MemoryNews, MemorySettings};
pub use trace::{LastAlive, MemoryTrace, SavedBuffer, TapeEvent, TapeEventKind, TraceError};
