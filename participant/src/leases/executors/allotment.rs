//! Which devices of this machine compute which leases: MARBLE's rule, with a device promised to each lease.
//!
//! A lease was won by the time of a step on one device, so that each has at least one: the number of leases is at
//! most that of the devices. A lease starts on its equal part at most. The scheduler's rule divides the rest: free
//! devices go to leases up to their knees, and a new lease takes some back. An executor that gets other devices starts
//! anew from the last state. To grow it ends behind its segment; to shrink it is cancelled.

use std::collections::BTreeMap;

use florin_scheduler::limits::NODE_DEVICES_MAX;
use florin_scheduler::{
    Allotment, AllotmentChange, ClusterState, DeviceKind, DeviceNode, DeviceSet, MarbleSettings,
    OrderId, PackingTable, ScheduleDecision, SchedulePolicy, StepProfile, TrainingOrder, Trigger,
    decide,
};

/// Most devices of a machine.
pub(crate) const MACHINE_DEVICES_MAX: u32 = NODE_DEVICES_MAX;
/// The settings of docs/compute.md, without shared devices: a lease was promised a whole one.
const SETTINGS: MarbleSettings = MarbleSettings {
    relaxed_milli: 0,
    strict_milli: 800,
    relaxed_waiting: 1,
    packed_sum_min_milli: None,
    growth_milli: Some(500),
    shrink_milli: Some(900),
};
/// Nanoseconds of a millionth of a second.
const NANO_PER_US: u64 = 1_000;
/// Steps that take this many percent of those on fewer devices end the try.
const SLOWER_PERCENT: u64 = 110;
/// The only node, and its kind.
const NODE: usize = 0;
const KIND: DeviceKind = DeviceKind(0);

/// A lease that needs devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseDemand {
    /// Smaller numbers came first.
    pub(crate) number: u64,
    /// Microseconds of a step by devices, as far as they were measured.
    pub(crate) times: BTreeMap<u32, u64>,
    /// Steps that are left.
    pub(crate) steps: u64,
    /// Most devices that its executor can use.
    pub(crate) most: u32,
    /// The count for which its last executor ended.
    pub(crate) granted: Option<u32>,
    /// The devices that its executor has.
    pub(crate) devices: DeviceSet,
    /// Whether its executor was asked to end behind its segment.
    pub(crate) is_ending: bool,
}

/// A change of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExecutorChange {
    /// It starts on these devices.
    Start(u64, DeviceSet),
    /// It ends behind its segment, and starts anew on this count of devices.
    Resize(u64, u32),
    /// It is cancelled, and starts anew on fewer devices.
    Interrupt(u64),
}

/// The profile of a lease on `most` devices. A count that was not measured counts as ideal beside the largest measured
/// one below it: it is tried once, and its own time replaces the guess.
fn profile(times: &BTreeMap<u32, u64>, most: u32) -> Option<StepProfile> {
    let mut known: Option<(u32, u64)> = None;
    let nano: Vec<Option<u64>> = (1..=most)
        .map(|count| {
            let measured = times.get(&count).map(|us| us.saturating_mul(NANO_PER_US).max(1));
            if let Some(nano) = measured {
                known = Some((count, nano));
            }
            let (of, nano) = known?;
            Some(nano.saturating_mul(of.into()).div_ceil(count.into()).max(1))
        })
        .collect();
    StepProfile::new(&nano).ok()
}

