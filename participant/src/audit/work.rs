//! Checks paid work: the provider of each record, its result, and that it is paid once.

use florin_ledger::SettlementStatus;
use florin_protocol::{
    Address, Canonical, InfrastructurePayment, Mismatch, Report, Role, Signed, WorkRecord,
    WorkResult,
};
use florin_work::compare_results;

use super::{AuditError, Auditor};

impl Auditor<'_> {
    /// Checks that every paid record exists, belongs to the paid provider, has the report's result
    /// and was never paid before, and that its provider had pledged a stake.
    pub(super) fn check_paid_work(
        &mut self,
        report: &Report,
        records: &[Signed<WorkRecord>],
        found: &mut Vec<Mismatch>,
    ) -> Result<(), AuditError> {
        if report.infrastructure.len() > 1 {
            let paid = format!("{} records", report.infrastructure.len());
            found.push(Mismatch::new("infrastructure", &paid, &"at most 1 may be paid"));
        }
        for (i, paid) in report.infrastructure.iter().enumerate() {
            let line = |field: &str| format!("infrastructure[{i}].{field}");
            let round = report.scope.round;
            let first = *self.paid.entry(paid.record).or_insert(round);
            if first != round {
                let before = format!("already paid in round {first}");
                found.push(Mismatch::new(line("record"), &paid.record, &before));
            }
            self.check_pledge(report, paid.provider, line("provider"), found)?;
            match records.iter().find(|record| record.body.digest() == paid.record) {
                Some(record) => {
                    self.check_signature(
                        record,
                        paid.provider,
                        Role::Provider,
                        line("record"),
                        found,
                    )?;
                    compare_record(report, paid, &record.body, &line, found);
                }
                None => {
                    let none = "no such record is published";
                    found.push(self.unavailable(line("record"), &paid.record, &none));
                }
            }
        }
        Ok(())
    }

    /// Records the payments of a round that is not audited: a later round must not pay them again.
    pub(crate) fn record_payments(&mut self, report: &Report) {
        for paid in &report.infrastructure {
            self.paid.entry(paid.record).or_insert(report.scope.round);
        }
    }

    /// Checks that the provider pledged its stake. A pledge lasts at least until the settlement
    /// that pays for it; after that it may be withdrawn, and the ledger has no record of past
    /// pledges.
    fn check_pledge(
        &mut self,
        report: &Report,
        provider: Address,
        line: String,
        found: &mut Vec<Mismatch>,
    ) -> Result<(), AuditError> {
        let (task, round) = (report.scope.task, report.scope.round);
        let Some(ledger) = self.ledger else {
            return Ok(());
        };
        if ledger.is_pledged(task, provider)? {
            return Ok(());
        }
        let payout = Report::settlement_id(task, round);
        if ledger.settlement_status(task, payout)? == SettlementStatus::Final {
            let unverifiable = format!(
                "round {round}: provider {provider} has no stake pledged now; whether it had one \
                 cannot be verified after the settlement is final"
            );
            if !self.unverifiable.contains(&unverifiable) {
                self.unverifiable.push(unverifiable);
            }
        } else {
            found.push(Mismatch::new(line, &provider, &"has no stake pledged to this task"));
        }
        Ok(())
    }
}

/// Compares a work record with the result that the report states and pays for.
fn compare_record(
    report: &Report,
    paid: &InfrastructurePayment,
    record: &WorkRecord,
    line: &dyn Fn(&str) -> String,
    found: &mut Vec<Mismatch>,
) {
    if record.provider != paid.provider {
        found.push(Mismatch::new(line("provider"), &paid.provider, &record.provider));
    }
    if record.market != report.scope.market {
        let of = |market: florin_protocol::MarketId| format!("{}/{}", market.chain, market.genesis);
        let (ours, theirs) = (of(report.scope.market), of(record.market));
        found.push(Mismatch::new(line("record.market"), &ours, &theirs));
    }
    let (Some(valuation), Some(metrics)) = (report.valuation.clone(), report.metrics) else {
        found.push(Mismatch::new(line("record"), &"paid", &"the round has no result"));
        return;
    };
    if paid.units != valuation.units {
        found.push(Mismatch::new(line("units"), &paid.units, &valuation.units));
    }
    let reported =
        WorkResult { valuation, baseline: report.baseline, metrics, model: report.model };
    if let Err(differs) = compare_results(&reported, &record.result) {
        let line = line(&format!("record.{}", differs.line));
        found.push(Mismatch::new(line, &differs.recomputed, &differs.stated));
    }
}
