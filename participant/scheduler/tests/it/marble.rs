//! The rules of MARBLE, one by one.

use florin_scheduler::{
    ClusterState, DeviceKind, MarbleSettings, OrderId, PackingTable, SchedulePolicy, TrainingOrder,
    Trigger, simulate,
};

use crate::support::{
    KIND, PLAIN, arrivals, cluster, marble, node, of_class, order, profile, sharing_cluster, step,
};

/// Efficiencies 1, 0.9 and 0.6.
const SCALING: [u64; 4] = [360, 200, 0, 150];

#[test]
fn a_lone_order_gets_the_relaxed_knee_and_a_queue_the_strict_one() {
    let mut state = cluster(&[4]);
    state.submit(order(1, &SCALING, 1)).unwrap();
    assert_eq!(marble(&mut state.clone(), PLAIN), [(1, 0, 4)]);
    for id in 2..=3 {
        state.submit(order(id, &SCALING, 1)).unwrap();
    }
    // The first two have orders behind them, and the third finds no device.
    assert_eq!(marble(&mut state, PLAIN), [(1, 0, 2), (2, 0, 2)]);
}

#[test]
fn the_head_takes_fewer_devices_rather_than_wait() {
    let mut state = cluster(&[3]);
    state.submit(order(1, &SCALING, 1)).unwrap();
    // Three devices have no measurement, so the third one stays free.
    assert_eq!(marble(&mut state, PLAIN), [(1, 0, 2)]);
    state.submit(order(2, &SCALING, 1)).unwrap();
    assert_eq!(marble(&mut state, PLAIN), [(2, 0, 1)]);
}

#[test]
fn the_node_with_the_fewest_free_devices_is_taken() {
    let mut state = cluster(&[4, 2, 3]);
    state.submit(order(1, &[360, 200], 1)).unwrap();
    assert_eq!(marble(&mut state, PLAIN), [(1, 1, 2)]);
    state.submit(order(2, &[360, 200], 1)).unwrap();
    assert_eq!(marble(&mut state, PLAIN), [(2, 2, 2)]);
}

#[test]
fn the_faster_kind_is_taken_first() {
    let nodes = vec![node(KIND, 1), node(DeviceKind(1), 1)];
    let mut state = ClusterState::new(nodes, PackingTable::default(), 0).unwrap();
    for id in 1..=2 {
        let profiles =
            [(KIND, profile(&[90])), (DeviceKind(1), profile(&[30]))].into_iter().collect();
        state.submit(TrainingOrder::new(OrderId(id), profiles, 1).unwrap()).unwrap();
    }
    assert_eq!(marble(&mut state, PLAIN), [(1, 1, 1), (2, 0, 1)]);
}

#[test]
fn no_order_overtakes_the_head() {
    let nodes = vec![node(KIND, 1), node(DeviceKind(1), 1)];
    let mut state = ClusterState::new(nodes, PackingTable::default(), 0).unwrap();
    for id in 1..=2 {
        state.submit(order(id, &[10], 1)).unwrap();
    }
    let profiles = [(DeviceKind(1), profile(&[10]))].into_iter().collect();
    state.submit(TrainingOrder::new(OrderId(3), profiles, 1).unwrap()).unwrap();
    assert_eq!(marble(&mut state, PLAIN), [(1, 0, 1)]);
}

#[test]
fn running_orders_grow_only_while_none_waits_and_if_it_pays() {
    let growing = MarbleSettings { growth_milli: Some(500), ..PLAIN };
    let mut state = cluster(&[4]);
    for id in 1..=2 {
        state.submit(order(id, &SCALING, 10)).unwrap();
    }
    assert_eq!(marble(&mut state, growing), [(1, 0, 2), (2, 0, 2)]);
    state.finish(OrderId(1));
    assert_eq!(marble(&mut state.clone(), PLAIN), []);
    assert_eq!(marble(&mut state.clone(), growing), [(2, 0, 4)]);
    // With one step left 50 ns are saved; the pause takes 5, or all of them.
    state.report(OrderId(2), 1);
    assert_eq!(marble(&mut state.clone(), growing), [(2, 0, 4)]);
    let mut slow = ClusterState::new(vec![node(KIND, 4)], PackingTable::default(), 50).unwrap();
    slow.submit(order(1, &SCALING, 1)).unwrap();
    slow.submit(order(2, &SCALING, 1)).unwrap();
    marble(&mut slow, growing);
    slow.finish(OrderId(1));
    assert_eq!(marble(&mut slow, growing), []);
    // An order that waits takes the devices instead.
    state.submit(order(3, &SCALING, 1)).unwrap();
    assert_eq!(marble(&mut state, growing), [(3, 0, 2)]);
}

