//! The engine traits: training and evaluation of a model on rows.
//!
//! Training runs in `f32` on the participants' own hardware. Evaluation runs in `f64` and returns
//! one number per row, so that the caller controls the order of summation: two engines or machines
//! then agree to about 1e-9, and to the last digit after rounding to nano-nats.

mod checks;
mod elsewhere;
mod error;

use std::ops::{ControlFlow, Range};

use crate::checkpoint::TrainingState;
use crate::data::Dataset;
use crate::model::ModelSpec;
use crate::training::Training;

pub use checks::check_training;
pub(crate) use checks::{
    check_evaluation, check_execution, check_groups, check_row_gradients, check_segment,
};
pub use elsewhere::{ElsewhereEngine, RemoteTrainer, RemoteTraining};
pub use error::{BackendError, CommandError, EvalError, InputError, TrainError};
pub(crate) use error::{TRAINER_FAILED, TRAINER_OUTPUT_INVALID, TRAINER_TIMED_OUT};

/// Number of rows per evaluation chunk, for any size of the data.
pub const EVAL_CHUNK_ROWS: usize = 256;

/// Progress of a training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainingStep {
    /// Number of steps done, from 1.
    pub step: u64,
    /// Total number of steps.
    pub steps: u64,
    /// Mean loss of the batch before the step, in nats.
    pub loss: f64,
}

/// Result of a training.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainedModel {
    /// The trained parameters, all finite.
    pub params: Vec<f32>,
    /// Number of steps.
    pub steps: u64,
    /// Mean loss over the rows of the last epoch, each measured before its step, in nats.
    pub mean_loss: f64,
}

/// Consecutive steps of a training.
#[derive(Debug, Clone, Copy)]
pub struct TrainingSegment<'a> {
    /// The model.
    pub model: &'a ModelSpec,
    /// The initial parameters of the whole training.
    pub start: &'a [f32],
    /// The rows of the whole training.
    pub data: &'a Dataset,
    /// The settings of the whole training.
    pub how: &'a Training,
    /// The seed of the whole training.
    pub seed: u64,
    /// The state before the first step of the segment.
    pub from: &'a TrainingState,
    /// The last step of the segment, counted from 1.
    pub to: u64,
    /// Whether the states after each step are wanted, too.
    pub is_traced: bool,
}

/// A segment that was trained.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainedSegment {
    /// The state after the last step.
    pub end: TrainingState,
    /// Digests of the states after each step, the last one included; empty unless asked for.
    pub trace: Vec<[u8; 32]>,
}

/// The loss of one row, and its gradient.
#[derive(Debug, Clone, Copy)]
pub struct RowGradient<'a> {
    /// The cross-entropy, in nats.
    pub loss: f64,
    /// Its gradient with respect to all parameters.
    pub gradient: &'a [f32],
}

/// Receives the progress of a training, and stops it by `Break`.
pub type TrainingProgress<'a> = &'a mut dyn FnMut(TrainingStep) -> ControlFlow<()>;

/// The quote of a training on a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainingQuote {
    /// Number of steps.
    pub steps: u64,
    /// Seconds of the fastest measured step.
    pub step_seconds: f64,
    /// Seconds of the slowest one after the first, which has work of its own.
    pub step_seconds_most: f64,
    /// Bytes of the tensors of a step at once, beside parameters, rows and the optimizer's state.
    pub step_bytes: u64,
}

/// An engine that trains.
pub trait Trainer {
    /// Trains `model` from `start` on `data`, and calls `progress` after every step; training stops
    /// if the callback returns `Break`. The same arguments on the same machine give the same bits;
    /// another machine or engine uses the same batches and differs in rounding.
    fn train(
        &mut self,
        model: &ModelSpec,
        start: &[f32],
        data: &Dataset,
        how: &Training,
        seed: u64,
        progress: &mut dyn FnMut(TrainingStep) -> ControlFlow<()>,
    ) -> Result<TrainedModel, TrainError>;

    /// Predicts the time and the memory of a training on this device, by steps on some of its rows; `None`
    /// for models whose steps are small.
    ///
    /// # Errors
    /// [`TrainError::Memory`] if a step does not fit into the memory, and those of a training.
    fn quote(
        &mut self,
        _model: &ModelSpec,
        _data: &Dataset,
        _how: &Training,
    ) -> Result<Option<TrainingQuote>, TrainError> {
        Ok(None)
    }

