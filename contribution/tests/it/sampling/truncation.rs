//! The bias of truncation, and the effect of caching truncated values.

use florin_contribution::games::{SyntheticGame as Known, TableGame};
use florin_contribution::{
    Coalition, Estimator, Game, Gtg, RunOptions, TruncatedMonteCarlo, value,
};

use super::{Any, assert_close, remark, run, values};
use crate::support::FnGame;

/// The mean shortfall of each player's value over many seeds, and the mean gap.
fn shortfall(estimator: &Any, game: &mut Known, budget: u64, seeds: u64) -> (Vec<f64>, f64) {
    let truth = TableGame::from_game(game).unwrap().shapley();
    let (mut lost, mut gap) = (vec![0.0; truth.len()], 0.0);
    for seed in 0..seeds {
        let found = run(estimator, game, RunOptions::seeded(seed).with_budget(budget));
        gap += found.gap / seeds as f64;
        for (lost, (truth, value)) in lost.iter_mut().zip(truth.iter().zip(values(&found))) {
            *lost += (truth - value) / seeds as f64;
        }
    }
    (lost, gap)
}

#[test]
fn truncation_lowers_every_value_by_at_most_the_tolerance() {
    let mut game = Known::saturating(9, 4);
    let total = value(
        &florin_contribution::Exact,
        &mut game,
        &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        RunOptions::seeded(0),
    )
    .unwrap()
    .total;
    let tolerance = 0.1;
    let truncated: [(Any, u64); 2] = [
        (Box::new(TruncatedMonteCarlo::with_tolerance(tolerance).unwrap()), 150),
        (Box::new(Gtg::corrected().with_thresholds(0.0, tolerance * total).unwrap()), 150),
    ];
    for (estimator, budget) in truncated {
        let (lost, gap) = shortfall(&estimator, &mut game, budget, 200);
        let sum: f64 = lost.iter().sum();
        println!("{lost:?} {gap}");
        assert!((sum - gap).abs() < 1e-12, "the shortfall equals the gap");
        assert!(gap > 0.2 * tolerance * total, "truncation shows: {gap}");
        assert!(gap <= tolerance * total, "the total shortfall is at most the tolerance: {gap}");
        for lost in lost {
            assert!((0.0..tolerance * total).contains(&lost), "every player loses a part: {lost}");
        }
    }
    let untruncated: Any = Box::new(TruncatedMonteCarlo::with_tolerance(0.0).unwrap());
    let (_, gap) = shortfall(&untruncated, &mut game, 150, 20);
    assert!(gap.abs() < 1e-12, "{gap}");
}

#[test]
fn nothing_beyond_a_truncation_is_evaluated() {
    // Any two players reach the grand value; only single players and pairs are ever evaluated.
    let mut largest = 0;
    let mut game = FnGame(8, |c: &Coalition| {
        if c.len() < 8 {
            largest = largest.max(c.len());
        }
        c.len().min(2) as f64
    });
    let estimator = TruncatedMonteCarlo::default();
    let ids: Vec<usize> = (0..8).collect();
    let found = value(&estimator, &mut game, &ids, RunOptions::seeded(1).with_budget(200)).unwrap();
    assert_eq!(largest, 2);
    assert_eq!(found.evaluations, 2 + 8 + 28, "all coalitions that truncation can reach");
    assert!(found.remark.unwrap().contains("contained no new coalition"));
}

fn between(gtg: Gtg, total: f64) -> (Vec<f64>, u64, String) {
    let mut game = FnGame(4, move |c: &Coalition| total * c.len() as f64 / 4.0);
    let found = value(&gtg, &mut game, &[0, 1, 2, 3], RunOptions::seeded(1)).unwrap();
    let remark = found.remark.clone().unwrap();
    (found.scores.iter().map(|score| score.value).collect(), found.evaluations, remark)
}

#[test]
fn a_round_below_the_threshold_is_not_valued() {
    for gtg in [Gtg::as_published(), Gtg::corrected()] {
        let (values, evaluations, remark) = between(gtg, 0.0099);
        assert_eq!((values, evaluations), (vec![0.0; 4], 2));
        assert!(remark.contains("not valued") && remark.contains("0.01"), "{remark}");
        let (values, _, _) = between(gtg, 0.0125);
        assert_close(&values, &[0.003_125; 4], 0.001, "valued");
    }
}

