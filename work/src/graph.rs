//! The graph of a task: its blobs, checked and loaded.

use florin_learning::engine::InputError;
use florin_learning::graph::{Graph, GraphModel, GraphParts, ROW_BYTES_MAX};
use florin_learning::trainer::TrainerCode;
use florin_learning::{ModelSpec, Reference, TensorSpec};
use florin_protocol::limits::BASELINE_ROUNDS_MAX;
use florin_protocol::{
    Blob, Digest, ErrorCode, GraphForm, ModelArchitecture, ModelLoss, Rejection, TaskSpec,
    TensorShape, blob_digest,
};

use crate::convert::{graph_declaration, model_spec};

/// Most floating-point operations of the public baseline of a graph after one round: some minutes on one
/// core in plain Rust.
pub const BASELINE_FLOPS_MAX: u64 = 1 << 38;
/// Trainings of a public baseline: one for each fold, and one on all rows.
pub(crate) const BASELINE_TRAININGS: u64 = 3;
/// A step takes three times a forward pass.
const STEP_PASSES: u64 = 3;

/// Loads the graph of a task from its blobs, which `read` returns by digest and length. `None` if the
/// task's model is no graph.
///
/// # Errors
/// Those of `read`, and a [`Rejection`] for a blob with another digest, or that is no graph of the task.
pub fn load_graph<E: From<Rejection>>(
    spec: &TaskSpec,
    mut read: impl FnMut(Digest, u64) -> Result<Vec<u8>, E>,
) -> Result<Option<GraphModel>, E> {
    let ModelArchitecture::Graph(declared) = &spec.model else { return Ok(None) };
    let loaded = load_declared(declared, &mut read)?;
    check_baseline(spec, &loaded)?;
    Ok(Some(loaded))
}

/// The numbers of a row that a graph returns and is compared with, and the meaning of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphOutput {
    /// Numbers of the output for each row.
    pub outputs: u32,
    /// Numbers of a row that are targets.
    pub targets: u32,
    /// The loss.
    pub loss: ModelLoss,
}

/// The declaration of a graph of operators, from the parts of a file of `torch.export.save`.
#[must_use]
pub fn declared_graph(parts: &GraphParts, output: GraphOutput) -> florin_protocol::GraphModel {
    let count = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
    let blob = |bytes: &Vec<u8>| Blob {
        digest: blob_digest(bytes),
        bytes: u64::try_from(bytes.len()).unwrap_or(u64::MAX),
    };
    let tensor = |tensor: &TensorSpec| TensorShape {
        name: tensor.name.clone(),
        shape: tensor.shape.iter().map(|&size| count(size)).collect(),
    };
    florin_protocol::GraphModel {
        form: GraphForm::Operators,
        graph: blob(&parts.graph),
        frozen: parts.frozen.as_ref().map(blob),
        inputs: count(parts.inputs),
        targets: output.targets,
        outputs: output.outputs,
        loss: output.loss,
        tensors: parts.tensors.iter().map(tensor).collect(),
    }
}

/// Loads a declared graph from its blobs.
pub(crate) fn load_declared<E: From<Rejection>>(
    declared: &florin_protocol::GraphModel,
    read: &mut dyn FnMut(Digest, u64) -> Result<Vec<u8>, E>,
) -> Result<GraphModel, E> {
    let mut blobs = Vec::new();
    for blob in declared.blobs() {
        blobs.push(read_blob(blob, read)?);
    }
    let frozen = blobs.get(1).map(Vec::as_slice);
    let graph = blobs.first().map(Vec::as_slice).unwrap_or_default();
    let loaded = GraphModel::load(graph_declaration(declared), graph, frozen);
    Ok(loaded.map_err(|error| invalid(&error.to_string()))?)
}

