//! Games with values from the textbooks, or with values that are easy to compute by hand.

use florin_contribution::{
    Coalition, Exact, Game, GameError, LeaveOneOut, Path, RunOptions, SmoothGame, value,
};

use crate::support::FnGame;

fn close(got: f64, wanted: f64) {
    assert!((got - wanted).abs() < 1e-12, "{got} is not {wanted}");
}

/// One left glove, two right ones: the left one is scarce.
#[test]
fn the_scarce_glove_gets_two_thirds() {
    let mut gloves =
        FnGame(3, |c: &Coalition| f64::from(c.contains(0) && (c.contains(1) || c.contains(2))));
    let shapley = value(&Exact, &mut gloves, &["L", "R1", "R2"], RunOptions::seeded(7)).unwrap();
    close(shapley.scores[0].value, 2.0 / 3.0);
    close(shapley.scores[1].value, 1.0 / 6.0);
    close(shapley.scores[2].value, 1.0 / 6.0);
    close(shapley.gap, 0.0);
    assert_eq!(shapley.evaluations, 8);
    assert_eq!(shapley.scores[0].standard_error, None, "one row has no standard error");

    // Each right glove can be replaced by the other: leave-one-out values only the left one.
    let marginal =
        value(&LeaveOneOut, &mut gloves, &["L", "R1", "R2"], RunOptions::seeded(7)).unwrap();
    let values: Vec<f64> = marginal.scores.iter().map(|score| score.value).collect();
    assert_eq!(values, [1.0, 0.0, 0.0]);
    assert_eq!(marginal.evaluations, 5);
}

/// The airport game: the runway's length is that of the largest plane, and the planes that need a
/// segment share its cost.
#[test]
fn planes_share_the_runway_segments_they_use() {
    let lengths = [1.0, 2.0, 3.0, 3.0];
    let mut airport =
        FnGame(4, |c: &Coalition| c.players().map(|p| lengths[p]).fold(0.0, f64::max));
    let shares = value(&Exact, &mut airport, &[1, 2, 3, 4], RunOptions::seeded(0)).unwrap();
    let first = 1.0 / 4.0;
    let second = first + 1.0 / 3.0;
    let third = second + 1.0 / 2.0;
    for (score, wanted) in shares.scores.iter().zip([first, second, third, third]) {
        close(score.value, wanted);
    }
    close(shares.total, 3.0);
}

#[test]
fn the_value_of_the_empty_coalition_is_not_divided() {
    let mut gift = FnGame(2, |c: &Coalition| 10.0 + c.len() as f64);
    let values = value(&Exact, &mut gift, &["a", "b"], RunOptions::seeded(0)).unwrap();
    close(values.total, 2.0);
    close(values.scores[1].value, 1.0);
}

#[test]
fn a_single_player_gets_everything() {
    let mut alone = FnGame(1, |c: &Coalition| c.len() as f64 * 0.75);
    let values = value(&Exact, &mut alone, &["only"], RunOptions::seeded(0)).unwrap();
    assert_eq!(values.scores[0].value, 0.75);
    assert_eq!(values.gap, 0.0);
}

/// v(x, y) = x²y, so ∂x = 2xy and ∂y = x²: on the diagonal 2t² and t², integrals 2/3 and 1/3.
struct Cubic;

impl Game for Cubic {
    fn players(&self) -> usize {
        2
    }

    fn value(&mut self, coalition: &Coalition) -> Result<f64, GameError> {
        Ok(f64::from(coalition.len() == 2))
    }
}

impl SmoothGame for Cubic {
    fn diagonal(&mut self, t: f64) -> Result<Vec<f64>, GameError> {
        Ok(vec![t * t * t])
    }

    fn directional_derivatives(&mut self, t: f64) -> Result<Vec<Vec<f64>>, GameError> {
        Ok(vec![vec![2.0 * t * t], vec![t * t]])
    }
}

#[test]
fn aumann_shapley_value_of_a_cubic_matches_the_integral() {
    for nodes in 2..=8 {
        let path = Path::with_nodes(nodes).unwrap();
        let values = value(&path, &mut Cubic, &["x", "y"], RunOptions::seeded(0)).unwrap();
        close(values.scores[0].value, 2.0 / 3.0);
        close(values.scores[1].value, 1.0 / 3.0);
        assert_eq!((values.evaluations, values.gradients), (2, nodes as u64));
    }
}

#[test]
fn a_gap_beyond_the_tolerance_adds_a_node() {
    // One node leaves 1 − 3·(1/2)² = 1/4 of the cubic unexplained; two are exact.
    let one = Path::with_nodes(1).unwrap();
    let rough = value(&one, &mut Cubic, &["x", "y"], RunOptions::seeded(0)).unwrap();
    close(rough.gap, 0.25);

    let closer = one.with_tolerance(1e-9).unwrap();
    let mut steps = Vec::new();
    let mut watch = |progress: florin_contribution::ValuationProgress| steps.push(progress);
    let run = RunOptions::seeded(0).with_progress(&mut watch);
    let fine = value(&closer, &mut Cubic, &["x", "y"], run).unwrap();
    close(fine.gap, 0.0);
    assert_eq!(fine.gradients, 1 + 2);
    assert_eq!(steps.len(), 5);
    assert!(steps.iter().all(|step| step.done <= step.planned));

    let poor =
        value(&closer, &mut Cubic, &["x", "y"], RunOptions::seeded(0).with_budget(4)).unwrap();
    close(poor.gap, 0.25);
    assert_eq!(poor.gradients, 1, "a budget of four passes does not cover two more gradients");
}
