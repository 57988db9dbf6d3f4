//! The hyperparameters of a local training, and the learning rate of each of its steps.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::augmentation::{Augmentation, CROP_PADDING_MAX};
use crate::rng::epoch_order;
use crate::virtual_workers::VIRTUAL_WORKERS_MAX;

/// Largest number of epochs of one local training.
pub const EPOCHS_MAX: u32 = 1_000;
/// Largest number of rows of a batch.
pub const BATCH_MAX: u32 = 65_536;
/// Largest learning rate.
pub const LEARNING_RATE_MAX: f64 = 100.0;
/// Largest weight decay.
pub const WEIGHT_DECAY_MAX: f64 = 1.0;
/// Largest gradient norm to clip to, and largest FedProx coefficient.
pub const COEFFICIENT_MAX: f64 = 1e6;
/// Largest number of warm-up steps.
pub const WARMUP_STEPS_MAX: u32 = 1_000_000;
/// Adam's ε, which is added to the root of the second moment.
pub const ADAM_EPSILON: f64 = 1e-8;

/// Hyperparameters of local training. In each step, with `w` the parameters, `w₀` their initial
/// values, and `η` the [learning rate](Self::learning_rate_at) of the step:
///
/// ```text
/// g = ∇(mean loss of the batch) + fedprox · (w − w₀)
/// g = g · min(1, clip_gradient / ‖g‖)
/// ```
///
/// and then the step of the [optimizer](Optimizer).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// Number of passes over the data, 1 to [`EPOCHS_MAX`].
    pub epochs: u32,
    /// Number of rows per step, 1 to [`BATCH_MAX`]; the last batch of an epoch may be smaller.
    pub batch: u32,
    /// Learning rate before schedule and warm-up, above 0 and at most [`LEARNING_RATE_MAX`].
    pub learning_rate: f64,
    /// Momentum of [`Optimizer::Sgd`], 0 to below 1.
    #[serde(default)]
    pub momentum: f64,
    /// Weight decay, 0 to [`WEIGHT_DECAY_MAX`].
    #[serde(default)]
    pub weight_decay: f64,
    /// Largest norm of a step's gradient; `None` means unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_gradient: Option<f64>,
    /// FedProx coefficient: strength of the proximal term towards `w₀`; `None` and 0 disable it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fedprox: Option<f64>,
    /// The rule of a step.
    #[serde(default)]
    pub optimizer: Optimizer,
    /// How the learning rate falls over the whole task.
    #[serde(default)]
    pub schedule: Schedule,
    /// Number of first steps of each training in which the learning rate rises linearly, at most
    /// [`WARMUP_STEPS_MAX`].
    #[serde(default)]
    pub warmup_steps: u32,
    /// Random changes of the rows, which are images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub augmentation: Option<Augmentation>,
    /// The part of the task that this training is.
    #[serde(default)]
    pub part: TaskPart,
    /// How the device computes a step.
    #[serde(default)]
    pub execution: Execution,
}

/// How a device computes the steps of a graph's training. A member chooses it: it changes the result by
/// rounding alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Execution {
    /// The type of matrix products and convolutions.
    pub precision: Precision,
    /// Bytes that the intermediate results of a step may take: a larger batch is computed in parts,
    /// whose gradients are added. `None` is half of the memory that the host has free, or nine tenths of
    /// what a GPU has.
    pub memory_bytes: Option<u64>,
    /// Virtual workers that share each batch, 1 to [`VIRTUAL_WORKERS_MAX`]: the bits of the result then
    /// do not depend on the processes and threads that compute it. `None` is one process.
    #[serde(default)]
    pub virtual_workers: Option<u32>,
}

/// The type of the products in a training. Parameters, gradients, updates and sums have 32 bits in all
/// of them. `FromStr` parses the output of `Display`: `f32`, `bf16`, `f16`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits with the exponents of `f32`.
    Bf16,
    /// 16 bits with a smaller range: the loss is scaled, so that small gradients do not vanish.
    F16,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        })
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::F32, Self::Bf16, Self::F16];
        let known = all.into_iter().find(|precision| precision.to_string() == text);
        known.ok_or_else(|| "use f32, bf16 or f16".to_owned())
    }
}

