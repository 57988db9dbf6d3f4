//! Compares the reports that this participant has read with the settlements on the ledger.
//!
//! A report is signed, but a coordinator could sign another one for each reader. The ledger holds
//! one settlement for each round, with the digest of its report, and the next round begins only
//! after it is posted. So the comparison runs before each training: a report that only this
//! participant got is discovered before its model receives an update.

use florin_ledger::{Ledger, LedgerError, Settlement, SettlementStatus, TaskState};
use florin_protocol::{Canonical, Mismatch, Report};

use super::{Agent, AgentError};
use crate::audit::settlements::{compare_fields, compare_final_totals};
use crate::event::ParticipantEvent;
use crate::retry::{Transient, resume_transactions, retry_with_backoff};

/// Why the ledger does not confirm the reports.
#[derive(Debug, thiserror::Error)]
enum Unconfirmed {
    /// The ledger holds something else.
    #[error("the ledger differs from the reports at {}", .0.line)]
    Differs(Mismatch),
    /// The last settlement is not on the ledger yet: this node may be behind.
    #[error("{} is not on the ledger yet", .0.line)]
    Missing(Mismatch),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl Transient for Unconfirmed {
    fn is_transient(&self) -> bool {
        match self {
            Self::Differs(_) => false,
            Self::Missing(_) => true,
            Self::Ledger(error) => error.is_transient(),
        }
    }
}

impl Agent<'_, '_> {
    /// Records the settlement that a report implies.
    pub(super) fn expect_settlement(&mut self, report: &Report) {
        if report.has_settlement() {
            self.settlements.push(Settlement::from_report(report, report.digest()));
        }
    }

    /// Whether the ledger holds the settlements of the reports that were read. If it does not, and
    /// there is no newer report, emits an alarm.
    pub(super) fn confirm_reports(&mut self) -> Result<bool, AgentError> {
        let (ledger, wallet) = (self.context.ledger, self.context.wallet);
        let (on_event, settlements) = (&mut self.on_event, &self.settlements);
        let on_retry = |error: &Unconfirmed| {
            on_event(&super::retrying_event(error));
            resume_transactions(ledger, wallet);
        };
        let compared = retry_with_backoff(self.config.backoff, self.shutdown, on_retry, || {
            compare_with_ledger(ledger, settlements)
        });
        let first_mismatch = match compared {
            Ok(()) => return Ok(true),
            Err(Unconfirmed::Ledger(error)) => return Err(error.into()),
            Err(Unconfirmed::Differs(found) | Unconfirmed::Missing(found)) => found,
        };
        let is_outdated = self.fetch_view(None)?.reported > self.reports_read;
        if !is_outdated && !self.shutdown.is_requested() {
            self.emit(&ParticipantEvent::LedgerMismatch { first_mismatch });
        }
        Ok(false)
    }
}

/// Compares the ledger with the settlements that the reports imply, oldest first.
fn compare_with_ledger(ledger: &dyn Ledger, reported: &[Settlement]) -> Result<(), Unconfirmed> {
    let Some(newest) = reported.last() else { return Ok(()) };
    let task = newest.task;
    let missing = |held: &str| {
        let line = format!("ledger.settlements[{}]", newest.round);
        Mismatch::new(line, &"settled", &held)
    };
    // Read before the state, which is then at least as new.
    let status = ledger.settlement_status(task, newest.payout)?;
    let Some(state) = ledger.task(task)? else {
        return Err(Unconfirmed::Missing(missing("no such task")));
    };
    let is_pending = state.pending.iter().any(|posted| posted.settlement.round == newest.round);
    if !is_pending && status != SettlementStatus::Final {
        return Err(match state.closed {
            true => Unconfirmed::Differs(missing("nothing: the task was closed without it")),
            false => Unconfirmed::Missing(missing("nothing")),
        });
    }
    match first_difference(&state, reported) {
        Some(differs) => Err(Unconfirmed::Differs(differs)),
        None => Ok(()),
    }
}

/// The first difference of the pending settlements, then of the final totals.
fn first_difference(state: &TaskState, reported: &[Settlement]) -> Option<Mismatch> {
    let mut found = Vec::new();
    for posted in state.pending.iter().map(|posted| &posted.settlement) {
        let ours = reported.iter().find(|ours| ours.round == posted.round);
        found.extend(ours.map(|ours| compare_fields(posted, ours)).unwrap_or_default());
    }
    let first_pending = state.pending.first().map(|posted| posted.settlement.round);
    let is_final = |ours: &&Settlement| first_pending.is_none_or(|first| ours.round < first);
    compare_final_totals(state, reported.iter().rfind(is_final), &mut found);
    found.into_iter().next()
}
