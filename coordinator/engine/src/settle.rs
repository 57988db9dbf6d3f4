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

use florin_protocol::{Amount, ErrorCode, Rejection, RoundNumber, TaskId, Timestamp};

use super::event::Verdict;
use super::state::{Past, Stage, Standings, TaskState};
use super::{Engine, reject};

impl Engine {
    pub(super) fn check_posted(
        &self,
        id: TaskId,
        round: RoundNumber,
    ) -> Result<Verdict, Rejection> {
        let task = self.settled(id, round)?;
        let new = task.unsettled.get(&round) == Some(&false);
        Ok(if new { Verdict::New } else { Verdict::Repeat })
    }

    /// The ledger decides which settlements are final, independent of the engine's state: proofs
    /// must lead to the ledger's last final root.
    pub(super) fn check_final(&self, id: TaskId, round: RoundNumber) -> Result<Verdict, Rejection> {
        let known = self.settled(id, round)?.finalised.contains(&round);
        Ok(if known { Verdict::Repeat } else { Verdict::New })
    }

    /// Debits can be proven only from a final round.
    pub(super) fn check_proven(
        &self,
        id: TaskId,
        round: RoundNumber,
    ) -> Result<Verdict, Rejection> {
        let task = self.settled(id, round)?;
        if !task.finalised.contains(&round) {
            return reject(ErrorCode::TooEarly, format!("round {round} is not final yet"));
        }
        let new = task.unproven.range(..=round).next().is_some();
        Ok(if new { Verdict::New } else { Verdict::Repeat })
    }

    /// Only a posted settlement can be cancelled.
    pub(super) fn check_cancelled(
        &self,
        id: TaskId,
        round: RoundNumber,
    ) -> Result<Verdict, Rejection> {
        match self.settled(id, round)?.unsettled.get(&round) {
            Some(true) => Ok(Verdict::New),
            Some(false) => reject(ErrorCode::TooEarly, format!("round {round} is not posted yet")),
            None => Ok(Verdict::Repeat),
        }
    }

    pub(super) fn check_unpostable(
        &self,
        id: TaskId,
        round: RoundNumber,
    ) -> Result<Verdict, Rejection> {
        self.check_posted(id, round)
    }

    /// A round leaves memory only when no later event needs it.
    pub(super) fn check_kept(&self, id: TaskId, round: RoundNumber) -> Result<Verdict, Rejection> {
        let task = self.task(id)?;
        if task.ended(round).is_some_and(|ended| ended.kept.is_some()) {
            return Ok(Verdict::Repeat);
        }
        if task.is_done_with(round) {
            return Ok(Verdict::New);
        }
        reject(ErrorCode::TooEarly, format!("round {round} is still needed"))
    }

    /// The task, if this round has a settlement.
    fn settled(&self, id: TaskId, round: RoundNumber) -> Result<&TaskState, Rejection> {
        let task = self.task(id)?;
        match task.ended(round) {
            Some(ended) if ended.settled => Ok(task),
            _ => reject(ErrorCode::WrongRound, format!("round {round} has no settlement")),
        }
    }

    pub(super) fn check_close_requested(&self, id: TaskId) -> Result<Verdict, Rejection> {
        let task = self.task(id)?;
        Ok(if task.ending || task.is_over() { Verdict::Repeat } else { Verdict::New })
    }

    pub(super) fn check_closed(&self, id: TaskId) -> Result<Verdict, Rejection> {
        match self.task(id)?.stage {
            Stage::Done => Ok(Verdict::Repeat),
            _ => Ok(Verdict::New),
        }
    }
}

impl TaskState {
    pub(super) fn posted(&mut self, round: RoundNumber, now: Timestamp) {
        self.unsettled.insert(round, true);
        if matches!(self.stage, Stage::Settling) {
            self.next_round(now);
        }
    }

    /// Marks this round and every earlier one as final: the ledger finalises them in order.
    pub(super) fn finalised(&mut self, round: RoundNumber, now: Timestamp) {
        let waiting = self.unsettled.range(..=round).map(|(round, _)| *round);
        let done: Vec<RoundNumber> = waiting.chain([round]).collect();
        for round in done {
            self.unsettled.remove(&round);
            self.finalised.insert(round);
            if self.past(round).is_some_and(Past::debits) {
                self.unproven.insert(round);
            }
        }
        let last = self.finalised.last().and_then(|last| self.past(*last));
        if let Some(standings) = last.map(|past| Standings::of(&past.report)) {
            self.standings = Some(standings);
        }
        // Another account may have finalised the settlement before the host received the response
        // to its post.
        if matches!(self.stage, Stage::Settling) && self.unsettled.values().all(|posted| *posted) {
            self.next_round(now);
        }
    }

    /// The ledger has applied these debits to the bonds, as far as the bonds cover them.
    pub(super) fn debits_proven(&mut self, round: RoundNumber) {
        self.unproven.retain(|other| *other > round);
    }

    /// Gives up the settlements of this round and all later ones; they are invalid and are not
    /// posted again. No round is built on them. A running round is dropped, because its result
    /// could never be paid. Earlier settlements continue.
    pub(super) fn give_up_from(&mut self, round: RoundNumber) {
        self.unsettled.retain(|other, _| *other < round);
        self.ending = true;
        if !self.is_over() {
            self.end();
        }
    }

    pub(super) fn close_requested(&mut self) {
        self.ending = true;
        if matches!(self.stage, Stage::AwaitingBlobs | Stage::Enrolling { .. }) {
            self.end();
        }
    }

    /// The coordinator closed the task, or after its expiry another account did. A settlement that
    /// was not known to be final is now either final or cancelled. The host asks the ledger about
    /// each, so that proofs lead to its last final root.
    pub(super) fn closed(&mut self, refund: Amount) {
        self.end();
        self.unsettled.values_mut().for_each(|asked| *asked = true);
        self.refund = Some(refund);
        self.stage = Stage::Done;
    }
}
