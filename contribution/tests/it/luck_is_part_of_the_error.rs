//! What a random direction would get by chance is added to a score's error, as squares.

use std::convert::Infallible;

use florin_contribution::{Closures, RoundRules, RoundValuation, value_round};

/// Two rows whose losses fall alike along one direction: the sampling error is zero, so that what is left is luck.
fn round(chance: Option<f64>) -> RoundValuation {
    let losses = |at: &[f64]| Ok::<_, Infallible>(vec![1.0 - at[0] * 0.5; 2]);
    let slopes = |_: &[f64]| Ok::<_, Infallible>(vec![vec![-0.5; 2]]);
    let mut source = Closures::new(1, losses, slopes);
    if let Some(chance) = chance {
        source = source.with_chance(move |at| {
            assert_eq!(at, [0.5], "half-way along the path");
            Ok::<_, Infallible>(vec![chance])
        });
    }
    value_round(&mut source, &[7], RoundRules { z_micro: 2_000_000, nodes: 3 }).unwrap()
}

#[test]
fn luck_is_added_to_the_sampling_error() {
    let (without, with) = (round(None), round(Some(0.25)));
    assert_eq!((without.rows[0].score_nano, without.rows[0].error_nano), (500_000_000, 0));
    assert_eq!((with.rows[0].score_nano, with.rows[0].error_nano), (500_000_000, 250_000_000));
    assert_eq!(with.passes(), without.passes() + 1, "a gradient is a pass");
}

#[test]
fn luck_that_is_no_number_is_refused() {
    let losses = |_: &[f64]| Ok::<_, Infallible>(vec![1.0; 2]);
    let slopes = |_: &[f64]| Ok::<_, Infallible>(vec![vec![0.0; 2]]);
    for chance in [vec![f64::NAN], vec![]] {
        let mut source = Closures::new(1, losses, slopes)
            .with_chance(move |_: &[f64]| Ok::<_, Infallible>(chance.clone()));
        let rules = RoundRules { z_micro: 0, nodes: 1 };
        assert!(value_round(&mut source, &[1], rules).is_err());
    }
}
