//! LeverageSHAP, paired KernelSHAP and kADD-SHAP against enumeration, textbook games and failures.

use std::time::Duration;

use florin_contribution::games::{SyntheticGame, TableGame};
use florin_contribution::{
    Coalition, Estimator, Game, GameError, KAdd, KernelShap, LeverageShap, RunOptions, Valuation,
    ValuationError, ValueCache, value,
};

use crate::support;

type Any = Box<dyn Estimator<dyn Game>>;

fn regressions() -> Vec<Any> {
    let pairs_only = KAdd::with_order(2).unwrap();
    vec![
        Box::new(LeverageShap),
        Box::new(KernelShap),
        Box::new(pairs_only),
        Box::new(KAdd::default()),
    ]
}

fn ids(players: usize) -> Vec<usize> {
    (0..players).collect()
}

fn valued(
    estimator: &Any,
    game: &mut (dyn Game + 'static),
    run: RunOptions<'_>,
) -> Valuation<usize> {
    let ids = ids(game.players());
    value(estimator.as_ref(), game, &ids, run).unwrap()
}

fn distance(valuation: &Valuation<usize>, exact: &[f64]) -> f64 {
    let squares = valuation.scores.iter().zip(exact).map(|(s, x)| (s.value - x).powi(2));
    let size: f64 = exact.iter().map(|x| x * x).sum();
    (squares.sum::<f64>() / size).sqrt()
}

fn families(players: usize, seed: u64) -> [SyntheticGame; 4] {
    [
        SyntheticGame::saturating(players, seed),
        SyntheticGame::coverage(players, seed),
        SyntheticGame::interaction(players, seed),
        SyntheticGame::voting(players, seed),
    ]
}

#[test]
fn with_all_coalitions_regressions_equal_the_shapley_value() {
    for players in 1..=8 {
        for mut game in families(players, 3) {
            let exact = TableGame::from_game(&mut game).unwrap().shapley();
            for estimator in regressions() {
                let found =
                    valued(&estimator, &mut game, RunOptions::seeded(5).with_budget(1 << players));
                let name = estimator.name();
                for (score, exact) in found.scores.iter().zip(&exact) {
                    let off = (score.value - exact).abs();
                    assert!(off < 1e-9, "{name}, {players} players: off by {off:e} in {game:?}");
                    assert_eq!(score.estimator_error, Some(0.0), "{name}: nothing was sampled");
                }
                assert!(found.gap.abs() < 1e-12, "{name}: {}", found.gap);
                assert_eq!(found.evaluations, 1 << players, "{name}");
            }
        }
    }
}

#[test]
fn textbook_games_have_their_known_values() {
    let fares = [6.0, 12.0, 42.0];
    let taxi = move |c: &Coalition| c.players().map(|p| fares[p]).fold(0.0, f64::max);
    let gloves = |c: &Coalition| f64::from(c.contains(0) && (c.contains(1) || c.contains(2)));
    // Any two of 3, 2 and 2 votes reach 4. The values for votes 4, 3, 2, 1 and a quota of 6 are
    // in the textbooks.
    let council = |votes: &'static [usize], quota: usize| {
        move |c: &Coalition| f64::from(c.players().map(|p| votes[p]).sum::<usize>() >= quota)
    };
    type Worth = Box<dyn FnMut(&Coalition) -> f64>;
    let table: Vec<(usize, Worth, Vec<f64>)> = vec![
        (3, Box::new(taxi), vec![2.0, 5.0, 35.0]),
        (3, Box::new(gloves), vec![2.0 / 3.0, 1.0 / 6.0, 1.0 / 6.0]),
        (3, Box::new(council(&[3, 2, 2], 4)), vec![1.0 / 3.0; 3]),
        (
            4,
            Box::new(council(&[4, 3, 2, 1], 6)),
            vec![5.0 / 12.0, 3.0 / 12.0, 3.0 / 12.0, 1.0 / 12.0],
        ),
        (1, Box::new(|c: &Coalition| 10.0 + c.len() as f64), vec![1.0]),
    ];
    for (players, worth, wanted) in table {
        let mut game = support::FnGame(players, worth);
        for estimator in regressions() {
            let found = valued(&estimator, &mut game, RunOptions::seeded(1));
            for (score, wanted) in found.scores.iter().zip(&wanted) {
                let name = estimator.name();
                assert!((score.value - wanted).abs() < 1e-12, "{name}: {score:?} is not {wanted}");
            }
        }
    }
}

