//! What an estimator needs to know of a game.

use std::error::Error;

use crate::Coalition;

/// Why a game could not say what a coalition is worth: the game's own error, whatever it is.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct GameError(#[source] Box<dyn Error + Send + Sync>);

impl GameError {
    /// Wraps an evaluator's own error (or a plain message).
    pub fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}

/// A cooperative game over the players `0..players()`.
///
/// Nothing is asked of the worth of the empty coalition: estimators divide `v(N) − v(∅)`.
pub trait Game {
    /// How many players there are; must not change during a valuation.
    fn players(&self) -> usize;

    /// What `coalition` is worth, in the game's own unit (nats of validation loss in a training
    /// round).
    ///
    /// # Errors
    /// Whatever kept the game from evaluating. A worth that is not finite is caught by the caller.
    fn value(&mut self, coalition: &Coalition) -> Result<f64, GameError>;

    /// What each of several coalitions is worth, in their order.
    ///
    /// A game that evaluates a batch faster than one by one overrides this. The worth of a
    /// coalition must not depend on the batch it comes in.
    ///
    /// # Errors
    /// As [`value`](Game::value).
    fn values(&mut self, coalitions: &[Coalition]) -> Result<Vec<f64>, GameError> {
        coalitions.iter().map(|coalition| self.value(coalition)).collect()
    }

    /// How many coalitions at most are asked of [`values`](Game::values) at once. A game that dies loses
    /// what it found in the batch, and no more; one that overrides `values` says how much it takes.
    fn batch(&self) -> usize {
        1
    }

    /// What `coalition` is worth row by row; the mean of the rows is its [`value`](Game::value).
    ///
    /// A game measured on a sample overrides this, and its scores then carry the error of having
    /// measured on a sample. The number of rows must be the same for every coalition.
    ///
    /// # Errors
    /// As [`value`](Game::value).
    fn value_rows(&mut self, coalition: &Coalition) -> Result<Vec<f64>, GameError> {
        Ok(vec![self.value(coalition)?])
    }
}

/// A game that extends smoothly to players who take part by a fraction, and can be differentiated
/// there.
///
/// Only the diagonal is asked for: everybody takes part by the same `t` in `0..=1`. At 0 that is
/// the empty coalition, at 1 the full one.
pub trait SmoothGame: Game {
    /// The worth, row by row, when everybody takes part by `t`.
    ///
    /// # Errors
    /// Whatever kept the game from evaluating.
    fn diagonal(&mut self, t: f64) -> Result<Vec<f64>, GameError>;

    /// The derivative of the worth along each player's direction when everybody takes part by `t`:
    /// `result[player][row]`, as many rows as [`diagonal`](SmoothGame::diagonal) has.
    ///
    /// # Errors
    /// Whatever kept the game from differentiating.
    fn slopes(&mut self, t: f64) -> Result<Vec<Vec<f64>>, GameError>;

    /// All slopes of a quadrature at once, `nodes` being pairs of place and weight. `None` from a
    /// game that takes them node by node; one that can share work between the nodes overrides this.
    ///
    /// # Errors
    /// Whatever kept the game from differentiating.
    fn along(&mut self, nodes: &[(f64, f64)]) -> Result<Option<Along>, GameError> {
        let _ = nodes;
        Ok(None)
    }
}

/// What a quadrature along the diagonal gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Along {
    /// `Σ weight · slope` of each player in each row: `[player][row]`.
    pub integrals: Vec<Vec<f64>>,
    /// Each node's slope of each player, mean over the rows: `[node][player]`.
    pub slopes: Vec<Vec<f64>>,
}
