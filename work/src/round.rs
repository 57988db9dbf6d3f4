//! Valuation and aggregation of one round.

use florin_contribution::{
    NanoError, RoundError, RoundRules, RoundValuation, StageEstimator, StageRecord, to_nano,
    value_round_confirmed,
};
use florin_learning::engine::{CommandError, EvalError, TrainError};
use florin_learning::graph::GraphModel;
use florin_learning::{AggregateError, Dataset, Engine, ModelSpec, RowMatrix, ScratchSpace, mean};
use florin_protocol::void::is_gap_resolved;
use florin_protocol::{
    Address, Digest, DuplicateMatch, DuplicatePolicy, DuplicateSource, Estimator, Preprocessing,
    Rejection, ScoreEstimator, TaskSpec, UpdateEntry, UpdateScore, Valuation, ValuationEvidence,
    ValuationStage, WorkResult, blob_digest,
};

use crate::blob_source::{BlobSource, NO_BLOBS};
use crate::class_effects::{class_effects, class_passes, compare_class_effects};
use crate::codec::{decode_model, decode_update_into};
use crate::cross_check::{CrossChecks, compare_cross_checks, cross_check_seed};
use crate::evaluations::RoundEvaluations;
use crate::graph::task_model;
use crate::holdout::{DisclosureError, verify_disclosed_rows};
use crate::preprocess::{PreprocessedUpdates, PublicHistory, preprocess};
use crate::round_model::{AggregatedModel, RoundModel};
use crate::round_source::RoundSource;
use crate::transcript::TranscriptError;

/// Largest difference of a score, a standard error or a loss between two honest machines, in
/// nano-nats. Evaluation runs in `f64` with a fixed order of summation, so engines differ by about
/// 1e-12 nats, which can change the rounded integer by one nano-nat.
pub const TOLERANCE_NANO: u64 = 10;

/// Inputs of a round's valuation: public bytes that the report names by digest.
#[derive(Clone, Copy)]
pub struct ValuationInputs<'a> {
    /// The task.
    pub spec: &'a TaskSpec,
    /// The loaded graph, if the task's model is one.
    pub graph: Option<&'a GraphModel>,
    /// Bytes of the model that the round starts from.
    pub base: &'a [u8],
    /// Indices of the holdout rows drawn for the round.
    pub row_indices: &'a [u32],
    /// Bytes of the disclosed rows: [`florin_protocol::DisclosedRows`].
    pub disclosed_rows: &'a [u8],
    /// The accepted updates, ascending by sender.
    pub entries: &'a [UpdateEntry],
    /// Bytes of the updates, in the order of the entries.
    pub updates: &'a dyn BlobSource,
    /// Base models of the preceding rounds, the latest first, at most
    /// [`GLOBAL_DELTAS_MAX`](florin_protocol::limits::GLOBAL_DELTAS_MAX).
    pub previous_models: &'a dyn BlobSource,
    /// Published updates of earlier rounds: [`florin_protocol::EarlierUpdates`].
    pub earlier_updates: EarlierUpdateBlobs<'a>,
    /// Bytes of the rows of earlier rounds that train the public baseline, round by round. The
    /// caller verifies that they are the rows of these rounds:
    /// [`baseline_rows`](crate::baseline_rows).
    pub earlier_rows: &'a dyn BlobSource,
    /// Scratch space for the decoded updates. It does not affect the result.
    pub scratch_space: &'a ScratchSpace,
}

/// Published updates of earlier rounds.
#[derive(Clone, Copy)]
pub struct EarlierUpdateBlobs<'a> {
    /// Senders and digests, as the work order lists them.
    pub ids: &'a [(Address, Digest)],
    /// Bytes of the updates, in the same order.
    pub bytes: &'a dyn BlobSource,
}

impl EarlierUpdateBlobs<'_> {
    /// No updates: in a task's first round, or if the task pays for duplicates.
    pub const NONE: Self = Self { ids: &[], bytes: &NO_BLOBS };
}