#[test]
fn games_of_pairs_are_exact_at_the_minimum_budget() {
    let players = 20;
    let worth = |c: &Coalition| {
        let strength: f64 = c.players().map(|p| p as f64 - 4.0).sum();
        2.0 * strength - 0.01 * strength * strength
    };
    // φ_i = 2a_i − 0.01·(a_i² + a_i·Σ_{j≠i} a_j) = a_i·(2 − 0.01·Σ a_j), Σ a_j = 190 − 80.
    for estimator in regressions() {
        let mut game = support::FnGame(players, worth);
        let found =
            valued(&estimator, &mut game, RunOptions::seeded(9).with_budget(2 * players as u64));
        assert_eq!(found.evaluations, 40);
        for (player, score) in found.scores.iter().enumerate() {
            let wanted = (player as f64 - 4.0) * (2.0 - 0.01 * 110.0);
            let off = (score.value - wanted).abs();
            assert!(off < 1e-5, "{}: {off:e}", estimator.name());
        }
    }
}

#[test]
fn order_three_fits_games_of_triples_and_order_two_does_not() {
    let mut game = SyntheticGame::interaction(10, 4);
    let exact = TableGame::from_game(&mut game).unwrap().shapley();
    // 10 + C(10, 3) = 130 unknowns.
    let run = || RunOptions::seeded(2).with_budget(2 + 2 * 150);
    let third: Any = Box::new(KAdd::with_order(3).unwrap());
    let second: Any = Box::new(KAdd::with_order(2).unwrap());
    let third = distance(&valued(&third, &mut game, run()), &exact);
    let second = distance(&valued(&second, &mut game, run()), &exact);
    assert!(third < 1e-3, "order 3 is off by {third}");
    assert!(second > 10.0 * third, "order 2 is off by {second}");
}

#[test]
fn errors_shrink_as_the_budget_grows() {
    let mut game = SyntheticGame::saturating(12, 1);
    let exact = TableGame::from_game(&mut game).unwrap().shapley();
    for estimator in regressions() {
        let mut mean_of = |budget: u64| {
            let seeds = 0..6;
            let of = |seed| {
                let run = RunOptions::seeded(seed).with_budget(budget);
                distance(&valued(&estimator, &mut game, run), &exact)
            };
            seeds.map(of).sum::<f64>() / 6.0
        };
        let (small, middle, large) = (mean_of(50), mean_of(300), mean_of(1_800));
        let name = estimator.name();
        assert!(middle < 0.6 * small && large < 0.6 * middle, "{name}: {small} {middle} {large}");
    }
}

#[test]
fn error_estimates_cover_the_true_errors_without_excess() {
    let seeds = 40;
    for (mut game, budget) in [
        (SyntheticGame::coverage(10, 7), 120),
        (SyntheticGame::saturating(10, 7), 80),
        (SyntheticGame::voting(10, 7), 200),
    ] {
        let exact = TableGame::from_game(&mut game).unwrap().shapley();
        for estimator in regressions() {
            let (mut within, mut of, mut squares, mut claimed) = (0, 0, 0.0, 0.0);
            for seed in 0..seeds {
                let found =
                    valued(&estimator, &mut game, RunOptions::seeded(seed).with_budget(budget));
                for (score, exact) in found.scores.iter().zip(&exact) {
                    let (off, error) = (score.value - exact, score.estimator_error.unwrap());
                    within += u32::from(off.abs() <= 2.0 * error);
                    of += 1;
                    squares += off * off;
                    claimed += error * error;
                }
            }
            let covered = f64::from(within) / f64::from(of);
            let wider = (claimed / squares).sqrt();
            let name = estimator.name();
            println!("{name} on {budget}: covered {covered}, bars {wider} times the error");
            assert!(covered > 0.9, "{name}: two bars cover only {covered}");
            assert!(wider < 3.0, "{name}: bars are {wider} times as wide as the errors");
        }
    }
}

#[test]
fn one_seed_gives_one_valuation_and_another_seed_another() {
    let mut game = SyntheticGame::saturating(9, 1);
    for estimator in regressions() {
        let mut by =
            |seed| valued(&estimator, &mut game, RunOptions::seeded(seed).with_budget(100));
        assert_eq!(by(1), by(1));
        assert_ne!(by(1).scores, by(2).scores, "{}", estimator.name());
    }
}

/// A game that fails after `left` coalitions and records every coalition requested.
struct FailingGame {
    inner: SyntheticGame,
    left: usize,
    asked: Vec<Coalition>,
    calls: usize,
}

impl Game for FailingGame {
    fn players(&self) -> usize {
        self.inner.players()
    }

    fn value(&mut self, coalition: &Coalition) -> Result<f64, GameError> {
        if self.left == 0 {
            return Err(GameError::new("the evaluator failed"));
        }
        self.left -= 1;
        self.asked.push(coalition.clone());
        self.inner.value(coalition)
    }

    fn batch(&self) -> usize {
        256
    }

    fn values(&mut self, coalitions: &[Coalition]) -> Result<Vec<f64>, GameError> {
        self.calls += 1;
        if self.left < coalitions.len() {
            return Err(GameError::new("the evaluator failed"));
        }
        coalitions.iter().map(|coalition| self.value(coalition)).collect()
    }
}

