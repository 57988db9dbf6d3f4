//! Completion times of the policies on Gavel's tables, under virtual time.

use florin_scheduler::{MarbleSettings, SchedulePolicy};

use super::gavel::{GavelKind, GavelTable};
use super::workload::{Load, RESCALE_NANO, SECOND, ScheduleFigures, Serving, Workload};
use super::{FINISH_TIME, MARBLE, OPTIMUS};
use crate::Measurement;
use crate::arguments::BenchPay;

/// Mean completion on V100 beyond that on whole nodes, in percent, at most; by load.
const BARS: [f64; 3] = [5.0, -30.0, -55.0];
/// The place of the market's policy among the rivals.
const OURS: usize = 0;

/// The two forms of whole nodes: an order leaves devices idle that slow it, or uses all of them.
const BASELINES: [(&str, Serving); 2] = [
    ("whole nodes", Serving::Policy(SchedulePolicy::Exclusive)),
    ("whole nodes, all devices used", Serving::AllOfTheNode),
];

/// The policies beside whole nodes.
const RIVALS: [(&str, SchedulePolicy); 5] = [
    ("marble", SchedulePolicy::Marble(MARBLE)),
    ("optimus", SchedulePolicy::Optimus(OPTIMUS)),
    ("gavel, shortest first", SchedulePolicy::FinishTime(FINISH_TIME)),
    (
        "marble without sharing",
        SchedulePolicy::Marble(MarbleSettings { packed_sum_min_milli: None, ..MARBLE }),
    ),
    (
        "marble without growth",
        SchedulePolicy::Marble(MarbleSettings { growth_milli: None, ..MARBLE }),
    ),
];

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
    let mut baselines = Vec::new();
    for (policy, serving) in &BASELINES {
        let figures = ScheduleFigures::measure(workloads, serving)?;
        rows.extend(absolute(&format!("{name}, {policy}"), &figures));
        baselines.push((policy, figures));
    }
    let fastest = workloads.iter().map(Workload::fastest_minutes).sum::<f64>();
    let fastest = fastest / workloads.len() as f64;
    for (policy, figures) in &baselines {
        let beyond = 100.0 * (fastest / figures.mean() - 1.0);
        let name = format!("{name}, no order ever waits: mean completion beyond {policy}");
        rows.push(Measurement::plain(name, beyond, "%"));
    }
    for (at, (rival, rule)) in RIVALS.iter().enumerate() {
        let figures = ScheduleFigures::measure(workloads, &Serving::Policy(*rule))?;
        rows.extend(absolute(&format!("{name}, {rival}"), &figures));
        for (policy, baseline) in &baselines {
            let name = format!("{name}, {rival}: mean completion beyond {policy}");
            let beyond = figures.beyond(baseline);
            rows.push(match bar.filter(|_| at == OURS) {
                Some(bar) => Measurement::at_most(name, beyond, "%", bar),
                None => Measurement::plain(name, beyond, "%"),
            });
        }
    }
    Ok(rows)
}

fn absolute(name: &str, figures: &ScheduleFigures) -> [Measurement; 5] {
    let row = |figure: &str, value, unit: &str| {
        Measurement::plain(format!("{name}: {figure}"), value, unit)
    };
    [
        row("mean completion", figures.mean(), "min"),
        row("completion of 99 %", figures.p99(), "min"),
        row("devices occupied", figures.occupied(), "%"),
        row("work done", figures.useful(), "% of one order per device"),
        row("rescales and preemptions per order", figures.interruptions(), ""),
    ]
}
