//! Earnings of members that deviate from honest behaviour towards the selection, beside their own
//! honest earnings with the same seeds.

use anyhow::Context;
use florin_sim::Scenario;
use florin_sim::measure::upper_bound;
use florin_sim::scenario::Availability;
use florin_sim::strategy::Strategy;

use super::market::{Rule, with_deviating};
use super::trial::{Trial, mean};
use super::{Measurement, run_all};
use crate::arguments::{BenchPay, BenchRounds};

/// The name of these measurements for `--only`.
pub(super) const NAME: &str = "attacks";
/// The rules that are attacked.
const RULES: [Rule; 7] = [
    Rule::Fast,
    Rule::FairWork,
    Rule::Random,
    Rule::Performance,
    Rule::FairAccuracy,
    Rule::FastSpare,
    Rule::FairWorkSpare,
];
/// The deviations from the selection of synchronous rounds.
const ATTACKS: [Deviation; 5] = [
    Deviation::LyingQuote,
    Deviation::Slowness,
    Deviation::Absence,
    Deviation::Hoarding,
    Deviation::Shrinking,
];
/// The group of the members that deviate.
pub(super) const DEVIATING: &str = "deviating";
/// The upper bound of a gain, in percent of the honest earnings.
pub(super) const GAIN_MAX: f64 = 2.0;

/// A deviation of a few members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deviation {
    /// They quote a tenth of their time.
    LyingQuote,
    /// They take twice the time.
    Slowness,
    /// They stay away from half of the rounds for which they are selected.
    Absence,
    /// They take part only in the faster half of the rounds for which they are selected.
    Hoarding,
    /// They train for one epoch instead of two, in half the time.
    Racing,
    /// They send every update twice as late as they could.
    Staleness,
    /// They send a tenth of their update, which has the same share of each class.
    Shrinking,
    /// They send their first update again and again, at once.
    Repetition,
}

impl Deviation {
    const fn name(self) -> &'static str {
        match self {
            Self::LyingQuote => "quotes of a tenth",
            Self::Slowness => "twice the time",
            Self::Absence => "absence from every other round",
            Self::Hoarding => "hoarding of fast rounds",
            Self::Racing => "racing with half of the epochs",
            Self::Staleness => "stale on purpose",
            Self::Shrinking => "a tenth of the update",
            Self::Repetition => "the first update again and again",
        }
    }

    /// The scenario with members that deviate.
    fn apply(self, honest: &Scenario) -> anyhow::Result<Scenario> {
        let mut scenario = honest.clone();
        let group = scenario.population.get_mut(DEVIATING).context("the deviating group")?;
        match self {
            Self::LyingQuote => group.quote = 0.1,
            Self::Slowness => {
                group.machine.steps_per_second /= 2.0;
                group.machine.megabits_per_second /= 2.0;
            }
            Self::Absence => group.online = Availability::Random { probability: 0.5 },
            Self::Hoarding => group.strategy = Strategy::Hoard,
            Self::Racing => group.strategy = Strategy::FewerEpochs { epochs: 1 },
            Self::Staleness => group.machine.steps_per_second /= 2.0,
            Self::Shrinking => group.strategy = Strategy::Scale { factor: 0.1 },
            Self::Repetition => group.strategy = Strategy::Repeat,
        }
        Ok(scenario)
    }
}

/// A market that is attacked: its members are honest in `scenario`.
pub(super) struct AttackedMarket<'a> {
    /// The beginning of its measurements' names.
    pub(super) label: String,
    pub(super) scenario: Scenario,
    /// Its trials with honest members, seed by seed.
    pub(super) honest: &'a [Trial],
}

/// Simulates all attacks on the selection of synchronous rounds.
pub(super) fn run(seeds: &BenchPay, size: &BenchRounds) -> anyhow::Result<Vec<Measurement>> {
    let scenarios = RULES.map(|rule| with_deviating(rule, size));
    let scenarios = scenarios.into_iter().collect::<anyhow::Result<Vec<Scenario>>>()?;
    let trials = run_all(of_all_seeds(&scenarios, seeds)).into_iter();
    let trials = trials.collect::<anyhow::Result<Vec<Trial>>>()?;
    let cells = RULES.iter().zip(scenarios).zip(trials.chunks(usize::try_from(seeds.tasks)?));
    let markets: Vec<AttackedMarket<'_>> = cells
        .map(|((rule, scenario), honest)| {
            let label = format!("{NAME}, {}", rule.name());
            AttackedMarket { label, scenario, honest }
        })
        .collect();
    gains(&markets, &ATTACKS, seeds)
}

/// The gains of deviations in each market, with their upper bounds over the seeds.
pub(super) fn gains(
    markets: &[AttackedMarket<'_>],
    attacks: &[Deviation],
    seeds: &BenchPay,
) -> anyhow::Result<Vec<Measurement>> {
    let cases = || markets.iter().flat_map(|one| attacks.iter().map(move |attack| (one, attack)));
    let scenarios = cases().map(|(market, attack)| attack.apply(&market.scenario));
    let scenarios = scenarios.collect::<anyhow::Result<Vec<Scenario>>>()?;
    let trials = run_all(of_all_seeds(&scenarios, seeds)).into_iter();
    let trials = trials.collect::<anyhow::Result<Vec<Trial>>>()?;
    let mut rows = Vec::new();
    for ((market, attack), trials) in cases().zip(trials.chunks(usize::try_from(seeds.tasks)?)) {
        let Gain { mean, upper } = gain_over(market.honest, trials);
        let name = |what: &str| format!("{}, {}: {what}", market.label, attack.name());
        rows.push(Measurement::plain(name("gain"), mean, "%"));
        rows.push(Measurement::at_most(name("upper bound of the gain"), upper, "%", GAIN_MAX));
    }
    Ok(rows)
}

/// Each scenario with all seeds.
pub(super) fn of_all_seeds(scenarios: &[Scenario], seeds: &BenchPay) -> Vec<(Scenario, u64)> {
    let all = || seeds.first_seed..seeds.first_seed + seeds.tasks;
    scenarios.iter().flat_map(|one| all().map(|seed| (one.clone(), seed))).collect()
}

/// A gain in percent of the honest earnings.
pub(super) struct Gain {
    /// Its mean over the seeds.
    pub(super) mean: f64,
    /// Its upper bound of 95 % (Student's t).
    pub(super) upper: f64,
}

/// The gain of the deviating members beyond their honest earnings with the same seeds.
fn gain_over(honest: &[Trial], trials: &[Trial]) -> Gain {
    let earned = |of: &[Trial]| of.iter().map(|one| one.earned_by(DEVIATING)).collect::<Vec<_>>();
    upper_bound_of(&earned(honest), &earned(trials))
}

/// The gain of some values beyond others with the same seeds, of whose mean it is a part.
pub(super) fn upper_bound_of(before: &[f64], after: &[f64]) -> Gain {
    let base = mean(before.iter().copied()).max(f64::MIN_POSITIVE);
    let gains: Vec<f64> =
        after.iter().zip(before).map(|(one, other)| (one - other) / base * 100.0).collect();
    let gain = mean(gains.iter().copied());
    Gain { mean: gain, upper: upper_bound(&gains).unwrap_or(f64::INFINITY) }
}
