//! A reference model of the ledger: independent, simple code with integers of its own, for tests and
//! for the auditor of the fault simulation. Amounts, times and rounds are plain numbers, and an
//! account is an index.
//!
//! The model is generic over the root `R` of the account totals: a test has the totals themselves,
//! an observer of a ledger only their digest.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "a plain model: a mistake in it must stop a test"
)]

use std::collections::BTreeMap;

use florin_protocol::Digest;

mod closing;
mod splits;
mod terms;

pub use splits::{SplitFlaw, SplitModel};
pub use terms::{Flaw, Rules};

/// Number of accounts of a model.
pub const ACCOUNTS: usize = 12;
/// The account that opens tasks.
pub const BUYER: usize = 0;
/// Maximum number of settlements of a task in their challenge windows.
const PENDING_MAX: usize = 64;

/// The result of an operation: a number, or a refusal's code.
pub type ModelResult = Result<i128, &'static str>;

/// The totals of an account in a task, or the difference of two: paid and debited.
pub type Totals = (i128, i128);

/// A settlement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pending<R> {
    /// The round.
    pub round: i128,
    /// The round in its payout id; it must equal `round`.
    pub payout_round: i128,
    /// The root of the totals that it continues.
    pub previous: R,
    /// The root of the totals.
    pub totals: R,
    /// Its declared total of payouts for data.
    pub data: i128,
    /// Its declared total of payouts for infrastructure.
    pub infrastructure: i128,
    /// Its declared part of `data` that was paid for scores.
    pub score_pay: i128,
    /// Its declared improvement of the model, in nano-nats.
    pub improvement_nano: i128,
    /// Digest of the report.
    pub report: Digest,
    /// The end of its challenge window, once it is posted.
    pub window: i128,
}

/// A task.
#[derive(Clone, Debug, Default)]
pub struct TaskModel<R> {
    /// Whether it was opened.
    pub open: bool,
    /// Whether it was closed.
    pub closed: bool,
    /// Whether a settlement was cancelled.
    pub cancelled: bool,
    /// The moment of the latest announced close.
    pub closes_at: Option<i128>,
    /// Its terms.
    pub rules: Rules,
    /// The remaining escrow, for data and for infrastructure.
    pub locked: [i128; 2],
    /// The final payouts, for data and for infrastructure.
    pub paid: [i128; 2],
    /// The escrow that went back to the buyer.
    pub refunded: i128,
    /// The final payouts that were not claimed yet.
    pub owed: i128,
    /// The root of the last final settlement.
    pub totals: R,
    /// The round of the last final settlement.
    pub round: i128,
    /// The time of the last post.
    pub last_post: Option<i128>,
    /// The claimed totals.
    pub claimed: [Totals; ACCOUNTS],
    /// The bonds.
    pub bonds: [i128; ACCOUNTS],
    /// When the delay of a requested bond ends.
    pub releases: [Option<i128>; ACCOUNTS],
    /// The amounts slashed from the bonds, except the coordinator's.
    pub slashed: [i128; ACCOUNTS],
    /// The splits of the accounts' pay; empty for none.
    pub splits: [SplitModel; ACCOUNTS],
    /// The slashed part of each pledged stake; `None` without a pledge.
    pub pledges: [Option<i128>; ACCOUNTS],
    /// The settlements in their challenge windows.
    pub pending: Vec<Pending<R>>,
    /// The final settlements, by round.
    pub finals: BTreeMap<i128, Pending<R>>,
}

/// The amounts that a claim moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimedAmounts {
    /// Paid to the account.
    pub paid: i128,
    /// Taken from its bond.
    pub taken: i128,
}

/// The model of a ledger.
#[derive(Clone, Debug, Default)]
pub struct LedgerModel<R> {
    /// The time.
    pub now: i128,
    /// The free balances.
    pub wallets: [i128; ACCOUNTS],
    /// The rest of each free balance below one unit of the model, in base units: only splits give
    /// such amounts.
    pub crumbs: [i128; ACCOUNTS],
    /// Base units in one unit of the model; 0 counts as 1.
    pub grain: i128,
    /// The stakes.
    pub stakes: [i128; ACCOUNTS],
    /// When the delay of a requested stake ends.
    pub stake_releases: [Option<i128>; ACCOUNTS],
    /// The debited and slashed amounts.
    pub treasury: i128,
    /// The tasks.
    pub tasks: [TaskModel<R>; 2],
}

/// Whether a settlement pays more for scores than its improvement covers, or more without
/// improvement than the floor.
fn exceeds_improvement<R>(rules: &Rules, new: &Pending<R>) -> bool {
    let floor = new.data - new.score_pay;
    let covered = rules.per_nat_max.saturating_mul(new.improvement_nano);
    floor < 0
        || new.score_pay * 1_000_000_000 > covered
        || floor * 1_000_000 * rules.rounds > rules.data * rules.floor_share * new.round
}

