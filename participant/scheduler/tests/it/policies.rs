//! The rules of the other policies.

use florin_scheduler::{
    ClusterState, IntervalSettings, OrderId, PackingTable, SchedulePolicy, Trigger, simulate,
};

use crate::support::{KIND, arrivals, cluster, node, order, step};

const OPTIMUS: SchedulePolicy =
    SchedulePolicy::Optimus(IntervalSettings { interval_nano: 1_000, requested_milli: 0 });
const FINISH_TIME: SchedulePolicy =
    SchedulePolicy::FinishTime(IntervalSettings { interval_nano: 1_000, requested_milli: 800 });

#[test]
fn whole_nodes_go_to_the_orders_in_their_order() {
    let mut state = cluster(&[4, 2]);
    for id in 1..=3 {
        state.submit(order(id, &[100, 60, 0, 70], 1)).unwrap();
    }
    // The fourth device is of no use, so the smaller node is as fast.
    let policy = SchedulePolicy::Exclusive;
    let rows = step(&mut state, &policy, Trigger::Change);
    assert_eq!(rows, [(1, 1, 2), (2, 0, 4)]);
    assert_eq!(step(&mut state, &policy, Trigger::Change), []);
    state.finish(OrderId(2));
    assert_eq!(step(&mut state, &policy, Trigger::Change), [(3, 0, 4)]);
}

#[test]
fn a_node_with_an_order_is_not_idle() {
    let mut state = cluster(&[2]);
    state.submit(order(1, &[100], 1)).unwrap();
    step(&mut state, &OPTIMUS, Trigger::Change);
    state.submit(order(2, &[100], 1)).unwrap();
    assert_eq!(step(&mut state, &SchedulePolicy::Exclusive, Trigger::Change), []);
}

#[test]
fn exclusive_orders_use_no_more_devices_than_help() {
    let orders = arrivals([(0, order(1, &[100, 60, 0, 70], 2))]);
    let log = simulate(cluster(&[4]), &SchedulePolicy::Exclusive, &orders).unwrap();
    assert_eq!((log.end_nano, log.occupied_nano), (120, 480));
}

#[test]
fn optimus_starts_on_one_device_and_grows_at_the_interval() {
    let mut state = cluster(&[4]);
    state.submit(order(1, &[100, 50, 40, 35], 10)).unwrap();
    state.submit(order(2, &[100, 90, 80, 70], 10)).unwrap();
    assert_eq!(step(&mut state, &OPTIMUS, Trigger::Change), [(1, 0, 1), (2, 0, 1)]);
    assert_eq!(step(&mut state, &OPTIMUS, Trigger::Change), []);
    // The second device saves 500 or 100, the third 100 or 100: the earlier order has it.
    assert_eq!(step(&mut state, &OPTIMUS, Trigger::Interval), [(1, 0, 3)]);
    assert_eq!(step(&mut state, &OPTIMUS, Trigger::Interval), []);
    // A third order shrinks the first.
    state.submit(order(3, &[100], 1)).unwrap();
    assert_eq!(step(&mut state, &OPTIMUS, Trigger::Interval), [(1, 0, 2), (3, 0, 1)]);
}

#[test]
fn the_shortest_orders_run_first_and_others_are_preempted() {
    let mut state = cluster(&[2]);
    state.submit(order(1, &[100, 100], 50)).unwrap();
    state.submit(order(2, &[100, 60], 30)).unwrap();
    assert_eq!(step(&mut state, &FINISH_TIME, Trigger::Change), [(2, 0, 2)]);
    for id in 3..=4 {
        state.submit(order(id, &[100], 1)).unwrap();
    }
    assert_eq!(step(&mut state, &FINISH_TIME, Trigger::Change), []);
    let rows = step(&mut state, &FINISH_TIME, Trigger::Interval);
    assert_eq!(rows, [(3, 0, 1), (4, 0, 1), (2, usize::MAX, 0)]);
    assert!(state.waiting()[&OrderId(2)].has_run());
    // A preempted order pauses when it is restored.
    state.finish(OrderId(3));
    state.finish(OrderId(4));
    assert_eq!(step(&mut state, &FINISH_TIME, Trigger::Change), [(2, 0, 2)]);
    assert_eq!(state.next_completion_nano(), Some(30 * 60 + 5));
}

#[test]
fn an_order_stays_on_its_devices_while_its_count_stays() {
    let nodes = vec![node(KIND, 2), node(KIND, 2)];
    let mut state = ClusterState::new(nodes, PackingTable::default(), 5).unwrap();
    for id in 1..=3 {
        state.submit(order(id, &[100, 60], 10)).unwrap();
    }
    step(&mut state, &OPTIMUS, Trigger::Interval);
    let before = state.running().clone();
    for _ in 0..3 {
        assert_eq!(step(&mut state, &OPTIMUS, Trigger::Interval), []);
    }
    assert_eq!(*state.running(), before);
}