/// The bytes of a blob, whose length and digest are checked.
pub(crate) fn read_blob<E: From<Rejection>>(
    blob: Blob,
    read: &mut dyn FnMut(Digest, u64) -> Result<Vec<u8>, E>,
) -> Result<Vec<u8>, E> {
    let bytes = read(blob.digest, blob.bytes)?;
    if bytes.len() as u64 != blob.bytes {
        let Blob { digest, bytes: declared } = blob;
        let message = format!("blob {digest} has {} bytes and not {declared}", bytes.len());
        return Err(Rejection::new(ErrorCode::Malformed, message).into());
    }
    if blob_digest(&bytes) != blob.digest {
        let message = format!("the bytes of blob {} have another digest", blob.digest);
        return Err(Rejection::new(ErrorCode::Malformed, message).into());
    }
    Ok(bytes)
}

/// The floating-point operations of the public baseline after one round, for `epochs`; saturates.
///
/// # Errors
/// A [`Rejection`] if the intermediate results of a row are too large.
pub fn baseline_flops(spec: &TaskSpec, graph: &GraphModel, epochs: u32) -> Result<u64, Rejection> {
    let row = graph.row_flops(ROW_BYTES_MAX).map_err(|error| invalid(&error.to_string()))?;
    let steps =
        baseline_rows_max(spec).saturating_mul(epochs.into()).saturating_mul(BASELINE_TRAININGS);
    Ok(row.saturating_mul(steps).saturating_mul(STEP_PASSES))
}

/// Most rows on which the public baseline of a task trains.
fn baseline_rows_max(spec: &TaskSpec) -> u64 {
    let rounds = u64::try_from(BASELINE_ROUNDS_MAX).unwrap_or(u64::MAX).saturating_add(1);
    rounds.min(spec.rounds.count.into()).saturating_mul(spec.holdout.rows_per_round.into())
}

/// Refuses a public baseline that the plain-Rust engine cannot train, or not in time.
fn check_baseline(spec: &TaskSpec, graph: &GraphModel) -> Result<(), Rejection> {
    if spec.rounds.baseline_epochs == 0 {
        return Ok(());
    }
    let model = ModelSpec::Graph(Box::new(graph.clone()));
    let refuse = |why: String| {
        invalid(&format!("it has no public baseline, set rounds.baseline_epochs = 0: {why}"))
    };
    let batch = u64::from(spec.training.batch).min(baseline_rows_max(spec));
    let batch = usize::try_from(batch).unwrap_or(usize::MAX);
    Reference::check_model(&model, batch).map_err(|error| match error {
        InputError::Operators { engine, operators } => {
            refuse(format!("the {engine} engine has no {}", operators.join(", ")))
        }
        other => refuse(other.to_string()),
    })?;
    let flops = baseline_flops(spec, graph, spec.rounds.baseline_epochs)?;
    if flops > BASELINE_FLOPS_MAX {
        let why = format!(
            "it takes {flops} floating-point operations after a round, at most {BASELINE_FLOPS_MAX}"
        );
        return Err(refuse(why));
    }
    Ok(())
}

/// The model of a task, with its graph if `graph` is one.
#[must_use]
pub fn task_model(spec: &TaskSpec, graph: Option<&GraphModel>) -> ModelSpec {
    match graph {
        Some(graph) => ModelSpec::Graph(Box::new(graph.clone())),
        None => model_spec(&spec.model),
    }
}

/// Checks a blob of a task when its buyer uploads it: the initial model by its tensors, a graph by its
/// rules. Frozen weights are checked where they meet their graph.
///
/// # Errors
/// A [`Rejection`] that names the error.
pub fn inspect_blob(spec: &TaskSpec, digest: Digest, bytes: &[u8]) -> Result<(), Rejection> {
    if digest == spec.base_model {
        return crate::codec::inspect_model(spec, bytes);
    }
    match &spec.model {
        ModelArchitecture::Graph(graph) if graph.graph.digest == digest && graph.is_trainer() => {
            let read = TrainerCode::from_bytes(bytes);
            read.map(drop).map_err(|why| invalid(&format!("the trainer's code {why}")))
        }
        ModelArchitecture::Graph(graph) if graph.graph.digest == digest => {
            Graph::from_bytes(bytes).map(drop).map_err(|error| invalid(&error.to_string()))
        }
        _ => Ok(()),
    }
}

fn invalid(why: &str) -> Rejection {
    Rejection::new(ErrorCode::InvalidTask, format!("the task's graph is invalid: {why}"))
}
