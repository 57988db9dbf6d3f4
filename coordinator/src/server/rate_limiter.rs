//! Rate limiter: the generic cell rate algorithm (GCRA, ITU-T I.371) per key, with bounded memory.
//!
//! Each key stores its theoretical arrival time (TAT): the time at which its used-up allowance is
//! restored. A request moves the TAT ahead by one interval; it is rejected if the TAT would then
//! lie more than a burst ahead of now. Keys whose TAT has passed are dropped. When the table is
//! full, the key with the earliest TAT is dropped first: that gives away the least allowance, and
//! frequent senders stay in the table.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

const NANOS: u64 = 1_000_000_000;
/// Expired entries dropped at each request: more than a request can add.
const EXPIRED_DROPPED_PER_REQUEST: usize = 2;

/// A GCRA rate limiter for a bounded number of keys.
pub(super) struct GcraLimiter<K> {
    interval: u64,
    burst: u64,
    entries_max: usize,
    began: Instant,
    arrival_times: Mutex<ArrivalTimes<K>>,
}

/// The theoretical arrival times, by key and in order of time; in nanoseconds since `began`.
struct ArrivalTimes<K> {
    by_key: BTreeMap<K, u64>,
    by_moment: BTreeSet<(u64, K)>,
}

impl<K: Ord + Copy> GcraLimiter<K> {
    /// Allows `per_second` requests per second in the long run and `burst` at once; both are at
    /// least one. The table holds at most `entries_max` keys.
    pub(super) fn new(per_second: u64, burst: u64, entries_max: usize) -> Self {
        let interval = NANOS.checked_div(per_second).unwrap_or(NANOS).max(1);
        let debts = ArrivalTimes { by_key: BTreeMap::new(), by_moment: BTreeSet::new() };
        Self {
            interval,
            burst: interval.saturating_mul(burst.max(1)),
            entries_max: entries_max.max(1),
            began: Instant::now(),
            arrival_times: Mutex::new(debts),
        }
    }

    /// Counts a request of a key.
    ///
    /// # Errors
    /// The time after which the request would be allowed.
    pub(super) fn check(&self, key: K) -> Result<(), Duration> {
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.check_at(key, now).map_err(Duration::from_nanos)
    }

    fn check_at(&self, key: K, now: u64) -> Result<(), u64> {
        let mut debts = self.arrival_times.lock().unwrap_or_else(PoisonError::into_inner);
        let debts = &mut *debts;
        for _ in 0..EXPIRED_DROPPED_PER_REQUEST {
            match debts.by_moment.first().copied() {
                Some((until, paid)) if until <= now => debts.remove(until, paid),
                _ => break,
            }
        }
        let was = debts.by_key.get(&key).copied();
        let until = was.unwrap_or(now).max(now).saturating_add(self.interval);
        let latest = now.saturating_add(self.burst);
        if until > latest {
            return Err(until.saturating_sub(latest));
        }
        if let Some(was) = was {
            debts.by_moment.remove(&(was, key));
        }
        debts.by_key.insert(key, until);
        debts.by_moment.insert((until, key));
        if debts.by_key.len() > self.entries_max
            && let Some((least, whose)) = debts.by_moment.first().copied()
        {
            debts.remove(least, whose);
        }
        Ok(())
    }
}

impl<K: Ord + Copy> ArrivalTimes<K> {
    fn remove(&mut self, until: u64, key: K) {
        self.by_moment.remove(&(until, key));
        self.by_key.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_burst_is_allowed_at_once_and_is_restored_at_the_rate() {
        // Ten a second, three at once.
        let buckets = GcraLimiter::new(10, 3, 100);
        for _ in 0..3 {
            buckets.check_at('a', 0).unwrap();
        }
        assert_eq!(buckets.check_at('a', 0), Err(100 * MS));
        assert_eq!(buckets.check_at('a', 99 * MS), Err(MS));
        buckets.check_at('a', 100 * MS).unwrap();
        assert_eq!(buckets.check_at('a', 100 * MS), Err(100 * MS));
        // Other keys are not affected; and after a long pause three are allowed again, not more.
        buckets.check_at('b', 100 * MS).unwrap();
        for _ in 0..3 {
            buckets.check_at('a', 90_000 * MS).unwrap();
        }
        assert!(buckets.check_at('a', 90_000 * MS).is_err());
    }

    #[test]
    fn a_rejected_request_uses_no_allowance() {
        let buckets = GcraLimiter::new(10, 1, 100);
        buckets.check_at('a', 0).unwrap();
        for _ in 0..50 {
            assert_eq!(buckets.check_at('a', 50 * MS), Err(50 * MS));
        }
        buckets.check_at('a', 100 * MS).unwrap();
    }

    #[test]
    fn the_limiter_agrees_with_a_token_bucket() {
        // The reference implementation: a token bucket that fills by whole intervals of its own
        // clock.
        let seed = 7u64;
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        };
        let (per_second, burst) = (20, 5);
        let buckets = GcraLimiter::new(per_second, burst, 100);
        let (mut now, mut full_at) = (0u64, 0u64);
        for step in 0..10_000 {
            now += next() % (120 * MS);
            let owed = full_at.saturating_sub(now);
            let free = owed + 50 * MS <= burst * 50 * MS;
            assert_eq!(buckets.check_at(1, now).is_ok(), free, "seed {seed}, step {step}");
            if free {
                full_at = now + owed + 50 * MS;
            }
        }
    }

    #[test]
    fn the_table_is_bounded_and_drops_the_key_with_the_earliest_arrival_time() {
        let buckets = GcraLimiter::new(1, 10, 8);
        for _ in 0..10 {
            buckets.check_at(0, 0).unwrap();
        }
        for key in 1..=1_000 {
            buckets.check_at(key, 0).unwrap();
        }
        let entries = buckets.arrival_times.lock().unwrap().by_key.len();
        assert_eq!((entries, buckets.arrival_times.lock().unwrap().by_moment.len()), (8, 8));
        assert!(
            buckets.check_at(0, 0).is_err(),
            "a thousand other keys displaced a frequent sender"
        );
        // Expired entries are dropped by later requests.
        for round in 0..10 {
            buckets.check_at(5_000, (60 + round) * NANOS).unwrap();
        }
        assert_eq!(buckets.arrival_times.lock().unwrap().by_key.len(), 1);
    }
}