    /// Trains consecutive steps from a state, as a training of all steps would take them: with the same
    /// bits, on each machine of the same engine, threads and instruction set, and with any number of
    /// processes.
    ///
    /// A step has diverged, too, if a number of the state after it is not finite.
    ///
    /// # Errors
    /// [`InputError::Segments`] unless the model is a graph that virtual workers train in `f32`, and those of
    /// a training.
    fn train_segment(
        &mut self,
        _segment: &TrainingSegment<'_>,
        _progress: &mut dyn FnMut(TrainingStep) -> ControlFlow<()>,
    ) -> Result<TrainedSegment, TrainError> {
        Err(InputError::Segments { engine: "chosen" }.into())
    }

    /// Calls `look` with the gradient of the cross-entropy of each of `rows`, in order. It depends
    /// on no other row, and need not be finite.
    fn row_gradients(
        &mut self,
        model: &ModelSpec,
        params: &[f32],
        data: &Dataset,
        rows: &[usize],
        look: &mut dyn FnMut(RowGradient<'_>),
    ) -> Result<(), TrainError>;
}

/// An engine that evaluates, in `f64`, with the [`BoundedLoss`](crate::BoundedLoss): every loss and
/// derivative here is one of it.
pub trait Evaluator {
    /// The loss of each row, in nats.
    fn row_losses(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<Vec<f64>, EvalError>;

    /// The loss of each row at several models, `[model][row]`, with the same bits. An engine can share
    /// work between the models.
    fn row_losses_at(
        &mut self,
        model: &ModelSpec,
        params: &[&[f64]],
        data: &Dataset,
    ) -> Result<Vec<Vec<f64>>, EvalError> {
        params.iter().map(|params| self.row_losses(model, params, data)).collect()
    }

    /// The directional derivatives of each row's loss: `[i][r]` is `d/dε loss_r(params +
    /// ε·directions[i])` at ε = 0, in nats. The derivative of ReLU at zero is zero.
    fn row_directional_derivatives(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        directions: &[&[f32]],
        data: &Dataset,
    ) -> Result<Vec<Vec<f64>>, EvalError>;

    /// As [`row_directional_derivatives`](Self::row_directional_derivatives) at several models, with
    /// the same bits: `[model][direction][row]`. An engine can share work on a direction between the
    /// models.
    fn row_directional_derivatives_at(
        &mut self,
        model: &ModelSpec,
        params: &[&[f64]],
        directions: &[&[f32]],
        data: &Dataset,
    ) -> Result<Vec<Vec<Vec<f64>>>, EvalError> {
        params
            .iter()
            .map(|params| self.row_directional_derivatives(model, params, directions, data))
            .collect()
    }

    /// The outputs of each row, one after another: logits, or a graph's first output.
    ///
    /// # Errors
    /// [`InputError::NoOutputs`] for an engine that returns losses only.
    fn row_outputs(
        &mut self,
        _model: &ModelSpec,
        _params: &[f64],
        _data: &Dataset,
    ) -> Result<Vec<f64>, EvalError> {
        Err(InputError::NoOutputs.into())
    }

    /// Number of rows whose largest logit is at their label; of equal logits the first one counts.
    fn correct_predictions(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<usize, EvalError>;

    /// Mean loss of the rows, and its gradient with respect to all parameters.
    fn gradient(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<(f64, Vec<f64>), EvalError>;

    /// Evaluates groups of rows at several places of a segment of parameters. For each group in
    /// order, and within it for each place in order, calls `look` with the index of the group, the
    /// index of the place, and the numbers there: the gradient of the group's summed loss with
    /// respect to all parameters if the place requests it, else the loss of each row of the group.
    ///
    /// An engine may share work between models on the segment, and then differs in rounding from
    /// [`gradient`](Self::gradient) and [`row_losses`](Self::row_losses).
    fn evaluate_on_segment(
        &mut self,
        way: ParameterSegment<'_>,
        places: &[SegmentPoint],
        data: &Dataset,
        groups: &[Range<usize>],
        look: &mut dyn FnMut(usize, usize, &[f64]),
    ) -> Result<(), EvalError> {
        evaluate_point_by_point(self, way, places, data, groups, look)
    }
}

/// [`Evaluator::evaluate_on_segment`] by the engine's own losses and gradients at each point.
pub(crate) fn evaluate_point_by_point<E: Evaluator + ?Sized>(
    engine: &mut E,
    way: ParameterSegment<'_>,
    places: &[SegmentPoint],
    data: &Dataset,
    groups: &[Range<usize>],
    look: &mut dyn FnMut(usize, usize, &[f64]),
) -> Result<(), EvalError> {
    way.check()?;
    check_groups(data, groups)?;
    let models: Vec<Vec<f64>> = places.iter().map(|place| way.at(place.t)).collect();
    for (group, rows) in groups.iter().enumerate() {
        let own = data.slice(rows.clone()).map_err(|_| InputError::NoRows)?;
        for (at, (place, params)) in places.iter().zip(&models).enumerate() {
            if place.gradient {
                let (_, mut gradient) = engine.gradient(way.model, params, &own)?;
                gradient.iter_mut().for_each(|slope| *slope *= own.rows() as f64);
                look(group, at, &gradient);
            } else {
                look(group, at, &engine.row_losses(way.model, params, &own)?);
            }
        }
    }
    Ok(())
}

/// The line segment of a round's parameters from the base model to the aggregate.
#[derive(Debug, Clone, Copy)]
pub struct ParameterSegment<'a> {
    /// The model.
    pub model: &'a ModelSpec,
    /// The parameters before the round.
    pub base: &'a [f32],
    /// The total change: the sum of all updates, each times its share.
    pub total: &'a [f64],
}

impl ParameterSegment<'_> {
    /// `base + t·total`.
    pub fn at(&self, t: f64) -> Vec<f64> {
        let moved = |(&base, &total): (&f32, &f64)| f64::from(base) + t * total;
        self.base.iter().zip(self.total).map(moved).collect()
    }

    /// Checks that base and total have the length of the model's parameters.
    pub(crate) fn check(&self) -> Result<(), InputError> {
        self.model.check()?;
        let expected = self.model.parameters();
        for (what, got) in [("the base", self.base.len()), ("the total", self.total.len())] {
            if got != expected {
                return Err(InputError::Length { what: what.to_owned(), expected, got });
            }
        }
        Ok(())
    }
}

/// A point on a segment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SegmentPoint {
    /// Position on the segment, from 0 to 1.
    pub t: f64,
    /// Whether the gradient is requested there instead of the losses.
    pub gradient: bool,
}

/// An engine for training and evaluation, with a name. It can move to another thread, but runs one
/// operation at a time.
pub trait Engine: Trainer + Evaluator + Send {
    /// The name for display: `torch 2.11.0 (CPU)`, `reference`.
    fn name(&self) -> &'static str;

