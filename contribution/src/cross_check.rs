//! A sampled cross-check of a round that any third party can verify coalition by coalition.
//!
//! A cross-check evaluates some coalitions and estimates every score from them alone. The values
//! are rounded to whole nano-nats *before* the estimator uses them, and are published with the
//! result. There are two things to verify, both cheap: that some of the values, chosen by the
//! verifier, equal the models' losses ([`AffineGame`]); and that the estimate follows from the
//! table ([`scores_from_table`]), which needs no model.

use std::collections::BTreeMap;

use crate::{
    AffineGame, AffineSource, Coalition, Estimator, FixedWeights, Game, GameError, NANO_PER_NAT,
    RoundError, RunOptions, ValuationError, to_nano, value,
};

/// The seed and budget of a cross-check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrossCheckOptions {
    /// The seed of all random numbers.
    pub seed: u64,
    /// Largest number of coalitions to evaluate.
    pub passes: u64,
}

/// The result of a cross-check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrossCheckResult {
    /// The value in nano-nats of every evaluated coalition, ascending by coalition; coalitions are
    /// sets of the source's players.
    pub table: Vec<(Coalition, i64)>,
    /// One score in nano-nats per member, in the members' order.
    pub scores_nano: Vec<i64>,
    /// Evaluations of the loss, each one pass over the holdout: one for every coalition of the
    /// table except the empty one, and one for the base point.
    pub passes: u64,
}

/// Estimates the scores of `members` (ascending players of `source`, with a positive sum of
/// `weights`) from coalitions of them alone, with the same fixed shares as the round's valuation.
///
/// # Errors
/// As [`value`] and [`to_nano`]; a budget below the estimator's minimum is refused.
pub fn cross_check_round<S, E>(
    estimator: &E,
    source: &mut S,
    weights: &[u64],
    members: &[usize],
    rules: CrossCheckOptions,
) -> Result<CrossCheckResult, RoundError>
where
    S: AffineSource,
    E: for<'a> Estimator<RecordedGame<'a>>,
{
    let players = source.players();
    let mut game = AffineGame::new(source, FixedWeights::over(weights, members)?)?;
    let mut ask = |coalition: &Coalition| {
        let worth = if coalition.is_empty() { 0.0 } else { game.value(coalition)? };
        to_nano(worth).map_err(GameError::new)
    };
    let mut recorded = RecordedGame {
        members: members.len(),
        values_nano: BTreeMap::new(),
        evaluate: Some(&mut ask),
    };
    let scores_nano = estimate(estimator, &mut recorded, rules)?;
    let table: Vec<(Coalition, i64)> = recorded
        .values_nano
        .iter()
        .map(|(coalition, nano)| (to_source_players(coalition, members, players), *nano))
        .collect();
    let evaluated = table.iter().filter(|(coalition, _)| !coalition.is_empty()).count() as u64;
    let mut table = table;
    table.sort_unstable();
    Ok(CrossCheckResult { table, scores_nano, passes: evaluated + 1 })
}

/// Recomputes the scores from a published table, without a model.
///
/// # Errors
/// [`RoundError`] if the table lacks a coalition that the estimator requests: these rules did not
/// produce the table.
pub fn scores_from_table<E>(
    estimator: &E,
    table: &[(Coalition, i64)],
    members: &[usize],
    rules: CrossCheckOptions,
) -> Result<Vec<i64>, RoundError>
where
    E: for<'a> Estimator<RecordedGame<'a>>,
{
    let position: BTreeMap<usize, usize> =
        members.iter().enumerate().map(|(position, player)| (*player, position)).collect();
    let mut known = BTreeMap::new();
    for (coalition, nano) in table {
        let mut own = Coalition::empty(members.len());
        for player in coalition.players() {
            let Some(&position) = position.get(&player) else {
                return Err(GameError::new(format!(
                    "{coalition} contains a player that is not a member"
                ))
                .into());
            };
            own.insert(position);
        }
        known.insert(own, *nano);
    }
    estimate(
        estimator,
        &mut RecordedGame { members: members.len(), values_nano: known, evaluate: None },
        rules,
    )
}

fn estimate<'a, E: Estimator<RecordedGame<'a>>>(
    estimator: &E,
    recorded: &mut RecordedGame<'a>,
    rules: CrossCheckOptions,
) -> Result<Vec<i64>, RoundError> {
    let ids: Vec<usize> = (0..recorded.members).collect();
    let run = RunOptions::seeded(rules.seed).with_budget(rules.passes);
    let valuation = value(estimator, recorded, &ids, run)?;
    let nano = |value| {
        to_nano(value)
            .map_err(|source| RoundError::Nano { what: "a score of the cross-check", source })
    };
    valuation.scores.iter().map(|score| nano(score.value)).collect()
}

/// The same coalition, expressed in the players of the source.
fn to_source_players(coalition: &Coalition, members: &[usize], players: usize) -> Coalition {
    let mut of_source = Coalition::empty(players);
    coalition.players().for_each(|position| of_source.insert(members[position]));
    of_source
}

type EvaluateNano<'a> = dyn FnMut(&Coalition) -> Result<i64, GameError> + 'a;

/// A game whose values are whole nano-nats, each evaluated once and stored.
pub struct RecordedGame<'a> {
    members: usize,
    values_nano: BTreeMap<Coalition, i64>,
    evaluate: Option<&'a mut EvaluateNano<'a>>,
}

impl Game for RecordedGame<'_> {
    fn players(&self) -> usize {
        self.members
    }

    fn value(&mut self, coalition: &Coalition) -> Result<f64, GameError> {
        let nano = match (self.values_nano.get(coalition), self.evaluate.as_mut()) {
            (Some(nano), _) => *nano,
            (None, Some(ask)) => {
                let nano = ask(coalition)?;
                self.values_nano.insert(coalition.clone(), nano);
                nano
            }
            (None, None) => {
                return Err(GameError::new(format!(
                    "the table has no value of coalition {coalition}"
                )));
            }
        };
        Ok(nano as f64 / NANO_PER_NAT)
    }
}

impl From<ValuationError> for GameError {
    fn from(cause: ValuationError) -> Self {
        Self::new(cause)
    }
}
