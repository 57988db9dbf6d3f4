//! Builds the round's report from the valuation result. [`close_round`] alone decides the pay.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use florin_protocol::pay::VerifiedWork;
use florin_protocol::{
    AbandonReason, Amount, Candidates, Canonical, Digest, ErrorCode, PayError, Rejection, Report,
    ReportInputs, RoundNumber, RoundOutcome, TaskEnd, TaskId, Timestamp, WorkResult, close_round,
    end_task,
};

use super::event::EventStatus;
use super::rejection::reject;
use super::state::{
    PoolAmounts, PostingStatus, ReceivedRecord, ReportedRound, RoundSummary, RunningRound,
    TaskStage, TaskState,
};
use super::{Engine, Validated};

impl Engine {
    pub(super) fn check_valued(
        &self,
        id: TaskId,
        round: RoundNumber,
        result: &WorkResult,
        paid: Option<Digest>,
    ) -> Result<Validated, Rejection> {
        let task = self.task(id)?;
        let Some(running) = valuing(task, round).filter(|running| running.work_order.is_some())
        else {
            return reject(
                ErrorCode::WorkOrderClosed,
                format!("round {round} is not being valued"),
            );
        };
        if running.own_result.is_some() {
            return Ok(Validated { status: EventStatus::Duplicate, report: None });
        }
        let scored = result.valuation.scores.iter().map(|score| score.account);
        if !scored.eq(running.updates.keys().copied()) {
            let message = "the scores do not match the round's updates and their order";
            return reject(ErrorCode::WorkResultMismatch, message);
        }
        if paid.is_some_and(|paid| !running.records.iter().any(|record| record.digest == paid)) {
            return reject(ErrorCode::WorkOrderClosed, "no such record was accepted");
        }
        let work = running.work(paid, result);
        match task.report(running, Ok(result), &work) {
            Ok(report) => {
                Ok(Validated { status: EventStatus::New, report: Some(Box::new(report)) })
            }
            Err(error) => reject(ErrorCode::Internal, error.to_string()),
        }
    }

    pub(super) fn check_valuation_failed(
        &self,
        id: TaskId,
        round: RoundNumber,
    ) -> Result<EventStatus, Rejection> {
        match valuing(self.task(id)?, round) {
            Some(_) => Ok(EventStatus::New),
            None => {
                reject(ErrorCode::WorkOrderClosed, format!("round {round} is not being valued"))
            }
        }
    }
}

fn valuing(task: &TaskState, round: RoundNumber) -> Option<&RunningRound> {
    match &task.stage {
        TaskStage::Valuing(running) if running.offer.scope.round == round => Some(running),
        _ => None,
    }
}

impl RunningRound {
    /// The one verified work record, if a provider submitted one.
    fn work(&self, paid: Option<Digest>, result: &WorkResult) -> Vec<VerifiedWork> {
        let found = self.records.iter().find(|record| Some(record.digest) == paid);
        let line = |record: &ReceivedRecord| -> VerifiedWork {
            (record.provider(), record.digest, result.valuation.units)
        };
        found.map(line).into_iter().collect()
    }
}

impl TaskState {
    fn report(
        &self,
        running: &RunningRound,
        result: Result<&WorkResult, AbandonReason>,
        work: &[VerifiedWork],
    ) -> Result<Report, PayError> {
        close_round(&ReportInputs {
            spec: &self.spec,
            offer: &running.offer,
            previous_report: self.last().map(|past| &past.report),
            commits: &running.commitments(),
            entries: &self.entries(running),
            times: &running.times(),
            missing: &running.missing(),
            holdout_rows: &running.drawn_rows,
            result,
            verified_work: work,
        })
    }

    /// Ends the round with its report. While a provider that has the order can still submit a record
    /// that agrees, stores the coordinator's own result instead, and the round waits.
    pub(super) fn valued(
        &mut self,
        result: &WorkResult,
        paid: Option<Digest>,
        wrong: &[Digest],
        report: Report,
        now: Timestamp,
    ) {
        let Some(running) = self.running_mut() else {
            return;
        };
        running.wrong_records.extend(wrong);
        if paid.is_none() && running.awaits_records(now) {
            running.own_result = Some(Box::new(result.clone()));
        } else if let Some(running) = self.take_running() {
            self.finish(&running, report, now);
        }
    }