/// Result of the valuation and aggregation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValuationOutput {
    /// Scores, metrics and the digest of the new model.
    pub result: WorkResult,
    /// Bytes of the new model.
    pub model: Vec<u8>,
}

/// Why the round cannot be valued and aggregated.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The model cannot be built.
    #[error("model: {0}")]
    Model(String),
    /// An input does not match its digest or the task.
    #[error("{what}: {source}")]
    Input {
        /// Name of the input.
        what: String,
        /// The error in it.
        source: Rejection,
    },
    /// The disclosed rows are not the round's validation rows.
    #[error("holdout: {0}")]
    Disclosure(#[from] DisclosureError),
    /// The number of update bytes differs from the number of entries.
    #[error("{updates} updates for {entries} entries: each entry needs the bytes of its update")]
    Count {
        /// Number of entries.
        entries: usize,
        /// Number of updates.
        updates: usize,
    },
    /// The valuation failed.
    #[error("valuation: {0}")]
    Valuation(#[from] RoundError),
    /// The evaluation engine failed.
    #[error("evaluation: {0}")]
    Evaluation(#[from] EvalError),
    /// The training of the public baseline failed.
    #[error("public baseline: {0}")]
    Baseline(TrainError),
    /// The aggregation failed.
    #[error("aggregation: {0}")]
    Aggregation(#[from] AggregateError),
    /// There is not enough scratch space for the decoded updates.
    #[error(
        "scratch space for the decoded updates: {0}; free disk space, or raise the memory limit"
    )]
    ScratchSpace(#[from] std::io::Error),
    /// A transcript is not accepted.
    #[error(transparent)]
    Transcript(Box<TranscriptError>),
    /// A loss is not finite.
    #[error("loss: {0}")]
    Loss(#[from] NanoError),
}

impl WorkError {
    /// The failure of a trainer, if it is the cause: it may be this machine's alone.
    #[must_use]
    pub fn trainer_failure(&self) -> Option<&CommandError> {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            if let Some(EvalError::Command(failure)) = error.downcast_ref() {
                return Some(failure);
            }
            cause = error.source();
        }
        None
    }
}

/// Values the updates, excludes the significantly harmful ones and aggregates the rest.
///
/// # Errors
/// [`WorkError`]; the same on every machine for the same inputs.
pub fn value_and_aggregate(
    inputs: &ValuationInputs<'_>,
    engine: &mut dyn Engine,
) -> Result<ValuationOutput, WorkError> {
    let opened = DecodedRound::decode(inputs)?;
    let slices = opened.slices();
    value_decoded(inputs, &opened, &mut opened.source(&slices, engine))
}

/// The same with decoded inputs, and with evaluations that an engine computes, or that a replay reads.
pub(crate) fn value_decoded(
    inputs: &ValuationInputs<'_>,
    opened: &DecodedRound,
    evaluations: &mut dyn RoundEvaluations,
) -> Result<ValuationOutput, WorkError> {
    let mut valuation = value_updates(inputs, opened, evaluations)?;
    let aggregated = AggregatedModel::new(inputs, opened, &valuation, evaluations)?;
    valuation.model_loss_nano = aggregated.metrics.loss_after_nano;
    let RoundModel { bytes, metrics, baseline } =
        aggregated.finish(inputs, opened, &valuation, evaluations)?;
    let result = WorkResult { valuation, baseline, metrics, model: blob_digest(&bytes) };
    Ok(ValuationOutput { result, model: bytes })
}

/// The decoded and checked inputs of a round.
pub(crate) struct DecodedRound {
    pub(crate) model: ModelSpec,
    pub(crate) base: Vec<f32>,
    pub(crate) updates: PreprocessedUpdates,
    pub(crate) holdout: Dataset,
    /// The scratch space that is left.
    room: ScratchSpace,
    /// Seed of the random directions of a model without a gradient.
    seed: u64,
}

impl DecodedRound {
    pub(crate) fn decode(inputs: &ValuationInputs<'_>) -> Result<Self, WorkError> {
        let ValuationInputs { spec, entries, updates, .. } = *inputs;
        if entries.len() != updates.len() {
            return Err(WorkError::Count { entries: entries.len(), updates: updates.len() });
        }
        let input = |what: &str| {
            let what = what.to_owned();
            move |source| WorkError::Input { what, source }
        };
        let base = decode_model(spec, inputs.base).map_err(input("base model"))?;
        let holdout = verify_disclosed_rows(spec, inputs.row_indices, inputs.disclosed_rows)?;
        let mut deltas = RowMatrix::zeros(entries.len(), base.len(), inputs.scratch_space)?;
        for (at, (entry, bytes)) in entries.iter().zip(updates.iter()).enumerate() {
            decode_update_into(spec, bytes, deltas.row_mut(at))
                .map_err(input(&format!("update of {}", entry.sender)))?;
            deltas.release(&(0..base.len()));
        }
        let room = inputs.scratch_space.remaining_after(&deltas);
        let steps = global_deltas(inputs, &base, &room)?;
        let room = room.remaining_after(&steps);
        let updates = decode_earlier_updates(inputs, base.len(), &room)?;
        let senders = inputs.earlier_updates.ids.iter().map(|(sender, _)| *sender).collect();
        let room = room.remaining_after(&updates);
        let known = PublicHistory { global_deltas: steps, senders, updates };
        let rules = &spec.rounds;
        let (preprocessing, staleness) = (rules.preprocessing, rules.staleness.weight);
        let held = preprocess(preprocessing, staleness, entries, deltas, &known);
        let model = task_model(spec, inputs.graph);
        Ok(Self { model, base, updates: held, holdout, room, seed: cross_check_seed(inputs) })
    }

    /// The preprocessed updates, as the valuation takes them.
    pub(crate) fn slices(&self) -> Vec<&[f32]> {
        self.updates.deltas.slices()
    }

    /// The losses and derivatives of the round's models: the base model moved by `slices`.
    pub(crate) fn source<'a>(
        &'a self,
        slices: &'a [&'a [f32]],
        engine: &'a mut dyn Engine,
    ) -> RoundSource<'a> {
        RoundSource::new(&self.model, &self.base, slices, &self.holdout, engine)
            .with_seed(self.seed)
            .within(&self.room, &self.updates.deltas)
    }
}

