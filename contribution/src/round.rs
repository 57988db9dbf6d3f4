//! Valuation of one market round: the score of each update, and which updates are excluded from the
//! aggregate.
//!
//! Stage 1 values all players with shares `p_i = w_i / Σw`. It excludes every player whose score is
//! negative beyond its error, `φ < −z·SE`. If a player is excluded, stage 2 values the remaining
//! players with shares over them alone, since these shares make the round's model; an excluded
//! player keeps its score of stage 1. A player with a zero update has the score 0 ± 0 and remains.
//!
//! The gap rules ([`stage_estimators`]) choose the estimator of a stage. A stage that none resolves
//! leaves the round unresolved: its scores are worth no money. A small gap does not prove that the
//! scores are right, since their errors may cancel. A second opinion can therefore deny them, and
//! then estimators without a gap value the round again ([`value_round_confirmed`]).
//!
//! The error of a score has three parts, added in quadrature. One is the sampling error of the
//! holdout's rows. One is the error of the estimator, if it samples coalitions. The last is the
//! null standard deviation: the score of a random direction of the same length, if the source has
//! a gradient. In `d` dimensions it is small against honest work (a cosine of `1/√d`), but without
//! it random noise would look significant wherever the gradient is
//! large.
//!
//! Floats end here. The exclusion is decided on the published integers, so that a reader of the
//! report can check it with a pocket calculator.

use std::num::TryFromIntError;

use crate::gap_rules::{PERMUTED_PLAYERS_MAX, StageEstimator, stage_estimators};
use crate::row_permutations::RowPermutations;
use crate::statistics::mean;
use crate::{
    AffineError, AffineGame, AffineSource, Exact, FixedWeights, GameError, NanoError, Path,
    RunOptions, Score, Valuation, ValuationError, to_nano, value,
};

/// Micro-units of one unit of `z`.
pub const Z_MICRO_PER_UNIT: u64 = 1_000_000;

/// The valuation rules that a task publishes.
#[derive(Debug, Clone, Copy)]
pub struct RoundRules {
    /// Number of standard errors below zero beyond which an update is excluded, in millionths:
    /// 2_000_000 is 2.0.
    pub z_micro: u64,
    /// Gradients with which each stage begins, 1 to 8; `None` if coalitions alone value it.
    pub nodes: Option<u8>,
    /// Seed of the permutations, if a stage samples them.
    pub seed: u64,
    /// Whether a stage is resolved, given its gap and its gain in nano-nats.
    pub is_resolved: fn(gap_nano: i64, total_nano: i64) -> bool,
}

/// The score of one player of the round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundScore {
    /// The player's index in the source.
    pub player: usize,
    /// Score in nano-nats.
    pub score_nano: i64,
    /// One standard error of the score in nano-nats: sampling error of the rows, error of the
    /// estimator, and null standard deviation.
    pub error_nano: u64,
    /// The directional derivative of the player at each node of the path, in nano-nats; their sum,
    /// weighted by the quadrature, is the score. Empty if the stage's estimator uses none.
    pub derivatives_nano: Vec<i64>,
    /// Whether the update is excluded from the aggregate.
    pub excluded: bool,
}

impl RoundScore {
    /// Whether the update has no effect at all: the score is 0 with an error of 0.
    pub fn is_null_player(&self) -> bool {
        self.score_nano == 0 && self.error_nano == 0
    }
}

/// Whether a score is more than `z` (in millionths) of its standard errors below zero.
pub fn is_negative_beyond_error(score_nano: i64, error_nano: u64, z_micro: u64) -> bool {
    // Neither product overflows: magnitudes below 2^63 · 2^20 and 2^64 · 2^64, the latter in u128.
    let below = u128::from(score_nano.min(0).unsigned_abs()) * u128::from(Z_MICRO_PER_UNIT);
    below > u128::from(z_micro) * u128::from(error_nano)
}

/// The valuation of a round, in integers: the sum of `score_nano` over the remaining players plus
/// `gap_nano` is `total_nano`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundValuation {
    /// Mean loss of the base model in nano-nats.
    pub loss_before_nano: i64,
    /// Mean loss of the base model moved by the remaining players.
    pub loss_after_nano: i64,
    /// Total gain of the round: before − after.
    pub total_nano: i64,
    /// The part of the total that the scores do not explain: quadrature and rounding errors.
    pub gap_nano: i64,
    /// One row per player, in the players' order.
    pub rows: Vec<RoundScore>,
    /// The stages, in order: one, or two if a player is excluded; after a second opinion that
    /// denies the scores, also those of the second valuation.
    pub stages: Vec<StageRecord>,
}

