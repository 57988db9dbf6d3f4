//! The gap rules: a stage climbs to more nodes and to other estimators until its scores explain its
//! improvement.

use std::cell::Cell;

use florin_contribution::{
    AffineSource, ClosureSource, GameError, PERMUTED_PLAYERS_MAX, RoundRules, RoundValuation,
    StageEstimator, stage_estimators, value_members, value_round, value_round_confirmed,
};

use crate::support::is_resolved;

const RULES: RoundRules = RoundRules { z_micro: 2_000_000, nodes: Some(3), seed: 7, is_resolved };

/// A loss with one step along the round's path, of a given steepness, on two rows; it counts its
/// passes.
struct Step<'a> {
    players: usize,
    steepness: f64,
    passes: &'a Cell<u64>,
}

impl Step<'_> {
    /// The loss of a row and its derivative where the coefficients sum to `x`.
    fn at(&self, coefficients: &[f64], row: f64) -> (f64, f64) {
        // Unequal players: the last one moves the model most.
        let weighted = coefficients.iter().enumerate().map(|(i, c)| c * (1.0 + i as f64));
        let whole: f64 = (1..=self.players).sum::<usize>() as f64 / self.players as f64;
        let x = weighted.sum::<f64>() / whole;
        let below = 1.0 / (1.0 + (self.steepness * (x - 0.37 - 0.01 * row)).exp());
        (below, -self.steepness * below * (1.0 - below) / whole)
    }
}

impl AffineSource for Step<'_> {
    fn players(&self) -> usize {
        self.players
    }

    fn losses(&mut self, coefficients: &[f64]) -> Result<Vec<f64>, GameError> {
        self.passes.set(self.passes.get() + 1);
        Ok([0.0, 1.0].map(|row| self.at(coefficients, row).0).to_vec())
    }

    fn directional_derivatives(
        &mut self,
        coefficients: &[f64],
    ) -> Result<Vec<Vec<f64>>, GameError> {
        self.passes.set(self.passes.get() + 1);
        let slopes = [0.0, 1.0].map(|row| self.at(coefficients, row).1);
        Ok((0..self.players)
            .map(|i| slopes.iter().map(|slope| slope * (1.0 + i as f64)).collect())
            .collect())
    }
}

/// The valuation of equal weights; its units are the passes that were made.
fn valued(players: usize, steepness: f64) -> RoundValuation {
    let passes = Cell::new(0);
    let mut source = Step { players, steepness, passes: &passes };
    let valuation = value_round(&mut source, &vec![1; players], RULES).unwrap();
    assert_eq!(valuation.passes(), passes.get(), "{players} players, steepness {steepness}");
    let explained: i64 = valuation.rows.iter().map(|row| row.score_nano).sum();
    assert_eq!(explained + valuation.gap_nano, valuation.total_nano);
    valuation
}

fn last(valuation: &RoundValuation) -> StageEstimator {
    valuation.stages.last().unwrap().estimator
}

#[test]
fn a_steeper_loss_takes_more_nodes_and_then_coalitions() {
    for (players, steepness, estimator) in [
        (5, 1.0, StageEstimator::Path { nodes: 3 }),
        (5, 11.0, StageEstimator::Path { nodes: 6 }),
        (5, 16.0, StageEstimator::Path { nodes: 12 }),
        (5, 400.0, StageEstimator::Shapley),
        (8, 400.0, StageEstimator::Shapley),
        (9, 400.0, StageEstimator::Permutations { pairs: 32 }),
    ] {
        let valuation = valued(players, steepness);
        assert_eq!(last(&valuation), estimator, "{players} players, steepness {steepness}");
        assert!(valuation.is_resolved());
    }
}

#[test]
fn a_stage_without_an_estimator_left_is_unresolved_and_excludes_nobody() {
    let valuation = valued(PERMUTED_PLAYERS_MAX + 1, 400.0);
    assert_eq!(last(&valuation), StageEstimator::Path { nodes: 12 });
    assert!(!valuation.is_resolved());
    assert!(valuation.rows.iter().all(|row| !row.excluded));
    assert_eq!(valuation.stages.len(), 1);
}

#[test]
fn permutations_add_their_own_error_and_follow_the_seed() {
    let passes = Cell::new(0);
    let score = |seed| {
        let mut source = Step { players: 12, steepness: 400.0, passes: &passes };
        value_round(&mut source, &[1; 12], RoundRules { seed, ..RULES }).unwrap().rows
    };
    assert_eq!(score(1), score(1));
    assert_ne!(score(1), score(2));
    // The loss is all or nothing, so the players' scores depend on the drawn permutations, and two
    // seeds differ by their errors.
    for (one, two) in score(1).iter().zip(score(2)) {
        let error = one.error_nano.max(two.error_nano);
        assert!(one.score_nano.abs_diff(two.score_nano) < 5 * error, "{one:?} {two:?}");
    }
}

#[test]
fn one_stage_is_recomputed_with_its_estimator() {
    let passes = Cell::new(0);
    for players in [5, 12] {
        for steepness in [1.0, 8.0, 400.0] {
            let valuation = valued(players, steepness);
            let mut source = Step { players, steepness, passes: &passes };
            let members: Vec<usize> = (0..players).collect();
            let weights = vec![1; players];
            let rows = value_members(&mut source, &weights, &members, last(&valuation), RULES.seed);
            assert_eq!(rows.unwrap(), valuation.rows, "{players} players, {steepness}");
        }
    }
}

