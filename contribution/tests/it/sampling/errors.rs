//! The error estimates of the samplers are close to the true errors.

use florin_contribution::{Coalition, RunOptions};

use super::{
    Any, errors, families, name, other_samplers, passes_min, run, shapley_samplers, values,
};
use crate::support::FnGame;

const SEEDS: u64 = 40;

/// A third of the coalitions of ten players, or the pilot and some rounds more.
fn budget(estimator: &Any) -> u64 {
    match name(estimator) {
        "stratified" => 450,
        "gtg-mended" | "owen" => 600,
        // Large weights at rare positions: with fewer samples the distribution is too skewed for
        // a normal interval.
        "beta-shapley" => 800,
        _ => 340,
    }
}

/// The share of true values within two reported errors, and the ratio of the reported to the true
/// errors, both over seeds and players.
fn judge(estimator: &Any, game: &mut dyn florin_contribution::Game) -> (f64, f64) {
    let wanted = values(&run(estimator, game, RunOptions::seeded(0).with_budget(1_024)));
    let (mut within, mut all, mut reported, mut true_squares) = (0_u32, 0_u32, 0.0, 0.0);
    for seed in 0..SEEDS {
        let found = run(estimator, game, RunOptions::seeded(seed).with_budget(budget(estimator)));
        let errors = errors(&found).expect("there are two samples or more");
        for ((value, error), wanted) in values(&found).iter().zip(&errors).zip(&wanted) {
            let off = (value - wanted).abs();
            within += u32::from(off <= 1.96 * error + 1e-12);
            all += 1;
            reported += error * error;
            true_squares += off * off;
        }
    }
    (f64::from(within) / f64::from(all), (reported / true_squares).sqrt())
}

#[test]
fn two_standard_errors_cover_the_true_value_in_most_cases() {
    let mut estimators = shapley_samplers();
    estimators.extend(other_samplers());
    for estimator in &estimators {
        for mut game in families(10, 21) {
            let (share, ratio) = judge(estimator, &mut game);
            println!("{:28} {share:.3} {ratio:.2}", name(estimator));
            let what = format!("{} in {game:?}: {share}, {ratio}", name(estimator));
            assert!(share >= 0.80, "too small: {what}");
            assert!((0.7..3.0).contains(&ratio), "far from the true error: {what}");
        }
    }
}

#[test]
fn one_sample_gives_no_standard_error() {
    for estimator in shapley_samplers().iter().chain(&other_samplers()) {
        let least = passes_min(estimator, 12);
        let mut game = FnGame(12, |c: &Coalition| (1.0 + c.mask() as f64).sqrt());
        let found = run(estimator, &mut game, RunOptions::seeded(1).with_budget(least));
        // Strata with one visit each have no variance either; some sizes of the complementary
        // pairs have one, but not all.
        assert_eq!(errors(&found), None, "{}", name(estimator));
    }
}

#[test]
fn errors_shrink_with_more_evaluations() {
    let mut estimators = shapley_samplers();
    estimators.extend(other_samplers());
    let total = |found: &florin_contribution::Valuation<usize>| -> f64 {
        errors(found).unwrap().iter().map(|error| error * error).sum()
    };
    for estimator in &estimators {
        let mut game = florin_contribution::games::SyntheticGame::saturating(16, 1);
        let budget = 2_000.max(2 * passes_min(estimator, 16));
        let few = total(&run(estimator, &mut game, RunOptions::seeded(6).with_budget(budget)));
        let many = total(&run(estimator, &mut game, RunOptions::seeded(6).with_budget(9 * budget)));
        // Nine times the samples: a third of the error, give or take.
        let ratio = (few / many).sqrt();
        assert!((2.0..6.0).contains(&ratio), "{}: {ratio}", name(estimator));
    }
}

#[test]
fn a_tolerance_needs_at_least_five_samples() {
    for estimator in shapley_samplers() {
        let mut game = FnGame(140, |c: &Coalition| c.len() as f64);
        let budget = RunOptions::seeded(1).with_tolerance(0.5).with_budget(100_000);
        let found = run(&estimator, &mut game, budget);
        let samples = found.remark.as_deref().and_then(|remark| remark.split(' ').next());
        let samples: u64 = samples.and_then(|samples| samples.parse().ok()).unwrap();
        assert!(samples >= 5, "{}: {:?}", name(&estimator), found.remark);
    }
}
