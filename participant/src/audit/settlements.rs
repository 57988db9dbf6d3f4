//! Compares the ledger with the reports: every settlement on the ledger must be the one that a
//! report implies, and every settled report must have one.
//!
//! | line | mismatch |
//! |---|---|
//! | `ledger` | the task is not on the ledger |
//! | `ledger.terms` | the terms differ |
//! | `ledger.pending[ROUND]` | a settlement of a round that no report settles |
//! | `ledger.pending[ROUND].FIELD` | a settlement that differs from its report |
//! | `ledger.settlements[ROUND]` | a settled report without a settlement |
//! | `ledger.end` | the task was closed early, and withheld pay was not settled |
//! | `ledger.root`, `ledger.…_paid` | final totals that differ from the last final report's |

use std::time::Duration;

use florin_ledger::{Ledger, LedgerError, Settlement, SettlementStatus, TaskState, Terms};
use florin_protocol::{Amount, Canonical, Digest, Mismatch, Report, TaskSpec, Timestamp, end_task};

use super::AuditError;
use crate::client::Client;

/// Maximum number of reads of the ledger while the task is running.
const READS_MAX: u32 = 12;
/// Time between two reads.
const READ_INTERVAL: Duration = Duration::from_millis(250);

/// Compares the ledger with the reports. Reports that appear meanwhile are added to `reports`. A
/// report is published before its settlement is posted, so a settlement without a report after a
/// later read never had one.
pub(super) fn audit(
    client: &Client,
    ledger: &dyn Ledger,
    spec: &TaskSpec,
    reports: &mut Vec<Report>,
) -> Result<Vec<Mismatch>, AuditError> {
    let task = spec.id();
    for read in 1.. {
        let books = LedgerSnapshot::read(ledger, spec, reports)?;
        let known = reports.len();
        let view = client.task(task)?;
        while let Some(next) = next_round(reports).filter(|next| next.0 <= view.reported) {
            reports.push(client.report(task, next)?.body);
        }
        let is_still =
            known == reports.len() && books.is_consistent && !books.awaits_settlement(reports);
        if is_still || read >= READS_MAX {
            return Ok(books.mismatches(spec, reports));
        }
        std::thread::sleep(READ_INTERVAL);
    }
    Ok(Vec::new())
}

fn next_round(reports: &[Report]) -> Option<florin_protocol::RoundNumber> {
    u32::try_from(reports.len()).ok()?.checked_add(1).map(florin_protocol::RoundNumber)
}

/// A snapshot of the task on the ledger.
struct LedgerSnapshot {
    state: Option<TaskState>,
    /// Statuses of the reports' settlements, in the order of the reports.
    statuses: Vec<SettlementStatus>,
    /// Whether the ledger did not change during the read.
    is_consistent: bool,
}

impl LedgerSnapshot {
    fn read(ledger: &dyn Ledger, spec: &TaskSpec, reports: &[Report]) -> Result<Self, LedgerError> {
        let task = spec.id();
        let state = ledger.task(task)?;
        let statuses = reports
            .iter()
            .map(|report| {
                ledger.settlement_status(task, Report::settlement_id(task, report.scope.round))
            })
            .collect::<Result<_, _>>()?;
        let is_steady = ledger.task(task)? == state;
        Ok(Self { state, statuses, is_consistent: is_steady })
    }

    /// Whether the last report's settlement may not have been posted yet.
    fn awaits_settlement(&self, reports: &[Report]) -> bool {
        let open = self.state.as_ref().is_some_and(|state| !state.closed);
        let unknown = self.statuses.last() == Some(&SettlementStatus::Unknown);
        open && unknown && reports.last().is_some_and(Report::has_settlement)
    }

    /// A closed task whose settlements are all final, and that did not pay what was withheld.
    fn unsettled_end(
        &self,
        spec: &TaskSpec,
        state: &TaskState,
        reports: &[Report],
    ) -> Option<Mismatch> {
        let mut settled = reports.iter().zip(&self.statuses).filter(|(r, _)| r.has_settlement());
        if !state.closed || settled.any(|(_, status)| *status != SettlementStatus::Final) {
            return None;
        }
        let unpaid = unpaid_at_the_end(spec, reports.last()?)?;
        let paid = format!("{} FLN that were withheld", unpaid.short());
        Some(Mismatch::new("ledger.end", &"closed without them", &paid))
    }

