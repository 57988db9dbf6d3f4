//! The second speed: a million members, whose scores are drawn from curves that were fitted to small real games.
//!
//! First the same scenario is really played with a few dozen members, by some seeds. From these games come a learning
//! [`Curve`], and for each group a [`GroupFit`] of what its updates score. Games of other seeds, with more updates in a
//! round than any that was fitted, say how far the curves can be trusted: the same small games are drawn from the curves,
//! and [`Fit::errors`] is the difference.
//!
//! What is real at any size is everything that follows from a score: who is excluded, the pay rule
//! ([`florin_protocol::pay_round`]) in the order of accounts, budgets, debits, and the rows that a bond still covers.
//! What is not run are training, the coordinator's engine and its messages, the ledger, and settlements with their
//! trees: payouts are added up account by account. Scores of one round are drawn independently of each other, and members
//! who adapt or have several identities are refused.

mod curve;
mod group;
mod people;
mod play;
mod small;

use std::collections::BTreeMap;
use std::sync::Arc;

use florin_contribution::NanoError;
use florin_protocol::{AmountError, PayError};
use serde::Serialize;

use crate::games::Watch;
use crate::measure::figures;
use crate::play::{Played, SimError};
use crate::results::{Results, honest_instead};
use crate::scenario::Scenario;

pub use curve::Curve;
pub use group::GroupFit;
use play::Surrogate;
use small::{Seen, earned, games};

/// Shares of the members that take part in a round of the games that curves are fitted to.
const PARTS: [f64; 2] = [0.25, 0.5];

/// The first seed of the small real games: whichever seeds are played, the curves are the same.
const FIRST: u64 = 1;

/// Why scores drawn from curves could not be paid: a fault of the laboratory.
#[derive(Debug, thiserror::Error)]
pub enum SurrogateError {
    /// The pay rule refused.
    #[error(transparent)]
    Pay(PayError),
    /// Amounts do not add up.
    #[error(transparent)]
    Amount(#[from] AmountError),
    /// A score that is no number.
    #[error(transparent)]
    Score(#[from] NanoError),
}

/// Curves, and how far they can be trusted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// How the loss falls.
    pub curve: Curve,
    /// What updates of each group score, in the order of the groups' names.
    pub groups: Vec<GroupFit>,
    /// The loss before the first round, in nats.
    pub loss_before: f64,
    /// Seeds that the curves were fitted to.
    pub seeds: Vec<u64>,
    /// Seeds that they were held against.
    pub held_out: Vec<u64>,
    /// Members of the small games, and their rounds.
    pub members: u32,
    /// Rounds of the small games: beyond them the curves are drawn on, and nothing was held against them.
    pub rounds: u32,
    /// How far the small games drawn from the curves are from the real ones of the held-out seeds.
    pub errors: Errors,
    /// The largest of these that is let pass.
    pub error_max: f64,
}

/// How far drawn games are from real ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Errors {
    /// Root of the mean squared difference of the losses, beside what all rounds take off them.
    pub loss: f64,
    /// The same of the share of right rows, as a share.
    pub accuracy: f64,
    /// Of each group its mean earnings, drawn less real, beside those of the group that really earned most.
    pub earned: BTreeMap<String, f64>,
    /// Florins paid for data, drawn less real, beside the real ones.
    pub spent: f64,
}

impl Errors {
    /// The largest of them, whatever its sign.
    #[must_use]
    pub fn largest(&self) -> f64 {
        let earned = self.earned.values().map(|error| error.abs());
        earned.fold(self.loss.max(self.accuracy).max(self.spent.abs()), f64::max)
    }
}

