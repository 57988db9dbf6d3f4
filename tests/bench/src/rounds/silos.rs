//! Silos of devices whose speeds are as 1 to 2 to 4, beside the same devices as single members:
//! the share of the time in which devices compute, and the accuracy after as many samples.
//!
//! Inside a silo each batch is divided among the devices as virtual workers are, in whole workers, and
//! gradients and parameters cross the stated link. Towards the market a silo is one member.

use std::path::Path;

use florin::failure::Failure;
use florin_sim::Scenario;

use super::attacks::of_all_seeds;
use super::trial::Trial;
use super::{Measurement, TARGET, read_scenario, run_all};
use crate::arguments::{BenchPay, BenchRounds};
use crate::statistics::median;

/// The name of these measurements for `--only`.
pub(super) const NAME: &str = "silos";
/// The speeds of a silo's devices.
const SPEEDS: [f64; 3] = [1.0, 2.0, 4.0];
/// Silos of a hundred members of the benchmark.
const SILOS_PERCENT: u32 = 15;
/// Rows of a device, and of a batch. A silo has the rows of all its devices.
const DEVICE_ROWS: u32 = 128;
const BATCH: u32 = 64;
/// Virtual workers of a batch.
const WORKERS: u32 = 64;
/// Megabits per second of the links inside a silo.
const LINK: u32 = 1_000;
/// Seconds of a batch on a device of speed 1, and parameters of its model.
const BATCH_SECONDS: u32 = 64;
const PARAMETERS: u32 = 1_000_000;
/// The least share of the time in which devices compute, in percent.
const COMPUTING_MIN: f64 = 90.0;
/// The least accuracy beyond synchronous rounds after as many samples, in points.
const BEYOND_MIN: f64 = -1.0;

/// Least number of updates of a round.
const COHORT_MIN: u32 = 3;
/// Silos of the smallest version divide all silos by this number.
const PART_MAX: u32 = 10;
/// The least members of the benchmark with enough silos.
const MEMBERS_MIN: u32 = (COHORT_MIN * PART_MAX * 100).div_ceil(SILOS_PERCENT);

/// How the devices take part.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DeviceMode {
    name: &'static str,
    /// The silos' links in megabits per second, and the virtual workers of a batch; `None` for devices
    /// alone.
    silos: Option<(u32, u32)>,
    /// The members divided by this number make a round or a version.
    part: u32,
    /// Whether rounds are buffered, with all members at work.
    is_buffered: bool,
    /// Whether the targets hold for it.
    has_targets: bool,
}

/// The modes. The first two are the synchronous ones with which all others are compared.
const MODES: [DeviceMode; 10] = {
    let alone = DeviceMode {
        name: "devices, synchronous",
        silos: None,
        part: 1,
        is_buffered: false,
        has_targets: false,
    };
    let silos = DeviceMode {
        name: "silos, buffered",
        silos: Some((LINK, WORKERS)),
        part: 3,
        is_buffered: true,
        has_targets: true,
    };
    [
        alone,
        DeviceMode { name: "a third of the devices, synchronous", part: 3, ..alone },
        DeviceMode { name: "devices, buffered", part: 3, is_buffered: true, ..alone },
        DeviceMode {
            name: "silos, synchronous",
            part: 1,
            is_buffered: false,
            has_targets: false,
            ..silos
        },
        silos,
        DeviceMode { name: "silos, versions of a tenth", part: PART_MAX, ..silos },
        DeviceMode {
            name: "silos with 10 Gbit/s",
            silos: Some((10 * LINK, WORKERS)),
            has_targets: false,
            ..silos
        },
        DeviceMode {
            name: "silos with 10 Gbit/s, versions of a tenth",
            silos: Some((10 * LINK, WORKERS)),
            part: PART_MAX,
            ..silos
        },
        DeviceMode {
            name: "silos with 100 Mbit/s",
            silos: Some((LINK / 10, WORKERS)),
            has_targets: false,
            ..silos
        },
        DeviceMode {
            name: "silos with 8 virtual workers",
            silos: Some((LINK, 8)),
            has_targets: false,
            ..silos
        },
    ]
};

impl DeviceMode {
    /// Members that train at the same time.
    const fn places(&self, members: u32) -> u32 {
        if self.is_buffered { members } else { members / self.part }
    }

    /// The groups of members, and their number.
    fn groups(&self, silos: u32) -> (String, u32) {
        let group = |name: &str, rows: u32, devices: String| {
            format!(
                "\n[population.{name}]\ncount = {silos}\nrows = [{rows}, {rows}]\n\
                 [population.{name}.devices]\n{devices}\nmemory_gib = [1]\n\
                 coordinator = {{ latency_ms = 20, megabits_per_second = 100 }}\n"
            )
        };
        if let Some((link, _)) = self.silos {
            let devices = format!(
                "speeds = {SPEEDS:?}\nspeed = {{ spread = 0.1 }}\n\
                 link = {{ latency_ms = 0.1, megabits_per_second = {link} }}"
            );
            return (group("silo", DEVICE_ROWS * SPEEDS.len() as u32, devices), silos);
        }
        let alone = SPEEDS.iter().zip(["slow", "medium", "fast"]).map(|(speed, name)| {
            let devices = format!("speed = {{ median = {speed:?}, spread = 0.1 }}");
            group(name, DEVICE_ROWS, devices)
        });
        (alone.collect(), silos * SPEEDS.len() as u32)
    }
}

