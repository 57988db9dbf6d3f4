//! The end of a task in the model: announced closes, objections, refunds.

use super::{BUYER, LedgerModel, ModelResult};

impl<R: Copy + PartialEq + Default> LedgerModel<R> {
    /// Closes a task; returns the refund.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn close(&mut self, from: usize, t: usize) -> ModelResult {
        self.open(t)?;
        if self.tasks[t].closed {
            return Err("TASK_CLOSED");
        }
        let task = &self.tasks[t];
        let rules = task.rules;
        let due = task.pending.iter().filter(|p| self.now > p.window).count();
        let round = due.checked_sub(1).map_or(task.round, |last| task.pending[last].round);
        let is_free = round >= rules.rounds || task.cancelled || rules.arbiter == rules.coordinator;
        let is_due =
            self.now > rules.expires || task.announced_close().is_some_and(|at| at <= self.now);
        if due < task.pending.len() {
            return Err("SETTLEMENT_PENDING");
        }
        if !(is_due || from == rules.coordinator && is_free) {
            return Err("TOO_EARLY");
        }
        self.settle(t);
        let task = &mut self.tasks[t];
        let rest: i128 = std::mem::take(&mut task.locked).iter().sum();
        task.closed = true;
        task.refunded = rest;
        self.wallets[BUYER] += rest;
        Ok(rest)
    }

    /// Refuses a closed task, and one with a settlement that is not final.
    fn settled(&self, t: usize) -> Result<(), &'static str> {
        self.open(t)?;
        match (self.tasks[t].closed, self.tasks[t].pending.is_empty()) {
            (true, _) => Err("TASK_CLOSED"),
            (false, false) => Err("SETTLEMENT_PENDING"),
            (false, true) => Ok(()),
        }
    }

    /// Announces a close.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn announce_close(&mut self, from: usize, t: usize) -> ModelResult {
        self.open(t)?;
        if from != self.tasks[t].rules.coordinator {
            return Err("UNAUTHORIZED");
        }
        self.settled(t)?;
        let at = self.now + self.tasks[t].rules.window;
        if self.tasks[t].announced_close().is_none() {
            self.tasks[t].closes_at = Some(at);
        }
        Ok(0)
    }

    /// Objects to an announced close with a receipt of a round by an account; returns the slashed
    /// amount.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn object(&mut self, t: usize, round: i128, signer: usize) -> ModelResult {
        self.settled(t)?;
        let task = &mut self.tasks[t];
        let coordinator = task.rules.coordinator;
        if task.announced_close().is_none() {
            return Err("NOT_FOUND");
        }
        if round <= task.round {
            return Err("INVALID_ARGUMENT");
        }
        if signer != coordinator {
            return Err("INVALID_SIGNATURE");
        }
        task.closes_at = None;
        let taken = std::mem::take(&mut task.bonds[coordinator]);
        self.treasury += taken;
        Ok(taken)
    }
}
