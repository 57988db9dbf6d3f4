//! Values of the samplers, against enumeration, by hand, and over many seeds.

use florin_contribution::games::TableGame;
use florin_contribution::{
    AntitheticPermutation, Banzhaf, BetaShapley, Coalition, Owen, Permutation, RunOptions,
};
use proptest::prelude::*;

use super::{
    Any, all_samplers, assert_close, errors, families, name, other_samplers, passes_min, remark,
    run, shapley_samplers, try_value, values,
};
use crate::support::{FnGame, runner};

#[test]
fn with_a_budget_for_all_coalitions_samplers_equal_the_shapley_value() {
    for players in 2..=7 {
        for mut game in
            families(players.max(2), 11).into_iter().take(if players == 1 { 0 } else { 4 })
        {
            let wanted = TableGame::from_game(&mut game).unwrap().shapley();
            for estimator in shapley_samplers() {
                let budget = RunOptions::seeded(3).with_budget(1 << players);
                let found = run(&estimator, &mut game, budget);
                assert_close(&values(&found), &wanted, 1e-12, name(&estimator));
                assert_eq!(found.evaluations, 1 << players, "{}", name(&estimator));
                assert_eq!(errors(&found), Some(vec![0.0; players]));
                assert!(found.gap.abs() < 1e-12 && remark(&found).contains("exact"));
            }
        }
    }
}

#[test]
fn one_player_gets_everything() {
    for estimator in all_samplers() {
        let mut game = FnGame(1, |c: &Coalition| 2.0 + 3.0 * c.len() as f64);
        let found = run(&estimator, &mut game, RunOptions::seeded(9));
        assert_eq!(values(&found), [3.0], "{}", name(&estimator));
        assert_eq!((found.total, found.evaluations), (3.0, 2));
    }
}

/// Gloves: player 0 has a left one, players 1 and 2 a right one each; a pair has the value 1.
fn gloves(c: &Coalition) -> f64 {
    f64::from(c.contains(0) && (c.contains(1) || c.contains(2)))
}

/// The airport game: the runway's length is that of the largest plane, 6, 12 or 42.
fn airport(c: &Coalition) -> f64 {
    c.players().map(|player| [6.0, 12.0, 42.0][player]).fold(0.0, f64::max)
}

/// Votes 3, 2 and 2 with a quota of 4: any two players win.
fn voting(c: &Coalition) -> f64 {
    f64::from(c.players().map(|player| [3, 2, 2][player]).sum::<u32>() >= 4)
}

#[test]
fn samplers_match_hand_computed_games() {
    type Hand = (fn(&Coalition) -> f64, [f64; 3], [f64; 3], [f64; 3]);
    // The Shapley value, the Banzhaf value (mean of 4 marginal contributions), and the semivalue
    // of α = 2, β = 1, whose sizes 0, 1, 2 have the weights 1/2, 1/3, 1/6.
    let games: [Hand; 3] = [
        (
            gloves,
            [2.0 / 3.0, 1.0 / 6.0, 1.0 / 6.0],
            [0.75, 0.25, 0.25],
            [0.5, 1.0 / 6.0, 1.0 / 6.0],
        ),
        (
            airport,
            [2.0, 5.0, 35.0],
            [1.5, 4.5, 34.5],
            // 6/2; 12/2 + (6 + 0)/2/3; 42/2 + (36 + 30)/2/3 + 30/6.
            [3.0, 7.0, 37.0],
        ),
        (voting, [1.0 / 3.0; 3], [0.5; 3], [1.0 / 3.0; 3]),
    ];
    for (worth, shapley, banzhaf, beta) in games {
        for estimator in shapley_samplers() {
            let found = run(&estimator, &mut FnGame(3, worth), RunOptions::seeded(1));
            assert_close(&values(&found), &shapley, 1e-12, name(&estimator));
        }
        let other: [(Any, [f64; 3]); 2] = [
            (Box::new(Banzhaf::default()), banzhaf),
            (Box::new(BetaShapley::new(2.0, 1.0).unwrap()), beta),
        ];
        for (estimator, wanted) in other {
            let found = run(&estimator, &mut FnGame(3, worth), RunOptions::seeded(1));
            assert_close(&values(&found), &wanted, 1e-12, name(&estimator));
            let gap = found.total - wanted.iter().sum::<f64>();
            assert!((found.gap - gap).abs() < 1e-12, "the gap is reported");
        }
        let normalised: Any = Box::new(Banzhaf::normalised());
        let found = run(&normalised, &mut FnGame(3, worth), RunOptions::seeded(1));
        let factor = found.total / banzhaf.iter().sum::<f64>();
        assert_close(&values(&found), &banzhaf.map(|value| factor * value), 1e-12, "normalised");
    }
}

/// Enough for a few samples of every stratum and for the Neyman rounds, but not for all 256
/// coalitions.
fn part_of(estimator: &Any) -> u64 {
    if name(estimator) == "stratified" { 240 } else { 130.max(passes_min(estimator, 8)) }
}

