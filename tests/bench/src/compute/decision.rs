//! The time of one decision with a long queue and many devices.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use florin_random::{below, chacha20};
use florin_scheduler::{
    ClusterState, DeviceNode, OrderId, SchedulePolicy, TrainingOrder, Trigger, decide,
};

use super::gavel::{GavelKind, GavelTable};
use super::workload::RESCALE_NANO;
use super::{MARBLE, POLICIES};
use crate::Measurement;
use crate::statistics::median;

/// Orders in the queue, and devices.
const QUEUED: u64 = 10_000;
const DEVICES: u32 = 1_000;
/// Devices of a node; nodes of one device are the worst case, because each is looked at.
const NODE_DEVICES: [u32; 3] = [8, 4, 1];
/// Decisions; their median counts.
const REPEATS: usize = 101;
/// Milliseconds that a decision may take.
const BAR_MS: f64 = 10.0;
const STREAM: u64 = 82;
const OURS: SchedulePolicy = SchedulePolicy::Marble(MARBLE);

pub(super) fn run() -> anyhow::Result<Vec<Measurement>> {
    let table = GavelTable::read(GavelKind::V100)?;
    let mut rows = Vec::new();
    for devices in NODE_DEVICES {
        let moments = [
            ("all devices idle", queued(&table, devices)?),
            ("one completion", after_completion(&table, devices)?),
            ("orders at their fastest", grown(&table, devices)?),
        ];
        for (moment, state) in &moments {
            for (policy, rule) in POLICIES {
                let name = format!("{policy}, {moment}, {devices} devices per node: decision");
                let times = times_ms(state, &rule);
                let middle = median(times.iter().copied());
                rows.push(match rule {
                    SchedulePolicy::Marble(_) => Measurement::at_most(name, middle, "ms", BAR_MS),
                    _ => Measurement::plain(name, middle, "ms"),
                });
            }
        }
    }
    Ok(rows)
}

/// An idle cluster with a full queue.
fn queued(table: &GavelTable, devices: u32) -> anyhow::Result<ClusterState> {
    let mut state = ClusterState::new(nodes(table, devices), table.packing.clone(), RESCALE_NANO)?;
    refill(&mut state, table, QUEUED)?;
    Ok(state)
}

/// [`DEVICES`] devices in nodes of `devices`.
fn nodes(table: &GavelTable, devices: u32) -> Vec<DeviceNode> {
    let node = DeviceNode { kind: table.kind.device(), devices, memory_bytes: 0 };
    vec![node; (DEVICES / devices) as usize]
}

/// A cluster in which a queue was served and one order has completed, with a full queue.
fn after_completion(table: &GavelTable, devices: u32) -> anyhow::Result<ClusterState> {
    let mut state = queued(table, devices)?;
    state.apply(&decide(&state, &OURS, Trigger::Change))?;
    let next = state.next_completion_nano().unwrap_or(0);
    state.advance(next);
    refill(&mut state, table, QUEUED)?;
    Ok(state)
}

/// A cluster in which each order arrived alone and took its fastest count, with a full queue: many
/// orders can shrink.
fn grown(table: &GavelTable, devices: u32) -> anyhow::Result<ClusterState> {
    let mut state = ClusterState::new(nodes(table, devices), table.packing.clone(), RESCALE_NANO)?;
    while state.nodes().iter().enumerate().any(|(at, _)| !state.free(at).is_empty()) {
        refill(&mut state, table, 1)?;
        state.apply(&decide(&state, &OURS, Trigger::Change))?;
    }
    refill(&mut state, table, QUEUED)?;
    Ok(state)
}

/// Adds orders until `queued` wait.
fn refill(state: &mut ClusterState, table: &GavelTable, queued: u64) -> anyhow::Result<()> {
    let known = state.waiting().keys().chain(state.running().keys()).max();
    let first = known.map_or(0, |order| order.0 + 1);
    let mut rng = chacha20(first, STREAM);
    for id in first..first + (queued - state.waiting().len() as u64) {
        let job = &table.jobs[below(&mut rng, table.jobs.len() as u64) as usize];
        let profiles = BTreeMap::from([(table.kind.device(), job.profile.clone())]);
        let steps = 1_000 + below(&mut rng, 100_000);
        let order = TrainingOrder::new(OrderId(id), profiles, steps)?.with_class(job.class);
        state.submit(order)?;
    }
    Ok(())
}

fn times_ms(state: &ClusterState, rule: &SchedulePolicy) -> Vec<f64> {
    let one = |_| {
        let begun = Instant::now();
        black_box(decide(black_box(state), rule, Trigger::Interval));
        begun.elapsed().as_secs_f64() * 1e3
    };
    (0..REPEATS).map(one).collect()
}
