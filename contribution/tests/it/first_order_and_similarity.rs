//! First-order scores, cosine similarities and reputations.

use std::borrow::Cow;

use florin_contribution::{
    AffineGame, Coalition, Directions, Exact, FirstOrder, FixedWeights, Game, GameError,
    Reputation, RunOptions, SmoothGame, cosine, value,
};

use crate::support::LeastSquares;

/// One feature, two rows (x = 1, targets 2 and 4), updates of 1, 2 and 0.
fn round() -> LeastSquares {
    LeastSquares {
        features: vec![vec![1.0], vec![1.0]],
        targets: vec![2.0, 4.0],
        updates: vec![vec![1.0], vec![2.0], vec![0.0]],
    }
}

#[test]
fn the_first_order_value_is_the_derivative_at_zero() {
    let round = round();
    let weights = FixedWeights::over_all(&[2, 1, 1]).unwrap();
    let mut game = AffineGame::new(round.source(), weights).unwrap();
    let found = value(&FirstOrder, &mut game, &["a", "b", "idle"], RunOptions::seeded(0)).unwrap();
    // Loss ½(y − w)², so the derivative of a row along p·Δ is p·Δ·y: 0.5·1·(2, 4), 0.25·2·(2,
    // 4), 0.
    let values: Vec<f64> = found.scores.iter().map(|score| score.value).collect();
    assert_eq!(values, [1.5, 1.5, 0.0]);
    // Rows 1 and 2 have a standard deviation of √½, and the standard error of their mean is 0.5.
    assert_eq!(found.scores[0].standard_error, Some(0.5));
    assert_eq!(found.scores[0].estimator_error, Some(0.0));
    // Together they move by 1: ½(4 + 16) − ½(1 + 9) over two rows is 2.5; 0.5 is due to
    // curvature.
    assert_eq!((found.total, found.gap), (2.5, -0.5));
    assert_eq!((found.evaluations, found.gradients), (2, 1));

    let shapley = value(&Exact, &mut game, &["a", "b", "idle"], RunOptions::seeded(0)).unwrap();
    assert_eq!(shapley.scores[2].value, 0.0);
    assert!((shapley.scores[0].value - 1.25).abs() < 1e-12);
}

/// v = slope · t, for one player.
struct LinearGame(f64);

impl Game for LinearGame {
    fn players(&self) -> usize {
        1
    }

    fn value(&mut self, coalition: &Coalition) -> Result<f64, GameError> {
        Ok(coalition.len() as f64 * self.0)
    }
}

impl SmoothGame for LinearGame {
    fn diagonal(&mut self, t: f64) -> Result<Vec<f64>, GameError> {
        Ok(vec![t * if self.0.is_nan() { 1.0 } else { self.0 }])
    }

    fn directional_derivatives(&mut self, _t: f64) -> Result<Vec<Vec<f64>>, GameError> {
        Ok(vec![vec![self.0]])
    }
}

#[test]
fn the_first_order_value_of_a_linear_game_is_exact_and_nan_is_refused() {
    let found = value(&FirstOrder, &mut LinearGame(3.0), &["only"], RunOptions::seeded(0)).unwrap();
    assert_eq!((found.scores[0].value, found.gap), (3.0, 0.0));
    let refusal = value(&FirstOrder, &mut LinearGame(f64::NAN), &["only"], RunOptions::seeded(0))
        .unwrap_err();
    assert_eq!(refusal.code(), "DERIVATIVE_NOT_FINITE");
    let poor = RunOptions::seeded(0).with_budget(2);
    let refusal = value(&FirstOrder, &mut LinearGame(1.0), &["only"], poor).unwrap_err();
    assert_eq!(refusal.code(), "BUDGET_TOO_SMALL");
}

fn close(got: &[f64], wanted: &[f64]) {
    assert_eq!(got.len(), wanted.len());
    for (got, wanted) in got.iter().zip(wanted) {
        assert!((got - wanted).abs() < 1e-7, "{got} is not {wanted}");
    }
}

