//! The blobs of a task that its buyer uploads besides the holdout, and consent to them.

use crate::encoding::FeatureEncoding;
use crate::graph_model::{Blob, GraphForm, GraphModel};
use crate::id::Digest;
use crate::model::ModelArchitecture;
use crate::task::TaskSpec;

/// Domain of the digest of a graph with its parameters.
const CONSENT_CONTEXT: &str = "florin v1 graph consent";

impl TaskSpec {
    /// The digest by which a participant accepts a model that its buyer chose: that of the initial
    /// parameters, and of a graph with its blobs, a tokenizer and them.
    #[must_use]
    pub fn consent_digest(&self) -> Digest {
        let ModelArchitecture::Graph(graph) = &self.model else { return self.base_model };
        let mut hasher = blake3::Hasher::new_derive_key(CONSENT_CONTEXT);
        for blob in graph.blobs() {
            hasher.update(&blob.digest.0);
        }
        if let GraphForm::Trainer { has_gradient } = graph.form {
            hasher.update(&[u8::from(has_gradient)]);
        }
        if let Some(tokenizer) = self.tokenizer() {
            hasher.update(&tokenizer.digest.0);
        }
        hasher.update(&self.base_model.0);
        Digest(*hasher.finalize().as_bytes())
    }

    /// The tokenizer of a task of tokens.
    #[must_use]
    pub fn tokenizer(&self) -> Option<Blob> {
        match self.data.encoding.as_ref()?.features {
            FeatureEncoding::Tokens(tokens) => Some(tokens.tokenizer),
            _ => None,
        }
    }

    /// The blobs that the buyer uploads besides the holdout and the initial model.
    fn other_blobs(&self) -> impl Iterator<Item = Blob> {
        let graph = match &self.model {
            ModelArchitecture::Graph(graph) => Some(graph),
            _ => None,
        };
        graph.into_iter().flat_map(GraphModel::blobs).chain(self.tokenizer())
    }

    /// The digests of the blobs that the buyer uploads besides the holdout: the initial model, those
    /// of a graph, and a tokenizer.
    pub fn blobs(&self) -> impl Iterator<Item = Digest> {
        std::iter::once(self.base_model).chain(self.other_blobs().map(|blob| blob.digest))
    }

    /// The length of one of these blobs, given that of the initial model; `None` for another digest.
    #[must_use]
    pub fn blob_bytes(&self, digest: Digest, model_bytes: u64) -> Option<u64> {
        if digest == self.base_model {
            return Some(model_bytes);
        }
        self.other_blobs().find(|blob| blob.digest == digest).map(|blob| blob.bytes)
    }
}
