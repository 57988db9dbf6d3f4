//! The orders that finish first run, each on the devices that it requests.

use std::collections::BTreeMap;

use super::planning::Planning;
use super::{IntervalSettings, targets};
use crate::decision::AllotmentChange;
use crate::devices::DeviceNode;
use crate::order::{OrderId, TrainingOrder};
use crate::state::ClusterState;

/// An order with the devices that it requests, by the time that it then needs.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    remaining_nano: u128,
    order: OrderId,
    devices: u32,
}

/// Between two intervals: free devices go to waiting orders, the shortest first.
pub(super) fn admit(state: &ClusterState, settings: &IntervalSettings) -> Vec<AllotmentChange> {
    let mut plan = Planning::new(state);
    if !plan.has_free() {
        return plan.changes;
    }
    for request in requests(state, state.waiting().values(), settings) {
        let Some(order) = state.waiting().get(&request.order) else { continue };
        if let Some(allotment) = plan.best_fit(order, |_| request.devices) {
            plan.start(order.id, allotment);
        }
        if !plan.has_free() {
            break;
        }
    }
    plan.changes
}

/// The orders that run in the next interval anew: the shortest that fit together.
pub(super) fn reconsider(
    state: &ClusterState,
    settings: &IntervalSettings,
) -> Vec<AllotmentChange> {
    let mut free: u32 = state.nodes().iter().map(|node| node.devices).sum();
    let running = state.running().values().map(|running| &running.order);
    let orders = running.chain(state.waiting().values());
    let mut wanted = BTreeMap::new();
    for request in requests(state, orders, settings) {
        let devices = request.devices.min(free);
        if devices > 0 {
            wanted.insert(request.order, devices);
            free -= devices;
        }
    }
    targets::changes(state, &wanted)
}

/// The requests of orders, shortest first.
fn requests<'a>(
    state: &ClusterState,
    orders: impl Iterator<Item = &'a TrainingOrder>,
    settings: &IntervalSettings,
) -> Vec<Request> {
    let mut kinds: Vec<DeviceNode> = state.nodes().to_vec();
    kinds.sort_by_key(|node| (node.kind, node.memory_bytes, node.devices));
    kinds.dedup();
    let mut requests: Vec<Request> =
        orders.filter_map(|order| request(&kinds, order, settings)).collect();
    requests.sort();
    requests
}

/// The request of an order on the kind of nodes on which it is fastest.
fn request(
    kinds: &[DeviceNode],
    order: &TrainingOrder,
    settings: &IntervalSettings,
) -> Option<Request> {
    let fitting = kinds.iter().filter(|node| order.fits(node));
    let choices = fitting.filter_map(|node| {
        let profile = order.profile(node.kind)?;
        let knee = profile.knee(settings.requested_milli);
        let devices = profile.useful_within(knee.min(node.devices));
        let remaining_nano = order.remaining_nano(profile.step_nano(devices));
        Some(Request { remaining_nano, order: order.id, devices })
    });
    choices.min()
}
