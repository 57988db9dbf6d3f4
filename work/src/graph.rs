//! The graph of a task: its blobs, checked and loaded.

use florin_learning::ModelSpec;
use florin_learning::graph::{Graph, GraphModel};
use florin_protocol::{Digest, ErrorCode, ModelArchitecture, Rejection, TaskSpec, blob_digest};

use crate::convert::{graph_declaration, model_spec};

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
    let mut blobs = Vec::new();
    for blob in declared.blobs() {
        let bytes = read(blob.digest, blob.bytes)?;
        if blob_digest(&bytes) != blob.digest {
            let message = format!("the bytes of blob {} have another digest", blob.digest);
            return Err(Rejection::new(ErrorCode::Malformed, message).into());
        }
        blobs.push(bytes);
    }
    let frozen = blobs.get(1).map(Vec::as_slice);
    let graph = blobs.first().map(Vec::as_slice).unwrap_or_default();
    let loaded = GraphModel::load(graph_declaration(declared), graph, frozen);
    loaded.map(Some).map_err(|error| invalid(&error.to_string()).into())
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
        ModelArchitecture::Graph(graph) if graph.graph.digest == digest => {
            Graph::from_bytes(bytes).map(drop).map_err(|error| invalid(&error.to_string()))
        }
        _ => Ok(()),
    }
}

fn invalid(why: &str) -> Rejection {
    Rejection::new(ErrorCode::InvalidTask, format!("the task's graph is invalid: {why}"))
}
