//! One watched task: which settlements are pending, which reports are audited, and what to object
//! to.

use std::time::{Duration, Instant};

use florin_learning::Engine;
use florin_ledger::{
    Ledger, LedgerError, PendingSettlement, Settlement, SettlementStatus, TaskState, Terms,
};
use florin_protocol::{
    Address, Canonical, Digest, Mismatch, Report, RoundNumber, Signed, TaskId, TaskSpec, Timestamp,
    WalletSigner,
};
use florin_work::WorkError;

use super::event::{Objection, WatchAction, WatchEvent};
use super::{FINAL_REPORTS_PER_TURN, REPORT_GRACE_MS, WatchConfig, WatchSummary, decision_ms};
use crate::arbitration::{ArbitrationError, cancel_settlement};
use crate::audit::settlements::compare_fields;
use crate::audit::{AuditError, AuditOptions, Auditor};
use crate::cancellation_record::CancellationRecord;
use crate::client::{Client, ClientError};

/// The resources that the watch of a task uses.
pub(super) struct Surroundings<'a> {
    pub(super) config: &'a WatchConfig,
    pub(super) wallet: &'a dyn WalletSigner,
    pub(super) client: &'a Client,
    pub(super) ledger: &'a dyn Ledger,
    pub(super) on_event: &'a mut dyn FnMut(&WatchEvent),
    pub(super) summary: WatchSummary,
}

/// The result of a look at the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing to do now.
    Idle,
    /// Closed, and nothing is pending.
    Over,
    /// A settlement that is final at this time waits for its audit.
    AuditDue(Timestamp),
}

/// A report that differs from its recomputation.
struct WrongReport {
    round: RoundNumber,
    first_mismatch: Mismatch,
    report: Box<Signed<Report>>,
}

/// Why a round was not audited now.
enum NotAudited {
    /// The coordinator does not state that there is a report.
    NoReport,
    /// The coordinator did not answer, or not with the data that the audit needs.
    Unavailable(String),
    /// This machine failed. It is no reason to cancel.
    Local(String),
    Ledger(LedgerError),
}

