//! A reference model of the ledger: independent, simple code with integers of its own.

use std::collections::BTreeMap;

pub const PEOPLE: usize = 6;
pub const INITIAL_BALANCE: i64 = 2_000;
pub const PENDING_MAX: usize = 64;
pub const BUYER: usize = 0;
/// Exceeds every amount of a ledger, and is later than every time.
pub const UNBOUNDED: i64 = i64::MAX;
/// The largest round number.
pub const LAST_ROUND: i64 = u32::MAX as i64;

/// The result of an operation: a number, or a refusal's code.
pub type ModelResult = Result<i64, &'static str>;

/// The totals of every account, paid and debited.
pub type AllTotals = [(i64, i64); PEOPLE];

/// The roles of a task, and the numbers in its terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    pub coordinator: usize,
    pub arbiter: usize,
    pub data: i64,
    pub infrastructure: i64,
    pub bond_min: i64,
    pub debit_max: i64,
    pub stake_min: i64,
    pub window: i64,
    pub delay: i64,
    pub expires: i64,
}

/// An error in the terms of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    Nothing,
    BuyerIsArbiter,
    TooSmall,
    LongWindow,
    LongDelay,
    TooExpensive,
}

/// A settlement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    pub round: i64,
    /// The round in its payout id; it must equal `round`.
    pub payout_round: i64,
    /// The totals that it continues: the previous root, on a ledger.
    pub previous: AllTotals,
    pub totals: AllTotals,
    /// Its declared total of payouts for data.
    pub data: i64,
    pub infrastructure: i64,
    /// Identifies a report.
    pub report: u8,
    /// The end of its challenge window, once it is posted.
    pub window: i64,
}

#[derive(Clone, Debug, Default)]
pub struct TaskModel {
    pub open: bool,
    pub closed: bool,
    pub rules: Rules,
    pub locked: [i64; 2],
    pub paid: [i64; 2],
    pub refunded: i64,
    pub owed: i64,
    pub totals: AllTotals,
    pub round: i64,
    pub last_post: Option<i64>,
    pub claimed: AllTotals,
    pub bonds: [i64; PEOPLE],
    pub releases: [Option<i64>; PEOPLE],
    pub pledges: [Option<i64>; PEOPLE],
    pub pending: Vec<Pending>,
    pub finals: BTreeMap<i64, Pending>,
}

/// The model of a ledger.
#[derive(Clone, Debug, Default)]
pub struct LedgerModel {
    pub now: i64,
    pub wallets: [i64; PEOPLE],
    pub stakes: [i64; PEOPLE],
    pub stake_releases: [Option<i64>; PEOPLE],
    pub treasury: i64,
    pub tasks: [TaskModel; 2],
}

impl TaskModel {
    /// Round, totals and pools of the latest settlement, pending or final.
    pub fn latest_settlement(&self) -> (i64, AllTotals, [i64; 2]) {
        match self.pending.last() {
            Some(last) => (last.round, last.totals, [last.data, last.infrastructure]),
            None => (self.round, self.totals, self.paid),
        }
    }

    /// The time from which a bond can be withdrawn; `None` unless it was unbonded or the task is
    /// closed.
    pub fn withdrawable_at(&self, owner: usize) -> Option<i64> {
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

impl LedgerModel {
    pub fn pay(&mut self, who: usize, amount: i64) -> Result<(), &'static str> {
        if self.wallets[who] < amount {
            return Err("INSUFFICIENT_FUNDS");
        }
        self.wallets[who] -= amount;
        Ok(())
    }

    pub fn open(&self, t: usize) -> Result<(), &'static str> {
        if self.tasks[t].open { Ok(()) } else { Err("UNKNOWN_TASK") }
    }

    pub fn transfer(&mut self, from: usize, to: usize, amount: i64) -> ModelResult {
        if from == to || amount == 0 {
            return Err("INVALID_ARGUMENT");
        }
        self.pay(from, amount)?;
        self.wallets[to] += amount;
        Ok(0)
    }

    pub fn open_task(&mut self, from: usize, t: usize, rules: Rules, flaw: Flaw) -> ModelResult {
        if from != BUYER {
            return Err("UNAUTHORIZED");
        }
        if self.tasks[t].open {
            return Err("TASK_EXISTS");
        }
        match flaw {
            Flaw::Nothing => {}
            Flaw::BuyerIsArbiter => return Err("INVALID_ARGUMENT"),
            Flaw::TooSmall => return Err("TOO_SMALL"),
            Flaw::LongWindow | Flaw::LongDelay => return Err("LIMIT_EXCEEDED"),
            Flaw::TooExpensive => return Err("INSUFFICIENT_FUNDS"),
        }
        let locked = [rules.data, rules.infrastructure];
        self.pay(from, locked.iter().sum())?;
        self.tasks[t] = TaskModel { open: true, rules, locked, ..TaskModel::default() };
        Ok(0)
    }

