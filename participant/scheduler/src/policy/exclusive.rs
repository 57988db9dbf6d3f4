//! Whole nodes, first in first out.

use super::planning::Planning;
use crate::decision::AllotmentChange;
use crate::devices::{Allotment, DeviceSet};
use crate::order::TrainingOrder;
use crate::state::ClusterState;

/// Starts orders in their order, each on all devices of an idle node, until one has to wait.
pub(super) fn changes(state: &ClusterState) -> Vec<AllotmentChange> {
    let mut plan = Planning::new(state);
    for order in state.waiting().values() {
        let Some(allotment) = idle_node(&plan, order) else { break };
        plan.start(order.id, allotment);
    }
    plan.changes
}

/// The idle node on which the order is fastest; then the one with the fewest devices.
fn idle_node(plan: &Planning<'_>, order: &TrainingOrder) -> Option<Allotment> {
    let nodes = plan.state.nodes().iter().enumerate();
    let idle = nodes.filter(|(at, node)| plan.board.free(*at).len() == node.devices);
    let fitting = idle.filter(|(_, node)| order.fits(node));
    let key = fitting.filter_map(|(at, node)| {
        let step_nano = order.profile(node.kind)?.step_nano(node.devices);
        Some((step_nano, node.devices, at))
    });
    let (_, devices, node) = key.min()?;
    Some(Allotment { node, devices: DeviceSet::first(devices) })
}
