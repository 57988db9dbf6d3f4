//! Stopping rules of the sampling estimators, and their reasons.

use super::endpoints::EndpointValues;
use crate::meter::EvaluationMeter;

/// Consecutive samples without a new coalition after which the reachable coalitions count as
/// exhausted: a truncated walk never evaluates anything beyond its truncation, and would continue
/// forever.
const IDLE_SAMPLES_MAX: u64 = 1_000;

/// The reason for which a sampler stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    /// Every coalition is known, or evaluating the rest costs no more than the next round.
    Exhausted,
    /// The error is within the tolerance.
    Converged,
    /// The time limit is reached.
    OutOfTime,
    /// The next sample does not fit the budget.
    OutOfBudget,
    /// [`IDLE_SAMPLES_MAX`] consecutive samples contained no new coalition.
    NothingNew,
}

impl StopReason {
    /// The reason as the last part of a remark.
    pub(super) fn description(self) -> String {
        match self {
            Self::Exhausted => "all coalitions are known, so the values are exact".into(),
            Self::Converged => "the error is within the tolerance".into(),
            Self::OutOfTime => "the time limit is reached".into(),
            Self::OutOfBudget => "the remaining budget is too small for another sample".into(),
            Self::NothingNew => {
                format!("the last {IDLE_SAMPLES_MAX} samples contained no new coalition")
            }
        }
    }
}

/// The status of a sampler between two rounds.
pub(super) struct SamplerStatus<'a> {
    /// Samples so far.
    pub(super) samples: u64,
    /// Whether the samples suffice for an estimate of their variance.
    pub(super) has_enough_samples: bool,
    /// The values.
    pub(super) values: &'a [f64],
    /// Their standard errors, if they can be estimated.
    pub(super) errors: Option<&'a [f64]>,
    /// Whether the last round was cut short by the budget or the time limit.
    pub(super) cut_short: bool,
    /// Upper bound of the cost of the next round. If all unknown coalitions cost no more, they are
    /// evaluated instead, and the values are exact; 0 for an estimator that must not evaluate all
    /// coalitions.
    pub(super) next_cost: u64,
}

/// Checks the run's limits between two rounds.
#[derive(Default)]
pub(super) struct StoppingRule {
    evaluations: u64,
    /// Number of samples at the last new coalition.
    samples: u64,
}

impl StoppingRule {
    /// The reason to stop now, if there is one. Before the first sample only exhaustion counts: the
    /// minimum number of passes of an estimator always runs.
    pub(super) fn stop_reason(
        &mut self,
        ends: &EndpointValues,
        meter: &EvaluationMeter<'_>,
        standing: &SamplerStatus<'_>,
    ) -> Option<StopReason> {
        if let Some(unknown) = ends.unevaluated(meter)
            && (unknown == 0 || unknown <= standing.next_cost && meter.can_afford(unknown))
        {
            return Some(StopReason::Exhausted);
        }
        if standing.samples == 0 {
            return None;
        }
        if standing.has_enough_samples
            && standing.errors.is_some_and(|errors| meter.has_converged(standing.values, errors))
        {
            return Some(StopReason::Converged);
        }
        if !meter.can_afford(0) {
            return Some(StopReason::OutOfTime);
        }
        if standing.cut_short {
            return Some(StopReason::OutOfBudget);
        }
        if meter.evaluations() > self.evaluations {
            (self.evaluations, self.samples) = (meter.evaluations(), standing.samples);
        }
        (standing.samples - self.samples >= IDLE_SAMPLES_MAX).then_some(StopReason::NothingNew)
    }
}
