//! Slots by a key: how many of something each sender, address or order may have at the same time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The taken slots of each key; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Slots<K> {
    taken: Arc<Mutex<BTreeMap<K, u32>>>,
    /// Slots of one key.
    max: u32,
}

impl<K: Ord + Copy> Slots<K> {
    pub(super) fn new(max: u32) -> Self {
        Self { taken: Arc::default(), max }
    }

    /// A slot of a key, released when dropped; `None` if the key has as many as it may have.
    pub(super) fn take(&self, key: K) -> Option<Slot<K>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let now = taken.entry(key).or_insert(0);
        if *now >= self.max {
            return None;
        }
        *now += 1;
        Some(Slot { of: self.clone(), key })
    }

    /// The taken slots of all keys.
    pub(super) fn count(&self) -> u32 {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.values().fold(0, |all, n| all.saturating_add(*n))
    }
}

/// A taken slot.
#[derive(Debug)]
pub(super) struct Slot<K: Ord + Copy> {
    of: Slots<K>,
    key: K,
}

impl<K: Ord + Copy> Drop for Slot<K> {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = taken.get_mut(&self.key) {
            *now = now.saturating_sub(1);
            if *now == 0 {
                taken.remove(&self.key);
            }
        }
    }
}

/// Bytes that requests in flight may write; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct BytesInFlight(Arc<AtomicU64>);

impl BytesInFlight {
    /// Counts bytes until the result is dropped.
    pub(super) fn count(&self, bytes: u64) -> Flight {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Flight { of: self.clone(), bytes }
    }
}

/// Counted bytes.
#[derive(Debug)]
pub(super) struct Flight {
    of: BytesInFlight,
    bytes: u64,
}

impl Flight {
    /// The bytes of all requests in flight, with its own.
    pub(super) fn all(&self) -> u64 {
        self.of.0.load(Ordering::Relaxed)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_flight_count_until_they_are_dropped() {
        let all = BytesInFlight::default();
        let (one, two) = (all.count(5), all.count(7));
        assert_eq!((one.all(), two.all()), (12, 12));
        drop(one);
        assert_eq!(two.all(), 7);
    }

    #[test]
    fn each_key_has_its_own_slots_and_a_dropped_one_is_free() {
        let slots = Slots::new(2);
        let (first, second) = (slots.take(1), slots.take(1));
        assert!(first.is_some() && second.is_some());
        assert!(slots.take(1).is_none(), "the key has two");
        let other = slots.take(2);
        assert_eq!(slots.count(), 3);
        drop(first);
        let again = slots.take(1);
        assert!(again.is_some() && slots.take(1).is_none());
        drop((second, other, again));
        assert_eq!(slots.count(), 0);
        assert!(slots.taken.lock().unwrap().is_empty(), "no key stays without a slot");
    }
}
