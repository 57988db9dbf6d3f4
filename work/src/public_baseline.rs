//! The public baseline: after a productive round the model also trains on the validation rows that
//! the rounds so far disclosed.
//!
//! These rows are public, so a participant that has nothing else could train on them and be paid
//! for it. The baseline takes that gain into the model without pay. The step is adopted only if it
//! lowers the loss on rows that it did not train on: the round's own rows are split into two halves,
//! and each half is evaluated after training on the other and on all earlier rows (two-fold
//! cross-validation). Then the step trains on all of them, and is dropped if that does not lower the
//! loss of the round's own rows.

use florin_contribution::to_nano;
use florin_learning::data::DatasetError;
use florin_learning::{Dataset, Schedule, Training, mean};
use florin_protocol::limits::BASELINE_ROUNDS_MAX;
use florin_protocol::{DisclosedRow, PublicBaseline, RoundNumber, TaskSpec};

use crate::blob_source::BlobSource;
use crate::convert::training;
use crate::cross_check::cross_check_seed;
use crate::evaluations::{BaselineTraining, BaselineWork};
use crate::holdout::{DisclosureError, check_disclosed_rows, dataset, decode_disclosed_rows};
use crate::round::{DecodedRound, ValuationInputs, WorkError};

/// Parts into which the round's own rows are split.
const FOLDS: usize = 2;

/// The indices among `drawn` of the earlier rows that train the public baseline: those of the latest
/// [`BASELINE_ROUNDS_MAX`] earlier rounds. Empty if the task has no public baseline. `drawn` has
/// the rows of all earlier rounds, the earliest first.
#[must_use]
pub fn baseline_rows<'a>(spec: &TaskSpec, drawn: &'a [u32]) -> &'a [u32] {
    if spec.rounds.baseline_epochs == 0 {
        return &[];
    }
    let each = usize::try_from(spec.holdout.rows_per_round).unwrap_or(usize::MAX);
    let kept = drawn.len().min(each.saturating_mul(BASELINE_ROUNDS_MAX));
    drawn.get(drawn.len().saturating_sub(kept)..).unwrap_or_default()
}

/// The result of the baseline's training.
pub(crate) struct BaselineStep {
    pub(crate) record: PublicBaseline,
    /// The parameters, if the step is adopted.
    pub(crate) params: Option<Vec<f32>>,
}

/// Trains the model after a productive round on the disclosed rows. `None` if the task has no public
/// baseline, or if a round has too few rows to split them.
pub(crate) fn public_baseline(
    inputs: &ValuationInputs<'_>,
    opened: &DecodedRound,
    after: &[f32],
    work: &mut dyn BaselineWork,
) -> Result<Option<BaselineStep>, WorkError> {
    let (spec, own) = (inputs.spec, &opened.holdout);
    if spec.rounds.baseline_epochs == 0 || own.rows() < FOLDS {
        return Ok(None);
    }
    let earlier = earlier_rows(spec, inputs.earlier_rows)?;
    let how = Training {
        epochs: spec.rounds.baseline_epochs,
        schedule: Schedule::Constant,
        augmentation: None,
        ..training(spec, RoundNumber::FIRST)
    };
    let (model, seed) = (&opened.model, cross_check_seed(inputs));
    let all = append_rows(earlier.as_ref(), own)?;
    let rows = u32::try_from(all.rows()).unwrap_or(u32::MAX);
    let loss_before_nano = to_nano(mean(&work.baseline_losses(model, after, own)?))?;
    let mut losses = Vec::with_capacity(own.rows());
    for fold in 0..FOLDS {
        let in_fold = |row: &usize| row % FOLDS == fold;
        let evaluated: Vec<usize> = (0..own.rows()).filter(in_fold).collect();
        let trained: Vec<usize> = (0..own.rows()).filter(|row| !in_fold(row)).collect();
        let trained = append_rows(earlier.as_ref(), &subset(own, &trained)?)?;
        if let Some(params) =
            work.train(BaselineTraining { model, start: after, rows: &trained, how: &how, seed })?
        {
            losses.extend(work.baseline_losses(model, &params, &subset(own, &evaluated)?)?);
        }
    }
    let is_complete = losses.len() == own.rows();
    let validation_loss_nano = if is_complete { Some(to_nano(mean(&losses))?) } else { None };
    let mut record = PublicBaseline { rows, loss_before_nano, validation_loss_nano };
    let mut params = None;
    if record.is_adopted() {
        params =
            work.train(BaselineTraining { model, start: after, rows: &all, how: &how, seed })?;
        // A training that does not lower the loss of rows that it trained on has failed, even if
        // the cross-validation of smaller trainings succeeded.
        let losses =
            params.as_ref().map(|params| work.baseline_losses(model, params, own)).transpose()?;
        let after_nano = losses.map(|losses| to_nano(mean(&losses))).transpose()?;
        if after_nano.is_none_or(|nano| nano >= loss_before_nano) {
            (params, record.validation_loss_nano) = (None, None);
        }
    }
    Ok(Some(BaselineStep { record, params }))
}

fn subset(rows: &Dataset, at: &[usize]) -> Result<Dataset, WorkError> {
    rows.subset(at).map_err(|error| invalid_rows(&error))
}

/// The earlier rows, followed by others.
fn append_rows(earlier: Option<&Dataset>, rows: &Dataset) -> Result<Dataset, WorkError> {
    let Some(earlier) = earlier else { return Ok(rows.clone()) };
    let features = [earlier.features(), rows.features()].concat();
    let labels = [earlier.labels(), rows.labels()].concat();
    Dataset::new(features, labels, rows.width(), rows.classes())
        .map_err(|error| invalid_rows(&error))
}

fn invalid_rows(error: &DatasetError) -> WorkError {
    DisclosureError::ModelMismatch(error.to_string()).into()
}

/// The indices of disclosed rows, round by round.
///
/// # Errors
/// [`DisclosureError::Malformed`].
pub fn disclosed_indices(rounds: &dyn BlobSource) -> Result<Vec<u32>, DisclosureError> {
    let mut all = Vec::new();
    for bytes in rounds.iter() {
        all.extend(indices(&decode_disclosed_rows(bytes)?));
    }
    Ok(all)
}

fn indices(rows: &[DisclosedRow]) -> impl Iterator<Item = u32> {
    rows.iter().map(|row| row.index)
}

/// Decodes the rows of earlier rounds and verifies that the task committed to them. `None` in the
/// first round.
fn earlier_rows(spec: &TaskSpec, rounds: &dyn BlobSource) -> Result<Option<Dataset>, WorkError> {
    let mut all = Vec::new();
    for bytes in rounds.iter() {
        let rows = decode_disclosed_rows(bytes)?;
        check_disclosed_rows(spec, &indices(&rows).collect::<Vec<_>>(), &rows)?;
        all.extend(rows);
    }
    Ok(if all.is_empty() { None } else { Some(dataset(spec, &all)?) })
}
