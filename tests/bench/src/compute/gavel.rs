//! Gavel's published throughputs: profiles on 1, 2, 4 and 8 devices of a node, and rates of pairs on
//! one device. tests/bench/data/gavel has their source and licence.

use anyhow::Context;
use florin_scheduler::{DeviceKind, PackedRate, PackingClass, PackingTable, StepProfile};

const ALONE: &str = include_str!("../../data/gavel/alone.csv");
const PACKED: &str = include_str!("../../data/gavel/packed.csv");
const COUNTS: [usize; 4] = [1, 2, 4, 8];
const NANO: f64 = 1e9;

/// A kind of devices of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GavelKind {
    V100,
    P100,
    K80,
}

impl GavelKind {
    pub(super) const ALL: [Self; 3] = [Self::V100, Self::P100, Self::K80];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::V100 => "V100",
            Self::P100 => "P100",
            Self::K80 => "K80",
        }
    }

    pub(super) fn device(self) -> DeviceKind {
        DeviceKind(self as u16)
    }
}

/// A job of the tables that can run on 1, 2 and 4 devices.
#[derive(Debug, Clone)]
pub(super) struct GavelJob {
    pub(super) class: PackingClass,
    pub(super) profile: StepProfile,
    /// The time of every step on four devices, all of which work, even if fewer are faster.
    pub(super) on_all_four: StepProfile,
}

/// The jobs and the pairs of one kind.
#[derive(Debug, Clone)]
pub(super) struct GavelTable {
    pub(super) kind: GavelKind,
    pub(super) jobs: Vec<GavelJob>,
    pub(super) packing: PackingTable,
}

impl GavelTable {
    pub(super) fn read(kind: GavelKind) -> anyhow::Result<Self> {
        let mut jobs = Vec::new();
        for cells in rows(ALONE, kind) {
            jobs.extend(job(&cells).with_context(|| format!("alone.csv: {cells:?}"))?);
        }
        let mut packing = PackingTable::default();
        for cells in rows(PACKED, kind) {
            let pair = pair(&cells).with_context(|| format!("packed.csv: {cells:?}"))?;
            packing.insert(kind.device(), pair)?;
        }
        Ok(Self { kind, jobs, packing })
    }
}

/// The cells of the rows of one kind, without the kind.
fn rows(text: &str, kind: GavelKind) -> impl Iterator<Item = Vec<&str>> {
    let cells = text.lines().map(|line| line.split(',').collect::<Vec<&str>>());
    let of_kind = move |cells: &Vec<&str>| cells[0].eq_ignore_ascii_case(kind.name());
    cells.filter(of_kind).map(|cells| cells[1..].to_vec())
}

/// `None` for a job that lacks a measurement on 1, 2 or 4 devices.
fn job(cells: &[&str]) -> anyhow::Result<Option<GavelJob>> {
    let [class, _, throughputs @ ..] = cells else { anyhow::bail!("a row has seven cells") };
    let class = PackingClass(class.parse()?);
    if throughputs.len() != COUNTS.len() || throughputs[..3].iter().any(|cell| cell.is_empty()) {
        return Ok(None);
    }
    let mut times = vec![None; COUNTS[3]];
    let mut one = 0.0;
    for (count, cell) in COUNTS.into_iter().zip(throughputs).filter(|(_, cell)| !cell.is_empty()) {
        let nano = NANO / cell.parse::<f64>()?;
        if count == 1 {
            one = nano;
        }
        // More than linear speed-ups are noise of the source, which no policy may live on.
        times[count - 1] = Some(nano.max(one / count as f64).ceil() as u64);
    }
    let on_all_four = StepProfile::new(&[times[3]])?;
    Ok(Some(GavelJob { class, profile: StepProfile::new(&times)?, on_all_four }))
}

fn pair(cells: &[&str]) -> anyhow::Result<[PackedRate; 2]> {
    let [one, two, rate, other] = cells else { anyhow::bail!("a row has five cells") };
    let of = |class: &str, rate: &str| {
        let class = PackingClass(class.parse()?);
        anyhow::Ok(PackedRate { class, rate_milli: rate.parse()? })
    };
    Ok([of(one, rate)?, of(two, other)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_read() {
        for (kind, jobs) in GavelKind::ALL.into_iter().zip([19, 19, 18]) {
            let table = GavelTable::read(kind).unwrap();
            assert_eq!(table.jobs.len(), jobs, "{}", kind.name());
            for job in &table.jobs {
                assert_eq!(job.profile.useful().first(), Some(&1));
                assert_eq!(job.profile.knee(1_001), 1);
            }
        }
    }

    #[test]
    fn a_row_is_a_profile_without_more_than_linear_speed_ups() {
        let table = GavelTable::read(GavelKind::V100).unwrap();
        // 32.3534, 100.1421 and 123.8538 steps per second on 1, 2 and 4 devices.
        let times = [1, 2, 4].map(|count| table.jobs[0].profile.step_nano(count));
        assert_eq!(times, [30_908_653, 15_454_327, 8_074_036]);
        let class = PackingClass;
        assert_eq!(table.packing.sum(DeviceKind(0), class(0), class(1)), Some(2_000));
    }
}
