//! After a round: reads its report, checks it against the receipt and for consistency, and emits
//! this participant's statement.

use florin_protocol::{Canonical, Report, RoundNumber, Statement, UpdateEntry};

use super::{Agent, AgentError};
use crate::client::Client;
use crate::event::Event;
use crate::report_check::recheck;

impl Agent<'_, '_> {
    /// Reads the next report. The client has verified its signature and scope, now or before it was
    /// stored.
    pub(super) fn read_report(&mut self, round: RoundNumber) -> Result<(), AgentError> {
        let (client, task): (&Client, _) = (self.parts.client, self.config.task);
        let report = match self.store.report(round)? {
            Some(report) => report,
            None => {
                let report = self.with_client(|| client.report(task, round))?;
                let offer = self.with_client(|| client.offer(task, round))?;
                let last = self.last.as_ref();
                let found = recheck(&self.spec, &offer.body, &report.body, last, &self.exposed);
                if let Some(first) = found.into_iter().next() {
                    self.tell(&Event::ReportWrong { round, first });
                }
                self.hold_to_receipt(round, &report.body)?;
                self.store.keep_report(round, &report)?;
                report
            }
        };
        self.store.forget_update(round)?;
        self.forget_carried(&report.body)?;
        match Statement::from_report(&report.body, self.me) {
            Some(statement) => {
                let told = Box::new(statement.clone());
                self.statements.push(statement);
                self.tell(&Event::Reported { statement: told });
            }
            None => self.tell(&Event::ReportedWithout { round }),
        }
        self.read = round.0;
        self.exposed.extend(&report.body.holdout.rows);
        self.last = Some(report.body);
        Ok(())
    }

    /// Checks the report against the stored receipt: a receipt without an entry of the same update
    /// at the same position contradicts the report.
    fn hold_to_receipt(&mut self, round: RoundNumber, report: &Report) -> Result<(), AgentError> {
        let Some(receipt) = self.store.receipt(round)? else {
            return Ok(());
        };
        let (update, order) = (receipt.body.update, receipt.body.commit_position);
        let mine = |entry: &&UpdateEntry| entry.sender == self.me;
        let entry = report.entries.iter().find(mine);
        let entered =
            entry.is_some_and(|entry| entry.header == update && entry.commit_position == order);
        if !entered {
            self.tell(&Event::ReceiptIgnored { round, update });
        }
        let signed = self.guard.update_of(self.spec.market, self.config.task, round);
        if let Some(signed) = signed {
            debug_assert_eq!(signed.header.body.digest(), update, "receipts are checked");
        }
        Ok(())
    }
}
