//! Devices for wanted counts: orders whose count stays are not moved.

use std::collections::BTreeMap;

use super::planning::Planning;
use crate::decision::AllotmentChange;
use crate::devices::Allotment;
use crate::order::{OrderId, TrainingOrder};
use crate::state::ClusterState;

/// The changes that give each order its wanted count, or fewer devices where no node has so few
/// free ones left. Orders without a count stop.
pub(super) fn changes(
    state: &ClusterState,
    wanted: &BTreeMap<OrderId, u32>,
) -> Vec<AllotmentChange> {
    let mut board = state.board().clone();
    let mut moved: Vec<(u32, &TrainingOrder, Option<Allotment>)> = Vec::new();
    for (order, running) in state.running() {
        let count = wanted.get(order).copied().unwrap_or(0);
        if count != running.allotment.devices.len() {
            board.remove(*order, running.allotment);
            moved.push((count, &running.order, Some(running.allotment)));
        }
    }
    let waiting = state.waiting().values();
    let starts = waiting.filter_map(|order| Some((*wanted.get(&order.id)?, order, None)));
    moved.extend(starts.filter(|(count, ..)| *count > 0));
    // Large counts first, so that small ones do not divide the nodes before them.
    moved.sort_by_key(|(count, order, _)| (std::cmp::Reverse(*count), order.id));
    let mut plan = Planning::on(state, board);
    for (count, order, old) in moved {
        place(&mut plan, count, order, old);
    }
    plan.changes
}

fn place(plan: &mut Planning<'_>, count: u32, order: &TrainingOrder, old: Option<Allotment>) {
    let fitting = plan.best_fit(order, |_| count).filter(|_| count > 0);
    let order = order.id;
    match (fitting, old) {
        (Some(allotment), None) => plan.start(order, allotment),
        (Some(allotment), Some(old)) => {
            let still_free = plan.board.free(old.node).intersection(old.devices) == old.devices;
            if allotment.devices.len() == old.devices.len() && still_free {
                plan.add(order, old);
            } else {
                plan.add(order, allotment);
                plan.changes.push(AllotmentChange::Rescale { order, allotment });
            }
        }
        (None, Some(_)) => plan.changes.push(AllotmentChange::Preempt { order }),
        (None, None) => {}
    }
}
