//! The auditor (test oracle): observes the network and the ledger, keeps its own books, and checks
//! all invariants after every event.

mod money_oracle;
mod pay_oracle;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use florin_engine::EngineState;
use florin_protocol::{
    Address, Amount, Canonical, Digest, Offer, Report, RoundNumber, TaskId, Timestamp,
    UpdateHeader, UpdateId, UpdateReceipt,
};

use super::ledger::SimLedger;
use super::message::CoordinatorReply;
use super::network::ProcessId;
use super::setup::{MarketSetup, account_of};
use money_oracle::MoneyBooks;
use pay_oracle::ExpectedPay;

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The name of the invariant.
    pub invariant: &'static str,
    /// The observation.
    pub detail: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.invariant, self.detail)
    }
}

type RoundAccount = (u32, Address);

/// Whether the coordinator has a receipt for this round, sender and update.
pub(super) type HasReceipt<'a> = dyn Fn(RoundNumber, Address, UpdateId) -> bool + 'a;

/// The auditor.
#[derive(Debug)]
pub(super) struct Auditor {
    setup: Arc<MarketSetup>,
    task: TaskId,
    violations: Vec<Violation>,
    offers: BTreeMap<u32, (Digest, Offer)>,
    /// Time of the first arrival of each update at the coordinator, by the coordinator's clock.
    arrived: BTreeMap<(RoundAccount, UpdateId), Timestamp>,
    /// Commits that the coordinator acknowledged: round and sender.
    acknowledged_commits: BTreeSet<RoundAccount>,
    enrolled: BTreeSet<Address>,
    receipts: BTreeMap<RoundAccount, UpdateReceipt>,
    reports: BTreeMap<u32, (Digest, Report)>,
    pay: ExpectedPay,
    totals: BTreeMap<u32, pay_oracle::ExpectedTotals>,
    books: MoneyBooks,
    /// Number of booked ledger transactions, and rounds whose settlement was compared with its
    /// report.
    booked: usize,
    settled: BTreeSet<u32>,
    /// The version of the ledger's state that was compared with the books.
    version: u64,
}

impl Auditor {
    /// An auditor that knows the initial balances only.
    #[must_use]
    pub(super) fn new(setup: Arc<MarketSetup>, money: &[(Address, Amount)]) -> Self {
        let task = setup.spec.id();
        Self {
            task,
            books: MoneyBooks::new(task, money),
            setup,
            violations: Vec::new(),
            offers: BTreeMap::new(),
            arrived: BTreeMap::new(),
            acknowledged_commits: BTreeSet::new(),
            enrolled: BTreeSet::new(),
            receipts: BTreeMap::new(),
            reports: BTreeMap::new(),
            pay: ExpectedPay::default(),
            totals: BTreeMap::new(),
            booked: 0,
            settled: BTreeSet::new(),
            version: u64::MAX,
        }
    }

    /// The violations so far.
    #[must_use]
    pub(super) fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Number of rounds with a report.
    #[must_use]
    pub(super) fn rounds(&self) -> u32 {
        u32::try_from(self.reports.len()).unwrap_or(u32::MAX)
    }

    /// Number of settled rounds.
    #[must_use]
    pub(super) fn settlements(&self) -> u32 {
        u32::try_from(self.settled.len()).unwrap_or(u32::MAX)
    }

    /// Number of issued receipts.
    #[must_use]
    pub(super) fn receipts(&self) -> u32 {
        u32::try_from(self.receipts.len()).unwrap_or(u32::MAX)
    }

    /// Records a violation.
    pub(super) fn report_violation(&mut self, rule: &'static str, what: impl Into<String>) {
        self.violations.push(Violation { invariant: rule, detail: what.into() });
    }

    fn check(&mut self, rule: &'static str, checked: Result<(), String>) {
        if let Err(what) = checked {
            self.report_violation(rule, what);
        }
    }