/// v(∅) = 0, v({0}) = v({0,2}) = v(N) = 1, v({0,1}) = 2, all else 0: with player 0 the grand value
/// seems to be reached.
fn deceptive(c: &Coalition) -> f64 {
    let worths = [0.0, 1.0, 0.0, 2.0, 0.0, 1.0, 0.0, 1.0];
    worths[c.mask() as usize]
}

#[test]
fn the_published_cache_returns_values_that_were_never_evaluated() {
    let published: Any = Box::new(Gtg::as_published().with_thresholds(0.01, 0.5).unwrap());
    let mended: Any = Box::new(Gtg::corrected().with_thresholds(0.01, 0.5).unwrap());
    let (mut fooled_by_cache, mut harmed) = (0, 0.0);
    for seed in 0..20 {
        let mut game = FnGame(3, deceptive);
        let right = run(&mended, &mut game, RunOptions::seeded(seed));
        // By hand, over the six permutations: (1+1+2+1+1+1)/6, (1+0+0+0+0+0)/6,
        // (−1+0−1+0+0+0)/6.
        let wanted = [7.0 / 6.0, 1.0 / 6.0, -1.0 / 3.0];
        assert_close(&values(&right), &wanted, 1e-12, "corrected");
        let wrong = run(&published, &mut game, RunOptions::seeded(seed));
        // Once a permutation began with 0, 1, the cached value of {0, 1} is 1 forever.
        fooled_by_cache += u32::from(values(&wrong) == [1.0, 0.0, 0.0]);
        harmed += values(&wrong)[2] / 20.0;
        assert!(remark(&wrong).contains("5 %"), "{}", remark(&wrong));
    }
    println!("deceived {fooled_by_cache}, harm {harmed}");
    assert!(fooled_by_cache >= 5, "{fooled_by_cache}");
    assert!(harmed > -0.1, "player 2 subtracts a third, and hardly any of it is found: {harmed}");
}

#[test]
fn the_published_cache_overwrites_the_grand_value() {
    // After player 0 the grand value 1 seems to be reached at 0.8, and from then on it is cached
    // as 0.8: permutations 0,1 give (0.8, 0), permutations 1,0 give (0.6, 0.2), and 0.2 is missing
    // forever.
    let worths = [0.0, 0.8, 0.2, 1.0];
    let mut game = FnGame(2, move |c: &Coalition| worths[c.mask() as usize]);
    let published: Any = Box::new(Gtg::as_published().with_thresholds(0.01, 0.5).unwrap());
    let found = run(&published, &mut game, RunOptions::seeded(3));
    assert_close(&values(&found), &[0.7, 0.1], 1e-12, "published");
    assert!((found.gap - 0.2).abs() < 1e-12 && found.total == 1.0);
    assert!(remark(&found).starts_with("32 guided permutations"), "{}", remark(&found));
    let mended: Any = Box::new(Gtg::corrected().with_thresholds(0.01, 0.5).unwrap());
    assert_close(
        &values(&run(&mended, &mut game, RunOptions::seeded(3))),
        &[0.8, 0.2],
        1e-12,
        "corrected",
    );
}

/// The published stopping rule applies far from 1 %; the corrected variant estimates its error.
#[test]
fn the_published_stopping_rule_stops_far_from_the_true_values() {
    let mut game = Known::saturating(10, 1);
    let truth = TableGame::from_game(&mut game).unwrap().shapley();
    let off = |estimator: &dyn Estimator<dyn Game>, run: RunOptions<'_>| {
        let ids: Vec<usize> = (0..10).collect();
        let found = value(estimator, &mut game.clone() as &mut dyn Game, &ids, run).unwrap();
        let distance = |(score, truth): (&florin_contribution::Score<usize>, &f64)| {
            (score.value - truth).powi(2)
        };
        let squares: f64 = found.scores.iter().zip(&truth).map(distance).sum();
        (squares / truth.iter().map(|truth| truth * truth).sum::<f64>()).sqrt()
    };
    let (mut published, mut mended) = (0.0, 0.0);
    for seed in 0..20 {
        published += off(&Gtg::as_published(), RunOptions::seeded(seed)) / 20.0;
        let untruncated = Gtg::corrected().with_thresholds(0.01, 0.0).unwrap();
        mended += off(&untruncated, RunOptions::seeded(seed).with_tolerance(0.02)) / 20.0;
    }
    println!("published {published:.4}, corrected to 2 %: {mended:.4}");
    assert!(published > 0.03 && mended < 0.02, "{published} {mended}");
}