#[test]
fn the_passes_of_a_stage_follow_from_its_estimator() {
    for (players, steepness) in [(5, 1.0), (5, 400.0), (12, 400.0)] {
        let valuation = valued(players, steepness);
        let stage = valuation.stages[0];
        let mut passes = 0;
        for estimator in stage_estimators(RULES.nodes, players) {
            passes += estimator.passes(players);
            if estimator == stage.estimator {
                break;
            }
        }
        assert_eq!(stage.passes, passes);
    }
}

/// Valued with a second opinion that confirms the scores or not.
fn valued_again(players: usize, steepness: f64, confirmed: bool) -> (RoundValuation, u32) {
    let (passes, mut asked) = (Cell::new(0), 0);
    let mut source = Step { players, steepness, passes: &passes };
    let valuation = value_round_confirmed(&mut source, &vec![1; players], RULES, |_, _| {
        asked += 1;
        Ok(confirmed)
    });
    let valuation = valuation.unwrap();
    assert_eq!(valuation.passes(), passes.get(), "{players} players, steepness {steepness}");
    (valuation, asked)
}

#[test]
fn denied_scores_of_the_path_integral_are_replaced_by_those_of_coalitions() {
    for (players, estimator) in [
        (8, StageEstimator::Shapley),
        (9, StageEstimator::Permutations { pairs: 32 }),
        (PERMUTED_PLAYERS_MAX, StageEstimator::Permutations { pairs: 32 }),
    ] {
        let once = valued(players, 1.0);
        assert_eq!(valued_again(players, 1.0, true), (once.clone(), 1));
        let (again, asked) = valued_again(players, 1.0, false);
        assert_eq!(asked, 1);
        assert_eq!(again.stages[0], once.stages[0], "the first valuation is listed");
        assert_eq!(again.stages.len(), 2);
        assert_eq!((last(&again), again.gap_nano.abs() <= players as i64), (estimator, true));
        let mut source = Step { players, steepness: 1.0, passes: &Cell::new(0) };
        let (weights, all) = (vec![1; players], (0..players).collect::<Vec<_>>());
        let rows = value_members(&mut source, &weights, &all, estimator, RULES.seed).unwrap();
        assert_eq!(again.rows, rows);
    }
}

#[test]
fn scores_without_a_gap_and_large_cohorts_need_no_second_opinion() {
    for (players, steepness) in [(5, 400.0), (9, 400.0), (PERMUTED_PLAYERS_MAX + 1, 1.0)] {
        assert_eq!(valued_again(players, steepness, false), (valued(players, steepness), 0));
    }
}

/// A loss in which the last of three players is harmful, with these slopes along each player.
fn harmful_round(slopes: [f64; 3], is_confirmed: bool) -> RoundValuation {
    let loss = |c: &[f64]| [0.0, 1e-3].map(|row| 1.0 - c[0] - c[1] + c[2] + row).to_vec();
    let mut source = ClosureSource::new(
        3,
        |c: &[f64]| Ok::<_, GameError>(loss(c)),
        |_: &[f64]| Ok::<_, GameError>(slopes.map(|slope| vec![slope; 2]).to_vec()),
    );
    value_round_confirmed(&mut source, &[1, 1, 1], RULES, |_, _| Ok(is_confirmed)).unwrap()
}

fn excluded(valued: &RoundValuation) -> Vec<bool> {
    valued.rows.iter().map(|row| row.excluded).collect()
}

fn estimators(valued: &RoundValuation) -> Vec<StageEstimator> {
    valued.stages.iter().map(|stage| stage.estimator).collect()
}

const PATH: StageEstimator = StageEstimator::Path { nodes: 3 };

#[test]
fn a_denied_second_stage_is_valued_again_over_the_same_members() {
    let slopes = [-1.0, -1.0, 1.0];
    let (once, again) = (harmful_round(slopes, true), harmful_round(slopes, false));
    assert_eq!(excluded(&once), [false, false, true]);
    assert_eq!(excluded(&again), excluded(&once));
    assert_eq!(estimators(&once), [PATH, PATH]);
    assert_eq!(estimators(&again), [PATH, PATH, StageEstimator::Shapley]);
    assert_eq!(again.total_nano, 1_000_000_000);
}

#[test]
fn wrong_scores_whose_errors_cancel_are_denied_and_the_harmful_member_is_excluded() {
    // The slopes give the harmful player's share to the first one: the gap is zero.
    let slopes = [-1.0, 0.0, 0.0];
    let (once, again) = (harmful_round(slopes, true), harmful_round(slopes, false));
    assert_eq!((once.gap_nano.abs() <= 1, estimators(&once)), (true, vec![PATH]));
    assert_eq!(excluded(&once), [false, false, false]);
    let shapley = StageEstimator::Shapley;
    assert_eq!(estimators(&again), [PATH, shapley, shapley]);
    assert_eq!(excluded(&again), [false, false, true]);
    assert_eq!(again.rows[1].score_nano, 500_000_000);
}
