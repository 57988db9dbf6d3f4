//! The gap rules: a stage climbs to more nodes and to other estimators until its scores explain its
//! improvement.

use std::cell::Cell;

use florin_contribution::{
    AffineSource, GameError, PERMUTED_PLAYERS_MAX, RoundRules, RoundValuation, StageEstimator,
    stage_estimators, value_members, value_round,
};

use crate::support::is_resolved;

const RULES: RoundRules = RoundRules { z_micro: 2_000_000, nodes: 3, seed: 7, is_resolved };

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
