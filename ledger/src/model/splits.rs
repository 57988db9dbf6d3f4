//! Splits of pay in the reference model: the members of an account receive what it claims.

use super::{LedgerModel, ModelResult};

/// Base units that are dealt in one turn.
const TURN: i128 = 1_000_000;

/// The members of a split with their shares in millionths, in the order of their addresses.
pub type SplitModel = Vec<(usize, i128)>;

/// An error in a list of members that the model cannot see, because it has no addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitFlaw {
    /// The list is valid, except for its shares.
    Nothing,
    /// The addresses do not ascend.
    Unordered,
    /// There are too many members.
    Crowded,
}

impl<R: Copy + PartialEq + Default> LedgerModel<R> {
    /// Splits the pay of an account in a task.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn set_split(
        &mut self,
        from: usize,
        t: usize,
        members: &SplitModel,
        flaw: SplitFlaw,
    ) -> ModelResult {
        self.open(t)?;
        let task = &mut self.tasks[t];
        if task.closed {
            return Err("TASK_CLOSED");
        }
        if flaw == SplitFlaw::Crowded {
            return Err("LIMIT_EXCEEDED");
        }
        let whole: i128 = members.iter().map(|(_, share)| share).sum();
        let positive = members.iter().all(|(_, share)| *share > 0);
        if flaw == SplitFlaw::Unordered || whole != TURN || !positive {
            return Err("SPLIT_INVALID");
        }
        if task.splits[from] == *members {
            return Ok(0);
        }
        if !task.splits[from].is_empty() {
            return Err("SPLIT_FIXED");
        }
        if task.bonds[from] > 0 || task.claimed[from] != (0, 0) {
            return Err("SPLIT_TOO_LATE");
        }
        task.splits[from].clone_from(members);
        Ok(0)
    }

    /// Pays the increase of an account's total in a task to it, or to the members of its split.
    pub(super) fn pay_claim(&mut self, t: usize, who: usize, (before, after): (i128, i128)) {
        let members = self.tasks[t].splits[who].clone();
        if members.is_empty() {
            self.wallets[who] += after - before;
            return;
        }
        let grain = self.grain.max(1);
        let mut from = 0;
        for (member, share) in members {
            // The units of all turns whose place in the turn is in the member's part.
            let owned = |total: i128| {
                total / TURN * share + (total % TURN).clamp(from, from + share) - from
            };
            self.crumbs[member] += owned(after * grain) - owned(before * grain);
            self.wallets[member] += self.crumbs[member] / grain;
            self.crumbs[member] %= grain;
            from += share;
        }
    }
}
