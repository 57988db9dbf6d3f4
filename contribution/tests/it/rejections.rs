//! Invalid input: every error has a stable code and names the problem.

use florin_contribution::{
    AffineGame, ClosureSource, Coalition, Exact, FixedWeights, Game, GameError, LeaveOneOut, Path,
    RunOptions, ValuationError, value,
};

use crate::support::FnGame;

fn refusal<T: std::fmt::Debug>(result: Result<T, ValuationError>) -> (&'static str, String) {
    let refusal = result.expect_err("this must be refused");
    (refusal.code(), refusal.to_string())
}

fn flat(players: usize) -> FnGame<impl FnMut(&Coalition) -> f64> {
    FnGame(players, |c: &Coalition| c.len() as f64)
}

#[test]
fn each_player_needs_one_unique_id() {
    let none: [u8; 0] = [];
    let (code, _) = refusal(value(&Exact, &mut flat(0), &none, RunOptions::seeded(0)));
    assert_eq!(code, "NO_PLAYERS");

    let (code, message) = refusal(value(&Exact, &mut flat(3), &["a", "b"], RunOptions::seeded(0)));
    assert_eq!(code, "ID_COUNT_MISMATCH");
    assert!(message.contains("2 ids for 3 players"), "{message}");

    let (code, message) =
        refusal(value(&Exact, &mut flat(3), &["a", "b", "a"], RunOptions::seeded(0)));
    assert_eq!(code, "DUPLICATE_ID");
    assert!(message.contains("players 0 and 2"), "{message}");
}

#[test]
fn exact_supports_at_most_24_players() {
    let ids: Vec<usize> = (0..25).collect();
    let (code, message) = refusal(value(&Exact, &mut flat(25), &ids, RunOptions::seeded(0)));
    assert_eq!(code, "TOO_MANY_PLAYERS");
    assert!(message.contains("25 players") && message.contains("at most 24"), "{message}");
}

#[test]
fn a_budget_below_the_minimum_is_refused_before_any_evaluation() {
    let mut asked = 0;
    let mut counted = FnGame(3, |c: &Coalition| {
        asked += 1;
        c.len() as f64
    });
    let run = RunOptions::seeded(0).with_budget(7);
    let (code, message) = refusal(value(&Exact, &mut counted, &[1, 2, 3], run));
    assert_eq!(code, "BUDGET_TOO_SMALL");
    assert!(message.contains("7 passes") && message.contains("needs 8"), "{message}");
    assert!(value(&Exact, &mut counted, &[1, 2, 3], RunOptions::seeded(0).with_budget(8)).is_ok());
    let run = RunOptions::seeded(0).with_budget(4);
    assert_eq!(refusal(value(&LeaveOneOut, &mut counted, &[1, 2, 3], run)).0, "BUDGET_TOO_SMALL");
    assert_eq!(asked, 8);
}

#[test]
fn a_value_that_is_not_finite_is_reported_with_its_coalition() {
    for nonsense in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut game =
            FnGame(3, |c: &Coalition| if c.to_string() == "{0, 2}" { nonsense } else { 1.0 });
        let (code, message) = refusal(value(&Exact, &mut game, &[1, 2, 3], RunOptions::seeded(0)));
        assert_eq!(code, "VALUE_NOT_FINITE");
        assert!(message.contains("coalition {0, 2}"), "{message}");
        let (code, _) = refusal(value(&LeaveOneOut, &mut game, &[1, 2, 3], RunOptions::seeded(0)));
        assert_eq!(code, "VALUE_NOT_FINITE");
    }
}

type Losses = Result<Vec<f64>, GameError>;
type Slopes = Result<Vec<Vec<f64>>, GameError>;

fn by_path(losses: fn(&[f64]) -> Losses, slopes: fn(&[f64]) -> Slopes) -> (&'static str, String) {
    let weights = FixedWeights::over_all(&[1, 1]).unwrap();
    let mut game = AffineGame::new(ClosureSource::new(2, losses, slopes), weights).unwrap();
    refusal(value(&Path::default(), &mut game, &["a", "b"], RunOptions::seeded(0)))
}

