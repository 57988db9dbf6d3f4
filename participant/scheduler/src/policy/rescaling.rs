//! Growth and shrinking of running orders. Each pauses its order for the time of a rescale.

use std::cmp::Reverse;

use super::planning::Planning;
use crate::decision::AllotmentChange;
use crate::devices::Allotment;
use crate::order::{OrderId, TrainingOrder};
use crate::state::RunningOrder;

/// Gives free devices to running orders, the one that gains the most time first, where the time
/// saved exceeds the pause.
pub(super) fn grow(plan: &mut Planning<'_>, milli: u32) {
    let still = still_running(plan).into_iter();
    let gains = still.filter_map(|running| Some((growth(plan, running, milli)?.0, running)));
    let mut gains: Vec<(u128, &RunningOrder)> = gains.collect();
    gains.sort_by_key(|(gain, running)| (Reverse(*gain), running.order.id));
    for (_, running) in gains {
        // An earlier order may have taken some of the devices.
        if let Some((_, allotment)) = growth(plan, running, milli) {
            plan.rescale(running, allotment);
        }
    }
}

/// The running orders that have devices beyond their knee.
pub(super) struct Shrinkable<'a> {
    /// Sorted by the time that each loses on fewer devices, with the pause.
    losses: Vec<(u128, OrderId, Allotment, &'a RunningOrder)>,
    /// The time until the next completion.
    wait_nano: u128,
}

impl<'a> Shrinkable<'a> {
    pub(super) fn new(plan: &Planning<'a>, milli: u32) -> Self {
        let running = still_running(plan).into_iter();
        let mut losses: Vec<_> = running.filter_map(|running| loss(plan, running, milli)).collect();
        losses.sort_by_key(|(nano, id, ..)| (*nano, *id));
        Self { losses, wait_nano: plan.state.next_completion_nano().unwrap_or(0) }
    }

    /// Takes devices from a running order for an order that would have to wait: from the one that
    /// loses the least time, if that is less than the `waiting` orders wait together until the next
    /// completion. Returns the devices for the order, at most its knee at `strict_milli`.
    pub(super) fn take(
        &mut self,
        plan: &mut Planning<'a>,
        order: &TrainingOrder,
        strict_milli: u32,
        waiting: usize,
    ) -> Option<Allotment> {
        let fits = |stays: &Allotment| order.fits(&plan.state.nodes()[stays.node]);
        let at = self.losses.iter().position(|(_, _, stays, running)| {
            let is_alone = plan.board.partner(running.order.id, running.allotment).is_none();
            is_alone && fits(stays)
        })?;
        if self.losses[at].0 >= self.wait_nano * waiting as u128 {
            return None;
        }
        let (_, _, stays, running) = self.losses.remove(at);
        plan.rescale(running, stays);
        let freed = running.allotment.devices.without(stays.devices);
        let profile = order.profile(plan.state.nodes()[stays.node].kind)?;
        let count = profile.useful_within(freed.len().min(profile.knee(strict_milli)));
        Some(Allotment { node: stays.node, devices: freed.lowest(count) })
    }
}

/// The running orders that may get other devices: none pauses, and none has a change in the plan.
fn still_running<'a>(plan: &Planning<'a>) -> Vec<&'a RunningOrder> {
    let rescaled = plan.changes.iter().filter(|change| {
        matches!(change, AllotmentChange::Rescale { .. } | AllotmentChange::Preempt { .. })
    });
    let rescaled: Vec<OrderId> = rescaled.map(AllotmentChange::order).collect();
    let running = plan.state.running().values();
    running
        .filter(|running| running.pause_nano == 0 && !rescaled.contains(&running.order.id))
        .collect()
}

/// The time that a running order loses on the devices that its knee leaves it, with the pause, and
/// these devices; `None` if it has no more.
fn loss<'a>(
    plan: &Planning<'_>,
    running: &'a RunningOrder,
    milli: u32,
) -> Option<(u128, OrderId, Allotment, &'a RunningOrder)> {
    let Allotment { node, devices } = running.allotment;
    let profile = running.order.profile(plan.state.nodes()[node].kind)?;
    let count = profile.knee(milli);
    if count >= devices.len() {
        return None;
    }
    let slower = profile.step_nano(count) - profile.step_nano(devices.len());
    let lost_nano = running.order.remaining_nano(slower) + u128::from(plan.state.rescale_nano());
    let stays = Allotment { node, devices: devices.lowest(count) };
    Some((lost_nano, running.order.id, stays, running))
}

/// The time that an order saves on more devices, after the pause, and these devices: of its own node,
/// or of another one where it is faster.
fn growth(plan: &Planning<'_>, running: &RunningOrder, milli: u32) -> Option<(u128, Allotment)> {
    let (state, own) = (plan.state, running.allotment);
    let shares = plan.board.partner(running.order.id, own).is_some();
    let faster = plan.free_nodes().iter().filter_map(|node| {
        let of_node = state.nodes()[*node];
        let profile =
            running.order.profile(of_node.kind).filter(|_| running.order.fits(&of_node))?;
        let free = plan.board.free(*node);
        // An order that shares its device leaves it.
        let is_own = *node == own.node && !shares;
        let stays = if is_own { own.devices } else { free.lowest(0) };
        let count = profile.useful_within((stays.len() + free.len()).min(profile.knee(milli)));
        let added = count.checked_sub(stays.len()).filter(|added| *added > 0)?;
        let devices = stays.union(free.lowest(added));
        let key = (profile.step_nano(count), !is_own, free.len(), *node);
        Some((key, Allotment { node: *node, devices }))
    });
    let ((step_nano, ..), allotment) = faster.min_by_key(|(key, _)| *key)?;
    let now = running.order.remaining_nano(state.step_nano(running));
    let then = running.order.remaining_nano(step_nano) + u128::from(state.rescale_nano());
    let gain = now.checked_sub(then).filter(|gain| *gain > 0)?;
    Some((gain, allotment))
}
