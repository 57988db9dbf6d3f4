//! Buffered rounds beside synchronous ones, with members whose speeds are as 1 to 2 to 4 and a few
//! that are ten times slower: time to accuracy, utilisation, and pay for each useful row.

use std::path::Path;

use florin_sim::Scenario;
use florin_sim::measure::mean_and_error;

use super::attacks::{AttackedMarket, DEVIATING, Deviation, gains, of_all_seeds};
use super::trial::{Trial, mean};
use super::{Measurement, TARGET, read_scenario, run_all};
use crate::arguments::{BenchPay, BenchRounds};
use crate::statistics::median;

/// The name of these measurements for `--only`.
pub(super) const NAME: &str = "buffered";
/// Updates of a synchronous round, and of a version.
const COHORT: u32 = 20;
const VERSION: u32 = 10;
/// Members that train at the same time.
const CONCURRENCY: u32 = 30;
/// Steps per second of the slowest third of the members.
const SLOW: f64 = 0.1;
/// How many times slower a straggler is.
const STRAGGLER: f64 = 10.0;
/// The least ratio of the synchronous time to that of buffered rounds.
const FASTER_MIN: f64 = 2.0;
/// The least share of the time in which a place of a buffered round is at work.
const BUSY_MIN: f64 = 90.0;
/// The least accuracy beyond synchronous rounds after as many updates, in points.
const BEYOND_MIN: f64 = -1.0;
/// The largest difference of the pay for a useful row between fast and slow members, in percent.
const PAY_DIFFERENCE_MAX: f64 = 10.0;

/// How rounds run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Every selected member is waited for.
    Synchronous,
    /// 1.3 times as many are selected as are waited for.
    OverSelection,
    /// The same, and late updates count in the next round.
    Late,
    /// `FedBuff`'s rule: every update of a version has its weight by staleness alone.
    FedBuff,
    /// REFL's rule: every update has its weight by staleness and by its difference from the fresh ones.
    Refl,
    /// The market's buffered rounds.
    Buffered,
    /// The same with the knob `fast`.
    BufferedFast,
    /// The same with the knob `fair_work`.
    BufferedFair,
    /// The same with the knob `performance`.
    BufferedPerformance,
}

impl Mode {
    const ALL: [Self; 9] = [
        Self::Synchronous,
        Self::OverSelection,
        Self::Late,
        Self::FedBuff,
        Self::Refl,
        Self::Buffered,
        Self::BufferedFast,
        Self::BufferedFair,
        Self::BufferedPerformance,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Synchronous => "synchronous",
            Self::OverSelection => "over-selection 1.3",
            Self::Late => "late updates count",
            Self::FedBuff => "FedBuff",
            Self::Refl => "REFL",
            Self::Buffered => "buffered",
            Self::BufferedFast => "buffered, fast",
            Self::BufferedFair => "buffered, fair_work",
            Self::BufferedPerformance => "buffered, performance",
        }
    }

    const fn is_buffered(self) -> bool {
        !matches!(self, Self::Synchronous | Self::OverSelection | Self::Late)
    }

    /// The keys of the scenario's task.
    fn keys(self) -> String {
        let over = match self {
            Self::Synchronous => 0,
            Self::OverSelection | Self::Late => COHORT * 3 / 10,
            _ => CONCURRENCY - VERSION,
        };
        let late = if self.is_buffered() { 8 } else { 1 };
        let mut keys = format!("over_selection = {over}\n");
        if !matches!(self, Self::Synchronous | Self::OverSelection) {
            keys += &format!("staleness = {{ rounds = {late}, weight = \"inverse_root\" }}\n");
        }
        keys += match self {
            Self::FedBuff => "exclude_harmful = false\nclip = false\n",
            Self::Refl => "exclude_harmful = false\nclip = false\nstale_weights = \"refl\"\n",
            Self::BufferedFast => "selection = { knob = \"fast\", explore = 0.1 }\n",
            Self::BufferedFair => "selection = { knob = \"fair_work\", explore = 0.1 }\n",
            Self::BufferedPerformance => "selection = { knob = \"performance\", explore = 0.1 }\n",
            _ => "",
        };
        keys
    }

    fn cohort(self) -> u32 {
        if self.is_buffered() { VERSION } else { COHORT }
    }

    /// Members that train at the same time.
    fn places(self) -> u32 {
        match self {
            Self::Synchronous => COHORT,
            Self::OverSelection | Self::Late => COHORT + COHORT * 3 / 10,
            _ => CONCURRENCY,
        }
    }
}

/// The modes that are attacked.
const ATTACKED: [Mode; 2] = [Mode::Buffered, Mode::BufferedFair];

