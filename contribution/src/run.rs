//! The circumstances of one valuation: its seed, its limits, who watches, what is already known.

use std::time::Duration;

use crate::Cache;

/// How far a valuation has come, in passes over the game's rows (one evaluation or one gradient
/// each).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Passes done.
    pub done: u64,
    /// Passes foreseen; may grow when an estimator decides to look closer.
    pub planned: u64,
}

/// The circumstances of one valuation.
///
/// An estimator that samples goes on until the first of its limits: the budget, the tolerance, the
/// time. Without any it ends at its own default, [`Estimator::passes_default`].
///
/// [`Estimator::passes_default`]: crate::Estimator::passes_default
pub struct Run<'a> {
    pub(crate) seed: u64,
    pub(crate) budget: Option<u64>,
    pub(crate) tolerance: Option<f64>,
    pub(crate) time: Option<Duration>,
    pub(crate) watch: Option<&'a mut dyn FnMut(Progress)>,
    pub(crate) cache: Option<&'a mut Cache>,
}

impl<'a> Run<'a> {
    /// Everything random is drawn from `seed`; no limit; nobody watches.
    pub fn seeded(seed: u64) -> Self {
        Self { seed, budget: None, tolerance: None, time: None, watch: None, cache: None }
    }

    /// At most `passes` evaluations and gradients together. A coalition counts once, however often
    /// it is asked for.
    #[must_use]
    pub fn with_budget(mut self, passes: u64) -> Self {
        self.budget = Some(passes);
        self
    }

    /// Until the estimator's own error is at most `tolerance` of the values: the root of the summed
    /// squares of its errors against that of the values. For estimators that sample.
    #[must_use]
    pub fn until(mut self, tolerance: f64) -> Self {
        self.tolerance = Some(tolerance);
        self
    }

    /// For about so long; the minimum that the estimator needs is done in any case. What comes out
    /// depends on the machine, so nothing that others shall recompute is run this way.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// `watch` hears of every pass.
    #[must_use]
    pub fn watched_by(mut self, watch: &'a mut dyn FnMut(Progress)) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Takes what `cache` knows, and leaves in it what this run learns.
    #[must_use]
    pub fn remembering(mut self, cache: &'a mut Cache) -> Self {
        self.cache = Some(cache);
        self
    }
}
