//! The expected pay and the deposits of the orders that take bids, before anything is deposited.

use florin_compute::{Bid, ComputeOrder, Phase};
use florin_protocol::{Amount, Digest};

use super::error::LeaseServeError;
use super::followed::FollowedOrder;
use super::policy::LeaseRole;
use super::{LeaseDaemon, LeaseServeConfig};
use crate::provider::ProviderContext;
use crate::shutdown::Shutdown;

/// An account's prospects in an order and a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderProspect {
    /// The order.
    pub order: Digest,
    /// `provider` or `auditor`.
    pub role: &'static str,
    /// Why the policy or the market leaves it out; the other numbers are zero then.
    pub refusal: Option<String>,
    /// The most that the account can lose.
    pub deposit: Amount,
    /// Pay if the second score is the account's own, or the expected fees of an auditor.
    pub pay_least: Amount,
    /// Pay if no other account bids, or if every drawn segment is this auditor's.
    pub pay_most: Amount,
    /// The time of the computation as the card predicts it, in milliseconds.
    pub compute_ms: u64,
}

/// The prospects of an account in the orders that take bids. Nothing is deposited, sent or stored.
///
/// # Errors
/// [`LeaseServeError`].
pub fn prospects(
    config: &LeaseServeConfig,
    context: ProviderContext<'_>,
    shutdown: &Shutdown,
) -> Result<Vec<OrderProspect>, LeaseServeError> {
    let mut quiet = |_: &super::LeaseEvent| {};
    let mut daemon = LeaseDaemon::open(config, context, shutdown, &mut quiet)?;
    let views = daemon.context.client.orders()?;
    daemon.follow(views);
    daemon.read_deposits()?;
    let mut found = Vec::new();
    for id in daemon.orders.keys().copied().collect::<Vec<_>>() {
        let Some(mut order) = daemon.orders.remove(&id) else { continue };
        let takes_bids = order.view.opened.is_some() && order.view.phase == Phase::Bidding;
        if takes_bids && order.follow(daemon.context.client)? {
            if order.roles.bids {
                found.push(daemon.bid_prospect(&mut order)?);
            }
            if order.roles.audits {
                found.push(daemon.audit_prospect(&mut order)?);
            }
        }
        daemon.orders.insert(id, order);
    }
    Ok(found)
}

/// A step count times its time, in milliseconds.
fn ms(steps: u64, step_us: u64) -> u64 {
    steps.saturating_mul(step_us).div_ceil(1_000)
}

fn refused(order: Digest, role: &'static str, why: String) -> OrderProspect {
    let (zero, refusal) = (Amount::ZERO, Some(why));
    let (deposit, pay_least, pay_most) = (zero, zero, zero);
    OrderProspect { order, role, refusal, deposit, pay_least, pay_most, compute_ms: 0 }
}

impl LeaseDaemon<'_, '_> {
    fn bid_prospect(
        &mut self,
        order: &mut FollowedOrder,
    ) -> Result<OrderProspect, LeaseServeError> {
        let (id, role) = (order.view.id, LeaseRole::Provider.name());
        let bid: Bid = match self.examine_bid(order)? {
            Ok(bid) => bid,
            Err(obstacle) => return Ok(refused(id, role, obstacle.reason())),
        };
        let offered = &order.view.order;
        let price = bid.price(offered).map_err(florin_compute::LeaseError::from)?;
        let steps = u64::from(offered.segments).saturating_mul(offered.steps.into());
        Ok(OrderProspect {
            order: id,
            role,
            refusal: None,
            deposit: offered.deposits.stake.max(offered.deposits.bid_bond),
            pay_least: price,
            pay_most: offered.price_max,
            compute_ms: ms(steps, bid.times.useful_us()),
        })
    }

    fn audit_prospect(
        &mut self,
        order: &mut FollowedOrder,
    ) -> Result<OrderProspect, LeaseServeError> {
        let (id, role) = (order.view.id, LeaseRole::Auditor.name());
        let step_us = match self.examine_audit(order)? {
            Ok(step_us) => step_us,
            Err(obstacle) => return Ok(refused(id, role, obstacle.reason())),
        };
        // The account would be one auditor more.
        let others = order.lease()?.lease().auditor_count();
        let offered: &ComputeOrder = &order.view.order;
        let drawn = offered.audited(offered.segments);
        let most = offered.audit.fee.mul_div_down(drawn.into(), 1);
        let most = most.map_err(florin_compute::LeaseError::from)?;
        let pool = u128::try_from(others).unwrap_or(u128::MAX).saturating_add(1);
        let share = u128::from(offered.audit.auditors).min(pool);
        let expected = most.mul_div_down(share, pool).map_err(florin_compute::LeaseError::from)?;
        let steps = u64::from(drawn).saturating_mul(offered.steps.into());
        Ok(OrderProspect {
            order: id,
            role,
            refusal: None,
            deposit: offered.deposits.audit_bond,
            pay_least: expected,
            pay_most: most,
            compute_ms: ms(steps, step_us),
        })
    }
}
