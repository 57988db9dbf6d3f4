//! An experiment over all its seeds, and what is kept of it.

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

/// What an experiment came to.
#[derive(Clone, Debug)]
pub struct Results {
    /// What was asked.
    pub scenario: Scenario,
    /// Every seed, in order.
    pub played: Vec<Played>,
    /// The figures of each.
    pub figures: Vec<Figures>,
    /// Their means and intervals.
    pub measures: Vec<Measured>,
    /// The scenario's rules, and whether they hold.
    pub rules: Vec<Judged>,
    /// What a surrogate was drawn from, the scenario's own market first; empty where everybody really trained.
    pub fits: Vec<Fitted>,
}

/// A rule and what was held against it.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The rule, in words.
    pub rule: String,
    /// The figure; none where the experiment has no such measure, or one seed only and the rule asks for an interval.
    pub value: Option<f64>,
    /// Whether it holds.
    pub holds: bool,
    /// Where it does not: the seed whose own figure is furthest on the wrong side; none where no seed has one.
    pub worst: Option<u64>,
}

/// Plays all seeds of a scenario on so many threads. `watch` hears how many games are done, and of how many.
///
/// # Errors
/// The first game that came to a halt; no other is begun after it.
pub fn run(scenario: &Scenario, threads: usize, watch: Watch<'_>) -> Result<Results, Halted> {
    if !scenario.speed.is_real() {
        let halted = |error| Halted { seed: scenario.seeds.first, error };
        return crate::surrogate::run(scenario, threads, watch).map_err(halted);
    }
    let seeds = scenario.seeds;
    // Each group that is not honest is played once more as if it were.
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

/// The scenario with each group that is not honest made so, one after the other, by its place among the names.
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
    /// What figures of so many games come to.
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

    /// Whether every rule holds, and, of a surrogate, every fit.
    #[must_use]
    pub fn hold(&self) -> bool {
        self.rules.iter().all(|judged| judged.holds) && self.fits_hold()
    }

    /// Whether every fit is within what is let pass, that of each honest counterpart too: a gain is the difference of two.
    #[must_use]
    pub fn fits_hold(&self) -> bool {
        self.fits.iter().all(|fitted| fitted.fit.holds())
    }

    /// One figure over all seeds.
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

    /// The seed whose own figure lies furthest on the wrong side of a rule's bounds, if any does.
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

/// How far a value lies beyond a rule's bounds; zero and less where it keeps them.
fn beyond(rule: &Rule, value: f64) -> f64 {
    let below = rule.at_least.map_or(f64::NEG_INFINITY, |least| least - value);
    let above = rule.at_most.map_or(f64::NEG_INFINITY, |most| value - most);
    below.max(above)
}

/// A rule in words.
fn words(rule: &Rule) -> String {
    let of = match rule.of {
        Bound::Mean => "",
        Bound::Lower => "lower end of ",
        Bound::Upper => "upper end of ",
    };
    let whose = rule.group.as_ref().map(|group| format!(" of {group}")).unwrap_or_default();
    let least = rule.at_least.map(|least| format!(" ≥ {least}")).unwrap_or_default();
    let most = rule.at_most.map(|most| format!(" ≤ {most}")).unwrap_or_default();
    format!("{of}{}{whose}{least}{most}", rule.measure)
}
