//! Recomputes the model of a round for a participant, which trains from it: as the audit does, but
//! without scores and pay.

use std::path::Path;
use std::sync::Arc;

use florin_learning::graph::GraphModel;
use florin_protocol::{Digest, Mismatch, Offer, Report, TaskSpec, UpdateHeader, blob_digest};
use florin_work::{WorkError, check_model};

use super::{AuditError, AuditOptions, Auditor, RoundDocuments, RowBytes};
use crate::client::Client;

/// The result of the check of a round's model.
#[derive(Debug, Default)]
pub(crate) struct CheckedModel {
    /// The lines of the report that differ from the recomputation.
    pub(crate) mismatches: Vec<Mismatch>,
    /// The round's disclosed rows, if they were fetched.
    pub(crate) disclosed_rows: Option<RowBytes>,
}

impl<'a> Auditor<'a> {
    /// An auditor that checks models. `scratch` is for decoded updates beyond the memory limit.
    pub(crate) fn for_models(client: &'a Client, spec: TaskSpec, scratch: &'a Path) -> Self {
        let options = AuditOptions { scratch: Some(scratch), ..AuditOptions::default() };
        Self::new(client, None, spec, &options)
    }

    /// Sets the task's graph, if its model is one.
    pub(crate) fn set_graph(&mut self, graph: Option<&GraphModel>) {
        self.graph = graph.cloned();
    }

    /// Checks that the model of the next round is the base model plus the aggregate of the round's
    /// updates and the step of the public baseline. Every update must be signed by its sender. The
    /// caller calls [`advance`](Self::advance) after each round.
    pub(crate) fn check_model(
        &mut self,
        offer: &Offer,
        report: &Report,
        before: Option<&Report>,
    ) -> Result<CheckedModel, AuditError> {
        // The caller has checked that such a round leaves the model.
        if !report.outcome.is_valued() {
            return Ok(CheckedModel::default());
        }
        let headers = self.client.headers(report.scope.task, report.scope.round)?;
        let mut mismatches = Vec::new();
        self.check_headers(report, &headers, &mut mismatches)?;
        let headers: Vec<UpdateHeader> = headers.into_iter().map(|signed| signed.body).collect();
        let documents = RoundDocuments { report, before, offer, headers: &headers };
        let Some(bytes) = self.fetch_blobs(report, &mut mismatches)? else {
            return Ok(CheckedModel { mismatches, disclosed_rows: None });
        };
        let model = match self.with_inputs(&documents, &bytes, check_model) {
            Ok(checked) => {
                mismatches.extend(checked.mismatches);
                checked.model
            }
            Err(error @ AuditError::Work { source: WorkError::ScratchSpace(_), .. }) => {
                return Err(error);
            }
            // The public record gives no model at all.
            Err(error) => {
                mismatches.push(Mismatch::new("model", &report.model, &error));
                None
            }
        };
        let next = model.map(|model| (blob_digest(&model), Arc::new(model)));
        self.cache_blobs(report, &bytes, next.as_ref());
        Ok(CheckedModel { mismatches, disclosed_rows: Some(bytes.disclosed_rows) })
    }

    /// Indices of the holdout rows that the rounds so far disclosed.
    pub(crate) fn disclosed_rows(&self) -> &[u32] {
        &self.disclosed_rows
    }

    /// Caches a model that the caller fetched, instead of the cached ones.
    pub(crate) fn cache_model(&mut self, digest: Digest, model: &Arc<Vec<u8>>) {
        self.models.replace([&(digest, Arc::clone(model))]);
    }

    /// A recomputed or fetched model, if it is cached.
    pub(crate) fn cached_model(&self, digest: Digest) -> Option<Arc<Vec<u8>>> {
        self.models.get(digest)
    }
}
