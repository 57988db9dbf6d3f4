//! The common interface of all estimators: their input, result and errors.

use std::collections::BTreeMap;
use std::fmt::Display;

use crate::meter::EvaluationMeter;
use crate::{Coalition, Game, GameError, RunOptions};

/// The result of an estimator, with players by index.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Estimate {
    /// One value per player.
    pub values: Vec<f64>,
    /// One standard error per player, over the rows of the game's measurement; `None` if the
    /// estimator cannot estimate them.
    pub standard_errors: Option<Vec<f64>>,
    /// One standard error per player, of the estimator's own sampling of coalitions: zeros if it
    /// does not sample, `None` if it cannot estimate them.
    pub estimator_errors: Option<Vec<f64>>,
    /// `v(N) − v(∅)`.
    pub total: f64,
    /// The directional derivatives that were integrated to the values; empty if the estimator uses
    /// none.
    pub nodes: Vec<NodeDerivatives>,
    /// A remark for people about the estimator's decisions: the selected model, the reason for
    /// stopping.
    pub remark: Option<String>,
}

/// The gradient at one node of a path: `φ_i = Σ_nodes weight · slopes[i]`.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeDerivatives {
    /// Position on the path, from 0 to 1.
    pub t: f64,
    /// The node's weight in the quadrature; the weights sum to 1.
    pub weight: f64,
    /// The directional derivative of the value for each player, mean over the rows.
    pub derivatives: Vec<f64>,
}

/// A rule that divides `v(N) − v(∅)` among the players of a game of type `G`.
///
/// An estimator that needs only evaluations implements this for every [`Game`]; one that needs
/// gradients for every [`SmoothGame`](crate::SmoothGame).
pub trait Estimator<G: Game + ?Sized> {
    /// The estimator's name in reports.
    fn name(&self) -> &'static str;

    /// The version; it increases with every change that can change the result for the same game and
    /// seed.
    fn version(&self) -> u32;

    /// Largest number of players; `None` for any number.
    fn players_max(&self) -> Option<usize> {
        None
    }

    /// Smallest number of passes for `players` players.
    fn passes_min(&self, players: usize) -> u64;

    /// Number of passes of a run without budget, tolerance and time limit; `None` for an estimator
    /// with its own stopping rule.
    fn passes_default(&self, players: usize) -> Option<u64> {
        let _ = players;
        None
    }

