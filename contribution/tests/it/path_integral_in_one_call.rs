//! A source that differentiates all nodes in one call gives the same scores as one that does not.

use florin_contribution::{
    AffineSource, GameError, PathIntegral, RoundError, RoundRules, ValuationError, value_round,
};

use crate::support::{LeastSquares, is_resolved};

/// Differentiates all nodes in one call, and corrupts the result with `spoil`.
struct PathIntegralSource<'a> {
    round: &'a LeastSquares,
    spoil: fn(&mut PathIntegral),
}

impl AffineSource for PathIntegralSource<'_> {
    fn players(&self) -> usize {
        self.round.updates.len()
    }

    fn losses(&mut self, coefficients: &[f64]) -> Result<Vec<f64>, GameError> {
        Ok(self.round.losses(coefficients))
    }

    fn directional_derivatives(&mut self, _: &[f64]) -> Result<Vec<Vec<f64>>, GameError> {
        Err(GameError::new("unexpected call for single derivatives"))
    }

    fn path_integral(
        &mut self,
        coefficients: &[f64],
        nodes: &[(f64, f64)],
    ) -> Result<Option<PathIntegral>, GameError> {
        let mut integrals = vec![vec![0.0; self.round.targets.len()]; self.players()];
        let mut slopes = Vec::new();
        for (t, weight) in nodes {
            let at: Vec<f64> = coefficients.iter().map(|c| t * c).collect();
            let here = self.round.directional_derivatives(&at);
            for (sum, slope) in integrals.iter_mut().flatten().zip(here.iter().flatten()) {
                *sum += weight * slope;
            }
            let mean = |rows: &Vec<f64>| rows.iter().sum::<f64>() / rows.len() as f64;
            slopes.push(here.iter().map(mean).collect());
        }
        let mut along = PathIntegral { integrals, node_derivatives: slopes };
        (self.spoil)(&mut along);
        Ok(Some(along))
    }
}

const RULES: RoundRules = RoundRules { z_micro: 2_000_000, nodes: Some(3), seed: 0, is_resolved };
const WEIGHTS: [u64; 3] = [4, 1, 3];

fn round() -> LeastSquares {
    LeastSquares {
        features: vec![vec![1.0, 0.5], vec![-0.25, 2.0], vec![0.75, -1.0]],
        targets: vec![1.0, 0.5, -0.75],
        updates: vec![vec![0.5, 0.0], vec![-9.0, 0.125], vec![0.0, 0.25]],
    }
}

#[test]
fn path_integral_in_one_call_equals_node_by_node() {
    let round = round();
    let one_by_one = value_round(&mut round.source(), &WEIGHTS, RULES).unwrap();
    let mut source = PathIntegralSource { round: &round, spoil: |_| () };
    assert_eq!(value_round(&mut source, &WEIGHTS, RULES).unwrap(), one_by_one);
}

#[test]
fn an_invalid_path_integral_is_refused() {
    let round = round();
    let refused = |spoil| match value_round(
        &mut PathIntegralSource { round: &round, spoil },
        &WEIGHTS,
        RULES,
    ) {
        Err(RoundError::Valuation(error)) => error,
        other => panic!("{other:?}"),
    };
    let error = refused(|along| along.integrals[1][2] = f64::NAN);
    assert!(
        matches!(error, ValuationError::DerivativeNotFinite { player: 1, row: 2, .. }),
        "{error}"
    );
    let error = refused(|along| along.node_derivatives[2][0] = f64::INFINITY);
    assert!(matches!(error, ValuationError::DerivativeNotFinite { player: 0, .. }), "{error}");
    assert!(matches!(
        refused(|along| along.node_derivatives.truncate(1)),
        ValuationError::ShapeMismatch { .. }
    ));
    let error = refused(|along| along.integrals.truncate(2));
    assert!(error.to_string().contains("for 2 players, not for 3"), "{error}");
}