    /// Ends the round with the coordinator's own result, unless a record that may agree is still
    /// expected.
    pub(super) fn finish_or_wait(&mut self, paid: Option<Digest>, now: Timestamp) {
        if paid.is_none() && self.running().is_some_and(|running| running.awaits_records(now)) {
            return;
        }
        let Some(mut running) = self.take_running() else {
            return;
        };
        let report = running.own_result.take().map(|result| {
            let work = running.work(paid, &result);
            self.report(&running, Ok(&result), &work)
        });
        match report {
            Some(Ok(report)) => self.finish(&running, report, now),
            // The check of the result built a report without an error.
            _ => self.abandon(&running, AbandonReason::ValuationFailed, now),
        }
    }

    pub(super) fn valuation_failed(&mut self, now: Timestamp) {
        if let Some(running) = self.take_running() {
            self.abandon(&running, AbandonReason::ValuationFailed, now);
        }
    }

    pub(super) fn abandon_too_few(&mut self, running: &RunningRound, now: Timestamp) {
        let got = u32::try_from(running.updates.len()).unwrap_or(u32::MAX);
        let needed = self.spec.rounds.cohort_min;
        self.abandon(running, AbandonReason::TooFewUpdates { got, needed }, now);
    }

    fn abandon(&mut self, running: &RunningRound, reason: AbandonReason, now: Timestamp) {
        match self.report(running, Err(reason), &[]) {
            Ok(report) => self.finish(running, report, now),
            // A report without scores involves no arithmetic that could fail. If it does, nothing
            // more is paid.
            Err(_) => self.begin_closing(TaskEnd::Fault),
        }
    }

    /// If the task ends before its last round, pays what was withheld: a report without updates
    /// settles it. Returns whether there is such a report.
    pub(super) fn settle_withheld(&mut self, why: TaskEnd, now: Timestamp) -> bool {
        if !why.settles_withheld() || self.current_round().0 > self.spec.rounds.count {
            return false;
        }
        let Some(last) = self.last().map(|past| &past.report) else {
            return false;
        };
        if last.ends_task() {
            return false;
        }
        match end_task(&self.spec, last, now) {
            Ok((offer, report)) if report.has_settlement() => {
                self.finish(&RunningRound::new(offer, Candidates::default()), report, now);
                true
            }
            _ => false,
        }
    }

    /// Ends the round with its report. The updates and the model become public.
    fn finish(&mut self, running: &RunningRound, report: Report, now: Timestamp) {
        if running.work_order.is_some() {
            // Providers that did not respond are removed until they ask again, so that the
            // coordinator waits at most once for each.
            self.providers.retain(|provider| running.answered(*provider));
        }
        for line in report.lines.iter().filter(|line| !line.debit.is_zero()) {
            if let Some(bond) = self.enrolled.get_mut(&line.account) {
                *bond = bond.minus(line.debit).unwrap_or(Amount::ZERO);
            }
        }
        self.public.insert(report.model);
        self.public.extend(report.entries.iter().map(|entry| entry.update));
        self.abandoned_in_a_row = match report.outcome {
            RoundOutcome::Abandoned(_) => self.abandoned_in_a_row.saturating_add(1),
            RoundOutcome::Settled | RoundOutcome::Void(_) => 0,
        };
        let settled = report.has_settlement();
        let round = report.scope.round;
        self.paid =
            PoolAmounts { data: report.data_total, infrastructure: report.infrastructure_total };
        self.exposed.extend(&report.holdout.rows);
        self.earlier.add_report(&report);
        self.fix_cohort_seed(&report);
        self.history.add_round(self.spec.rounds.staleness, &report);
        self.record_providers.extend(running.records.iter().map(ReceivedRecord::provider));
        let digest = report.digest();
        let disclosed_rows = running.work_order.as_ref().map(|order| order.disclosed_rows);
        self.rounds.push(RoundSummary {
            report: digest,
            model: report.model,
            settled,
            disclosed_rows,
            archive: None,
        });
        let past = ReportedRound {
            offer: running.offer.clone(),
            candidates: running.candidates.clone(),
            digest,
            report,
            disclosed_rows,
            updates: running.updates.values().cloned().collect(),
            records: running.records.clone(),
            wrong_records: running.wrong_records.clone(),
        };
        self.rounds_in_memory.insert(round, past);
        if settled {
            self.pending_settlements.insert(round, PostingStatus::Unposted);
            self.stage = TaskStage::Settling;
        } else {
            self.next_round(now);
        }
    }
}
