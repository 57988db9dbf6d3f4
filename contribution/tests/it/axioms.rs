//! Axioms of the estimators, on random least-squares rounds (quadratic games) and on logistic
//! rounds.

use std::cell::RefCell;
use std::ops::Range;

use florin_contribution::{
    AffineGame, AffineSource, ClosureSource, Exact, FixedWeights, GameError, Path, RunOptions,
    Valuation, value,
};
use proptest::prelude::*;

use crate::support::{LeastSquares, runner};

const ROWS: usize = 12;
const DIMENSIONS: usize = 4;

fn vector(length: usize) -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(-1.0..1.0_f64, length)
}

/// A round and the weights of its players.
pub(crate) fn problem(players: Range<usize>) -> impl Strategy<Value = (LeastSquares, Vec<u64>)> {
    players.prop_flat_map(|players| {
        (
            prop::collection::vec(vector(DIMENSIONS), ROWS),
            vector(ROWS),
            prop::collection::vec(vector(DIMENSIONS), players),
            prop::collection::vec(1..10_000_u64, players),
        )
            .prop_map(|(features, targets, updates, weights)| {
                (LeastSquares { features, targets, updates }, weights)
            })
    })
}

fn close(got: f64, wanted: f64) -> Result<(), TestCaseError> {
    prop_assert!((got - wanted).abs() < 1e-12, "{} is not {}", got, wanted);
    Ok(())
}

fn by_path(source: impl AffineSource, weights: &[u64], nodes: usize) -> Valuation<usize> {
    let ids: Vec<usize> = (0..weights.len()).collect();
    let mut game = AffineGame::new(source, FixedWeights::over_all(weights).unwrap()).unwrap();
    value(&Path::with_nodes(nodes).unwrap(), &mut game, &ids, RunOptions::seeded(3)).unwrap()
}

fn exactly(source: impl AffineSource, weights: &[u64]) -> Valuation<usize> {
    let ids: Vec<usize> = (0..weights.len()).collect();
    let mut game = AffineGame::new(source, FixedWeights::over_all(weights).unwrap()).unwrap();
    value(&Exact, &mut game, &ids, RunOptions::seeded(3)).unwrap()
}

#[test]
fn on_a_quadratic_round_the_path_is_the_shapley_value_with_any_number_of_nodes() {
    let verdict = runner().run(&problem(1..6), |(problem, weights)| {
        let shapley = exactly(problem.source(), &weights);
        for nodes in [1, 2, 3, 8] {
            let path = by_path(problem.source(), &weights, nodes);
            for (path, shapley) in path.scores.iter().zip(&shapley.scores) {
                close(path.value, shapley.value)?;
                close(path.standard_error.unwrap(), shapley.standard_error.unwrap())?;
            }
        }
        Ok(())
    });
    verdict.unwrap();
}

#[test]
fn scores_sum_to_the_total_gain() {
    let verdict = runner().run(&problem(1..6), |(problem, weights)| {
        close(exactly(problem.source(), &weights).gap, 0.0)?;
        let path = by_path(problem.source(), &weights, 3);
        close(path.gap, 0.0)?;
        close(path.total, exactly(problem.source(), &weights).total)
    });
    verdict.unwrap();
}

#[test]
fn equal_updates_of_equal_weight_score_equally() {
    let verdict = runner().run(&problem(2..6), |(mut problem, mut weights)| {
        problem.updates[1] = problem.updates[0].clone();
        weights[1] = weights[0];
        let path = by_path(problem.source(), &weights, 3);
        prop_assert_eq!(path.scores[0].value, path.scores[1].value);
        let shapley = exactly(problem.source(), &weights);
        close(shapley.scores[0].value, shapley.scores[1].value)
    });
    verdict.unwrap();
}

/// A logistic loss: row r loses ln(1 + exp(−y_r x_r·w)), which quadrature does not integrate
/// exactly.
fn logistic(problem: &LeastSquares) -> impl AffineSource + '_ {
    let margin = |row: usize, coefficients: &[f64]| -> f64 {
        let sign = if problem.targets[row] < 0.0 { -1.0 } else { 1.0 };
        let moves = problem.updates.iter().zip(coefficients);
        let along = |update: &[f64]| -> f64 {
            problem.features[row].iter().zip(update).map(|(x, d)| x * d).sum()
        };
        sign * 2.0 * moves.map(|(update, c)| c * along(update)).sum::<f64>()
    };
    let losses = move |c: &[f64]| -> Result<Vec<f64>, GameError> {
        Ok((0..ROWS).map(|row| (-margin(row, c)).exp().ln_1p()).collect())
    };
    let slopes = move |c: &[f64]| -> Result<Vec<Vec<f64>>, GameError> {
        let players = problem.updates.len();
        let unit = |player: usize| -> Vec<f64> {
            (0..players).map(|other| f64::from(other == player)).collect()
        };
        let slope =
            |player: usize, row: usize| -margin(row, &unit(player)) / (1.0 + margin(row, c).exp());
        Ok((0..players).map(|p| (0..ROWS).map(|row| slope(p, row)).collect()).collect())
    };
    ClosureSource::new(problem.updates.len(), losses, slopes)
}

#[test]
fn splitting_a_player_changes_neither_its_sum_nor_other_scores() {
    let cases = (problem(2..6), 1..100_u64);
    let verdict = runner().run(&cases, |((mut problem, weights), part)| {
        let scaled: Vec<u64> = weights.iter().map(|weight| weight * 100).collect();
        let whole = by_path(logistic(&problem), &scaled, 3);

        problem.updates.push(problem.updates[0].clone());
        let mut split = scaled;
        split[0] = weights[0] * (100 - part);
        split.push(weights[0] * part);
        let parts = by_path(logistic(&problem), &split, 3);

        let twins = parts.scores[0].value + parts.scores[weights.len()].value;
        close(twins, whole.scores[0].value)?;
        for player in 1..weights.len() {
            close(parts.scores[player].value, whole.scores[player].value)?;
        }
        Ok(())
    });
    verdict.unwrap();
}

/// Not a theorem, so not required of every round: updates that cancel each other leave a small
/// total with a large relative error. The median round must meet the bounds.
#[test]
fn three_gradients_come_close_to_the_shapley_value_of_logistic_rounds() {
    let seen = RefCell::new((Vec::new(), Vec::new()));
    let verdict = runner().run(&problem(6..7), |(problem, weights)| {
        let shapley = exactly(logistic(&problem), &weights);
        let path = by_path(logistic(&problem), &weights, 3);
        let pairs = || path.scores.iter().zip(&shapley.scores);
        let off: f64 = pairs().map(|(p, s)| (p.value - s.value).powi(2)).sum::<f64>().sqrt();
        let size: f64 = pairs().map(|(_, s)| s.value.powi(2)).sum::<f64>().sqrt();
        let (distances, gaps) = &mut *seen.borrow_mut();
        distances.push(off / size);
        gaps.push(path.gap.abs() / size);
        Ok(())
    });
    verdict.unwrap();
    let (distances, gaps) = seen.into_inner();
    let (distance, gap) = (median(distances), median(gaps));
    println!("median distance {distance:e}, median gap {gap:e}");
    assert!(distance < 0.01, "the median round is off by {distance}");
    assert!(gap < 1e-4, "the median round leaves {gap} unexplained");
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

#[test]
fn the_same_round_gives_the_same_bits() {
    let verdict = runner().run(&problem(3..5), |(problem, weights)| {
        prop_assert_eq!(
            by_path(logistic(&problem), &weights, 3),
            by_path(logistic(&problem), &weights, 3)
        );
        Ok(())
    });
    verdict.unwrap();
}
