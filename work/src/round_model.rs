//! The model after a round: the aggregate of its updates, and the step of the public baseline.

use florin_contribution::to_nano;
use florin_learning::{
    AggregateError, AggregationRule, Dataset, Engine, ModelSpec, aggregate, mean,
};
use florin_protocol::{ModelMetrics, PublicBaseline, Valuation};

use crate::codec::encode_parameters;
use crate::convert::aggregation_rule;
use crate::public_baseline::public_baseline;
use crate::round::{DecodedRound, ValuationInputs, WorkError};

/// The model that the task's rule aggregates from the updates that are not excluded.
pub(crate) struct AggregatedModel {
    bytes: Vec<u8>,
    params: Vec<f32>,
    pub(crate) metrics: ModelMetrics,
}

/// The model after a round.
pub(crate) struct RoundModel {
    pub(crate) bytes: Vec<u8>,
    pub(crate) metrics: ModelMetrics,
    pub(crate) baseline: Option<PublicBaseline>,
}

impl AggregatedModel {
    pub(crate) fn new(
        inputs: &ValuationInputs<'_>,
        opened: &DecodedRound,
        valuation: &Valuation,
        engine: &mut dyn Engine,
    ) -> Result<Self, WorkError> {
        let (bytes, params) = aggregate_updates(inputs, opened, valuation)?;
        let metrics =
            evaluate_models(&opened.model, &opened.base, &params, &opened.holdout, engine)?;
        Ok(Self { bytes, params, metrics })
    }

    /// The round's model: the base model in a void round, otherwise this one after the step of the
    /// public baseline, if the step lowers the loss.
    pub(crate) fn finish(
        self,
        inputs: &ValuationInputs<'_>,
        opened: &DecodedRound,
        valuation: &Valuation,
        engine: &mut dyn Engine,
    ) -> Result<RoundModel, WorkError> {
        let Self { bytes, params, metrics } = self;
        if valuation.void_reason().is_some() {
            let bytes = encode_parameters(inputs.spec, &opened.base);
            return Ok(RoundModel {
                bytes,
                metrics: void_metrics(metrics, valuation),
                baseline: None,
            });
        }
        let step = public_baseline(inputs, opened, &params)?;
        let baseline = step.as_ref().map(|step| step.record);
        let Some(params) = step.and_then(|step| step.params) else {
            return Ok(RoundModel { bytes, metrics, baseline });
        };
        let metrics =
            evaluate_models(&opened.model, &opened.base, &params, &opened.holdout, engine)?;
        Ok(RoundModel { bytes: encode_parameters(inputs.spec, &params), metrics, baseline })
    }
}

/// The metrics of a void round, whose model stays.
#[must_use]
pub fn void_metrics(metrics: ModelMetrics, valuation: &Valuation) -> ModelMetrics {
    ModelMetrics {
        correct_after: metrics.correct_before,
        loss_after_nano: valuation.loss_before_nano,
        ..metrics
    }
}

/// The model after the round, as bytes and as numbers. The task's rule aggregates the updates that
/// are neither rejected as near-duplicates nor excluded, in sender order. The result is bit for bit
/// the model of a round without the rejected updates. The same holds for excluded updates, except
/// that they count in the median norm.
fn aggregate_updates(
    inputs: &ValuationInputs<'_>,
    opened: &DecodedRound,
    valuation: &Valuation,
) -> Result<(Vec<u8>, Vec<f32>), WorkError> {
    let spec = inputs.spec;
    let included: Vec<(u64, &[f32])> = opened
        .updates
        .rows
        .iter()
        .zip(opened.slices())
        .zip(&valuation.scores)
        .filter(|(_, score)| !score.excluded && score.preprocessing.duplicate_of.is_none())
        .map(|((rows, delta), _)| (*rows, delta))
        .collect();
    let base = &opened.base;
    if included.iter().all(|(weight, _)| *weight == 0) {
        return Ok((encode_parameters(spec, base), base.clone()));
    }
    let step = match aggregate(aggregation_rule(spec.rounds.aggregation), &included) {
        // Exclusion may leave fewer updates than the rule requires. The median takes any number and
        // tolerates a minority of outliers among them.
        Err(AggregateError::TooFew { .. }) => aggregate(AggregationRule::Median, &included)?,
        step => step?,
    };
    let after: Vec<f32> = base.iter().zip(step).map(|(base, step)| base + step).collect();
    Ok((encode_parameters(spec, &after), after))
}

fn evaluate_models(
    model: &ModelSpec,
    before: &[f32],
    after: &[f32],
    holdout: &Dataset,
    engine: &mut dyn Engine,
) -> Result<ModelMetrics, WorkError> {
    let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>();
    let (before, after) = (wide(before), wide(after));
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Ok(ModelMetrics {
        rows: count(holdout.rows()),
        correct_before: count(engine.correct_predictions(model, &before, holdout)?),
        correct_after: count(engine.correct_predictions(model, &after, holdout)?),
        loss_after_nano: to_nano(mean(&engine.row_losses(model, &after, holdout)?))?,
    })
}