impl From<AuditError> for NotAudited {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::Ledger(error) => Self::Ledger(error),
            AuditError::Work { source: WorkError::ScratchSpace(_), .. } => {
                Self::Local(error.to_string())
            }
            error => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<ClientError> for NotAudited {
    fn from(error: ClientError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl From<LedgerError> for NotAudited {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

/// A watched task.
pub(super) struct TaskWatch<'a> {
    pub(super) task: TaskId,
    challenge_ms: u64,
    spec_terms: Terms,
    auditor: Auditor<'a>,
    /// The settlements that the reports imply, from the first pending one on.
    expected: Vec<Settlement>,
    last_report: Option<Box<Signed<Report>>>,
    wrong: Option<WrongReport>,
    /// Number of reports that the coordinator last stated.
    reported: Option<u32>,
    /// Oldest pending round, or the one after all final ones.
    first_pending: RoundNumber,
    /// The data that was unavailable at the last attempt of an audit.
    unavailable: Option<String>,
    retry_at: Option<Instant>,
    /// The settlement of the last announced objection, by round and finality.
    announced: Option<(RoundNumber, Timestamp)>,
    /// The last wrong settlement that could not be cancelled.
    given_up: Option<(RoundNumber, Timestamp)>,
}

impl<'a> TaskWatch<'a> {
    /// Watches a task from its first round on.
    pub(super) fn new(
        client: &'a Client,
        ledger: &'a dyn Ledger,
        spec: TaskSpec,
        config: &'a WatchConfig,
    ) -> Self {
        let options = AuditOptions { scratch: Some(&config.folder), ..AuditOptions::default() };
        Self {
            task: spec.id(),
            challenge_ms: spec.budget.challenge_ms,
            spec_terms: Terms::from_spec(&spec),
            auditor: Auditor::new(client, Some(ledger), spec, &options),
            expected: Vec::new(),
            last_report: None,
            wrong: None,
            reported: None,
            first_pending: RoundNumber::FIRST,
            unavailable: None,
            retry_at: None,
            announced: None,
            given_up: None,
        }
    }

    /// The challenge window in milliseconds.
    pub(super) const fn challenge_ms(&self) -> u64 {
        self.challenge_ms
    }

    /// Whether the last attempt failed and the next one has to wait.
    pub(super) fn has_to_wait(&self) -> bool {
        self.retry_at.is_some_and(|at| Instant::now() < at)
    }

    /// Releases the cached blobs.
    pub(super) fn release_blobs(&mut self) {
        self.auditor.release_blobs();
    }

    /// Reads the ledger, and cancels the first settlement that must not become final.
    pub(super) fn look(
        &mut self,
        now: Timestamp,
        around: &mut Surroundings<'_>,
    ) -> Result<Look, LedgerError> {
        let Some(state) = around.ledger.task(self.task)? else { return Ok(Look::Idle) };
        let Some(first) = state.pending.first() else {
            return Ok(if state.closed { Look::Over } else { Look::Idle });
        };
        self.first_pending = first.settlement.round;
        self.expected.retain(|settlement| settlement.round >= first.settlement.round);
        for (at, pending) in state.pending.iter().enumerate() {
            if self.given_up >= Some((pending.settlement.round, pending.final_at)) {
                continue;
            }
            let Some(objection) = self.objection(&state, pending, now) else { continue };
            if now > pending.final_at {
                self.give_up(pending, "its challenge window is over", around);
                continue;
            }
            let action = decide(around.config, &objection);
            self.announce(pending, &objection, action, around);
            if action == WatchAction::Cancel {
                let falling = state.pending.len().saturating_sub(at);
                self.cancel(pending, falling, &objection, around)?;
                return Ok(Look::Idle);
            }
            break;
        }
        let waiting = |pending: &&PendingSettlement| pending.settlement.round > self.last_read();
        let due = state.pending.iter().find(waiting).filter(|_| self.wrong.is_none());
        Ok(due.map_or(Look::Idle, |pending| Look::AuditDue(pending.final_at)))
    }

    /// The last round whose report is audited or needs no audit.
    fn last_read(&self) -> RoundNumber {
        self.last_report.as_ref().map_or(RoundNumber(0), |report| report.body.scope.round)
    }

    /// Why a pending settlement must not become final, as far as it is known now.
    fn objection(
        &self,
        state: &TaskState,
        pending: &PendingSettlement,
        now: Timestamp,
    ) -> Option<Objection> {
        let posted = &pending.settlement;
        if state.terms != self.spec_terms {
            let (ours, theirs) = (format!("{:?}", self.spec_terms), format!("{:?}", state.terms));
            let first_mismatch = Mismatch::new("ledger.terms", &ours, &theirs);
            return Some(Objection::SettlementWrong { first_mismatch });
        }
        if let Some(wrong) = self.wrong.as_ref().filter(|wrong| posted.round >= wrong.round) {
            let (report_round, first_mismatch) = (wrong.round, wrong.first_mismatch.clone());
            return Some(Objection::ReportWrong { report_round, first_mismatch });
        }
        if posted.round <= self.last_read() {
            let first_mismatch = self.first_difference(posted)?;
            return Some(Objection::SettlementWrong { first_mismatch });
        }
        let left = pending.final_at.ms_since(now);
        let is_late = left <= decision_ms(state.terms.challenge_ms);
        let passed = state.terms.challenge_ms.saturating_sub(left);
        if self.reported.is_some_and(|reported| posted.round.0 > reported)
            && (is_late || passed >= REPORT_GRACE_MS)
        {
            return Some(Objection::NoReport);
        }
        let why = self.unavailable.as_ref().filter(|_| is_late);
        why.map(|why| Objection::Unverifiable { why: why.clone() })
    }

    /// The first difference of a settlement from the report of its round, which is audited.
    fn first_difference(&self, posted: &Settlement) -> Option<Mismatch> {
        match self.expected.iter().find(|ours| ours.round == posted.round) {
            Some(ours) => compare_fields(posted, ours).into_iter().next(),
            None => {
                let line = format!("ledger.pending[{}]", posted.round);
                let held = format!("a settlement up to {} FLN", posted.data_total);
                Some(Mismatch::new(line, &"the round was abandoned", &held))
            }
        }
    }

    /// Emits an objection, once for each posted settlement.
    fn announce(
        &mut self,
        pending: &PendingSettlement,
        objection: &Objection,
        action: WatchAction,
        around: &mut Surroundings<'_>,
    ) {
        let (round, final_at) = (pending.settlement.round, pending.final_at);
        if self.announced.replace((round, final_at)) == Some((round, final_at)) {
            return;
        }
        around.summary.objections += 1;
        let (task, objection) = (self.task, objection.clone());
        (around.on_event)(&WatchEvent::Objected { task, round, objection, final_at, action });
    }

    /// Emits that a wrong settlement is not cancelled; it is not tried again.
    fn give_up(&mut self, pending: &PendingSettlement, why: &str, around: &mut Surroundings<'_>) {
        let (task, round, why) = (self.task, pending.settlement.round, why.to_owned());
        self.given_up = Some((round, pending.final_at));
        around.summary.objections += 1;
        (around.on_event)(&WatchEvent::NotCancelled { task, round, why });
    }

    /// Stores the evidence, and cancels a settlement with all later ones: `settlements` in total. A
    /// settlement that another call has cancelled is no error.
    fn cancel(
        &mut self,
        pending: &PendingSettlement,
        settlements: usize,
        objection: &Objection,
        around: &mut Surroundings<'_>,
    ) -> Result<(), LedgerError> {
        let (task, round) = (self.task, pending.settlement.round);
        let reason = objection.to_string();
        let report = match (objection, &self.wrong) {
            (Objection::ReportWrong { .. }, Some(wrong)) => Some((*wrong.report).clone()),
            (Objection::SettlementWrong { .. }, _) => around.client.report(task, round).ok(),
            _ => None,
        };
        let record = CancellationRecord { pending, reason: &reason, report: report.as_ref() };
        if let Err(error) = record.store(&around.config.folder) {
            let why = error.to_string();
            (around.on_event)(&WatchEvent::EvidenceNotStored { task, round, why });
        }
        match cancel_settlement(around.ledger, around.wallet, pending.into()) {
            Ok(_) => {
                around.summary.cancelled += settlements as u64;
                (around.on_event)(&WatchEvent::Cancelled { task, round, settlements });
            }
            Err(ArbitrationError::NothingPending { .. }) => {}
            Err(ArbitrationError::Ledger(error)) if !matches!(error, LedgerError::Refused(_)) => {
                return Err(error);
            }
            Err(error) => self.give_up(pending, &error.to_string(), around),
        }
        Ok(())
    }

    /// Audits the next round, or reads some reports of final rounds.
    pub(super) fn audit_next(
        &mut self,
        engine: &mut dyn Engine,
        around: &mut Surroundings<'_>,
    ) -> Result<(), LedgerError> {
        let begun = Instant::now();
        let failed = match self.try_audit(engine, around) {
            Ok(()) => {
                (self.unavailable, self.retry_at) = (None, None);
                return Ok(());
            }
            Err(failed) => failed,
        };
        let pause = Duration::from_millis(around.config.retry_ms(self.challenge_ms));
        // A failing computation takes at most half of the time.
        self.retry_at = Some(Instant::now() + pause.max(begun.elapsed()));
        self.unavailable = None;
        let why = match failed {
            NotAudited::NoReport => return Ok(()),
            NotAudited::Ledger(error) => return Err(error),
            NotAudited::Local(why) => why,
            NotAudited::Unavailable(why) => {
                self.unavailable = Some(why.clone());
                why
            }
        };
        let why = format!("task {}, after round {}: {why}", self.task.short(), self.last_read());
        (around.on_event)(&WatchEvent::Retrying { why });
        Ok(())
    }

    fn try_audit(
        &mut self,
        engine: &mut dyn Engine,
        around: &mut Surroundings<'_>,
    ) -> Result<(), NotAudited> {
        let reported = around.client.task(self.task)?.reported;
        self.reported = Some(reported);
        if self.read_final_reports(reported, around)? {
            return Ok(());
        }
        let round = RoundNumber(self.last_read().0.saturating_add(1));
        if round.0 > reported {
            return Err(NotAudited::NoReport);
        }
        let report = around.client.report(self.task, round)?;
        let before = self.last_report.as_ref().map(|report| &report.body);
        let audit = self.auditor.audit(&report.body, before, engine)?;
        let is_wrong = |found: &&Mismatch| !self.auditor.is_unavailable(found);
        let first_wrong = audit.mismatches.iter().find(is_wrong).cloned();
        if let (None, Some(missing)) = (&first_wrong, audit.mismatches.first()) {
            let Mismatch { line, recomputed, .. } = missing;
            return Err(NotAudited::Unavailable(format!("{line} of round {round}: {recomputed}")));
        }
        around.summary.rounds += 1;
        (around.on_event)(&WatchEvent::RoundAudited { task: self.task, audit });
        self.advance(report, first_wrong);
        Ok(())
    }

    /// Reads reports of rounds that are final, a few at a time. They cannot be cancelled, but later
    /// reports continue them. Returns whether there were any.
    fn read_final_reports(
        &mut self,
        reported: u32,
        around: &mut Surroundings<'_>,
    ) -> Result<bool, NotAudited> {
        let Some(last) = self.last_final(reported, around.ledger)? else { return Ok(false) };
        let first = RoundNumber(self.last_read().0.saturating_add(1));
        let mut read = first;
        for round in (first.0..=last.0).take(FINAL_REPORTS_PER_TURN).map(RoundNumber) {
            let report = around.client.report(self.task, round)?;
            let before = match &self.last_report {
                Some(report) => report.body.digest(),
                None => Digest(self.task.0),
            };
            let stated = report.body.previous_report;
            let broken =
                (stated != before).then(|| Mismatch::new("previous_report", &stated, &before));
            self.auditor.record_payments(&report.body);
            self.advance(report, broken);
            read = round;
        }
        let (task, last) = (self.task, read);
        (around.on_event)(&WatchEvent::FinalWithoutAudit { task, first, last });
        Ok(true)
    }

    /// The last final round whose report is not read yet.
    fn last_final(
        &self,
        reported: u32,
        ledger: &dyn Ledger,
    ) -> Result<Option<RoundNumber>, LedgerError> {
        let before_pending = self.first_pending.0.saturating_sub(1).min(reported);
        for round in (self.last_read().0.saturating_add(1)..=before_pending).rev().map(RoundNumber)
        {
            let payout = Report::settlement_id(self.task, round);
            if ledger.settlement_status(self.task, payout)? == SettlementStatus::Final {
                return Ok(Some(round));
            }
        }
        Ok(None)
    }

    fn advance(&mut self, report: Signed<Report>, wrong: Option<Mismatch>) {
        self.auditor.advance(&report.body);
        if report.body.has_settlement() {
            self.expected.push(Settlement::from_report(&report.body, report.body.digest()));
        }
        let report = Box::new(report);
        if let (Some(first_mismatch), None) = (wrong, &self.wrong) {
            let (round, report) = (report.body.scope.round, report.clone());
            self.wrong = Some(WrongReport { round, first_mismatch, report });
        }
        self.last_report = Some(report);
    }
}

/// Whether a task is watched for this account.
pub(super) fn is_arbiter(spec: &TaskSpec, account: Address) -> bool {
    spec.arbiter == account
}

const fn decide(config: &WatchConfig, objection: &Objection) -> WatchAction {
    match objection {
        _ if config.dry_run => WatchAction::DryRun,
        Objection::Unverifiable { .. } if config.keeps_unverifiable => WatchAction::Keep,
        _ => WatchAction::Cancel,
    }
}
