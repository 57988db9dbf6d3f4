//! What a market round does with its updates: who is worth what, and who stays out of the
//! aggregate.
//!
//! Stage 1 values everybody with shares `p_i = w_i / Σw`. Whoever is negative beyond its own error,
//! `φ < −z·SE`, is excluded. If anybody was, stage 2 values those who remain with shares over them
//! alone, since that is the model the round will make; the excluded keep their score of stage 1.
//! Players who sent nothing are worth exactly 0 ± 0 and stay.
//!
//! A score's error has two parts, added as squares. One is the sampling of the holdout's rows. The
//! other is luck: what a random direction of the same length would get by chance, where the source
//! knows its gradient. In `d` dimensions luck is small against honest work (a cosine of `1/√d`),
//! but without it random noise would look certain wherever the gradient is.
//!
//! Floats end here. The decision to exclude is taken on the published integers, so that a reader of
//! the report can check it with a pocket calculator.

use std::num::TryFromIntError;

use crate::statistics::mean;
use crate::{
    AffineError, AffineGame, AffineSource, FixedWeights, GameError, NanoError, Path, Run, Score,
    ValuationError, to_nano, value,
};

/// Micro-units in one unit of `z`.
pub const Z_MICRO_PER_UNIT: u64 = 1_000_000;

/// The rules of valuation that a task publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundRules {
    /// Standard errors below zero at which an update is excluded, in millionths: 2_000_000 is 2.0.
    pub z_micro: u64,
    /// Gradients per stage, 1 to 8.
    pub nodes: usize,
}

/// What one player of the round is worth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundScore {
    /// The player's index in the source.
    pub player: usize,
    /// Score in nano-nats.
    pub score_nano: i64,
    /// One standard error of the score in nano-nats: sampling of the rows, and luck.
    pub error_nano: u64,
    /// The slope along the player's direction at each node of the path, in nano-nats; the score is
    /// their sum by the quadrature's weights.
    pub slopes_nano: Vec<i64>,
    /// Whether the update stays out of the aggregate.
    pub excluded: bool,
}

impl RoundScore {
    /// Whether the update did nothing at all: worth 0, with no error about it.
    pub fn is_idle(&self) -> bool {
        self.score_nano == 0 && self.error_nano == 0
    }
}

/// Whether a score lies more than `z` (in millionths) of its standard errors below zero.
pub fn is_negative_beyond_error(score_nano: i64, error_nano: u64, z_micro: u64) -> bool {
    // Neither product overflows: magnitudes below 2^63 · 2^20 and 2^64 · 2^64, the latter in u128.
    let below = u128::from(score_nano.min(0).unsigned_abs()) * u128::from(Z_MICRO_PER_UNIT);
    below > u128::from(z_micro) * u128::from(error_nano)
}

/// What a round was worth, in integers. `Σ score_nano` over those who remain `+ gap_nano =
/// total_nano`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundValuation {
    /// Mean loss of the base model in nano-nats.
    pub loss_before_nano: i64,
    /// Mean loss of the base model moved by those who remain.
    pub loss_after_nano: i64,
    /// What the round gained: before − after.
    pub total_nano: i64,
    /// What the scores leave unexplained: quadrature and rounding.
    pub gap_nano: i64,
    /// One row per player, in the players' order.
    pub rows: Vec<RoundScore>,
    /// Evaluations of the loss, each one pass over the holdout.
    pub losses_evaluated: u64,
    /// Gradients taken, each one pass over the holdout.
    pub gradients_evaluated: u64,
}

impl RoundValuation {
    /// Passes over the holdout: the units of work that the round's valuation took.
    pub fn passes(&self) -> u64 {
        self.losses_evaluated + self.gradients_evaluated
    }

    /// The players that form the aggregate, ascending.
    pub fn remaining(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows.iter().filter(|row| !row.excluded).map(|row| row.player)
    }
}

/// Why a round has no valuation.
#[derive(Debug, thiserror::Error)]
pub enum RoundError {
    /// The weights do not make a game.
    #[error(transparent)]
    Weights(#[from] AffineError),
    /// The estimator refused.
    #[error(transparent)]
    Valuation(#[from] ValuationError),
    /// One row has no spread, so no score would have an error.
    #[error("the holdout has {rows} row; scores need at least 2 to have an error")]
    TooFewRows {
        /// Rows of the holdout.
        rows: usize,
    },
    /// A number has no integer.
    #[error("{what}: {source}")]
    Nano {
        /// Which number.
        what: &'static str,
        /// Why.
        source: NanoError,
    },
    /// Scores sum beyond 64 bits of nano-nats.
    #[error("the round's scores sum beyond 64 bits of nano-nats")]
    SumOutOfRange,
}

impl RoundError {
    /// A stable name of the refusal, for machines.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Weights(cause) => cause.code(),
            Self::Valuation(cause) => cause.code(),
            Self::TooFewRows { .. } => "TOO_FEW_ROWS",
            Self::Nano { source, .. } => source.code(),
            Self::SumOutOfRange => "SCORE_SUM_OUT_OF_RANGE",
        }
    }
}

impl From<GameError> for RoundError {
    fn from(cause: GameError) -> Self {
        Self::Valuation(ValuationError::Game(cause))
    }
}

impl From<TryFromIntError> for RoundError {
    fn from(_: TryFromIntError) -> Self {
        Self::SumOutOfRange
    }
}