/// The deviations from buffered rounds, of a tenth of the members, of the middle speed.
const ATTACKS: [Deviation; 4] =
    [Deviation::Racing, Deviation::Staleness, Deviation::Absence, Deviation::Repetition];

fn scenario(mode: Mode, size: &BenchRounds) -> anyhow::Result<Scenario> {
    let rounds = if mode.is_buffered() { size.rounds * COHORT / VERSION } else { size.rounds };
    let stragglers = (size.members / 20).max(1);
    let deviating = size.members / 10;
    let third = (size.members - stragglers - deviating) / 3;
    let group = |name: &str, count: u32, speed: f64| {
        format!(
            "\n[population.{name}]\ncount = {count}\nrows = [40, 40]\nmachine = {{ steps_per_second \
             = {speed}, megabits_per_second = 1.0, spread = 0.1 }}\n"
        )
    };
    let groups = [
        group("slow", third, SLOW),
        group("medium", third, SLOW * 2.0),
        group("fast", third, SLOW * 4.0),
        group("straggler", stragglers, SLOW / STRAGGLER),
        group(DEVIATING, deviating, SLOW * 2.0),
    ]
    .concat();
    let text = format!(
        r#"
name = "rounds"
question = "How fast are buffered rounds?"
rounds = {rounds}

[learning]
hidden = [32]
epochs = 2
batch = 16
learning_rate = 0.1
holdout_rows = {holdout}
holdout_rows_per_round = 64
test_rows = 300
feature_noise = 0.5

[task]
cohort = {cohort}
cohort_min = 5
train_s = 3600
reveal_s = 300
baseline_epochs = 0
{keys}{groups}"#,
        holdout = 64 * rounds,
        cohort = mode.cohort(),
        keys = mode.keys(),
    );
    read_scenario(Path::new("."), &text)
}

/// Runs the comparison, and the attacks on buffered rounds.
pub(super) fn run(seeds: &BenchPay, size: &BenchRounds) -> anyhow::Result<Vec<Measurement>> {
    let scenarios = Mode::ALL.map(|mode| scenario(mode, size));
    let scenarios = scenarios.into_iter().collect::<anyhow::Result<Vec<Scenario>>>()?;
    let trials = run_all(of_all_seeds(&scenarios, seeds)).into_iter();
    let trials = trials.collect::<anyhow::Result<Vec<Trial>>>()?;
    let cells = trials.chunks(usize::try_from(seeds.tasks)?);
    let modes: Vec<(Mode, &[Trial])> = Mode::ALL.into_iter().zip(cells).collect();
    let trials_of = |mode| {
        modes.iter().find(|(of, _)| *of == mode).map(|(_, trials)| *trials).unwrap_or_default()
    };
    let (synchronous, fedbuff) = (trials_of(Mode::Synchronous), trials_of(Mode::FedBuff));
    let mut rows = Vec::new();
    for (mode, trials) in &modes {
        rows.extend(compare(*mode, trials, synchronous, fedbuff));
    }
    let mut markets = Vec::new();
    for mode in ATTACKED {
        let (label, honest) = (format!("{NAME}: {}", mode.name()), trials_of(mode));
        markets.push(AttackedMarket { label, scenario: scenario(mode, size)?, honest });
    }
    rows.extend(gains(&markets, &ATTACKS, seeds)?);
    Ok(rows)
}

/// The ratio of the times to the target of the synchronous accuracy.
fn faster(trials: &[Trial], synchronous: &[Trial]) -> f64 {
    let ratio = |(one, reference): (&Trial, &Trial)| {
        let target = reference.final_accuracy() * TARGET;
        let time = |of: &Trial| of.time_to(target).unwrap_or(f64::INFINITY);
        time(reference) / time(one)
    };
    median(trials.iter().zip(synchronous).map(ratio))
}

/// By how much a ratio of sums over all seeds is beyond one, in percent, and the standard error of that
/// (jackknife over the seeds). The mean of the seeds' ratios is above one also where both groups are
/// paid alike.
fn beyond<const N: usize>(
    trials: &[Trial],
    sums: impl Fn(&Trial) -> [f64; N],
    ratio: impl Fn([f64; N]) -> f64,
) -> (f64, f64) {
    let parts: Vec<[f64; N]> = trials.iter().map(sums).collect();
    let of_all = |without: Option<usize>| {
        let mut total = [0.0; N];
        for (_, part) in parts.iter().enumerate().filter(|(at, _)| Some(*at) != without) {
            total.iter_mut().zip(part).for_each(|(sum, one)| *sum += one);
        }
        (ratio(total) - 1.0) * 100.0
    };
    let without: Vec<f64> = (0..parts.len()).map(|at| of_all(Some(at))).collect();
    let (center, count) = (mean(without.iter().copied()), without.len() as f64);
    let squares: f64 = without.iter().map(|one| (one - center).powi(2)).sum();
    (of_all(None), ((count - 1.0) / count * squares).sqrt())
}

