//! The seam of the ladder: what every estimator takes and gives.

use std::collections::BTreeMap;
use std::fmt::Display;

use crate::meter::Meter;
use crate::{Coalition, Game, GameError, Run};

/// What an estimator found, players by their index.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Estimate {
    /// One value per player.
    pub values: Vec<f64>,
    /// One standard error per player, over the rows the game was measured on; `None` where they
    /// cannot be told.
    pub standard_errors: Option<Vec<f64>>,
    /// One standard error per player, of the estimator's own sampling of coalitions; zeros where
    /// nothing is sampled, `None` where it cannot be told.
    pub estimator_errors: Option<Vec<f64>>,
    /// `v(N) − v(∅)`.
    pub total: f64,
    /// The slopes that the values were integrated from; empty where none were taken.
    pub nodes: Vec<NodeSlopes>,
    /// What the estimator decided on the way, for people: the model it chose, why it stopped.
    pub remark: Option<String>,
}

/// The gradient at one node of a path: `φ_i = Σ_nodes weight · slopes[i]`.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeSlopes {
    /// Where on the path, from 0 to 1.
    pub t: f64,
    /// The node's weight in the quadrature; they sum to 1.
    pub weight: f64,
    /// The worth's slope along each player's direction, mean over the rows.
    pub slopes: Vec<f64>,
}

/// One way of dividing `v(N) − v(∅)` among the players of a game of kind `G`.
///
/// An estimator that needs only evaluations implements this for every [`Game`]; one that needs
/// gradients for every [`SmoothGame`](crate::SmoothGame).
pub trait Estimator<G: Game + ?Sized> {
    /// The name that reports carry.
    fn name(&self) -> &'static str;

    /// Grows whenever the same game and seed may give other numbers.
    fn version(&self) -> u32;

    /// Most players it takes; `None` for any number.
    fn players_max(&self) -> Option<usize> {
        None
    }

    /// Fewest passes it needs for `players` players.
    fn passes_min(&self, players: usize) -> u64;

    /// Passes after which it ends when the run sets neither a budget nor a tolerance nor a time;
    /// `None` for an estimator that ends by itself.
    fn passes_default(&self, players: usize) -> Option<u64> {
        let _ = players;
        None
    }

