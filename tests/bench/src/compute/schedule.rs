//! Completion times of the policies on Gavel's tables, under virtual time.

use super::gavel::{GavelKind, GavelTable};
use super::workload::{Load, RESCALE_NANO, SECOND, ScheduleFigures, Workload};
use super::{MARBLE, POLICIES};
use crate::Measurement;
use crate::arguments::BenchPay;
use florin_scheduler::{MarbleSettings, SchedulePolicy};

/// The policy that others are compared with, by its place in [`POLICIES`].
const BASELINE: usize = 0;
const OURS: usize = 1;
/// Mean completion on V100 beyond that on whole nodes, in percent, at most; by load.
const BARS: [f64; 3] = [5.0, -30.0, -55.0];

pub(super) fn run(seeds: &BenchPay) -> anyhow::Result<Vec<Measurement>> {
    let mut rows: Vec<Measurement> = Load::ALL
        .iter()
        .map(|load| {
            let name = format!("{}, {} orders/min: arriving work", load.name, load.per_minute);
            Measurement::plain(name, load.percent(), "% of one order per device")
        })
        .collect();
    let pause = (RESCALE_NANO / SECOND) as f64;
    rows.push(Measurement::plain("pause of a rescale or a restart", pause, "s"));
    for kind in GavelKind::ALL {
        let table = GavelTable::read(kind)?;
        for (load, bar) in Load::ALL.into_iter().zip(BARS) {
            let all = seeds.first_seed..seeds.first_seed + seeds.tasks;
            let workloads = all.map(|seed| Workload::draw(&table, load, seed));
            let workloads = workloads.collect::<anyhow::Result<Vec<Workload>>>()?;
            let bar = (kind == GavelKind::V100).then_some(bar);
            rows.extend(of_load(&format!("{}, {}", kind.name(), load.name), &workloads, bar)?);
        }
    }
    Ok(rows)
}

/// The figures of all policies under one load.
fn of_load(
    name: &str,
    workloads: &[Workload],
    bar: Option<f64>,
) -> anyhow::Result<Vec<Measurement>> {
    let mut rows = Vec::new();
    let baseline = ScheduleFigures::measure(workloads, &POLICIES[BASELINE].1)?;
    for (at, (policy, rule)) in POLICIES.iter().enumerate() {
        let figures = ScheduleFigures::measure(workloads, rule)?;
        let mut row = |figure: &str, value, unit: &str| {
            rows.push(Measurement::plain(format!("{name}, {policy}: {figure}"), value, unit));
        };
        row("mean completion", figures.mean(), "min");
        row("completion of 99 %", figures.p99(), "min");
        row("devices occupied", figures.occupied(), "%");
        row("work done", figures.useful(), "% of one order per device");
        row("rescales and preemptions per order", figures.interruptions(), "");
        if at == BASELINE {
            continue;
        }
        let name = format!("{name}, {policy}: mean completion beyond whole nodes");
        let beyond = figures.beyond(&baseline);
        rows.push(match bar.filter(|_| at == OURS) {
            Some(bar) => Measurement::at_most(name, beyond, "%", bar),
            None => Measurement::plain(name, beyond, "%"),
        });
    }
    let without = [
        ("marble without sharing", MarbleSettings { packed_sum_min_milli: None, ..MARBLE }),
        ("marble without growth", MarbleSettings { growth_milli: None, ..MARBLE }),
    ];
    for (policy, settings) in without {
        let figures = ScheduleFigures::measure(workloads, &SchedulePolicy::Marble(settings))?;
        let name = format!("{name}, {policy}: mean completion beyond whole nodes");
        rows.push(Measurement::plain(name, figures.beyond(&baseline), "%"));
    }
    Ok(rows)
}