fn fragile(left: usize) -> FailingGame {
    FailingGame { inner: SyntheticGame::coverage(10, 1), left, asked: Vec::new(), calls: 0 }
}

#[test]
fn after_a_failure_the_cache_resumes_to_the_same_valuation_without_repeats() {
    for estimator in regressions() {
        let whole =
            valued(&estimator, &mut fragile(usize::MAX), RunOptions::seeded(4).with_budget(300));

        let mut cache = ValueCache::new();
        let mut game = fragile(150);
        let run = RunOptions::seeded(4).with_budget(300).with_cache(&mut cache);
        let refused = value(estimator.as_ref(), &mut game as &mut dyn Game, &ids(10), run);
        assert_eq!(refused.unwrap_err().code(), "GAME_FAILED");
        assert!(cache.len() > 20, "{}: only {} cached", estimator.name(), cache.len());

        game.left = usize::MAX;
        let run = RunOptions::seeded(4).with_budget(300).with_cache(&mut cache);
        assert_eq!(valued(&estimator, &mut game, run), whole, "{}", estimator.name());
        let asked = game.asked.len();
        game.asked.sort();
        game.asked.dedup();
        assert_eq!((game.asked.len(), asked as u64), (asked, whole.evaluations));
    }
}

#[test]
fn coalitions_are_evaluated_in_batches() {
    for estimator in regressions() {
        let mut game = fragile(usize::MAX);
        let found = valued(&estimator, &mut game, RunOptions::seeded(0).with_budget(500));
        assert_eq!(found.evaluations, 500, "{}", estimator.name());
        assert!(game.calls < 12, "{}: {} calls", estimator.name(), game.calls);
    }
}

#[test]
fn a_tolerance_or_a_time_limit_stops_the_regressions() {
    let mut game = SyntheticGame::coverage(12, 1);
    let exact = TableGame::from_game(&mut game).unwrap().shapley();
    for estimator in regressions() {
        let name = estimator.name();
        let found = valued(&estimator, &mut game, RunOptions::seeded(1).with_tolerance(0.03));
        assert!(found.evaluations < 4_096, "{name} evaluated all coalitions");
        let off = distance(&found, &exact);
        assert!(off < 0.06, "{name} is off by {off} after {} evaluations", found.evaluations);

        let found =
            valued(&estimator, &mut game, RunOptions::seeded(1).with_time_limit(Duration::ZERO));
        assert_eq!(found.evaluations, 24, "{name}: the minimum always runs");
    }
}

#[test]
fn as_many_pairs_as_unknowns_give_no_error_estimate() {
    let estimator: Any = Box::new(LeverageShap);
    let found =
        valued(&estimator, &mut SyntheticGame::voting(9, 1), RunOptions::seeded(1).with_budget(18));
    assert!(found.scores.iter().all(|score| score.estimator_error.is_none()), "{found:?}");
}

#[test]
fn invalid_input_is_refused_by_every_regression() {
    for estimator in regressions() {
        let name = estimator.name();
        let mut game = support::FnGame(4, |c: &Coalition| {
            if c.to_string() == "{0, 2, 3}" { f64::NAN } else { c.len() as f64 }
        });
        let refuse = |game: &mut (dyn Game + 'static),
                      ids: &[usize],
                      run: RunOptions<'_>|
         -> ValuationError {
            value(estimator.as_ref(), game, ids, run).expect_err("this must be refused")
        };
        let refusal = refuse(&mut game, &ids(4), RunOptions::seeded(0));
        assert_eq!(refusal.code(), "VALUE_NOT_FINITE", "{name}");
        assert!(refusal.to_string().contains("{0, 2, 3}"), "{name}: {refusal}");

        let refusal = refuse(&mut game, &[1, 2, 3, 2], RunOptions::seeded(0));
        assert_eq!(refusal.code(), "DUPLICATE_ID", "{name}");
        let refusal = refuse(&mut game, &ids(4), RunOptions::seeded(0).with_budget(7));
        assert_eq!(refusal.code(), "BUDGET_TOO_SMALL", "{name}");
        assert!(refusal.to_string().contains("needs 8"), "{name}: {refusal}");
        let mut empty_game = support::FnGame(0, |_: &Coalition| 0.0);
        assert_eq!(
            refuse(&mut empty_game, &[], RunOptions::seeded(0)).code(),
            "NO_PLAYERS",
            "{name}"
        );
    }
    for order in [0, 1, 4] {
        let refusal = KAdd::with_order(order).unwrap_err();
        assert_eq!(refusal.code(), "SETTING_OUT_OF_RANGE");
        assert!(refusal.to_string().contains("2 or 3"), "{refusal}");
    }
}
