//! An experiment over all its seeds, and what is kept of it.

mod files;
mod page;
mod plot;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use crate::measure::{Figures, Measured, figures, over_seeds};
use crate::parallel::each;
use crate::play::{Played, SimError, play};
use crate::scenario::{Bound, Rule, Scenario};
use crate::strategy::Strategy;
use crate::surrogate::Fit;

pub use files::WriteError;

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
    /// What a surrogate was drawn from; none where everybody really trained.
    pub fit: Option<Fit>,
}

/// A rule and what was held against it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// The rule, in words.
    pub rule: String,
    /// The figure; none where the experiment has no such measure.
    pub value: Option<f64>,
    /// Whether it holds.
    pub holds: bool,
}

/// Plays all seeds of a scenario on so many threads. `watch` hears how many games are done, and of how many.
///
/// # Errors
/// The first [`SimError`], by seed.
pub fn run(
    scenario: &Scenario,
    threads: usize,
    watch: &(dyn Fn(usize, usize) + Sync),
) -> Result<Results, SimError> {
    if !scenario.speed.is_real() {
        return crate::surrogate::run(scenario, threads, watch);
    }
    let seeds = scenario.seeds;
    // Each group that is not honest is played once more as if it were.
    let mut games: Vec<(u64, Option<usize>, Scenario)> = Vec::new();
    for seed in (0..u64::from(seeds.count)).map(|at| seeds.first.wrapping_add(at)) {
        games.push((seed, None, scenario.clone()));
        for (at, changed) in honest_instead(scenario) {
            games.push((seed, Some(at), changed));
        }
    }
    let (all, done) = (games.len(), AtomicUsize::new(0));
    let outcomes = each(
        threads,
        games,
        || (),
        |(), (seed, made_honest, scenario)| {
            // A game on each thread is faster than several threads in one game.
            let inner = (threads / all.max(1)).max(1);
            let played = play(&scenario, seed, inner);
            watch(done.fetch_add(1, Ordering::Relaxed).saturating_add(1), all);
            played.map(|played| (made_honest, played))
        },
    );
    let (mut played, mut honest) = (Vec::new(), Vec::<BTreeMap<usize, Played>>::new());
    for outcome in outcomes {
        match outcome? {
            (None, game) => {
                played.push(game);
                honest.push(BTreeMap::new());
            }
            (Some(at), game) => {
                if let Some(last) = honest.last_mut() {
                    last.insert(at, game);
                }
            }
        }
    }
    Ok(Results::of(scenario, played, &honest, None))
}

/// The scenario with each group that is not honest made so, one after the other, by its place among the names.
pub(crate) fn honest_instead(scenario: &Scenario) -> Vec<(usize, Scenario)> {
    let others = scenario.population.iter().enumerate();
    let others = others.filter(|(_, (_, group))| !group.strategy.is_honest());
    let made_honest = |(at, (name, _)): (usize, (&String, _))| {
        let mut changed = scenario.clone();
        if let Some(group) = changed.population.get_mut(name) {
            group.strategy = Strategy::Honest;
        }
        (at, changed)
    };
    others.map(made_honest).collect()
}

fn judge(rule: &Rule, measures: &[Measured]) -> Judged {
    let named = |m: &&Measured| m.key.measure == rule.measure && m.key.group == rule.group;
    let value = measures.iter().find(named).map(|measured| match rule.of {
        Bound::Mean => measured.interval.mean,
        Bound::Lower => measured.interval.low,
        Bound::Upper => measured.interval.high,
    });
    let holds = value.is_some_and(|value| {
        rule.at_least.is_none_or(|least| value >= least)
            && rule.at_most.is_none_or(|most| value <= most)
    });
    let of = match rule.of {
        Bound::Mean => "",
        Bound::Lower => "lower end of ",
        Bound::Upper => "upper end of ",
    };
    let whose = rule.group.as_ref().map(|group| format!(" of {group}")).unwrap_or_default();
    let least = rule.at_least.map(|least| format!(" ≥ {least}")).unwrap_or_default();
    let most = rule.at_most.map(|most| format!(" ≤ {most}")).unwrap_or_default();
    Judged { rule: format!("{of}{}{whose}{least}{most}", rule.measure), value, holds }
}

impl Results {
    /// Measures what was played. `honest` are the same markets with one group after the other made honest.
    pub(crate) fn of(
        scenario: &Scenario,
        played: Vec<Played>,
        honest: &[BTreeMap<usize, Played>],
        fit: Option<Fit>,
    ) -> Self {
        let figures: Vec<Figures> = played.iter().zip(honest).map(|(p, h)| figures(p, h)).collect();
        let measures = over_seeds(&figures);
        let rules = scenario.pass.iter().map(|rule| judge(rule, &measures)).collect();
        Self { scenario: scenario.clone(), played, figures, measures, rules, fit }
    }

    /// Whether every rule holds, and, of a surrogate, the fit.
    #[must_use]
    pub fn hold(&self) -> bool {
        self.rules.iter().all(|judged| judged.holds) && self.fit.as_ref().is_none_or(Fit::holds)
    }

    /// One figure over all seeds.
    #[must_use]
    pub fn measure(&self, measure: &str, group: Option<&str>) -> Option<&Measured> {
        self.measures.iter().find(|m| m.key.measure == measure && m.key.group.as_deref() == group)
    }
}
