//! `[split]`: the first layers of an order's model stay at home, and its rows with them.

use florin_learning::Dataset;
use florin_learning::graph::CutGraph;
use florin_protocol::{GraphModel, ModelLoss};

use super::super::TaskFileError;
use crate::cli::EngineArg;
use crate::compose;
use crate::progress::Progress;

/// The layers that stay at home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrderSplit {
    /// The parameters of the first part.
    pub(crate) at_home: Vec<String>,
    /// Nodes of the first part, and of the whole graph.
    pub(crate) nodes: [usize; 2],
    /// Numbers of a row that are at home, and that others read in their place.
    pub(crate) numbers: [usize; 2],
}

impl OrderSplit {
    pub(super) fn new(cut: &CutGraph) -> Self {
        Self {
            at_home: cut.at_home.clone(),
            nodes: [cut.first_nodes, cut.nodes],
            numbers: [cut.inputs(), cut.crossing],
        }
    }
}

/// Numbers of a row that the whole model takes.
///
/// # Errors
/// If the tokens of the rows are the targets of the rest: they stay at home.
pub(super) fn inputs(model: &GraphModel, cut: Option<&CutGraph>) -> Result<u32, TaskFileError> {
    let Some(cut) = cut else { return Ok(model.inputs) };
    if matches!(model.loss, ModelLoss::TokenCrossEntropy { .. }) && model.targets == 0 {
        let right = "a model whose tokens are their own targets has no split: the targets are sent, and they would be the rows";
        return Err(TaskFileError::key("model.targets", "nothing", right));
    }
    Ok(u32::try_from(cut.inputs()).unwrap_or(u32::MAX))
}

/// The rows of the rest: what the first part computes of the rows at home.
///
/// # Errors
/// If the engine cannot run the first part, or if its results are not finite or too many.
pub(super) fn activations(
    cut: &CutGraph,
    rows: &Dataset,
    engine: EngineArg,
) -> Result<Dataset, TaskFileError> {
    let refused =
        |why: String| TaskFileError::key("split.at_home", format!("{:?}", cut.at_home), why);
    // One thread: a restart on this machine computes the same job.
    let engine = compose::engine(EngineArg { threads: 1, ..engine });
    let mut engine = engine.map_err(|error| refused(format!("{error:#}")))?;
    let computed =
        Progress::during("computing activations", || cut.activations(rows, &mut *engine));
    computed.map_err(|error| refused(error.to_string()))
}
