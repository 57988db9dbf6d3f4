//! The interface of a game, as estimators require it.

use std::error::Error;

use crate::Coalition;

/// The failure of a game to evaluate a coalition: wraps the game's own error.
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
/// The value of the empty coalition is arbitrary: estimators divide `v(N) − v(∅)`.
pub trait Game {
    /// Number of players; must not change during a valuation.
    fn players(&self) -> usize;

    /// The value `v(S)` of `coalition`, in the game's own unit (nats of validation loss in a
    /// training round).
    ///
    /// # Errors
    /// The game's own evaluation error. The caller rejects a value that is not finite.
    fn value(&mut self, coalition: &Coalition) -> Result<f64, GameError>;

    /// The values of several coalitions, in the given order.
    ///
    /// Override this if the game evaluates a batch faster than single coalitions. The value of a
    /// coalition must not depend on its batch.
    ///
    /// # Errors
    /// As [`value`](Game::value).
    fn values(&mut self, coalitions: &[Coalition]) -> Result<Vec<f64>, GameError> {
        coalitions.iter().map(|coalition| self.value(coalition)).collect()
    }

    /// Largest number of coalitions that one call of [`values`](Game::values) receives. If the game
    /// fails, only the values of the unfinished batch are lost. A game that overrides `values`
    /// returns its preferred batch size here.
    fn batch(&self) -> usize {
        1
    }

    /// The value of `coalition` on each row; the mean over the rows is its [`value`](Game::value).
    ///
    /// Override this if the game is measured on a sample of rows: the scores then include the
    /// sampling error of the rows. The number of rows must be the same for every coalition.
    ///
    /// # Errors
    /// As [`value`](Game::value).
    fn value_rows(&mut self, coalition: &Coalition) -> Result<Vec<f64>, GameError> {
        Ok(vec![self.value(coalition)?])
    }

    /// The value of each of several coalitions on each row. Override this if the game evaluates a
    /// batch faster than single coalitions.
    ///
    /// # Errors
    /// As [`value`](Game::value).
    fn value_rows_of(&mut self, coalitions: &[Coalition]) -> Result<Vec<Vec<f64>>, GameError> {
        coalitions.iter().map(|coalition| self.value_rows(coalition)).collect()
    }
}

/// A game with a differentiable extension to players that participate with a fraction.
///
/// Estimators use only the diagonal of the unit cube: every player participates with the same `t`
/// in `0..=1`. `t = 0` is the empty coalition, `t = 1` the grand coalition.
pub trait SmoothGame: Game {
    /// The value on each row when every player participates with `t`.
    ///
    /// # Errors
    /// The game's own evaluation error.
    fn diagonal(&mut self, t: f64) -> Result<Vec<f64>, GameError>;

    /// The directional derivatives of the value, one per player, when every player participates
    /// with `t`: `result[player][row]`, with as many rows as [`diagonal`](SmoothGame::diagonal).
    ///
    /// # Errors
    /// The game's own error of differentiation.
    fn directional_derivatives(&mut self, t: f64) -> Result<Vec<Vec<f64>>, GameError>;

    /// All directional derivatives of one quadrature in one call; `nodes` are pairs of node and
    /// weight. `None` if the game differentiates node by node. Override this if the game can share
    /// work between the nodes.
    ///
    /// # Errors
    /// The game's own error of differentiation.
    fn path_integral(&mut self, nodes: &[(f64, f64)]) -> Result<Option<PathIntegral>, GameError> {
        let _ = nodes;
        Ok(None)
    }
}

/// The directional derivatives of one quadrature along the diagonal.
#[derive(Debug, Clone, PartialEq)]
pub struct PathIntegral {
    /// `Σ weight · derivative` of each player on each row: `[player][row]`.
    pub integrals: Vec<Vec<f64>>,
    /// The derivative of each player at each node, mean over the rows: `[node][player]`.
    pub node_derivatives: Vec<Vec<f64>>,
}
