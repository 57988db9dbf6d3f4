//! The connection limiter: a limit in total and per address, and eviction of idle connections when
//! the total is reached.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::connection_activity::{ConnectionActivity, ConnectionTimeouts, IdleTime};
use super::connection_metrics::ConnectionMetrics;
use crate::config::{Config, IpNetwork, rate_limit_address};

/// A connection that has waited for less than this is never evicted: a real client has sent its
/// request by then.
const EVICTION_GRACE: Duration = Duration::from_secs(1);
/// Interval between two attempts to evict while the limit is reached.
const EVICTION_INTERVAL: Duration = Duration::from_millis(100);
/// One attempt evicts at most the connection limit divided by this.
const EVICTION_DIVISOR: usize = 64;

/// The connection limiter of one listener; cheap to clone.
#[derive(Clone)]
pub(super) struct ConnectionLimiter {
    permits: Arc<Semaphore>,
    connections: Arc<Mutex<OpenConnections>>,
    per_address_max: usize,
    evictions_max: usize,
    proxies: Arc<[IpNetwork]>,
    timeouts: ConnectionTimeouts,
    metrics: ConnectionMetrics,
}

/// The open connections, numbered in the order of their arrival, and their count per address.
#[derive(Default)]
struct OpenConnections {
    next: u64,
    activities: BTreeMap<u64, Arc<ConnectionActivity>>,
    count_by_address: BTreeMap<IpAddr, usize>,
}

/// A permit for one connection, before its address is checked.
pub(super) struct ConnectionPermit {
    _permit: OwnedSemaphorePermit,
}

/// The guard of an open connection: it releases the permit when dropped.
pub(super) struct ConnectionGuard {
    limiter: ConnectionLimiter,
    number: u64,
    from: IpAddr,
    pulse: Arc<ConnectionActivity>,
    _permit: ConnectionPermit,
}

impl ConnectionLimiter {
    pub(super) fn from_config(config: &Config, metrics: ConnectionMetrics) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(config.connections_max)),
            connections: Arc::default(),
            per_address_max: config.connections_per_address_max,
            evictions_max: (config.connections_max / EVICTION_DIVISOR).max(1),
            proxies: config.trusted_proxies.clone().into(),
            timeouts: ConnectionTimeouts::from_config(config),
            metrics,
        }
    }

    /// Waits for a permit. While none is free, it evicts the connections that have waited longest
    /// for a request.
    pub(super) async fn acquire(&self) -> ConnectionPermit {
        if self.permits.available_permits() == 0 {
            self.evict_idle();
        }
        loop {
            let free = Arc::clone(&self.permits).acquire_owned();
            match timeout(EVICTION_INTERVAL, free).await {
                Ok(Ok(permit)) => return ConnectionPermit { _permit: permit },
                // The semaphore is never closed.
                Ok(Err(_)) => std::future::pending().await,
                Err(_) => self.evict_idle(),
            }
        }
    }

    /// Registers a connection from this address; `None` if the address has reached its limit. The
    /// limit does not apply to trusted proxies, which forward for many clients.
    pub(super) fn register(&self, room: ConnectionPermit, from: IpAddr) -> Option<ConnectionGuard> {
        let holder = rate_limit_address(from);
        let is_proxy = self.proxies.iter().any(|proxy| proxy.contains(from));
        let mut held = self.lock();
        let count = held.count_by_address.entry(holder).or_insert(0);
        if *count >= self.per_address_max && !is_proxy {
            self.metrics.refused("address_limit");
            return None;
        }
        *count = count.saturating_add(1);
        let number = held.next;
        held.next = number.saturating_add(1);
        let pulse = Arc::new(ConnectionActivity::new(self.timeouts));
        held.activities.insert(number, Arc::clone(&pulse));
        self.metrics.connection_opened();
        Some(ConnectionGuard { limiter: self.clone(), number, from: holder, pulse, _permit: room })
    }

    fn evict_idle(&self) {
        let held = self.lock();
        let waiting = held.activities.values().filter_map(|pulse| {
            let IdleTime { waited, has_served: served } = pulse.idle_time()?;
            (waited >= EVICTION_GRACE).then_some((served, Reverse(waited), pulse))
        });
        let mut waiting: Vec<_> = waiting.collect();
        // Connections that never sent a request come first.
        waiting.sort_unstable_by_key(|(served, waited, _)| (*served, *waited));
        waiting.truncate(self.evictions_max);
        if !waiting.is_empty() {
            tracing::debug!(number = waiting.len(), "connection limit reached: evicting idle ones");
        }
        for (.., pulse) in waiting {
            self.metrics.refused("evicted");
            pulse.evict();
        }
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionGuard {
    pub(super) const fn activity(&self) -> &Arc<ConnectionActivity> {
        &self.pulse
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.limiter.metrics.connection_closed();
        let mut held = self.limiter.lock();
        held.activities.remove(&self.number);
        if let Some(count) = held.count_by_address.get_mut(&self.from) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                held.count_by_address.remove(&self.from);
            }
        }
    }
}
