//! The keys of `[model]` for a graph, and the model that they describe.

use std::path::Path;

use clap::ValueEnum;
use florin_learning::graph::{
    BufferPolicy, CutGraph, Graph, GraphError, GraphParts, graph_cost, read_archive, split,
};
use florin_protocol::{Digest, GraphModel, Micro, ModelLoss};
use florin_work::{GraphOutput, declared_graph};
use serde::Deserialize;

use super::TaskFileError;
use super::file::{Decimal, ModelSection};

/// Default of `model.loss_bound` for squared differences: targets of unit variance have a loss of 1
/// before training.
const SQUARED_BOUND: Micro = Micro(4_000_000);
/// Default of `model.loss_bound` for absolute differences and Huber's loss.
const ABSOLUTE_BOUND: Micro = Micro(2_000_000);
/// Default of `model.huber_delta`.
const HUBER_DELTA: Micro = Micro::ONE;

/// Values of `model.buffers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(crate) enum BuffersName {
    /// They travel with the updates and are averaged
    Average,
    /// They stay as they are, and training normalises by them
    Freeze,
    /// A model that has them is refused
    Refuse,
}

impl BuffersName {
    pub(crate) const fn policy(self) -> BufferPolicy {
        match self {
            Self::Average => BufferPolicy::Average,
            Self::Freeze => BufferPolicy::Freeze,
            Self::Refuse => BufferPolicy::Refuse,
        }
    }
}

/// Values of `model.loss`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(crate) enum LossName {
    /// Logits of classes; the label is the class
    CrossEntropy,
    /// Logits of each token; each predicts the next
    TokenCrossEntropy,
    /// Logits of truth values
    Binary,
    /// Numbers; the mean of squared differences
    Squared,
    /// Numbers; the mean of absolute differences
    Absolute,
    /// Numbers; squares near zero, absolute differences beyond
    Huber,
    /// The output is the loss itself
    Output,
}

/// A graph, with the bytes that its task refers to.
#[derive(Debug)]
pub(super) struct GraphFile {
    pub(super) declared: GraphModel,
    pub(super) initial: Vec<f32>,
    pub(super) blobs: Vec<(Digest, Vec<u8>)>,
}

/// Reads the file of a graph and splits it by the section's keys. `folder` is that of the task file;
/// `None` if no file may be read.
pub(super) fn read_graph(
    section: &ModelSection,
    folder: Option<&Path>,
) -> Result<GraphFile, TaskFileError> {
    read_cut_graph(section, folder, None).map(|(graph, _)| graph)
}

/// The same without the layers that stay at home: the graph behind the cut, and the cut.
pub(super) fn read_cut_graph(
    section: &ModelSection,
    folder: Option<&Path>,
    at_home: Option<&[String]>,
) -> Result<(GraphFile, Option<CutGraph>), TaskFileError> {
    let missing = |key: &str, right: &str| TaskFileError::key(key, "nothing", right);
    let path = section.file.as_ref().ok_or_else(|| {
        missing("model.file", "a model of kind \"graph\" is a file of torch.export.save")
    })?;
    let wrong = |error: GraphError| {
        TaskFileError::key("model.file", format!("{path:?}"), format!("{error} [{}]", error.code()))
    };
    let folder = folder.ok_or_else(|| missing("model.file", "no model is read here"))?;
    let (graph, weights) = read_archive(&folder.join(path)).map_err(wrong)?;
    let cut = at_home.map(|at_home| CutGraph::new(&graph, &weights, at_home)).transpose();
    let cut = cut.map_err(|error| {
        let right = format!("{} [{}]", error.why, error.code());
        TaskFileError::key("split.at_home", format!("{:?}", at_home.unwrap_or_default()), right)
    })?;
    let (graph, weights) =
        cut.as_ref().map_or((&graph, &weights), |cut| (&cut.rest, &cut.rest_weights));
    let all = [ALL_PARAMETERS.to_owned()];
    let trainable = section.trainable.as_deref().unwrap_or(&all);
    let policy = section.buffers.unwrap_or(BuffersName::Refuse).policy();
    let parts = split(graph, weights, trainable, policy).map_err(wrong)?;
    let outputs = outputs(graph).map_err(wrong)?;
    declare(section, parts, outputs).map(|declared| (declared, cut))
}

