//! Limits that hold for every policy, on random clusters and orders.

use std::collections::BTreeMap;

use florin_scheduler::{
    ClusterState, DeviceKind, DeviceNode, OrderId, PackedRate, PackingClass, PackingTable,
    ScheduleDecision, SchedulePolicy, StepProfile, TrainingOrder, Trigger, decide, simulate,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::support::{ALL, arrivals, runner};

const CASES: u32 = 200;

fn profiles() -> impl Strategy<Value = StepProfile> {
    let times = (1_u64..200, vec(option::of(1_u64..200), 0..5));
    times.prop_map(|(one, mut rest)| {
        rest.insert(0, Some(one));
        StepProfile::new(&rest).unwrap()
    })
}

fn clusters() -> impl Strategy<Value = ClusterState> {
    let node = (0_u16..2, 1_u32..6, 5_u64..20);
    let rates = vec((0_u16..2, 0_u16..3, 0_u16..3, 1_u32..=1_000, 1_u32..=1_000), 0..8);
    (vec(node, 1..5), rates, 0_u64..50).prop_map(|(nodes, rates, rescale_nano)| {
        let node = |(kind, devices, memory_bytes)| DeviceNode {
            kind: DeviceKind(kind),
            devices,
            memory_bytes,
        };
        let mut packing = PackingTable::default();
        for (kind, a, b, one, two) in rates {
            // A class beside itself has one rate.
            let two = if a == b { one } else { two };
            let rate = |class, rate_milli| PackedRate { class: PackingClass(class), rate_milli };
            packing.insert(DeviceKind(kind), [rate(a, one), rate(b, two)]).unwrap();
        }
        ClusterState::new(nodes.into_iter().map(node).collect(), packing, rescale_nano).unwrap()
    })
}

/// An order without its number: profiles of one kind or both, steps, memory and class.
type Wish = (Option<StepProfile>, StepProfile, bool, u64, u64, Option<u16>);

fn wishes() -> impl Strategy<Value = Vec<Wish>> {
    let wish = (
        option::of(profiles()),
        profiles(),
        any::<bool>(),
        1_u64..30,
        0_u64..20,
        option::of(0_u16..3),
    );
    vec(wish, 1..25)
}

fn to_order(id: u64, wish: &Wish) -> TrainingOrder {
    let (other, profile, is_first, steps, memory_bytes, class) = wish.clone();
    let (kind, second) = if is_first { (0, 1) } else { (1, 0) };
    let mut profiles = BTreeMap::from([(DeviceKind(kind), profile)]);
    profiles.extend(other.map(|other| (DeviceKind(second), other)));
    let order = TrainingOrder::new(OrderId(id), profiles, steps).unwrap().with_memory(memory_bytes);
    match class {
        Some(class) => order.with_class(PackingClass(class)),
        None => order,
    }
}

/// The orders that fit on a node, numbered.
fn orders(state: &ClusterState, wishes: &[Wish]) -> Vec<TrainingOrder> {
    let orders = (1..).zip(wishes).map(|(id, wish)| to_order(id, wish));
    orders.filter(|order| state.nodes().iter().any(|node| order.fits(node))).collect()
}

/// Counts tenants and memory from the running orders alone, without the state's own tables.
fn check_devices(state: &ClusterState) -> Result<(), TestCaseError> {
    let mut tenants: BTreeMap<(usize, u32), Vec<&TrainingOrder>> = BTreeMap::new();
    for running in state.running().values() {
        let node = &state.nodes()[running.allotment.node];
        prop_assert!(!running.allotment.devices.is_empty());
        for device in running.allotment.devices.iter() {
            prop_assert!(device < node.devices);
            tenants.entry((running.allotment.node, device)).or_default().push(&running.order);
        }
    }
    let devices: u32 = state.nodes().iter().map(|node| node.devices).sum();
    prop_assert!(tenants.len() <= devices as usize);
    for ((node, _), orders) in tenants {
        let node = &state.nodes()[node];
        let memory: u64 = orders.iter().map(|order| order.memory_bytes).sum();
        prop_assert!(memory <= node.memory_bytes, "memory of a device is exceeded");
        prop_assert!(orders.len() <= 2);
        if let [one, two] = orders[..] {
            let classes = one.class.zip(two.class);
            let rate = classes.and_then(|(a, b)| state.packing().rate(node.kind, a, b));
            prop_assert!(rate.is_some(), "an unmeasured pair shares a device");
        }
    }
    Ok(())
}

/// Whether an order could run on a free device.
fn has_place(state: &ClusterState, order: &TrainingOrder) -> bool {
    let mut nodes = state.nodes().iter().enumerate();
    nodes.any(|(at, node)| order.fits(node) && !state.free(at).is_empty())
}

#[test]
fn devices_and_memory_are_never_exceeded() {
    runner(82, CASES)
        .run(
            &(clusters(), wishes(), vec((0_u8..4, 1_u64..300), 1..40)),
            |(cluster, wishes, acts)| {
                for policy in ALL {
                    let mut state = cluster.clone();
                    let mut queue = orders(&state, &wishes).into_iter();
                    for (act, nano) in &acts {
                        let trigger = if *act == 0 { Trigger::Interval } else { Trigger::Change };
                        if *act < 3 {
                            queue.next().map(|order| state.submit(order)).transpose().unwrap();
                        } else {
                            let next = state.next_completion_nano().unwrap_or(0);
                            state.advance(next.min(u128::from(*nano)));
                        }
                        let decision = decide(&state, &policy, trigger);
                        let applied = state.apply(&decision);
                        prop_assert!(applied.is_ok(), "{policy:?}: {applied:?}");
                        check_devices(&state)?;
                    }
                }
                Ok(())
            },
        )
        .unwrap();
}

#[test]
fn the_head_of_the_queue_waits_only_while_no_device_is_free_for_it() {
    runner(83, CASES)
        .run(&(clusters(), wishes()), |(cluster, wishes)| {
            let policy = &ALL[0];
            let mut state = cluster;
            for order in orders(&state, &wishes) {
                state.submit(order).unwrap();
            }
            // Between two completions the head starts, unless the completion was elsewhere.
            while !state.waiting().is_empty() || !state.running().is_empty() {
                let first = state.waiting().keys().next().copied();
                state.apply(&decide(&state, policy, Trigger::Change)).unwrap();
                let head = state.waiting().values().next();
                prop_assert!(head.is_none_or(|head| !has_place(&state, head)));
                let started = first.filter(|first| state.running().contains_key(first));
                prop_assert!(started.is_some() || head.map(|head| head.id) == first);
                let next = state.next_completion_nano();
                prop_assert!(next.is_some() || state.waiting().is_empty(), "stalled");
                state.advance(next.unwrap_or(0));
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_order_at_position_k_waits_for_at_most_k_completions() {
    // On one kind of nodes every completion frees a device for the head.
    let same = (1_u32..6, 1_usize..4, wishes());
    runner(84, CASES)
        .run(&same, |(devices, count, wishes)| {
            let node = DeviceNode { kind: DeviceKind(0), devices, memory_bytes: 20 };
            let mut state =
                ClusterState::new(vec![node; count], PackingTable::default(), 7).unwrap();
            let orders = orders(&state, &wishes);
            for order in &orders {
                state.submit(order.clone()).unwrap();
            }
            state.apply(&decide(&state, &ALL[0], Trigger::Change)).unwrap();
            let positions: Vec<OrderId> = state.waiting().keys().copied().collect();
            let mut completions = 0;
            while !state.running().is_empty() {
                completions += state.advance(state.next_completion_nano().unwrap_or(0)).len();
                state.apply(&decide(&state, &ALL[0], Trigger::Change)).unwrap();
                for (position, order) in positions.iter().enumerate() {
                    let waits = state.waiting().contains_key(order);
                    prop_assert!(!waits || completions <= position, "{order:?} at {position}");
                }
            }
            prop_assert!(state.waiting().is_empty());
            Ok(())
        })
        .unwrap();
}

#[test]
fn every_order_completes_under_every_policy_and_decisions_repeat() {
    let times = vec(0_u128..400, 25);
    runner(85, CASES)
        .run(&(clusters(), wishes(), times), |(cluster, wishes, mut times)| {
            times.sort_unstable();
            let orders = orders(&cluster, &wishes);
            let count = orders.len();
            let arrivals = arrivals(times.into_iter().zip(orders));
            for policy in ALL {
                // A pause as long as the interval could preempt for ever.
                let has_pause = cluster.rescale_nano() > 0 && policy.interval_nano().is_some();
                if has_pause {
                    continue;
                }
                let log = simulate(cluster.clone(), &policy, &arrivals);
                prop_assert!(log.is_ok(), "{policy:?}: {log:?}");
                let log = log.unwrap();
                prop_assert_eq!(log.outcomes.len(), count);
                let devices: u32 = cluster.nodes().iter().map(|node| node.devices).sum();
                prop_assert!(log.occupied_nano <= log.end_nano * u128::from(devices));
                prop_assert_eq!(simulate(cluster.clone(), &policy, &arrivals).unwrap(), log);
            }
            Ok(())
        })
        .unwrap();
}

fn first_decisions(state: &ClusterState, policy: &SchedulePolicy) -> [ScheduleDecision; 2] {
    [Trigger::Change, Trigger::Interval].map(|trigger| decide(state, policy, trigger))
}

#[test]
fn the_order_of_submission_changes_no_decision() {
    runner(86, CASES)
        .run(&(clusters(), wishes(), any::<prop::sample::Index>()), |(cluster, wishes, turn)| {
            let mut orders = orders(&cluster, &wishes);
            let mut turned = cluster.clone();
            let mut state = cluster;
            for order in &orders {
                state.submit(order.clone()).unwrap();
            }
            if !orders.is_empty() {
                let by = turn.index(orders.len());
                orders.rotate_left(by);
            }
            for order in orders.into_iter().rev() {
                turned.submit(order).unwrap();
            }
            for policy in ALL {
                prop_assert_eq!(
                    first_decisions(&state, &policy),
                    first_decisions(&turned, &policy)
                );
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_knee_falls_as_the_efficiency_rises() {
    runner(87, 500)
        .run(&(profiles(), vec(0_u32..1_200, 2)), |(profile, mut efficiencies)| {
            efficiencies.sort_unstable();
            let [low, high] = [efficiencies[0], efficiencies[1]];
            prop_assert!(profile.knee(low) >= profile.knee(high));
            prop_assert!(profile.useful().contains(&profile.knee(low)));
            let times = profile.useful().iter().map(|count| profile.step_nano(*count));
            prop_assert!(times.collect::<Vec<u64>>().is_sorted_by(|a, b| a > b));
            Ok(())
        })
        .unwrap();
}
