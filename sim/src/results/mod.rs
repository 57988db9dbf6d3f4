//! Runs an experiment over all its seeds and holds its results.

mod figure;
mod files;
mod page;
mod parquet;
mod program;
mod replay;
mod sides;
mod sides_page;
mod table;

use std::sync::Arc;

use crate::games::{Halted, Wanted, Watch, play_all};
use crate::measure::{Figures, Key, Measured, figures, over_seeds};
use crate::play::Played;
use crate::scenario::{Bound, Rule, Scenario};
use crate::strategy::Strategy;
use crate::surrogate::Fitted;

pub use figure::{counted, ends, figure};
pub use files::{ATTACK, RESULTS, WriteError, try_folder};
pub(crate) use files::{put, put_table};
pub use program::{Game, Program, UNKNOWN};
pub use replay::{Difference, ReplayError, Replayed};
pub use sides::{Name, ReadError, Side};
pub use sides_page::{sides_page, sides_svg};
pub(crate) use table::Table;

/// The results of an experiment.
#[derive(Clone, Debug)]
pub struct Results {
    /// The scenario.
    pub scenario: Scenario,
    /// The outcome of every seed, in order.
    pub played: Vec<Played>,
    /// The measures of each seed.
    pub figures: Vec<Figures>,
    /// The means and confidence intervals of the measures.
    pub measures: Vec<Measured>,
    /// The results of the scenario's pass criteria.
    pub rules: Vec<Judged>,
    /// The fits from which a surrogate draws, the scenario's own market first; empty for a real
    /// simulation.
    pub fits: Vec<Fitted>,
}

/// The result of one pass criterion.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The criterion, as text.
    pub rule: String,
    /// The measured value; `None` if the experiment lacks the measure, or if the criterion needs a
    /// confidence bound and there is only one seed.
    pub value: Option<f64>,
    /// Whether the criterion holds.
    pub holds: bool,
    /// If it fails: the seed whose own value violates the criterion most; `None` if no seed has a
    /// value.
    pub worst: Option<u64>,
}

/// Simulates all seeds of a scenario on up to `threads` threads. `watch` receives the number of
/// finished simulations and the total.
///
/// # Errors
/// The first simulation that failed; no further simulation starts after it.
pub fn run(scenario: &Scenario, threads: usize, watch: Watch<'_>) -> Result<Results, Halted> {
    if !scenario.speed.is_real() {
        let halted = |error| Halted { seed: scenario.seeds.first, error };
        return crate::surrogate::run(scenario, threads, watch).map_err(halted);
    }
    let seeds = scenario.seeds;
    // Honest counterfactual: each dishonest group is also simulated as honest, with the same seeds.
    let as_it_is = Arc::new(scenario.clone());
    let honest = honest_instead(scenario);
    let mut games: Vec<Wanted> = Vec::new();
    for seed in seeds.all() {
        games.push((seed, Arc::clone(&as_it_is)));
        games.extend(honest.iter().map(|(_, changed)| (seed, Arc::clone(changed))));
    }
    let mut outcomes = play_all(games, threads, watch)?.into_iter();
    let (mut played, mut all) = (Vec::new(), Vec::<Figures>::new());
    while let Some(game) = outcomes.next() {
        let otherwise = honest.iter().map(|(group, _)| *group).zip(outcomes.by_ref());
        all.push(figures(&game, &otherwise.collect()));
        played.push(game);
    }
    Ok(Results::of(scenario, played, all, Vec::new()))
}

/// The honest counterfactuals of a scenario: for each dishonest group, its index among the group
/// names and the scenario with that group honest.
pub(crate) fn honest_instead(scenario: &Scenario) -> Vec<(usize, Arc<Scenario>)> {
    let others = scenario.population.iter().enumerate();
    let others = others.filter(|(_, (_, group))| !group.strategy.is_honest());
    let made_honest = |(at, (name, _)): (usize, (&String, _))| {
        let mut changed = scenario.clone();
        if let Some(group) = changed.population.get_mut(name) {
            group.strategy = Strategy::Honest;
        }
        (at, Arc::new(changed))
    };
    others.map(made_honest).collect()
}

impl Results {
    /// Summarises the outcomes and measures of all seeds.
    pub(crate) fn of(
        scenario: &Scenario,
        played: Vec<Played>,
        figures: Vec<Figures>,
        fits: Vec<Fitted>,
    ) -> Self {
        let measures = over_seeds(&figures);
        let (scenario, rules) = (scenario.clone(), Vec::new());
        let mut results = Self { scenario, played, figures, measures, rules, fits };
        results.rules = results.scenario.pass.iter().map(|rule| results.judge(rule)).collect();
        results
    }

    /// Whether every pass criterion holds and, for a surrogate, every fit too.
    #[must_use]
    pub fn hold(&self) -> bool {
        self.rules.iter().all(|judged| judged.holds) && self.fits_hold()
    }

    /// Whether every fit is within the permitted error, including those of the honest
    /// counterfactuals: a gain is the difference of two simulations.
    #[must_use]
    pub fn fits_hold(&self) -> bool {
        self.fits.iter().all(|fitted| fitted.fit.holds())
    }

    /// The summary of one measure over all seeds.
    #[must_use]
    pub fn measure(&self, measure: &str, group: Option<&str>) -> Option<&Measured> {
        self.measures.iter().find(|m| m.key.measure == measure && m.key.group.as_deref() == group)
    }

    fn judge(&self, rule: &Rule) -> Judged {
        let found = self.measure(&rule.measure, rule.group.as_deref());
        let value = found.and_then(|measured| match rule.of {
            Bound::Mean => Some(measured.interval.mean),
            Bound::Lower => measured.interval.low(),
            Bound::Upper => measured.interval.high(),
        });
        let holds = value.is_some_and(|value| beyond(rule, value) <= 0.0);
        let worst = if holds { None } else { self.worst(rule) };
        Judged { rule: words(rule), value, holds, worst }
    }

    /// The seed whose own value violates the criterion most, if a seed has a value.
    fn worst(&self, rule: &Rule) -> Option<u64> {
        let own = self.played.iter().zip(&self.figures).filter_map(|(played, figures)| {
            let of =
                |(key, _): &(&Key, &f64)| key.measure == rule.measure && key.group == rule.group;
            let (_, value) = figures.iter().find(of)?;
            Some((played.seed, beyond(rule, *value)))
        });
        let worst = own.max_by(|(a, x), (b, y)| x.total_cmp(y).then(b.cmp(a)));
        worst.map(|(seed, _)| seed)
    }
}

/// How far a value lies outside the criterion's bounds; zero or negative if it satisfies them.
fn beyond(rule: &Rule, value: f64) -> f64 {
    let below = rule.at_least.map_or(f64::NEG_INFINITY, |least| least - value);
    let above = rule.at_most.map_or(f64::NEG_INFINITY, |most| value - most);
    below.max(above)
}

/// The criterion as text.
fn words(rule: &Rule) -> String {
    let of = match rule.of {
        Bound::Mean => "",
        Bound::Lower => "lower bound of ",
        Bound::Upper => "upper bound of ",
    };
    let whose = rule.group.as_ref().map(|group| format!(" of {group}")).unwrap_or_default();
    let least = rule.at_least.map(|least| format!(" ≥ {least}")).unwrap_or_default();
    let most = rule.at_most.map(|most| format!(" ≤ {most}")).unwrap_or_default();
    format!("{of}{}{whose}{least}{most}", rule.measure)
}
