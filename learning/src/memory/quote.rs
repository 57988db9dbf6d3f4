//! The quote of a step's memory: how long it takes in smaller memories.

use super::plan::{Admission, MemoryRates, Recompute, admit};
use super::trace::MemoryTrace;

/// Memories that are tried, in equal steps from none to that of all tensors.
const MEMORIES: u64 = 16;

/// A step in a smaller memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlannedMemory {
    /// Bytes of the memory.
    pub bytes: u64,
    /// Time of the step, as a multiple of that with all tensors in the memory.
    pub slow_down: f64,
}

/// The memory of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryQuote {
    /// Bytes of all tensors at once.
    pub bytes: u64,
    /// Smaller memories in which it fits by a plan, the largest first. The last one is the least.
    pub plans: Vec<PlannedMemory>,
}

/// Quotes a step on `rows` rows in several memories, each by [`admit`].
#[must_use]
pub fn quote_memory(
    trace: &MemoryTrace,
    rows: u32,
    rates: MemoryRates,
    recomputes: &[Recompute],
) -> MemoryQuote {
    let peak = trace.peak(rows);
    let at = |limit: u64| admit(trace, rows, (0, limit), rates, recomputes);
    let mut plans = Vec::new();
    for part in (1..MEMORIES).rev() {
        let bytes = (u128::from(peak) * u128::from(part) / u128::from(MEMORIES)) as u64;
        let (bytes, admitted) = match at(bytes) {
            Admission::TooLarge { needed, .. } => (needed, at(needed)),
            admitted => (bytes, admitted),
        };
        let Admission::FitsByPlan(plan) = admitted else { break };
        let slow_down = plan.slow_down;
        if plans.last().is_none_or(|last: &PlannedMemory| last.bytes > bytes) {
            plans.push(PlannedMemory { bytes, slow_down });
        }
    }
    MemoryQuote { bytes: peak, plans }
}
