//! The orders that have changed since a client's last reading: a market with many orders sends each change once to a
//! client, and not all orders at each reading.

use std::collections::{BTreeMap, VecDeque};

use florin_compute::{OrderChanges, OrderMoney};
use florin_protocol::{Digest, Rejection, Timestamp};

use super::LeaseHost;
use super::hosted::HostedOrder;

/// Most forgotten orders that are remembered as such. A client that has missed more reads all orders.
const FORGOTTEN_MAX: usize = 1_024;

/// All that changes in the view of an order: the rest follows from its records.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenOrder {
    missing: Vec<Digest>,
    opened: Option<Timestamp>,
    is_refused: bool,
    records: usize,
    money: OrderMoney,
}

impl SeenOrder {
    fn of(order: &HostedOrder) -> Self {
        Self {
            missing: order.missing.iter().map(|blob| blob.digest).collect(),
            opened: order.stored.opened,
            is_refused: order.stored.refused.is_some(),
            records: order.records.len(),
            money: order.stored.money,
        }
    }
}

/// The changes of all orders since the start of the coordinator, each with a number.
#[derive(Debug, Default)]
pub(super) struct ChangeLog {
    /// The number of the last change.
    last: u64,
    seen: BTreeMap<Digest, (u64, SeenOrder)>,
    forgotten: VecDeque<(u64, Digest)>,
    /// The last change that `forgotten` has no more.
    dropped: u64,
}

impl ChangeLog {
    /// Numbers what has changed since the last call.
    fn update(&mut self, orders: &BTreeMap<Digest, HostedOrder>) {
        for (id, order) in orders {
            let now = SeenOrder::of(order);
            if self.seen.get(id).is_none_or(|(_, seen)| *seen != now) {
                self.last = self.last.saturating_add(1);
                self.seen.insert(*id, (self.last, now));
            }
        }
        let gone: Vec<Digest> =
            self.seen.keys().filter(|id| !orders.contains_key(id)).copied().collect();
        for id in gone {
            self.seen.remove(&id);
            self.last = self.last.saturating_add(1);
            self.forgotten.push_back((self.last, id));
        }
        while self.forgotten.len() > FORGOTTEN_MAX {
            self.dropped = self.forgotten.pop_front().map_or(self.dropped, |(number, _)| number);
        }
    }

    /// Whether a client that has seen the changes up to a number lacks none before those that are known.
    fn continues(&self, after: u64) -> bool {
        after > 0 && (self.dropped..=self.last).contains(&after)
    }

    fn changed(&self, id: Digest, after: u64) -> bool {
        self.seen.get(&id).is_some_and(|(number, _)| *number > after)
    }
}

impl LeaseHost {
    /// The orders that have changed behind a change of a run of the coordinator, the newest first; all orders for a client
    /// of another run.
    pub(crate) fn order_changes(&self, run: u64, after: u64) -> Result<OrderChanges, Rejection> {
        let own = self.inner.run;
        let mut state = self.state();
        let state = &mut *state;
        state.log.update(&state.orders);
        let log = &state.log;
        let is_whole = run != own || !log.continues(after);
        let from = if is_whole { 0 } else { after };
        let mut all: Vec<_> =
            state.orders.iter().filter(|(id, _)| log.changed(**id, from)).collect();
        all.sort_by_key(|(id, order)| (std::cmp::Reverse(order.stored.received), **id));
        let orders = all.into_iter().map(|(id, order)| order.view(*id)).collect();
        let forgotten = log.forgotten.iter().filter(|(number, _)| *number > from && !is_whole);
        let forgotten = forgotten.map(|(_, id)| *id).collect();
        Ok(OrderChanges { run: own, last: log.last, is_whole, orders, forgotten })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(records: usize) -> SeenOrder {
        let (missing, opened, money) = (Vec::new(), None, OrderMoney::Locked);
        SeenOrder { missing, opened, is_refused: false, records, money }
    }

    #[test]
    fn a_client_that_has_missed_forgotten_orders_reads_all() {
        let mut log = ChangeLog::default();
        for number in 0..3_000_u32 {
            let mut id = [0; 32];
            id[..4].copy_from_slice(&number.to_le_bytes());
            log.last += 1;
            log.seen.insert(Digest(id), (log.last, seen(1)));
        }
        assert!(log.continues(1) && log.continues(3_000));
        assert!(!log.continues(0) && !log.continues(3_001));
        // All are forgotten: the first numbers are no more known.
        log.update(&BTreeMap::new());
        assert_eq!((log.last, log.forgotten.len()), (6_000, FORGOTTEN_MAX));
        assert_eq!(log.dropped, 6_000 - 1_024);
        assert!(log.continues(4_976) && !log.continues(4_975));
        assert!(log.seen.is_empty());
    }
}
