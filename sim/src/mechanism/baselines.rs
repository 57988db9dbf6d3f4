//! Baseline mechanisms that divide a round's improvement by a simple rule, on top of plain
//! federated averaging: no near-duplicate is rejected, no update is excluded, and no bond is
//! debited.

use florin_contribution::{
    Coalition, Estimator, Game, GameError, Gtg, LeaveOneOut, RoundError, RunOptions,
    ValuationError, cosine, to_nano, value as run,
};
use florin_learning::{AggregationRule, Dataset, Evaluator, ModelSpec, Reference, aggregate, mean};
use florin_protocol::{ModelMetrics, UpdateScore, blob_digest};
use florin_work::{
    ValuationInputs, ValuationOutput, WorkError, decode_model, decode_update_into,
    encode_parameters, model_spec, verify_disclosed_rows, void_metrics,
};

use super::{Mechanism, UNCHANGED, scores_only_result};

/// The cooperative game of a round of plain federated averaging.
struct FedAvgGame<'a> {
    model: ModelSpec,
    base: Vec<f64>,
    /// Each update, multiplied by its weight in the mean.
    weighted: Vec<Vec<f32>>,
    /// The number of rows of each update that count.
    rows: Vec<u64>,
    evaluation_rows: Dataset,
    engine: &'a mut Reference,
    loss: f64,
}

impl FedAvgGame<'_> {
    fn loss_at(&mut self, coalition: &Coalition) -> Result<f64, GameError> {
        let mut at = self.base.clone();
        for player in coalition.players() {
            let update = self.weighted[player].iter();
            at.iter_mut().zip(update).for_each(|(sum, delta)| *sum += f64::from(*delta));
        }
        let losses = self.engine.row_losses(&self.model, &at, &self.evaluation_rows);
        Ok(mean(&losses.map_err(GameError::new)?))
    }
}

impl Game for FedAvgGame<'_> {
    fn players(&self) -> usize {
        self.weighted.len()
    }

    fn value(&mut self, coalition: &Coalition) -> Result<f64, GameError> {
        Ok(self.loss - self.loss_at(coalition)?)
    }
}

pub(super) fn value_round(
    inputs: &ValuationInputs<'_>,
    engine: &mut Reference,
    rule: &Mechanism,
    seed: u64,
) -> Result<ValuationOutput, WorkError> {
    let ValuationInputs { spec, entries, updates, .. } = *inputs;
    let input = |source| WorkError::Input { what: "an input".to_owned(), source };
    let base = decode_model(spec, inputs.base).map_err(input)?;
    let judged = verify_disclosed_rows(spec, inputs.row_indices, inputs.disclosed_rows)?;
    let rows: Vec<u64> = entries.iter().map(|entry| entry.rows_counted).collect();
    let all = rows.iter().sum::<u64>().max(1) as f64;
    let mut deltas = Vec::with_capacity(entries.len());
    for bytes in updates.iter() {
        let mut delta = vec![0.0; base.len()];
        decode_update_into(spec, bytes, &mut delta).map_err(input)?;
        deltas.push(delta);
    }
    let counted_updates: Vec<(u64, &[f32])> =
        rows.iter().copied().zip(deltas.iter().map(Vec::as_slice)).collect();
    let step =
        match aggregate(florin_work::aggregation_rule(spec.rounds.aggregation), &counted_updates) {
            Ok(step) => step,
            Err(_) => aggregate(AggregationRule::Median, &counted_updates)?,
        };
    let after: Vec<f32> = base.iter().zip(&step).map(|(base, step)| base + step).collect();
    let bytes = encode_parameters(spec, &after);
    let weigh = |(delta, rows): (&Vec<f32>, &u64)| {
        let share = *rows as f64 / all;
        delta.iter().map(|value| (f64::from(*value) * share) as f32).collect()
    };
    let weighted = deltas.iter().zip(&rows).map(weigh).collect();
    let model = model_spec(&spec.model);
    let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>();
    let (before, end) = (wide(&base), wide(&after));
    let correct =
        |engine: &mut Reference, at: &[f64]| engine.correct_predictions(&model, at, &judged);
    let metrics = ModelMetrics {
        rows: judged.rows() as u32,
        correct_before: correct(engine, &before)? as u32,
        correct_after: correct(engine, &end)? as u32,
        loss_after_nano: to_nano(mean(&engine.row_losses(&model, &end, &judged)?))?,
    };
    let loss = mean(&engine.row_losses(&model, &before, &judged)?);
    let nano = [to_nano(loss)?, metrics.loss_after_nano];
    let mut round = FedAvgGame {
        model: model.clone(),
        base: before,
        weighted,
        rows,
        evaluation_rows: judged,
        engine,
        loss,
    };
    let shares = improvement_shares(&mut round, &deltas, rule, seed)?;
    let total = (nano[0] - nano[1]).max(0) as f64;
    let scores = entries.iter().zip(shares).map(|(entry, share)| UpdateScore {
        account: entry.sender,
        score_nano: (share * total).floor() as i64,
        error_nano: 0,
        excluded: false,
        preprocessing: UNCHANGED,
    });
    let result = scores_only_result(scores.collect(), nano, metrics, &bytes);
    Ok(keep_model_if_void(ValuationOutput { result, model: bytes }, inputs.base))
}

