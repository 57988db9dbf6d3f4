//! Journal metrics that the engine's thread records and the server exposes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

/// Bucket bounds of the histogram, in seconds: from memory to a fast disk to a slow one.
const BOUNDS: [f64; 10] = [0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0];

/// Metrics that the engine and the server share; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct JournalMetrics {
    /// Events made durable in the journal since the start.
    pub(crate) records: Counter,
    /// Seconds from a batch's first byte to the end of its fsync.
    pub(crate) commit_seconds: Histogram,
    /// Batches that the journal failed to append.
    pub(crate) failed_batches: Counter,
    /// Why the journal accepts no records now.
    error: Arc<Mutex<Option<String>>>,
}

impl Default for JournalMetrics {
    fn default() -> Self {
        Self {
            records: Counter::default(),
            commit_seconds: Histogram::new(BOUNDS),
            failed_batches: Counter::default(),
            error: Arc::default(),
        }
    }
}

impl JournalMetrics {
    /// Why the journal accepts no records; `None` if it does.
    pub(crate) fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets why the journal accepts no records from now on; `None` if it does.
    pub(super) fn set_error(&self, why: Option<&str>) {
        let mut known = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_deref() != why {
            *known = why.map(str::to_owned);
        }
    }

    /// Records that a batch of `records` became durable in the time `took`.
    pub(super) fn record_commit(&self, records: usize, took: Duration) {
        self.records.inc_by(records as u64);
        self.commit_seconds.observe(took.as_secs_f64());
    }
}
