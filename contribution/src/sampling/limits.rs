//! When a sampler stops, and why.

use super::ends::Ends;
use crate::meter::Meter;

/// Samples in a row without a new coalition after which what can still be reached is taken to be
/// exhausted: a truncated walk never looks beyond its truncation, and would go on for ever.
const IDLE_SAMPLES_MAX: u64 = 1_000;

/// Why a sampler stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// Every coalition is known, or what is left costs no more than going on.
    Exhausted,
    /// Its error is within the tolerance.
    Content,
    /// The time is over.
    OutOfTime,
    /// The next sample does not fit the budget.
    OutOfBudget,
    /// So many samples asked for nothing new.
    Idle,
}

impl Stop {
    /// The reason as the end of a remark.
    pub(super) fn words(self) -> String {
        match self {
            Self::Exhausted => "all coalitions are known, so the values are exact".into(),
            Self::Content => "the error is within the tolerance".into(),
            Self::OutOfTime => "the time is over".into(),
            Self::OutOfBudget => "what is left of the budget is too little for another".into(),
            Self::Idle => format!("the last {IDLE_SAMPLES_MAX} asked for nothing new"),
        }
    }
}

/// What a sampler has to say for itself between two rounds.
pub(super) struct Standing<'a> {
    /// Samples so far.
    pub(super) samples: u64,
    /// Whether they are enough to believe their spread.
    pub(super) settled: bool,
    /// The values.
    pub(super) values: &'a [f64],
    /// Their errors, where they can be told.
    pub(super) errors: Option<&'a [f64]>,
    /// Whether the last round could not do all it should, for want of budget or time.
    pub(super) curtailed: bool,
    /// What the next round may cost. Where all that is unknown costs no more, it is asked for
    /// instead, and the values are exact; 0 for an estimator that must not.
    pub(super) next_cost: u64,
}

/// Looks at the run's limits between two rounds.
#[derive(Default)]
pub(super) struct Limits {
    evaluations: u64,
    /// Samples there were when the last new coalition was seen.
    samples: u64,
}

impl Limits {
    /// Why to stop now, if there is a reason. Before the first sample nothing but exhaustion is one:
    /// the least that an estimator needs is always done.
    pub(super) fn reached(
        &mut self,
        ends: &Ends,
        meter: &Meter<'_>,
        standing: &Standing<'_>,
    ) -> Option<Stop> {
        if let Some(unknown) = ends.unknown(meter)
            && (unknown == 0 || unknown <= standing.next_cost && meter.affords(unknown))
        {
            return Some(Stop::Exhausted);
        }
        if standing.samples == 0 {
            return None;
        }
        if standing.settled
            && standing.errors.is_some_and(|errors| meter.is_content(standing.values, errors))
        {
            return Some(Stop::Content);
        }
        if !meter.affords(0) {
            return Some(Stop::OutOfTime);
        }
        if standing.curtailed {
            return Some(Stop::OutOfBudget);
        }
        if meter.evaluations() > self.evaluations {
            (self.evaluations, self.samples) = (meter.evaluations(), standing.samples);
        }
        (standing.samples - self.samples >= IDLE_SAMPLES_MAX).then_some(Stop::Idle)
    }
}