    /// Values all players of `game`. Call it through [`value`], which checks the number of players
    /// and the budget.
    ///
    /// # Errors
    /// As [`value`].
    fn estimate(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Estimate, ValuationError>;
}

/// The contribution of one player.
#[derive(Debug, Clone, PartialEq)]
pub struct Score<Id> {
    /// The player's id.
    pub id: Id,
    /// The value, in the game's unit.
    pub value: f64,
    /// One standard error of `value` over the rows of the game's measurement. `None` if the game
    /// has fewer than two rows, or if the estimator does not compute values per row.
    pub standard_error: Option<f64>,
    /// One standard error of `value` over the estimator's own sampling of coalitions: 0 if it does
    /// not sample, `None` if it cannot estimate it.
    pub estimator_error: Option<f64>,
}

/// The contributions of all players.
#[derive(Debug, Clone, PartialEq)]
pub struct Valuation<Id> {
    /// One score per player, in the order of the ids.
    pub scores: Vec<Score<Id>>,
    /// `v(N) − v(∅)`.
    pub total: f64,
    /// The part of the total that the scores do not explain: `total − Σ scores`. Zero up to
    /// rounding for efficient estimators.
    pub gap: f64,
    /// Number of distinct coalitions used, including those already in the run's cache.
    pub evaluations: u64,
    /// Number of gradients.
    pub gradients: u64,
    /// The directional derivatives that were integrated to the scores; empty if the estimator uses
    /// none.
    pub nodes: Vec<NodeDerivatives>,
    /// A remark for people about the estimator's decisions.
    pub remark: Option<String>,
}

/// The reasons for which a valuation fails.
#[derive(Debug, thiserror::Error)]
pub enum ValuationError {
    /// The game has no players.
    #[error("the game has 0 players; a valuation needs at least 1")]
    NoPlayers,
    /// The number of ids differs from the number of players.
    #[error("{ids} ids for {players} players; give exactly one id per player")]
    IdCountMismatch {
        /// Ids given.
        ids: usize,
        /// Players of the game.
        players: usize,
    },
    /// Two players have the same id.
    #[error("players {first} and {second} have the same id; every id must be unique")]
    DuplicateId {
        /// The earlier player.
        first: usize,
        /// The later one.
        second: usize,
    },
    /// The game has more players than the estimator supports.
    #[error("{players} players are too many for `{estimator}`, which takes at most {players_max}")]
    TooManyPlayers {
        /// The estimator's name.
        estimator: &'static str,
        /// Players of the game.
        players: usize,
        /// The estimator's limit.
        players_max: usize,
    },
    /// The budget is below the estimator's minimum.
    #[error("a budget of {budget} passes is too small for `{estimator}`, which needs {passes_min}")]
    BudgetTooSmall {
        /// The estimator's name.
        estimator: &'static str,
        /// Passes allowed.
        budget: u64,
        /// Passes needed.
        passes_min: u64,
    },
    /// The number of nodes is outside 1..=8.
    #[error("{nodes} quadrature nodes; choose from 1 to {nodes_max}")]
    NodesOutOfRange {
        /// Nodes requested.
        nodes: usize,
        /// Largest number of nodes.
        nodes_max: usize,
    },
    /// A setting of an estimator is outside its bounds.
    #[error("`{estimator}`: {key} is {value}; it must be {bounds}")]
    SettingOutOfRange {
        /// The estimator's name.
        estimator: &'static str,
        /// Name of the setting.
        key: &'static str,
        /// Its value.
        value: f64,
        /// The valid range.
        bounds: &'static str,
    },
    /// The system of equations is singular.
    #[error(
        "`{estimator}`: the equations of {equations} coalitions are singular; raise the budget"
    )]
    Singular {
        /// The estimator's name.
        estimator: &'static str,
        /// Number of coalitions in the system.
        equations: usize,
    },
    /// The tolerance is not a positive finite number.
    #[error("a tolerance of {tolerance}; it must be a positive finite number")]
    ToleranceOutOfRange {
        /// The tolerance requested.
        tolerance: f64,
    },
    /// The game returned NaN or an infinity.
    #[error("coalition {coalition} has the value {value} in row {row}; values must be finite")]
    ValueNotFinite {
        /// The coalition.
        coalition: Coalition,
        /// The row.
        row: usize,
        /// NaN or an infinity.
        value: f64,
    },
    /// The game's gradient has a NaN or an infinity.
    #[error(
        "the derivative of player {player} at t = {t} is {derivative} in row {row}; it must be finite"
    )]
    DerivativeNotFinite {
        /// The player of this direction.
        player: usize,
        /// The row.
        row: usize,
        /// Position on the path.
        t: f64,
        /// NaN or an infinity.
        derivative: f64,
    },
    /// The value on the path between the empty and the grand coalition is NaN or an infinity.
    #[error("the value on the diagonal at t = {t} is {worth} in row {row}; it must be finite")]
    DiagonalNotFinite {
        /// Position on the path.
        t: f64,
        /// The row.
        row: usize,
        /// NaN or an infinity.
        worth: f64,
    },
    /// The game changed its shape during the valuation.
    #[error("the game returned {got} {what}, where {expected} were expected")]
    ShapeMismatch {
        /// Rows, players, nodes or values.
        what: &'static str,
        /// The number returned.
        got: usize,
        /// The number expected.
        expected: usize,
    },
    /// The game failed.
    #[error("the game could not be evaluated: {0}")]
    Game(#[from] GameError),
}