fn scenario(mode: &DeviceMode, size: &BenchRounds) -> anyhow::Result<Scenario> {
    let silos = size.members * SILOS_PERCENT / 100;
    let (groups, members) = mode.groups(silos);
    let rounds = size.rounds / 3 * mode.part;
    let cohort = members / mode.part;
    let late = if mode.is_buffered {
        let rounds = 3 * mode.part - 1;
        format!("staleness = {{ rounds = {rounds}, weight = \"inverse_root\" }}")
    } else {
        String::new()
    };
    let (_, workers) = mode.silos.unwrap_or((LINK, WORKERS));
    let text = format!(
        r#"
name = "rounds"
question = "How busy are the devices of silos?"
rounds = {rounds}

[learning]
hidden = [32]
epochs = 2
batch = {BATCH}
learning_rate = 0.1
holdout_rows = {holdout}
holdout_rows_per_round = 64
test_rows = 300
feature_noise = 0.5

[task]
cohort = {cohort}
cohort_min = {COHORT_MIN}
over_selection = {over}
train_s = 3600
reveal_s = 300
baseline_epochs = 0
{late}

[task.step]
workers = {workers}
parameters = {PARAMETERS}
bytes = 1000000
seconds = {seconds}
{groups}"#,
        holdout = 64 * rounds,
        over = mode.places(members) - cohort,
        seconds = f64::from(BATCH_SECONDS) / f64::from(workers),
    );
    read_scenario(Path::new("."), &text)
}

/// Refuses a market with too few members for silos.
pub(super) fn check(size: &BenchRounds) -> Result<(), Failure> {
    if size.members >= MEMBERS_MIN {
        return Ok(());
    }
    let message = format!(
        "--members {}: silos need at least {MEMBERS_MIN}, so that a version of a tenth of them has \
         {COHORT_MIN} updates; raise it, or choose other markets with --only",
        size.members
    );
    Err(Failure::input("TOO_FEW_MEMBERS", message))
}

/// Runs the comparison.
pub(super) fn run(seeds: &BenchPay, size: &BenchRounds) -> anyhow::Result<Vec<Measurement>> {
    let scenarios: Vec<Scenario> =
        MODES.iter().map(|mode| scenario(mode, size)).collect::<anyhow::Result<_>>()?;
    let trials = run_all(of_all_seeds(&scenarios, seeds)).into_iter();
    let trials = trials.collect::<anyhow::Result<Vec<Trial>>>()?;
    let cells: Vec<&[Trial]> = trials.chunks(usize::try_from(seeds.tasks)?).collect();
    let [all_asked, third, ..] = cells[..] else { return Ok(Vec::new()) };
    let silos = size.members * SILOS_PERCENT / 100;
    let modes = MODES.iter().zip(&cells);
    Ok(modes.flat_map(|(mode, trials)| compare(mode, trials, [all_asked, third], silos)).collect())
}

/// A mode beside both synchronous ones with single devices, of which the better one counts.
fn compare(
    mode: &DeviceMode,
    trials: &[Trial],
    [all_asked, third]: [&[Trial]; 2],
    silos: u32,
) -> Vec<Measurement> {
    let name = |what: &str| format!("{NAME}: {}: {what}", mode.name);
    let percent = |of: &dyn Fn(&Trial) -> f64| median(trials.iter().map(of)) * 100.0;
    let places = mode.places(mode.groups(silos).1);
    let plain_or = |what: &str, value: f64, unit: &str, bar: f64| match mode.has_targets {
        true => Measurement::at_least(name(what), value, unit, bar),
        false => Measurement::plain(name(what), value, unit),
    };
    let computing = percent(&Trial::devices_at_work);
    let best = |at: usize| {
        let of = |trials: &[Trial]| trials.get(at).map_or(0.0, Trial::final_accuracy);
        of(all_asked).max(of(third))
    };
    let gained = trials.iter().enumerate().map(|(at, one)| one.final_accuracy() - best(at));
    let faster = trials.iter().zip(all_asked).map(|(one, reference)| {
        let target = reference.final_accuracy() * TARGET;
        let time = |of: &Trial| of.time_to(target).unwrap_or(f64::INFINITY);
        time(reference) / time(one)
    });
    let seconds = |trial: &Trial| trial.curve.last().map_or(0.0, |(at, _)| *at);
    vec![
        plain_or("devices compute", computing, "%", COMPUTING_MIN),
        Measurement::plain(
            name("members at work, of those that are asked"),
            percent(&|trial: &Trial| trial.utilisation(places)),
            "%",
        ),
        Measurement::plain(
            name("devices of a member at work compute"),
            percent(&Trial::computing_at_work),
            "%",
        ),
        plain_or(
            "final accuracy beyond the better synchronous one",
            median(gained) * 100.0,
            "points",
            BEYOND_MIN,
        ),
        Measurement::plain(
            name("time to 90 % of the synchronous accuracy, synchronous over this"),
            median(faster),
            "x",
        ),
        Measurement::plain(name("trained in vain"), percent(&Trial::wasted), "%"),
        Measurement::plain(name("virtual time"), median(trials.iter().map(seconds)) / 60.0, "min"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_members_for_silos_are_refused_with_the_least_number() {
        let size = |members| BenchRounds { members, rounds: 5 };
        assert!(check(&size(MEMBERS_MIN)).is_ok());
        let read =
            |members| MODES.iter().try_for_each(|mode| scenario(mode, &size(members)).map(drop));
        assert!(read(MEMBERS_MIN).is_ok());
        let refused = check(&size(MEMBERS_MIN - 1)).unwrap_err().to_string();
        assert!(refused.contains("--members 199") && refused.contains("at least 200"), "{refused}");
        // Without that check the cause has the key and the value.
        let cause = read(MEMBERS_MIN - 1).unwrap_err().to_string();
        assert!(cause.contains("task.cohort_min = 3: must be 2 to task.cohort"), "{cause}");
    }
}
