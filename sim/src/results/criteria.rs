//! Pass criteria: the statistics of measures that an experiment must reach.

use serde_json::{Value, json};

use super::Program;
use crate::measure::{MeasureKey, MeasureSummary, MeasureValues};
use crate::scenario::{PassCriterion, Statistic};

/// The result of one pass criterion.
#[derive(Clone, Debug, PartialEq)]
pub struct CriterionResult {
    /// The criterion, as text.
    pub criterion: String,
    /// The measured value; `None` if the experiment lacks the measure, or if the criterion needs a
    /// confidence bound and there is only one seed.
    pub value: Option<f64>,
    /// Whether the value satisfies the criterion.
    pub verdict: Verdict,
    /// If it fails: the seed whose own value violates the criterion most; `None` if no seed has a
    /// value.
    pub worst_seed: Option<u64>,
}

/// Whether a pass criterion is satisfied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Passed,
    /// It is not, or the experiment lacks its measure.
    Failed,
    /// It is not, and the scenario states that this is known.
    Open,
    /// It bounds a confidence interval, but its measure has too few seeds for an interval.
    Undecided,
}

impl Verdict {
    /// Failed if a criterion fails, undecided if none fails and one is undecided. Open ones do not count.
    #[must_use]
    pub fn of(criteria: &[CriterionResult]) -> Self {
        let any = |verdict| criteria.iter().any(|judged| judged.verdict == verdict);
        if any(Self::Failed) {
            Self::Failed
        } else if any(Self::Undecided) {
            Self::Undecided
        } else {
            Self::Passed
        }
    }

    /// The JSON form: null if undecided.
    #[must_use]
    pub const fn passed(self) -> Option<bool> {
        match self {
            Self::Passed => Some(true),
            Self::Failed | Self::Open => Some(false),
            Self::Undecided => None,
        }
    }
}

/// The summary of one measure.
pub(crate) fn find_measure<'a>(
    measures: &'a [MeasureSummary],
    measure: &str,
    group: Option<&str>,
) -> Option<&'a MeasureSummary> {
    measures.iter().find(|m| m.key.measure == measure && m.key.group.as_deref() == group)
}

/// The results of all criteria, from the measures over all seeds and the values of each seed.
pub(crate) fn judge(
    criteria: &[PassCriterion],
    measures: &[MeasureSummary],
    seeds: &[(u64, &MeasureValues)],
) -> Vec<CriterionResult> {
    let one = |rule: &PassCriterion| {
        let found = find_measure(measures, &rule.measure, rule.group.as_deref());
        let value = found.and_then(|measured| match rule.statistic {
            Statistic::Mean => Some(measured.interval.mean),
            Statistic::Lower => measured.interval.low(),
            Statistic::Upper => measured.interval.high(),
        });
        let verdict = match value {
            Some(value) if violation(rule, value) <= 0.0 => Verdict::Passed,
            None if found.is_some() => Verdict::Undecided,
            Some(_) if rule.is_open => Verdict::Open,
            _ => Verdict::Failed,
        };
        let failed = matches!(verdict, Verdict::Failed | Verdict::Open);
        let worst_seed = if failed { worst_seed(rule, seeds) } else { None };
        CriterionResult { criterion: describe(rule), value, verdict, worst_seed }
    };
    criteria.iter().map(one).collect()
}

/// The results of criteria as JSON.
pub(crate) fn criteria_json(criteria: &[CriterionResult], program: &Program<'_>) -> Vec<Value> {
    let result = |judged: &CriterionResult| {
        json!({
            "criterion": judged.criterion,
            "value": judged.value,
            "passed": judged.verdict.passed(),
            "open": judged.verdict == Verdict::Open,
            "worst_run": judged.worst_seed.map(|seed| program.run_id(seed)),
        })
    };
    criteria.iter().map(result).collect()
}

/// The seed whose own value violates the criterion most, if a seed has a value.
fn worst_seed(rule: &PassCriterion, seeds: &[(u64, &MeasureValues)]) -> Option<u64> {
    let own = seeds.iter().filter_map(|(seed, figures)| {
        let of =
            |(key, _): &(&MeasureKey, &f64)| key.measure == rule.measure && key.group == rule.group;
        let (_, value) = figures.iter().find(of)?;
        Some((*seed, violation(rule, *value)))
    });
    let worst = own.max_by(|(a, x), (b, y)| x.total_cmp(y).then(b.cmp(a)));
    worst.map(|(seed, _)| seed)
}

/// How far a value lies outside the criterion's bounds; zero or negative if it satisfies them.
fn violation(rule: &PassCriterion, value: f64) -> f64 {
    let below = rule.at_least.map_or(f64::NEG_INFINITY, |least| least - value);
    let above = rule.at_most.map_or(f64::NEG_INFINITY, |most| value - most);
    below.max(above)
}

/// The criterion as text.
fn describe(rule: &PassCriterion) -> String {
    let of = match rule.statistic {
        Statistic::Mean => "",
        Statistic::Lower => "lower bound of ",
        Statistic::Upper => "upper bound of ",
    };
    let whose = rule.group.as_ref().map(|group| format!(" of {group}")).unwrap_or_default();
    let least = rule.at_least.map(|least| format!(" ≥ {least}")).unwrap_or_default();
    let most = rule.at_most.map(|most| format!(" ≤ {most}")).unwrap_or_default();
    format!("{of}{}{whose}{least}{most}", rule.measure)
}
