//! Measures of an experiment: their values for one seed, and their means over all seeds with 95 %
//! confidence intervals.

mod statistics;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::devices::{DeviceRound, DeviceVerdict};
use crate::outcome::{MemberOutcome, SimulationOutcome};

pub use statistics::{
    ConfidenceBounds, ConfidenceInterval, auroc, confidence_interval, gini, mean_and_error, ratio,
    spearman, upper_bound,
};

/// Identifies a measured value: the measure and the group; no group for the whole market.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct MeasureKey {
    /// The group.
    pub group: Option<String>,
    /// The measure.
    pub measure: &'static str,
}

/// The values of all measures for one seed.
pub type MeasureValues = BTreeMap<MeasureKey, f64>;

/// Every measure with its description.
pub const MEASURES: &[(&str, &str)] = &[
    ("profit", "increase of a member's balance over the task minus its costs, in florins"),
    ("earned", "the same without costs: pay minus debits, in florins"),
    ("earned_per_row", "pay minus debits for each row of the group's members, in florins"),
    ("cost", "cost of a member's work, in florins"),
    ("gain", "profit minus the honest counterfactual: the same member, honest, in the same market"),
    ("rational", "fraction of the members with a non-negative profit"),
    ("participation", "accepted updates per selection into a cohort"),
    (
        "rejected",
        "fraction of a member's updates that were excluded or rejected as near-duplicates",
    ),
    ("rounds", "rounds of the task that ended with a settlement"),
    (
        "accuracy_gain",
        "increase of accuracy from the initial to the final model, in percentage points",
    ),
    ("unspent", "unspent budget that the buyer received back, in florins"),
    ("accuracy", "accuracy of the final model on test rows that no participant sees"),
    ("improvement", "decrease of the loss over all rounds, in nats"),
    ("spent", "paid for data, in florins"),
    ("spent_per_nat", "florins per nat of improvement, a ratio of means over all seeds"),
    (
        "spent_per_accuracy_point",
        "florins per percentage point of accuracy, a ratio of means over all seeds",
    ),
    ("wasted", "fraction of the pay that went to dishonest members"),
    ("gini", "Gini coefficient of the pay: 0 for equal pay, near 1 if one member earns everything"),
    (
        "pay_rank_correlation",
        "rank correlation of members' pay in the first and in the second half of the rounds",
    ),
    (
        "detection",
        "probability that a dishonest member scores below an honest one (area under the ROC curve)",
    ),
    (
        "relative_standard_error",
        "sum of standard errors divided by sum of scores, over all updates of honest members",
    ),
    (
        "false_rejections",
        "fraction of honest members' updates that were excluded or rejected as near-duplicates",
    ),
    ("false_debits", "fraction of honest members' updates that led to a debit"),
    (
        "backdoor",
        "fraction of triggered rows that the final model assigns to the backdoor's target class",
    ),
    (
        "late",
        "trainings that were too late for every round that could count them, per selection into a \
         cohort",
    ),
    ("too_small", "fraction of members whose devices have too little memory for a step"),
    (
        "round_seconds",
        "predicted seconds of a member's round by its devices, of members that hold a step",
    ),
    (ROUND_DURATION, "seconds from the offer of a round to its last update or deadline"),
    ("balanced", "1 if the total of all accounts equals the supply"),
];

/// The measure of the duration of rounds.
pub(crate) const ROUND_DURATION: &str = "round_duration";
/// Measures that exist only with devices; of them [`ROUND_DURATION`] has no group.
pub(crate) const DEVICE_MEASURES: [&str; 4] =
    ["late", "too_small", "round_seconds", ROUND_DURATION];

/// Measures that are ratios of two measures. The ratio of the means over all seeds is taken, not
/// the mean of the ratios, because a seed with almost no improvement would dominate a mean of
/// ratios.
pub const RATIOS: &[(&str, &str, &str)] = &[
    ("spent_per_nat", "spent", "improvement"),
    ("spent_per_accuracy_point", "spent", "accuracy_gain"),
];

