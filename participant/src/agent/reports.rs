//! After a round: reads its report, checks it against the receipt, for consistency, and against the
//! public updates, and emits this participant's statement.

use florin_protocol::{Canonical, Offer, Report, RoundNumber, UpdateEntry, check_report};

use super::{Agent, AgentError};
use crate::audit::{AuditError, RowBytes};
use crate::client::Client;
use crate::event::ParticipantEvent;
use crate::retry::retry_with_backoff;
use crate::statement::explained_statement;

impl Agent<'_, '_> {
    /// Reads the next report. The client has verified its signature and scope, now or before it was
    /// stored.
    pub(super) fn read_report(&mut self, round: RoundNumber) -> Result<(), AgentError> {
        let (client, task): (&Client, _) = (self.context.client, self.config.task);
        let report = match self.store.report(round)? {
            Some(report) => report,
            None => {
                let report = self.with_client(|| client.report(task, round))?;
                let offer = self.with_client(|| client.offer(task, round))?;
                let last = self.last_report.as_ref();
                let exposed = self.auditor.disclosed_rows();
                let found = check_report(&self.spec, &offer.body, &report.body, last, exposed);
                if let Some(first_mismatch) = found.into_iter().next() {
                    self.emit(&ParticipantEvent::ReportInconsistent { round, first_mismatch });
                }
                self.check_receipt(round, &report.body)?;
                let rows = self.check_model(&offer.body, &report.body)?;
                // A participation with noise must not depend on the values of its rows.
                if self.config.privacy.is_none() {
                    self.compare_labels(&report.body, rows)?;
                }
                // A restart reads a disputed report again, and raises its alarm again.
                match self.is_leaving {
                    true => self.store.write_disputed_report(round, &report)?,
                    false => self.store.write_report(round, &report)?,
                }
                report
            }
        };
        self.remove_spent_updates(round)?;
        self.remove_spent_residuals(&report.body)?;
        let rules = &self.spec.rounds;
        let statement = explained_statement(&report.body, self.me, rules, &self.history);
        self.history.add_round(rules.staleness, &report.body);
        match statement {
            Some(statement) => {
                let boxed = Box::new(statement.clone());
                self.statements.push(statement);
                self.emit(&ParticipantEvent::Reported { statement: boxed });
            }
            None => self.emit(&ParticipantEvent::ReportedWithoutUpdate { round }),
        }
        self.reports_read = round.0;
        self.auditor.advance(&report.body);
        self.expect_settlement(&report.body);
        self.last_report = Some(report.body);
        Ok(())
    }

    /// Recomputes the model of the next round. A model that the updates do not give is an alarm.
    /// Returns the round's disclosed rows, if they were fetched.
    fn check_model(
        &mut self,
        offer: &Offer,
        report: &Report,
    ) -> Result<Option<RowBytes>, AgentError> {
        // The public baseline trains the graph.
        if self.spec.rounds.baseline_epochs > 0 {
            self.load_graph()?;
            self.auditor.set_graph(self.graph.as_ref());
        }
        let (auditor, on_event) = (&mut self.auditor, &mut self.on_event);
        let last = self.last_report.as_ref();
        let checked = retry_with_backoff(
            self.config.backoff,
            self.shutdown,
            |error: &AuditError| on_event(&super::retrying_event(error)),
            || auditor.check_model(offer, report, last),
        )?;
        if let Some(first_mismatch) = checked.mismatches.into_iter().next() {
            let round = report.scope.round;
            self.emit(&ParticipantEvent::ModelMismatch { round, first_mismatch });
        }
        Ok(checked.disclosed_rows)
    }

    /// Checks the report against the stored receipt: a receipt without an entry of the same update
    /// at the same position contradicts the report.
    fn check_receipt(&mut self, round: RoundNumber, report: &Report) -> Result<(), AgentError> {
        let Some(receipt) = self.store.receipt(round)? else {
            return Ok(());
        };
        let body = receipt.receipt.body;
        let (update, order) = (body.update, body.commit_position);
        let mine = |entry: &&UpdateEntry| entry.sender == self.me;
        let entry = report.entries.iter().find(mine);
        let entered =
            entry.is_some_and(|entry| entry.header == update && entry.commit_position == order);
        if !entered {
            self.emit(&ParticipantEvent::ReceiptNotHonoured { round, update });
        }
        let signed = self.guard.signed_update_for(self.spec.market, self.config.task, round);
        if let Some(signed) = signed {
            debug_assert_eq!(signed.header.body.digest(), update, "receipts are checked");
        }
        Ok(())
    }
}
