//! The connection limiter: a limit in total and per address, and eviction of idle connections when
//! the total is reached.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::listen::Seen;
use super::pulse::{Pulse, Waits};
use crate::config::{Config, Network, holder};

/// A connection that has waited for less than this is never evicted: a real client has sent its
/// request by then.
const SPARED: Duration = Duration::from_secs(1);
/// Interval between two attempts to evict while the limit is reached.
const SEARCH_EVERY: Duration = Duration::from_millis(100);
/// One attempt evicts at most the connection limit divided by this.
const GIVE_WAY_SHARE: usize = 64;

/// The connection limiter of one listener; cheap to clone.
#[derive(Clone)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    held: Arc<Mutex<Held>>,
    per_holder_max: usize,
    give_way_max: usize,
    proxies: Arc<[Network]>,
    waits: Waits,
    seen: Seen,
}

/// The open connections, numbered in the order of their arrival, and their count per address.
#[derive(Default)]
struct Held {
    next: u64,
    pulses: BTreeMap<u64, Arc<Pulse>>,
    of_holder: BTreeMap<IpAddr, usize>,
}

/// A permit for one connection, before its address is checked.
pub(super) struct Room {
    _permit: OwnedSemaphorePermit,
}

/// The guard of an open connection: it releases the permit when dropped.
pub(super) struct Place {
    places: Places,
    number: u64,
    from: IpAddr,
    pulse: Arc<Pulse>,
    _room: Room,
}

impl Places {
    pub(super) fn of(config: &Config, seen: Seen) -> Self {
        Self {
            free: Arc::new(Semaphore::new(config.connections_max)),
            held: Arc::default(),
            per_holder_max: config.connections_per_address_max,
            give_way_max: (config.connections_max / GIVE_WAY_SHARE).max(1),
            proxies: config.trusted_proxies.clone().into(),
            waits: Waits::of(config),
            seen,
        }
    }

    /// Waits for a permit. While none is free, it evicts the connections that have waited longest
    /// for a request.
    pub(super) async fn room(&self) -> Room {
        if self.free.available_permits() == 0 {
            self.make_room();
        }
        loop {
            let free = Arc::clone(&self.free).acquire_owned();
            match timeout(SEARCH_EVERY, free).await {
                Ok(Ok(permit)) => return Room { _permit: permit },
                // The semaphore is never closed.
                Ok(Err(_)) => std::future::pending().await,
                Err(_) => self.make_room(),
            }
        }
    }

    /// Registers a connection from this address; `None` if the address has reached its limit. The
    /// limit does not apply to trusted proxies, which forward for many clients.
    pub(super) fn take(&self, room: Room, from: IpAddr) -> Option<Place> {
        let holder = holder(from);
        let is_proxy = self.proxies.iter().any(|proxy| proxy.contains(from));
        let mut held = self.held();
        let count = held.of_holder.entry(holder).or_insert(0);
        if *count >= self.per_holder_max && !is_proxy {
            self.seen.refused("address");
            return None;
        }
        *count = count.saturating_add(1);
        let number = held.next;
        held.next = number.saturating_add(1);
        let pulse = Arc::new(Pulse::new(self.waits));
        held.pulses.insert(number, Arc::clone(&pulse));
        self.seen.came();
        Some(Place { places: self.clone(), number, from: holder, pulse, _room: room })
    }

    fn make_room(&self) {
        let held = self.held();
        let waiting = held.pulses.values().filter_map(|pulse| {
            let (waited, served) = pulse.waiting()?;
            (waited >= SPARED).then_some((served, Reverse(waited), pulse))
        });
        let mut waiting: Vec<_> = waiting.collect();
        // Connections that never sent a request come first.
        waiting.sort_unstable_by_key(|(served, waited, _)| (*served, *waited));
        waiting.truncate(self.give_way_max);
        if !waiting.is_empty() {
            tracing::debug!(number = waiting.len(), "connection limit reached: evicting idle ones");
        }
        for (.., pulse) in waiting {
            self.seen.refused("gave_way");
            pulse.cut();
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    pub(super) const fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.seen.left();
        let mut held = self.places.held();
        held.pulses.remove(&self.number);
        if let Some(count) = held.of_holder.get_mut(&self.from) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                held.of_holder.remove(&self.from);
            }
        }
    }
}