fn value_updates(
    inputs: &ValuationInputs<'_>,
    opened: &DecodedRound,
    evaluations: &mut dyn RoundEvaluations,
) -> Result<Valuation, WorkError> {
    let ValuationInputs { spec, entries, .. } = *inputs;
    let (held, mut source) = (&opened.updates, evaluations);
    if held.rows.iter().all(|weight| *weight == 0) {
        return value_nothing(entries, held, source);
    }
    let (nodes, cross_check_pairs) = match spec.estimator {
        Estimator::Path { nodes, cross_check_pairs } => (Some(nodes), cross_check_pairs),
        Estimator::Coalitions => (None, 0),
    };
    let seed = cross_check_seed(inputs);
    let z_micro = spec.budget.confidence_z.0;
    let rules = RoundRules { z_micro, nodes, seed, is_resolved: is_gap_resolved };
    let mut checks = CrossChecks::new(&held.rows, seed, cross_check_pairs);
    let confirms = |source: &mut &mut dyn RoundEvaluations, valued: &RoundValuation| {
        checks.confirm(source, valued)
    };
    let valued = value_round_confirmed(&mut source, &held.rows, rules, confirms)?;
    let (check, check_units) = checks.finish(&mut source, &valued)?;
    let class_effects = class_effects(spec, opened, source)?;
    let scores = valued
        .rows
        .iter()
        .zip(entries)
        .enumerate()
        .map(|(at, (row, entry))| UpdateScore {
            account: entry.sender,
            score_nano: row.score_nano,
            error_nano: row.error_nano,
            excluded: row.excluded,
            preprocessing: held.preprocessing(at),
        })
        .collect();
    Ok(Valuation {
        loss_before_nano: valued.loss_before_nano,
        loss_after_nano: valued.loss_after_nano,
        total_nano: valued.total_nano,
        gap_nano: valued.gap_nano,
        model_loss_nano: valued.loss_after_nano,
        stages: valued.stages.iter().map(valuation_stage).collect(),
        scores,
        units: valued.passes() + check_units + class_passes(spec, opened),
        evidence: ValuationEvidence {
            derivatives_nano: valued.rows.iter().map(|row| row.derivatives_nano.clone()).collect(),
            cross_check: check,
            class_effects,
        },
    })
}

