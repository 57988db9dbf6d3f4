//! The auditor: sees what goes over the network and what the ledger does, keeps its own books of it, and believes
//! nobody. After every event it says what cannot be.

mod books;
mod pay;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use florin_engine::State;
use florin_protocol::{
    Address, Amount, Canonical, Digest, Offer, Receipt, Report, Round, RoundOutcome, TaskId, Tick,
    UpdateHeader, UpdateId,
};

use super::ledger::Bank;
use super::message::Reply;
use super::network::Node;
use super::task::{Cast, account_of};
use books::Books;
use pay::Ledgerless;

/// Something that must never be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What should hold.
    pub rule: &'static str,
    /// What was seen.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}

type Seat = (u32, Address);

/// Whether the coordinator has a receipt of a round, whose, and for which update.
pub(super) type HasReceipt<'a> = dyn Fn(Round, Address, UpdateId) -> bool + 'a;

/// The auditor.
#[derive(Debug)]
pub(super) struct Auditor {
    cast: Arc<Cast>,
    task: TaskId,
    violations: Vec<Violation>,
    offers: BTreeMap<u32, (Digest, Offer)>,
    /// When each update first came to the coordinator, by the coordinator's clock.
    arrived: BTreeMap<(Seat, UpdateId), Tick>,
    /// Promises that the coordinator acknowledged, and by whom an update of which commitment is promised.
    promised: BTreeSet<Seat>,
    enrolled: BTreeSet<Address>,
    receipts: BTreeMap<Seat, Receipt>,
    reports: BTreeMap<u32, (Digest, Report)>,
    pay: Ledgerless,
    totals: BTreeMap<u32, pay::Totals>,
    books: Books,
    /// Transactions of the ledger that are booked, and settlements that were held against their reports.
    booked: usize,
    settled: BTreeSet<u32>,
    /// Of the ledger that the books were held against.
    version: u64,
}

impl Auditor {
    /// One that has seen nothing but what everybody has.
    #[must_use]
    pub(super) fn new(cast: Arc<Cast>, money: &[(Address, Amount)]) -> Self {
        let task = cast.spec.id();
        Self {
            task,
            books: Books::new(task, money),
            cast,
            violations: Vec::new(),
            offers: BTreeMap::new(),
            arrived: BTreeMap::new(),
            promised: BTreeSet::new(),
            enrolled: BTreeSet::new(),
            receipts: BTreeMap::new(),
            reports: BTreeMap::new(),
            pay: Ledgerless::default(),
            totals: BTreeMap::new(),
            booked: 0,
            settled: BTreeSet::new(),
            version: u64::MAX,
        }
    }

    /// What was found so far.
    #[must_use]
    pub(super) fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Rounds with a report.
    #[must_use]
    pub(super) fn rounds(&self) -> u32 {
        u32::try_from(self.reports.len()).unwrap_or(u32::MAX)
    }

    /// Rounds that were settled.
    #[must_use]
    pub(super) fn settlements(&self) -> u32 {
        u32::try_from(self.settled.len()).unwrap_or(u32::MAX)
    }

    /// Receipts that were given.
    #[must_use]
    pub(super) fn receipts(&self) -> u32 {
        u32::try_from(self.receipts.len()).unwrap_or(u32::MAX)
    }

    /// Something is wrong.
    pub(super) fn found(&mut self, rule: &'static str, what: impl Into<String>) {
        self.violations.push(Violation { rule, what: what.into() });
    }

    fn check(&mut self, rule: &'static str, checked: Result<(), String>) {
        if let Err(what) = checked {
            self.found(rule, what);
        }
    }

    /// An update came to the coordinator.
    pub(super) fn upload_arrived(&mut self, header: &UpdateHeader, at: Tick) {
        let seat = (header.scope.round.0, header.sender);
        let first = self.arrived.entry((seat, header.digest())).or_insert(at);
        *first = (*first).min(at);
    }

    /// The coordinator answered somebody: whatever it said holds from now on.
    pub(super) fn replied(&mut self, to: Node, ask: &super::message::Ask, reply: &Reply) {
        use super::message::Ask;
        match (ask, reply) {
            (Ask::Enrol, Reply::Done) => {
                self.enrolled.insert(account_of(to));
            }
            (Ask::Commit(commit), Reply::Done) => {
                self.promised.insert((commit.scope.round.0, commit.sender));
            }
            (_, Reply::View(view)) => {
                if let Some(offer) = &view.offer {
                    self.offer(&offer.body);
                }
            }
            (_, Reply::Receipt(receipt)) => self.receipt(receipt),
            (_, Reply::Report(report, offer)) => {
                self.offer(offer);
                self.report(report);
            }
            _ => {}
        }
    }

