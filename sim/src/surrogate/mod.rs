//! The surrogate model: simulates up to a million members, whose scores are sampled from curves
//! fitted to small real simulations.
//!
//! First the same scenario is really simulated with a few dozen members and a few seeds. From these
//! simulations come a learning [`LearningCurve`], and for each group a [`ScoreModel`] of the scores of its
//! updates. Simulations of held-out seeds, with more updates per round than any fitted one,
//! validate the curves: the same small simulations are sampled from the curves, and [`Fit::errors`]
//! is the difference.
//!
//! Everything that follows from a score is real at any size: exclusion, the pay rule
//! ([`florin_protocol::pay_round`]) in the order of accounts, budgets, debits, and the rows that a
//! bond still covers. Training, the coordinator's engine with its messages, the ledger, and
//! settlements with their Merkle trees are not run: payouts are summed per account. Adaptive
//! members and members with several identities are not supported.

mod learning_curve;
mod least_squares;
mod members;
mod observation;
mod score_model;
mod simulation;
mod small_simulations;
mod variance;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::error::{SimError, SimulationFailed};
use crate::outcome::SimulationOutcome;
use crate::scenario::{Group, Scenario};

pub use learning_curve::{Knot, LearningCurve};
pub use score_model::ScoreModel;
pub(crate) use simulation::SurrogateSimulation;
use small_simulations::{SimulationObservations, mean_earnings, run_all};
pub use variance::VarianceComponents;

/// Fractions of the members in a cohort of the fitted simulations.
const COHORT_FRACTIONS: [f64; 2] = [0.25, 0.5];

/// Number of samples of each held-out simulation. The mean of all samples is compared with the real
/// simulation, so that the sampling error does not count as an error of the fit.
const SAMPLES_PER_SIMULATION: u32 = 16;
/// Distance between the seeds of these samples: more than the number of seeds of a scenario.
const SAMPLE_SEED_STRIDE: u64 = 1 << 40;

/// The first seed of the small real simulations: the curves do not depend on the scenario's seeds.
const FIRST: u64 = 1;

/// The fit of one market of an experiment: the scenario itself, or the counterfactual in which a
/// group is honest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MarketFit {
    /// The group that was made honest; `None` for the scenario itself.
    pub made_honest: Option<String>,
    /// The curves, validated on real simulations of the same market.
    #[serde(flatten)]
    pub fit: Fit,
    /// The lowest loss in any simulation sampled from them, in nats.
    pub lowest_loss: f64,
}

impl MarketFit {
    /// Whether simulations reached losses below those of all fitted ones. There the value of a
    /// round and the accuracy are extrapolated and not validated.
    #[must_use]
    pub fn extrapolates(&self) -> bool {
        self.lowest_loss < self.fit.curve.lowest_loss()
    }
}

/// Fitted curves and their errors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The learning curve.
    pub curve: LearningCurve,
    /// The score model of each group, in the order of the groups' names.
    pub groups: Vec<ScoreModel>,
    /// The loss before the first round, in nats.
    pub loss_before: f64,
    /// The training seeds, to which the curves were fitted.
    pub seeds: Vec<u64>,
    /// The held-out seeds, on which they were validated.
    pub held_out: Vec<u64>,
    /// Number of members of the small simulations.
    pub members: u32,
    /// Number of rounds of the small simulations: later rounds are extrapolated and not validated.
    pub rounds: u32,
    /// Errors of the sampled simulations against the real ones of the held-out seeds.
    pub errors: FitErrors,
    /// The largest permitted error.
    pub error_max: f64,
}

/// Errors of sampled simulations against real ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FitErrors {
    /// Root mean square error of the losses, relative to the total decrease of the loss.
    pub loss: f64,
    /// Root mean square error of the accuracy.
    pub accuracy: f64,
    /// Error of each group's mean earnings (sampled minus real), relative to the earnings of the
    /// group that really earns most.
    pub earned: BTreeMap<String, f64>,
    /// Relative error of the florins paid for data.
    pub spent: f64,
}

impl FitErrors {
    /// The largest absolute error; infinity if one is NaN.
    #[must_use]
    pub fn largest(&self) -> f64 {
        let all = [self.loss, self.accuracy, self.spent];
        let all = all.iter().chain(self.earned.values());
        all.fold(
            0.0,
            |most, error| if error.is_nan() { f64::INFINITY } else { error.abs().max(most) },
        )
    }
}

/// Relative error of a sampled amount; 1 if only the real amount is zero.
fn relative(drawn: f64, real: f64) -> f64 {
    match (drawn > 0.0, real > 0.0) {
        (_, true) => drawn / real - 1.0,
        (true, false) => 1.0,
        (false, false) => 0.0,
    }
}

