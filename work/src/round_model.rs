//! The model after a round: the aggregate of its updates, and the step of the public baseline.

use florin_contribution::to_nano;
use florin_learning::{AggregateError, AggregationRule, aggregate, mean};
use florin_protocol::{ModelArchitecture, ModelMetrics, PublicBaseline, TaskSpec, Valuation};

use crate::codec::encode_parameters;
use crate::convert::aggregation_rule;
use crate::evaluations::{BaselineWork, RoundEvaluations, wide};
use crate::public_baseline::public_baseline;
use crate::round::{DecodedRound, ValuationInputs, WorkError};

/// End of the names of running variances in PyTorch.
const RUNNING_VARIANCE: &str = "running_var";

/// The model that the task's rule aggregates from the updates that are not excluded.
pub(crate) struct AggregatedModel {
    params: Vec<f32>,
    pub(crate) metrics: ModelMetrics,
}

/// The model after a round.
pub(crate) struct RoundModel {
    pub(crate) bytes: Vec<u8>,
    pub(crate) metrics: ModelMetrics,
    pub(crate) baseline: Option<PublicBaseline>,
}

/// The parameters after a round, and where they come from.
pub(crate) struct FinalParameters {
    pub(crate) params: Vec<f32>,
    pub(crate) baseline: Option<PublicBaseline>,
    source: ModelSource,
}

enum ModelSource {
    /// The base model: the round is void.
    Base,
    Aggregate,
    PublicBaseline,
}

impl FinalParameters {
    /// The base model in a void round, otherwise the aggregate after the step of the public baseline,
    /// if the step lowers the loss.
    pub(crate) fn new(
        inputs: &ValuationInputs<'_>,
        opened: &DecodedRound,
        valuation: &Valuation,
        aggregate: Vec<f32>,
        work: &mut dyn BaselineWork,
    ) -> Result<Self, WorkError> {
        if valuation.void_reason().is_some() {
            let (params, source) = (opened.base.clone(), ModelSource::Base);
            return Ok(Self { params, baseline: None, source });
        }
        let step = public_baseline(inputs, opened, &aggregate, work)?;
        let baseline = step.as_ref().map(|step| step.record);
        let (params, source) = match step.and_then(|step| step.params) {
            Some(params) => (params, ModelSource::PublicBaseline),
            None => (aggregate, ModelSource::Aggregate),
        };
        Ok(Self { params, baseline, source })
    }
}

impl AggregatedModel {
    pub(crate) fn new(
        inputs: &ValuationInputs<'_>,
        opened: &DecodedRound,
        valuation: &Valuation,
        evaluations: &mut dyn RoundEvaluations,
    ) -> Result<Self, WorkError> {
        let params = aggregate_updates(inputs, opened, valuation)?;
        let metrics = evaluate_models(opened, &params, evaluations)?;
        Ok(Self { params, metrics })
    }

    /// The round's model, with its metrics.
    pub(crate) fn finish(
        self,
        inputs: &ValuationInputs<'_>,
        opened: &DecodedRound,
        valuation: &Valuation,
        evaluations: &mut dyn RoundEvaluations,
    ) -> Result<RoundModel, WorkError> {
        let Self { params, metrics } = self;
        let FinalParameters { params, baseline, source } =
            FinalParameters::new(inputs, opened, valuation, params, evaluations)?;
        let metrics = match source {
            ModelSource::Base => void_metrics(metrics, valuation),
            ModelSource::Aggregate => metrics,
            ModelSource::PublicBaseline => with_model_after(metrics, &params, evaluations)?,
        };
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

/// The parameters after the round. The task's rule aggregates the updates that
/// are neither rejected as near-duplicates nor excluded, in sender order. The result is bit for bit
/// the model of a round without the rejected updates. The same holds for excluded updates, except
/// that they count in the median norm.
pub(crate) fn aggregate_updates(
    inputs: &ValuationInputs<'_>,
    opened: &DecodedRound,
    valuation: &Valuation,
) -> Result<Vec<f32>, WorkError> {
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
        return Ok(base.clone());
    }
    let step = match aggregate(aggregation_rule(spec.rounds.aggregation), &included) {
        // Exclusion may leave fewer updates than the rule requires. The median takes any number and
        // tolerates a minority of outliers among them.
        Err(AggregateError::TooFew { .. }) => aggregate(AggregationRule::Median, &included)?,
        step => step?,
    };
    let mut params: Vec<f32> = base.iter().zip(step).map(|(base, step)| base + step).collect();
    clamp_variances(spec, &mut params);
    Ok(params)
}

/// Raises running variances below zero to zero, as the valuation counts them: a mean of updates can
/// make one negative, and PyTorch would take its root.
fn clamp_variances(spec: &TaskSpec, params: &mut [f32]) {
    let ModelArchitecture::Graph(graph) = &spec.model else { return };
    let mut from = 0;
    for tensor in &graph.tensors {
        let elements = tensor.elements().and_then(|elements| usize::try_from(elements).ok());
        let end = elements.map_or(params.len(), |elements| params.len().min(from + elements));
        if tensor.name.ends_with(RUNNING_VARIANCE) {
            params[from..end].iter_mut().for_each(|variance| *variance = variance.max(0.0));
        }
        from = end;
    }
}

fn evaluate_models(
    opened: &DecodedRound,
    after: &[f32],
    evaluations: &mut dyn RoundEvaluations,
) -> Result<ModelMetrics, WorkError> {
    let DecodedRound { base, holdout, .. } = opened;
    let before = ModelMetrics {
        rows: count(holdout.rows()),
        correct_before: count(evaluations.correct_predictions(&wide(base))?),
        ..ModelMetrics::default()
    };
    with_model_after(before, after, evaluations)
}

/// The metrics with those of another model after the round.
fn with_model_after(
    metrics: ModelMetrics,
    after: &[f32],
    evaluations: &mut dyn RoundEvaluations,
) -> Result<ModelMetrics, WorkError> {
    let after = wide(after);
    Ok(ModelMetrics {
        correct_after: count(evaluations.correct_predictions(&after)?),
        loss_after_nano: to_nano(mean(&evaluations.row_losses(&after)?))?,
        ..metrics
    })
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