/// The rule by which a step changes the parameters `w` from the gradient `g`. Its state starts at zero
/// in each training.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Optimizer {
    /// Stochastic gradient descent, with momentum:
    ///
    /// ```text
    /// v = momentum · v + (g + weight_decay · w)
    /// w = w − η · v
    /// ```
    #[default]
    Sgd,
    /// Adam (Kingma and Ba 2015) with an L2 penalty. In step `k`, from 1:
    ///
    /// ```text
    /// g = g + weight_decay · w
    /// m = m + (1 − β₁) · (g − m)
    /// s = β₂ · s + (1 − β₂) · g²
    /// w = w − η / (1 − β₁ᵏ) · m / (√s / √(1 − β₂ᵏ) + ε)      ε = ADAM_EPSILON
    /// ```
    Adam(Betas),
    /// AdamW (Loshchilov and Hutter 2019): Adam without the penalty, after
    /// `w = w · (1 − η · weight_decay)`.
    #[serde(rename = "adamw")]
    AdamW(Betas),
}

/// Decay rates of Adam's moments, each 0 to below 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Betas {
    /// Of the first moment.
    pub beta1: f64,
    /// Of the second moment.
    pub beta2: f64,
}

/// The factor of the learning rate at a progress `p` of the task, from 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// 1.
    #[default]
    Constant,
    /// `1 − p`.
    Linear,
    /// `(1 + cos πp) / 2` (Loshchilov and Hutter 2017).
    Cosine,
}

impl Schedule {
    fn factor(self, progress: f64) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Linear => 1.0 - progress,
            Self::Cosine => f64::midpoint(1.0, libm::cos(std::f64::consts::PI * progress)),
        }
    }
}

/// A round among the rounds of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskPart {
    /// The round, from 1.
    pub round: u32,
    /// Number of rounds.
    pub rounds: u32,
}

impl Default for TaskPart {
    /// The only round.
    fn default() -> Self {
        Self { round: 1, rounds: 1 }
    }
}

/// A hyperparameter in [`Training`] is out of bounds.
#[derive(Debug, Clone, Error, PartialEq)]
#[error("training: {key} is {value}: must be {bounds}")]
pub struct TrainingError {
    /// Name of the hyperparameter.
    pub key: &'static str,
    /// Its value.
    pub value: f64,
    /// The valid range.
    pub bounds: &'static str,
}

impl Training {
    /// Gradient descent without momentum, at one learning rate, in a task of one round.
    pub const fn sgd(epochs: u32, batch: u32, learning_rate: f64) -> Self {
        Self {
            epochs,
            batch,
            learning_rate,
            momentum: 0.0,
            weight_decay: 0.0,
            clip_gradient: None,
            fedprox: None,
            optimizer: Optimizer::Sgd,
            schedule: Schedule::Constant,
            warmup_steps: 0,
            augmentation: None,
            part: TaskPart { round: 1, rounds: 1 },
            execution: Execution {
                precision: Precision::F32,
                memory_bytes: None,
                virtual_workers: None,
            },
        }
    }

    /// Checks every hyperparameter against its bounds.
    pub fn check(&self) -> Result<(), TrainingError> {
        let positive = |value: f64, max: f64| value > 0.0 && value <= max;
        let (epochs, batch) = (self.epochs, self.batch);
        let (rate, decay) = (self.learning_rate, self.weight_decay);
        must((1..=EPOCHS_MAX).contains(&epochs), "epochs", epochs.into(), "1 to 1000")?;
        must((1..=BATCH_MAX).contains(&batch), "batch", batch.into(), "1 to 65536")?;
        let bounds = "above 0, at most 100";
        must(positive(rate, LEARNING_RATE_MAX), "learning_rate", rate, bounds)?;
        must((0.0..=WEIGHT_DECAY_MAX).contains(&decay), "weight_decay", decay, "0 to 1")?;
        if let Some(clip) = self.clip_gradient {
            let bounds = "above 0, at most 1000000";
            must(positive(clip, COEFFICIENT_MAX), "clip_gradient", clip, bounds)?;
        }
        if let Some(pull) = self.fedprox {
            must((0.0..=COEFFICIENT_MAX).contains(&pull), "fedprox", pull, "0 to 1000000")?;
        }
        let warmup = self.warmup_steps;
        must(warmup <= WARMUP_STEPS_MAX, "warmup_steps", warmup.into(), "0 to 1000000")?;
        let workers = self.execution.virtual_workers.unwrap_or(1);
        let valid = (1..=VIRTUAL_WORKERS_MAX).contains(&workers);
        must(valid, "virtual_workers", workers.into(), "1 to 1024")?;
        let padding = self.augmentation.map_or(0, |augmentation| augmentation.crop_padding);
        must(padding <= CROP_PADDING_MAX, "crop_padding", padding as f64, "0 to 64")?;
        self.check_optimizer()
    }