    /// An update arrives at the coordinator.
    pub(super) fn upload_arrived(&mut self, header: &UpdateHeader, at: Timestamp) {
        let seat = (header.scope.round.0, header.sender);
        let first = self.arrived.entry((seat, header.digest())).or_insert(at);
        *first = (*first).min(at);
    }

    /// The coordinator sent a response: it must remain true from now on.
    pub(super) fn observe_reply(
        &mut self,
        to: ProcessId,
        ask: &super::message::CoordinatorRequest,
        reply: &CoordinatorReply,
    ) {
        use super::message::CoordinatorRequest;
        match (ask, reply) {
            (CoordinatorRequest::Enrol, CoordinatorReply::Done) => {
                self.enrolled.insert(account_of(to));
            }
            (CoordinatorRequest::Commit(commit), CoordinatorReply::Done) => {
                self.acknowledged_commits.insert((commit.scope.round.0, commit.sender));
            }
            (_, CoordinatorReply::View(view)) => {
                if let Some(offer) = &view.offer {
                    self.observe_offer(&offer.body);
                }
            }
            (_, CoordinatorReply::Receipt(receipt)) => self.observe_receipt(receipt),
            (_, CoordinatorReply::Report(report, offer)) => {
                self.observe_offer(offer);
                self.observe_report(report);
            }
            _ => {}
        }
    }

    fn observe_offer(&mut self, offer: &Offer) {
        let (round, digest) = (offer.scope.round.0, offer.digest());
        match self.offers.get(&round) {
            Some((known, _)) if *known != digest => {
                self.report_violation("a round has one offer", format!("round {round} has two"));
            }
            Some(_) => {}
            None => {
                self.offers.insert(round, (digest, offer.clone()));
            }
        }
    }

    fn observe_receipt(&mut self, receipt: &UpdateReceipt) {
        let seat = (receipt.scope.round.0, receipt.sender);
        match self.receipts.get(&seat) {
            Some(known) if known != receipt => {
                let what = format!("round {} of {}: another receipt", seat.0, seat.1);
                self.report_violation("every receipt is honoured", what);
            }
            Some(_) => {}
            None => {
                self.receipts.insert(seat, receipt.clone());
            }
        }
    }

    fn observe_report(&mut self, report: &Report) {
        let (round, digest) = (report.scope.round.0, report.digest());
        match self.reports.get(&round) {
            Some((known, _)) if *known != digest => {
                self.report_violation("a round has one report", format!("round {round} has two"));
            }
            Some(_) => {}
            None => {
                self.reports.insert(round, (digest, report.clone()));
                self.process_reports();
            }
        }
    }

    /// Processes the reports in the order of the rounds.
    fn process_reports(&mut self) {
        while let Some((_, report)) = self.reports.get(&(self.pay.rounds + 1)) {
            let report = report.clone();
            let round = report.scope.round.0;
            match self.pay.process_report(&self.setup.spec, &report) {
                Ok(totals) => {
                    self.totals.insert(round, totals);
                }
                Err(what) => {
                    self.report_violation(
                        "pay follows from the scores",
                        format!("round {round}: {what}"),
                    );
                    return;
                }
            }
            let checked = self.check_entries(&report);
            self.check("no payout without an accepted update", checked);
            let checked = self.check_acknowledged(&report);
            self.check("every receipt is honoured", checked);
        }
    }

