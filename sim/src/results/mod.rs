//! The results of an experiment, and the files and pages that show them.

mod comparison_page;
mod device_page;
mod files;
mod findings;
mod loaded;
mod number_format;
mod page;
#[cfg(feature = "parquet")]
mod parquet;
mod replay;
mod table;

use crate::measure::{MeasureKey, MeasureSummary, MeasureValues, summarise_seeds};
use crate::outcome::SimulationOutcome;
use crate::scenario::{PassCriterion, Scenario, Statistic};
use crate::surrogate::MarketFit;

pub use crate::program::{Program, RunId, UNKNOWN};
pub use comparison_page::{comparison_page, comparison_svg};
pub use files::{RESULTS, SEARCH, WriteError, check_writable};
pub(crate) use files::{write_file, write_table};
pub use findings::Finding;
pub use florin_charts::format_number;
pub use loaded::{LoadedResults, MeasureName, ReadError};
pub use number_format::{format_bounds, format_count};
pub use replay::{ReplayError, ReplayMismatch, ReplayReport};
pub(crate) use table::ResultTable;

/// The results of an experiment.
#[derive(Clone, Debug)]
pub struct Results {
    /// The scenario.
    pub scenario: Scenario,
    /// The outcome of every seed, in order.
    pub outcomes: Vec<SimulationOutcome>,
    /// The measures of each seed.
    pub values: Vec<MeasureValues>,
    /// The means and confidence intervals of the measures.
    pub measures: Vec<MeasureSummary>,
    /// The results of the scenario's pass criteria.
    pub criteria: Vec<CriterionResult>,
    /// The fits from which a surrogate draws, the scenario's own market first; empty for a real
    /// simulation.
    pub fits: Vec<MarketFit>,
}

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
    /// It bounds a confidence interval, but its measure has too few seeds for an interval.
    Undecided,
}

impl Verdict {
    /// The JSON form: null if undecided.
    #[must_use]
    pub const fn passed(self) -> Option<bool> {
        match self {
            Self::Passed => Some(true),
            Self::Failed => Some(false),
            Self::Undecided => None,
        }
    }
}

impl Results {
    /// Summarises the outcomes and measures of all seeds.
    pub(crate) fn from_outcomes(
        scenario: &Scenario,
        played: Vec<SimulationOutcome>,
        figures: Vec<MeasureValues>,
        fits: Vec<MarketFit>,
    ) -> Self {
        let measures = summarise_seeds(&figures);
        let (scenario, rules) = (scenario.clone(), Vec::new());
        let mut results =
            Self { scenario, outcomes: played, values: figures, measures, criteria: rules, fits };
        results.criteria =
            results.scenario.criteria.iter().map(|rule| results.evaluate(rule)).collect();
        results
    }

    /// Failed if a pass criterion or, for a surrogate, a fit fails; undecided if nothing fails but
    /// a criterion is undecided.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let any = |verdict| self.criteria.iter().any(|judged| judged.verdict == verdict);
        if any(Verdict::Failed) || !self.fits_hold() {
            Verdict::Failed
        } else if any(Verdict::Undecided) {
            Verdict::Undecided
        } else {
            Verdict::Passed
        }
    }

    /// Whether every fit is within the permitted error, including those of the honest
    /// counterfactuals: a gain is the difference of two simulations.
    #[must_use]
    pub fn fits_hold(&self) -> bool {
        self.fits.iter().all(|fitted| fitted.fit.holds())
    }

    /// The summary of one measure over all seeds.
    #[must_use]
    pub fn measure(&self, measure: &str, group: Option<&str>) -> Option<&MeasureSummary> {
        self.measures.iter().find(|m| m.key.measure == measure && m.key.group.as_deref() == group)
    }

    fn evaluate(&self, rule: &PassCriterion) -> CriterionResult {
        let found = self.measure(&rule.measure, rule.group.as_deref());
        let value = found.and_then(|measured| match rule.statistic {
            Statistic::Mean => Some(measured.interval.mean),
            Statistic::Lower => measured.interval.low(),
            Statistic::Upper => measured.interval.high(),
        });
        let verdict = match value {
            Some(value) if violation(rule, value) <= 0.0 => Verdict::Passed,
            None if found.is_some() => Verdict::Undecided,
            _ => Verdict::Failed,
        };
        let failed = verdict == Verdict::Failed;
        let worst_seed = if failed { self.worst_seed(rule) } else { None };
        CriterionResult { criterion: describe(rule), value, verdict, worst_seed }
    }

    /// The seed whose own value violates the criterion most, if a seed has a value.
    fn worst_seed(&self, rule: &PassCriterion) -> Option<u64> {
        let own = self.outcomes.iter().zip(&self.values).filter_map(|(played, figures)| {
            let of = |(key, _): &(&MeasureKey, &f64)| {
                key.measure == rule.measure && key.group == rule.group
            };
            let (_, value) = figures.iter().find(of)?;
            Some((played.seed, violation(rule, *value)))
        });
        let worst = own.max_by(|(a, x), (b, y)| x.total_cmp(y).then(b.cmp(a)));
        worst.map(|(seed, _)| seed)
    }
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
