//! Fetches the disclosed holdout rows of a round, and those of earlier rounds.

use florin_protocol::limits::BASELINE_ROUNDS_MAX;
use florin_protocol::{Report, RoundNumber, RoundScope, TaskId};
use florin_work::Mismatch;

use super::{AuditError, Auditor};
use crate::client::ClientError;
use crate::report_check::mismatch;

impl Auditor<'_> {
    /// Fetches the disclosed holdout rows of the round; empty if none were drawn.
    pub(super) fn fetch_disclosed_rows(
        &self,
        report: &Report,
        found: &mut Vec<Mismatch>,
    ) -> Result<Option<Vec<u8>>, AuditError> {
        if !self.spec.has_quorum(report.entries.len()) {
            return Ok(Some(Vec::new()));
        }
        let RoundScope { task, round, .. } = report.scope;
        self.fetch_rows_of(task, round, found)
    }

    /// Fetches the rows that train the public baseline, the earliest round first.
    pub(super) fn fetch_earlier_rows(
        &self,
        report: &Report,
        found: &mut Vec<Mismatch>,
    ) -> Result<Option<Vec<Vec<u8>>>, AuditError> {
        if self.spec.rounds.baseline_epochs == 0 {
            return Ok(Some(Vec::new()));
        }
        let first = self.rounds_with_rows.len().saturating_sub(BASELINE_ROUNDS_MAX);
        let mut all = Vec::new();
        for round in self.rounds_with_rows.iter().skip(first) {
            let known = self.rows_cache.get(round).cloned();
            let bytes = match known {
                Some(bytes) => Some(bytes),
                None => self.fetch_rows_of(report.scope.task, *round, found)?,
            };
            match bytes {
                Some(bytes) => all.push(bytes),
                None => return Ok(None),
            }
        }
        Ok(Some(all))
    }

    fn fetch_rows_of(
        &self,
        task: TaskId,
        round: RoundNumber,
        found: &mut Vec<Mismatch>,
    ) -> Result<Option<Vec<u8>>, AuditError> {
        let limit = self.spec.holdout.disclosed_bytes_max(self.spec.data.width);
        match self.client.disclosed_rows(task, round, limit) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(ClientError::Rejected(rejection)) => {
                found.push(mismatch("holdout.rows", &"disclosed", &rejection));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}