/// In a void round the model stays, as with Florin's own mechanism.
fn keep_model_if_void(mut output: ValuationOutput, base: &[u8]) -> ValuationOutput {
    let result = &mut output.result;
    if result.valuation.void_reason().is_some() {
        result.model = blob_digest(base);
        result.metrics = void_metrics(result.metrics, &result.valuation);
        output.model = base.to_vec();
    }
    output
}

/// The non-negative share of each update in the improvement; all zero if the rule finds no useful
/// update. If the shares cannot be estimated, the round cannot be valued, as with Florin's own
/// mechanism.
fn improvement_shares(
    round: &mut FedAvgGame<'_>,
    deltas: &[Vec<f32>],
    rule: &Mechanism,
    seed: u64,
) -> Result<Vec<f64>, WorkError> {
    let n = round.players();
    let nothing = vec![0.0; n];
    let raw = match rule {
        // Florin's own scores do not divide the improvement this way; the tokenised mechanism pays
        // outside the task's budget.
        Mechanism::Florin | Mechanism::CutAtZero | Mechanism::Tokenised(_) => nothing.clone(),
        Mechanism::Equal => vec![1.0; n],
        Mechanism::Rows => round.rows.iter().map(|rows| *rows as f64).collect(),
        Mechanism::LeaveOneOut => estimate(&LeaveOneOut, round, seed)?,
        Mechanism::Gtg => estimate(&Gtg::as_published(), round, seed)?,
        Mechanism::Cosine => {
            let all = round.rows.iter().sum::<u64>().max(1) as f64;
            let weights: Vec<f64> = round.rows.iter().map(|rows| *rows as f64 / all).collect();
            let found = cosine(&mut deltas.to_vec(), &weights);
            found.map_err(|error| valuation_error(ValuationError::Game(GameError::new(error))))?
        }
        Mechanism::Rank => {
            let found = estimate(&LeaveOneOut, round, seed)?;
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|a, b| found[*b].total_cmp(&found[*a]).then(a.cmp(b)));
            let mut places = nothing.clone();
            order.iter().enumerate().for_each(|(place, who)| places[*who] = (n - place) as f64);
            places
        }
    };
    let positive: Vec<f64> = raw.iter().map(|value| value.max(0.0)).collect();
    let sum: f64 = positive.iter().sum();
    Ok(if sum > 0.0 { positive.iter().map(|value| value / sum).collect() } else { nothing })
}

fn estimate<'a>(
    estimator: &impl Estimator<FedAvgGame<'a>>,
    round: &mut FedAvgGame<'a>,
    seed: u64,
) -> Result<Vec<f64>, WorkError> {
    let ids: Vec<usize> = (0..round.players()).collect();
    let valued = run(estimator, round, &ids, RunOptions::seeded(seed)).map_err(valuation_error)?;
    Ok(valued.scores.iter().map(|score| score.value).collect())
}

fn valuation_error(error: ValuationError) -> WorkError {
    WorkError::Valuation(RoundError::Valuation(error))
}