#[test]
fn the_order_that_gains_most_grows_first() {
    let growing = MarbleSettings { growth_milli: Some(0), ..PLAIN };
    let mut state = cluster(&[4]);
    for (id, steps) in [(1, 1), (2, 4), (3, 9), (4, 1)] {
        state.submit(order(id, &[100, 60], steps)).unwrap();
    }
    let strict = MarbleSettings { strict_milli: 1_000, relaxed_milli: 1_000, ..growing };
    assert_eq!(marble(&mut state, strict).len(), 4);
    state.finish(OrderId(1));
    assert_eq!(marble(&mut state.clone(), growing), [(3, 0, 2)]);
    state.finish(OrderId(4));
    assert_eq!(marble(&mut state, growing), [(3, 0, 2), (2, 0, 2)]);
}

#[test]
fn a_growing_order_pauses_for_the_rescale() {
    let policy = SchedulePolicy::Marble(MarbleSettings { growth_milli: Some(500), ..PLAIN });
    // At 0 both start on one device; at 10 the first ends, and 90 ns are left of the second. On two
    // devices they take 45, after a pause of 5.
    let orders = arrivals([(0, order(1, &[10, 10], 1)), (0, order(2, &[10, 5], 10))]);
    let log = simulate(cluster(&[2]), &policy, &orders).unwrap();
    assert_eq!((log.end_nano, log.interruptions), (10 + 5 + 45, 1));
    assert_eq!(log.occupied_nano, 20 + 100);
}

#[test]
fn orders_share_a_device_if_their_rates_and_their_memory_allow_it() {
    let packing = MarbleSettings { packed_sum_min_milli: Some(1_100), ..PLAIN };
    let submit = |state: &mut ClusterState, class: u16, memory_bytes: u64| {
        for id in 1..=2 {
            let one = of_class(class, order(id, &[100], 1));
            state.submit(one.with_memory(memory_bytes)).unwrap();
        }
    };
    // The rate of each, the class, the memory of each, and how many of two orders start.
    for (rate, class, memory, started) in
        [(700, 1, 5, 2), (550, 1, 5, 2), (549, 1, 5, 1), (700, 2, 5, 1), (700, 1, 6, 1)]
    {
        let mut state = sharing_cluster(&[1], rate);
        submit(&mut state, class, memory);
        marble(&mut state, packing);
        let rows = marble(&mut state, packing);
        assert_eq!(state.running().len(), started, "{rate} {class} {memory} {rows:?}");
    }
    let mut state = sharing_cluster(&[1], 700);
    submit(&mut state, 1, 5);
    marble(&mut state, PLAIN);
    assert_eq!(state.running().len(), 1);
}

#[test]
fn sharing_orders_run_at_their_packed_rates() {
    let policy =
        SchedulePolicy::Marble(MarbleSettings { packed_sum_min_milli: Some(1_000), ..PLAIN });
    let orders = arrivals((1..=2).map(|id| (0, of_class(1, order(id, &[100], 10)))));
    // Alone 2,000 ns for both; at 0.8 each 1,250.
    let log = simulate(sharing_cluster(&[1], 800), &policy, &orders).unwrap();
    assert_eq!(log.end_nano, 1_250);
    assert_eq!(log.occupied_nano, 1_250);
}

