//! Valuation of market rounds in integers.

use florin_contribution::{
    ClosureSource, GameError, RoundRules, RoundValuation, Z_MICRO_PER_UNIT, value_round,
};
use proptest::prelude::*;

use crate::axioms::problem;
use crate::support::{LeastSquares, is_resolved, runner};

const RULES: RoundRules =
    RoundRules { z_micro: 2 * Z_MICRO_PER_UNIT, nodes: Some(3), seed: 0, is_resolved };

/// The optimum of every row is near w = 1 (losses ½(1 − w)² with a small spread); each update moves
/// w by its one number.
fn line(updates: &[f64]) -> LeastSquares {
    LeastSquares {
        features: vec![vec![1.0], vec![1.1], vec![0.9], vec![1.0]],
        targets: vec![1.0; 4],
        updates: updates.iter().map(|update| vec![*update]).collect(),
    }
}

fn round(problem: &LeastSquares, weights: &[u64]) -> RoundValuation {
    value_round(&mut problem.source(), weights, RULES).unwrap()
}

fn balances(valuation: &RoundValuation) {
    let explained: i64 =
        valuation.rows.iter().filter(|row| !row.excluded).map(|row| row.score_nano).sum();
    assert_eq!(explained + valuation.gap_nano, valuation.total_nano);
    assert_eq!(valuation.loss_before_nano - valuation.loss_after_nano, valuation.total_nano);
}

#[test]
fn honest_updates_score_in_proportion_to_their_weights() {
    // p = ¼, ¾; both move w by ½: Δ_N = ½. Mean gain: scores in the ratio 1 : 3.
    let valuation = round(&line(&[0.5, 0.5]), &[100, 300]);
    let [small, large] = &valuation.rows[..] else { panic!("two rows") };
    assert!(small.score_nano > 0);
    assert!((large.score_nano - 3 * small.score_nano).abs() <= 2, "{valuation:?}");
    // ½ − mean ½(1 − x/2)² over x = 1, 1.1, 0.9, 1 = ½ − ½(¼ + 0.2025 + 0.3025 + ¼)/4 = 0.374375.
    assert_eq!(valuation.loss_before_nano, 500_000_000);
    assert_eq!(valuation.total_nano, 374_375_000);
    assert_eq!(valuation.loss_after_nano, 125_625_000);
    assert!(valuation.gap_nano.abs() <= 2);
    assert_eq!(valuation.passes(), 5, "two losses and three gradients");
    balances(&valuation);
}

#[test]
fn a_harmful_update_is_excluded_and_the_rest_valued_without_it() {
    let valuation = round(&line(&[0.5, -0.4, 0.5]), &[100, 100, 300]);
    assert_eq!(
        valuation.rows.iter().map(|row| row.excluded).collect::<Vec<_>>(),
        [false, true, false]
    );
    assert!(valuation.rows[1].score_nano < 0, "an excluded player keeps its score of stage 1");
    // The remaining players are valued as if the harmful update had never been sent.
    let without = round(&line(&[0.5, 0.5]), &[100, 300]);
    assert_eq!(valuation.rows[0].score_nano, without.rows[0].score_nano);
    assert_eq!(valuation.rows[2].score_nano, without.rows[1].score_nano);
    assert_eq!(valuation.total_nano, without.total_nano);
    assert_eq!(valuation.remaining().collect::<Vec<_>>(), [0, 2]);
    // Stage 2 reuses the base losses of stage 1.
    assert_eq!(valuation.passes(), 9, "three losses and six gradients");
    balances(&valuation);
}

#[test]
fn a_zero_update_scores_zero_and_is_not_excluded() {
    let valuation = round(&line(&[0.5, 0.0]), &[100, 100]);
    let idle = &valuation.rows[1];
    assert_eq!((idle.score_nano, idle.error_nano, idle.excluded), (0, 0, false));
    assert!(idle.is_null_player() && !valuation.rows[0].is_null_player());
    balances(&valuation);
}

#[test]
fn an_update_with_weight_zero_scores_zero() {
    let valuation = round(&line(&[0.5, -0.5]), &[100, 0]);
    assert!(valuation.rows[1].is_null_player());
    assert_eq!(valuation.total_nano, round(&line(&[0.5]), &[7]).total_nano);
}