    /// Every paid or debited account sent an update in time, and the report contains it.
    fn check_entries(&self, report: &Report) -> Result<(), String> {
        let round = report.scope.round.0;
        let offer = self.offers.get(&round).map(|(_, offer)| offer);
        let offer = offer.ok_or_else(|| format!("round {round} has no offer"))?;
        for entry in &report.entries {
            let who = entry.sender;
            let came = self.arrived.get(&((round, who), entry.header));
            let came = came.ok_or_else(|| {
                format!("{who} never sent the update in the report of round {round}")
            })?;
            if *came > offer.reveal_by {
                let by = offer.reveal_by;
                return Err(format!(
                    "round {round} accepts {who} at {came} after the deadline {by}"
                ));
            }
            if !offer.cohort.contains(&who) {
                return Err(format!("{who} is not in the cohort of round {round}"));
            }
        }
        let entered: BTreeSet<Address> = report.entries.iter().map(|entry| entry.sender).collect();
        if entered.len() != report.entries.len() {
            return Err(format!("round {round} has two entries of one account"));
        }
        // Withheld pay of earlier rounds also goes to accounts without an update in the last one.
        match report.lines.iter().find(|line| !entered.contains(&line.account)) {
            Some(line) => Err(format!("round {round} pays {} without an update", line.account)),
            None => Ok(()),
        }
    }

    /// Every acknowledged commit and update is in the report.
    fn check_acknowledged(&self, report: &Report) -> Result<(), String> {
        let round = report.scope.round.0;
        for ((_, who), receipt) in self.receipts.iter().filter(|((of, _), _)| *of == round) {
            let entry = report.entries.iter().find(|entry| entry.sender == *who);
            let is_there = entry.is_some_and(|entry| {
                entry.header == receipt.update && entry.commit_position == receipt.commit_position
            });
            if !is_there {
                return Err(format!("round {round} lacks the update of {who} despite a receipt"));
            }
        }
        for (_, who) in self.acknowledged_commits.iter().filter(|(of, _)| *of == round) {
            if !report.commits.iter().any(|(sender, _)| sender == who) {
                return Err(format!("round {round} lacks the commit of {who}"));
            }
        }
        Ok(())
    }

    /// A participant read a report.
    pub(super) fn member_read(&mut self, report: &Report) {
        self.observe_report(report);
    }

    /// The coordinator restarted: everything that it acknowledged must still exist. `has` returns
    /// whether it still has a receipt for a round, sender and update; such a round can be archived
    /// as a blob.
    pub(super) fn check_restart(&mut self, state: &EngineState, has: &HasReceipt<'_>) {
        let Some(task) = state.tasks.get(&self.task) else {
            if !self.enrolled.is_empty() {
                self.report_violation("acknowledged messages survive a crash", "the task is lost");
            }
            return;
        };
        let lost = self.enrolled.iter().find(|who| !task.enrolled.contains_key(*who));
        if let Some(who) = lost.copied() {
            self.report_violation(
                "acknowledged messages survive a crash",
                format!("{who} is not enrolled"),
            );
        }
        let lost = self.receipts.iter().find(|((round, who), receipt)| {
            let running = task.running().filter(|run| run.offer.scope.round.0 == *round);
            let running = running.and_then(|run| run.updates.get(who)).map(|taken| taken.id);
            let past = task.reported_round(RoundNumber(*round));
            let mut past = past.into_iter().flat_map(|past| &past.updates);
            let past = past.find(|taken| taken.header.body.sender == *who).map(|taken| taken.id);
            // A round that was dropped because the ledger closed the task has neither.
            let is_there = || has(RoundNumber(*round), *who, receipt.update);
            running.or(past) != Some(receipt.update) && !task.is_over() && !is_there()
        });
        if let Some(((round, who), _)) = lost {
            let what = format!("the update of {who} in round {round} is lost");
            self.report_violation("acknowledged messages survive a crash", what);
        }
    }

    /// Books new ledger transactions and compares the books with the ledger.
    pub(super) fn check_ledger(&mut self, bank: &SimLedger) {
        for done in bank.log.iter().skip(self.booked) {
            if let Err(what) = self.books.book(done) {
                self.violations.push(Violation {
                    invariant: "every transfer follows the rules",
                    detail: what,
                });
            }
        }
        self.booked = bank.log.len();
        if self.version != bank.version {
            self.version = bank.version;
            let agreed = self.books.check_against(bank);
            self.check("money is conserved", agreed);
        }
        self.check_settlements();
    }