impl Fit {
    /// Whether the errors are within the permitted limit.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.has_data() && self.errors.largest() <= self.error_max
    }

    /// Whether the small simulations had any update to fit.
    #[must_use]
    pub fn has_data(&self) -> bool {
        self.groups.iter().any(|group| group.updates > 0)
    }

    /// Fits curves to small real simulations, and validates them on held-out ones.
    ///
    /// # Errors
    /// The first simulation that failed.
    pub fn new(scenario: &Scenario, threads: usize) -> Result<Self, SimulationFailed> {
        let (fitted, held) = simulation_plan(scenario);
        let all: Vec<(Scenario, u64)> = fitted.iter().chain(&held).cloned().collect();
        let mut played = run_all(&all, threads)?;
        let real = played.split_off(fitted.len());
        let seen: Vec<SimulationObservations> = played.into_iter().map(|(seen, _)| seen).collect();
        let curve = LearningCurve::fit(&seen);
        let first = seen.iter().filter_map(|seen| seen.losses.first());
        let mut fit = Self {
            curve,
            groups: equivalent_groups(scenario)
                .iter()
                .map(|of| ScoreModel::fit(of, &curve, &seen))
                .collect(),
            loss_before: first.sum::<f64>() / seen.len().max(1) as f64,
            seeds: seeds_of(&fitted),
            held_out: seeds_of(&held),
            members: held.first().map_or(0, |(small, _)| members(small)),
            rounds: held.first().map_or(0, |(small, _)| small.rounds),
            errors: FitErrors::default(),
            error_max: scenario.surrogate.error_max,
        };
        fit.errors = fit.validate(&held, &real, threads)?;
        Ok(fit)
    }

    /// Errors of sampled simulations against these real ones.
    fn validate(
        &self,
        held: &[(Scenario, u64)],
        real: &[(SimulationObservations, SimulationOutcome)],
        threads: usize,
    ) -> Result<FitErrors, SimulationFailed> {
        let (mut loss, mut accuracy, mut points, mut fall) = (0.0, 0.0, 0.0, 0.0);
        let mut drawn = Vec::new();
        for ((small, seed), (seen, _)) in held.iter().zip(real) {
            for draw in 0..u64::from(SAMPLES_PER_SIMULATION) {
                let seed = seed.wrapping_add(draw.wrapping_mul(SAMPLE_SEED_STRIDE));
                let game = SurrogateSimulation::new(small, self, seed, threads).run();
                let (game, losses) =
                    game.map_err(|error| SimulationFailed { seed, error: error.into() })?;
                for ((own, real), right) in losses.iter().zip(&seen.losses).zip(&seen.accuracies) {
                    loss += (own - real).powi(2);
                    accuracy += (self.curve.accuracy(*own) - right).powi(2);
                    points += 1.0;
                }
                drawn.push(game);
            }
            let ends = seen.losses.first().zip(seen.losses.last());
            fall += ends.map_or(0.0, |(first, last)| first - last) / held.len() as f64;
        }
        let real: Vec<SimulationOutcome> = real.iter().map(|(_, played)| played.clone()).collect();
        let (mine, theirs) = (mean_earnings(&drawn), mean_earnings(&real));
        let most = theirs.values().fold(f64::MIN_POSITIVE, |most, own| most.max(own.abs()));
        let of = |(name, real): (&String, &f64)| {
            (name.clone(), (mine.get(name).copied().unwrap_or_default() - real) / most)
        };
        let spent = |all: &[SimulationOutcome]| -> f64 {
            all.iter().flat_map(|game| &game.rounds).map(|round| round.spent).sum()
        };
        Ok(FitErrors {
            loss: (loss / points).sqrt() / fall.abs().max(f64::MIN_POSITIVE),
            accuracy: (accuracy / points).sqrt(),
            earned: theirs.iter().map(of).collect(),
            spent: relative(spent(&drawn) / f64::from(SAMPLES_PER_SIMULATION), spent(&real)),
        })
    }

    /// The same fit with another curve, validated on the same simulations: shows that validation
    /// detects a wrong curve.
    #[cfg(test)]
    fn with_curve(
        &self,
        curve: LearningCurve,
        scenario: &Scenario,
    ) -> Result<Self, SimulationFailed> {
        let (_, held) = simulation_plan(scenario);
        let real = run_all(&held, 1)?;
        let mut other = Self { curve, ..self.clone() };
        other.errors = other.validate(&held, &real, 1)?;
        Ok(other)
    }
}

/// For each group the groups with the same strategy and the same kind of rows: their updates follow
/// one distribution, and more updates give a better estimate.
fn equivalent_groups(scenario: &Scenario) -> Vec<Vec<usize>> {
    let groups: Vec<&Group> = scenario.population.values().collect();
    let like = |one: &Group, other: &Group| {
        one.strategy == other.strategy
            && one.label_skew == other.label_skew
            && one.label_noise == other.label_noise
    };
    let of = |one: &&Group| {
        let all = groups.iter().enumerate();
        all.filter(|(_, other)| like(one, other)).map(|(at, _)| at).collect()
    };
    groups.iter().map(of).collect()
}

/// The small simulations for fitting, and those for validation.
#[expect(clippy::type_complexity, reason = "two lists of one kind")]
fn simulation_plan(scenario: &Scenario) -> (Vec<(Scenario, u64)>, Vec<(Scenario, u64)>) {
    let surrogate = &scenario.surrogate;
    let seed = |at: u32| FIRST.saturating_add(u64::from(at));
    let fitted = (0..surrogate.training_seeds)
        .flat_map(|at| COHORT_FRACTIONS.map(|part| (scenario.scaled_down(part), seed(at))))
        .collect();
    let held = (0..surrogate.held_out)
        .map(|at| (scenario.scaled_down(1.0), seed(surrogate.training_seeds.saturating_add(at))))
        .collect();
    (fitted, held)
}

fn seeds_of(games: &[(Scenario, u64)]) -> Vec<u64> {
    let mut seeds: Vec<u64> = games.iter().map(|(_, seed)| *seed).collect();
    seeds.dedup();
    seeds
}

fn members(scenario: &Scenario) -> u32 {
    scenario.population.values().map(|group| group.count).sum()
}

/// Fits the curves and simulates one seed of a scenario.
///
/// # Errors
/// [`SimError`].
pub fn play(scenario: &Scenario, seed: u64, threads: usize) -> Result<SimulationOutcome, SimError> {
    let fit = Fit::new(scenario, threads).map_err(|failed| failed.error)?;
    Ok(SurrogateSimulation::new(scenario, &fit, seed, threads).run()?.0)
}

#[cfg(test)]
mod tests;
