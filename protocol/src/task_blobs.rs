//! The blobs of a task that its buyer uploads besides the holdout, and consent to them.

use crate::graph_model::GraphModel;
use crate::id::Digest;
use crate::model::ModelArchitecture;
use crate::task::TaskSpec;

/// Domain of the digest of a graph with its parameters.
const CONSENT_CONTEXT: &str = "florin v1 graph consent";

impl TaskSpec {
    /// The digest by which a participant accepts a model that its buyer chose: that of the initial
    /// parameters, and of a graph with its blobs and them.
    #[must_use]
    pub fn consent_digest(&self) -> Digest {
        let ModelArchitecture::Graph(graph) = &self.model else { return self.base_model };
        let mut hasher = blake3::Hasher::new_derive_key(CONSENT_CONTEXT);
        for blob in graph.blobs() {
            hasher.update(&blob.digest.0);
        }
        hasher.update(&self.base_model.0);
        Digest(*hasher.finalize().as_bytes())
    }

    /// The digests of the blobs that the buyer uploads besides the holdout: the initial model, and
    /// those of a graph.
    pub fn blobs(&self) -> impl Iterator<Item = Digest> {
        let graph = match &self.model {
            ModelArchitecture::Graph(graph) => Some(graph),
            _ => None,
        };
        let others = graph.into_iter().flat_map(GraphModel::blobs);
        std::iter::once(self.base_model).chain(others.map(|blob| blob.digest))
    }

    /// The length of one of these blobs, given that of the initial model; `None` for another digest.
    #[must_use]
    pub fn blob_bytes(&self, digest: Digest, model_bytes: u64) -> Option<u64> {
        if digest == self.base_model {
            return Some(model_bytes);
        }
        match &self.model {
            ModelArchitecture::Graph(graph) => {
                graph.blobs().find(|blob| blob.digest == digest).map(|blob| blob.bytes)
            }
            _ => None,
        }
    }
}
