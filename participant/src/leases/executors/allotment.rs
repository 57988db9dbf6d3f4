//! Which devices of this machine compute which leases: MARBLE's rule, with a device promised to each lease.
//!
//! A lease was won by the time of a step on one device, so that each has at least one: the number of leases is at
//! most that of the devices. A lease starts on its equal part at most. The scheduler's rule divides the rest: free
//! devices go to leases up to their knees, and a new lease takes some back. An executor that gets other devices starts anew from the last state. To grow it ends
//! behind its segment; to shrink it is cancelled.

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
    /// The devices that its executor has.
    pub(crate) devices: DeviceSet,
    /// Whether its executor is about to end.
    pub(crate) is_ending: bool,
}

/// A change of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExecutorChange {
    /// It starts on these devices.
    Start(u64, DeviceSet),
    /// It ends behind its segment, and starts anew on more devices.
    Grow(u64),
    /// It is cancelled, and starts anew on fewer devices.
    Shrink(u64),
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
    let most = if launches { devices } else { 1 };
    let Some((state, waiting)) = cluster(devices, most, demands, pause_ms) else {
        return Vec::new();
    };
    let policy = SchedulePolicy::Marble(SETTINGS);
    let decision = decide(&state, &policy, Trigger::Change);
    let is_ending = demands.iter().any(|demand| demand.is_ending);
    let mut found: Vec<ExecutorChange> = Vec::new();
    for change in &decision.changes {
        match *change {
            AllotmentChange::Start { order, allotment } => {
                found.push(ExecutorChange::Start(order.0, allotment.devices));
            }
            // One change of a running executor at a time: its devices come free first.
            AllotmentChange::Rescale { .. } | AllotmentChange::Preempt { .. } if is_ending => {}
            AllotmentChange::Rescale { order, allotment } => {
                let before = state.running().get(&order).map(|running| running.allotment.devices);
                let grows = before.is_some_and(|before| allotment.devices.len() > before.len());
                let number = order.0;
                found.push(match grows {
                    true => ExecutorChange::Grow(number),
                    false => ExecutorChange::Shrink(number),
                });
            }
            AllotmentChange::Preempt { order } => found.push(ExecutorChange::Shrink(order.0)),
        }
    }
    // A lease that starts on devices which another one leaves waits for them.
    let freed =
        running(demands).fold(DeviceSet::default(), |all, demand| all.union(demand.devices));
    found.retain(|change| match change {
        ExecutorChange::Start(_, devices) => devices.intersection(freed).is_empty(),
        ExecutorChange::Grow(_) | ExecutorChange::Shrink(_) => true,
    });
    let started = found.iter().filter(|change| matches!(change, ExecutorChange::Start(..))).count();
    let shrinks = found.iter().any(|change| matches!(change, ExecutorChange::Shrink(_)));
    if started < waiting && !shrinks && !is_ending {
        found.extend(largest(demands));
    }
    found
}

fn running(demands: &[LeaseDemand]) -> impl Iterator<Item = &LeaseDemand> {
    demands.iter().filter(|demand| !demand.devices.is_empty())
}