    fn check_optimizer(&self) -> Result<(), TrainingError> {
        let (momentum, below_one) = (self.momentum, |value: f64| (0.0..1.0).contains(&value));
        match self.optimizer {
            Optimizer::Sgd => must(below_one(momentum), "momentum", momentum, "0 to below 1"),
            Optimizer::Adam(Betas { beta1, beta2 }) | Optimizer::AdamW(Betas { beta1, beta2 }) => {
                must(
                    momentum == 0.0,
                    "momentum",
                    momentum,
                    "0 with Adam, which has beta1 instead",
                )?;
                must(below_one(beta1), "beta1", beta1, "0 to below 1")?;
                must(below_one(beta2), "beta2", beta2, "0 to below 1")
            }
        }
    }

    /// Number of steps of a training on `rows` rows.
    pub fn steps(&self, rows: usize) -> u64 {
        u64::from(self.epochs) * self.steps_of_epoch(rows)
    }

    /// Number of steps of one epoch on `rows` rows.
    pub(crate) fn steps_of_epoch(&self, rows: usize) -> u64 {
        (rows as u64).div_ceil(u64::from(self.batch.max(1)))
    }

    /// The rows of step `step`, from 1, of a training on `rows` rows, in the order of the batch: the epoch's shuffled
    /// rows, cut into batches. Empty for a step that the training does not have.
    pub fn step_rows(&self, rows: usize, seed: u64, step: u64) -> Vec<usize> {
        let of_epoch = self.steps_of_epoch(rows);
        let Some(before) = step.checked_sub(1).filter(|_| step <= self.steps(rows)) else {
            return Vec::new();
        };
        let epoch = u32::try_from(before / of_epoch.max(1)).unwrap_or(u32::MAX);
        let from = usize::try_from(before % of_epoch.max(1)).unwrap_or(usize::MAX);
        let batch = self.batch.max(1) as usize;
        let order = epoch_order(rows, seed, epoch);
        order.into_iter().skip(from.saturating_mul(batch)).take(batch).collect()
    }

    /// The learning rate of step `step`, from 1, of `steps`: `learning_rate`, times the factor of the
    /// schedule at the progress `p = (round − 1 + (step − 1) / steps) / rounds`, times
    /// `min(1, step / warmup_steps)`.
    pub fn learning_rate_at(&self, step: u64, steps: u64) -> f64 {
        let TaskPart { round, rounds } = self.part;
        let before = f64::from(round.saturating_sub(1));
        let within = step.saturating_sub(1) as f64 / steps.max(1) as f64;
        let progress = ((before + within) / f64::from(rounds.max(1))).min(1.0);
        let warmup = match self.warmup_steps {
            0 => 1.0,
            warmup => (step as f64 / f64::from(warmup)).min(1.0),
        };
        self.learning_rate * self.schedule.factor(progress) * warmup
    }
}

fn must(
    holds: bool,
    key: &'static str,
    value: f64,
    bounds: &'static str,
) -> Result<(), TrainingError> {
    if holds { Ok(()) } else { Err(TrainingError { key, value, bounds }) }
}

/// The numbers of one of Adam's steps that all elements share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AdamStep {
    /// Weight of the gradient in the first moment.
    pub(crate) first: f64,
    /// Factor of the second moment.
    pub(crate) retained: f64,
    /// Weight of the squared gradient in the second moment.
    pub(crate) second: f64,
    /// The learning rate, without the bias of the first moment.
    pub(crate) rate: f64,
    /// `√(1 − β₂ᵏ)`.
    pub(crate) bias_root: f64,
}