/// The valuation of a round in which no update has a weight: no stage, and scores of zero.
fn value_nothing(
    entries: &[UpdateEntry],
    held: &PreprocessedUpdates,
    source: &mut dyn RoundEvaluations,
) -> Result<Valuation, WorkError> {
    let losses = source.losses(&vec![0.0; entries.len()]).map_err(RoundError::from)?;
    let loss_nano = to_nano(mean(&losses))?;
    let score = |(at, entry): (usize, &UpdateEntry)| UpdateScore {
        account: entry.sender,
        score_nano: 0,
        error_nano: 0,
        excluded: false,
        preprocessing: held.preprocessing(at),
    };
    Ok(Valuation {
        loss_before_nano: loss_nano,
        loss_after_nano: loss_nano,
        total_nano: 0,
        gap_nano: 0,
        model_loss_nano: loss_nano,
        stages: Vec::new(),
        scores: entries.iter().enumerate().map(score).collect(),
        units: 1,
        evidence: ValuationEvidence {
            derivatives_nano: vec![Vec::new(); entries.len()],
            cross_check: None,
            class_effects: None,
        },
    })
}

pub(crate) fn valuation_stage(stage: &StageRecord) -> ValuationStage {
    ValuationStage {
        estimator: match stage.estimator {
            StageEstimator::Path { nodes } => ScoreEstimator::Path(nodes),
            StageEstimator::Shapley => ScoreEstimator::Shapley,
            StageEstimator::Permutations { pairs } => ScoreEstimator::Permutations(pairs),
        },
        total_nano: stage.total_nano,
        gap_nano: stage.gap_nano,
        units: stage.passes,
    }
}

/// The global model deltas of earlier rounds, the latest first; empty if the task pays for
/// duplicates.
fn global_deltas(
    inputs: &ValuationInputs<'_>,
    base: &[f32],
    room: &ScratchSpace,
) -> Result<RowMatrix, WorkError> {
    let ValuationInputs { spec, previous_models: previous, .. } = *inputs;
    let asked = spec.rounds.preprocessing.near_duplicates == DuplicatePolicy::Reject;
    let mut steps = RowMatrix::zeros(if asked { previous.len() } else { 0 }, base.len(), room)?;
    let mut after = base.to_vec();
    for at in 0..steps.len() {
        let before = decode_model(spec, previous.at(at)).map_err(|source| WorkError::Input {
            what: "an earlier base model".to_owned(),
            source,
        })?;
        for ((step, after), before) in steps.row_mut(at).iter_mut().zip(&after).zip(&before) {
            *step = after - before;
        }
        after = before;
    }
    Ok(steps)
}

/// The decoded updates of earlier rounds. They were checked when the coordinator accepted them.
fn decode_earlier_updates(
    inputs: &ValuationInputs<'_>,
    parameters: usize,
    room: &ScratchSpace,
) -> Result<RowMatrix, WorkError> {
    let ValuationInputs { spec, earlier_updates: last, .. } = *inputs;
    if last.ids.len() != last.bytes.len() {
        return Err(WorkError::Count { entries: last.ids.len(), updates: last.bytes.len() });
    }
    let mut updates = RowMatrix::zeros(last.ids.len(), parameters, room)?;
    for (at, ((sender, _), bytes)) in last.ids.iter().zip(last.bytes.iter()).enumerate() {
        decode_update_into(spec, bytes, updates.row_mut(at)).map_err(|source| {
            WorkError::Input { what: format!("update of {sender} in an earlier round"), source }
        })?;
    }
    Ok(updates)
}

