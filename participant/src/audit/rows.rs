//! The disclosed holdout rows of a round, and of the earlier rounds that train the public baseline.

use std::sync::Arc;

use florin_protocol::limits::BASELINE_ROUNDS_MAX;
use florin_protocol::{Mismatch, Report, RoundNumber, RoundScope, TaskId};

use super::{AuditError, Auditor, RoundBlobs};
use crate::client::ClientError;

/// Bytes of a round's disclosed rows.
pub(crate) type RowBytes = Arc<[u8]>;

impl Auditor<'_> {
    /// Adds a round to those that train the baseline of later rounds, if it disclosed rows.
    pub(super) fn advance_baseline(&mut self, report: &Report) {
        if self.spec.rounds.baseline_epochs == 0 || report.holdout.rows.is_empty() {
            return;
        }
        self.baseline_rounds.entry(report.scope.round).or_default();
        if self.baseline_rounds.len() > BASELINE_ROUNDS_MAX {
            self.baseline_rounds.pop_first();
        }
    }

    /// Caches the rows of a round and of those before it.
    pub(super) fn cache_rows(&mut self, report: &Report, bytes: &RoundBlobs) {
        for (cached, rows) in self.baseline_rounds.values_mut().zip(&bytes.earlier_rows) {
            *cached = Some(Arc::clone(rows));
        }
        if self.spec.rounds.baseline_epochs > 0 && !report.holdout.rows.is_empty() {
            let own = Some(Arc::clone(&bytes.disclosed_rows));
            self.baseline_rounds.insert(report.scope.round, own);
        }
    }

    /// Fetches the disclosed holdout rows of the round; empty if none were drawn.
    pub(super) fn fetch_disclosed_rows(
        &self,
        report: &Report,
        found: &mut Vec<Mismatch>,
    ) -> Result<Option<RowBytes>, AuditError> {
        if !self.spec.has_quorum(report.entries.len()) {
            return Ok(Some(Arc::default()));
        }
        let RoundScope { task, round, .. } = report.scope;
        self.fetch_rows_of(task, round, found)
    }

    /// Fetches the rows that train the public baseline, the earliest round first.
    pub(super) fn fetch_earlier_rows(
        &self,
        report: &Report,
        found: &mut Vec<Mismatch>,
    ) -> Result<Option<Vec<RowBytes>>, AuditError> {
        let mut all = Vec::with_capacity(self.baseline_rounds.len());
        for (round, cached) in &self.baseline_rounds {
            let rows = match cached {
                Some(rows) => Some(Arc::clone(rows)),
                None => self.fetch_rows_of(report.scope.task, *round, found)?,
            };
            let Some(rows) = rows else { return Ok(None) };
            all.push(rows);
        }
        Ok(Some(all))
    }

    fn fetch_rows_of(
        &self,
        task: TaskId,
        round: RoundNumber,
        found: &mut Vec<Mismatch>,
    ) -> Result<Option<RowBytes>, AuditError> {
        let limit = self.spec.holdout.disclosed_bytes_max(self.spec.data.width);
        match self.client.disclosed_rows(task, round, limit) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(ClientError::Rejected(rejection)) => {
                found.push(self.unavailable("holdout.rows", &"disclosed", &rejection));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}