/// The measures of one seed. `honest` maps a group to the counterfactual outcome of the same market
/// with that group made honest.
#[must_use]
pub fn measure_seed(
    played: &SimulationOutcome,
    honest: &BTreeMap<usize, SimulationOutcome>,
) -> MeasureValues {
    let mut all = MeasureValues::new();
    let mut put = |group: Option<&String>, measure: &'static str, value: f64| {
        if value.is_finite() {
            all.insert(MeasureKey { group: group.cloned(), measure }, value);
        }
    };
    for (at, name) in played.groups.iter().enumerate() {
        let members: Vec<&MemberOutcome> =
            played.members.iter().filter(|member| member.group == at).collect();
        for (measure, value) in group_measures(&members).into_iter().chain(times(&members)) {
            put(Some(name), measure, value);
        }
        if let Some(otherwise) = honest.get(&at) {
            let same = otherwise.members.iter().filter(|member| member.group == at);
            let before = mean(same.map(MemberOutcome::profit));
            put(Some(name), "gain", mean(members.iter().map(|m| m.profit())) - before);
        }
    }
    for (measure, value) in market_measures(played).into_iter().chain(device_measures(played)) {
        put(None, measure, value);
    }
    all
}

fn group_measures(members: &[&MemberOutcome]) -> Vec<(&'static str, f64)> {
    let of = |figure: fn(&MemberOutcome) -> f64| mean(members.iter().map(|member| figure(member)));
    let share = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
    let taken: f64 = members.iter().map(|member| f64::from(member.rounds)).sum();
    let selected: f64 = members.iter().map(|member| f64::from(member.selected)).sum();
    let rejected: f64 = members.iter().map(|member| f64::from(member.rejected)).sum();
    vec![
        ("profit", of(MemberOutcome::profit)),
        ("earned", of(|member| member.earned)),
        ("earned_per_row", earned_per_row(members.iter().copied())),
        ("cost", of(|member| member.cost)),
        ("rational", of(|member| f64::from(u8::from(member.profit() >= 0.0)))),
        ("participation", share(taken, selected)),
        ("rejected", share(rejected, taken)),
    ]
}

/// The measures of members with devices; none without devices.
fn times(members: &[&MemberOutcome]) -> Vec<(&'static str, f64)> {
    let rounds = || members.iter().filter_map(|member| member.devices);
    if rounds().next().is_none() {
        return Vec::new();
    }
    let selected: f64 = members.iter().map(|member| f64::from(member.selected)).sum();
    let late: f64 = members.iter().map(|member| f64::from(member.late)).sum();
    let is_small = |round: DeviceRound| round.verdict == DeviceVerdict::TooSmall;
    let seconds = rounds().map(|round| round.round_seconds).filter(|seconds| seconds.is_finite());
    vec![
        ("late", if selected > 0.0 { late / selected } else { 0.0 }),
        ("too_small", mean(rounds().map(|round| f64::from(u8::from(is_small(round)))))),
        ("round_seconds", mean(seconds)),
    ]
}

/// The measures of a market whose members have devices.
fn device_measures(played: &SimulationOutcome) -> Vec<(&'static str, f64)> {
    let all: Vec<&MemberOutcome> = played.members.iter().collect();
    let mut measures = times(&all);
    if !measures.is_empty() {
        let durations = played.rounds.iter().map(|round| round.duration_ms as f64 / 1e3);
        measures.push((ROUND_DURATION, mean(durations)));
    }
    measures
}

/// Pay minus debits of these members for each of their rows, in florins.
pub(crate) fn earned_per_row<'a>(members: impl Iterator<Item = &'a MemberOutcome>) -> f64 {
    let add = |(earned, rows): (f64, f64), member: &MemberOutcome| {
        (earned + member.earned, rows + member.rows as f64)
    };
    let (earned, rows) = members.fold((0.0, 0.0), add);
    earned / rows
}