/// The first figure in which two results differ.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}: stated {stated}, recomputed {recomputed}")]
pub struct ResultMismatch {
    /// Path of the figure.
    pub line: String,
    /// The recomputed value.
    pub recomputed: String,
    /// The stated value.
    pub stated: String,
}

/// The source of a near-duplicate, as text.
fn describe_match(repeats: Option<DuplicateMatch>) -> String {
    match repeats {
        None => "nothing".to_owned(),
        Some(DuplicateMatch { source: DuplicateSource::GlobalDeltas, cosine }) => {
            format!("the global model deltas of earlier rounds (cosine {cosine})")
        }
        Some(DuplicateMatch { source: DuplicateSource::SameRound(sender), cosine }) => {
            format!("the update of {sender} (cosine {cosine})")
        }
        Some(DuplicateMatch { source: DuplicateSource::EarlierRound(sender), cosine }) => {
            format!("the update of {sender} in an earlier round (cosine {cosine})")
        }
    }
}

/// Compares the stages of two valuations: improvements and gaps within [`TOLERANCE_NANO`].
fn compare_stages(
    ours: &[ValuationStage],
    theirs: &[ValuationStage],
) -> Result<(), ResultMismatch> {
    let differ = |line: String, ours: String, theirs: String| {
        Err(ResultMismatch {
            line: format!("valuation.stages{line}"),
            recomputed: ours,
            stated: theirs,
        })
    };
    if ours.len() != theirs.len() {
        return differ(String::new(), ours.len().to_string(), theirs.len().to_string());
    }
    for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        if ours.estimator != theirs.estimator {
            let text = |stage: &ValuationStage| format!("{:?}", stage.estimator);
            return differ(format!("[{i}].estimator"), text(ours), text(theirs));
        }
        if ours.units != theirs.units {
            let line = format!("[{i}].units");
            return differ(line, ours.units.to_string(), theirs.units.to_string());
        }
        for (field, a, b) in [
            ("total_nano", ours.total_nano, theirs.total_nano),
            ("gap_nano", ours.gap_nano, theirs.gap_nano),
        ] {
            if a.abs_diff(b) > TOLERANCE_NANO {
                return differ(format!("[{i}].{field}"), a.to_string(), b.to_string());
            }
        }
    }
    Ok(())
}

/// Compares the preprocessing of an update with the recomputed one.
pub(crate) fn compare_preprocessing(
    line: &str,
    ours: Preprocessing,
    theirs: Preprocessing,
) -> Result<(), ResultMismatch> {
    let describe = |of: Preprocessing| {
        [
            ("norm_factor", of.norm_factor.to_string()),
            ("weight", of.weight.to_string()),
            ("duplicate_of", describe_match(of.duplicate_of)),
        ]
    };
    for ((field, ours), (_, theirs)) in describe(ours).into_iter().zip(describe(theirs)) {
        if ours != theirs {
            let line = format!("{line}.{field}");
            return Err(ResultMismatch { line, recomputed: ours, stated: theirs });
        }
    }
    Ok(())
}

