//! The options of one valuation: seed, limits, progress callback and cache.

use std::time::Duration;

use crate::ValueCache;

/// The progress of a valuation, in passes over the game's rows (one evaluation or one gradient
/// each).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValuationProgress {
    /// Passes done.
    pub done: u64,
    /// Passes planned; grows if an estimator decides to refine its result.
    pub planned: u64,
}

/// The options of one valuation.
///
/// A sampling estimator stops at the first of its limits: budget, tolerance or time. Without a
/// limit it stops at its own default, [`Estimator::passes_default`].
///
/// [`Estimator::passes_default`]: crate::Estimator::passes_default
pub struct RunOptions<'a> {
    pub(crate) seed: u64,
    pub(crate) budget: Option<u64>,
    pub(crate) tolerance: Option<f64>,
    pub(crate) time: Option<Duration>,
    pub(crate) on_progress: Option<&'a mut dyn FnMut(ValuationProgress)>,
    pub(crate) cache: Option<&'a mut ValueCache>,
}

impl<'a> RunOptions<'a> {
    /// All random numbers derive from `seed`; no limits and no progress callback.
    pub fn seeded(seed: u64) -> Self {
        Self { seed, budget: None, tolerance: None, time: None, on_progress: None, cache: None }
    }

    /// Limits evaluations and gradients together to `passes`. A coalition counts once, however
    /// often it is used.
    #[must_use]
    pub fn with_budget(mut self, passes: u64) -> Self {
        self.budget = Some(passes);
        self
    }

    /// Runs a sampling estimator until its estimated relative error is at most `tolerance`: the
    /// Euclidean norm of the errors divided by the norm of the values.
    #[must_use]
    pub fn with_tolerance(mut self, tolerance: f64) -> Self {
        self.tolerance = Some(tolerance);
        self
    }

    /// Runs for about `time`; the estimator's minimum number of passes runs in any case. The result
    /// depends on the machine's speed, so do not use it for results that another machine must
    /// reproduce.
    #[must_use]
    pub fn with_time_limit(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// Calls `watch` after every pass.
    #[must_use]
    pub fn with_progress(mut self, watch: &'a mut dyn FnMut(ValuationProgress)) -> Self {
        self.on_progress = Some(watch);
        self
    }

    /// Uses the values in `cache`, and adds the values that this run evaluates.
    #[must_use]
    pub fn with_cache(mut self, cache: &'a mut ValueCache) -> Self {
        self.cache = Some(cache);
        self
    }
}
