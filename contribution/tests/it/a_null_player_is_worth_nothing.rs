//! A null player scores exactly zero under every estimator.

use florin_contribution::{AffineGame, Exact, FixedWeights, LeaveOneOut, Path, RunOptions, value};
use proptest::prelude::*;

use crate::axioms::problem;
use crate::support::runner;

#[test]
fn a_zero_update_scores_exactly_zero_with_an_error_of_exactly_zero() {
    let cases = (problem(2..6), 0..6_usize, 1..1_000_u64);
    let verdict = runner().run(&cases, |((mut problem, mut weights), place, weight)| {
        let place = place.min(problem.updates.len());
        let dimensions = problem.features[0].len();
        problem.updates.insert(place, vec![0.0; dimensions]);
        weights.insert(place, weight);
        let ids: Vec<usize> = (0..weights.len()).collect();
        let mut game =
            AffineGame::new(problem.source(), FixedWeights::over_all(&weights).unwrap()).unwrap();
        let found = [
            value(&Exact, &mut game, &ids, RunOptions::seeded(1)).unwrap(),
            value(&LeaveOneOut, &mut game, &ids, RunOptions::seeded(1)).unwrap(),
            value(&Path::default(), &mut game, &ids, RunOptions::seeded(1)).unwrap(),
        ];
        for valuation in found {
            prop_assert_eq!(valuation.scores[place].value, 0.0);
            prop_assert_eq!(valuation.scores[place].standard_error, Some(0.0));
        }
        Ok(())
    });
    verdict.unwrap();
}