/// Compares a stated result with the recomputed one: losses, scores and standard errors within
/// [`TOLERANCE_NANO`], all other figures exactly.
///
/// # Errors
/// The first [`ResultMismatch`].
pub fn compare_results(ours: &WorkResult, theirs: &WorkResult) -> Result<(), ResultMismatch> {
    let differ = |line: &str, ours: &dyn ToString, theirs: &dyn ToString| {
        Err(ResultMismatch {
            line: line.to_owned(),
            recomputed: ours.to_string(),
            stated: theirs.to_string(),
        })
    };
    let (a, b) = (&ours.valuation, &theirs.valuation);
    for (line, ours, theirs) in [
        ("valuation.loss_before_nano", a.loss_before_nano, b.loss_before_nano),
        ("valuation.loss_after_nano", a.loss_after_nano, b.loss_after_nano),
        ("valuation.total_nano", a.total_nano, b.total_nano),
        ("valuation.gap_nano", a.gap_nano, b.gap_nano),
        ("valuation.model_loss_nano", a.model_loss_nano, b.model_loss_nano),
        ("metrics.loss_after_nano", ours.metrics.loss_after_nano, theirs.metrics.loss_after_nano),
    ] {
        if ours.abs_diff(theirs) > TOLERANCE_NANO {
            return differ(line, &ours, &theirs);
        }
    }
    compare_stages(&a.stages, &b.stages)?;
    if a.scores.len() != b.scores.len() {
        return differ("valuation.scores", &a.scores.len(), &b.scores.len());
    }
    for (i, (ours, theirs)) in a.scores.iter().zip(&b.scores).enumerate() {
        let line = |field| format!("valuation.scores[{i}].{field}");
        if ours.account != theirs.account {
            return differ(&line("account"), &ours.account, &theirs.account);
        }
        compare_preprocessing(&line("preprocessing"), ours.preprocessing, theirs.preprocessing)?;
        if ours.score_nano.abs_diff(theirs.score_nano) > TOLERANCE_NANO {
            return differ(&line("score_nano"), &ours.score_nano, &theirs.score_nano);
        }
        if ours.error_nano.abs_diff(theirs.error_nano) > TOLERANCE_NANO {
            return differ(&line("error_nano"), &ours.error_nano, &theirs.error_nano);
        }
        if ours.excluded != theirs.excluded {
            return differ(&line("excluded"), &ours.excluded, &theirs.excluded);
        }
    }
    for (line, ours, theirs) in [
        ("metrics.rows", ours.metrics.rows, theirs.metrics.rows),
        ("metrics.correct_before", ours.metrics.correct_before, theirs.metrics.correct_before),
        ("metrics.correct_after", ours.metrics.correct_after, theirs.metrics.correct_after),
    ] {
        if ours != theirs {
            return differ(line, &ours, &theirs);
        }
    }
    if a.units != b.units {
        return differ("valuation.units", &a.units, &b.units);
    }
    if ours.baseline != theirs.baseline {
        let text = |result: &WorkResult| format!("{:?}", result.baseline);
        return differ("baseline", &text(ours), &text(theirs));
    }
    if ours.model != theirs.model {
        return differ("model", &ours.model, &theirs.model);
    }
    compare_derivatives(a, b)?;
    compare_class_effects(a, b)?;
    compare_cross_checks(a, b)
}

fn compare_derivatives(ours: &Valuation, theirs: &Valuation) -> Result<(), ResultMismatch> {
    let (a, b) = (&ours.evidence.derivatives_nano, &theirs.evidence.derivatives_nano);
    let differ = |line: &str, ours: String, theirs: String| {
        Err(ResultMismatch {
            line: format!("valuation.evidence.derivatives_nano{line}"),
            recomputed: ours,
            stated: theirs,
        })
    };
    let lengths = |slopes: &[Vec<i64>]| slopes.iter().map(Vec::len).collect::<Vec<_>>();
    if lengths(a) != lengths(b) {
        return differ("", format!("{:?} nodes", lengths(a)), format!("{:?}", lengths(b)));
    }
    for (i, (ours, theirs)) in a.iter().zip(b).enumerate() {
        for (k, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            if ours.abs_diff(*theirs) > TOLERANCE_NANO {
                return differ(&format!("[{i}][{k}]"), ours.to_string(), theirs.to_string());
            }
        }
    }
    Ok(())
}
