//! Truncation between rounds, by a published threshold.

use florin_contribution::games::SyntheticGame;
use florin_contribution::{
    BetweenRoundTruncation, Exact, LeverageShap, RunOptions, exceeds_threshold, value,
};

use crate::support;

fn truncated<E>(threshold_nano: u64, inner: E) -> BetweenRoundTruncation<E> {
    BetweenRoundTruncation { threshold_nano, inner }
}

#[test]
fn the_threshold_is_compared_in_whole_nano_nats() {
    let table = [
        (0.0, 0, false),
        (0.4e-9, 0, false),
        (0.6e-9, 0, true),
        (-5e-9, 5, false),
        (-5e-9, 4, true),
        (1e-3, 1_000_000, false),
        (1.000_001e-3, 1_000_000, true),
        (1e300, u64::MAX, true),
    ];
    for (total, threshold, looked_at) in table {
        assert_eq!(exceeds_threshold(total, threshold), looked_at, "{total:e} against {threshold}");
    }
}

#[test]
fn below_the_threshold_all_scores_are_zero_after_two_passes() {
    let mut quiet = support::FnGame(5, |c: &florin_contribution::Coalition| c.len() as f64 * 1e-6);
    let ids = [1, 2, 3, 4, 5];
    let found = value(&truncated(5_000, Exact), &mut quiet, &ids, RunOptions::seeded(0)).unwrap();
    assert!(found.scores.iter().all(|score| score.value == 0.0), "{found:?}");
    assert_eq!(found.evaluations, 2);
    assert!((found.gap - 5e-6).abs() < 1e-18);
    assert!(found.remark.unwrap().contains("published 5000 nano"));

    let found = value(&truncated(4_999, Exact), &mut quiet, &ids, RunOptions::seeded(0)).unwrap();
    assert!((found.scores[4].value - 1e-6).abs() < 1e-18);
}

#[test]
fn above_the_threshold_the_inner_estimator_is_unchanged() {
    let mut game = SyntheticGame::saturating(8, 1);
    let ids: Vec<usize> = (0..8).collect();
    let run = || RunOptions::seeded(3).with_budget(60);
    let plain = value(&LeverageShap, &mut game, &ids, run()).unwrap();
    let wrapped = value(&truncated(1_000_000, LeverageShap), &mut game, &ids, run()).unwrap();
    assert_eq!(plain, wrapped);
    let poor = RunOptions::seeded(3).with_budget(17);
    let refusal = value(&truncated(1, LeverageShap), &mut game, &ids, poor).unwrap_err();
    assert_eq!(refusal.code(), "BUDGET_TOO_SMALL", "16 passes for the fit and 2 for the threshold");
}