impl<R: Copy> TaskModel<R> {
    /// Round, totals and pools of the latest settlement, pending or final.
    pub fn latest_settlement(&self) -> (i128, R, [i128; 2]) {
        match self.pending.last() {
            Some(last) => (last.round, last.totals, [last.data, last.infrastructure]),
            None => (self.round, self.totals, self.paid),
        }
    }

    /// The pay, posted and final, up to which the coordinator may post; `None` for no limit.
    pub fn covered(&self) -> Option<i128> {
        let coordinator = self.rules.coordinator;
        let bond = if self.releases[coordinator].is_some() { 0 } else { self.bonds[coordinator] };
        self.rules.is_cover(coordinator).then_some(self.paid.iter().sum::<i128>() + bond)
    }

    /// When an announced close is possible: a post withdraws an announcement.
    pub fn announced_close(&self) -> Option<i128> {
        let window = self.last_post.map_or(i128::MIN, |post| post + self.rules.window);
        self.closes_at.filter(|at| !self.closed && window < *at)
    }

    /// The time from which a bond can be withdrawn; `None` unless it was unbonded or the task is
    /// closed, and for a coordinator's bond that covers pay unless the task is closed.
    pub fn withdrawable_at(&self, owner: usize) -> Option<i128> {
        if self.rules.is_cover(owner) && !self.closed {
            return None;
        }
        let windows = 2 * self.rules.window;
        match (self.closed, self.releases[owner], self.last_post) {
            (false, None, _) => None,
            (false, Some(release), Some(post)) => Some(release.max(release.min(post) + windows)),
            (false, Some(release), None) => Some(release),
            (true, _, Some(post)) => Some(post + windows),
            (true, _, None) => Some(0),
        }
    }
}