    /// Compares each new settlement with its round's report.
    fn check_settlements(&mut self) {
        let new = self.books.posted.iter().filter(|s| !self.settled.contains(&s.round.0));
        let new: Vec<_> = new.copied().collect();
        for settlement in new {
            let round = settlement.round.0;
            let Some((digest, _)) = self.reports.get(&round) else { continue };
            let Some(totals) = self.totals.get(&round) else { continue };
            let stated = pay_oracle::ExpectedTotals {
                data: settlement.data_total.units(),
                infrastructure: settlement.infrastructure_total.units(),
                before: settlement.previous_root,
                root: settlement.root,
            };
            let is_stated = stated == *totals && settlement.report == *digest;
            self.settled.insert(round);
            if !is_stated {
                let what =
                    format!("round {round} has the totals {totals:?}, its settlement {stated:?}");
                self.report_violation("a settlement matches its report", what);
            }
        }
    }

    /// Final checks after healing: unfinished work never completes. `all` are the rounds that the
    /// coordinator discloses, with their offers.
    pub(super) fn final_checks(&mut self, all: &[(Report, Offer)], unfinished: &[ProcessId]) {
        for (report, offer) in all {
            self.observe_offer(offer);
            self.observe_report(report);
        }
        self.check_settlements();
        let complete = self.check_complete();
        self.check("every round completes or is refunded", complete);
        let settled = self.books.check_settled();
        self.check("every escrow and bond is returned", settled);
        let claims = self.check_claims();
        self.check("every claim is paid once", claims);
        if let Some(node) = unfinished.first() {
            self.report_violation(
                "every process finishes after healing",
                format!("{node} is not finished"),
            );
        }
    }

    /// Every offered round has a report, and every report with pay has a settlement; if the task
    /// ended early, the missing rounds are refunded.
    fn check_complete(&self) -> Result<(), String> {
        let expired = self.books.posted.len() < self.paying().count();
        for round in self.offers.keys() {
            if !self.reports.contains_key(round) && !self.is_closed_early() {
                return Err(format!("round {round} was offered and has no report"));
            }
        }
        if expired && !self.is_closed_early() {
            return Err("a round that pays was never settled".to_owned());
        }
        let states = |posted: &florin_ledger::Settlement| self.settled.contains(&posted.round.0);
        match self.books.posted.iter().find(|posted| !states(posted)) {
            Some(posted) => Err(format!("settlement of round {} has no report", posted.round)),
            None => Ok(()),
        }
    }

    fn paying(&self) -> impl Iterator<Item = &Report> {
        let reports = self.reports.values().map(|(_, report)| report);
        reports.filter(|report| report.has_settlement())
    }

    /// Whether the task was closed at its expiry, with rounds in progress.
    fn is_closed_early(&self) -> bool {
        self.books.closed_at.is_some_and(|at| at > self.setup.spec.expires.0)
    }

    /// The claimed pay and debits of every account equal the totals of the final rounds.
    fn check_claims(&self) -> Result<(), String> {
        let root = self.totals.values().next_back().map(|totals| totals.root).unwrap_or_default();
        if root != self.books.root() {
            // The task was closed before its last rounds were final: the final ones are claimed,
            // and the rest is refunded.
            let early = "the task was closed, and its last rounds are not final".to_owned();
            return if self.is_closed_early() { Ok(()) } else { Err(early) };
        }
        for account in self.pay.accounts() {
            let [paid, debited] = self.pay.totals(account);
            let [was_paid, was_debited] = self.books.claimed(account);
            if paid != was_paid || debited != was_debited {
                return Err(format!(
                    "{account} is owed {paid} and debited {debited}, but it claimed {was_paid} and \
                     was debited {was_debited}"
                ));
            }
        }
        Ok(())
    }
}
