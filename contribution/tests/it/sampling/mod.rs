//! The sampling estimators.

mod errors;
mod limits;
mod truncation;
mod values;

use florin_contribution::games::SyntheticGame;
use florin_contribution::{
    AntitheticPermutation, Banzhaf, BetaShapley, ComplementaryContributions, Estimator, Game, Gtg,
    Owen, Permutation, RunOptions, Stratified, TruncatedMonteCarlo, Valuation, ValuationError,
    value,
};

/// Any estimator, for any game.
type Any = Box<dyn for<'a> Estimator<dyn Game + 'a>>;

fn untruncated_gtg() -> Gtg {
    Gtg::corrected().with_thresholds(0.0, 0.0).unwrap()
}

/// The unbiased estimators of the Shapley value (truncation disabled).
fn shapley_samplers() -> Vec<Any> {
    vec![
        Box::new(Permutation),
        Box::new(AntitheticPermutation),
        Box::new(Stratified),
        Box::new(ComplementaryContributions),
        Box::new(Owen),
        Box::new(TruncatedMonteCarlo::with_tolerance(0.0).unwrap()),
        Box::new(untruncated_gtg()),
        Box::new(BetaShapley::new(1.0, 1.0).unwrap()),
    ]
}

/// The estimators of other semivalues.
fn other_samplers() -> Vec<Any> {
    vec![
        Box::new(Banzhaf::default()),
        Box::new(Banzhaf::normalised()),
        Box::new(BetaShapley::new(4.0, 1.0).unwrap()),
        Box::new(BetaShapley::new(1.0, 16.0).unwrap()),
    ]
}

/// Every sampling estimator, including the biased ones.
fn all_samplers() -> Vec<Any> {
    let mut all = shapley_samplers();
    all.extend(other_samplers());
    all.push(Box::new(TruncatedMonteCarlo::default()));
    all.push(Box::new(Gtg::corrected()));
    all.push(Box::new(Gtg::as_published()));
    all
}

fn try_value(
    estimator: &Any,
    game: &mut dyn Game,
    run: RunOptions<'_>,
) -> Result<Valuation<usize>, ValuationError> {
    let ids: Vec<usize> = (0..game.players()).collect();
    value(estimator.as_ref(), game, &ids, run)
}

fn run(estimator: &Any, game: &mut dyn Game, run: RunOptions<'_>) -> Valuation<usize> {
    let name = name(estimator);
    try_value(estimator, game, run).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn name(estimator: &Any) -> &'static str {
    let estimator: &dyn Estimator<dyn Game> = estimator.as_ref();
    estimator.name()
}

fn passes_min(estimator: &Any, players: usize) -> u64 {
    let estimator: &dyn Estimator<dyn Game> = estimator.as_ref();
    estimator.passes_min(players)
}

fn passes_default(estimator: &Any, players: usize) -> Option<u64> {
    let estimator: &dyn Estimator<dyn Game> = estimator.as_ref();
    estimator.passes_default(players)
}

fn values(valuation: &Valuation<usize>) -> Vec<f64> {
    valuation.scores.iter().map(|score| score.value).collect()
}

fn errors(valuation: &Valuation<usize>) -> Option<Vec<f64>> {
    valuation.scores.iter().map(|score| score.estimator_error).collect()
}

fn remark(valuation: &Valuation<usize>) -> &str {
    valuation.remark.as_deref().expect("every sampler has a remark")
}

/// One game of each family.
fn families(players: usize, seed: u64) -> Vec<SyntheticGame> {
    vec![
        SyntheticGame::saturating(players, seed),
        SyntheticGame::coverage(players, seed),
        SyntheticGame::interaction(players, seed),
        SyntheticGame::voting(players, seed),
    ]
}

fn assert_close(got: &[f64], wanted: &[f64], within: f64, what: &str) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (got_one, wanted_one) in got.iter().zip(wanted) {
        assert!((got_one - wanted_one).abs() <= within, "{what}: {got:?} is not {wanted:?}");
    }
}
