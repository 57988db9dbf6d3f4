//! The null standard deviation (the score of a random direction) is added to a score's error in
//! quadrature.

use std::convert::Infallible;

use florin_contribution::{ClosureSource, RoundRules, RoundValuation, value_round};

use crate::support::is_resolved;

/// Two rows with equal losses along one direction: the sampling error is zero, so that only the
/// null standard deviation remains.
fn round(chance: Option<f64>) -> RoundValuation {
    let losses = |at: &[f64]| Ok::<_, Infallible>(vec![1.0 - at[0] * 0.5; 2]);
    let slopes = |_: &[f64]| Ok::<_, Infallible>(vec![vec![-0.5; 2]]);
    let mut source = ClosureSource::new(1, losses, slopes);
    if let Some(chance) = chance {
        source = source.with_random_direction_std(move |at| {
            assert_eq!(at, [0.5], "half-way along the path");
            Ok::<_, Infallible>(vec![chance])
        });
    }
    value_round(
        &mut source,
        &[7],
        RoundRules { z_micro: 2_000_000, nodes: Some(3), seed: 0, is_resolved },
    )
    .unwrap()
}

#[test]
fn null_standard_deviation_is_added_to_the_sampling_error() {
    let (without, with) = (round(None), round(Some(0.25)));
    assert_eq!((without.rows[0].score_nano, without.rows[0].error_nano), (500_000_000, 0));
    assert_eq!((with.rows[0].score_nano, with.rows[0].error_nano), (500_000_000, 250_000_000));
    assert_eq!(with.passes(), without.passes() + 1, "a gradient is a pass");
}

#[test]
fn a_null_standard_deviation_that_is_not_finite_is_refused() {
    let losses = |_: &[f64]| Ok::<_, Infallible>(vec![1.0; 2]);
    let slopes = |_: &[f64]| Ok::<_, Infallible>(vec![vec![0.0; 2]]);
    for chance in [vec![f64::NAN], vec![]] {
        let mut source = ClosureSource::new(1, losses, slopes)
            .with_random_direction_std(move |_: &[f64]| Ok::<_, Infallible>(chance.clone()));
        let rules = RoundRules { z_micro: 0, nodes: Some(1), seed: 0, is_resolved };
        assert!(value_round(&mut source, &[1], rules).is_err());
    }
}
