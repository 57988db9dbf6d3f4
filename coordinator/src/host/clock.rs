//! The host's clocks: system time, slewed system time, and a manual clock for tests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use florin_protocol::Timestamp;

/// The clock for deadlines: the ledger's, the system's, or a test's.
pub trait Clock: Send + Sync {
    /// The current time. It may jump; the engine's time never goes backwards.
    fn now(&self) -> Timestamp;
}

/// The system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp(millis(system()))
    }
}

/// A [`SlewedClock`] slews by the elapsed time divided by this.
const SLEW_DIVISOR: u64 = 10;

/// The system's clock without its jumps: the system time at the start plus the elapsed monotonic
/// time. When the system's clock is adjusted, this clock slews towards it, a tenth faster or slower
/// than real time: a correction by one hour takes ten hours, and no deadline passes unexpectedly.
/// It never goes backwards.
#[derive(Debug)]
pub struct SlewedClock {
    began: Instant,
    reading: Mutex<ClockReading>,
}

/// The last reading of a steady clock and the elapsed time at it, both in microseconds.
#[derive(Clone, Copy, Debug)]
struct ClockReading {
    time_us: u64,
    elapsed_us: u64,
}

/// The inputs of a reading: the elapsed time since the start and the system's time, both in
/// microseconds.
#[derive(Clone, Copy, Debug)]
struct ClockInputs {
    elapsed_us: u64,
    system_us: u64,
}

impl ClockReading {
    /// Advances the clock to these inputs and returns its time.
    fn advance(&mut self, now: ClockInputs) -> u64 {
        let since = now.elapsed_us.saturating_sub(self.elapsed_us);
        let straight = self.time_us.saturating_add(since);
        let bend = since.checked_div(SLEW_DIVISOR).unwrap_or_default();
        let earliest = straight.saturating_sub(bend);
        self.time_us = now.system_us.clamp(earliest, straight.saturating_add(bend));
        self.elapsed_us = self.elapsed_us.max(now.elapsed_us);
        self.time_us
    }
}

impl SlewedClock {
    /// Starts a clock at the current system time.
    #[must_use]
    pub fn start() -> Self {
        let face = ClockReading { time_us: micros(system()), elapsed_us: 0 };
        Self { began: Instant::now(), reading: Mutex::new(face) }
    }
}

impl Clock for SlewedClock {
    fn now(&self) -> Timestamp {
        let mut face = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed_us = micros(self.began.elapsed());
        let shown = face.advance(ClockInputs { elapsed_us, system_us: micros(system()) });
        Timestamp(millis(Duration::from_micros(shown)))
    }
}

fn system() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A clock that stands still until a test sets it.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that reads `now`.
    #[must_use]
    pub const fn new(now: Timestamp) -> Self {
        Self(AtomicU64::new(now.0))
    }

    /// Sets the time. Call [`super::Host::wake`] afterwards.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const HOUR: u64 = 3_600 * SECOND;

    /// Reads the clock once a second for `seconds`, with a system clock that is `off` microseconds
    /// wrong.
    fn run(face: &mut ClockReading, seconds: u64, off: i64) -> u64 {
        let mut shown = face.time_us;
        for _ in 0..seconds {
            let elapsed_us = face.elapsed_us + SECOND;
            let system_us = (100 * HOUR + elapsed_us).saturating_add_signed(off);
            let now = face.advance(ClockInputs { elapsed_us, system_us });
            assert!(now > shown && now - shown <= SECOND + SECOND / 10, "{shown} to {now}");
            shown = now;
        }
        shown
    }

    fn reading() -> ClockReading {
        ClockReading { time_us: 100 * HOUR, elapsed_us: 0 }
    }

    #[test]
    fn a_jump_of_the_system_clock_slews_the_clock_by_a_tenth_until_both_agree() {
        for (off, minute, after) in [(0, 60, 0), (HOUR as i64, 66, 1), (-(HOUR as i64), 54, -1)] {
            let mut face = reading();
            assert_eq!(run(&mut face, 60, off), 100 * HOUR + minute * SECOND, "off by {off}");
            run(&mut face, 10 * 3_600 - 60, off);
            // Ten hours later both agree, and they stay in agreement.
            let there = (110 * HOUR).saturating_add_signed(after * HOUR as i64);
            assert_eq!(face.time_us, there, "off by {off}");
            assert_eq!(run(&mut face, 5, off), there + 5 * SECOND);
        }
    }

    #[test]
    fn a_jump_forward_and_back_leaves_no_offset() {
        let mut face = reading();
        run(&mut face, 60, HOUR as i64);
        run(&mut face, 60, 0);
        assert_eq!(face.time_us, 100 * HOUR + 120 * SECOND);
        // Two readings at the same instant are equal, and a reading from an earlier instant changes
        // nothing.
        for elapsed_us in [face.elapsed_us, face.elapsed_us - SECOND] {
            assert_eq!(face.advance(ClockInputs { elapsed_us, system_us: 0 }), face.time_us);
        }
    }

    #[test]
    fn the_clock_starts_at_the_system_time() {
        let before = SystemClock.now();
        let clock = SlewedClock::start();
        let now = clock.now();
        assert!(before <= now && now <= SystemClock.now().saturating_add_ms(1), "{before} {now}");
    }
}
