//! Allotments at the knee, shared nodes, first in first out.

use std::collections::BTreeMap;

use super::MarbleSettings;
use super::planning::Planning;
use super::rescaling::{Shrinkable, grow};
use crate::decision::AllotmentChange;
use crate::devices::{Allotment, DeviceKind};
use crate::order::{OrderId, TrainingOrder};
use crate::packing::PackingClass;
use crate::state::ClusterState;

/// Starts orders in their order until one has to wait; if none waits, running orders grow.
pub(super) fn changes(state: &ClusterState, settings: &MarbleSettings) -> Vec<AllotmentChange> {
    let mut plan = Planning::new(state);
    let mut left = state.waiting().len();
    let mut beside = None;
    let mut before = None;
    for order in state.waiting().values() {
        let is_relaxed = left <= settings.relaxed_waiting;
        let milli = if is_relaxed { settings.relaxed_milli } else { settings.strict_milli };
        let mut allotment = plan.best_fit(order, |profile| profile.knee(milli));
        if let (None, Some(least)) = (allotment, settings.packed_sum_min_milli) {
            let singles = beside.get_or_insert_with(|| Singles::new(&plan));
            allotment = singles.take(&plan, order, least);
        }
        if let (None, Some(milli)) = (allotment, settings.shrink_milli) {
            let shrinkable = before.get_or_insert_with(|| Shrinkable::new(&plan, milli));
            allotment = shrinkable.take(&mut plan, order, settings.strict_milli, left);
        }
        let Some(allotment) = allotment else { break };
        plan.start(order.id, allotment);
        left -= 1;
    }
    if let (0, Some(milli)) = (left, settings.growth_milli) {
        grow(&mut plan, milli);
    }
    plan.changes
}

/// The orders that have one device alone, by its kind and their class: those that ran before, then
/// those that start now, each in ascending order.
struct Singles {
    by_class: BTreeMap<(DeviceKind, PackingClass), Vec<(OrderId, Allotment)>>,
}

impl Singles {
    fn new(plan: &Planning<'_>) -> Self {
        let started = plan.changes.iter().filter_map(|change| match change {
            AllotmentChange::Start { order, allotment } => Some((*order, *allotment)),
            AllotmentChange::Rescale { .. } | AllotmentChange::Preempt { .. } => None,
        });
        let running = plan.state.running().values();
        let running = running.map(|running| (running.order.id, running.allotment));
        let mut by_class: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (order, allotment) in running.chain(started) {
            let class = plan.state.order(order).and_then(|order| order.class);
            let is_alone = plan.board.partner(order, allotment).is_none();
            if let (true, 1, Some(class)) = (is_alone, allotment.devices.len(), class) {
                let kind = plan.state.nodes()[allotment.node].kind;
                by_class.entry((kind, class)).or_default().push((order, allotment));
            }
        }
        Self { by_class }
    }

    /// The device whose tenant has the largest sum of rates with an order, of at least `least`
    /// thousandths; it is taken from the list.
    fn take(
        &mut self,
        plan: &Planning<'_>,
        order: &TrainingOrder,
        least: u32,
    ) -> Option<Allotment> {
        let class = order.class?;
        let table = plan.state.packing();
        let sums = self.by_class.keys().filter_map(|key| {
            let sum = table.sum(key.0, class, key.1).filter(|sum| *sum >= least)?;
            order.profile(key.0).map(|_| (sum, *key))
        });
        let mut sums: Vec<(u32, (DeviceKind, PackingClass))> = sums.collect();
        sums.sort_by_key(|(sum, key)| (std::cmp::Reverse(*sum), *key));
        for (_, key) in sums {
            let Some(tenants) = self.by_class.get_mut(&key) else { continue };
            let shares = |(tenant, allotment): &(OrderId, Allotment)| {
                let tenant = plan.state.order(*tenant);
                tenant.is_some_and(|tenant| plan.state.can_share(order, tenant, *allotment))
            };
            if let Some(at) = tenants.iter().position(shares) {
                return Some(tenants.remove(at).1);
            }
        }
        None
    }
}