/// Values one round: `source` moves the model, `weights` are one integer (rows, capped by bond) per
/// player.
///
/// A weight of 0 is worth 0. If everybody is excluded, or nobody with a weight remains, the round
/// gains nothing.
///
/// # Errors
/// Weights that do not match the source or sum to zero, rules out of range, a holdout of fewer than
/// two rows, and anything that is not finite: see [`RoundError`].
pub fn value_round<S: AffineSource>(
    source: &mut S,
    weights: &[u64],
    rules: RoundRules,
) -> Result<RoundValuation, RoundError> {
    let path = Path::with_nodes(rules.nodes)?;
    let first = stage(source, FixedWeights::over_all(weights)?, None, path)?;
    let mut rows = first.rows;
    for row in &mut rows {
        row.excluded = is_negative_beyond_error(row.score_nano, row.error_nano, rules.z_micro);
    }
    let remaining: Vec<usize> =
        rows.iter().filter(|row| !row.excluded).map(|row| row.player).collect();
    let somebody_moves = remaining.iter().any(|&player| weights[player] > 0);

    let mut after_nano = first.after_nano;
    let mut losses_evaluated = first.evaluations;
    let mut gradients_evaluated = first.gradients;
    if !somebody_moves {
        after_nano = first.before_nano;
    } else if remaining.len() < rows.len() {
        let over_remaining = FixedWeights::over(weights, &remaining)?;
        let second = stage(source, over_remaining, Some(first.base), path)?;
        for row in second.rows {
            let player = row.player;
            rows[player] = row;
        }
        after_nano = second.after_nano;
        losses_evaluated += second.evaluations;
        gradients_evaluated += second.gradients;
    }

    let total = i128::from(first.before_nano) - i128::from(after_nano);
    let explained: i128 =
        rows.iter().filter(|row| !row.excluded).map(|row| i128::from(row.score_nano)).sum();
    Ok(RoundValuation {
        loss_before_nano: first.before_nano,
        loss_after_nano: after_nano,
        total_nano: i64::try_from(total)?,
        gap_nano: i64::try_from(total - explained)?,
        rows,
        losses_evaluated,
        gradients_evaluated,
    })
}

/// The scores of `members` (ascending players of `source`) with shares over them alone: one stage of
/// [`value_round`], for whoever verifies a part of it. Nobody is excluded here.
///
/// A source that knows the slopes of some players only may say zeros for the others: their scores
/// are then zero, and those of the rest are right.
///
/// # Errors
/// As [`value_round`].
pub fn value_members<S: AffineSource>(
    source: &mut S,
    weights: &[u64],
    members: &[usize],
    nodes: usize,
) -> Result<Vec<RoundScore>, RoundError> {
    let path = Path::with_nodes(nodes)?;
    let of_members = stage(source, FixedWeights::over(weights, members)?, None, path)?;
    Ok(of_members.rows)
}

/// One valuation of the members of `weights`.
struct Stage {
    base: Vec<f64>,
    before_nano: i64,
    after_nano: i64,
    rows: Vec<RoundScore>,
    evaluations: u64,
    gradients: u64,
}

/// `base` are the losses at the base point where an earlier stage has paid for them.
fn stage<S: AffineSource>(
    source: &mut S,
    weights: FixedWeights,
    base: Option<Vec<f64>>,
    path: Path,
) -> Result<Stage, RoundError> {
    let members = weights.members().to_vec();
    let base_is_known = base.is_some();
    let mut game = AffineGame::new(source, weights)?;
    if let Some(base) = base {
        game = game.with_base(base);
    }
    // The estimators take no seed: nothing here is drawn.
    let valuation = value(&path, &mut game, &members, Run::seeded(0))?;
    let base = game.base_losses()?.to_vec();
    if base.len() < 2 {
        return Err(RoundError::TooFewRows { rows: base.len() });
    }
    let before = mean(&base);
    let (chances, differentiated) = game.chance()?;
    let scores = valuation.scores.iter().zip(chances).enumerate();
    let nodes = &valuation.nodes;
    Ok(Stage {
        before_nano: nano("the loss before", before)?,
        after_nano: nano("the loss after", before - valuation.total)?,
        rows: scores
            .map(|(position, (score, chance))| {
                let slopes: Vec<f64> = nodes.iter().map(|node| node.slopes[position]).collect();
                round_score(score, chance, &slopes)
            })
            .collect::<Result<_, _>>()?,
        evaluations: valuation.evaluations - u64::from(base_is_known),
        gradients: valuation.gradients + u64::from(differentiated),
        base,
    })
}

fn round_score(
    score: &Score<usize>,
    chance: f64,
    slopes: &[f64],
) -> Result<RoundScore, RoundError> {
    let sampling = score.standard_error.ok_or(RoundError::TooFewRows { rows: 1 })?;
    // Not `hypot`, whose last bit may differ between machines.
    let error = (sampling * sampling + chance * chance).sqrt();
    Ok(RoundScore {
        player: score.id,
        score_nano: nano("a score", score.value)?,
        error_nano: nano("a score's error", error)?.unsigned_abs(),
        slopes_nano: slopes.iter().map(|s| nano("a slope", *s)).collect::<Result<_, _>>()?,
        excluded: false,
    })
}

fn nano(what: &'static str, nats: f64) -> Result<i64, RoundError> {
    to_nano(nats).map_err(|source| RoundError::Nano { what, source })
}