    /// Everything beside its settings that the bits of a training depend on: library, processor and vector
    /// instructions. `None` if the engine trains no segments, or its bits are not known to repeat.
    fn bit_class(&self) -> Option<String> {
        None
    }
}

/// Mean of the row values, added in order; 0 for none.
pub fn mean(values: &[f64]) -> f64 {
    let mut sum = 0.0;
    for value in values {
        sum += value;
    }
    if values.is_empty() { 0.0 } else { sum / values.len() as f64 }
}

/// The directional derivatives of each row's loss, `[direction][row]`, by `gradient`, which returns the
/// gradient of a row.
pub(crate) fn derivatives_by_gradients(
    rows: usize,
    directions: &[&[f32]],
    mut gradient: impl FnMut(usize) -> Result<Vec<f64>, EvalError>,
) -> Result<Vec<Vec<f64>>, EvalError> {
    let mut slopes = vec![Vec::with_capacity(rows); directions.len()];
    for row in 0..rows {
        let gradient = gradient(row)?;
        for (slopes, direction) in slopes.iter_mut().zip(directions) {
            let products = gradient.iter().zip(*direction);
            slopes.push(products.map(|(slope, step)| slope * f64::from(*step)).sum());
        }
    }
    Ok(slopes)
}

/// Whether the largest logit is at `label`; of equal logits the first one counts.
pub(crate) fn predicts_label<T: PartialOrd>(logits: &[T], label: u32) -> bool {
    let (before, from) = logits.split_at(label as usize);
    let Some(own) = from.first() else { return false };
    before.iter().all(|logit| logit < own) && from.iter().all(|logit| logit <= own)
}

/// The chunks of rows of an evaluation of `rows` rows.
pub(crate) fn chunks(rows: usize) -> impl Iterator<Item = Range<usize>> {
    chunks_in(0..rows)
}

/// The chunks of a range of rows.
pub(crate) fn chunks_in(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.step_by(EVAL_CHUNK_ROWS).map(move |start| start..end.min(start + EVAL_CHUNK_ROWS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_all_rows_once() {
        let all: Vec<usize> = chunks(EVAL_CHUNK_ROWS * 2 + 1).flatten().collect();
        assert_eq!(all, (0..EVAL_CHUNK_ROWS * 2 + 1).collect::<Vec<_>>());
        assert_eq!(chunks(0).count(), 0);
    }
}
