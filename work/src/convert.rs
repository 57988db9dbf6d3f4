//! Converts a task's settings into those of the engines. It is the only place where fixed-point
//! decimals become floats.

use florin_learning::data::ImageShape;
use florin_learning::graph::{
    GraphDeclaration, GraphForm as LearningForm, GraphLoss, GraphModel as LearningGraph,
};
use florin_learning::wire::WireFormat;
use florin_learning::{AggregationRule, Augmentation, Betas, ModelSpec, TaskPart, TensorSpec};
use florin_protocol::{
    Aggregation, FeatureEncoding, GraphForm, GraphModel, Micro, ModelArchitecture, ModelLoss,
    Optimizer, RoundNumber, Schedule, TaskSpec, Training, UpdateFormat,
};

fn to_usize(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "settings are far below 2^53 millionths")]
fn to_f64(micro: Micro) -> f64 {
    micro.0 as f64 / 1e6
}

/// The model that a task declares. A graph is not loaded: [`load_graph`](crate::load_graph) does that.
#[must_use]
pub fn model_spec(model: &ModelArchitecture) -> ModelSpec {
    match model {
        ModelArchitecture::Softmax { inputs, classes } => {
            ModelSpec::Softmax { inputs: to_usize(*inputs), classes: to_usize(*classes) }
        }
        ModelArchitecture::Mlp { inputs, hidden, classes } => ModelSpec::Mlp {
            inputs: to_usize(*inputs),
            hidden: hidden.iter().map(|units| to_usize(*units)).collect(),
            classes: to_usize(*classes),
        },
        ModelArchitecture::Cnn { channels, height, width, filters: [a, b], hidden, classes } => {
            ModelSpec::Cnn {
                channels: to_usize(*channels),
                height: to_usize(*height),
                width: to_usize(*width),
                filters: [to_usize(*a), to_usize(*b)],
                hidden: to_usize(*hidden),
                classes: to_usize(*classes),
            }
        }
        ModelArchitecture::Graph(graph) => {
            ModelSpec::Graph(Box::new(LearningGraph::new(graph_declaration(graph))))
        }
    }
}

/// The graph that a task or an order declares.
#[must_use]
pub fn graph_declaration(graph: &GraphModel) -> GraphDeclaration {
    let tensor = |tensor: &florin_protocol::TensorShape| TensorSpec {
        name: tensor.name.clone(),
        shape: tensor.shape.iter().map(|&size| to_usize(size)).collect(),
    };
    GraphDeclaration {
        form: match graph.form {
            GraphForm::Operators => LearningForm::Operators,
            GraphForm::Trainer { has_gradient } => LearningForm::Trainer { has_gradient },
        },
        digest: graph.graph.digest.0,
        inputs: to_usize(graph.inputs),
        targets: to_usize(graph.targets),
        outputs: to_usize(graph.outputs),
        loss: graph_loss(graph.loss),
        tensors: graph.tensors.iter().map(tensor).collect(),
    }
}

fn graph_loss(loss: ModelLoss) -> GraphLoss {
    match loss {
        ModelLoss::CrossEntropy { label_smoothing } => {
            GraphLoss::CrossEntropy { label_smoothing: to_f64(label_smoothing) }
        }
        ModelLoss::TokenCrossEntropy { label_smoothing } => {
            GraphLoss::TokenCrossEntropy { label_smoothing: to_f64(label_smoothing) }
        }
        ModelLoss::Binary => GraphLoss::Binary,
        ModelLoss::Squared { bound } => GraphLoss::Squared { bound: to_f64(bound) },
        ModelLoss::Absolute { bound } => GraphLoss::Absolute { bound: to_f64(bound) },
        ModelLoss::Huber { delta, bound } => {
            GraphLoss::Huber { delta: to_f64(delta), bound: to_f64(bound) }
        }
        ModelLoss::Output { bound } => GraphLoss::Output { bound: to_f64(bound) },
    }
}

/// The training settings of a round of a task.
#[must_use]
pub fn training(spec: &TaskSpec, round: RoundNumber) -> florin_learning::Training {
    florin_learning::Training {
        augmentation: augmentation(spec),
        part: TaskPart { round: round.0, rounds: spec.rounds.count },
        ..training_settings(&spec.training)
    }
}

/// The settings of a training that is no part of a task, without changes of its rows.
pub(crate) fn training_settings(training: &Training) -> florin_learning::Training {
    let unless_zero = |micro: Micro| (micro != Micro::ZERO).then(|| to_f64(micro));
    let (epochs, batch, rate) = (training.epochs, training.batch, to_f64(training.learning_rate));
    florin_learning::Training {
        momentum: to_f64(training.momentum),
        weight_decay: to_f64(training.weight_decay),
        clip_gradient: unless_zero(training.clip_gradient),
        fedprox: unless_zero(training.fedprox),
        optimizer: optimizer(training.optimizer),
        schedule: match training.schedule {
            Schedule::Constant => florin_learning::Schedule::Constant,
            Schedule::Linear => florin_learning::Schedule::Linear,
            Schedule::Cosine => florin_learning::Schedule::Cosine,
        },
        warmup_steps: training.warmup_steps,
        ..florin_learning::Training::sgd(epochs, batch, rate)
    }
}

/// The changes of a task's images in training; `None` if it has none.
fn augmentation(spec: &TaskSpec) -> Option<Augmentation> {
    let florin_protocol::Augmentation { flip, crop_padding } = spec.training.augmentation;
    let FeatureEncoding::Images(images) = &spec.data.encoding.as_ref()?.features else {
        return None;
    };
    let image = ImageShape {
        channels: images.channels.len(),
        height: to_usize(images.height),
        width: to_usize(images.width),
    };
    let found = Augmentation { image, flip, crop_padding: to_usize(crop_padding) };
    (!found.is_empty()).then_some(found)
}

fn optimizer(optimizer: Optimizer) -> florin_learning::Optimizer {
    let betas = |beta1: Micro, beta2: Micro| Betas { beta1: to_f64(beta1), beta2: to_f64(beta2) };
    match optimizer {
        Optimizer::Sgd => florin_learning::Optimizer::Sgd,
        Optimizer::Adam { beta1, beta2 } => florin_learning::Optimizer::Adam(betas(beta1, beta2)),
        Optimizer::AdamW { beta1, beta2 } => florin_learning::Optimizer::AdamW(betas(beta1, beta2)),
    }
}

/// The aggregation rule of a task.
#[must_use]
pub fn aggregation_rule(rule: Aggregation) -> AggregationRule {
    match rule {
        Aggregation::Mean => AggregationRule::Mean,
        Aggregation::Median => AggregationRule::Median,
        Aggregation::TrimmedMean { trim } => AggregationRule::TrimmedMean {
            trim_permille: u16::try_from(trim.0 / 1_000).unwrap_or(u16::MAX),
        },
        Aggregation::Krum { byzantine } => AggregationRule::Krum { byzantine, selected: 1 },
        Aggregation::ClippedMean => AggregationRule::NormClippedMean,
    }
}

/// The update encoding of a task.
#[must_use]
pub fn update_format(format: UpdateFormat) -> WireFormat {
    match format {
        UpdateFormat::F32 => WireFormat::F32,
        UpdateFormat::Bf16 => WireFormat::Bf16,
        UpdateFormat::Int8 => WireFormat::Int8,
        UpdateFormat::TopK { permille } => WireFormat::TopK { permille },
    }
}

/// The largest update norm of a task, as a float.
pub(crate) fn norm_max(limit: Micro) -> f64 {
    to_f64(limit)
}
