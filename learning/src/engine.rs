//! What an engine does: train a model on rows, and measure it on rows.
//!
//! Training runs in `f32`, as participants do it on whatever they own. Evaluation runs in `f64` and
//! gives one number per row, so that the caller sums in an order of its own: two engines, or two
//! machines, then agree to about 1e-9 and to the last digit after rounding to nano-nats.

use std::ops::{ControlFlow, Range};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::data::Dataset;
use crate::model::{ModelError, ModelSpec};
use crate::params::first_not_finite;

/// Evaluation takes so many rows at a time, whatever the size of the data.
pub const EVAL_CHUNK_ROWS: usize = 256;
/// Most epochs of one local training.
pub const EPOCHS_MAX: u32 = 1_000;
/// Most rows of a batch.
pub const BATCH_MAX: u32 = 65_536;
/// Largest step per unit of gradient.
pub const LEARNING_RATE_MAX: f64 = 100.0;
/// Largest pull towards zero.
pub const WEIGHT_DECAY_MAX: f64 = 1.0;
/// Largest gradient norm to clip to, and largest FedProx coefficient.
pub const COEFFICIENT_MAX: f64 = 1e6;

/// How a participant trains. Each step, with `w` the parameters, `w₀` where they started, and a
/// velocity `v` that is zero at first:
///
/// ```text
/// g = ∇(mean cross-entropy of the batch) + fedprox · (w − w₀)
/// g = g · min(1, clip_gradient / ‖g‖)
/// v = momentum · v + (g + weight_decay · w)
/// w = w − learning_rate · v
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// Passes over the data, 1 to [`EPOCHS_MAX`].
    pub epochs: u32,
    /// Rows per step, 1 to [`BATCH_MAX`]; the last batch of an epoch may be smaller.
    pub batch: u32,
    /// Above 0, at most [`LEARNING_RATE_MAX`].
    pub learning_rate: f64,
    /// 0 to below 1.
    #[serde(default)]
    pub momentum: f64,
    /// 0 to [`WEIGHT_DECAY_MAX`].
    #[serde(default)]
    pub weight_decay: f64,
    /// Largest norm of a step's gradient; none means unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_gradient: Option<f64>,
    /// How strongly the start attracts; none and 0 mean not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fedprox: Option<f64>,
}

/// A number in [`Training`] that makes no sense.
#[derive(Debug, Clone, Error, PartialEq)]
#[error("training: {key} is {value}: must be {bounds}")]
pub struct TrainingError {
    /// Which number.
    pub key: &'static str,
    /// What it is.
    pub value: f64,
    /// What would be right.
    pub bounds: &'static str,
}

impl Training {
    /// Holds every number against its bounds.
    pub fn check(&self) -> Result<(), TrainingError> {
        let must = |holds: bool, key, value, bounds| match holds {
            true => Ok(()),
            false => Err(TrainingError { key, value, bounds }),
        };
        let positive = |value: f64, max: f64| value > 0.0 && value <= max;
        let (epochs, batch) = (self.epochs, self.batch);
        let (rate, momentum, decay) = (self.learning_rate, self.momentum, self.weight_decay);
        must((1..=EPOCHS_MAX).contains(&epochs), "epochs", epochs.into(), "1 to 1000")?;
        must((1..=BATCH_MAX).contains(&batch), "batch", batch.into(), "1 to 65536")?;
        let bounds = "above 0, at most 100";
        must(positive(rate, LEARNING_RATE_MAX), "learning_rate", rate, bounds)?;
        must((0.0..1.0).contains(&momentum), "momentum", momentum, "0 to below 1")?;
        must((0.0..=WEIGHT_DECAY_MAX).contains(&decay), "weight_decay", decay, "0 to 1")?;
        if let Some(clip) = self.clip_gradient {
            let bounds = "above 0, at most 1000000";
            must(positive(clip, COEFFICIENT_MAX), "clip_gradient", clip, bounds)?;
        }
        if let Some(pull) = self.fedprox {
            must((0.0..=COEFFICIENT_MAX).contains(&pull), "fedprox", pull, "0 to 1000000")?;
        }
        Ok(())
    }

    /// Steps that training on `rows` rows takes.
    pub fn steps(&self, rows: usize) -> u64 {
        u64::from(self.epochs) * (rows as u64).div_ceil(u64::from(self.batch.max(1)))
    }
}

/// How far a training is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Steps done, from 1.
    pub step: u64,
    /// Steps there will be.
    pub steps: u64,
    /// Mean loss of the batch before the step, in nats.
    pub loss: f64,
}

/// What a training gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// The trained parameters, all finite.
    pub params: Vec<f32>,
    /// Steps taken.
    pub steps: u64,
    /// Mean loss over the rows of the last epoch, each measured before its step, in nats.
    pub mean_loss: f64,
}

