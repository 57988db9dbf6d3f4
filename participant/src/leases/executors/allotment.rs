//! Which devices of this machine compute which leases: MARBLE's rule, with a device, or its half, promised to each lease.
//!
//! A lease was won by the time of a step on one device, so that each has at least one. A lease starts on its equal part
//! at most. The scheduler's rule divides the rest: free devices go to leases up to their knees, and a new lease takes
//! some back. An executor that gets other devices starts anew from the last state. To grow it ends behind its segment;
//! to shrink it is cancelled.
//!
//! Where the policy lets leases share, a lease that finds each device taken by one other lease alone starts beside the
//! one with which the sum of their rates is the largest. It leaves for a free device like a lease that grows.

use std::collections::BTreeMap;

use florin_protocol::Digest;
use florin_scheduler::limits::NODE_DEVICES_MAX;
use florin_scheduler::{
    Allotment, AllotmentChange, ClusterState, DeviceKind, DeviceNode, DeviceSet, MarbleSettings,
    OrderId, PackingClass, ScheduleDecision, SchedulePolicy, StepProfile, TrainingOrder, Trigger,
    decide,
};

use super::pairs::{PairTimes, SharingLease};

/// Most devices of a machine.
pub(crate) const MACHINE_DEVICES_MAX: u32 = NODE_DEVICES_MAX;
/// The settings of docs/compute.md. Leases share where more run than there are devices, and not by these settings: any
/// other lease has a device that the bid states.
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

/// The devices of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MachineDevices {
    /// Their number.
    pub(crate) count: u32,
    /// Whether one executor may have several.
    pub(crate) launches: bool,
    /// Most leases of each.
    pub(crate) leases_of_each: u32,
}

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
    /// The shape of its job; `None` shares no device.
    pub(crate) shape: Option<Digest>,
}

impl LeaseDemand {
    fn sharing(&self) -> Option<SharingLease> {
        let alone_us = self.times.get(&1).copied()?;
        self.shape.map(|shape| SharingLease { shape, alone_us })
    }
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

/// The changes of all executors on a machine. A start anew costs `pause_ms`.
pub(crate) fn changes(
    machine: MachineDevices,
    demands: &[LeaseDemand],
    pairs: &PairTimes,
    pause_ms: u64,
) -> Vec<ExecutorChange> {
    let leaving = decided(machine, demands, pairs, (pause_ms, Growth::OfSharing));
    let Some((mut found, waiting)) = leaving else { return Vec::new() };
    if found.is_empty() {
        // No lease gains by leaving a shared device.
        let all = decided(machine, demands, pairs, (pause_ms, Growth::OfAll));
        found = all.map(|(found, _)| found).unwrap_or_default();
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
            match largest(demands) {
                Some(change) => found.push(change),
                None => share(machine, demands, pairs, &mut found),
            }
        }
    }
    found
}

/// The leases that may get more devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    /// Those that share one, if there are any, and all otherwise.
    OfSharing,
    OfAll,
}

/// The changes by the scheduler's rule, and the number of leases that wait.
fn decided(
    machine: MachineDevices,
    demands: &[LeaseDemand],
    pairs: &PairTimes,
    (pause_ms, growth): (u64, Growth),
) -> Option<(Vec<ExecutorChange>, usize)> {
    let (state, waiting) = cluster(machine, demands, pairs, (pause_ms, growth))?;
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
                // A lease that leaves a shared device has as many as before.
                found.push(match before.is_some_and(|before| count >= before.len()) {
                    true => ExecutorChange::Resize(number, count),
                    false => ExecutorChange::Interrupt(number),
                });
            }
            AllotmentChange::Preempt { order } => found.push(ExecutorChange::Interrupt(order.0)),
        }
    }
    Some((found, waiting))
}

