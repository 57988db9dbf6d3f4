//! Actions that have arrived in time and are not recorded yet, because the ledger or a disk is slow. No default takes
//! their place.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use florin_protocol::{Digest, Timestamp};

/// How long a default waits for actions that have arrived in time, in milliseconds.
const ARRIVING_MS_MAX: u64 = 10_000;

/// The actions of all orders; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct ArrivingActions {
    of_orders: Arc<Mutex<BTreeMap<Digest, Vec<Timestamp>>>>,
}

impl ArrivingActions {
    /// An action for an order that arrives at a moment.
    pub(super) fn begin(&self, order: Digest, at: Timestamp) -> ArrivingAction {
        let mut orders = self.of_orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.entry(order).or_default().push(at);
        ArrivingAction { all: self.clone(), order, at }
    }

    /// Whether a default of an order waits: its deadline is past, and not for long, and an action that met it is not
    /// recorded. Before the deadline nothing waits: the beacon of the audits is no default.
    pub(super) fn waits(&self, order: Digest, deadline: Timestamp, now: Timestamp) -> bool {
        if now <= deadline || now > deadline.saturating_add_ms(ARRIVING_MS_MAX) {
            return false;
        }
        let orders = self.of_orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.get(&order).is_some_and(|all| all.iter().any(|at| *at <= deadline))
    }
}

/// An action that has arrived and is not recorded yet.
#[derive(Debug)]
pub(crate) struct ArrivingAction {
    all: ArrivingActions,
    order: Digest,
    at: Timestamp,
}

impl ArrivingAction {
    /// When it arrived.
    pub(crate) const fn at(&self) -> Timestamp {
        self.at
    }
}

impl Drop for ArrivingAction {
    fn drop(&mut self) {
        let mut orders = self.all.of_orders.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(own) = orders.get_mut(&self.order) else { return };
        if let Some(found) = own.iter().position(|at| *at == self.at) {
            own.swap_remove(found);
        }
        if own.is_empty() {
            orders.remove(&self.order);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: Digest = Digest([1; 32]);
    const DEADLINE: Timestamp = Timestamp(100);

    #[test]
    fn a_default_waits_for_an_action_in_time_until_it_is_recorded() {
        let all = ArrivingActions::default();
        let waits = |now| all.waits(ORDER, DEADLINE, Timestamp(now));
        assert!(!waits(101));
        let (late, early) = (all.begin(ORDER, Timestamp(101)), all.begin(ORDER, DEADLINE));
        let (same, other) = (all.begin(ORDER, DEADLINE), all.begin(Digest([2; 32]), DEADLINE));
        drop((early, other));
        assert!(waits(101), "another one at the same moment is not recorded");
        assert!(!waits(100), "before the end of the deadline");
        drop(same);
        assert!(!waits(101), "the late one and that of another order do not count");
        drop(late);
        assert!(all.of_orders.lock().unwrap().is_empty());
    }

    #[test]
    fn a_default_does_not_wait_for_long() {
        let all = ArrivingActions::default();
        let _action = all.begin(ORDER, DEADLINE);
        let last = DEADLINE.0 + ARRIVING_MS_MAX;
        assert!(all.waits(ORDER, DEADLINE, Timestamp(last)));
        assert!(!all.waits(ORDER, DEADLINE, Timestamp(last + 1)));
    }
}
