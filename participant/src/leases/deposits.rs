//! The deposits of the daemon: how much the policy leaves, and the bond that an action needs.

use florin_compute::ComputeAction;
use florin_ledger::lease_task;
use florin_protocol::Amount;

use super::LeaseDaemon;
use super::error::LeaseServeError;
use super::event::LeaseEvent;
use super::followed::FollowedOrder;
use super::policy::LeaseRole;

impl LeaseDaemon<'_, '_> {
    /// The rest of the policy for deposits in an order: the limit of the role, less losses, and
    /// less all that other orders have or may still ask for.
    pub(super) fn deposit_left(&self, role: LeaseRole) -> Result<Amount, LeaseServeError> {
        let policy = &self.config.policy;
        let limit = match role {
            LeaseRole::Provider => policy.bid.map(|rule| rule.stake_max),
            LeaseRole::Auditor => policy.audit.map(|rule| rule.bond_max),
        };
        let others = self.orders.values().map(|order| order.exposure(role, self.me));
        let used = Amount::total(others.chain([self.store.lost(role)?]));
        let left = used.and_then(|used| limit.unwrap_or(Amount::ZERO).minus(used));
        Ok(left.unwrap_or(Amount::ZERO))
    }

    /// Raises the bond in an order to what the lease needs after an action, within the limit of the
    /// policy.
    pub(super) fn deposit_for(
        &mut self,
        order: &mut FollowedOrder,
        role: LeaseRole,
        action: &ComputeAction,
    ) -> Result<(), LeaseServeError> {
        let (ledger, wallet, me) = (self.context.ledger, self.context.wallet, self.me);
        let recorded = order.lease()?;
        let now = self.context.client.now().max(recorded.last());
        let needed = recorded.lease().bond_needed_after(me, action, now)?;
        let task = lease_task(&order.view.order);
        let there = ledger.bond_of(task, me)?;
        order.deposit = Some(there.amount);
        // Any deposit, even the smallest, cancels a pending return of the bond.
        let smallest = Amount::from_units(u128::from(there.release.is_some()));
        let added = needed.minus(there.amount).unwrap_or(Amount::ZERO).max(smallest);
        if added.is_zero() {
            return Ok(());
        }
        let left = self.deposit_left(role)?.minus(there.amount).unwrap_or(Amount::ZERO);
        if added > left {
            return Err(LeaseServeError::DepositLimit { added, left });
        }
        order.folder.create()?;
        ledger.bond(wallet, task, added)?;
        let bond = there.amount.plus(added).map_err(florin_compute::LeaseError::from)?;
        order.deposit = Some(bond);
        self.emit(&LeaseEvent::Deposited { order: order.view.id, added, bond });
        Ok(())
    }
}
