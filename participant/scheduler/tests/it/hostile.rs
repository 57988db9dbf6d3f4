//! Inputs of other parties: each is refused with a code and changes nothing.

use std::collections::BTreeMap;

use florin_scheduler::limits::{
    NODE_DEVICES_MAX, NODES_MAX, ORDERS_MAX, RESCALE_NANO_MAX, STEP_NANO_MAX, STEPS_MAX,
};
use florin_scheduler::{
    AllotmentChange, ClusterState, DeviceKind, DeviceNode, OrderId, PackingTable, ScheduleDecision,
    StepProfile, TrainingOrder, simulate,
};

use crate::support::{
    ALL, KIND, allotment, arrivals, cluster, node, nodes, of_class, order, profile, sharing_cluster,
};

#[test]
fn clusters_beyond_their_limits_are_refused() {
    let code = |nodes, rescale_nano| {
        let state = ClusterState::new(nodes, PackingTable::default(), rescale_nano);
        state.map(drop).map_err(|error| error.code())
    };
    assert_eq!(code(Vec::new(), 0), Err("CLUSTER_NODES"));
    assert_eq!(code(vec![node(KIND, 1); NODES_MAX + 1], 0), Err("CLUSTER_NODES"));
    assert_eq!(code(nodes(&[1, 0]), 0), Err("CLUSTER_DEVICES"));
    assert_eq!(code(nodes(&[NODE_DEVICES_MAX + 1]), 0), Err("CLUSTER_DEVICES"));
    assert_eq!(code(nodes(&[1]), RESCALE_NANO_MAX + 1), Err("CLUSTER_RESCALE_TOO_LONG"));
    assert_eq!(code(vec![node(KIND, NODE_DEVICES_MAX); NODES_MAX], RESCALE_NANO_MAX), Ok(()));
}

#[test]
fn orders_that_cannot_run_are_refused() {
    let mut state = cluster(&[2]);
    let mut code = |order| state.submit(order).map_err(|error| error.code());
    assert_eq!(code(order(7, &[1], 1)), Ok(()));
    assert_eq!(code(order(7, &[1], 1)), Err("SUBMIT_KNOWN"));
    let large = order(8, &[1], 1).with_memory(11);
    assert_eq!(code(large), Err("SUBMIT_FITS_NOWHERE"));
    let profiles = BTreeMap::from([(DeviceKind(1), profile(&[1]))]);
    let foreign = TrainingOrder::new(OrderId(8), profiles, 1).unwrap();
    assert_eq!(code(foreign), Err("SUBMIT_FITS_NOWHERE"));
}

#[test]
fn a_full_queue_refuses_the_next_order() {
    let mut state = cluster(&[1]);
    for id in 0..ORDERS_MAX as u64 {
        state.submit(order(id, &[1], 1)).unwrap();
    }
    let refused = state.submit(order(u64::MAX, &[1], 1)).unwrap_err();
    assert_eq!(refused.code(), "SUBMIT_QUEUE_FULL");
    assert_eq!(state.waiting().len(), ORDERS_MAX);
}

#[test]
fn impossible_decisions_change_nothing() {
    let mut state = sharing_cluster(&[2, 1], 700);
    for id in 1..=4 {
        let class = if id == 4 { 2 } else { 1 };
        state.submit(of_class(class, order(id, &[10, 6], 1))).unwrap();
    }
    let start = |id, node, devices: &[u32]| AllotmentChange::Start {
        order: OrderId(id),
        allotment: allotment(node, devices),
    };
    state.apply(&ScheduleDecision { changes: vec![start(1, 0, &[0])] }).unwrap();
    let preempt = |id| AllotmentChange::Preempt { order: OrderId(id) };
    let rescale = AllotmentChange::Rescale { order: OrderId(2), allotment: allotment(1, &[0]) };
    let large = of_class(1, order(5, &[10], 1)).with_memory(7);
    state.submit(large).unwrap();
    let table = [
        (vec![start(2, 0, &[1]), start(2, 1, &[0])], "DECISION_TWO_CHANGES"),
        (vec![start(1, 1, &[0])], "DECISION_NOT_WAITING"),
        (vec![start(99, 1, &[0])], "DECISION_NOT_WAITING"),
        (vec![preempt(2)], "DECISION_NOT_RUNNING"),
        (vec![rescale], "DECISION_NOT_RUNNING"),
        (vec![start(2, 2, &[0])], "DECISION_NO_SUCH_DEVICE"),
        (vec![start(2, 1, &[1])], "DECISION_NO_SUCH_DEVICE"),
        (vec![start(2, 0, &[])], "DECISION_NO_SUCH_DEVICE"),
        // Three tenants; two devices, one of which is shared; no rate; no memory for both.
        (vec![start(2, 0, &[0]), start(3, 0, &[0])], "DECISION_DEVICE_TAKEN"),
        (vec![start(2, 0, &[0, 1])], "DECISION_DEVICE_TAKEN"),
        (vec![start(4, 0, &[0])], "DECISION_DEVICE_TAKEN"),
        (vec![start(5, 0, &[0])], "DECISION_DEVICE_TAKEN"),
        // A part that is possible is not applied.
        (vec![start(2, 1, &[0]), start(3, 1, &[0]), preempt(4)], "DECISION_NOT_RUNNING"),
    ];
    let before = state.clone();
    for (changes, code) in table {
        let error = state.apply(&ScheduleDecision { changes }).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert_eq!(state, before, "{code}");
    }
    state.apply(&ScheduleDecision { changes: vec![start(2, 0, &[0])] }).unwrap();
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    let mut times = vec![Some(STEP_NANO_MAX); NODE_DEVICES_MAX as usize];
    times[1] = Some(STEP_NANO_MAX / 2);
    times[63] = Some(1);
    for policy in ALL {
        let order = |id| {
            let profiles = BTreeMap::from([(KIND, StepProfile::new(&times).unwrap())]);
            let order = TrainingOrder::new(OrderId(id), profiles, STEPS_MAX).unwrap();
            of_class(1, order)
        };
        let mut state = sharing_cluster(&[3], 1);
        for id in 1..=5 {
            state.submit(order(id)).unwrap();
        }
        let decision = florin_scheduler::decide(&state, &policy, florin_scheduler::Trigger::Change);
        state.apply(&decision).unwrap();
        let next = state.next_completion_nano().unwrap();
        assert!(next >= u128::from(STEPS_MAX) * u128::from(STEP_NANO_MAX / 2), "{policy:?}");
        assert!(!state.advance(next).is_empty());
    }
}

#[test]
fn arrivals_out_of_order_are_refused() {
    let table = [[(5, 1), (4, 2)], [(5, 2), (5, 1)], [(5, 1), (5, 1)]];
    for pairs in table {
        let orders = arrivals(pairs.map(|(at, id)| (at, order(id, &[1], 1))));
        let error = simulate(cluster(&[1]), &ALL[0], &orders).unwrap_err();
        assert_eq!(error.code(), "SIMULATION_ARRIVALS_OUT_OF_ORDER");
    }
}

#[test]
fn a_node_without_the_orders_kind_is_never_used() {
    let two = vec![node(DeviceKind(1), 2), node(KIND, 1)];
    for policy in ALL {
        let state = ClusterState::new(two.clone(), PackingTable::default(), 0).unwrap();
        let orders = arrivals((1..=3).map(|id| (0, order(id, &[10, 5], 3))));
        let log = simulate(state, &policy, &orders).unwrap();
        assert_eq!(log.end_nano, 90, "{policy:?}");
    }
    let _ = DeviceNode { kind: KIND, devices: 1, memory_bytes: 0 };
}
