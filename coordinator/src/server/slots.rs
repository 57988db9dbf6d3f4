//! Slots by a key: how many of something each sender, address or order may have at the same time.

use std::collections::BTreeMap;
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

#[cfg(test)]
mod tests {
    use super::*;

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
