//! What came of an experiment: figures of one seed, and their means over all seeds with 95 % intervals.

mod statistics;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::play::{MemberOutcome, Played};

pub use statistics::{Ends, Interval, auroc, gini, interval, ratio, spearman};

/// Names a figure: which measure, and of which group; none for the whole market.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Key {
    /// The group.
    pub group: Option<String>,
    /// The measure.
    pub measure: &'static str,
}

/// Figures of one seed.
pub type Figures = BTreeMap<Key, f64>;

/// Every measure, and what it says.
pub const MEASURES: &[(&str, &str)] = &[
    ("profit", "florins a member has more at the end than at the beginning, after its costs"),
    ("earned", "the same before costs: pay less debits"),
    ("cost", "florins that its work cost a member"),
    ("gain", "profit of a member beyond what the same member, honest, makes in the same market"),
    ("rational", "share of the members whose profit is not below zero"),
    ("participation", "updates taken, for each time one was asked for"),
    ("refused", "share of a member's updates that were kept out of the model or set aside"),
    ("rounds", "rounds that ended with a settlement, of those that the task has"),
    ("points", "points of accuracy that the last model has more than the first"),
    ("returned", "florins of the budget that the buyer has back"),
    ("accuracy", "share of rows nobody in the market sees that the last model gets right"),
    ("improvement", "nats of loss that all rounds took off together"),
    ("spent", "florins paid for data"),
    ("spent_per_nat", "florins for a nat of improvement, all seeds together"),
    ("spent_per_point", "florins for a point of accuracy, all seeds together"),
    ("wasted", "share of what was paid that went to members who were not honest"),
    ("gini", "how unevenly pay is shared: 0 for equal pay, near 1 if one has all"),
    (
        "stability",
        "rank correlation of members' pay in the first and in the second half of the rounds",
    ),
    (
        "detection",
        "chance that a dishonest member scores below an honest one (area under the curve)",
    ),
    ("error", "standard error of a score beside the score, over all updates of honest members"),
    ("false_refusals", "share of honest members' updates that were kept out or set aside"),
    ("false_debits", "share of honest members' updates that took something from a bond"),
    ("backdoor", "share of marked rows that the last model takes for what a backdoor teaches"),
    ("balanced", "1 if no token was made or lost"),
];

/// Measures that are one measure over another: means over all seeds are divided, not seed by seed, because a seed in which
/// the model hardly moved would drown all others.
pub const RATIOS: &[(&str, &str, &str)] =
    &[("spent_per_nat", "spent", "improvement"), ("spent_per_point", "spent", "points")];

/// The figures of one seed. `honest` are the same market's outcomes with one group after the other made honest.
#[must_use]
pub fn figures(played: &Played, honest: &BTreeMap<usize, Played>) -> Figures {
    let mut all = Figures::new();
    let mut put = |group: Option<&String>, measure: &'static str, value: f64| {
        if value.is_finite() {
            all.insert(Key { group: group.cloned(), measure }, value);
        }
    };
    for (at, name) in played.groups.iter().enumerate() {
        let members: Vec<&MemberOutcome> =
            played.members.iter().filter(|member| member.group == at).collect();
        for (measure, value) in group_figures(&members) {
            put(Some(name), measure, value);
        }
        if let Some(otherwise) = honest.get(&at) {
            let same = otherwise.members.iter().filter(|member| member.group == at);
            let before = mean(same.map(MemberOutcome::profit));
            put(Some(name), "gain", mean(members.iter().map(|m| m.profit())) - before);
        }
    }
    for (measure, value) in market_figures(played) {
        put(None, measure, value);
    }
    all
}

fn group_figures(members: &[&MemberOutcome]) -> Vec<(&'static str, f64)> {
    let of = |figure: fn(&MemberOutcome) -> f64| mean(members.iter().map(|member| figure(member)));
    let share = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
    let taken: f64 = members.iter().map(|member| f64::from(member.rounds)).sum();
    let asked: f64 = members.iter().map(|member| f64::from(member.asked)).sum();
    let refused: f64 = members.iter().map(|member| f64::from(member.refused)).sum();
    vec![
        ("profit", of(MemberOutcome::profit)),
        ("earned", of(|member| member.earned)),
        ("cost", of(|member| member.cost)),
        ("rational", of(|member| f64::from(u8::from(member.profit() >= 0.0)))),
        ("participation", share(taken, asked)),
        ("refused", share(refused, taken)),
    ]
}

fn market_figures(played: &Played) -> Vec<(&'static str, f64)> {
    let accuracy = played.rounds.last().map_or(played.accuracy_before, |round| round.accuracy);
    let improvement: f64 = played.rounds.iter().map(|round| round.improvement).sum();
    let spent: f64 = played.rounds.iter().map(|round| round.spent).sum();
    let points = (accuracy - played.accuracy_before) * 100.0;
    let earned = |member: &MemberOutcome| member.earned.max(0.0);
    let (honest, others): (Vec<&MemberOutcome>, Vec<_>) =
        played.members.iter().partition(|member| member.honest);
    let sum = |members: &[&MemberOutcome]| members.iter().map(|m| earned(m)).sum::<f64>();
    let (to_honest, to_others) = (sum(&honest), sum(&others));
    let total = |of: fn(&MemberOutcome) -> f64| honest.iter().map(|member| of(member)).sum::<f64>();
    let updates = total(|member| f64::from(member.rounds));
    let refused = total(|member| f64::from(member.refused));
    let debited = total(|member| f64::from(member.debited));
    let score = |members: &[&MemberOutcome]| members.iter().map(|m| m.score).collect::<Vec<_>>();
    let mut all = vec![
        ("accuracy", accuracy),
        ("improvement", improvement),
        ("spent", spent),
        ("points", points),
        ("rounds", played.rounds.iter().filter(|round| round.settled).count() as f64),
        ("returned", played.returned),
        ("gini", gini(&played.members.iter().map(earned).collect::<Vec<_>>())),
        ("stability", stability(&played.members)),
        ("error", total(|member| member.error) / total(|member| member.score).max(0.0)),
        ("false_refusals", refused / updates),
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

/// Whether the same members earn most in both halves.
fn stability(members: &[MemberOutcome]) -> f64 {
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

/// A figure over all seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Which.
    #[serde(flatten)]
    pub key: Key,
    /// Its mean and 95 % interval.
    #[serde(flatten)]
    pub interval: Interval,
}

/// Every figure over the seeds that have it, and the ratios where what is below the line is positive beyond chance.
#[must_use]
pub fn over_seeds(all: &[Figures]) -> Vec<Measured> {
    let mut values: BTreeMap<&Key, Vec<f64>> = BTreeMap::new();
    for (key, value) in all.iter().flatten() {
        values.entry(key).or_default().push(*value);
    }
    let of_market = |measure: &'static str| {
        values.get(&Key { group: None, measure }).map(Vec::as_slice).unwrap_or_default()
    };
    let ratios = RATIOS.iter().filter_map(|(measure, above, below)| {
        let interval = ratio(of_market(above), of_market(below))?;
        Some(Measured { key: Key { group: None, measure }, interval })
    });
    let measured = |(key, values): (&&Key, &Vec<f64>)| Measured {
        key: (*key).clone(),
        interval: interval(values),
    };
    let mut measures: Vec<Measured> = values.iter().map(measured).chain(ratios).collect();
    measures.sort_by(|a, b| a.key.cmp(&b.key));
    measures
}
