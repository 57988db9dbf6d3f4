//! Our estimators on the same games.

use florin_contribution::games::TableGame;
use florin_contribution::{
    AntitheticPermutation, Banzhaf, ComplementaryContributions, Estimator, Exact, Gtg, KAdd,
    KernelShap, LeaveOneOut, LeverageShap, OddRegression, Owen, Permutation, RunOptions,
    Stratified, TruncatedMonteCarlo, value,
};

use super::clock;
use super::curve::{Curve, Trial, median, relative_error};
use super::games::{BenchGame, Instance};

/// An estimator stops when its median error is below this value.
const ENOUGH: f64 = 0.002;
/// Prefix of the names of our estimators.
pub(super) const OURS: &str = "Florin";

/// An estimator with its name in tables and plots.
pub(super) struct Named {
    /// `Florin …`.
    pub(super) name: String,
    /// The estimator.
    pub(super) estimator: Box<dyn Estimator<TableGame>>,
}

/// All estimators that need only coalition values.
pub(super) fn all_estimators() -> anyhow::Result<Vec<Named>> {
    let all: Vec<(&str, Box<dyn Estimator<TableGame>>)> = vec![
        ("odd", Box::new(OddRegression)),
        ("LeverageSHAP", Box::new(LeverageShap)),
        ("KernelSHAP, paired", Box::new(KernelShap)),
        ("kADD k=2", Box::new(KAdd::with_order(2)?)),
        ("kADD k=3", Box::new(KAdd::with_order(3)?)),
        ("permutation", Box::new(Permutation)),
        ("antithetic permutation", Box::new(AntitheticPermutation)),
        ("stratified", Box::new(Stratified)),
        ("complementary contributions", Box::new(ComplementaryContributions)),
        ("Owen", Box::new(Owen)),
        ("truncated (TMC)", Box::new(TruncatedMonteCarlo::default())),
        ("GTG as published", Box::new(Gtg::as_published())),
        ("GTG corrected", Box::new(Gtg::corrected())),
        ("Banzhaf, normalised", Box::new(Banzhaf::normalised())),
        ("leave-one-out", Box::new(LeaveOneOut)),
        ("exact", Box::new(Exact)),
    ];
    Ok(all
        .into_iter()
        .map(|(name, estimator)| Named { name: format!("{OURS} {name}"), estimator })
        .collect())
}

/// One estimate and its error; `None` if the budget is too small for the estimator.
pub(super) fn trial(
    estimator: &dyn Estimator<TableGame>,
    instance: &Instance,
    budget: u64,
) -> anyhow::Result<Option<Trial>> {
    let players = instance.exact.len();
    let too_many = estimator.players_max().is_some_and(|most| players > most);
    if too_many || budget < estimator.passes_min(players) {
        return Ok(None);
    }
    let ids: Vec<usize> = (0..players).collect();
    let mut game = instance.table.clone();
    let begun = clock::seconds();
    let found =
        value(estimator, &mut game, &ids, RunOptions::seeded(instance.seed).with_budget(budget))?;
    let seconds = clock::seconds() - begun;
    let values: Vec<f64> = found.scores.iter().map(|score| score.value).collect();
    Ok(Some(Trial {
        budget,
        instance: 0,
        evaluations: found.evaluations,
        error: relative_error(&values, &instance.exact),
        seconds,
    }))
}

/// One estimator on all instances of a game, over increasing budgets, until it is accurate enough
/// or its time is over.
pub(super) fn curve(named: &Named, game: &BenchGame, seconds_max: f64) -> anyhow::Result<Curve> {
    let begun = clock::seconds();
    let mut trials = Vec::new();
    'budgets: for &budget in &game.budgets {
        let from = trials.len();
        for (at, instance) in game.instances.iter().enumerate() {
            if clock::seconds() - begun > seconds_max {
                break 'budgets;
            }
            if let Some(found) = trial(named.estimator.as_ref(), instance, budget)? {
                trials.push(Trial { instance: at, ..found });
            }
        }
        let errors = trials[from..].iter().map(|trial| trial.error);
        if median(errors).is_some_and(|error| error < ENOUGH) {
            break;
        }
    }
    Ok(Curve::from_trials(&named.name, &game.name, &trials, game.instances.len()))
}