/// The estimator that valued a stage, and the figures that resolved it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageRecord {
    /// The last estimator that the stage tried.
    pub estimator: StageEstimator,
    /// The gain of the stage's players: before − after, in nano-nats.
    pub total_nano: i64,
    /// The part of it that their scores do not explain.
    pub gap_nano: i64,
    /// Evaluations and gradients of all estimators that the stage tried, and of the null standard
    /// deviation; each is one pass over the holdout.
    pub passes: u64,
    /// Whether the gap is small enough for the scores to be paid.
    pub is_resolved: bool,
}

impl RoundValuation {
    /// Passes over the holdout: the units of work of the round's valuation. The losses at the base
    /// point are one.
    pub fn passes(&self) -> u64 {
        1 + self.stages.iter().map(|stage| stage.passes).sum::<u64>()
    }

    /// Whether every stage is resolved. Scores of an unresolved round are not paid.
    pub fn is_resolved(&self) -> bool {
        self.stages.iter().all(|stage| stage.is_resolved)
    }

    /// The players that form the aggregate, ascending.
    pub fn remaining(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows.iter().filter(|row| !row.excluded).map(|row| row.player)
    }
}

/// Why a round has no valuation.
#[derive(Debug, thiserror::Error)]
pub enum RoundError {
    /// The weights do not define a game.
    #[error(transparent)]
    Weights(#[from] AffineError),
    /// The estimator failed.
    #[error(transparent)]
    Valuation(#[from] ValuationError),
    /// A single row has no variance, so no score would have an error.
    #[error("the holdout has {rows} row; a standard error needs at least 2")]
    TooFewRows {
        /// Rows of the holdout.
        rows: usize,
    },
    /// A float has no integer representation.
    #[error("{what}: {source}")]
    Nano {
        /// Which number.
        what: &'static str,
        /// Why.
        source: NanoError,
    },
    /// The scores sum beyond 64 bits of nano-nats.
    #[error("the round's scores sum beyond 64 bits of nano-nats")]
    SumOutOfRange,
}

impl RoundError {
    /// A stable code of the error, for programs.
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

/// Values one round: `source` moves the model, `weights` has one integer (rows, capped by the bond)
/// per player.
///
/// The score of a player with weight 0 is 0. If every player is excluded, or no remaining player
/// has a weight, the round gains nothing.
///
/// # Errors
/// Weights that do not match the source or that sum to zero, rules out of range, a holdout of fewer
/// than two rows, and any number that is not finite: see [`RoundError`].
pub fn value_round<S: AffineSource>(
    source: &mut S,
    weights: &[u64],
    rules: RoundRules,
) -> Result<RoundValuation, RoundError> {
    value_round_confirmed(source, weights, rules, |_, _| Ok(true))
}

/// As [`value_round`], with a second opinion: `confirms` compares the scores of the remaining
/// players with an estimate of its own. It is called if the path integral resolved all stages and
/// at most [`PERMUTED_PLAYERS_MAX`] players remain. If it denies them, the round is valued again by
/// the estimators that have no gap: the last stage, and its exclusions if it is the first one. The
/// stages of both valuations are listed.
///
/// # Errors
/// As [`value_round`], and those of `confirms`.
pub fn value_round_confirmed<S, F>(
    source: &mut S,
    weights: &[u64],
    rules: RoundRules,
    confirms: F,
) -> Result<RoundValuation, RoundError>
where
    S: AffineSource,
    F: FnOnce(&mut S, &RoundValuation) -> Result<bool, RoundError>,
{
    let mut stages = Stages::new(source, weights, Climb::All(rules))?;
    let has_second = stages.exclude(rules.z_micro, weights);
    if has_second {
        stages.value(source, weights, Climb::All(rules))?;
    }
    let valued = stages.valuation()?;
    let by_path = |stage: &StageRecord| matches!(stage.estimator, StageEstimator::Path { .. });
    if !valued.is_resolved()
        || !valued.stages.last().is_some_and(by_path)
        || valued.remaining().count() > PERMUTED_PLAYERS_MAX
        || confirms(source, &valued)?
    {
        return Ok(valued);
    }
    let climb = Climb::WithoutGap(rules);
    if !has_second {
        stages.include_all();
    }
    stages.value(source, weights, climb)?;
    if !has_second && stages.exclude(rules.z_micro, weights) {
        stages.value(source, weights, climb)?;
    }
    stages.valuation()
}

/// The stages of a round so far.
struct Stages {
    base: Vec<f64>,
    before_nano: i64,
    after_nano: i64,
    rows: Vec<RoundScore>,
    records: Vec<StageRecord>,
}

impl Stages {
    /// The first stage, which values all players.
    fn new<S: AffineSource>(
        source: &mut S,
        weights: &[u64],
        climb: Climb,
    ) -> Result<Self, RoundError> {
        let first = value_stage(source, FixedWeights::over_all(weights)?, None, climb)?;
        let StageResult { base, before_nano, after_nano, rows, record } = first;
        Ok(Self { base, before_nano, after_nano, rows, records: vec![record] })
    }

    /// Excludes players by the scores of a resolved stage. Returns whether the others need a stage
    /// of their own.
    fn exclude(&mut self, z_micro: u64, weights: &[u64]) -> bool {
        if !self.records.last().is_some_and(|stage| stage.is_resolved) {
            return false;
        }
        for row in &mut self.rows {
            row.excluded = is_negative_beyond_error(row.score_nano, row.error_nano, z_micro);
        }
        let remaining = self.remaining();
        if !remaining.iter().any(|&player| weights[player] > 0) {
            self.after_nano = self.before_nano;
            return false;
        }
        remaining.len() < self.rows.len()
    }

    fn include_all(&mut self) {
        self.rows.iter_mut().for_each(|row| row.excluded = false);
    }

    fn remaining(&self) -> Vec<usize> {
        self.rows.iter().filter(|row| !row.excluded).map(|row| row.player).collect()
    }

    /// A further stage: values the remaining players, with shares over them alone.
    fn value<S: AffineSource>(
        &mut self,
        source: &mut S,
        weights: &[u64],
        climb: Climb,
    ) -> Result<(), RoundError> {
        let over_remaining = FixedWeights::over(weights, &self.remaining())?;
        let stage = value_stage(source, over_remaining, Some(self.base.clone()), climb)?;
        for row in stage.rows {
            let player = row.player;
            self.rows[player] = row;
        }
        self.after_nano = stage.after_nano;
        self.records.push(stage.record);
        Ok(())
    }

    fn valuation(&self) -> Result<RoundValuation, RoundError> {
        let total = i128::from(self.before_nano) - i128::from(self.after_nano);
        let included = self.rows.iter().filter(|row| !row.excluded);
        let explained: i128 = included.map(|row| i128::from(row.score_nano)).sum();
        Ok(RoundValuation {
            loss_before_nano: self.before_nano,
            loss_after_nano: self.after_nano,
            total_nano: i64::try_from(total)?,
            gap_nano: i64::try_from(total - explained)?,
            rows: self.rows.clone(),
            stages: self.records.clone(),
        })
    }
}

/// The scores of `members` (ascending players of `source`) with shares over them alone, by one
/// estimator: one stage of [`value_round`], for verification of a part of it. No player is excluded
/// here.
///
/// For the path estimator, a source that can differentiate only some players may return zeros for
/// the others: the scores of those are then zero, and the scores of the rest are correct.
///
/// # Errors
/// As [`value_round`].
pub fn value_members<S: AffineSource>(
    source: &mut S,
    weights: &[u64],
    members: &[usize],
    estimator: StageEstimator,
    seed: u64,
) -> Result<Vec<RoundScore>, RoundError> {
    let weights = FixedWeights::over(weights, members)?;
    Ok(value_stage(source, weights, None, Climb::To { estimator, seed })?.rows)
}

/// The estimators that a stage tries.
#[derive(Clone, Copy)]
enum Climb {
    /// All of the gap rules, until one resolves the stage.
    All(RoundRules),
    /// Those of them that have no gap.
    WithoutGap(RoundRules),
    /// One, whose gap does not matter.
    To { estimator: StageEstimator, seed: u64 },
}

impl Climb {
    fn estimators(self, players: usize) -> (Vec<StageEstimator>, u64) {
        match self {
            Self::All(rules) => (stage_estimators(rules.nodes, players), rules.seed),
            Self::WithoutGap(rules) => {
                let all = stage_estimators(rules.nodes, players).into_iter();
                let is_path = |one: &StageEstimator| matches!(one, StageEstimator::Path { .. });
                (all.filter(|one| !is_path(one)).collect(), rules.seed)
            }
            Self::To { estimator, seed } => (vec![estimator], seed),
        }
    }

    fn resolves(self, gap_nano: i64, total_nano: i64) -> bool {
        match self {
            Self::All(rules) | Self::WithoutGap(rules) => (rules.is_resolved)(gap_nano, total_nano),
            Self::To { .. } => true,
        }
    }
}

/// The result of one stage: one valuation of the members of `weights`.
struct StageResult {
    base: Vec<f64>,
    before_nano: i64,
    after_nano: i64,
    rows: Vec<RoundScore>,
    record: StageRecord,
}

/// Runs one stage. `base` are the losses at the base point if an earlier stage has evaluated them.
fn value_stage<S: AffineSource>(
    source: &mut S,
    weights: FixedWeights,
    base: Option<Vec<f64>>,
    climb: Climb,
) -> Result<StageResult, RoundError> {
    let members = weights.members().to_vec();
    let mut game = AffineGame::new(source, weights)?;
    if let Some(base) = base {
        game = game.with_base(base);
    }
    let base = game.base_losses()?.to_vec();
    if base.len() < 2 {
        return Err(RoundError::TooFewRows { rows: base.len() });
    }
    let before_nano = round_to_nano("the loss before", mean(&base))?;
    let (estimators, seed) = climb.estimators(members.len());
    let (chances, mut passes) = game.member_random_direction_std()?;
    let mut last = None;
    for estimator in estimators {
        let valuation = estimate(&mut game, estimator, &members, seed)?;
        passes += estimator.passes(members.len());
        let after_nano = round_to_nano("the loss after", mean(&base) - valuation.total)?;
        let rows = score_rows(&valuation, &chances)?;
        let explained: i128 = rows.iter().map(|row| i128::from(row.score_nano)).sum();
        let total = i128::from(before_nano) - i128::from(after_nano);
        let (total_nano, gap_nano) = (i64::try_from(total)?, i64::try_from(total - explained)?);
        let is_resolved = climb.resolves(gap_nano, total_nano);
        let record = StageRecord { estimator, total_nano, gap_nano, passes, is_resolved };
        last = Some((after_nano, rows, record));
        if is_resolved {
            break;
        }
    }
    let Some((after_nano, rows, record)) = last else {
        return Err(GameError::new("a stage without an estimator").into());
    };
    Ok(StageResult { base, before_nano, after_nano, rows, record })
}

/// Values the players of a stage. Only permutations draw random numbers.
fn estimate<S: AffineSource>(
    game: &mut AffineGame<S>,
    estimator: StageEstimator,
    members: &[usize],
    seed: u64,
) -> Result<Valuation<usize>, ValuationError> {
    let run = RunOptions::seeded(seed);
    match estimator {
        StageEstimator::Path { nodes } => {
            value(&Path::with_nodes(nodes.into())?, game, members, run)
        }
        StageEstimator::Shapley => value(&Exact, game, members, run),
        StageEstimator::Permutations { pairs } => {
            value(&RowPermutations { pairs: pairs.into() }, game, members, run)
        }
    }
}

/// One row per score; `chances` are the null standard deviations.
fn score_rows(
    valuation: &Valuation<usize>,
    chances: &[f64],
) -> Result<Vec<RoundScore>, RoundError> {
    let row = |(position, (score, chance)): (usize, (&Score<usize>, &f64))| {
        let nodes = valuation.nodes.iter();
        let slopes: Vec<f64> = nodes.map(|node| node.derivatives[position]).collect();
        round_score(score, *chance, &slopes)
    };
    valuation.scores.iter().zip(chances).enumerate().map(row).collect()
}

fn round_score(
    score: &Score<usize>,
    chance: f64,
    slopes: &[f64],
) -> Result<RoundScore, RoundError> {
    let sampling = score.standard_error.ok_or(RoundError::TooFewRows { rows: 1 })?;
    let estimator = score.estimator_error.unwrap_or(0.0);
    // Not `hypot`, whose last bit may differ between machines.
    let error = (sampling * sampling + chance * chance + estimator * estimator).sqrt();
    Ok(RoundScore {
        player: score.id,
        score_nano: round_to_nano("a score", score.value)?,
        error_nano: round_to_nano("a score's error", error)?.unsigned_abs(),
        derivatives_nano: slopes
            .iter()
            .map(|s| round_to_nano("a directional derivative", *s))
            .collect::<Result<_, _>>()?,
        excluded: false,
    })
}

fn round_to_nano(what: &'static str, nats: f64) -> Result<i64, RoundError> {
    to_nano(nats).map_err(|source| RoundError::Nano { what, source })
}