#[test]
fn a_round_of_harmful_updates_gains_nothing_and_keeps_the_model() {
    let valuation = round(&line(&[-0.5, -0.4]), &[100, 100]);
    assert!(valuation.rows.iter().all(|row| row.excluded && row.score_nano < 0));
    assert_eq!(valuation.total_nano, 0);
    assert_eq!(valuation.gap_nano, 0);
    assert_eq!(valuation.loss_after_nano, valuation.loss_before_nano);
    assert_eq!(valuation.passes(), 5, "no player is left to value");

    // The same holds for a round whose only remaining update has no weight.
    let valuation = round(&line(&[-0.5, 0.4]), &[100, 0]);
    assert_eq!(valuation.remaining().collect::<Vec<_>>(), [1]);
    assert_eq!((valuation.total_nano, valuation.gap_nano), (0, 0));
}

/// One update that lowers half of the rows' losses and raises those of the other half a little
/// more.
fn in_doubt(z_micro: u64) -> RoundValuation {
    let mut source = ClosureSource::new(
        1,
        |c: &[f64]| Ok::<_, GameError>(vec![1.0 + 1.2 * c[0], 1.0 - c[0]]),
        |_: &[f64]| Ok::<_, GameError>(vec![vec![1.2, -1.0]]),
    );
    value_round(&mut source, &[1], RoundRules { z_micro, nodes: Some(3), seed: 0, is_resolved })
        .unwrap()
}

#[test]
fn a_negative_score_within_its_error_is_not_excluded() {
    // φ = −0.1; rows −1.2 and 1, so SE = 2.2/2 = 1.1: −0.1 lies 1/11 = 0.0909… errors below zero.
    let doubted = in_doubt(2 * Z_MICRO_PER_UNIT).rows[0].clone();
    assert_eq!((doubted.score_nano, doubted.error_nano), (-100_000_000, 1_100_000_000));
    assert!(!doubted.excluded);
    assert!(!in_doubt(90_910).rows[0].excluded);
    assert!(in_doubt(90_909).rows[0].excluded);
    assert!(in_doubt(0).rows[0].excluded, "with z = 0 every negative score counts");
}

#[test]
fn remaining_scores_and_the_gap_sum_to_the_total() {
    let verdict = runner().run(&problem(1..8), |(problem, weights)| {
        let valuation = round(&problem, &weights);
        let explained: i64 =
            valuation.rows.iter().filter(|row| !row.excluded).map(|row| row.score_nano).sum();
        prop_assert_eq!(explained + valuation.gap_nano, valuation.total_nano);
        // Quadratic rounds leave rounding only: half a nano per row, and one for the losses.
        prop_assert!(valuation.gap_nano.abs() <= 8);
        let players: Vec<usize> = valuation.rows.iter().map(|row| row.player).collect();
        prop_assert_eq!(players, (0..weights.len()).collect::<Vec<_>>());
        Ok(())
    });
    verdict.unwrap();
}

#[test]
fn an_invalid_round_is_refused() {
    let code = |rows: usize, weights: &[u64], rules: RoundRules| {
        let mut source = ClosureSource::new(
            2,
            |_: &[f64]| Ok::<_, GameError>(vec![1.0; rows]),
            |_: &[f64]| Ok::<_, GameError>(vec![vec![0.0; rows]; 2]),
        );
        value_round(&mut source, weights, rules).expect_err("this must be refused").code()
    };
    assert_eq!(code(1, &[1, 1], RULES), "TOO_FEW_ROWS");
    assert_eq!(code(4, &[1], RULES), "WEIGHT_COUNT_MISMATCH");
    assert_eq!(code(4, &[], RULES), "WEIGHTS_SUM_TO_ZERO");
    assert_eq!(code(4, &[0, 0], RULES), "WEIGHTS_SUM_TO_ZERO");
    assert_eq!(code(4, &[1, 1], RoundRules { nodes: Some(0), ..RULES }), "NODES_OUT_OF_RANGE");

    let mut huge = ClosureSource::new(
        1,
        |c: &[f64]| Ok::<_, GameError>(vec![1e12 * (1.0 - c[0]); 2]),
        |_: &[f64]| Ok::<_, GameError>(vec![vec![-1e12; 2]]),
    );
    assert_eq!(value_round(&mut huge, &[1], RULES).unwrap_err().code(), "SCORE_OUT_OF_RANGE");
}
