//! A turn of the daemon: the orders that it follows, and their visits.
//!
//! Orders in which the account has a part are always followed.

use std::collections::BTreeSet;

use florin_compute::{OrderView, Phase};
use florin_ledger::lease_task;

use super::error::LeaseServeError;
use super::followed::FollowedOrder;
use super::{FOLLOWED_ORDERS_MAX, LeaseDaemon};

impl LeaseDaemon<'_, '_> {
    /// Reads the list of orders, and visits each once. Returns whether any step was performed.
    pub(super) fn run_once(&mut self) -> Result<bool, LeaseServeError> {
        let views = self.context.client.orders()?;
        self.follow(views);
        self.read_deposits()?;
        self.settle_forgotten()?;
        let mut acted = false;
        for id in self.orders.keys().copied().collect::<Vec<_>>() {
            if self.shutdown.is_requested() {
                break;
            }
            acted |= self.visit(id);
        }
        Ok(acted)
    }

    /// Follows the listed orders in which the account has a part, and the newest of those that it
    /// may examine.
    pub(super) fn follow(&mut self, views: Vec<OrderView>) {
        let (me, listed) = (self.me, views.iter().map(|view| view.id).collect::<BTreeSet<_>>());
        self.finished.retain(|id| listed.contains(id));
        self.orders.retain(|id, order| listed.contains(id) || order.has_part(me));
        let mut places = 0;
        for view in views {
            if self.finished.contains(&view.id) {
                continue;
            }
            let has_part = match self.orders.get(&view.id) {
                Some(order) => order.has_part(me),
                None => self.may_have_part(&view),
            };
            if !has_part && (view.refused.is_some() || view.phase == Phase::Over) {
                self.orders.remove(&view.id);
                self.finished.insert(view.id);
                continue;
            }
            if !has_part && (view.opened.is_none() || places >= FOLLOWED_ORDERS_MAX) {
                self.orders.remove(&view.id);
                continue;
            }
            places += usize::from(!has_part);
            self.follow_view(view);
        }
    }

    /// Follows an order by a new view.
    fn follow_view(&mut self, view: OrderView) {
        match self.orders.get_mut(&view.id) {
            Some(order) => order.view = view,
            None => {
                let folder = self.store.order(view.id);
                let order = FollowedOrder::new(view, folder, &self.config.policy);
                self.orders.insert(order.view.id, order);
            }
        }
    }

    /// Whether the account may have a part in an order that is not followed yet.
    fn may_have_part(&self, view: &OrderView) -> bool {
        let is_open = view.opened.is_some() && view.phase != Phase::Over;
        let may_rule = self.config.policy.referee && view.order.referee == self.me && is_open;
        may_rule || view.provider == Some(self.me) || self.store.order(view.id).exists()
    }

    /// Reads the deposits in new orders, on which the limits of the policy rest.
    pub(super) fn read_deposits(&mut self) -> Result<(), LeaseServeError> {
        let (ledger, me) = (self.context.ledger, self.me);
        for order in self.orders.values_mut().filter(|order| order.deposit.is_none()) {
            order.deposit = Some(ledger.bond_of(lease_task(&order.view.order), me)?.amount);
        }
        Ok(())
    }
}