/// The changes of all executors on a machine of `devices` devices. `launches` is whether one executor may have several.
/// A start anew costs `pause_ms`.
pub(crate) fn changes(
    (devices, launches): (u32, bool),
    demands: &[LeaseDemand],
    pause_ms: u64,
) -> Vec<ExecutorChange> {
    let Some((state, waiting)) = cluster((devices, launches), demands, pause_ms) else {
        return Vec::new();
    };
    let decision = decide(&state, &SchedulePolicy::Marble(SETTINGS), Trigger::Change);
    let taken =
        running(demands).fold(DeviceSet::default(), |all, demand| all.union(demand.devices));
    let mut found: Vec<ExecutorChange> = Vec::new();
    for change in &decision.changes {
        match *change {
            // Devices that another lease leaves are not free yet.
            AllotmentChange::Start { order, allotment } => {
                if allotment.devices.intersection(taken).is_empty() {
                    found.push(ExecutorChange::Start(order.0, allotment.devices));
                }
            }
            AllotmentChange::Rescale { order, allotment } => {
                let before = state.running().get(&order).map(|running| running.allotment.devices);
                let (count, number) = (allotment.devices.len(), order.0);
                found.push(match before.is_some_and(|before| count > before.len()) {
                    true => ExecutorChange::Resize(number, count),
                    false => ExecutorChange::Interrupt(number),
                });
            }
            AllotmentChange::Preempt { order } => found.push(ExecutorChange::Interrupt(order.0)),
        }
    }
    found.extend(slower(demands));
    let is_ending = demands.iter().any(|demand| demand.is_ending);
    if is_ending {
        // One running executor changes at a time: its devices come free first.
        found.retain(|change| matches!(change, ExecutorChange::Start(..)));
    }
    let starts = found.iter().filter(|change| matches!(change, ExecutorChange::Start(..))).count();
    if starts < waiting {
        // A lease waits: it is late by a whole segment of another one, unless that one is interrupted.
        found.retain(|change| !matches!(change, ExecutorChange::Resize(..)));
        if !found.iter().any(|change| matches!(change, ExecutorChange::Interrupt(_))) {
            found.extend(largest(demands));
        }
    }
    found
}

fn running(demands: &[LeaseDemand]) -> impl Iterator<Item = &LeaseDemand> {
    demands.iter().filter(|demand| !demand.devices.is_empty())
}

/// Executors whose steps take longer than on fewer devices, by more than the noise of a measurement.
fn slower(demands: &[LeaseDemand]) -> impl Iterator<Item = ExecutorChange> + '_ {
    running(demands).filter_map(|demand| {
        let count = demand.devices.len();
        let own = *demand.times.get(&count)?;
        let fewer = demand.times.range(..count).min_by_key(|(count, us)| (**us, **count))?;
        let is_slower = own.saturating_mul(100) > fewer.1.saturating_mul(SLOWER_PERCENT);
        is_slower.then_some(ExecutorChange::Resize(demand.number, *fewer.0))
    })
}

/// The cluster of one node with the leases that have devices, and the number of those that wait.
fn cluster(
    (devices, launches): (u32, bool),
    demands: &[LeaseDemand],
    pause_ms: u64,
) -> Option<(ClusterState, usize)> {
    let node = DeviceNode { kind: KIND, devices, memory_bytes: u64::MAX };
    let pause = pause_ms.saturating_mul(1_000_000);
    let mut state = ClusterState::new(vec![node], PackingTable::default(), pause).ok()?;
    let mut starts = Vec::new();
    let mut waiting = 0_usize;
    let leases = u32::try_from(demands.len()).unwrap_or(u32::MAX).max(1);
    let equal = (devices / leases).max(1);
    for demand in demands {
        let id = OrderId(demand.number);
        let most = if launches { devices.min(demand.most.max(1)) } else { 1 };
        // A lease that starts takes at most its equal part, or its grant: guesses would let the first one take all.
        let count = match demand.devices.is_empty() {
            true => most.min(demand.granted.unwrap_or(equal)),
            false => most.max(demand.devices.len()),
        };
        let profiles = BTreeMap::from([(KIND, profile(&demand.times, count)?)]);
        state.submit(TrainingOrder::new(id, profiles, demand.steps.max(1)).ok()?).ok()?;
        match demand.devices.is_empty() {
            true => waiting = waiting.saturating_add(1),
            false => {
                let allotment = Allotment { node: NODE, devices: demand.devices };
                starts.push(AllotmentChange::Start { order: id, allotment });
            }
        }
    }
    state.apply(&ScheduleDecision { changes: starts }).ok()?;
    Some((state, waiting))
}

/// The lease with the most devices, if it can spare one; one that is about to end first.
fn largest(demands: &[LeaseDemand]) -> Option<ExecutorChange> {
    let several = running(demands).filter(|demand| demand.devices.len() > 1 || demand.is_ending);
    let key = |demand: &&LeaseDemand| (demand.is_ending, demand.devices.len(), demand.number);
    several.max_by_key(key).map(|demand| ExecutorChange::Interrupt(demand.number))
}

#[cfg(test)]
#[path = "allotment_tests.rs"]
mod tests;
