//! One device for every order, and each further one for the order that it shortens most.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::planning::Planning;
use super::targets;
use crate::decision::AllotmentChange;
use crate::devices::DeviceNode;
use crate::order::{OrderId, TrainingOrder};
use crate::profile::StepProfile;
use crate::state::ClusterState;

/// Between two intervals: each waiting order starts on one free device.
pub(super) fn admit(state: &ClusterState) -> Vec<AllotmentChange> {
    let mut plan = Planning::new(state);
    for order in state.waiting().values() {
        if !plan.has_free() {
            break;
        }
        if let Some(allotment) = plan.best_fit(order, |_| 1) {
            plan.start(order.id, allotment);
        }
    }
    plan.changes
}

/// Counts for all orders anew.
pub(super) fn reconsider(state: &ClusterState) -> Vec<AllotmentChange> {
    targets::changes(state, &counts(state))
}

/// The next useful count of an order: the time it saves for each added device decides.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct NextCount {
    saved_nano: u128,
    order: Reverse<OrderId>,
    added: u32,
}

/// The greedy counts, without regard to nodes.
fn counts(state: &ClusterState) -> BTreeMap<OrderId, u32> {
    let mut free: u32 = state.nodes().iter().map(|node| node.devices).sum();
    let largest = state.nodes().iter().map(|node| node.devices).max().unwrap_or(0);
    let mut counts = BTreeMap::new();
    let mut profiles = BTreeMap::new();
    let mut steps = BinaryHeap::new();
    let running = state.running().values().map(|running| &running.order);
    let mut orders: Vec<&TrainingOrder> = running.chain(state.waiting().values()).collect();
    orders.sort_by_key(|order| order.id);
    for order in orders.into_iter().take(free as usize) {
        let Some(profile) = fastest_profile(order, state.nodes()) else { continue };
        counts.insert(order.id, 1);
        profiles.insert(order.id, (order, profile));
        free -= 1;
        steps.extend(next_step(order, profile, 1, largest));
    }
    while let Some(step) = steps.pop() {
        let id = step.order.0;
        let (Some(count), Some((order, profile))) = (counts.get_mut(&id), profiles.get(&id)) else {
            continue;
        };
        if step.added <= free {
            *count += step.added;
            free -= step.added;
            steps.extend(next_step(order, profile, *count, largest));
        }
    }
    counts
}

/// The profile of the kind on which one device is fastest, of the nodes that the order fits.
fn fastest_profile<'a>(order: &'a TrainingOrder, nodes: &[DeviceNode]) -> Option<&'a StepProfile> {
    let fits = |kind| nodes.iter().any(|node| node.kind == kind && order.fits(node));
    let profiles = order.profiles().filter(|(kind, _)| fits(*kind));
    profiles.min_by_key(|(kind, profile)| (profile.step_nano(1), *kind)).map(|(_, profile)| profile)
}

fn next_step(
    order: &TrainingOrder,
    profile: &StepProfile,
    count: u32,
    largest: u32,
) -> Option<NextCount> {
    let next = profile.useful().iter().find(|next| **next > count && **next <= largest)?;
    let saved = profile.step_nano(count) - profile.step_nano(*next);
    let added = next - count;
    let saved_nano = order.remaining_nano(saved) / u128::from(added);
    Some(NextCount { saved_nano, order: Reverse(order.id), added })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::DeviceKind;
    use crate::packing::PackingTable;

    const KIND: DeviceKind = DeviceKind(0);

    fn cluster(devices: u32, orders: &[(&[u64], u64)]) -> ClusterState {
        let node = DeviceNode { kind: KIND, devices, memory_bytes: 0 };
        let mut state = ClusterState::new(vec![node], PackingTable::default(), 0).unwrap();
        for (id, (times, steps)) in (1..).zip(orders) {
            let times: Vec<Option<u64>> = times.iter().map(|nano| Some(*nano)).collect();
            let profiles = BTreeMap::from([(KIND, StepProfile::new(&times).unwrap())]);
            state.submit(TrainingOrder::new(OrderId(id), profiles, *steps).unwrap()).unwrap();
        }
        state
    }

    /// The least sum of remaining times over all counts of at least one device each.
    fn brute_force(state: &ClusterState, devices: u32) -> u128 {
        fn least(orders: &[&TrainingOrder], free: u32) -> u128 {
            let Some((order, rest)) = orders.split_first() else { return 0 };
            let profile = order.profile(KIND).unwrap();
            let counts = 1..=free - rest.len() as u32;
            let sums = counts.map(|count| {
                order.remaining_nano(profile.step_nano(count)) + least(rest, free - count)
            });
            sums.min().unwrap()
        }
        least(&state.waiting().values().collect::<Vec<_>>(), devices)
    }

    #[test]
    fn greedy_counts_are_optimal_for_convex_step_times() {
        let convex: [&[u64]; 3] =
            [&[600, 310, 220, 180], &[100, 95, 94, 94], &[400, 200, 140, 120]];
        for steps in [[1, 1, 1], [5, 1, 9], [1, 100, 2], [7, 7, 1]] {
            for devices in 3..=9 {
                let orders: Vec<(&[u64], u64)> = convex.into_iter().zip(steps).collect();
                let state = cluster(devices, &orders);
                let counts = counts(&state);
                let sum: u128 = state
                    .waiting()
                    .values()
                    .map(|order| {
                        order.remaining_nano(
                            order.profile(KIND).unwrap().step_nano(counts[&order.id]),
                        )
                    })
                    .sum();
                assert_eq!(sum, brute_force(&state, devices), "{steps:?} on {devices}");
            }
        }
    }

    #[test]
    fn the_time_saved_counts_for_each_added_device() {
        // Three devices save 300 of the first order, one saves 150 of the second.
        let state = cluster(5, &[(&[400, 400, 400, 100], 1), (&[400, 250], 1)]);
        let expected = BTreeMap::from([(OrderId(1), 1), (OrderId(2), 2)]);
        assert_eq!(counts(&state), expected);
    }

    #[test]
    fn orders_beyond_the_devices_wait_in_their_order() {
        let state = cluster(2, &[(&[10], 1), (&[10, 1], 9), (&[10], 1)]);
        let expected = BTreeMap::from([(OrderId(1), 1), (OrderId(2), 1)]);
        assert_eq!(counts(&state), expected);
    }
}
