//! Settlements until they are final, and the end of a task.
//!
//! A report, and with it the settlement's identifier, is in the journal before it is posted to the
//! ledger. After a crash the same settlement is posted again, and the ledger responds that it
//! already has it: posting is idempotent.
//!
//! A final settlement does not debit a bond by itself. Each debit is proven for its account. The
//! coordinator submits these proofs before it closes the task, while the bonds are still locked.

use alloc::format;
use alloc::vec::Vec;

use florin_protocol::{Amount, ErrorCode, Rejection, RoundNumber, TaskEnd, TaskId, Timestamp};

use super::Engine;
use super::event::EventStatus;
use super::rejection::reject;
use super::state::{FinalTotals, PostingStatus, ReportedRound, TaskStage, TaskState};

impl Engine {
    pub(super) fn check_posted(
        &self,
        id: TaskId,
        round: RoundNumber,
    ) -> Result<EventStatus, Rejection> {
        let task = self.task_with_settlement(id, round)?;
        let new = task.pending_settlements.get(&round) == Some(&PostingStatus::Unposted);
        Ok(if new { EventStatus::New } else { EventStatus::Duplicate })
    }

    /// The ledger decides which settlements are final, independent of the engine's state: proofs
    /// must lead to the ledger's last final root.
    pub(super) fn check_final(
        &self,
        id: TaskId,
        round: RoundNumber,
    ) -> Result<EventStatus, Rejection> {
        let known = self.task_with_settlement(id, round)?.final_rounds.contains(&round);
        Ok(if known { EventStatus::Duplicate } else { EventStatus::New })
    }

    /// Debits can be proven only from a final round.
    pub(super) fn check_proven(
        &self,
        id: TaskId,
        round: RoundNumber,
    ) -> Result<EventStatus, Rejection> {
        let task = self.task_with_settlement(id, round)?;
        if !task.final_rounds.contains(&round) {
            return reject(ErrorCode::TooEarly, format!("round {round} is not final yet"));
        }
        let new = task.rounds_with_unproven_debits.range(..=round).next().is_some();
        Ok(if new { EventStatus::New } else { EventStatus::Duplicate })
    }

    /// Only a posted settlement can be cancelled.
    pub(super) fn check_cancelled(
        &self,
        id: TaskId,
        round: RoundNumber,
    ) -> Result<EventStatus, Rejection> {
        match self.task_with_settlement(id, round)?.pending_settlements.get(&round) {
            Some(PostingStatus::Posted) => Ok(EventStatus::New),
            Some(PostingStatus::Unposted) => {
                reject(ErrorCode::TooEarly, format!("round {round} is not posted yet"))
            }
            None => Ok(EventStatus::Duplicate),
        }
    }

    pub(super) fn check_settlement_rejected(
        &self,
        id: TaskId,
        round: RoundNumber,
    ) -> Result<EventStatus, Rejection> {
        self.check_posted(id, round)
    }

    /// A round leaves memory only when no later event needs it.
    pub(super) fn check_round_archived(
        &self,
        id: TaskId,
        round: RoundNumber,
    ) -> Result<EventStatus, Rejection> {
        let task = self.task(id)?;
        if task.round_summary(round).is_some_and(|ended| ended.archive.is_some()) {
            return Ok(EventStatus::Duplicate);
        }
        if task.can_be_archived(round) {
            return Ok(EventStatus::New);
        }
        reject(ErrorCode::TooEarly, format!("round {round} is still needed"))
    }

    /// The task, if this round has a settlement.
    fn task_with_settlement(
        &self,
        id: TaskId,
        round: RoundNumber,
    ) -> Result<&TaskState, Rejection> {
        let task = self.task(id)?;
        match task.round_summary(round) {
            Some(ended) if ended.settled => Ok(task),
            _ => reject(ErrorCode::WrongRound, format!("round {round} has no settlement")),
        }
    }

    pub(super) fn check_close_requested(&self, id: TaskId) -> Result<EventStatus, Rejection> {
        let task = self.task(id)?;
        Ok(if task.end.is_some() || task.is_over() {
            EventStatus::Duplicate
        } else {
            EventStatus::New
        })
    }

    pub(super) fn check_closed(&self, id: TaskId) -> Result<EventStatus, Rejection> {
        match self.task(id)?.stage {
            TaskStage::Done => Ok(EventStatus::Duplicate),
            _ => Ok(EventStatus::New),
        }
    }

    /// The bond returns after the close.
    pub(super) fn check_bond_returned(&self, id: TaskId) -> Result<EventStatus, Rejection> {
        let task = self.task(id)?;
        let is_due = matches!(task.stage, TaskStage::Done) && task.awaits_bond;
        Ok(if is_due { EventStatus::New } else { EventStatus::Duplicate })
    }
}

impl TaskState {
    pub(super) fn posted(&mut self, round: RoundNumber, now: Timestamp) {
        self.pending_settlements.insert(round, PostingStatus::Posted);
        if matches!(self.stage, TaskStage::Settling) {
            self.next_round(now);
        }
    }

    /// Marks this round and every earlier one as final: the ledger finalises them in order.
    pub(super) fn finalised(&mut self, round: RoundNumber, now: Timestamp) {
        let waiting = self.pending_settlements.range(..=round).map(|(round, _)| *round);
        let done: Vec<RoundNumber> = waiting.chain([round]).collect();
        for round in done {
            self.pending_settlements.remove(&round);
            self.final_rounds.insert(round);
            if self.reported_round(round).is_some_and(ReportedRound::has_debits) {
                self.rounds_with_unproven_debits.insert(round);
            }
        }
        let last = self.final_rounds.last().and_then(|last| self.reported_round(*last));
        if let Some(standings) = last.map(|past| FinalTotals::from_report(&past.report)) {
            self.final_totals = Some(standings);
        }
        // Another account may have finalised the settlement before the host received the response
        // to its post.
        if matches!(self.stage, TaskStage::Settling)
            && self.pending_settlements.values().all(|state| *state == PostingStatus::Posted)
        {
            self.next_round(now);
        }
    }

    /// The ledger has applied these debits to the bonds, as far as the bonds cover them.
    pub(super) fn debits_proven(&mut self, round: RoundNumber) {
        self.rounds_with_unproven_debits.retain(|other| *other > round);
    }

    /// Gives up the settlements of this round and all later ones; they are invalid and are not
    /// posted again. No round is built on them. A running round is dropped, because its result
    /// could never be paid. Earlier settlements continue.
    pub(super) fn give_up_settlements_from(&mut self, round: RoundNumber) {
        self.pending_settlements.retain(|other, _| *other < round);
        self.end.get_or_insert(TaskEnd::SettlementInvalid);
        if !self.is_over() {
            self.begin_closing(TaskEnd::SettlementInvalid);
        }
    }

    /// Ends the task after its running round, or at once if none is running.
    pub(super) fn end_soon(&mut self, why: TaskEnd, now: Timestamp) {
        self.end.get_or_insert(why);
        if matches!(self.stage, TaskStage::AwaitingBlobs | TaskStage::Enrolling { .. }) {
            self.end_task(why, now);
        }
    }

    /// The coordinator closed the task, or after its expiry another account did. A settlement that
    /// was not known to be final is now either final or cancelled. The host asks the ledger about
    /// each, so that proofs lead to its last final root.
    pub(super) fn closed(&mut self, refund: Amount) {
        self.begin_closing(TaskEnd::ClosedOnLedger);
        self.pending_settlements.values_mut().for_each(|state| *state = PostingStatus::Posted);
        self.refund = Some(refund);
        self.stage = TaskStage::Done;
    }
}
