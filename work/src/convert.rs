//! Converts a task's settings into those of the engines. It is the only place where fixed-point
//! decimals become floats.

use florin_learning::wire::Format;
use florin_learning::{ModelSpec, Rule};
use florin_protocol::{Aggregation, Micro, Model, Training, UpdateFormat};

fn size(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "settings are far below 2^53 millionths")]
fn real(micro: Micro) -> f64 {
    micro.0 as f64 / 1e6
}

/// The model that a task declares.
#[must_use]
pub fn model_spec(model: &Model) -> ModelSpec {
    match model {
        Model::Softmax { inputs, classes } => {
            ModelSpec::Softmax { inputs: size(*inputs), classes: size(*classes) }
        }
        Model::Mlp { inputs, hidden, classes } => ModelSpec::Mlp {
            inputs: size(*inputs),
            hidden: hidden.iter().map(|units| size(*units)).collect(),
            classes: size(*classes),
        },
        Model::Cnn { channels, height, width, filters: [a, b], hidden, classes } => {
            ModelSpec::Cnn {
                channels: size(*channels),
                height: size(*height),
                width: size(*width),
                filters: [size(*a), size(*b)],
                hidden: size(*hidden),
                classes: size(*classes),
            }
        }
    }
}

/// The training settings of a task.
#[must_use]
pub fn training(training: &Training) -> florin_learning::Training {
    let unless_zero = |micro: Micro| (micro != Micro::ZERO).then(|| real(micro));
    florin_learning::Training {
        epochs: training.epochs,
        batch: training.batch,
        learning_rate: real(training.learning_rate),
        momentum: real(training.momentum),
        weight_decay: real(training.weight_decay),
        clip_gradient: unless_zero(training.clip_gradient),
        fedprox: unless_zero(training.fedprox),
    }
}

/// The aggregation rule of a task.
#[must_use]
pub fn aggregation(rule: Aggregation) -> Rule {
    match rule {
        Aggregation::Mean => Rule::Mean,
        Aggregation::Median => Rule::Median,
        Aggregation::TrimmedMean { trim } => {
            Rule::TrimmedMean { trim_permille: u16::try_from(trim.0 / 1_000).unwrap_or(u16::MAX) }
        }
        Aggregation::Krum { byzantine } => Rule::Krum { hostile: byzantine, keep: 1 },
        Aggregation::ClippedMean => Rule::NormClippedMean,
    }
}

/// The update encoding of a task.
#[must_use]
pub fn format(format: UpdateFormat) -> Format {
    match format {
        UpdateFormat::F32 => Format::F32,
        UpdateFormat::Bf16 => Format::Bf16,
        UpdateFormat::Int8 => Format::Int8,
        UpdateFormat::TopK { permille } => Format::TopK { permille },
    }
}

/// The largest update norm of a task, as a float.
pub(crate) fn norm_max(limit: Micro) -> f64 {
    real(limit)
}
