//! The results of an experiment, and the files and pages that show them.

mod comparison_page;
mod criteria;
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

use serde::Serialize;

use crate::measure::{MeasureSummary, MeasureValues, summarise_seeds};
use crate::outcome::SimulationOutcome;
use crate::scenario::{Scenario, Selector};
use crate::surrogate::MarketFit;

pub use crate::program::{Program, RunId, UNKNOWN};
pub use comparison_page::{comparison_page, comparison_svg};
pub use criteria::{CriterionResult, Verdict};
pub(crate) use criteria::{criteria_json, find_measure, judge};
pub use files::{RESULTS, SEARCH, WriteError, check_writable};
pub(crate) use files::{measures_table, seeds_table, write_file, write_table};
pub use findings::Finding;
pub use florin_charts::format_number;
pub use loaded::{LoadedResults, MeasureName, ReadError};
pub use number_format::{format_bounds, format_count};
pub(crate) use page::{criteria_html, measures_html};
pub use replay::{ReplayError, ReplayMismatch, ReplayReport};
pub(crate) use table::ResultTable;

/// The rounds of an experiment whose scenario has a selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SelectorRounds {
    /// The selector.
    pub selector: Selector,
    /// Number of rounds of all seeds.
    pub rounds: usize,
    /// How many of them had fewer members to select than `cohort_min`, so that the market's cohort was
    /// asked.
    pub market_cohorts: u32,
}

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
        let seeds = results.outcomes.iter().zip(&results.values);
        let seeds: Vec<_> = seeds.map(|(played, values)| (played.seed, values)).collect();
        results.criteria = judge(&results.scenario.criteria, &results.measures, &seeds);
        results
    }

    /// Failed if a pass criterion or, for a surrogate, a fit fails; undecided if nothing fails but
    /// a criterion is undecided.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if self.fits_hold() { Verdict::of(&self.criteria) } else { Verdict::Failed }
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
        find_measure(&self.measures, measure, group)
    }

    /// The rounds of the scenario's selector; `None` without one.
    #[must_use]
    pub fn selector_rounds(&self) -> Option<SelectorRounds> {
        let selector = self.scenario.task.selector?;
        let rounds = self.outcomes.iter().map(|outcome| outcome.rounds.len()).sum();
        let market_cohorts = self.outcomes.iter().map(|outcome| outcome.market_cohorts).sum();
        Some(SelectorRounds { selector, rounds, market_cohorts })
    }
}