impl<R: Copy + PartialEq + Default> LedgerModel<R> {
    /// Takes an amount from a wallet.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn pay(&mut self, who: usize, amount: i128) -> Result<(), &'static str> {
        if self.wallets[who] < amount {
            return Err("INSUFFICIENT_FUNDS");
        }
        self.wallets[who] -= amount;
        Ok(())
    }

    /// Refuses a task that was never opened.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn open(&self, t: usize) -> Result<(), &'static str> {
        if self.tasks[t].open { Ok(()) } else { Err("UNKNOWN_TASK") }
    }

    /// Moves an amount between two wallets.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn transfer(&mut self, from: usize, to: usize, amount: i128) -> ModelResult {
        if from == to || amount == 0 {
            return Err("INVALID_ARGUMENT");
        }
        self.pay(from, amount)?;
        self.wallets[to] += amount;
        Ok(0)
    }

    /// Opens a task and locks its escrow.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn open_task(&mut self, from: usize, t: usize, rules: Rules, flaw: Flaw) -> ModelResult {
        if from != BUYER {
            return Err("UNAUTHORIZED");
        }
        if self.tasks[t].open {
            return Err("TASK_EXISTS");
        }
        match flaw {
            Flaw::Nothing => {}
            Flaw::BuyerIsArbiter
            | Flaw::NoArbiter
            | Flaw::NoRounds
            | Flaw::NoWindow
            | Flaw::LargeFloor => return Err("INVALID_ARGUMENT"),
            Flaw::TooSmall => return Err("TOO_SMALL"),
            Flaw::LongWindow | Flaw::LongDelay | Flaw::LongLife => return Err("LIMIT_EXCEEDED"),
            Flaw::TooExpensive => return Err("INSUFFICIENT_FUNDS"),
        }
        let locked = [rules.data, rules.infrastructure];
        self.pay(from, locked.iter().sum())?;
        self.tasks[t] = TaskModel { open: true, rules, locked, ..TaskModel::default() };
        Ok(0)
    }

    /// Adds to a bond.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn bond(&mut self, from: usize, t: usize, amount: i128) -> ModelResult {
        self.open(t)?;
        if self.tasks[t].closed {
            return Err("TASK_CLOSED");
        }
        if self.wallets[from] < amount {
            return Err("INSUFFICIENT_FUNDS");
        }
        let rules = &self.tasks[t].rules;
        let least = if rules.is_cover(from) { 0 } else { rules.bond_min };
        if self.tasks[t].bonds[from] + amount < least {
            return Err("TOO_SMALL");
        }
        self.pay(from, amount)?;
        self.tasks[t].bonds[from] += amount;
        self.tasks[t].releases[from] = None;
        Ok(0)
    }

    /// Requests the withdrawal of a bond.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn unbond(&mut self, from: usize, t: usize) -> ModelResult {
        self.open(t)?;
        if self.tasks[t].bonds[from] == 0 {
            return Err("NOT_FOUND");
        }
        let release = self.now + self.tasks[t].rules.delay;
        self.tasks[t].releases[from].get_or_insert(release);
        Ok(0)
    }

    /// Withdraws a bond; returns the amount.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn withdraw_bond(&mut self, from: usize, t: usize) -> ModelResult {
        self.open(t)?;
        let task = &mut self.tasks[t];
        if task.bonds[from] == 0 {
            return Err("NOT_FOUND");
        }
        let free = task.withdrawable_at(from);
        if self.now < free.ok_or("NOT_FOUND")? {
            return Err("TOO_EARLY");
        }
        let amount = std::mem::take(&mut task.bonds[from]);
        task.releases[from] = None;
        self.wallets[from] += amount;
        Ok(amount)
    }

    /// Adds to a stake.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn stake(&mut self, from: usize, amount: i128) -> ModelResult {
        if amount == 0 {
            return Err("INVALID_ARGUMENT");
        }
        self.pay(from, amount)?;
        self.stakes[from] += amount;
        self.stake_releases[from] = None;
        Ok(0)
    }

    /// Pledges a stake to a task.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn pledge(&mut self, from: usize, t: usize) -> ModelResult {
        self.open(t)?;
        if self.tasks[t].closed {
            return Err("TASK_CLOSED");
        }
        if self.tasks[t].pledges[from].is_some() {
            return Ok(0);
        }
        if self.stakes[from] < self.tasks[t].rules.stake_min.max(1) {
            return Err("TOO_SMALL");
        }
        // A closed task's pledge is removed when the next pledge is made.
        for task in self.tasks.iter_mut().filter(|task| task.closed) {
            task.pledges[from] = None;
        }
        self.tasks[t].pledges[from] = Some(0);
        self.stake_releases[from] = None;
        Ok(0)
    }

    /// Requests the withdrawal of a stake.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn unstake(&mut self, from: usize) -> ModelResult {
        if self.stakes[from] == 0 {
            return Err("NOT_FOUND");
        }
        let risky = |task: &TaskModel<R>| task.open && !task.closed && task.pledges[from].is_some();
        let delays = self.tasks.iter().filter(|task| risky(task)).map(|task| task.rules.delay);
        let delay = delays.max().unwrap_or(0);
        self.stake_releases[from].get_or_insert(self.now + delay);
        Ok(0)
    }

    /// Withdraws a stake; returns the amount.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn withdraw_stake(&mut self, from: usize) -> ModelResult {
        if self.stakes[from] == 0 {
            return Err("NOT_FOUND");
        }
        match self.stake_releases[from] {
            None => return Err("NOT_FOUND"),
            Some(at) if self.now < at => return Err("TOO_EARLY"),
            Some(_) => {}
        }
        let amount = std::mem::take(&mut self.stakes[from]);
        self.stake_releases[from] = None;
        self.tasks.iter_mut().for_each(|task| task.pledges[from] = None);
        self.wallets[from] += amount;
        Ok(amount)
    }

    /// Posts a settlement; returns 1 if it was posted before.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn post(&mut self, from: usize, t: usize, new: &Pending<R>) -> ModelResult {
        self.open(t)?;
        if from != self.tasks[t].rules.coordinator {
            return Err("UNAUTHORIZED");
        }
        let now = self.now;
        let task = &mut self.tasks[t];
        let standing = task.finals.get(&new.payout_round).into_iter();
        let standing = standing.chain(task.pending.iter().filter(|p| p.round == new.payout_round));
        if let Some(other) = standing.last() {
            let same = Pending { window: other.window, ..new.clone() } == *other;
            return if same { Ok(1) } else { Err("CONFLICTING_SETTLEMENT") };
        }
        if task.closed {
            return Err("TASK_CLOSED");
        }
        if task.pending.len() == PENDING_MAX {
            return Err("LIMIT_EXCEEDED");
        }
        let (round, standing, [data, infrastructure]) = task.latest_settlement();
        let no_root = new.totals == R::default();
        let rules = task.rules;
        let wrong = now > rules.expires
            || new.payout_round != new.round
            || new.round <= round
            || new.previous != standing
            || new.data < data
            || new.round > rules.rounds
            || new.data * rules.rounds > rules.data * new.round
            || new.infrastructure < infrastructure
            || new.infrastructure * rules.rounds > rules.infrastructure * new.round
            || exceeds_improvement(&rules, new)
            || (no_root && (new.data, new.infrastructure) != (0, 0));
        if wrong {
            return Err("INVALID_SETTLEMENT");
        }
        if task.covered().is_some_and(|covered| new.data + new.infrastructure > covered) {
            return Err("TOO_SMALL");
        }
        task.pending.push(Pending { window: now + rules.window, ..new.clone() });
        task.last_post = Some(now);
        Ok(0)
    }

    /// Cancels a settlement and the later ones.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn cancel(&mut self, from: usize, t: usize, round: i128) -> ModelResult {
        self.open(t)?;
        if from != self.tasks[t].rules.arbiter {
            return Err("UNAUTHORIZED");
        }
        let task = &mut self.tasks[t];
        if task.finals.contains_key(&round) {
            return Err("WINDOW_CLOSED");
        }
        let Some(n) = task.pending.iter().position(|p| p.round == round) else {
            return Err("NOT_FOUND");
        };
        if self.now > task.pending[n].window {
            return Err("WINDOW_CLOSED");
        }
        task.pending.truncate(n);
        task.cancelled = true;
        Ok(0)
    }

    /// Makes settlements final whose challenge windows are over; returns their number.
    pub fn settle(&mut self, t: usize) -> i128 {
        let task = &mut self.tasks[t];
        let mut count = 0;
        while task.pending.first().is_some_and(|p| self.now > p.window) {
            let p = task.pending.remove(0);
            let paid = [p.data, p.infrastructure];
            for (pool, paid) in paid.iter().enumerate() {
                task.locked[pool] -= paid - task.paid[pool];
                task.owed += paid - task.paid[pool];
            }
            task.paid = paid;
            task.totals = p.totals;
            task.round = p.round;
            task.finals.insert(p.round, p);
            count += 1;
        }
        count
    }

    /// Claims totals, whose proof leads to the root `proven`.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn claim(
        &mut self,
        t: usize,
        who: usize,
        totals: Totals,
        proven: Option<R>,
    ) -> Result<ClaimedAmounts, &'static str> {
        self.open(t)?;
        let task = &mut self.tasks[t];
        if totals == (0, 0) || proven != Some(task.totals) {
            return Err("INVALID_PROOF");
        }
        let before = task.claimed[who];
        let (paid, debited) = (totals.0 - before.0, totals.1 - before.1);
        let finals: i128 = task.finals.values().map(|_| 1).sum();
        if paid < 0
            || debited < 0
            || totals.1 > task.rules.debit_max.saturating_mul(finals)
            || paid > task.owed
        {
            return Err("INVALID_SETTLEMENT");
        }
        if (paid, debited) == (0, 0) {
            return Err("NOTHING_TO_CLAIM");
        }
        let taken = debited.min(task.bonds[who]);
        task.claimed[who] = totals;
        task.owed -= paid;
        task.bonds[who] -= taken;
        self.treasury += taken;
        self.pay_claim(t, who, (before.0, totals.0));
        Ok(ClaimedAmounts { paid, taken })
    }

    /// Slashes a bond or a stake; returns the amount.
    ///
    /// # Errors
    /// The code of the ledger's refusal.
    pub fn slash(
        &mut self,
        from: usize,
        t: usize,
        who: usize,
        stake: bool,
        amount: i128,
    ) -> ModelResult {
        self.open(t)?;
        if from != self.tasks[t].rules.arbiter {
            return Err("UNAUTHORIZED");
        }
        let task = &mut self.tasks[t];
        if task.closed && (stake || !task.rules.is_cover(who)) {
            return Err("TASK_CLOSED");
        }
        if amount == 0 {
            return Err("INVALID_ARGUMENT");
        }
        let taken = if stake {
            let Some(before) = task.pledges[who] else { return Err("NOT_FOUND") };
            let taken = amount.min(self.stakes[who]).min(task.rules.stake_min - before);
            if taken == 0 {
                return Err("NOT_FOUND");
            }
            self.stakes[who] -= taken;
            let used_up = before + taken == task.rules.stake_min;
            task.pledges[who] = (!used_up).then_some(before + taken);
            taken
        } else {
            let mut taken = amount.min(task.bonds[who]);
            if !task.rules.is_cover(who) {
                taken = taken.min(task.rules.bond_min - task.slashed[who]);
                task.slashed[who] += taken;
            }
            if taken == 0 {
                return Err("NOT_FOUND");
            }
            task.bonds[who] -= taken;
            taken
        };
        self.treasury += taken;
        Ok(taken)
    }

    /// The sum of all balances.
    #[must_use]
    pub fn supply(&self) -> i128 {
        let tasks = self.tasks.iter().map(|task| {
            task.locked.iter().sum::<i128>() + task.owed + task.bonds.iter().sum::<i128>()
        });
        let people = self.wallets.iter().sum::<i128>() + self.stakes.iter().sum::<i128>();
        let crumbs = self.crumbs.iter().sum::<i128>();
        assert_eq!(crumbs % self.grain.max(1), 0, "a split has lost a remainder");
        people + crumbs / self.grain.max(1) + self.treasury + tasks.sum::<i128>()
    }
}