/// Why a training gave nothing.
#[derive(Debug, Clone, Error, PartialEq)]
pub enum TrainError {
    /// The model, the numbers, the rows or the start do not go together.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A number of the training makes no sense.
    #[error(transparent)]
    Training(#[from] TrainingError),
    /// The loss or the parameters left the numbers.
    #[error("training diverged at step {step}: lower the learning rate or clip the gradient")]
    Diverged {
        /// Which step, from 1.
        step: u64,
    },
    /// The progress function said so.
    #[error("training was stopped after step {step}")]
    Stopped {
        /// Steps done.
        step: u64,
    },
    /// The engine itself failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why an evaluation gave nothing.
#[derive(Debug, Clone, Error, PartialEq)]
pub enum EvalError {
    /// The model, the parameters, the rows or the directions do not go together.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The engine itself failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// What an engine was given and cannot work with.
#[derive(Debug, Clone, Error, PartialEq)]
pub enum InputError {
    /// The model is none, or the data does not fit it.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The engine does not know this kind of model.
    #[error("the {engine} engine does not do {model}: build with the feature `torch` for it")]
    Unsupported {
        /// The engine's name.
        engine: &'static str,
        /// The model in words.
        model: String,
    },
    /// Nothing to learn or measure.
    #[error("the data has no rows: must have at least one")]
    NoRows,
    /// A group of rows that are not there.
    #[error("a group ends before row {end}: there are {rows} rows")]
    Group {
        /// Where it ends.
        end: usize,
        /// The rows there are.
        rows: usize,
    },
    /// Too few or too many numbers.
    #[error("{what}: {got} numbers; the model has {expected} parameters")]
    Length {
        /// Parameters, or which direction.
        what: String,
        /// The model's parameters.
        expected: usize,
        /// What there is.
        got: usize,
    },
    /// NaN or infinity.
    #[error("{what}: number {index} is not finite")]
    NotFinite {
        /// Parameters, or which direction.
        what: String,
        /// Which number, from 0.
        index: usize,
    },
}

/// A failure inside an engine, in its own words.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("the {engine} engine failed: {why}")]
pub struct BackendError {
    /// The engine's name.
    pub engine: &'static str,
    /// What it said, first line.
    pub why: String,
}

/// Trains.
pub trait Trainer {
    /// Trains `model` from `start` on `data`. After every step `progress` is told; where it breaks,
    /// training stops. The same arguments on the same machine give the same bits; another machine
    /// or engine sees the same batches and differs in rounding.
    fn train(
        &mut self,
        model: &ModelSpec,
        start: &[f32],
        data: &Dataset,
        how: &Training,
        seed: u64,
        progress: &mut dyn FnMut(Step) -> ControlFlow<()>,
    ) -> Result<Trained, TrainError>;
}

/// Measures, in `f64`.
pub trait Evaluator {
    /// The cross-entropy of each row, in nats.
    fn row_losses(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<Vec<f64>, EvalError>;

    /// How fast each row's loss grows along each direction: `[i][r]` is
    /// `d/dε loss_r(params + ε·directions[i])` at ε = 0, in nats. Where a ReLU stands at zero its
    /// slope is taken as zero.
    fn row_slopes(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        directions: &[&[f32]],
        data: &Dataset,
    ) -> Result<Vec<Vec<f64>>, EvalError>;

    /// The slopes of [`row_slopes`](Self::row_slopes) at several models: `[model][direction][row]`, with the same bits.
    /// What an engine finds out about a direction once, it need not find out for each model.
    fn row_slopes_at(
        &mut self,
        model: &ModelSpec,
        params: &[&[f64]],
        directions: &[&[f32]],
        data: &Dataset,
    ) -> Result<Vec<Vec<Vec<f64>>>, EvalError> {
        params.iter().map(|params| self.row_slopes(model, params, directions, data)).collect()
    }

    /// How many rows have their largest logit at their label; of equal logits the first counts.
    fn correct(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<usize, EvalError>;

    /// Mean loss of the rows, and its gradient by every parameter.
    fn gradient(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<(f64, Vec<f64>), EvalError>;

    /// Measures groups of rows at several places of a way. Shows for each group, in order, and in
    /// each for every place, in order: which group, which place, and the numbers there, which are
    /// the gradient of the group's summed losses by every parameter where the place asks for it and
    /// the loss of each of its rows where it does not.
    ///
    /// An engine may use what models along a way have in common, and then differs in rounding from
    /// what [`gradient`](Self::gradient) and [`row_losses`](Self::row_losses) give there.
    fn measure_along(
        &mut self,
        way: Way<'_>,
        places: &[Place],
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
                    let (_, mut gradient) = self.gradient(way.model, params, &own)?;
                    gradient.iter_mut().for_each(|slope| *slope *= own.rows() as f64);
                    look(group, at, &gradient);
                } else {
                    look(group, at, &self.row_losses(way.model, params, &own)?);
                }
            }
        }
        Ok(())
    }
}

/// The way of a round's models from its base to its aggregate.
#[derive(Debug, Clone, Copy)]
pub struct Way<'a> {
    /// The model.
    pub model: &'a ModelSpec,
    /// Its parameters before the round.
    pub base: &'a [f32],
    /// What all updates together change: each times its share.
    pub total: &'a [f64],
}

impl Way<'_> {
    /// `base + t·total`.
    pub fn at(&self, t: f64) -> Vec<f64> {
        let moved = |(&base, &total): (&f32, &f64)| f64::from(base) + t * total;
        self.base.iter().zip(self.total).map(moved).collect()
    }

    /// Refuses a way whose ends are no parameters of its model.
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

/// Somewhere on a way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    /// How far, from 0 to 1.
    pub t: f64,
    /// Whether the gradient is asked for there, in place of the losses.
    pub gradient: bool,
}

/// Both, under a name. An engine may move to another thread, but works on one at a time.
pub trait Engine: Trainer + Evaluator + Send {
    /// What it is, for a person: `torch 2.11.0 (CPU)`, `reference`.
    fn name(&self) -> &'static str;
}

/// Mean of row values, added in order; 0 for none.
pub fn mean(values: &[f64]) -> f64 {
    let mut sum = 0.0;
    for value in values {
        sum += value;
    }
    if values.is_empty() { 0.0 } else { sum / values.len() as f64 }
}

/// What must hold before any engine trains.
pub(crate) fn check_training(
    model: &ModelSpec,
    start: &[f32],
    data: &Dataset,
    how: &Training,
) -> Result<(), TrainError> {
    check_model(model, start.len(), data)?;
    check_finite("the start", first_not_finite(start))?;
    Ok(how.check()?)
}

/// What must hold before any engine takes rows in groups.
pub(crate) fn check_groups(data: &Dataset, groups: &[Range<usize>]) -> Result<(), InputError> {
    let rows = data.rows();
    match groups.iter().find(|group| group.is_empty() || group.end > rows) {
        Some(group) if group.is_empty() => Err(InputError::NoRows),
        Some(group) => Err(InputError::Group { end: group.end, rows }),
        None => Ok(()),
    }
}

/// What must hold before any engine evaluates.
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
    model.check_fits(data)?;
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

/// Whether the first largest logit is the label's.
pub(crate) fn hits_label<T: PartialOrd>(logits: &[T], label: u32) -> bool {
    let (before, from) = logits.split_at(label as usize);
    let Some(own) = from.first() else { return false };
    before.iter().all(|logit| logit < own) && from.iter().all(|logit| logit <= own)
}

/// The ranges of rows in which an evaluation goes through `rows` rows.
pub(crate) fn chunks(rows: usize) -> impl Iterator<Item = Range<usize>> {
    chunks_of(0..rows)
}

/// The same within a range of rows.
pub(crate) fn chunks_of(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.step_by(EVAL_CHUNK_ROWS).map(move |start| start..end.min(start + EVAL_CHUNK_ROWS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_make_no_training_are_refused() {
        let good = Training {
            epochs: 1,
            batch: 1,
            learning_rate: 0.1,
            momentum: 0.9,
            weight_decay: 0.0,
            clip_gradient: Some(1.0),
            fedprox: Some(0.0),
        };
        assert_eq!(good.check(), Ok(()));
        let table = [
            (Training { epochs: 0, ..good.clone() }, "epochs is 0: must be 1 to 1000"),
            (Training { batch: 70_000, ..good.clone() }, "batch is 70000: must be 1 to 65536"),
            (
                Training { learning_rate: 0.0, ..good.clone() },
                "learning_rate is 0: must be above 0",
            ),
            (Training { learning_rate: f64::NAN, ..good.clone() }, "learning_rate is NaN"),
            (Training { momentum: 1.0, ..good.clone() }, "momentum is 1: must be 0 to below 1"),
            (Training { weight_decay: -0.1, ..good.clone() }, "weight_decay is -0.1"),
            (Training { clip_gradient: Some(0.0), ..good.clone() }, "clip_gradient is 0"),
            (Training { fedprox: Some(f64::INFINITY), ..good }, "fedprox is inf"),
        ];
        for (wrong, message) in table {
            let error = wrong.check().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn chunks_cover_all_rows_once() {
        let all: Vec<usize> = chunks(EVAL_CHUNK_ROWS * 2 + 1).flatten().collect();
        assert_eq!(all, (0..EVAL_CHUNK_ROWS * 2 + 1).collect::<Vec<_>>());
        assert_eq!(chunks(0).count(), 0);
    }
}
