//! Clusters and orders in short form.

use std::collections::BTreeMap;

use florin_scheduler::{
    Allotment, AllotmentChange, ClusterState, DeviceKind, DeviceNode, DeviceSet, IntervalSettings,
    MarbleSettings, OrderArrival, OrderId, PackedRate, PackingClass, PackingTable, SchedulePolicy,
    SimulationLog, StepProfile, TrainingOrder, Trigger, decide,
};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// The kind of all devices, unless a test has two.
pub(crate) const KIND: DeviceKind = DeviceKind(0);

/// A rule without growth and sharing: at least 500 thousandths, 800 if an order waits behind.
pub(crate) const PLAIN: MarbleSettings = MarbleSettings {
    relaxed_milli: 500,
    strict_milli: 800,
    relaxed_waiting: 1,
    packed_sum_min_milli: None,
    growth_milli: None,
    shrink_milli: None,
};

/// The policies that properties hold for.
pub(crate) const ALL: [SchedulePolicy; 6] = [
    SchedulePolicy::Marble(MarbleSettings {
        packed_sum_min_milli: Some(1_000),
        growth_milli: Some(400),
        shrink_milli: Some(800),
        ..PLAIN
    }),
    SchedulePolicy::Exclusive,
    SchedulePolicy::Optimus(IntervalSettings { interval_nano: 0, requested_milli: 0 }),
    SchedulePolicy::Optimus(IntervalSettings { interval_nano: 50, requested_milli: 0 }),
    SchedulePolicy::FinishTime(IntervalSettings { interval_nano: 0, requested_milli: 800 }),
    SchedulePolicy::FinishTime(IntervalSettings { interval_nano: 70, requested_milli: 500 }),
];

/// A runner of random cases that prints its seed.
pub(crate) fn runner(seed: u64, cases: u32) -> TestRunner {
    eprintln!("seed {seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

pub(crate) fn nodes(devices: &[u32]) -> Vec<DeviceNode> {
    devices.iter().map(|devices| node(KIND, *devices)).collect()
}

pub(crate) fn node(kind: DeviceKind, devices: u32) -> DeviceNode {
    DeviceNode { kind, devices, memory_bytes: 10 }
}

pub(crate) fn cluster(devices: &[u32]) -> ClusterState {
    ClusterState::new(nodes(devices), PackingTable::default(), 5).unwrap()
}

/// A cluster on whose devices two orders of class 1 run at `rate_milli` each.
pub(crate) fn sharing_cluster(devices: &[u32], rate_milli: u32) -> ClusterState {
    let rate = PackedRate { class: PackingClass(1), rate_milli };
    let mut packing = PackingTable::default();
    packing.insert(KIND, [rate, rate]).unwrap();
    ClusterState::new(nodes(devices), packing, 5).unwrap()
}

/// A profile on 1, 2, … devices; 0 is not measured.
pub(crate) fn profile(times: &[u64]) -> StepProfile {
    let times: Vec<Option<u64>> =
        times.iter().map(|nano| Some(*nano).filter(|nano| *nano > 0)).collect();
    StepProfile::new(&times).unwrap()
}

pub(crate) fn order(id: u64, times: &[u64], steps: u64) -> TrainingOrder {
    let profiles = BTreeMap::from([(KIND, profile(times))]);
    TrainingOrder::new(OrderId(id), profiles, steps).unwrap()
}

pub(crate) fn of_class(class: u16, order: TrainingOrder) -> TrainingOrder {
    order.with_class(PackingClass(class)).with_memory(4)
}

pub(crate) fn allotment(node: usize, devices: &[u32]) -> Allotment {
    let sets = devices.iter().map(|device| DeviceSet::from_index(*device));
    Allotment { node, devices: sets.fold(DeviceSet::default(), DeviceSet::union) }
}

/// The changes of a decision as (order, node, number of devices); a preemption has none.
pub(crate) type Changes = Vec<(u64, usize, u32)>;

/// Decides, applies, and returns the changes.
pub(crate) fn step(state: &mut ClusterState, policy: &SchedulePolicy, trigger: Trigger) -> Changes {
    let decision = decide(state, policy, trigger);
    state.apply(&decision).unwrap();
    let row = |change: &AllotmentChange| match change {
        AllotmentChange::Start { order, allotment }
        | AllotmentChange::Rescale { order, allotment } => {
            (order.0, allotment.node, allotment.devices.len())
        }
        AllotmentChange::Preempt { order } => (order.0, usize::MAX, 0),
    };
    decision.changes.iter().map(row).collect()
}

pub(crate) fn marble(state: &mut ClusterState, settings: MarbleSettings) -> Changes {
    step(state, &SchedulePolicy::Marble(settings), Trigger::Change)
}

/// Orders that arrive at the given times.
pub(crate) fn arrivals(
    orders: impl IntoIterator<Item = (u128, TrainingOrder)>,
) -> Vec<OrderArrival> {
    let arrival = |(at_nano, order)| OrderArrival { at_nano, order };
    orders.into_iter().map(arrival).collect()
}

/// The sum of all completion times.
pub(crate) fn completion_sum(log: &SimulationLog) -> u128 {
    log.outcomes.iter().map(|outcome| outcome.finished_nano - outcome.arrived_nano).sum()
}