/// The pattern of all parameters.
pub(super) const ALL_PARAMETERS: &str = "*";

fn declare(
    section: &ModelSection,
    parts: GraphParts,
    outputs: u32,
) -> Result<GraphFile, TaskFileError> {
    let loss = loss(section)?;
    let outputs = if let ModelLoss::Output { .. } = loss { 1 } else { outputs };
    let targets = match loss {
        ModelLoss::CrossEntropy { .. }
        | ModelLoss::TokenCrossEntropy { .. }
        | ModelLoss::Output { .. } => 0,
        ModelLoss::Binary
        | ModelLoss::Squared { .. }
        | ModelLoss::Absolute { .. }
        | ModelLoss::Huber { .. } => outputs,
    };
    let output = GraphOutput { outputs, targets: section.targets.unwrap_or(targets), loss };
    let declared = declared_graph(&parts, output);
    let bytes = [Some(parts.graph), parts.frozen].into_iter().flatten();
    let blobs = declared.blobs().map(|blob| blob.digest).zip(bytes).collect();
    Ok(GraphFile { declared, initial: parts.initial, blobs })
}

pub(super) fn loss(section: &ModelSection) -> Result<ModelLoss, TaskFileError> {
    let or = |value: &Option<Decimal>, default: Micro| {
        value.as_ref().map_or(default, |decimal| decimal.0)
    };
    let (smoothing, bound) = (&section.label_smoothing, &section.loss_bound);
    let name = section.loss.unwrap_or(LossName::CrossEntropy);
    let is_smoothed = matches!(name, LossName::CrossEntropy | LossName::TokenCrossEntropy);
    let is_bounded =
        matches!(name, LossName::Squared | LossName::Absolute | LossName::Huber | LossName::Output);
    for (key, is_there, belongs) in [
        ("model.label_smoothing", smoothing.is_some(), is_smoothed),
        ("model.loss_bound", bound.is_some(), is_bounded),
        ("model.huber_delta", section.huber_delta.is_some(), name == LossName::Huber),
    ] {
        if is_there && !belongs {
            return Err(TaskFileError::key(
                key,
                "…",
                "the model's loss has no such key: remove it",
            ));
        }
    }
    let label_smoothing = or(smoothing, Micro::ZERO);
    Ok(match name {
        LossName::CrossEntropy => ModelLoss::CrossEntropy { label_smoothing },
        LossName::TokenCrossEntropy => ModelLoss::TokenCrossEntropy { label_smoothing },
        LossName::Binary => ModelLoss::Binary,
        LossName::Squared => ModelLoss::Squared { bound: or(bound, SQUARED_BOUND) },
        LossName::Absolute => ModelLoss::Absolute { bound: or(bound, ABSOLUTE_BOUND) },
        LossName::Huber => ModelLoss::Huber {
            delta: or(&section.huber_delta, HUBER_DELTA),
            bound: or(bound, ABSOLUTE_BOUND),
        },
        LossName::Output => {
            let right = "a loss of the model's own needs the largest loss of a row, in its units";
            let bound = bound.as_ref();
            let bound =
                bound.ok_or_else(|| TaskFileError::key("model.loss_bound", "nothing", right))?;
            ModelLoss::Output { bound: bound.0 }
        }
    })
}

/// The size of the last dimension of the first output; 1 if that has one number for each row.
fn outputs(graph: &Graph) -> Result<u32, GraphError> {
    const ROWS: u64 = 2;
    let cost = graph_cost(graph, &graph.free_sizes(ROWS), florin_learning::graph::ROW_BYTES_MAX)?;
    let sizes = cost.outputs.first().map(|output| output.sizes.as_slice());
    let Some([_, inner @ ..]) = sizes else {
        return Err(GraphError::without_rows());
    };
    let last = inner.last().copied();
    Ok(u32::try_from(last.unwrap_or(1)).unwrap_or(u32::MAX))
}