impl ValuationError {
    /// A stable code of the error, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoPlayers => "NO_PLAYERS",
            Self::IdCountMismatch { .. } => "ID_COUNT_MISMATCH",
            Self::DuplicateId { .. } => "DUPLICATE_ID",
            Self::TooManyPlayers { .. } => "TOO_MANY_PLAYERS",
            Self::BudgetTooSmall { .. } => "BUDGET_TOO_SMALL",
            Self::NodesOutOfRange { .. } => "NODES_OUT_OF_RANGE",
            Self::SettingOutOfRange { .. } => "SETTING_OUT_OF_RANGE",
            Self::Singular { .. } => "EQUATIONS_SINGULAR",
            Self::ToleranceOutOfRange { .. } => "TOLERANCE_OUT_OF_RANGE",
            Self::ValueNotFinite { .. } => "VALUE_NOT_FINITE",
            Self::DerivativeNotFinite { .. } => "DERIVATIVE_NOT_FINITE",
            Self::DiagonalNotFinite { .. } => "DIAGONAL_NOT_FINITE",
            Self::ShapeMismatch { .. } => "SHAPE_MISMATCH",
            Self::Game(_) => "GAME_FAILED",
        }
    }
}

/// Values every player of `game` with `estimator`; `ids` has one id per player, in the players'
/// order.
///
/// # Errors
/// Missing or duplicate ids, more players than the estimator supports, a budget below its minimum,
/// and any number that is not finite (with its coalition or position): see [`ValuationError`].
pub fn value<Id, G, E>(
    estimator: &E,
    game: &mut G,
    ids: &[Id],
    run: RunOptions<'_>,
) -> Result<Valuation<Id>, ValuationError>
where
    Id: Clone + Ord,
    G: Game + ?Sized,
    E: Estimator<G> + ?Sized,
{
    let players = game.players();
    check_ids(ids, players)?;
    if let Some(players_max) = estimator.players_max()
        && players > players_max
    {
        let estimator = estimator.name();
        return Err(ValuationError::TooManyPlayers { estimator, players, players_max });
    }
    let passes_min = estimator.passes_min(players);
    if let Some(budget) = run.budget
        && budget < passes_min
    {
        let estimator = estimator.name();
        return Err(ValuationError::BudgetTooSmall { estimator, budget, passes_min });
    }

    if let Some(tolerance) = run.tolerance
        && !(tolerance.is_finite() && tolerance > 0.0)
    {
        return Err(ValuationError::ToleranceOutOfRange { tolerance });
    }

    let mut meter =
        EvaluationMeter::new(run, players, passes_min, estimator.passes_default(players));
    let estimate = estimator.estimate(game, &mut meter)?;
    let gap = estimate.total - estimate.values.iter().sum::<f64>();
    let scores = ids
        .iter()
        .zip(&estimate.values)
        .enumerate()
        .map(|(player, (id, value))| Score {
            id: id.clone(),
            value: *value,
            standard_error: estimate.standard_errors.as_ref().map(|errors| errors[player]),
            estimator_error: estimate.estimator_errors.as_ref().map(|errors| errors[player]),
        })
        .collect();
    Ok(Valuation {
        scores,
        total: estimate.total,
        gap,
        evaluations: meter.evaluations(),
        gradients: meter.gradients(),
        nodes: estimate.nodes,
        remark: estimate.remark,
    })
}

fn check_ids<Id: Ord>(ids: &[Id], players: usize) -> Result<(), ValuationError> {
    if players == 0 {
        return Err(ValuationError::NoPlayers);
    }
    if ids.len() != players {
        return Err(ValuationError::IdCountMismatch { ids: ids.len(), players });
    }
    let mut seen = BTreeMap::new();
    for (second, id) in ids.iter().enumerate() {
        if let Some(first) = seen.insert(id, second) {
            return Err(ValuationError::DuplicateId { first, second });
        }
    }
    Ok(())
}

impl<Id: Display> Score<Id> {
    /// The score as a line of text: `name 0.0123 ± 0.0004`.
    pub fn to_line(&self) -> String {
        match self.standard_error {
            Some(error) => format!("{}  {:.6} ± {error:.6}", self.id, self.value),
            None => format!("{}  {:.6}", self.id, self.value),
        }
    }
}
