//! The small real games that a fit comes from, and what is seen in them.

use std::collections::BTreeMap;

use florin_protocol::Report;

use crate::parallel::each;
use crate::play::{Game, Played, SimError};
use crate::population::Population;
use crate::scenario::{Scenario, Speed};

/// Fewest members of a group in a small game: a group of fewer says nothing about its spread.
const GROUP_MIN: u32 = 4;
/// Fewest updates that a small game's round asks for, where the scenario asks for as many.
const COHORT_MIN: u32 = 2;

/// One update of a real round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    /// Whose, by its number.
    pub(super) member: usize,
    /// Its group.
    pub(super) group: usize,
    /// Rows that count for it.
    pub(super) rows: f64,
    /// Its part of the aggregate.
    pub(super) share: f64,
    /// Its score, in nats.
    pub(super) score: f64,
    /// One standard error of it.
    pub(super) error: f64,
    /// Whether it repeated another, and stood outside.
    pub(super) set_aside: bool,
}

/// One real round.
#[derive(Clone, Debug)]
pub(super) struct Round {
    /// The loss before it, on rows that nobody in the market sees, in nats.
    pub(super) loss: f64,
    /// Its updates.
    pub(super) updates: Vec<Update>,
}

/// One real game.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// The loss before the first round and after each, in nats.
    pub(super) losses: Vec<f64>,
    /// The same of the share of rows that the model gets right.
    pub(super) accuracies: Vec<f64>,
    /// Its rounds.
    pub(super) rounds: Vec<Round>,
    /// Updates of each round.
    pub(super) asked: Vec<f64>,
}

impl Seen {
    /// How many updates each round had.
    pub(super) fn updates(&self) -> Vec<f64> {
        self.asked.clone()
    }
}

/// The scenario at the size of a small game in which so many members of all take part in a round.
pub(super) fn small(scenario: &Scenario, part: f64) -> Scenario {
    let mut small = scenario.clone();
    small.speed = Speed::Real;
    small.pass.clear();
    let all: u64 = scenario.population.values().map(|group| u64::from(group.count)).sum();
    let wanted = f64::from(scenario.surrogate.members);
    let mut members = 0;
    for group in small.population.values_mut() {
        let share = f64::from(group.count) / all as f64;
        let count = ((share * wanted).round() as u32).max(GROUP_MIN);
        group.count = count.min(group.count);
        members += group.count;
    }
    small.task.cohort = ((f64::from(members) * part).round() as u32).max(2);
    // As large a part of the cohort, but no fewer than any round may have.
    let part = f64::from(small.task.cohort) / f64::from(scenario.task.cohort.max(1));
    let least = (f64::from(scenario.task.cohort_min) * part) as u32;
    small.task.cohort_min = small.task.cohort_min.min(least.max(COHORT_MIN));
    small.rounds = small.rounds.min(scenario.surrogate.rounds);
    small.learning.holdout_rows = small.learning.judged_rows.saturating_mul(small.rounds);
    small
}

/// Plays real games, each a scenario with a seed, on so many threads.
pub(super) fn games(
    all: &[(Scenario, u64)],
    threads: usize,
) -> Result<Vec<(Seen, Played)>, SimError> {
    let tasks: Vec<&(Scenario, u64)> = all.iter().collect();
    let played = each(threads, tasks, || (), |(), (scenario, seed)| game(scenario, *seed));
    played.into_iter().collect()
}

fn game(scenario: &Scenario, seed: u64) -> Result<(Seen, Played), SimError> {
    let mut game = Game::among(scenario, seed, Population::draw(scenario, seed)?)?;
    let (loss, accuracy) = game.standing()?;
    let mut seen = Seen {
        losses: vec![loss],
        accuracies: vec![accuracy],
        rounds: Vec::new(),
        asked: Vec::new(),
    };
    while game.opens()? {
        let before = seen.losses.last().copied().unwrap_or_default();
        game.round(1)?;
        game.look()?;
        let (loss, accuracy) = game.standing()?;
        seen.losses.push(loss);
        seen.accuracies.push(accuracy);
        let updates = game.report().map(|report| updates(&game, report)).unwrap_or_default();
        seen.asked.push(updates.iter().filter(|update| !update.set_aside).count() as f64);
        seen.rounds.push(Round { loss: before, updates });
    }
    Ok((seen, game.close()?))
}

/// A report's updates with their parts of the aggregate: over all of them for those that were kept out of it, over the
/// rest for the rest.
fn updates(game: &Game<'_>, report: &Report) -> Vec<Update> {
    let scores = report.valuation.iter().flat_map(|valuation| &valuation.scores);
    let scores: Vec<_> = scores.zip(&report.entries).collect();
    let counted = |only_kept: bool| -> f64 {
        let kept = scores.iter().filter(|(score, _)| score.treatment.repeats.is_none());
        let kept = kept.filter(|(score, _)| !only_kept || !score.excluded);
        kept.map(|(_, entry)| entry.rows_counted as f64).sum::<f64>().max(1.0)
    };
    let (all, rest) = (counted(false), counted(true));
    let update = |(score, entry): &(&florin_protocol::Scored, &florin_protocol::Entry)| {
        let (member, group) = game.owner_of(entry.sender)?;
        let set_aside = score.treatment.repeats.is_some();
        let rows = entry.rows_counted as f64;
        Some(Update {
            member,
            group,
            rows,
            share: rows / if score.excluded { all } else { rest },
            score: score.score_nano as f64 / 1e9,
            error: score.error_nano as f64 / 1e9,
            set_aside,
        })
    };
    scores.iter().filter_map(update).collect()
}

/// What the members of each group earned on average, in florins.
pub(super) fn earned(played: &[Played]) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for (game, member) in played.iter().flat_map(|game| game.members.iter().map(move |m| (game, m)))
    {
        let Some(name) = game.groups.get(member.group) else { continue };
        let (sum, count) = sums.entry(name.clone()).or_default();
        *sum += member.earned;
        *count += 1.0;
    }
    sums.into_iter().map(|(name, (sum, count))| (name, sum / count)).collect()
}