    /// Values all players of `game`. Called through [`value`], which has checked the number of
    /// players and the budget.
    ///
    /// # Errors
    /// As [`value`] says.
    fn estimate(&self, game: &mut G, meter: &mut Meter<'_>) -> Result<Estimate, ValuationError>;
}

/// What one player is worth.
#[derive(Debug, Clone, PartialEq)]
pub struct Score<Id> {
    /// Who.
    pub id: Id,
    /// How much, in the game's unit.
    pub value: f64,
    /// One standard error of `value` over the rows the game was measured on. `None` where the game
    /// shows fewer than two rows, or the estimator could not keep them apart.
    pub standard_error: Option<f64>,
    /// One standard error of `value` over the estimator's own sampling of coalitions: 0 where
    /// nothing is sampled, `None` where it cannot be told.
    pub estimator_error: Option<f64>,
}

/// What all players are worth.
#[derive(Debug, Clone, PartialEq)]
pub struct Valuation<Id> {
    /// One score per player, in the order of the ids.
    pub scores: Vec<Score<Id>>,
    /// `v(N) − v(∅)`.
    pub total: f64,
    /// What the scores leave unexplained: `total − Σ scores`. Zero up to rounding for efficient
    /// estimators.
    pub gap: f64,
    /// Different coalitions evaluated, those already in the run's cache included.
    pub evaluations: u64,
    /// Gradients taken.
    pub gradients: u64,
    /// The slopes that the scores were integrated from; empty where none were taken.
    pub nodes: Vec<NodeSlopes>,
    /// What the estimator decided on the way, for people.
    pub remark: Option<String>,
}

/// Why there is no valuation.
#[derive(Debug, thiserror::Error)]
pub enum ValuationError {
    /// A game of nobody.
    #[error("the game has 0 players; a valuation needs at least 1")]
    NoPlayers,
    /// One id per player.
    #[error("{ids} ids for {players} players; give exactly one id per player")]
    IdsDoNotMatch {
        /// Ids given.
        ids: usize,
        /// Players of the game.
        players: usize,
    },
    /// Two players under one name.
    #[error("players {first} and {second} have the same id; every id must be its own")]
    DuplicateId {
        /// The earlier player.
        first: usize,
        /// The later one.
        second: usize,
    },
    /// The estimator would not end.
    #[error("{players} players are too many for `{estimator}`, which takes at most {players_max}")]
    TooManyPlayers {
        /// The estimator's name.
        estimator: &'static str,
        /// Players of the game.
        players: usize,
        /// Its limit.
        players_max: usize,
    },
    /// The budget is below what the estimator needs at least.
    #[error("a budget of {budget} passes is too small for `{estimator}`, which needs {passes_min}")]
    BudgetTooSmall {
        /// The estimator's name.
        estimator: &'static str,
        /// Passes allowed.
        budget: u64,
        /// Passes needed.
        passes_min: u64,
    },
    /// The number of nodes is not one of 1..=8.
    #[error("{nodes} quadrature nodes; choose from 1 to {nodes_max}")]
    NodesOutOfRange {
        /// Nodes asked for.
        nodes: usize,
        /// Most there are.
        nodes_max: usize,
    },
    /// A setting of an estimator is outside its bounds.
    #[error("`{estimator}`: {key} is {value}; it must be {bounds}")]
    SettingOutOfRange {
        /// The estimator's name.
        estimator: &'static str,
        /// Which setting.
        key: &'static str,
        /// What it is.
        value: f64,
        /// What would be right.
        bounds: &'static str,
    },
    /// The equations have no answer.
    #[error(
        "`{estimator}`: the equations of {equations} coalitions have no answer; raise the budget"
    )]
    Singular {
        /// The estimator's name.
        estimator: &'static str,
        /// How many coalitions they were made of.
        equations: usize,
    },
    /// The tolerance is not a positive finite number.
    #[error("a tolerance of {tolerance}; it must be a positive finite number")]
    ToleranceOutOfRange {
        /// The tolerance asked for.
        tolerance: f64,
    },
    /// The game said NaN or an infinity.
    #[error("coalition {coalition} is worth {worth} in row {row}; a worth must be finite")]
    ValueNotFinite {
        /// Whose worth.
        coalition: Coalition,
        /// The row.
        row: usize,
        /// NaN or an infinity.
        worth: f64,
    },
    /// The game's gradient has a NaN or an infinity.
    #[error("the slope of player {player} at t = {t} is {slope} in row {row}; it must be finite")]
    SlopeNotFinite {
        /// Whose direction.
        player: usize,
        /// The row.
        row: usize,
        /// Where on the path.
        t: f64,
        /// NaN or an infinity.
        slope: f64,
    },
    /// The worth on the path between the empty and the full coalition is NaN or an infinity.
    #[error("with everybody at t = {t} the worth is {worth} in row {row}; it must be finite")]
    DiagonalNotFinite {
        /// Where on the path.
        t: f64,
        /// The row.
        row: usize,
        /// NaN or an infinity.
        worth: f64,
    },
    /// The game changed its shape during the valuation.
    #[error("the game returned {got} {what}, where {expected} were expected")]
    ShapeChanged {
        /// Rows, or players.
        what: &'static str,
        /// As many as it returned.
        got: usize,
        /// As many as it should have.
        expected: usize,
    },
    /// The game failed.
    #[error("the game could not be evaluated: {0}")]
    Game(#[from] GameError),
}

impl ValuationError {
    /// A stable name of the refusal, for machines.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoPlayers => "NO_PLAYERS",
            Self::IdsDoNotMatch { .. } => "IDS_DO_NOT_MATCH",
            Self::DuplicateId { .. } => "DUPLICATE_ID",
            Self::TooManyPlayers { .. } => "TOO_MANY_PLAYERS",
            Self::BudgetTooSmall { .. } => "BUDGET_TOO_SMALL",
            Self::NodesOutOfRange { .. } => "NODES_OUT_OF_RANGE",
            Self::SettingOutOfRange { .. } => "SETTING_OUT_OF_RANGE",
            Self::Singular { .. } => "EQUATIONS_SINGULAR",
            Self::ToleranceOutOfRange { .. } => "TOLERANCE_OUT_OF_RANGE",
            Self::ValueNotFinite { .. } => "VALUE_NOT_FINITE",
            Self::SlopeNotFinite { .. } => "SLOPE_NOT_FINITE",
            Self::DiagonalNotFinite { .. } => "DIAGONAL_NOT_FINITE",
            Self::ShapeChanged { .. } => "SHAPE_CHANGED",
            Self::Game(_) => "GAME_FAILED",
        }
    }
}

/// Values every player of `game` with `estimator`, and names them by `ids` (one per player, in the
/// players' order).
///
/// # Errors
/// Ids that are missing or repeated, more players than the estimator takes, a budget below its
/// minimum, and anything that is not finite (named with its coalition or place): see
/// [`ValuationError`].
pub fn value<Id, G, E>(
    estimator: &E,
    game: &mut G,
    ids: &[Id],
    run: Run<'_>,
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

    let mut meter = Meter::new(run, players, passes_min, estimator.passes_default(players));
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
        return Err(ValuationError::IdsDoNotMatch { ids: ids.len(), players });
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
    /// The score as a line for people: `name  0.0123 ± 0.0004`.
    pub fn line(&self) -> String {
        match self.standard_error {
            Some(error) => format!("{}  {:.6} ± {error:.6}", self.id, self.value),
            None => format!("{}  {:.6}", self.id, self.value),
        }
    }
}