fn compare(
    mode: Mode,
    trials: &[Trial],
    synchronous: &[Trial],
    fedbuff: &[Trial],
) -> Vec<Measurement> {
    let name = |what: &str| format!("{NAME}: {}: {what}", mode.name());
    let is_ours = mode == Mode::Buffered;
    let faster_by = faster(trials, synchronous);
    let mut rows = Vec::new();
    let label = name("time to 90 % of the synchronous accuracy, synchronous over this");
    rows.push(match is_ours {
        true => Measurement::at_least(
            label,
            faster_by,
            "x",
            FASTER_MIN.max(faster(fedbuff, synchronous)),
        ),
        false => Measurement::plain(label, faster_by, "x"),
    });
    let gains = trials.iter().zip(synchronous);
    let gains = gains.map(|(one, other)| one.final_accuracy() - other.final_accuracy());
    let (gained, label) = (median(gains) * 100.0, name("final accuracy beyond synchronous"));
    rows.push(match is_ours {
        true => Measurement::at_least(label, gained, "points", BEYOND_MIN),
        false => Measurement::plain(label, gained, "points"),
    });
    let busy = median(trials.iter().map(|trial| trial.utilisation(mode.places()))) * 100.0;
    rows.push(match mode {
        Mode::Buffered => Measurement::at_least(name("places at work"), busy, "%", BUSY_MIN),
        _ => Measurement::plain(name("places at work"), busy, "%"),
    });
    let wasted = median(trials.iter().map(Trial::wasted)) * 100.0;
    rows.push(Measurement::plain(name("trained in vain"), wasted, "%"));
    rows.extend(compare_pay(mode, trials));
    let repeats = mean(trials.iter().map(Trial::repeats)) * 100.0;
    rows.push(Measurement::plain(name("honest updates taken for repeats"), repeats, "%"));
    rows
}

/// Whether the mean over the seeds is above its standard error: a ratio to a smaller one is undefined.
fn is_above_error(values: impl Iterator<Item = f64>) -> bool {
    let (mean, error) = mean_and_error(&values.collect::<Vec<f64>>());
    error.is_some_and(|error| mean > error)
}

/// The pay and the scores of fast members for each useful row, beyond those of slow ones.
fn compare_pay(mode: Mode, trials: &[Trial]) -> Vec<Measurement> {
    let name = |what: &str| format!("{NAME}: {}: {what}", mode.name());
    let mut rows = Vec::new();
    let per_row = |trial: &Trial| {
        let (fast, slow) = (trial.pay_and_useful_rows("fast"), trial.pay_and_useful_rows("slow"));
        [fast.0, fast.1, slow.0, slow.1]
    };
    let ratio = |[fast, fast_rows, slow, slow_rows]: [f64; 4]| fast / fast_rows * slow_rows / slow;
    let (difference, error) = beyond(trials, per_row, ratio);
    let within = |trial: &Trial| {
        let (fast, slow) = trial.scores_within_rounds("fast", "slow");
        [fast, slow]
    };
    let (same, same_error) = beyond(trials, within, |[fast, slow]| fast / slow);
    let is_paid = is_above_error(trials.iter().map(|trial| per_row(trial)[2]));
    let has_scores = is_above_error(trials.iter().map(|trial| within(trial)[1]));
    for (label, value, is_defined) in [
        ("pay per useful row, fast beyond slow members", difference, is_paid),
        ("  its standard error", error, is_paid),
        ("  score per useful row of the same round, fast beyond slow", same, has_scores),
        ("    its standard error", same_error, has_scores),
    ] {
        let row = Measurement::plain(name(label), value, "%");
        rows.push(if is_defined { row } else { row.undefined() });
    }
    let label = name("difference of that pay");
    let row = Measurement::at_most(label, difference.abs(), "%", PAY_DIFFERENCE_MAX);
    rows.push(if is_paid { row } else { row.undefined() });
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_needs_a_denominator_above_its_standard_error() {
        let is_defined = |values: &[f64]| is_above_error(values.iter().copied());
        assert!(is_defined(&[1.0, 3.0, 2.0]));
        assert!(!is_defined(&[0.0, 0.0]), "no slow member has pay");
        assert!(!is_defined(&[0.0, 2.0]) && !is_defined(&[1.0]));
    }
}
