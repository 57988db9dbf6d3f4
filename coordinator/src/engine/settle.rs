//! Settlements on their way to final, and the end of a task.
//!
//! A report, and with it the settlement's name, is in the journal before the ledger hears of it; after a crash the same
//! settlement is posted again, and the ledger answers that it has it already.

use florin_protocol::{Amount, Code, Rejection, Round, TaskId, Tick};

use super::event::Verdict;
use super::state::{Stage, TaskState};
use super::{Engine, reject};

impl Engine {
    pub(super) fn check_posted(&self, id: TaskId, round: Round) -> Result<Verdict, Rejection> {
        self.check_settlement(id, round, false)
    }

    /// Final or cancelled: only what the ledger has.
    pub(super) fn check_decided(&self, id: TaskId, round: Round) -> Result<Verdict, Rejection> {
        self.check_settlement(id, round, true)
    }

    fn check_settlement(
        &self,
        id: TaskId,
        round: Round,
        posted: bool,
    ) -> Result<Verdict, Rejection> {
        let task = self.task(id)?;
        match task.unsettled.get(&round) {
            Some(now) if *now == posted => Ok(Verdict::New),
            Some(true) => Ok(Verdict::Repeat),
            None if task.past(round).is_some() => Ok(Verdict::Repeat),
            Some(false) => reject(Code::TooEarly, format!("round {round} is not posted yet")),
            None => reject(Code::WrongRound, format!("round {round} has no settlement")),
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
    pub(super) fn posted(&mut self, round: Round, now: Tick) {
        self.unsettled.insert(round, true);
        if matches!(self.stage, Stage::Settling) {
            self.next_round(now);
        }
    }

    /// Final, with every earlier one: the ledger makes them final in their order.
    pub(super) fn finalised(&mut self, round: Round) {
        let done: Vec<Round> = self.unsettled.range(..=round).map(|(round, _)| *round).collect();
        for round in done {
            self.unsettled.remove(&round);
            self.finalised.insert(round);
        }
    }

    /// Cancelled, with every later one. What the arbiter called wrong is not posted again, and no round is built on it.
    pub(super) fn cancelled(&mut self, round: Round) {
        self.unsettled.retain(|other, _| *other < round);
        self.ending = true;
        if matches!(self.stage, Stage::Settling | Stage::Enrolling { .. }) {
            self.end();
        }
    }

    pub(super) fn close_requested(&mut self) {
        self.ending = true;
        if matches!(self.stage, Stage::AwaitingBlobs | Stage::Enrolling { .. }) {
            self.end();
        }
    }

    pub(super) fn closed(&mut self, refund: Amount) {
        self.end();
        self.unsettled.clear();
        self.refund = Some(refund);
        self.stage = Stage::Done;
    }
}