impl Fit {
    /// Whether the errors are within what is let pass.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.errors.largest() <= self.error_max
    }

    /// Fits curves to small real games, and holds them against others.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn new(scenario: &Scenario, threads: usize) -> Result<Self, SimError> {
        let (fitted, held) = plan(scenario);
        let all: Vec<(Scenario, u64)> = fitted.iter().chain(&held).cloned().collect();
        let mut played = games(&all, threads)?;
        let real = played.split_off(fitted.len());
        let seen: Vec<Seen> = played.into_iter().map(|(seen, _)| seen).collect();
        let curve = Curve::fit(&seen);
        let groups = scenario.population.len();
        let first = seen.iter().filter_map(|seen| seen.losses.first());
        let mut fit = Self {
            curve,
            groups: (0..groups).map(|at| GroupFit::of(at, &curve, &seen)).collect(),
            loss_before: first.sum::<f64>() / seen.len().max(1) as f64,
            seeds: seeds_of(&fitted),
            held_out: seeds_of(&held),
            members: held.first().map_or(0, |(small, _)| members(small)),
            rounds: held.first().map_or(0, |(small, _)| small.rounds),
            errors: Errors::default(),
            error_max: scenario.surrogate.error_max,
        };
        fit.errors = fit.held_against(&held, &real, threads)?;
        Ok(fit)
    }

    /// How far drawn games are from these real ones.
    fn held_against(
        &self,
        held: &[(Scenario, u64)],
        real: &[(Seen, Played)],
        threads: usize,
    ) -> Result<Errors, SimError> {
        let (mut loss, mut accuracy, mut points, mut fall) = (0.0, 0.0, 0.0, 0.0);
        let mut drawn = Vec::new();
        for ((small, seed), (seen, _)) in held.iter().zip(real) {
            let (game, losses) = Surrogate::begin(small, self, *seed, threads).play()?;
            for ((own, real), right) in losses.iter().zip(&seen.losses).zip(&seen.accuracies) {
                loss += (own - real).powi(2);
                accuracy += (self.curve.accuracy(*own) - right).powi(2);
                points += 1.0;
            }
            let ends = seen.losses.first().zip(seen.losses.last());
            fall += ends.map_or(0.0, |(first, last)| first - last) / held.len() as f64;
            drawn.push(game);
        }
        let real: Vec<Played> = real.iter().map(|(_, played)| played.clone()).collect();
        let (mine, theirs) = (earned(&drawn), earned(&real));
        let most = theirs.values().fold(f64::MIN_POSITIVE, |most, own| most.max(own.abs()));
        let of = |(name, real): (&String, &f64)| {
            (name.clone(), (mine.get(name).copied().unwrap_or_default() - real) / most)
        };
        let spent = |all: &[Played]| -> f64 {
            all.iter().flat_map(|game| &game.rounds).map(|round| round.spent).sum()
        };
        Ok(Errors {
            loss: (loss / points).sqrt() / fall.abs().max(f64::MIN_POSITIVE),
            accuracy: (accuracy / points).sqrt(),
            earned: theirs.iter().map(of).collect(),
            spent: spent(&drawn) / spent(&real).max(f64::MIN_POSITIVE) - 1.0,
        })
    }

    /// The same with another curve, held against the same games: what shows that a wrong one is told.
    #[cfg(test)]
    fn with_curve(&self, curve: Curve, scenario: &Scenario) -> Result<Self, SimError> {
        let (_, held) = plan(scenario);
        let real = games(&held, 1)?;
        let mut other = Self { curve, ..self.clone() };
        other.errors = other.held_against(&held, &real, 1)?;
        Ok(other)
    }
}

/// The small games that are fitted, and those that the fit is held against.
#[expect(clippy::type_complexity, reason = "two lists of one kind")]
fn plan(scenario: &Scenario) -> (Vec<(Scenario, u64)>, Vec<(Scenario, u64)>) {
    let surrogate = &scenario.surrogate;
    let seed = |at: u32| FIRST.saturating_add(u64::from(at));
    let fitted = (0..surrogate.seeds)
        .flat_map(|at| PARTS.map(|part| (small(scenario, part), seed(at))))
        .collect();
    let held = (0..surrogate.held_out)
        .map(|at| (small(scenario, 1.0), seed(surrogate.seeds.saturating_add(at))))
        .collect();
    (fitted, held)
}

/// The scenario at the size of a small real game in which such a part of the members works in a round.
pub(crate) fn small(scenario: &Scenario, part: f64) -> Scenario {
    small::small(scenario, part)
}

fn seeds_of(games: &[(Scenario, u64)]) -> Vec<u64> {
    let mut seeds: Vec<u64> = games.iter().map(|(_, seed)| *seed).collect();
    seeds.dedup();
    seeds
}

fn members(scenario: &Scenario) -> u32 {
    scenario.population.values().map(|group| group.count).sum()
}

/// Fits, and plays one seed of a scenario.
///
/// # Errors
/// [`SimError`].
pub fn play(scenario: &Scenario, seed: u64, threads: usize) -> Result<Played, SimError> {
    let fit = Fit::new(scenario, threads)?;
    Ok(Surrogate::begin(scenario, &fit, seed, threads).play()?.0)
}

/// Fits, and plays all seeds of a scenario; `watch` hears how many games are done, and of how many.
///
/// # Errors
/// [`SimError`].
pub fn run(scenario: &Scenario, threads: usize, watch: Watch<'_>) -> Result<Results, SimError> {
    let mut markets = vec![(None, Arc::new(scenario.clone()))];
    markets.extend(honest_instead(scenario).into_iter().map(|(at, changed)| (Some(at), changed)));
    let seeds = scenario.seeds;
    let all = markets.len() * seeds.count as usize;
    let (mut played, mut honest) = (Vec::new(), vec![BTreeMap::new(); seeds.count as usize]);
    let (mut fit, mut done) = (None, 0);
    watch(done, all);
    for (made_honest, market) in &markets {
        let own = Fit::new(market, threads)?;
        for (at, honest) in (0..u64::from(seeds.count)).zip(&mut honest) {
            let seed = seeds.first.wrapping_add(at);
            let (game, _) = Surrogate::begin(market, &own, seed, threads).play()?;
            match made_honest {
                None => played.push(game),
                Some(group) => drop(honest.insert(*group, game)),
            }
            done += 1;
            watch(done, all);
        }
        fit.get_or_insert(own);
    }
    let all = played.iter().zip(&honest).map(|(game, honest)| figures(game, honest)).collect();
    Ok(Results::of(scenario, played, all, fit))
}

#[cfg(test)]
mod tests;
