//! The preconditions of every engine's operations.

use std::ops::Range;

use super::{InputError, TrainError, TrainingSegment};
use crate::data::Dataset;
use crate::model::ModelSpec;
use crate::params::first_not_finite;
use crate::training::{Precision, Training};

/// Preconditions of every engine's training.
pub fn check_training(
    model: &ModelSpec,
    start: &[f32],
    data: &Dataset,
    how: &Training,
) -> Result<(), TrainError> {
    check_model(model, start.len(), data)?;
    check_finite("the start", first_not_finite(start))?;
    Ok(how.check()?)
}

/// Checks that a segment is a part of its training. The caller has checked the training.
pub(crate) fn check_segment(segment: &TrainingSegment<'_>) -> Result<(), TrainError> {
    let TrainingSegment { start, data, how, from, to, .. } = *segment;
    from.check(start.len(), how)?;
    let steps = how.steps(data.rows());
    match from.step() >= to || to > steps {
        true => Err(InputError::Steps { from: from.step(), to, steps }.into()),
        false => Ok(()),
    }
}

/// Refuses a way of computing with which only graphs on libtorch train.
pub(crate) fn check_execution(engine: &'static str, how: &Training) -> Result<(), InputError> {
    let precision = how.execution.precision;
    if how.execution.virtual_workers.is_some() {
        return Err(InputError::VirtualWorkers { engine });
    }
    match precision {
        Precision::F32 => Ok(()),
        _ => Err(InputError::Precision { engine, precision }),
    }
}

/// Preconditions of every engine's gradients of rows. The parameters may have any values.
pub(crate) fn check_row_gradients(
    model: &ModelSpec,
    params: &[f32],
    data: &Dataset,
    rows: &[usize],
) -> Result<(), InputError> {
    check_model(model, params.len(), data)?;
    match rows.iter().find(|row| **row >= data.rows()) {
        Some(row) => Err(InputError::Group { end: row.saturating_add(1), rows: data.rows() }),
        None => Ok(()),
    }
}

/// Preconditions of every engine's evaluation of groups.
pub(crate) fn check_groups(data: &Dataset, groups: &[Range<usize>]) -> Result<(), InputError> {
    let rows = data.rows();
    match groups.iter().find(|group| group.is_empty() || group.end > rows) {
        Some(group) if group.is_empty() => Err(InputError::NoRows),
        Some(group) => Err(InputError::Group { end: group.end, rows }),
        None => Ok(()),
    }
}

/// Preconditions of every engine's evaluation.
pub(crate) fn check_evaluation(
    model: &ModelSpec,
    params: &[f64],
    directions: &[&[f32]],
    data: &Dataset,
) -> Result<(), InputError> {
    check_model(model, params.len(), data)?;
    check_finite("the parameters", params.iter().position(|value| !value.is_finite()))?;
    for (at, direction) in directions.iter().enumerate() {
        let what = || format!("direction {at}");
        let (expected, got) = (params.len(), direction.len());
        if got != expected {
            return Err(InputError::Length { what: what(), expected, got });
        }
        check_finite(&what(), first_not_finite(direction))?;
    }
    Ok(())
}

fn check_model(model: &ModelSpec, params: usize, data: &Dataset) -> Result<(), InputError> {
    model.check()?;
    model.check_data(data)?;
    if data.rows() == 0 {
        return Err(InputError::NoRows);
    }
    let expected = model.parameters();
    if params != expected {
        return Err(InputError::Length { what: "the parameters".into(), expected, got: params });
    }
    Ok(())
}

fn check_finite(what: &str, bad: Option<usize>) -> Result<(), InputError> {
    match bad {
        Some(index) => Err(InputError::NotFinite { what: what.to_owned(), index }),
        None => Ok(()),
    }
}
