//! What the engine's thread does to the disk, for who watches from outside.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

/// Bounds of the histogram, in seconds: memory, a good disk, a bad one.
const BOUNDS: [f64; 10] = [0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0];

/// Counters that engine and server share; cheap to copy.
#[derive(Clone, Debug)]
pub(crate) struct Vitals {
    /// Events that are durable in the journal since the start.
    pub(crate) records: Counter,
    /// Seconds from a batch's first byte to the end of its fsync.
    pub(crate) commit: Histogram,
    /// Batches that the journal did not take.
    pub(crate) failed: Counter,
    /// Why it takes nothing now.
    refusal: Arc<Mutex<Option<String>>>,
}

impl Default for Vitals {
    fn default() -> Self {
        Self {
            records: Counter::default(),
            commit: Histogram::new(BOUNDS),
            failed: Counter::default(),
            refusal: Arc::default(),
        }
    }
}

impl Vitals {
    /// Why the journal takes nothing, if it does not.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why the journal takes nothing from now on; nothing if it takes what comes.
    pub(super) fn refused(&self, why: Option<&str>) {
        let mut known = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_deref() != why {
            *known = why.map(str::to_owned);
        }
    }

    /// A batch of so many records is durable, and took so long.
    pub(super) fn committed(&self, records: usize, took: Duration) {
        self.records.inc_by(records as u64);
        self.commit.observe(took.as_secs_f64());
    }
}
