//! Limits, requests and rejections of the samplers.

use std::time::Duration;

use florin_contribution::games::SyntheticGame as Known;
use florin_contribution::{
    BetaShapley, Coalition, Game, GameError, Gtg, RunOptions, TruncatedMonteCarlo, Valuation,
    ValueCache,
};

use super::{
    Any, all_samplers, errors, name, other_samplers, passes_default, passes_min, remark, run,
    shapley_samplers, try_value, values,
};
use crate::support::FnGame;

#[test]
fn seed_and_budget_determine_the_result() {
    for estimator in all_samplers() {
        let mut game = Known::interaction(10, 3);
        let budget = 200.max(passes_min(&estimator, 10));
        let mut again =
            |seed| run(&estimator, &mut game, RunOptions::seeded(seed).with_budget(budget));
        let (first, second, other) = (again(5), again(5), again(6));
        assert_eq!(first, second, "{}", name(&estimator));
        assert_ne!(values(&first), values(&other), "{}", name(&estimator));
    }
}

#[test]
fn no_budget_is_exceeded_and_one_below_the_minimum_is_refused() {
    for players in [1, 2, 3, 4, 5, 6, 9, 13] {
        for estimator in all_samplers() {
            if name(&estimator) == "banzhaf-normalised" {
                continue; // fails if a few pairs sum to the wrong sign
            }
            let mut game = Known::interaction(players, 1);
            let least = passes_min(&estimator, players);
            for budget in [least, least + 1, least + 7, 2 * least, 3 * least + 5] {
                let found = run(&estimator, &mut game, RunOptions::seeded(7).with_budget(budget));
                let name = name(&estimator);
                assert!(found.evaluations <= budget, "{name} {players} {budget}");
                assert!(values(&found).iter().all(|value| value.is_finite()));
            }
            let refused =
                try_value(&estimator, &mut game, RunOptions::seeded(7).with_budget(least - 1));
            assert_eq!(refused.unwrap_err().code(), "BUDGET_TOO_SMALL");
        }
    }
}

#[test]
fn a_budget_is_used_up_to_the_last_sample() {
    for estimator in shapley_samplers().iter().chain(&other_samplers()) {
        let mut game = Known::saturating(14, 1);
        let found = run(estimator, &mut game, RunOptions::seeded(2).with_budget(3_000));
        // The largest sample is a cycle of guided orders, 14·13.
        assert!(found.evaluations > 3_000 - 182, "{} {}", name(estimator), found.evaluations);
        assert!(remark(&found).contains("budget"), "{}", remark(&found));
    }
}

#[test]
fn without_limits_samplers_stop_at_their_default() {
    for estimator in all_samplers() {
        let mut game = Known::saturating(12, 1);
        let found = run(&estimator, &mut game, RunOptions::seeded(2));
        match passes_default(&estimator, 12) {
            Some(default) => assert!(found.evaluations <= default, "{}", name(&estimator)),
            None => assert!(remark(&found).contains("running means"), "{}", remark(&found)),
        }
    }
}

fn relative_error(found: &Valuation<usize>) -> f64 {
    let norm = |of: &[f64]| of.iter().map(|x| x * x).sum::<f64>().sqrt();
    norm(&errors(found).unwrap()) / norm(&values(found))
}

#[test]
fn a_tolerance_stops_the_sampling_once_the_error_is_within_it() {
    for estimator in shapley_samplers().iter().chain(&other_samplers()) {
        let mut game = Known::saturating(16, 1);
        let found = run(estimator, &mut game, RunOptions::seeded(2).with_tolerance(0.05));
        assert!(relative_error(&found) <= 0.05, "{}", name(estimator));
        assert!(remark(&found).contains("tolerance"), "{}", remark(&found));
        assert!(found.evaluations < 20_000, "{} {}", name(estimator), found.evaluations);
    }
}

#[test]
fn at_the_time_limit_the_minimum_still_runs() {
    for estimator in all_samplers() {
        let mut game = Known::saturating(40, 1);
        let found =
            run(&estimator, &mut game, RunOptions::seeded(2).with_time_limit(Duration::ZERO));
        assert!(values(&found).iter().all(|value| *value != 0.0), "{}", name(&estimator));
        assert!(remark(&found).contains("the time limit"), "{}", remark(&found));
        let least = passes_min(&estimator, 40).max(600);
        assert!(found.evaluations <= least, "{} {}", name(&estimator), found.evaluations);
    }
}

#[test]
fn constant_and_exhausted_games_terminate() {
    for estimator in all_samplers() {
        let flat = run(&estimator, &mut FnGame(30, |_: &Coalition| 4.0), RunOptions::seeded(0));
        assert_eq!(values(&flat), [0.0; 30], "{}", name(&estimator));
    }
    // With player 0 the grand value is reached, so truncated walks soon contain no new
    // coalition, at any tolerance.
    let truncating: [Any; 2] =
        [Box::new(TruncatedMonteCarlo::default()), Box::new(Gtg::corrected())];
    for estimator in truncating {
        let mut game = FnGame(5, |c: &Coalition| f64::from(c.contains(0)) + 0.1 * c.len() as f64);
        let found = run(&estimator, &mut game, RunOptions::seeded(0).with_tolerance(1e-9));
        assert!(found.evaluations <= 32, "{}", remark(&found));
        let mut game = FnGame(12, |c: &Coalition| f64::from(c.contains(0)));
        let found = run(&estimator, &mut game, RunOptions::seeded(0).with_tolerance(1e-9));
        assert_eq!(values(&found)[0], 1.0, "{}", name(&estimator));
    }
}