    fn mismatches(&self, spec: &TaskSpec, reports: &[Report]) -> Vec<Mismatch> {
        let Some(state) = &self.state else {
            return vec![Mismatch::new("ledger", &"the reports settle this task", &"no such task")];
        };
        let mut found = Vec::new();
        if state.terms != Terms::from_spec(spec) {
            let (ours, theirs) =
                (format!("{:?}", Terms::from_spec(spec)), format!("{:?}", state.terms));
            found.push(Mismatch::new("ledger.terms", &ours, &theirs));
        }
        for pending in &state.pending {
            found.extend(compare_settlement(&pending.settlement, reports));
        }
        let is_final = |status: &SettlementStatus| *status == SettlementStatus::Final;
        let last_final = self.statuses.iter().rposition(is_final);
        let later = last_final.map_or(0, |last| last + 1);
        for (report, status) in reports.iter().zip(&self.statuses).skip(later) {
            if *status == SettlementStatus::Unknown && report.has_settlement() {
                let line = format!("ledger.settlements[{}]", report.scope.round);
                let held = match state.closed {
                    false => "its settlement is not on the ledger",
                    true => "the task was closed without its settlement: the round is not paid",
                };
                found.push(Mismatch::new(line, &"settled", &held));
            }
        }
        found.extend(self.unsettled_end(spec, state, reports));
        let last_final = last_final.and_then(|last| reports.get(last));
        let last_final = last_final.map(|report| settlement_from_report(report, None));
        compare_final_totals(state, last_final.as_ref(), &mut found);
        found
    }
}

/// Pay that was withheld, in a task that was closed before its last round.
fn unpaid_at_the_end(spec: &TaskSpec, last: &Report) -> Option<Amount> {
    if last.scope.round.0 >= spec.rounds.count || last.ends_task() {
        return None;
    }
    // The times of an offer decide no amount.
    let (_, end) = end_task(spec, last, Timestamp(0)).ok()?;
    end.has_settlement().then(|| end.data_paid().ok()).flatten()
}

/// Compares the final totals with those of the last final settlement that a report implies.
pub(crate) fn compare_final_totals(
    state: &TaskState,
    last: Option<&Settlement>,
    found: &mut Vec<Mismatch>,
) {
    let (root, data, infrastructure) = last.map_or_else(
        || (Digest::default(), Amount::ZERO, Amount::ZERO),
        |ours| (ours.root, ours.data_total, ours.infrastructure_total),
    );
    let (data_paid, infrastructure_paid) = (state.data_paid, state.infrastructure_paid);
    let table = [
        ("root", root.to_string(), state.root.to_string()),
        ("data_paid", data.to_string(), data_paid.to_string()),
        ("infrastructure_paid", infrastructure.to_string(), infrastructure_paid.to_string()),
    ];
    for (line, reported, held) in table.iter().filter(|(_, a, b)| a != b) {
        found.push(Mismatch::new(format!("ledger.{line}"), reported, held));
    }
}

/// Lists the fields in which a posted settlement differs from the one that its round's report
/// implies.
pub(super) fn compare_settlement(posted: &Settlement, reports: &[Report]) -> Vec<Mismatch> {
    let line = format!("ledger.pending[{}]", posted.round);
    let Some(at) = reports.iter().position(|report| report.scope.round == posted.round) else {
        let held = format!("a settlement up to {} FLN", posted.data_total);
        return vec![Mismatch::new(line, &"no report of this round", &held)];
    };
    let (before, report) = (&reports[..at], &reports[at]);
    if !report.has_settlement() {
        let held = format!("a settlement up to {} FLN", posted.data_total);
        return vec![Mismatch::new(line, &"the round was abandoned", &held)];
    }
    let ours =
        settlement_from_report(report, before.iter().rfind(|report| report.has_settlement()));
    compare_fields(posted, &ours)
}

/// Lists the fields in which a posted settlement differs from the expected one of its round.
pub(crate) fn compare_fields(posted: &Settlement, ours: &Settlement) -> Vec<Mismatch> {
    let line = format!("ledger.pending[{}]", posted.round);
    let infrastructure = (ours.infrastructure_total, posted.infrastructure_total);
    let improvement = (ours.improvement_total_nano, posted.improvement_total_nano);
    let table = [
        ("task", ours.task.to_string(), posted.task.to_string()),
        ("payout", ours.payout.to_string(), posted.payout.to_string()),
        ("report", ours.report.to_string(), posted.report.to_string()),
        ("previous_root", ours.previous_root.to_string(), posted.previous_root.to_string()),
        ("root", ours.root.to_string(), posted.root.to_string()),
        ("data_total", ours.data_total.to_string(), posted.data_total.to_string()),
        ("score_pay_total", ours.score_pay_total.to_string(), posted.score_pay_total.to_string()),
        ("infrastructure_total", infrastructure.0.to_string(), infrastructure.1.to_string()),
        ("improvement_total_nano", improvement.0.to_string(), improvement.1.to_string()),
    ];
    let wrong = table.iter().filter(|(_, reported, held)| reported != held);
    wrong.map(|(name, ours, held)| Mismatch::new(format!("{line}.{name}"), ours, held)).collect()
}

/// The settlement that a report implies, after the previous settled report.
pub(super) fn settlement_from_report(report: &Report, before: Option<&Report>) -> Settlement {
    let (task, round) = (report.scope.task, report.scope.round);
    Settlement {
        task,
        payout: Report::settlement_id(task, round),
        round,
        report: report.digest(),
        previous_root: before.map_or(Digest::default(), |report| report.root),
        root: report.root,
        data_total: report.data_total,
        score_pay_total: report.score_pay_total,
        infrastructure_total: report.infrastructure_total,
        improvement_total_nano: report.improvement_total_nano,
    }
}
