//! `--choose`: the settings of the policies with the least mean ratio to whole nodes, on seeds that
//! measure nothing. One setting after the other takes its best value, twice.

use florin_scheduler::{IntervalSettings, MarbleSettings, SchedulePolicy};

use super::gavel::{GavelKind, GavelTable};
use super::workload::{Load, SECOND, ScheduleFigures, Serving, Workload};
use super::{FINISH_TIME, MARBLE, OPTIMUS};
use crate::Measurement;

/// The seeds that choose. Measuring seeds begin at 101.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=10;
const PASSES: usize = 2;
const RELAXED: [u32; 5] = [0, 250, 350, 500, 650];
const STRICT: [u32; 6] = [500, 600, 700, 800, 900, 1_000];
const RELAXED_WAITING: [usize; 5] = [0, 1, 2, 4, 8];
const PACKED_SUMS: [Option<u32>; 5] = [None, Some(1_000), Some(1_200), Some(1_400), Some(1_600)];
const GROWTH: [Option<u32>; 5] = [None, Some(0), Some(250), Some(500), Some(700)];
const SHRINK: [Option<u32>; 5] = [None, Some(600), Some(800), Some(900), Some(1_000)];
const INTERVALS: [u64; 7] = [0, 30, 60, 180, 360, 600, 1_200];
const REQUESTED: [u32; 5] = [0, 350, 500, 650, 800];

/// The workloads of each kind and load, with the mean on whole nodes.
struct Choosing {
    cases: Vec<(Vec<Workload>, ScheduleFigures)>,
}

pub(super) fn run() -> anyhow::Result<Vec<Measurement>> {
    let choosing = Choosing::new()?;
    let mut rows = Vec::new();
    let marble = choosing.marble()?;
    rows.push(choosing.row(format!("{marble:?}"), SchedulePolicy::Marble(marble))?);
    let optimus = choosing.intervals(SchedulePolicy::Optimus, OPTIMUS)?;
    rows.push(choosing.row(format!("optimus {optimus:?}"), SchedulePolicy::Optimus(optimus))?);
    let finish = choosing.intervals(SchedulePolicy::FinishTime, FINISH_TIME)?;
    rows.push(choosing.row(format!("gavel {finish:?}"), SchedulePolicy::FinishTime(finish))?);
    Ok(rows)
}

impl Choosing {
    fn new() -> anyhow::Result<Self> {
        let mut cases = Vec::new();
        for kind in GavelKind::ALL {
            let table = GavelTable::read(kind)?;
            for load in Load::ALL {
                let workloads = SEEDS.map(|seed| Workload::draw(&table, load, seed));
                let workloads = workloads.collect::<anyhow::Result<Vec<Workload>>>()?;
                let whole = ScheduleFigures::measure(
                    &workloads,
                    &Serving::Policy(SchedulePolicy::Exclusive),
                )?;
                cases.push((workloads, whole));
            }
        }
        Ok(Self { cases })
    }

    /// The mean ratio of a policy's completion to that on whole nodes, less 1, in percent.
    fn cost(&self, policy: SchedulePolicy) -> anyhow::Result<f64> {
        let mut sum = 0.0;
        for (workloads, whole) in &self.cases {
            sum += ScheduleFigures::measure(workloads, &Serving::Policy(policy))?.beyond(whole);
        }
        Ok(sum / self.cases.len() as f64)
    }

    fn row(&self, name: String, policy: SchedulePolicy) -> anyhow::Result<Measurement> {
        Ok(Measurement::plain(name, self.cost(policy)?, "% beyond whole nodes"))
    }

    /// The candidate of the least cost; the first of equal ones.
    fn best<S: Copy>(
        &self,
        policy: impl Fn(S) -> SchedulePolicy,
        candidates: impl IntoIterator<Item = S>,
    ) -> anyhow::Result<S> {
        let mut best: Option<(f64, S)> = None;
        for candidate in candidates {
            let cost = self.cost(policy(candidate))?;
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, candidate));
            }
        }
        best.map(|(_, candidate)| candidate).ok_or_else(|| anyhow::anyhow!("no candidate"))
    }

    fn marble(&self) -> anyhow::Result<MarbleSettings> {
        let mut now = MARBLE;
        let policy = SchedulePolicy::Marble;
        for _ in 0..PASSES {
            let of = RELAXED.map(|relaxed_milli| MarbleSettings { relaxed_milli, ..now });
            now = self.best(policy, of)?;
            let of = STRICT.map(|strict_milli| MarbleSettings { strict_milli, ..now });
            now = self.best(policy, of)?;
            let of =
                RELAXED_WAITING.map(|relaxed_waiting| MarbleSettings { relaxed_waiting, ..now });
            now = self.best(policy, of)?;
            let of = PACKED_SUMS
                .map(|packed_sum_min_milli| MarbleSettings { packed_sum_min_milli, ..now });
            now = self.best(policy, of)?;
            let of = GROWTH.map(|growth_milli| MarbleSettings { growth_milli, ..now });
            now = self.best(policy, of)?;
            let of = SHRINK.map(|shrink_milli| MarbleSettings { shrink_milli, ..now });
            now = self.best(policy, of)?;
        }
        Ok(now)
    }

    fn intervals(
        &self,
        policy: fn(IntervalSettings) -> SchedulePolicy,
        start: IntervalSettings,
    ) -> anyhow::Result<IntervalSettings> {
        let mut now = start;
        for _ in 0..PASSES {
            let of = INTERVALS
                .map(|seconds| IntervalSettings { interval_nano: seconds * SECOND, ..now });
            now = self.best(policy, of)?;
            let of = REQUESTED.map(|requested_milli| IntervalSettings { requested_milli, ..now });
            now = self.best(policy, of)?;
        }
        Ok(now)
    }
}
