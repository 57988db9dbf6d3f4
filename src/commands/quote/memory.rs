//! The memory of a training step: steps on a few rows of zeros are recorded, and the sizes of their tensors
//! are linear in the rows.

use florin_learning::graph::{
    BufferPolicy, DataType, Graph, GraphDeclaration, GraphForm, GraphLoss, GraphModel, GraphParts,
    GraphWeights, InputRole, graph_cost, split,
};
use florin_learning::memory::MemoryQuote;
use florin_learning::select::{step_bytes, step_memory};
use florin_learning::{Dataset, EngineKind, ModelSpec};

use crate::cli::Quote;

/// Rows of the sample.
const SAMPLE_ROWS: usize = 2;
/// The loss of an output that is neither of classes nor of tokens.
const BOUND: f64 = 1.0;

/// Bytes of the tensors of a step at once; `None` if they are unknown: without libtorch, or for a graph with
/// another form of rows.
pub(super) fn bytes(
    arguments: &Quote,
    graph: &Graph,
    weights: &GraphWeights,
    trainable: &[String],
) -> Option<u64> {
    let parts = split(graph, weights, trainable, BufferPolicy::Average).ok()?;
    let (model, sample) = sample(graph, parts)?;
    // A card of a GPU has no figures of its memory: the steps are recorded on the CPU.
    let kind = match arguments.engine.engine {
        EngineKind::Reference => EngineKind::Reference,
        _ => EngineKind::Torch,
    };
    let at = (kind, usize::from(arguments.engine.threads));
    step_bytes(at, &model, &sample, arguments.batch).ok().flatten()
}

/// The memory of a step on `rows` rows, with plans for smaller ones; `None` as for [`bytes`].
pub(super) fn planned(
    arguments: &Quote,
    (graph, weights, trainable): (&Graph, &GraphWeights, &[String]),
    rows: u32,
) -> Option<MemoryQuote> {
    let parts = split(graph, weights, trainable, BufferPolicy::Average).ok()?;
    let (model, sample) = sample(graph, parts)?;
    step_memory(usize::from(arguments.engine.threads), &model, &sample, rows).ok().flatten()
}

/// The model with a loss that fits its output, and rows of zeros.
fn sample(graph: &Graph, parts: GraphParts) -> Option<(ModelSpec, Dataset)> {
    let cost = graph_cost(graph, &graph.free_sizes(1), u64::MAX).ok()?;
    let sizes = cost.outputs.first()?.sizes.clone();
    let outputs = *sizes.last()? as usize;
    let first = graph.inputs.iter().find(|input| input.role == InputRole::User)?;
    let is_text = first.tensor.data_type == DataType::I64 && sizes.len() == 3;
    let label_smoothing = 0.0;
    let (loss, targets) = match sizes.len() {
        2 if outputs > 1 => (GraphLoss::CrossEntropy { label_smoothing }, 0),
        3 if is_text => (GraphLoss::TokenCrossEntropy { label_smoothing }, 0),
        _ => (GraphLoss::Squared { bound: BOUND }, sizes.iter().product::<u64>() as usize),
    };
    let GraphParts { graph, tensors, frozen, inputs, .. } = parts;
    let declaration = GraphDeclaration {
        form: GraphForm::Operators,
        digest: [0; 32],
        inputs,
        targets,
        outputs,
        loss,
        tensors,
    };
    let model = GraphModel::load(declaration, &graph, frozen.as_deref()).ok()?;
    let model = ModelSpec::Graph(Box::new(model));
    let classes = model.classes();
    let width = inputs + targets;
    let rows = Dataset::new(vec![0.0; SAMPLE_ROWS * width], vec![0; SAMPLE_ROWS], width, classes);
    Some((model, rows.ok()?))
}