    pub fn bond(&mut self, from: usize, t: usize, amount: i64) -> ModelResult {
        self.open(t)?;
        if self.tasks[t].closed {
            return Err("TASK_CLOSED");
        }
        if self.wallets[from] < amount {
            return Err("INSUFFICIENT_FUNDS");
        }
        if self.tasks[t].bonds[from] + amount < self.tasks[t].rules.bond_min {
            return Err("TOO_SMALL");
        }
        self.pay(from, amount)?;
        self.tasks[t].bonds[from] += amount;
        self.tasks[t].releases[from] = None;
        Ok(0)
    }

    pub fn unbond(&mut self, from: usize, t: usize) -> ModelResult {
        self.open(t)?;
        if self.tasks[t].bonds[from] == 0 {
            return Err("NOT_FOUND");
        }
        let release = self.now + self.tasks[t].rules.delay;
        self.tasks[t].releases[from].get_or_insert(release);
        Ok(0)
    }

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

    pub fn stake(&mut self, from: usize, amount: i64) -> ModelResult {
        if amount == 0 {
            return Err("INVALID_ARGUMENT");
        }
        self.pay(from, amount)?;
        self.stakes[from] += amount;
        self.stake_releases[from] = None;
        Ok(0)
    }

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

    pub fn unstake(&mut self, from: usize) -> ModelResult {
        if self.stakes[from] == 0 {
            return Err("NOT_FOUND");
        }
        let risky = |task: &TaskModel| task.open && !task.closed && task.pledges[from].is_some();
        let delays = self.tasks.iter().filter(|task| risky(task)).map(|task| task.rules.delay);
        let delay = delays.max().unwrap_or(0);
        self.stake_releases[from].get_or_insert(self.now + delay);
        Ok(0)
    }

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

    pub fn post(&mut self, from: usize, t: usize, new: &Pending) -> ModelResult {
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
        let no_root = new.totals.iter().all(|totals| *totals == (0, 0));
        let rules = task.rules;
        let wrong = now > rules.expires
            || new.payout_round != new.round
            || new.round <= round
            || new.previous != standing
            || new.data < data
            || new.data > rules.data
            || new.infrastructure < infrastructure
            || new.infrastructure > rules.infrastructure
            || (no_root && (new.data, new.infrastructure) != (0, 0));
        if wrong {
            return Err("INVALID_SETTLEMENT");
        }
        task.pending.push(Pending { window: now + rules.window, ..new.clone() });
        task.last_post = Some(now);
        Ok(0)
    }

    pub fn cancel(&mut self, from: usize, t: usize, round: i64) -> ModelResult {
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
        Ok(0)
    }

    pub fn settle(&mut self, t: usize) -> i64 {
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

    /// Returns the amount paid plus a thousand times the amount debited. The proof is from the tree
    /// of the totals `tree`.
    pub fn claim(
        &mut self,
        t: usize,
        who: usize,
        totals: (i64, i64),
        tree: &AllTotals,
    ) -> ModelResult {
        self.open(t)?;
        let task = &mut self.tasks[t];
        if totals == (0, 0) || tree[who] != totals || task.totals != *tree {
            return Err("INVALID_PROOF");
        }
        let before = task.claimed[who];
        let (paid, debited) = (totals.0 - before.0, totals.1 - before.1);
        if paid < 0
            || debited < 0
            || totals.1 > task.rules.debit_max.saturating_mul(task.round)
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
        self.wallets[who] += paid;
        task.bonds[who] -= taken;
        self.treasury += taken;
        Ok(paid + 1_000 * taken)
    }

    pub fn close(&mut self, from: usize, t: usize) -> ModelResult {
        self.open(t)?;
        if self.tasks[t].closed {
            return Err("TASK_CLOSED");
        }
        let rules = self.tasks[t].rules;
        if from != rules.coordinator && self.now <= rules.expires {
            return Err("TOO_EARLY");
        }
        if self.tasks[t].pending.last().is_some_and(|p| self.now <= p.window) {
            return Err("SETTLEMENT_PENDING");
        }
        self.settle(t);
        let task = &mut self.tasks[t];
        let rest: i64 = std::mem::take(&mut task.locked).iter().sum();
        task.closed = true;
        task.refunded = rest;
        self.wallets[BUYER] += rest;
        Ok(rest)
    }

    pub fn slash(
        &mut self,
        from: usize,
        t: usize,
        who: usize,
        stake: bool,
        amount: i64,
    ) -> ModelResult {
        self.open(t)?;
        if from != self.tasks[t].rules.arbiter {
            return Err("UNAUTHORIZED");
        }
        let task = &mut self.tasks[t];
        if task.closed {
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
            let taken = amount.min(task.bonds[who]);
            if taken == 0 {
                return Err("NOT_FOUND");
            }
            task.bonds[who] -= taken;
            taken
        };
        self.treasury += taken;
        Ok(taken)
    }

    pub fn supply(&self) -> i64 {
        let tasks = self.tasks.iter().map(|task| {
            task.locked.iter().sum::<i64>() + task.owed + task.bonds.iter().sum::<i64>()
        });
        let people = self.wallets.iter().sum::<i64>() + self.stakes.iter().sum::<i64>();
        people + self.treasury + tasks.sum::<i64>()
    }
}