    fn offer(&mut self, offer: &Offer) {
        let (round, digest) = (offer.scope.round.0, offer.digest());
        match self.offers.get(&round) {
            Some((known, _)) if *known != digest => {
                self.found("a round has one offer", format!("round {round} has two"));
            }
            Some(_) => {}
            None => {
                self.offers.insert(round, (digest, offer.clone()));
            }
        }
    }

    fn receipt(&mut self, receipt: &Receipt) {
        let seat = (receipt.scope.round.0, receipt.sender);
        match self.receipts.get(&seat) {
            Some(known) if known != receipt => {
                let what = format!("round {} of {}: another receipt", seat.0, seat.1);
                self.found("every receipt is honoured", what);
            }
            Some(_) => {}
            None => {
                self.receipts.insert(seat, receipt.clone());
            }
        }
    }

    fn report(&mut self, report: &Report) {
        let (round, digest) = (report.scope.round.0, report.digest());
        match self.reports.get(&round) {
            Some((known, _)) if *known != digest => {
                self.found("a round has one report", format!("round {round} has two"));
            }
            Some(_) => {}
            None => {
                self.reports.insert(round, (digest, report.clone()));
                self.take_reports();
            }
        }
    }

    /// Takes the reports in their order.
    fn take_reports(&mut self) {
        while let Some((_, report)) = self.reports.get(&(self.pay.rounds + 1)) {
            let report = report.clone();
            let round = report.scope.round.0;
            match self.pay.take(&self.cast.spec, &report) {
                Ok(totals) => {
                    self.totals.insert(round, totals);
                }
                Err(what) => {
                    self.found("pay is what the scores come to", format!("round {round}: {what}"));
                    return;
                }
            }
            let checked = self.entries(&report);
            self.check("no payout without an accepted update", checked);
            let checked = self.honoured(&report);
            self.check("every receipt is honoured", checked);
        }
    }

    /// Whoever is paid or debited sent an update that came in time, and is entered with it.
    fn entries(&self, report: &Report) -> Result<(), String> {
        let round = report.scope.round.0;
        let offer = self.offers.get(&round).map(|(_, offer)| offer);
        let offer = offer.ok_or_else(|| format!("round {round} has no offer"))?;
        for entry in &report.entries {
            let who = entry.sender;
            let came = self.arrived.get(&((round, who), entry.header));
            let came = came.ok_or_else(|| format!("{who} never sent what round {round} enters"))?;
            if *came > offer.reveal_by {
                let by = offer.reveal_by;
                return Err(format!("round {round} takes {who} at {came}, due by {by}"));
            }
            if !offer.cohort.contains(&who) {
                return Err(format!("{who} was not asked in round {round}"));
            }
        }
        let entered: BTreeSet<Address> = report.entries.iter().map(|entry| entry.sender).collect();
        if entered.len() != report.entries.len() {
            return Err(format!("round {round} enters somebody twice"));
        }
        match report.lines.iter().find(|line| !entered.contains(&line.account)) {
            Some(line) => Err(format!("round {round} pays {} for no update", line.account)),
            None => Ok(()),
        }
    }

    /// Who was told that its promise or update was taken is in the report.
    fn honoured(&self, report: &Report) -> Result<(), String> {
        let round = report.scope.round.0;
        for ((_, who), receipt) in self.receipts.iter().filter(|((of, _), _)| *of == round) {
            let entry = report.entries.iter().find(|entry| entry.sender == *who);
            let is_there = entry.is_some_and(|entry| {
                entry.header == receipt.update && entry.order == receipt.order
            });
            if !is_there {
                return Err(format!("round {round} does not enter {who}, who has a receipt"));
            }
        }
        for (_, who) in self.promised.iter().filter(|(of, _)| *of == round) {
            if !report.commits.iter().any(|(sender, _)| sender == who) {
                return Err(format!("round {round} forgot the promise of {who}"));
            }
        }
        Ok(())
    }

    /// A participant read a report.
    pub(super) fn member_read(&mut self, report: &Report) {
        self.report(report);
    }