#[test]
fn the_path_refuses_losses_and_derivatives_that_are_not_finite_or_change_shape() {
    let fine_losses = |_: &[f64]| -> Losses { Ok(vec![1.0, 2.0]) };
    let fine_slopes = |_: &[f64]| -> Slopes { Ok(vec![vec![0.0, 0.0]; 2]) };

    let at_full =
        |c: &[f64]| -> Losses { Ok(vec![0.0, if c[0] > 0.0 { f64::INFINITY } else { 0.0 }]) };
    let (code, message) = by_path(at_full, fine_slopes);
    assert_eq!(code, "VALUE_NOT_FINITE");
    assert!(message.contains("coalition {0, 1}") && message.contains("row 1"), "{message}");

    let (code, message) = by_path(fine_losses, |_| Ok(vec![vec![0.0, 0.0], vec![0.0, f64::NAN]]));
    assert_eq!(code, "DERIVATIVE_NOT_FINITE");
    assert!(message.contains("player 1") && message.contains("row 1"), "{message}");

    let (code, _) = by_path(fine_losses, |_| Ok(vec![vec![0.0, 0.0], vec![0.0]]));
    assert_eq!(code, "SHAPE_MISMATCH");
    let (code, _) = by_path(|_| Ok(vec![]), fine_slopes);
    assert_eq!(code, "SHAPE_MISMATCH");
    let (code, message) = by_path(fine_losses, |_| Ok(vec![vec![0.0, 0.0]]));
    assert_eq!(code, "GAME_FAILED");
    assert!(message.contains("for 1 players, not for 2"), "{message}");
    let (code, message) = by_path(|_| Err(GameError::new("out of memory")), fine_slopes);
    assert_eq!(code, "GAME_FAILED");
    assert!(message.contains("out of memory"), "{message}");
}

#[test]
fn nodes_and_tolerance_stay_within_their_bounds() {
    for nodes in [0, 9, usize::MAX] {
        assert_eq!(refusal(Path::with_nodes(nodes)).0, "NODES_OUT_OF_RANGE");
    }
    for tolerance in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(refusal(Path::default().with_tolerance(tolerance)).0, "TOLERANCE_OUT_OF_RANGE");
    }
}

#[test]
fn weights_match_the_players_and_members_ascend() {
    let code = |result: Result<FixedWeights, florin_contribution::AffineError>| {
        result.expect_err("this must be refused").code()
    };
    assert_eq!(code(FixedWeights::over_all(&[])), "WEIGHTS_SUM_TO_ZERO");
    assert_eq!(code(FixedWeights::over_all(&[0, 0])), "WEIGHTS_SUM_TO_ZERO");
    assert_eq!(code(FixedWeights::over(&[1, 1, 1], &[1, 1])), "MEMBERS_NOT_ASCENDING");
    assert_eq!(code(FixedWeights::over(&[1, 1, 1], &[2, 0])), "MEMBERS_NOT_ASCENDING");
    assert_eq!(code(FixedWeights::over(&[1, 1, 1], &[3])), "MEMBERS_NOT_ASCENDING");
    let shares = FixedWeights::over(&[u64::MAX, 7, u64::MAX], &[0, 2]).unwrap();
    assert_eq!(shares.shares(), [0.5, 0.5]);

    let source = ClosureSource::new(
        2,
        |_: &[f64]| -> Losses { Ok(vec![]) },
        |_: &[f64]| -> Slopes { Ok(vec![]) },
    );
    let refused = AffineGame::new(source, FixedWeights::over_all(&[1, 2, 3]).unwrap());
    assert_eq!(refused.err().unwrap().code(), "WEIGHT_COUNT_MISMATCH");
}

/// Games and estimators may be trait objects, so that a host can select them at run time.
#[test]
fn games_and_estimators_may_be_trait_objects() {
    let game: &mut dyn Game = &mut flat(3);
    let estimators: [&dyn florin_contribution::Estimator<dyn Game>; 2] = [&Exact, &LeaveOneOut];
    for estimator in estimators {
        let found = value(estimator, &mut *game, &["a", "b", "c"], RunOptions::seeded(0)).unwrap();
        assert_eq!(found.scores[2].value, 1.0, "{} {}", estimator.name(), estimator.version());
    }
}
