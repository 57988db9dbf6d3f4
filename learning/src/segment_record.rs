//! The record of a training of a segment.

use crate::checkpoint::TrainingState;
use crate::engine::{TrainError, TrainedSegment};

/// A segment, and its states.
pub(crate) struct SegmentRecord {
    to: u64,
    /// Digests of the states after each step, where they are asked for.
    trace: Option<Vec<[u8; 32]>>,
    end: Option<TrainingState>,
}

impl SegmentRecord {
    pub(crate) fn new(to: u64, is_traced: bool) -> Self {
        Self { to, trace: is_traced.then(Vec::new), end: None }
    }

    pub(crate) fn stepped(
        &mut self,
        step: u64,
        state: impl FnOnce() -> Result<TrainingState, TrainError>,
    ) -> Result<(), TrainError> {
        let is_last = step == self.to;
        if !is_last && self.trace.is_none() {
            return Ok(());
        }
        let state = state()?;
        if let Some(trace) = &mut self.trace {
            trace.push(state.digest());
        }
        if is_last {
            self.end = Some(state);
        }
        Ok(())
    }

    /// Whether the last step was taken.
    pub(crate) const fn is_complete(&self) -> bool {
        self.end.is_some()
    }

    /// The trained segment; `None` if the training was stopped before its last step.
    pub(crate) fn into_trained(self) -> Option<TrainedSegment> {
        Some(TrainedSegment { end: self.end?, trace: self.trace.unwrap_or_default() })
    }
}