    /// The coordinator was started again: what it acknowledged must be there. `has` says whether it still has a receipt
    /// of a round, whose, and for which update: such a round may be kept as a blob.
    pub(super) fn restarted(&mut self, state: &State, has: &HasReceipt<'_>) {
        let Some(task) = state.tasks.get(&self.task) else {
            if !self.enrolled.is_empty() {
                self.found("what was acknowledged survives", "the task is forgotten");
            }
            return;
        };
        let lost = self.enrolled.iter().find(|who| !task.enrolled.contains_key(*who));
        if let Some(who) = lost.copied() {
            self.found("what was acknowledged survives", format!("{who} is not enrolled"));
        }
        let lost = self.receipts.iter().find(|((round, who), receipt)| {
            let running = task.running().filter(|run| run.offer.scope.round.0 == *round);
            let running = running.and_then(|run| run.updates.get(who)).map(|taken| taken.id);
            let past = task.past(Round(*round));
            let mut past = past.into_iter().flat_map(|past| &past.updates);
            let past = past.find(|taken| taken.header.body.sender == *who).map(|taken| taken.id);
            // A round that was dropped because the ledger closed the task has neither.
            let is_there = || has(Round(*round), *who, receipt.update);
            running.or(past) != Some(receipt.update) && !task.is_over() && !is_there()
        });
        if let Some(((round, who), _)) = lost {
            let what = format!("the update of {who} in round {round} is gone");
            self.found("what was acknowledged survives", what);
        }
    }

    /// Reads what the ledger did since, and holds the two books against each other.
    pub(super) fn ledger(&mut self, bank: &Bank) {
        for done in bank.log.iter().skip(self.booked) {
            if let Err(what) = self.books.book(done) {
                self.violations.push(Violation { rule: "money moves by the rules", what });
            }
        }
        self.booked = bank.log.len();
        if self.version != bank.version {
            self.version = bank.version;
            let agreed = self.books.agree(bank);
            self.check("the money equation", agreed);
        }
        self.settlements_state_reports();
    }

    /// Each settlement says what its round's report came to.
    fn settlements_state_reports(&mut self) {
        let new = self.books.posted.iter().filter(|s| !self.settled.contains(&s.round.0));
        let new: Vec<_> = new.copied().collect();
        for settlement in new {
            let round = settlement.round.0;
            let Some((digest, _)) = self.reports.get(&round) else { continue };
            let Some(totals) = self.totals.get(&round) else { continue };
            let says = pay::Totals {
                data: settlement.data_total.units(),
                infrastructure: settlement.infrastructure_total.units(),
                before: settlement.previous_root,
                root: settlement.root,
            };
            let is_stated = says == *totals && settlement.report == *digest;
            self.settled.insert(round);
            if !is_stated {
                let what = format!("round {round} came to {totals:?}, its settlement to {says:?}");
                self.found("a settlement states its report", what);
            }
        }
    }

    /// Everything has healed, and everybody had time: what is not done now is never done. `all` are the rounds that the
    /// coordinator shows, with their offers.
    pub(super) fn finish(&mut self, all: &[(Report, Offer)], unfinished: &[Node]) {
        for (report, offer) in all {
            self.offer(offer);
            self.report(report);
        }
        self.settlements_state_reports();
        let complete = self.complete();
        self.check("every round completes or refunds", complete);
        let settled = self.books.are_settled();
        self.check("every escrow and bond comes back", settled);
        let claims = self.claims();
        self.check("every claim is paid once", claims);
        if let Some(node) = unfinished.first() {
            self.found("everybody is done after healing", format!("{node} is not"));
        }
    }

    /// Each round that was offered has a report, and each report that pays has its settlement; where the task ended
    /// before, whatever is missing was refunded.
    fn complete(&self) -> Result<(), String> {
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
        reports.filter(|report| report.outcome == RoundOutcome::Settled)
    }

    /// Whether somebody closed the task at its expiry, with rounds under way.
    fn is_closed_early(&self) -> bool {
        self.books.closed_at.is_some_and(|at| at > self.cast.spec.expires.0)
    }

    /// Everybody was paid and debited what the final rounds come to, no more and no less.
    fn claims(&self) -> Result<(), String> {
        let root = self.totals.values().next_back().map(|totals| totals.root).unwrap_or_default();
        if root != self.books.root {
            // Closed before its last rounds were final: what was final is claimed, and the rest is refunded.
            let early = "the task was closed, and its last rounds are not final".to_owned();
            return if self.is_closed_early() { Ok(()) } else { Err(early) };
        }
        for account in self.pay.accounts() {
            let [paid, debited] = self.pay.totals(account);
            let [was_paid, was_debited] = self.books.claimed(account);
            if paid != was_paid || debited != was_debited {
                return Err(format!(
                    "{account} is due {paid} and owes {debited}; it drew {was_paid}, {was_debited} \
                     were proven"
                ));
            }
        }
        Ok(())
    }
}
