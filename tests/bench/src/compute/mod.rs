//! `florin-bench compute`: the devices of a provider. `--only schedule` compares the market's policy with
//! others on published throughputs, `--only decision` times one decision, `--only cores` runs real
//! trainings on the cores of this machine, `--only leases` plays leases under attack, `--only laboratory`
//! plays them in markets, `--only orders` with real trainings, `--only listings` probes devices, and `--only valuation` measures the replay of transcripts.

mod choice;
mod cores;
mod decision;
mod gavel;
mod laboratory;
mod leases;
mod listings;
mod orders;
mod played;
mod schedule;
mod valuation;
mod workload;

use florin_scheduler::{IntervalSettings, MarbleSettings, SchedulePolicy};

use super::Measurement;
use crate::arguments::{BenchCompute, BenchPay, check_only};

/// The settings of the policies, from `florin-bench compute --choose`: the least mean ratio to whole
/// nodes over all kinds and loads, on seeds that measure nothing.
pub(super) const MARBLE: MarbleSettings = MarbleSettings {
    relaxed_milli: 0,
    strict_milli: 800,
    relaxed_waiting: 1,
    packed_sum_min_milli: Some(1_200),
    growth_milli: Some(500),
    shrink_milli: Some(900),
};
const OPTIMUS: IntervalSettings = IntervalSettings { interval_nano: 0, requested_milli: 0 };
const FINISH_TIME: IntervalSettings =
    IntervalSettings { interval_nano: 1_200 * workload::SECOND, requested_milli: 0 };

/// The policies, by their names in the table.
const POLICIES: [(&str, SchedulePolicy); 4] = [
    ("whole nodes", SchedulePolicy::Exclusive),
    ("marble", SchedulePolicy::Marble(MARBLE)),
    ("optimus", SchedulePolicy::Optimus(OPTIMUS)),
    ("gavel, shortest first", SchedulePolicy::FinishTime(FINISH_TIME)),
];

/// The parts of the benchmark, for `--only`.
const PARTS: [&str; 8] =
    ["schedule", "decision", "cores", "leases", "laboratory", "listings", "orders", "valuation"];

/// Runs the benchmark.
pub(super) fn run(seeds: &BenchPay, options: &BenchCompute) -> anyhow::Result<Vec<Measurement>> {
    if options.choose {
        return choice::run();
    }
    check_only(seeds.only.as_deref(), &PARTS)?;
    let is_wanted =
        |name: &str| seeds.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let mut rows = Vec::new();
    if is_wanted("schedule") {
        rows.extend(schedule::run(seeds)?);
    }
    if is_wanted("decision") {
        rows.extend(decision::run()?);
    }
    if is_wanted("cores") {
        rows.extend(cores::run(seeds)?);
    }
    if is_wanted("leases") {
        rows.extend(leases::run(seeds)?);
    }
    if is_wanted("laboratory") {
        rows.extend(laboratory::run(seeds)?);
    }
    if is_wanted("listings") {
        rows.extend(listings::run(seeds)?);
    }
    if is_wanted("orders") {
        rows.extend(orders::run(seeds)?);
    }
    if is_wanted("valuation") {
        rows.extend(valuation::run(seeds)?);
    }
    Ok(rows)
}
