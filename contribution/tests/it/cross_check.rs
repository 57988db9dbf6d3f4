//! The table of a cross-check suffices to verify it, value by value and as a whole.

use florin_contribution::{
    AffineGame, AffineSource, CrossCheckOptions, Exact, FixedWeights, Game, RoundRules,
    cross_check_round, scores_from_table, to_nano, value_round,
};

use crate::support::{LeastSquares, is_resolved};

const RULES: CrossCheckOptions = CrossCheckOptions { seed: 7, passes: 64 };
const WEIGHTS: [u64; 4] = [2, 1, 5, 3];
/// Player 1 is excluded.
const MEMBERS: [usize; 3] = [0, 2, 3];

fn round() -> LeastSquares {
    LeastSquares {
        features: vec![vec![1.0, 0.5], vec![-0.25, 2.0], vec![0.75, -1.0]],
        targets: vec![1.0, 0.5, -0.75],
        updates: vec![vec![0.5, 0.0], vec![9.0, 9.0], vec![0.0, 0.25], vec![0.125, 0.5]],
    }
}

#[test]
fn the_table_matches_the_game_and_the_scores_follow_from_the_table() {
    let round = round();
    let check = cross_check_round(&Exact, &mut round.source(), &WEIGHTS, &MEMBERS, RULES).unwrap();
    assert_eq!(check.table.len(), 8);
    assert_eq!(check.passes, 8);
    assert!(check.table.is_sorted());
    let weights = FixedWeights::over(&WEIGHTS, &MEMBERS).unwrap();
    let mut game = AffineGame::new(round.source(), weights).unwrap();
    for (coalition, nano) in &check.table {
        assert!(!coalition.contains(1), "an excluded player is in no coalition");
        let mut own = florin_contribution::Coalition::empty(3);
        for player in coalition.players() {
            own.insert(MEMBERS.iter().position(|member| *member == player).unwrap());
        }
        assert_eq!(to_nano(game.value(&own).unwrap()).unwrap(), *nano, "{coalition}");
    }
    assert_eq!(
        scores_from_table(&Exact, &check.table, &MEMBERS, RULES).unwrap(),
        check.scores_nano
    );
}

#[test]
fn a_forged_or_missing_value_does_not_reproduce_the_scores() {
    let check =
        cross_check_round(&Exact, &mut round().source(), &WEIGHTS, &MEMBERS, RULES).unwrap();
    let mut forged = check.table.clone();
    forged[3].1 += 1_000;
    assert_ne!(scores_from_table(&Exact, &forged, &MEMBERS, RULES).unwrap(), check.scores_nano);
    let missing = scores_from_table(&Exact, &check.table[1..], &MEMBERS, RULES).unwrap_err();
    assert!(missing.to_string().contains("the table has no value of coalition {}"), "{missing}");
    let strange = scores_from_table(&Exact, &check.table, &[0, 2], RULES).unwrap_err();
    assert!(strange.to_string().contains("a player that is not a member"), "{strange}");
}

/// The loss is quadratic in the coefficients, so both estimators give the Shapley value.
#[test]
fn path_and_cross_check_agree_on_a_quadratic_round_up_to_rounding() {
    let round = round();
    let rules = RoundRules { z_micro: 1_000_000_000, nodes: Some(2), seed: 0, is_resolved };
    let weights = [2, 0, 5, 3];
    let valued = value_round(&mut round.source(), &weights, rules).unwrap();
    let check =
        cross_check_round(&Exact, &mut round.source(), &weights, &[0, 1, 2, 3], RULES).unwrap();
    for (row, nano) in valued.rows.iter().zip(&check.scores_nano) {
        assert!(row.score_nano.abs_diff(*nano) <= 2, "{row:?} against {nano}");
    }
    assert_eq!(round.source().players(), 4);
}

#[test]
fn scores_are_the_quadrature_of_the_published_derivatives() {
    let rules = RoundRules { z_micro: 1_000_000_000, nodes: Some(3), seed: 0, is_resolved };
    let valued = value_round(&mut round().source(), &[2, 0, 5, 3], rules).unwrap();
    for row in &valued.rows {
        assert_eq!(row.derivatives_nano.len(), 3);
        let weights = [5.0 / 18.0, 8.0 / 18.0, 5.0 / 18.0];
        let sum: f64 = weights.iter().zip(&row.derivatives_nano).map(|(w, s)| w * *s as f64).sum();
        assert!((sum - row.score_nano as f64).abs() <= 2.0, "{row:?}");
    }
}