#[test]
fn values_are_unbiased_over_many_seeds() {
    const SEEDS: u32 = 300;
    let mut estimators = shapley_samplers();
    estimators
        .extend(other_samplers().into_iter().filter(|one| !name(one).ends_with("normalised")));
    for mut game in families(8, 5) {
        for estimator in &estimators {
            let wanted = values(&run(estimator, &mut game, RunOptions::seeded(0).with_budget(256)));
            let (mut sums, mut squares) = (vec![0.0; 8], vec![0.0; 8]);
            for seed in 0..SEEDS {
                let budget = RunOptions::seeded(u64::from(seed)).with_budget(part_of(estimator));
                let found = run(estimator, &mut game, budget);
                assert!(found.evaluations < 256);
                for (player, value) in values(&found).iter().enumerate() {
                    sums[player] += value - wanted[player];
                    squares[player] += (value - wanted[player]).powi(2);
                }
            }
            for player in 0..8 {
                let mean = sums[player] / f64::from(SEEDS);
                let error = squares[player].sqrt() / f64::from(SEEDS);
                let what = format!("{} player {player}: {mean:e} ± {error:e}", name(estimator));
                assert!(mean.abs() <= 4.5 * error + 1e-12, "{what} in {game:?}");
            }
        }
    }
}

/// Single players and pairs, of any sign: `Σ a_i + Σ b_ij` over the coalition's players.
fn quadratic(a: Vec<f64>, b: Vec<f64>) -> FnGame<impl FnMut(&Coalition) -> f64> {
    let players = a.len();
    let worth = move |c: &Coalition| {
        let pairs =
            c.players().flat_map(|i| c.players().filter(move |j| *j > i).map(move |j| (i, j)));
        c.players().map(|i| a[i]).sum::<f64>() + pairs.map(|(i, j)| b[i * players + j]).sum::<f64>()
    };
    FnGame(players, worth)
}

#[test]
fn one_antithetic_pair_is_exact_on_games_of_pairs() {
    let game = (2..=9_usize).prop_flat_map(|n| {
        (prop::collection::vec(-1.0..1.0_f64, n), prop::collection::vec(-1.0..1.0_f64, n * n))
    });
    let verdict = runner().run(&(game, 0..u64::MAX), |((a, b), seed)| {
        let n = a.len();
        // Each pair is divided equally between its two players.
        let share = |i: usize| -> f64 {
            let pairs = (0..n).filter(|&j| j != i).map(|j| b[i.min(j) * n + i.max(j)]);
            a[i] + 0.5 * pairs.sum::<f64>()
        };
        let wanted: Vec<f64> = (0..n).map(share).collect();
        let estimators: [Any; 2] = [Box::new(AntitheticPermutation), Box::new(Owen)];
        for estimator in estimators {
            let least = passes_min(&estimator, n);
            let mut game = quadratic(a.clone(), b.clone());
            let found = run(&estimator, &mut game, RunOptions::seeded(seed).with_budget(least));
            prop_assert!(found.evaluations <= least);
            for (got, wanted) in values(&found).iter().zip(&wanted) {
                prop_assert!(
                    (got - wanted).abs() < 1e-12,
                    "{} {} {}",
                    name(&estimator),
                    got,
                    wanted
                );
            }
        }
        Ok(())
    });
    verdict.unwrap();
}

#[test]
fn permutation_estimators_are_efficient_at_any_budget() {
    let efficient: [Any; 3] = [
        Box::new(Permutation),
        Box::new(AntitheticPermutation),
        Box::new(BetaShapley::new(1.0, 1.0).unwrap()),
    ];
    for mut game in families(9, 2) {
        for estimator in &efficient {
            for budget in [18, 40, 111] {
                let found = run(estimator, &mut game, RunOptions::seeded(4).with_budget(budget));
                assert!(found.gap.abs() < 1e-12, "{} {}", name(estimator), found.gap);
            }
        }
    }
}

#[test]
fn a_null_player_scores_exactly_zero_with_every_marginal_sampler() {
    let mut game = florin_contribution::games::SyntheticGame::coverage(9, 3);
    for estimator in all_samplers() {
        // Estimators that average values instead of marginal contributions estimate a null
        // player with noise.
        let worths = ["complementary-contributions", "banzhaf", "banzhaf-normalised"];
        if worths.contains(&name(&estimator)) {
            continue;
        }
        let budget = 150.max(passes_min(&estimator, 9));
        let found = run(&estimator, &mut game, RunOptions::seeded(8).with_budget(budget));
        assert_eq!(values(&found)[7], 0.0, "{}", name(&estimator));
    }
}

#[test]
fn normalised_values_sum_to_the_total_or_are_refused() {
    let normalised: Any = Box::new(Banzhaf::normalised());
    for mut game in families(10, 6) {
        let found = run(&normalised, &mut game, RunOptions::seeded(2).with_budget(200));
        assert!(found.gap.abs() < 1e-12, "{}", found.gap);
    }
    // Every player adds 1, and the last one makes the total negative: every raw value is
    // positive (for three players (1 + 1 + 1 − 2.1)/4), but the total is not.
    for players in [3, 12] {
        let mut game = FnGame(
            players,
            move |c: &Coalition| {
                if c.len() == c.universe() { -0.1 } else { c.len() as f64 }
            },
        );
        let refused = try_value(&normalised, &mut game, RunOptions::seeded(0).with_budget(100));
        assert_eq!(refused.unwrap_err().code(), "EQUATIONS_SINGULAR");
    }
}