#[test]
fn an_order_leaves_a_shared_device_for_a_free_one() {
    let settings =
        MarbleSettings { packed_sum_min_milli: Some(1_000), growth_milli: Some(500), ..PLAIN };
    let mut state = sharing_cluster(&[2], 600);
    for id in 1..=3 {
        state.submit(of_class(1, order(id, &[100], 10))).unwrap();
    }
    assert_eq!(marble(&mut state, settings), [(1, 0, 1), (2, 0, 1), (3, 0, 1)]);
    assert_eq!(state.free(0).len(), 0);
    state.finish(OrderId(2));
    assert_eq!(marble(&mut state, settings).len(), 1);
    assert_eq!(state.free(0).len(), 0);
    assert!(state.running().values().all(|running| state.step_nano(running) == 100));
}

#[test]
fn an_order_moves_to_a_node_on_which_it_is_faster() {
    let settings = MarbleSettings { growth_milli: Some(500), ..PLAIN };
    let mut state = cluster(&[1, 2]);
    state.submit(order(1, &[100, 60], 10)).unwrap();
    state.submit(order(2, &[100, 60], 10)).unwrap();
    assert_eq!(marble(&mut state, settings), [(1, 1, 2), (2, 0, 1)]);
    state.finish(OrderId(1));
    assert_eq!(marble(&mut state, settings), [(2, 1, 2)]);
    assert_eq!((state.free(0).len(), state.free(1).len()), (1, 0));
}

#[test]
fn a_running_order_shrinks_for_the_head_if_that_costs_less_than_its_wait() {
    let settings = MarbleSettings { relaxed_milli: 0, shrink_milli: Some(900), ..PLAIN };
    // Four devices save half of the time on one, so the efficiency is 0.5. The order that runs
    // needs 50 ns for each step, 100 on the device that its knee leaves it.
    let mut state = cluster(&[4]);
    state.submit(order(1, &[100, 0, 0, 50], 10)).unwrap();
    assert_eq!(marble(&mut state, settings), [(1, 0, 4)]);
    state.submit(order(2, &[100, 60], 1)).unwrap();
    // It would lose 10 · 50 ns and the pause of 5; the head waits for 500.
    assert_eq!(marble(&mut state.clone(), settings), []);
    assert_eq!(marble(&mut state.clone(), PLAIN), []);
    // Two orders wait for 1,000 together. Each knee at 0.8 is two devices.
    state.submit(order(3, &[100, 60], 1)).unwrap();
    let rows = marble(&mut state, settings);
    assert_eq!(rows, [(1, 0, 1), (2, 0, 2), (3, 0, 1)]);
    assert_eq!(state.running()[&OrderId(1)].pause_nano, 5);
    assert_eq!(state.next_completion_nano(), Some(60));
}

#[test]
fn an_order_that_pauses_gets_no_other_devices() {
    let settings = MarbleSettings { growth_milli: Some(0), ..PLAIN };
    let mut state = cluster(&[3]);
    for id in 1..=3 {
        state.submit(order(id, &[100, 60, 40], 10)).unwrap();
    }
    let strict = MarbleSettings { relaxed_milli: 1_000, strict_milli: 1_000, ..PLAIN };
    assert_eq!(marble(&mut state, strict).len(), 3);
    state.finish(OrderId(2));
    assert_eq!(marble(&mut state, settings), [(1, 0, 2)]);
    state.finish(OrderId(3));
    assert_eq!(marble(&mut state.clone(), settings), []);
    let left = state.running()[&OrderId(1)].order.remaining_micro();
    state.advance(5);
    assert_eq!(state.running()[&OrderId(1)].order.remaining_micro(), left, "no step in a pause");
    assert_eq!(marble(&mut state, settings), [(1, 0, 3)]);
}

#[test]
fn an_interval_changes_nothing() {
    let mut state = cluster(&[4]);
    state.submit(order(1, &SCALING, 1)).unwrap();
    let policy = SchedulePolicy::Marble(PLAIN);
    assert_eq!(step(&mut state.clone(), &policy, Trigger::Interval), [(1, 0, 4)]);
    assert_eq!(policy.interval_nano(), None);
}
