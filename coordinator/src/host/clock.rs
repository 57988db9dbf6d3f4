//! Where the host has its time from.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use florin_protocol::Tick;

/// The clock by which deadlines are judged: the ledger's own clock, the system's, or a test's.
pub trait Clock: Send + Sync {
    /// The present moment. It may jump; the engine never goes backwards.
    fn now(&self) -> Tick;
}

/// The system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Tick {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Tick(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A clock that stands still until it is moved.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub const fn at(now: Tick) -> Self {
        Self(AtomicU64::new(now.0))
    }

    /// Moves it; tell the host with [`super::Host::wake`].
    pub fn set(&self, now: Tick) {
        self.0.store(now.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Tick {
        Tick(self.0.load(Ordering::SeqCst))
    }
}