fn market_measures(played: &SimulationOutcome) -> Vec<(&'static str, f64)> {
    let accuracy = played.rounds.last().map_or(played.accuracy_before, |round| round.accuracy);
    let improvement: f64 = played.rounds.iter().map(|round| round.improvement).sum();
    let spent: f64 = played.rounds.iter().map(|round| round.spent).sum();
    let accuracy_gain = (accuracy - played.accuracy_before) * 100.0;
    let earned = |member: &MemberOutcome| member.earned.max(0.0);
    let (honest, others): (Vec<&MemberOutcome>, Vec<_>) =
        played.members.iter().partition(|member| member.honest);
    let sum = |members: &[&MemberOutcome]| members.iter().map(|m| earned(m)).sum::<f64>();
    let (to_honest, to_others) = (sum(&honest), sum(&others));
    let total = |of: fn(&MemberOutcome) -> f64| honest.iter().map(|member| of(member)).sum::<f64>();
    let updates = total(|member| f64::from(member.rounds));
    let rejected = total(|member| f64::from(member.rejected));
    let debited = total(|member| f64::from(member.debited));
    let score = |members: &[&MemberOutcome]| members.iter().map(|m| m.score).collect::<Vec<_>>();
    let mut all = vec![
        ("accuracy", accuracy),
        ("improvement", improvement),
        ("spent", spent),
        ("accuracy_gain", accuracy_gain),
        ("rounds", played.rounds.iter().filter(|round| round.settled).count() as f64),
        ("unspent", played.returned),
        ("gini", gini(&played.members.iter().map(earned).collect::<Vec<_>>())),
        ("pay_rank_correlation", pay_rank_correlation(&played.members)),
        (
            "relative_standard_error",
            total(|member| member.error) / total(|member| member.score).max(0.0),
        ),
        ("false_rejections", rejected / updates),
        ("false_debits", debited / updates),
        ("backdoor", played.backdoor),
        ("balanced", f64::from(u8::from(played.balanced))),
    ];
    if !others.is_empty() {
        all.push(("wasted", to_others / (to_honest + to_others)));
        if let Some(area) = auroc(&score(&honest), &score(&others)) {
            all.push(("detection", area));
        }
    }
    all
}

/// Rank correlation of the members' pay between the first and the second half of the rounds.
fn pay_rank_correlation(members: &[MemberOutcome]) -> f64 {
    let half = |second: bool| -> Vec<f64> {
        let part = |member: &MemberOutcome| {
            let (first, last) = member.by_round.split_at(member.by_round.len() / 2);
            if second { last.iter().sum() } else { first.iter().sum() }
        };
        members.iter().map(part).collect()
    };
    spearman(&half(false), &half(true)).unwrap_or(f64::NAN)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { f64::NAN }
}

/// Measures from 0 to 1.
const FRACTIONS: [&str; 13] = [
    "rational",
    "participation",
    "rejected",
    "accuracy",
    "wasted",
    "gini",
    "detection",
    "false_rejections",
    "false_debits",
    "backdoor",
    "late",
    "too_small",
    "balanced",
];

/// A measure summarised over all seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasureSummary {
    /// The measure and its group.
    #[serde(flatten)]
    pub key: MeasureKey,
    /// Its mean and 95 % confidence interval.
    #[serde(flatten)]
    pub interval: ConfidenceInterval,
}

impl MeasureSummary {
    /// The interval with bounds that the measure can have, for display.
    #[must_use]
    pub fn shown_interval(&self) -> ConfidenceInterval {
        match self.key.measure {
            measure if FRACTIONS.contains(&measure) => self.interval.within((0.0, 1.0)),
            "pay_rank_correlation" => self.interval.within((-1.0, 1.0)),
            _ => self.interval,
        }
    }
}

/// Summarises every measure over the seeds that have it. A ratio is present only if its denominator
/// is significantly positive.
#[must_use]
pub fn summarise_seeds(all: &[MeasureValues]) -> Vec<MeasureSummary> {
    let mut values: BTreeMap<&MeasureKey, Vec<f64>> = BTreeMap::new();
    for (key, value) in all.iter().flatten() {
        values.entry(key).or_default().push(*value);
    }
    let of_market = |measure: &'static str| {
        values.get(&MeasureKey { group: None, measure }).map(Vec::as_slice).unwrap_or_default()
    };
    let ratios = RATIOS.iter().filter_map(|(measure, above, below)| {
        let interval = ratio(of_market(above), of_market(below))?;
        Some(MeasureSummary { key: MeasureKey { group: None, measure }, interval })
    });
    let measured = |(key, values): (&&MeasureKey, &Vec<f64>)| MeasureSummary {
        key: (*key).clone(),
        interval: confidence_interval(values),
    };
    let mut measures: Vec<MeasureSummary> = values.iter().map(measured).chain(ratios).collect();
    measures.sort_by(|a, b| a.key.cmp(&b.key));
    measures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fraction_is_a_measure() {
        for name in FRACTIONS {
            assert!(MEASURES.iter().any(|(measure, _)| *measure == name), "{name}");
        }
    }
}