#[test]
fn cosines_are_taken_with_the_sum_of_normalised_directions() {
    let half = 0.5_f64.sqrt();
    let mut right_angle = vec![vec![1.0_f32, 0.0], vec![0.0, 1.0]];
    close(&cosine(&mut right_angle, &[0.5, 0.5]).unwrap(), &[half, half]);
    // The length does not matter, and the cosine of a zero vector is 0.
    let mut uneven = vec![vec![1000.0_f32, 0.0], vec![0.0, 1.0], vec![0.0, 0.0]];
    close(&cosine(&mut uneven, &[0.25, 0.25, 0.5]).unwrap(), &[half, half, 0.0]);
    // Shares of 3 to 1 weight the sum: (3, 1)/√10.
    let leaning = [3.0 / 10.0_f64.sqrt(), 1.0 / 10.0_f64.sqrt()];
    close(&cosine(&mut right_angle, &[0.75, 0.25]).unwrap(), &leaning);
    let mut contrary = vec![[1.0_f32], [1.0], [-5.0]];
    close(&cosine(&mut contrary, &[0.25; 3]).unwrap(), &[1.0, 1.0, -1.0]);
    let mut undone = vec![[1.0_f32], [-1.0]];
    close(&cosine(&mut undone, &[0.5, 0.5]).unwrap(), &[0.0, 0.0]);
    close(&cosine(&mut vec![[-2.0_f32, 1.0]], &[1.0]).unwrap(), &[1.0]);
}

/// The reason why cosines are not used for payment.
#[test]
fn splitting_an_identity_multiplies_its_cosines() {
    let alone: f64 = cosine(&mut vec![[1.0_f32, 0.0], [0.0, 1.0]], &[0.5; 2]).unwrap()[0];
    let mut split = vec![[1.0_f32, 0.0], [1.0, 0.0], [0.0, 1.0]];
    let parts: f64 = cosine(&mut split, &[0.25, 0.25, 0.5]).unwrap()[..2].iter().sum();
    assert!(parts > 1.9 * alone, "{parts} for two halves of {alone}");
}

struct UnreadableDirections;

impl Directions for UnreadableDirections {
    fn players(&self) -> usize {
        2
    }

    fn direction(&mut self, player: usize) -> Result<Cow<'_, [f32]>, GameError> {
        if player == 1 {
            return Err(GameError::new("update 1 is missing"));
        }
        Ok(Cow::Owned(vec![1.0]))
    }
}

#[test]
fn invalid_directions_are_refused() {
    let code = |directions: &mut Vec<Vec<f32>>, shares: &[f64]| {
        let refusal = cosine(directions, shares).expect_err("this must be refused");
        (refusal.code(), refusal.to_string())
    };
    assert_eq!(code(&mut vec![], &[]).0, "NO_PLAYERS");
    assert_eq!(code(&mut vec![vec![1.0]], &[0.5, 0.5]).0, "SHARE_COUNT_MISMATCH");
    for share in [-0.1, f64::NAN, f64::INFINITY] {
        let (code, message) = code(&mut vec![vec![1.0], vec![1.0]], &[1.0, share]);
        assert_eq!(code, "SHARE_OUT_OF_RANGE");
        assert!(message.contains("player 1"), "{message}");
    }
    let (length, message) = code(&mut vec![vec![1.0, 2.0], vec![1.0]], &[0.5, 0.5]);
    assert_eq!(length, "LENGTH_DIFFERS");
    assert!(message.contains("player 1") && message.contains("1 numbers"), "{message}");
    let (nonsense, message) = code(&mut vec![vec![1.0, 2.0], vec![1.0, f32::NAN]], &[0.5, 0.5]);
    assert_eq!(nonsense, "DIRECTION_NOT_FINITE");
    assert!(message.contains("player 1") && message.contains("NaN at 1"), "{message}");
    let refusal = cosine(&mut UnreadableDirections, &[0.5, 0.5]).unwrap_err();
    assert_eq!(refusal.code(), "DIRECTION_UNREADABLE");
    assert!(refusal.to_string().contains("update 1 is missing"), "{refusal}");
}

#[test]
fn a_reputation_is_smoothed_by_alpha() {
    let mut reputation = Reputation::new(2, 0.75).unwrap();
    reputation.update(&[1.0, -1.0]).unwrap();
    assert_eq!(reputation.values(), [0.25, -0.25]);
    reputation.update(&[1.0, 0.0]).unwrap();
    assert_eq!(reputation.values(), [0.4375, -0.1875]);

    assert_eq!(reputation.update(&[1.0]).unwrap_err().code(), "SCORE_COUNT_MISMATCH");
    assert_eq!(reputation.update(&[1.0, f64::NAN]).unwrap_err().code(), "SCORE_NOT_FINITE");
    assert_eq!(reputation.values(), [0.4375, -0.1875], "an error changes nothing");
    for alpha in [-0.1, 1.1, f64::NAN] {
        assert_eq!(Reputation::new(1, alpha).unwrap_err().code(), "ALPHA_OUT_OF_RANGE");
    }
}
