//! The settlements of the test coordinator, and the close of its task.

use florin_ledger::{Claim, Settlement};

use super::*;

impl FakeCoordinator {
    /// Closes the task, whose last settlement may be missing: then a window ahead.
    pub(super) fn close_on_ledger(&mut self) {
        let (coordinator, task) = (wallet(2), self.spec.id());
        if self.ledger.close(&coordinator, task).is_err() {
            self.ledger.announce_close(&coordinator, task).unwrap();
            while self.ledger.close(&coordinator, task).is_err() {}
        }
    }

    pub(super) fn post_to_ledger(&self) {
        let report = &self.closed_rounds.last().unwrap().report;
        if !report.has_settlement() || self.has_fault(Fault::NeverPosted) {
            return;
        }
        let mut before = self.closed_rounds.iter().rev().skip(1).map(|past| &past.report);
        let before = before.find(|report| report.has_settlement());
        let previous_root = before.map_or(Digest::default(), |report| report.root);
        let mut settlement =
            Settlement { previous_root, ..Settlement::from_report(report, report.digest()) };
        if self.has_fault(Fault::OtherReport) {
            settlement.report = Digest([1; 32]);
        }
        if self.has_fault(Fault::OtherTotals) {
            settlement.root = Digest([1; 32]);
        }
        self.ledger.post(&wallet(2), &settlement).unwrap();
        if self.has_fault(Fault::NoReport) {
            let round = RoundNumber(settlement.round.0 + 1);
            let payout = Report::settlement_id(self.spec.id(), round);
            let previous_root = settlement.root;
            let more = Settlement { round, payout, previous_root, ..settlement };
            self.ledger.post(&wallet(2), &more).unwrap();
        }
        if self.settles_immediately() {
            while self.ledger.finalize(&wallet(2), self.spec.id()).unwrap() == 0 {}
            self.prove_debits(report);
        }
    }

    /// Proves the round's debits to the ledger, which takes them from the bonds.
    fn prove_debits(&self, report: &Report) {
        let tree = claim_tree(&report.account_totals).unwrap();
        for line in report.lines.iter().filter(|line| !line.debit.is_zero()) {
            let (task, account) = (self.spec.id(), line.account);
            let totals = report.account_totals[&account].claim_totals().unwrap();
            let proof = tree.proof(account, totals).unwrap();
            self.ledger.claim(&wallet(2), &Claim { task, account, totals, proof }).unwrap();
        }
    }

    /// Whether a settlement is final when it is posted; otherwise none becomes final during a test.
    pub(super) fn settles_immediately(&self) -> bool {
        self.spec.budget.challenge_ms <= 1
    }
}