/// The cluster of one node with the leases that have devices, and the number of those that wait.
fn cluster(
    devices: u32,
    most: u32,
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
        // A lease that starts takes at most its equal part: guesses would let the first one take all.
        let count = if demand.devices.is_empty() { most.min(equal) } else { most };
        let profiles = BTreeMap::from([(KIND, profile(&demand.times, count)?)]);
        let order = TrainingOrder::new(id, profiles, demand.steps.max(1)).ok()?;
        if demand.devices.is_empty() && demand.is_ending {
            continue;
        }
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

/// The lease with the most devices, if it can spare one.
fn largest(demands: &[LeaseDemand]) -> Option<ExecutorChange> {
    let largest = running(demands).max_by_key(|demand| (demand.devices.len(), demand.number))?;
    (largest.devices.len() > 1).then_some(ExecutorChange::Shrink(largest.number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(number: u64, devices: DeviceSet) -> LeaseDemand {
        let times = BTreeMap::from([(1, 10_000)]);
        LeaseDemand { number, times, steps: 100_000, devices, is_ending: false }
    }

    fn none() -> DeviceSet {
        DeviceSet::default()
    }

    #[test]
    fn a_count_that_was_not_measured_is_ideal_until_it_is_measured() {
        let guess = profile(&BTreeMap::from([(1, 12)]), 4).unwrap();
        assert_eq!([1, 2, 3, 4].map(|n| guess.step_nano(n)), [12_000, 6_000, 4_000, 3_000]);
        let measured = profile(&BTreeMap::from([(1, 12), (2, 11)]), 4).unwrap();
        assert_eq!([1, 2, 3, 4].map(|n| measured.step_nano(n)), [12_000, 11_000, 7_334, 5_500]);
        assert!(profile(&BTreeMap::from([(2, 11)]), 4).is_none(), "one device is always measured");
    }

    #[test]
    fn a_lease_alone_gets_all_devices_and_shares_them_with_the_next_one() {
        let all = DeviceSet::first(4);
        let alone = changes((4, true), &[demand(1, none())], 1_000);
        assert_eq!(alone, [ExecutorChange::Start(1, all)]);
        // A second one: the first is cancelled, and both start on a part.
        let mut both = vec![demand(1, all), demand(2, none())];
        assert_eq!(changes((4, true), &both, 1_000), [ExecutorChange::Shrink(1)]);
        both[0].is_ending = true;
        assert_eq!(changes((4, true), &both, 1_000), [], "its devices are not free yet");
        let both = [demand(1, none()), demand(2, none())];
        let started = changes((4, true), &both, 1_000);
        let count = |number| {
            started.iter().find_map(|change| match change {
                ExecutorChange::Start(of, devices) if *of == number => Some(devices.len()),
                _ => None,
            })
        };
        assert!(count(1).is_some() && count(2).is_some(), "{started:?}");
    }

    #[test]
    fn each_of_as_many_leases_as_devices_gets_one() {
        let demands: Vec<LeaseDemand> = (0..4).map(|number| demand(number, none())).collect();
        for launches in [false, true] {
            let mut demands = demands.clone();
            // Leases start, end and start anew, until nothing changes.
            for _ in 0..20 {
                for change in changes((4, launches), &demands, 1_000) {
                    match change {
                        ExecutorChange::Start(number, devices) => {
                            let used =
                                demands.iter().fold(none(), |all, one| all.union(one.devices));
                            assert!(used.intersection(devices).is_empty());
                            demands[number as usize].devices = devices;
                        }
                        ExecutorChange::Grow(number) | ExecutorChange::Shrink(number) => {
                            demands[number as usize].devices = none();
                        }
                    }
                }
            }
            let counts: Vec<u32> = demands.iter().map(|one| one.devices.len()).collect();
            assert_eq!(counts, [1, 1, 1, 1], "launches: {launches}");
        }
    }

    #[test]
    fn without_a_launcher_each_lease_has_one_device() {
        let started = changes((4, false), &[demand(1, none())], 1_000);
        assert_eq!(started, [ExecutorChange::Start(1, DeviceSet::first(1))]);
        assert_eq!(changes((4, false), &[demand(1, DeviceSet::first(1))], 1_000), []);
    }

    #[test]
    fn a_lease_grows_if_that_saves_more_than_the_start_anew() {
        let one = DeviceSet::first(1);
        assert_eq!(changes((4, true), &[demand(1, one)], 1_000), [ExecutorChange::Grow(1)]);
        let short = LeaseDemand { steps: 100, ..demand(1, one) };
        assert_eq!(changes((4, true), &[short], 1_000), [], "a second of work saves no second");
        let slower = BTreeMap::from([(1, 10_000), (2, 20_000), (3, 20_000), (4, 20_000)]);
        let slower = LeaseDemand { times: slower, ..demand(1, one) };
        assert_eq!(changes((4, true), &[slower], 1_000), [], "more devices are slower");
    }

    #[test]
    fn the_last_lease_takes_a_device_even_if_the_scheduler_would_let_it_wait() {
        // The first one ends soon, so that the rule alone would let the second one wait for it.
        let first = LeaseDemand { steps: 10, ..demand(1, DeviceSet::first(4)) };
        let found = changes((4, true), &[first, demand(2, none())], 1_000);
        assert_eq!(found, [ExecutorChange::Shrink(1)]);
    }
}