#[test]
fn a_value_that_is_not_finite_is_refused() {
    for estimator in all_samplers() {
        for nonsense in [f64::NAN, f64::INFINITY] {
            let mut game = FnGame(
                6,
                move |c: &Coalition| {
                    if c.len() == 3 { nonsense } else { c.len() as f64 }
                },
            );
            let error = try_value(&estimator, &mut game, RunOptions::seeded(1)).unwrap_err();
            assert_eq!(error.code(), "VALUE_NOT_FINITE", "{}", name(&estimator));
        }
    }
}

#[test]
fn settings_stay_within_their_bounds() {
    for nonsense in [-0.1, 1.1, f64::NAN] {
        let refused = TruncatedMonteCarlo::with_tolerance(nonsense).unwrap_err();
        assert_eq!(refused.code(), "SETTING_OUT_OF_RANGE");
    }
    for nonsense in [0.0, -1.0, 1e4, f64::NAN] {
        assert!(
            BetaShapley::new(nonsense, 1.0).is_err() && BetaShapley::new(1.0, nonsense).is_err()
        );
    }
    for nonsense in [-1.0, f64::INFINITY, f64::NAN] {
        assert!(Gtg::corrected().with_thresholds(nonsense, 0.0).is_err());
        let refused = Gtg::as_published().with_thresholds(0.0, nonsense).unwrap_err();
        assert!(refused.to_string().contains("gtg-as-published"), "{refused}");
    }
}

/// A game that fails at a given evaluation, and counts its calls.
struct FailingGame {
    game: Known,
    evaluations_left: u64,
    asked: u64,
    calls: u64,
}

impl FailingGame {
    fn new(game: Known, evaluations_left: u64) -> Self {
        Self { game, evaluations_left, asked: 0, calls: 0 }
    }
}

impl Game for FailingGame {
    fn players(&self) -> usize {
        self.game.players()
    }

    fn value(&mut self, coalition: &Coalition) -> Result<f64, GameError> {
        Ok(self.values(std::slice::from_ref(coalition))?[0])
    }

    fn batch(&self) -> usize {
        256
    }

    fn values(&mut self, coalitions: &[Coalition]) -> Result<Vec<f64>, GameError> {
        self.asked += coalitions.len() as u64;
        self.calls += 1;
        if self.asked > self.evaluations_left {
            return Err(GameError::new("the evaluator failed"));
        }
        self.game.values(coalitions)
    }
}

#[test]
fn after_a_failure_the_cache_resumes_to_the_identical_valuation() {
    for estimator in all_samplers() {
        let game = Known::interaction(10, 3);
        let budget = 220.max(passes_min(&estimator, 10));
        let whole = run(&estimator, &mut game.clone(), RunOptions::seeded(5).with_budget(budget));
        let mut cache = ValueCache::new();
        let mut failing = FailingGame::new(game.clone(), 40);
        let again = RunOptions::seeded(5).with_budget(budget).with_cache(&mut cache);
        let error = try_value(&estimator, &mut failing, again);
        assert_eq!(error.unwrap_err().code(), "GAME_FAILED", "{}", name(&estimator));
        let known = cache.len() as u64;
        let mut healed = FailingGame::new(game, u64::MAX);
        let again = RunOptions::seeded(5).with_budget(budget).with_cache(&mut cache);
        let resumed = run(&estimator, &mut healed, again);
        assert_eq!(resumed, whole, "{}", name(&estimator));
        assert_eq!(healed.asked, whole.evaluations - known, "{}", name(&estimator));
    }
}

#[test]
fn samplers_evaluate_coalitions_in_batches() {
    for estimator in all_samplers() {
        let mut game = FailingGame::new(Known::saturating(16, 3), u64::MAX);
        let budget = 4_000;
        let found = run(&estimator, &mut game, RunOptions::seeded(5).with_budget(budget));
        let mean = game.asked / game.calls;
        match name(&estimator) {
            "gtg-as-published" => assert_eq!(mean, 1),
            // In parallel: one coalition per walk, fewer after truncation.
            "truncated-monte-carlo" | "gtg-mended" => assert!(mean >= 8, "{mean}"),
            other => assert!(mean >= 60, "{other} evaluates {mean} at a time"),
        }
        assert_eq!(game.asked, found.evaluations, "{}: no coalition twice", name(&estimator));
    }
}

#[test]
fn samplers_value_hundreds_of_players() {
    for estimator in all_samplers() {
        let players = if name(&estimator) == "stratified" { 150 } else { 200 };
        let mut game = Known::saturating(players, 3);
        let least = passes_min(&estimator, players);
        let found = run(&estimator, &mut game, RunOptions::seeded(5).with_budget(least));
        assert!(
            found.evaluations <= least && found.total > 0.5,
            "{} {} {}",
            name(&estimator),
            found.evaluations,
            found.total
        );
    }
}