/// Starts the leases that wait on devices of one other lease each, where the policy lets leases share.
fn share(
    machine: MachineDevices,
    demands: &[LeaseDemand],
    pairs: &PairTimes,
    found: &mut Vec<ExecutorChange>,
) {
    let mut taken: Vec<DeviceSet> = demands.iter().map(|demand| demand.devices).collect();
    for (demand, devices) in demands.iter().zip(&mut taken) {
        let own = found.iter().find_map(|change| match change {
            ExecutorChange::Start(number, devices) if *number == demand.number => Some(*devices),
            _ => None,
        });
        *devices = own.unwrap_or(*devices);
    }
    for at in 0..demands.len() {
        let (Some(demand), Some(devices)) = (demands.get(at), taken.get(at)) else { continue };
        let Some(own) = demand.sharing().filter(|_| devices.is_empty()) else { continue };
        let beside = (0..machine.count).filter_map(|index| {
            let device = DeviceSet::from_index(index);
            let mut tenants = demands.iter().zip(&taken);
            let mut next = || tenants.find(|(_, taken)| !taken.intersection(device).is_empty());
            let (Some((other, taken)), None) = (next(), next()) else { return None };
            let has_place = *taken == device && machine.leases_of_each > 1;
            other.sharing().filter(|_| has_place).map(|other| (pairs.sum_milli(own, other), index))
        });
        // Of equal sums the first device.
        let best = beside.min_by_key(|(sum, index)| (std::cmp::Reverse(*sum), *index));
        if let (Some((_, index)), Some(devices)) = (best, taken.get_mut(at)) {
            *devices = DeviceSet::from_index(index);
            found.push(ExecutorChange::Start(demand.number, *devices));
        }
    }
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
    MachineDevices { count: devices, launches, .. }: MachineDevices,
    demands: &[LeaseDemand],
    pairs: &PairTimes,
    (pause_ms, growth): (u64, Growth),
) -> Option<(ClusterState, usize)> {
    let node = DeviceNode { kind: KIND, devices, memory_bytes: u64::MAX };
    let pause = pause_ms.saturating_mul(1_000_000);
    let class = |at: usize| u16::try_from(at).ok().map(PackingClass);
    let sharing = demands.iter().enumerate();
    let sharing = sharing.filter_map(|(at, demand)| Some((class(at)?, demand.sharing()?)));
    let table = pairs.table(KIND, &sharing.collect::<Vec<_>>()).ok()?;
    let mut state = ClusterState::new(vec![node], table, pause).ok()?;
    let mut starts = Vec::new();
    let mut waiting = 0_usize;
    let leases = u32::try_from(demands.len()).unwrap_or(u32::MAX).max(1);
    let equal = (devices / leases).max(1);
    let is_sharing = demands.iter().any(|demand| shares(demands, demand));
    for (at, demand) in demands.iter().enumerate() {
        let id = OrderId(demand.number);
        let most = if launches { devices.min(demand.most.max(1)) } else { 1 };
        let grows = growth == Growth::OfAll || shares(demands, demand) || !is_sharing;
        // A lease that starts takes at most its equal part, or its grant: guesses would let the first one take all.
        let count = match demand.devices.is_empty() {
            true => most.min(demand.granted.unwrap_or(equal)),
            false if grows => most.max(demand.devices.len()),
            false => demand.devices.len(),
        };
        let profiles = BTreeMap::from([(KIND, profile(&demand.times, count)?)]);
        let mut order = TrainingOrder::new(id, profiles, demand.steps.max(1)).ok()?;
        order.class = class(at).filter(|_| demand.shape.is_some());
        state.submit(order).ok()?;
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

/// Whether another lease has a device of this one.
fn shares(demands: &[LeaseDemand], one: &LeaseDemand) -> bool {
    let others = demands.iter().filter(|other| other.number != one.number);
    others.into_iter().any(|other| !other.devices.intersection(one.devices).is_empty())
}

/// The lease with the most devices, if it can spare one; one that is about to end first. One with a single device frees
/// none: it needs another one at once.
fn largest(demands: &[LeaseDemand]) -> Option<ExecutorChange> {
    let several = running(demands).filter(|demand| demand.devices.len() > 1);
    let key = |demand: &&LeaseDemand| (demand.is_ending, demand.devices.len(), demand.number);
    several.max_by_key(key).map(|demand| ExecutorChange::Interrupt(demand.number))
}

#[cfg(test)]
#[path = "allotment_tests.rs"]
mod tests;
