//! Odd regression: exactness, accuracy with few evaluations, and coverage of its error estimates.

use florin_contribution::games::{SyntheticGame, TableGame};
use florin_contribution::{
    Coalition, Game, GameError, LeverageShap, OddRegression, RunOptions, Valuation, ValuationError,
    ValueCache, value,
};
use proptest::prelude::*;

use crate::support::{self, runner};

fn ids(players: usize) -> Vec<usize> {
    (0..players).collect()
}

fn odd(game: &mut impl Game, run: RunOptions<'_>) -> Valuation<usize> {
    let ids = ids(game.players());
    value(&OddRegression, game, &ids, run).unwrap()
}

fn values(found: &Valuation<usize>) -> Vec<f64> {
    found.scores.iter().map(|score| score.value).collect()
}

fn norm(of: impl IntoIterator<Item = f64>) -> f64 {
    of.into_iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn miss(found: &Valuation<usize>, right: &[f64]) -> f64 {
    norm(values(found).iter().zip(right).map(|(a, b)| a - b)) / norm(right.iter().copied())
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// An endless sequence of random numbers in −1..1, by seed.
fn numbers(seed: u64) -> impl FnMut() -> f64 {
    let mut draw = florin_contribution::SeededRng::new(seed, 99);
    move || 2.0 * draw.uniform() - 1.0
}

fn random_table(players: usize, seed: u64) -> TableGame {
    let mut next = numbers(seed);
    TableGame::new(players, (0..1 << players).map(|_| next()).collect()).unwrap()
}

/// `c + Σ_i l_i + Σ_{i<j} q_ij` over the coalition's players; the values are `l_i + ½·Σ_j q_ij`.
fn quadratic(players: usize, seed: u64) -> (impl Game, Vec<f64>) {
    let mut next = numbers(seed);
    let empty = next();
    let single: Vec<f64> = (0..players).map(|_| next()).collect();
    let drawn: Vec<f64> = (0..players * players).map(|_| next()).collect();
    let two = |i: usize, j: usize| if i == j { 0.0 } else { drawn[i.min(j) * players + i.max(j)] };
    let twos: Vec<Vec<f64>> =
        (0..players).map(|i| (0..players).map(|j| two(i, j)).collect()).collect();
    let half = |row: &Vec<f64>| 0.5 * row.iter().sum::<f64>();
    let right = single.iter().zip(&twos).map(|(single, row)| single + half(row)).collect();
    let worth = move |coalition: &Coalition| {
        let of = |i: usize| single[i] + 0.5 * coalition.players().map(|j| twos[i][j]).sum::<f64>();
        empty + coalition.players().map(of).sum::<f64>()
    };
    (support::FnGame(players, worth), right)
}

#[test]
fn two_evaluations_per_player_are_exact_for_every_quadratic_game() {
    let games = (1..14_usize, any::<u64>(), 0..40_u64);
    runner()
        .run(&games, |(players, seed, more)| {
            let (mut game, right) = quadratic(players, seed);
            let run = RunOptions::seeded(seed).with_budget(2 * players as u64 + more);
            let found = odd(&mut game, run);
            for (score, right) in found.scores.iter().zip(&right) {
                prop_assert!((score.value - right).abs() < 1e-9, "{score:?}, not {right}");
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn values_sum_to_the_total_at_every_budget() {
    let games = (1..9_usize, any::<u64>(), 0..520_u64);
    runner()
        .run(&games, |(players, seed, more)| {
            let mut table = random_table(players, seed);
            let right = table.shapley();
            let budget = 2 * players as u64 + more;
            let found = odd(&mut table, RunOptions::seeded(seed).with_budget(budget));
            let all = 1 << players;
            prop_assert!(found.evaluations <= budget.min(all));
            prop_assert!(found.evaluations + 1 >= budget.min(all), "{}", found.evaluations);
            prop_assert!(found.gap.abs() < 1e-9, "{}", found.gap);
            if budget >= all {
                prop_assert!(miss(&found, &right) < 1e-9, "{:?} not {right:?}", values(&found));
                prop_assert!(found.scores.iter().all(|score| score.estimator_error == Some(0.0)));
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn games_of_triples_are_exact_with_more_pairs_than_unknowns() {
    // 7 single players and C(7, 3) = 35 triples, of 63 pairs.
    for seed in 0..8 {
        let mut table = TableGame::from_game(&mut SyntheticGame::interaction(7, seed)).unwrap();
        let right = table.shapley();
        let found = odd(&mut table, RunOptions::seeded(seed).with_budget(2 + 2 * 54));
        assert!(miss(&found, &right) < 1e-6, "seed {seed}: {}", miss(&found, &right));
    }
}

#[test]
fn small_games_match_hand_computed_values() {
    let one = odd(&mut TableGame::new(1, vec![2.0, 5.0]).unwrap(), RunOptions::seeded(1));
    assert_eq!(values(&one), [3.0]);
    let two = odd(&mut TableGame::new(2, vec![0.0, 1.0, 3.0, 8.0]).unwrap(), RunOptions::seeded(1));
    assert!(miss(&two, &[3.0, 5.0]) < 1e-12);
    // A shared taxi: the longest fare of 6, 12 and 42.
    let taxi = vec![0.0, 6.0, 12.0, 12.0, 42.0, 42.0, 42.0, 42.0];
    let three = odd(&mut TableGame::new(3, taxi).unwrap(), RunOptions::seeded(1));
    assert!(miss(&three, &[2.0, 5.0, 35.0]) < 1e-12, "{:?}", values(&three));
}

/// A family of games, by players and seed.
type Family = fn(usize, u64) -> SyntheticGame;

/// The median relative error over `games` games.
fn median_miss(game: Family, players: usize, games: u64, passes: u64) -> f64 {
    let miss_of = |seed| {
        let mut table = TableGame::from_game(&mut game(players, seed)).unwrap();
        let right = table.shapley();
        miss(&odd(&mut table, RunOptions::seeded(seed).with_budget(passes)), &right)
    };
    median((0..games).map(miss_of).collect())
}

#[test]
fn synthetic_games_are_valued_within_one_percent_with_few_evaluations() {
    let bars: [(Family, usize, u64, u64); 4] = [
        (SyntheticGame::saturating, 10, 15, 60),
        (SyntheticGame::coverage, 10, 15, 90),
        (SyntheticGame::saturating, 20, 5, 150),
        (SyntheticGame::coverage, 20, 5, 1_400),
    ];
    for (at, (game, players, games, passes)) in bars.into_iter().enumerate() {
        let miss = median_miss(game, players, games, passes);
        assert!(miss < 0.01, "game {at}, {players} players: {miss} after {passes}");
    }
}

#[test]
fn a_free_rider_gets_almost_nothing_and_duplicates_score_equally() {
    for seed in 0..10 {
        let mut game = SyntheticGame::coverage(12, seed);
        let found = odd(&mut game, RunOptions::seeded(seed).with_budget(300));
        let values = values(&found);
        assert!(values[10].abs() < 0.002 * found.total, "seed {seed}: {}", values[10]);
        let apart = (values[0] - values[1]).abs();
        assert!(apart < 0.005 * found.total, "seed {seed}: {apart} of {}", found.total);
    }
}

#[test]
fn without_any_structure_the_linear_fit_is_selected() {
    let mut linear = 0;
    for seed in 0..20 {
        let found = odd(&mut random_table(12, seed), RunOptions::seeded(seed).with_budget(200));
        linear += usize::from(found.remark.unwrap().contains("the additive model predicts"));
    }
    assert!(linear >= 10, "{linear} of 20");
}

#[test]
fn a_discontinuous_game_is_valued_no_worse_than_by_leverage_shap() {
    for passes in [150, 600, 2_000] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for seed in 0..15 {
            let mut table = TableGame::from_game(&mut SyntheticGame::voting(13, seed)).unwrap();
            let right = table.shapley();
            let run = || RunOptions::seeded(seed).with_budget(passes);
            ours.push(miss(&odd(&mut table, run()), &right));
            theirs.push(miss(&value(&LeverageShap, &mut table, &ids(13), run()).unwrap(), &right));
        }
        let (ours, theirs) = (median(ours), median(theirs));
        assert!(ours < 1.05 * theirs, "{passes}: {ours}, {theirs}");
    }
}

#[test]
fn pairs_beyond_the_kernel_fit_still_improve_the_values() {
    let at = |passes| {
        let mut miss_of = Vec::new();
        for seed in 0..5 {
            let mut table = TableGame::from_game(&mut SyntheticGame::voting(14, seed)).unwrap();
            let right = table.shapley();
            let found = odd(&mut table, RunOptions::seeded(seed).with_budget(passes));
            assert!(found.remark.as_deref().unwrap().contains("corrected by a linear fit"));
            miss_of.push(miss(&found, &right));
        }
        median(miss_of)
    };
    let (few, many) = (at(1_500), at(8_000));
    assert!(many < 0.6 * few, "{few} then {many}");
}

#[test]
fn error_estimates_cover_the_true_errors() {
    let games: [(Family, usize, u64); 4] = [
        (SyntheticGame::saturating, 10, 60),
        (SyntheticGame::saturating, 12, 150),
        (SyntheticGame::coverage, 10, 60),
        (SyntheticGame::coverage, 12, 150),
    ];
    for (at, (game, players, passes)) in games.into_iter().enumerate() {
        let (mut covered, mut all, mut short) = (0, 0, 0);
        for seed in 0..40 {
            let mut table = TableGame::from_game(&mut game(players, seed)).unwrap();
            let right = table.shapley();
            let found = odd(&mut table, RunOptions::seeded(seed).with_budget(passes));
            let own = |at: usize| found.scores[at].estimator_error.unwrap();
            for (player, right) in right.iter().enumerate() {
                covered +=
                    i32::from((found.scores[player].value - right).abs() <= 2.0 * own(player));
                all += 1;
            }
            let estimated = norm((0..players).map(own)) / norm(right.iter().copied());
            short += i32::from(estimated < miss(&found, &right));
        }
        println!(
            "game {at}: {covered} of {all} within two errors, {short} of 40 games overconfident"
        );
        assert!(100 * covered >= 95 * all, "game {at}: {covered} of {all}");
        assert!(short <= 4, "game {at}: {short} of 40");
    }
}

#[test]
fn it_stops_at_the_tolerance_with_an_error_below_it() {
    for seed in 0..10 {
        let mut table = TableGame::from_game(&mut SyntheticGame::saturating(14, seed)).unwrap();
        let right = table.shapley();
        let found = odd(&mut table, RunOptions::seeded(seed).with_tolerance(0.02));
        assert!(found.evaluations < 400, "{}", found.evaluations);
        assert!(miss(&found, &right) < 0.02, "seed {seed}: {}", miss(&found, &right));
    }
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    let run =
        |seed| odd(&mut SyntheticGame::coverage(20, 3), RunOptions::seeded(seed).with_budget(200));
    assert_eq!(run(5), run(5));
    assert_ne!(values(&run(5)), values(&run(6)));
}

/// A game that fails after a given number of evaluations.
struct Failing(SyntheticGame, u32);

impl Game for Failing {
    fn players(&self) -> usize {
        self.0.players()
    }

    fn value(&mut self, coalition: &Coalition) -> Result<f64, GameError> {
        self.1 = self.1.checked_sub(1).ok_or_else(|| GameError::new("the power went out"))?;
        self.0.value(coalition)
    }
}

#[test]
fn an_interrupted_run_resumes_from_the_cache() {
    let game = || SyntheticGame::coverage(12, 1);
    let whole = odd(&mut game(), RunOptions::seeded(2).with_budget(400));
    let mut cache = ValueCache::new();
    let run = RunOptions::seeded(2).with_budget(400).with_cache(&mut cache);
    let broken = value(&OddRegression, &mut Failing(game(), 280), &ids(12), run);
    assert!(matches!(broken, Err(ValuationError::Game(_))));
    assert_eq!(cache.len(), 280, "every value evaluated so far");
    let left = 400 - cache.len() as u32;
    let run = RunOptions::seeded(2).with_budget(400).with_cache(&mut cache);
    assert_eq!(odd(&mut Failing(game(), left), run), whole);
}

#[test]
fn a_value_that_is_not_finite_is_refused_with_its_coalition() {
    let worth = |coalition: &Coalition| if coalition.mask() == 0b100 { f64::NAN } else { 1.0 };
    let refused =
        value(&OddRegression, &mut support::FnGame(6, worth), &ids(6), RunOptions::seeded(1));
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), "VALUE_NOT_FINITE");
    assert!(refused.to_string().contains("{2}"), "{refused}");
}

#[test]
fn a_cached_value_that_is_not_finite_is_refused() {
    let mut cache = ValueCache::new();
    cache.insert(Coalition::full(6), f64::NAN);
    let run = RunOptions::seeded(1).with_cache(&mut cache);
    let refused =
        value(&OddRegression, &mut SyntheticGame::saturating(6, 1), &ids(6), run).unwrap_err();
    assert_eq!(refused.code(), "VALUE_NOT_FINITE");
}

#[test]
fn a_budget_below_two_evaluations_per_player_is_refused() {
    let run = RunOptions::seeded(1).with_budget(9);
    let refused =
        value(&OddRegression, &mut SyntheticGame::saturating(5, 1), &ids(5), run).unwrap_err();
    assert_eq!(refused.code(), "BUDGET_TOO_SMALL");
}

#[test]
fn a_constant_game_gives_every_player_zero() {
    let found = odd(&mut support::FnGame(9, |_: &Coalition| 3.0), RunOptions::seeded(1));
    assert!(values(&found).iter().all(|value| value.abs() < 1e-12), "{found:?}");
}

#[test]
fn hundreds_of_players_are_valued() {
    for (players, model) in [(200, "scales from player values"), (300, "the additive model")] {
        let mut game = support::FnGame(players, |of: &Coalition| (of.len() as f64).sqrt());
        let run = RunOptions::seeded(1).with_budget(3 * players as u64);
        let found = odd(&mut game, run);
        assert!(found.remark.as_deref().unwrap().contains(model), "{:?}", found.remark);
        assert!(found.gap.abs() < 1e-9);
    }
}
