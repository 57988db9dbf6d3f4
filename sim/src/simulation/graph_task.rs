//! A task whose model is a graph, in place of the scenario's network.

use std::path::Path;

use florin_learning::graph::{BufferPolicy, GraphError, read_archive, split};
use florin_protocol::{GraphModel, Micro, ModelArchitecture, ModelLoss, TaskSpec, blob_digest};
use florin_work::{GraphOutput, WorkError, declared_graph};

use crate::error::SimError;

/// A graph of which all parameters travel, with a cross-entropy of classes.
#[derive(Clone, Debug)]
pub struct GraphTask {
    declared: GraphModel,
    graph: Vec<u8>,
    frozen: Option<Vec<u8>>,
    initial: Vec<f32>,
}

impl GraphTask {
    /// Reads a file of `torch.export.save` whose output has `classes` numbers for each row.
    ///
    /// # Errors
    /// [`GraphError`].
    pub fn read(path: &Path, classes: u32) -> Result<Self, GraphError> {
        let (graph, weights) = read_archive(path)?;
        let parts = split(&graph, &weights, &["*".to_owned()], BufferPolicy::Refuse)?;
        let loss = ModelLoss::CrossEntropy { label_smoothing: Micro::ZERO };
        let output = GraphOutput { outputs: classes, targets: 0, loss };
        let declared = declared_graph(&parts, output);
        Ok(Self { declared, graph: parts.graph, frozen: parts.frozen, initial: parts.initial })
    }

    /// The graph as a task or an order declares it.
    #[must_use]
    pub const fn declared(&self) -> &GraphModel {
        &self.declared
    }

    /// The blobs of the graph.
    pub fn blobs(&self) -> impl Iterator<Item = &Vec<u8>> {
        [Some(&self.graph), self.frozen.as_ref()].into_iter().flatten()
    }

    /// The initial parameters.
    #[must_use]
    pub fn parameters(&self) -> &[f32] {
        &self.initial
    }

    /// Makes the graph the model of a task.
    pub(super) fn declare(&self, spec: &mut TaskSpec) {
        spec.model = ModelArchitecture::Graph(self.declared.clone());
    }

    /// The parameters that the task starts from.
    pub(super) fn initial(&self, spec: &TaskSpec) -> Vec<u8> {
        florin_work::encode_parameters(spec, &self.initial)
    }

    /// The loaded graph.
    pub(super) fn load(
        &self,
        spec: &TaskSpec,
    ) -> Result<Option<florin_learning::graph::GraphModel>, SimError> {
        let loaded = florin_work::load_graph(spec, |digest, _| {
            let found = self.blobs().find(|bytes| blob_digest(bytes) == digest);
            Ok::<_, florin_protocol::Rejection>(found.cloned().unwrap_or_default())
        });
        loaded.map_err(|why| SimError::from(WorkError::Model(why.to_string())))
    }
}