impl AdamStep {
    /// Of step `step`, from 1, at a learning rate.
    pub(crate) fn new(betas: Betas, rate: f64, step: u64) -> Self {
        let bias = |beta: f64| 1.0 - libm::pow(beta, step as f64);
        Self {
            first: 1.0 - betas.beta1,
            retained: betas.beta2,
            second: 1.0 - betas.beta2,
            rate: rate / bias(betas.beta1),
            bias_root: bias(betas.beta2).sqrt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Training {
        Training {
            momentum: 0.9,
            clip_gradient: Some(1.0),
            fedprox: Some(0.0),
            ..Training::sgd(1, 1, 0.1)
        }
    }

    #[test]
    fn hyperparameters_out_of_bounds_are_refused() {
        let good = good();
        assert_eq!(good.check(), Ok(()));
        let adam = |beta1, beta2| Training {
            optimizer: Optimizer::AdamW(Betas { beta1, beta2 }),
            momentum: 0.0,
            ..good.clone()
        };
        assert_eq!(adam(0.0, 0.999).check(), Ok(()));
        let image = crate::data::ImageShape { channels: 1, height: 2, width: 2 };
        let shifted = Augmentation { image, flip: false, crop_padding: 65 };
        let table = [
            (Training { epochs: 0, ..good.clone() }, "epochs is 0: must be 1 to 1000"),
            (Training { batch: 70_000, ..good.clone() }, "batch is 70000: must be 1 to 65536"),
            (
                Training { learning_rate: 0.0, ..good.clone() },
                "learning_rate is 0: must be above 0",
            ),
            (Training { learning_rate: f64::NAN, ..good.clone() }, "learning_rate is NaN"),
            (Training { momentum: 1.0, ..good.clone() }, "momentum is 1: must be 0 to below 1"),
            (Training { momentum: 0.5, ..adam(0.9, 0.9) }, "momentum is 0.5: must be 0 with Adam"),
            (adam(1.0, 0.9), "beta1 is 1: must be 0 to below 1"),
            (adam(0.9, -0.1), "beta2 is -0.1: must be 0 to below 1"),
            (Training { weight_decay: -0.1, ..good.clone() }, "weight_decay is -0.1"),
            (Training { clip_gradient: Some(0.0), ..good.clone() }, "clip_gradient is 0"),
            (Training { warmup_steps: 2_000_000, ..good.clone() }, "warmup_steps is 2000000"),
            (Training { augmentation: Some(shifted), ..good.clone() }, "crop_padding is 65"),
            (Training { fedprox: Some(f64::INFINITY), ..good }, "fedprox is inf"),
        ];
        for (wrong, message) in table {
            let error = wrong.check().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn the_learning_rate_falls_over_the_task_and_rises_in_the_warmup() {
        let rates = |how: &Training| [1, 2, 3, 4].map(|step| how.learning_rate_at(step, 4));
        let constant = Training { learning_rate: 1.0, ..good() };
        assert_eq!(rates(&constant), [1.0; 4]);
        let linear = Training { schedule: Schedule::Linear, ..constant };
        assert_eq!(rates(&linear), [1.0, 0.75, 0.5, 0.25]);
        let second = Training { part: TaskPart { round: 2, rounds: 2 }, ..linear };
        assert_eq!(rates(&second), [0.5, 0.375, 0.25, 0.125]);
        let beyond = Training { part: TaskPart { round: 9, rounds: 2 }, ..second };
        assert_eq!(rates(&beyond), [0.0; 4], "a rate is never negative");
        let cosine = Training { schedule: Schedule::Cosine, ..constant };
        let half = 0.5_f64.sqrt();
        for (found, wanted) in rates(&cosine).iter().zip([1.0, (1.0 + half) / 2.0, 0.5]) {
            assert!((found - wanted).abs() < 1e-15, "{found} {wanted}");
        }
        let warm = Training { warmup_steps: 2, ..constant };
        assert_eq!(rates(&warm), [0.5, 1.0, 1.0, 1.0]);
    }
}
