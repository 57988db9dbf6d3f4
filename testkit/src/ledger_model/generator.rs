//! Random operations, weighted so that all of them, and nearly every refusal, occur often.

use florin_ledger::model::TaskModel;
use florin_protocol::Digest;

use super::model::{
    AllTotals, BUYER, Flaw, LAST_ROUND, LedgerModel, PEOPLE, Pending, Rules, SplitFlaw, UNBOUNDED,
};
use super::operation::{Act, Operation};
use super::rng::TestRng;

/// The weight of each kind of operation.
const WEIGHTS: [(Kind, u64); 18] = [
    (Kind::Transfer, 4),
    (Kind::OpenTask, 4),
    (Kind::Bond, 9),
    (Kind::Unbond, 5),
    (Kind::WithdrawBond, 6),
    (Kind::Stake, 5),
    (Kind::Pledge, 6),
    (Kind::Unstake, 4),
    (Kind::WithdrawStake, 4),
    (Kind::Post, 15),
    (Kind::Cancel, 6),
    (Kind::Finalize, 7),
    (Kind::Claim, 14),
    (Kind::Close, 1),
    (Kind::AnnounceClose, 2),
    (Kind::Object, 3),
    (Kind::Slash, 8),
    (Kind::SetSplit, 6),
];

/// Outcomes that occur often without weighting.
const FREQUENT_OUTCOMES: [&str; 9] = [
    "INSUFFICIENT_FUNDS",
    "INVALID_PROOF",
    "NOT_FOUND",
    "SPLIT_TOO_LATE",
    "TASK_CLOSED",
    "TOO_SMALL",
    "UNAUTHORIZED",
    "UNKNOWN_TASK",
    "nothing due",
];

/// The maximum of windows and delays: 30 days, with ticks of one second.
const LONGEST: i128 = 30 * 24 * 3_600;

/// The maximum of the time to the expiry: 366 days, with ticks of one second.
const LONGEST_LIFE: i128 = 366 * 24 * 3_600;

/// How often an operation is drawn again at most.
const REDRAWS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Transfer,
    OpenTask,
    Bond,
    Unbond,
    WithdrawBond,
    Stake,
    Pledge,
    Unstake,
    WithdrawStake,
    Post,
    Cancel,
    Finalize,
    Claim,
    Close,
    AnnounceClose,
    Object,
    Slash,
    SetSplit,
}

fn any_kind(dice: &mut TestRng) -> Kind {
    let mut left = dice.below(WEIGHTS.iter().map(|(_, weight)| weight).sum()) as u64;
    for (kind, weight) in WEIGHTS {
        match left.checked_sub(weight) {
            None => return kind,
            Some(rest) => left = rest,
        }
    }
    Kind::Finalize
}

/// Draws operations for the current state of a model.
pub struct OperationGenerator<'a> {
    pub dice: &'a mut TestRng,
    pub model: &'a LedgerModel,
    /// Whether settlements are posted as fast as possible, with small amounts, up to the limit of
    /// pending ones.
    pub posts_rapidly: bool,
}

impl OperationGenerator<'_> {
    /// The pause before the next operation: often until just before, at or after a deadline.
    pub fn pause(&mut self) -> i128 {
        if self.posts_rapidly {
            return i128::from(self.dice.once_in(2));
        }
        match self.dice.below(10) {
            0..=2 => 0,
            3..=6 => self.dice.below(12) as i128,
            _ => {
                let moments = self.deadlines();
                let Some(last) = moments.len().checked_sub(1) else { return 1 };
                let moment = moments[self.dice.below(last as u64 + 1)];
                (moment - self.model.now + self.dice.below(3) as i128 - 1).max(0)
            }
        }
    }

    /// Future deadlines.
    fn deadlines(&mut self) -> Vec<i128> {
        let mut moments: Vec<i128> = self.model.stake_releases.iter().flatten().copied().collect();
        for task in self.model.tasks.iter().filter(|task| task.open) {
            moments.extend(task.pending.iter().map(|p| p.window));
            moments.extend(task.announced_close());
            moments.extend(task.releases.iter().flatten());
            moments.extend((0..PEOPLE).filter_map(|owner| task.withdrawable_at(owner)));
            if self.dice.once_in(8) {
                moments.push(task.rules.expires);
            }
        }
        moments.retain(|moment| (self.model.now..UNBOUNDED).contains(moment));
        moments
    }

    /// Any operation; most of those with a frequent outcome are drawn again.
    pub fn operation(&mut self) -> Operation {
        let mut operation = self.any_operation();
        for _ in 0..REDRAWS {
            let verdict = operation.on_model(&mut self.model.clone());
            if !FREQUENT_OUTCOMES.contains(&operation.outcome(verdict)) || self.dice.once_in(4) {
                break;
            }
            operation = self.any_operation();
        }
        operation
    }

    fn any_operation(&mut self) -> Operation {
        let kind = if self.posts_rapidly && !self.dice.once_in(8) {
            Kind::Post
        } else if (self.is_near_expiry() || self.is_announced()) && self.dice.once_in(8) {
            if self.is_announced() && self.dice.once_in(2) { Kind::Object } else { Kind::Close }
        } else {
            any_kind(self.dice)
        };
        self.operation_of(kind)
    }

    /// Whether an open task is about to expire, or has just expired.
    fn is_near_expiry(&self) -> bool {
        let ends = |task: &TaskModel<AllTotals>| task.rules.expires.abs_diff(self.model.now) <= 1;
        self.model.tasks.iter().any(|task| task.open && !task.closed && ends(task))
    }

    /// Whether an open task has an announced close.
    fn is_announced(&self) -> bool {
        self.model.tasks.iter().any(|task| !task.closed && task.announced_close().is_some())
    }

    /// The first operations of most histories: a task, and a bond in it.
    pub fn initial_operation(&mut self, step: usize) -> Operation {
        match step {
            0 => {
                let act = Act::OpenTask { t: 0, rules: self.rules(), flaw: Flaw::Nothing };
                Operation { from: BUYER, act }
            }
            1 => {
                // The coordinator's bond: mostly less than the whole escrow.
                let rapid = i128::from(self.posts_rapidly);
                let amount = 390 * rapid + (1 - rapid) * (20 + self.dice.below(400) as i128);
                Operation {
                    from: self.model.tasks[0].rules.coordinator,
                    act: Act::Bond { t: 0, amount },
                }
            }
            _ => {
                let amount = 20 + self.dice.below(40) as i128;
                Operation { from: self.any_account(), act: Act::Bond { t: 0, amount } }
            }
        }
    }

    fn operation_of(&mut self, kind: Kind) -> Operation {
        let t = self.some_task();
        let from = self.sender(kind, t);
        let mut amount = self.dice.amount();
        if kind == Kind::Bond && from == self.model.tasks[t].rules.coordinator {
            amount = amount.saturating_mul(3);
        }
        let act = match kind {
            Kind::Transfer => Act::Transfer { to: self.any_account(), amount },
            Kind::OpenTask => self.opening(t),
            Kind::Bond => Act::Bond { t, amount },
            Kind::Unbond => Act::Unbond { t },
            Kind::WithdrawBond => Act::WithdrawBond { t },
            Kind::Stake => Act::Stake { amount },
            Kind::Pledge => Act::Pledge { t },
            Kind::Unstake => Act::Unstake,
            Kind::WithdrawStake => Act::WithdrawStake,
            Kind::Post => Act::Post { t, new: self.settlement(t) },
            Kind::Cancel => Act::Cancel { t, round: self.pending_round(t) },
            Kind::Finalize => Act::Finalize { t },
            Kind::Claim => self.claim(t),
            Kind::Close => Act::Close { t },
            Kind::AnnounceClose => Act::AnnounceClose { t },
            Kind::Object => Act::Object {
                t,
                round: (self.model.tasks[t].round + self.dice.below(4) as i128).min(LAST_ROUND),
                signer: self.sender(Kind::AnnounceClose, t),
            },
            Kind::Slash => {
                let stake = self.dice.once_in(2);
                Act::Slash { t, who: self.slash_target(t, stake), stake, amount }
            }
            Kind::SetSplit => self.split(t, from),
        };
        Operation { from, act }
    }

    /// Whether the coordinator's bond covers little more than what is posted.
    fn lacks_cover(&self, t: usize) -> bool {
        let task = &self.model.tasks[t];
        let posted: i128 = task.latest_settlement().2.iter().sum();
        task.covered().is_some_and(|covered| covered < posted + 40)
    }

    fn any_account(&mut self) -> usize {
        self.dice.below(PEOPLE as u64)
    }

    /// A task, mostly an open one.
    fn some_task(&mut self) -> usize {
        let open = self.model.tasks.iter().position(|task| task.open && !task.closed);
        match self.dice.below(8) {
            0 => self.dice.below(self.model.tasks.len() as u64),
            1 => 1,
            _ => open.unwrap_or(0),
        }
    }

    /// A sender, mostly one that is authorised or has something to lose.
    fn sender(&mut self, kind: Kind, t: usize) -> usize {
        let task = &self.model.tasks[t];
        let some = |of: &mut dyn Iterator<Item = usize>, dice: &mut TestRng| {
            let all: Vec<usize> = of.collect();
            (!all.is_empty()).then(|| all[dice.below(all.len() as u64)])
        };
        let right = match kind {
            Kind::OpenTask => Some(BUYER),
            Kind::Close if self.is_near_expiry() || task.announced_close().is_some() => None,
            Kind::Post | Kind::Close | Kind::AnnounceClose => Some(task.rules.coordinator),
            Kind::Cancel | Kind::Slash => Some(task.rules.arbiter),
            // Posts stop without the coordinator's bond.
            Kind::Bond if self.lacks_cover(t) => Some(task.rules.coordinator),
            Kind::SetSplit => some(&mut (0..PEOPLE).filter(|n| task.bonds[*n] == 0), self.dice),
            Kind::Unbond => some(&mut (0..PEOPLE).filter(|n| task.bonds[*n] > 0), self.dice),
            Kind::WithdrawBond => {
                some(&mut (0..PEOPLE).filter(|n| task.releases[*n].is_some()), self.dice)
            }
            Kind::Pledge | Kind::Unstake => {
                some(&mut (0..PEOPLE).filter(|n| self.model.stakes[*n] > 0), self.dice)
            }
            Kind::WithdrawStake => {
                let leaving = |n: &usize| self.model.stake_releases[*n].is_some();
                some(&mut (0..PEOPLE).filter(leaving), self.dice)
            }
            _ => None,
        };
        let stranger = if self.posts_rapidly { 40 } else { 5 };
        right.filter(|_| !self.dice.once_in(stranger)).unwrap_or_else(|| self.any_account())
    }

    /// An account to slash, mostly one with a bond or a pledge.
    fn slash_target(&mut self, t: usize, stake: bool) -> usize {
        let task = &self.model.tasks[t];
        let has = |n: &usize| if stake { task.pledges[*n].is_some() } else { task.bonds[*n] > 0 };
        let all: Vec<usize> = (0..PEOPLE).filter(has).collect();
        if all.is_empty() || self.dice.once_in(4) {
            return self.any_account();
        }
        all[self.dice.below(all.len() as u64)]
    }

    /// A split among one to three accounts, sometimes the one that the sender has.
    fn split(&mut self, t: usize, from: usize) -> Act {
        let held = &self.model.tasks[t].splits[from];
        if !held.is_empty() && self.dice.once_in(3) {
            return Act::SetSplit { t, members: held.clone(), flaw: SplitFlaw::Nothing };
        }
        let (first, second) = (self.any_account(), self.any_account());
        let part = |dice: &mut TestRng| dice.below(500_000) as i128;
        let (a, b) = (part(self.dice), part(self.dice));
        let mut members = vec![(first, a), (second, b), (5, 1_000_000 - a - b)];
        members.retain(|(_, share)| *share > 0 || self.dice.once_in(2));
        let mut known = [false; PEOPLE];
        let mut lost = 0;
        members.retain(|(member, share)| {
            let is_new = !std::mem::replace(&mut known[*member], true);
            lost += if is_new { 0 } else { *share };
            is_new
        });
        members[0].1 += lost + i128::from(self.dice.once_in(12));
        members.sort_unstable();
        let flaw = match self.dice.below(16) {
            0 => SplitFlaw::Unordered,
            1 => SplitFlaw::Crowded,
            _ => SplitFlaw::Nothing,
        };
        Act::SetSplit { t, members, flaw }
    }

    fn opening(&mut self, t: usize) -> Act {
        let flaw = match self.dice.below(15) {
            0 => Flaw::BuyerIsArbiter,
            7 => Flaw::NoArbiter,
            8 => Flaw::NoWindow,
            9 => Flaw::LongLife,
            5 => Flaw::NoRounds,
            6 => Flaw::LargeFloor,
            1 => Flaw::TooSmall,
            2 => Flaw::LongWindow,
            3 => Flaw::LongDelay,
            4 => Flaw::TooExpensive,
            _ => Flaw::Nothing,
        };
        let t = if self.dice.once_in(2) { 1 } else { t };
        Act::OpenTask { t, rules: self.rules(), flaw }
    }

    /// The usual terms, with one of them sometimes replaced by zero, a small value or a maximum.
    fn rules(&mut self) -> Rules {
        let mut rules = Rules {
            coordinator: 1,
            arbiter: 2,
            data: 300,
            infrastructure: 90,
            rounds: if self.posts_rapidly { 80 } else { 12 },
            per_nat_max: 50,
            floor_share: 400_000,
            bond_min: 20,
            debit_max: 12,
            stake_min: 50,
            window: 100,
            delay: 250,
            expires: self.model.now + 3_000,
        };
        let small = self.dice.below(9) as i128;
        match self.dice.below(34) {
            0 => rules.data = 1 + 5 * small,
            1 => rules.infrastructure = small,
            2 => rules.bond_min = 0,
            3 => rules.debit_max = small / 2,
            4 => rules.stake_min = small,
            5 | 6 => rules.window = 1 + small / 2,
            7 | 8 => rules.delay = 50 * small,
            // A task may be expired when it is opened.
            9 => rules.expires = self.model.now + 50 * (small - 1),
            10 => rules.coordinator = BUYER,
            // Its own arbiter: no bond is required.
            20 | 21 => rules.coordinator = rules.arbiter,
            11 => rules.debit_max = UNBOUNDED,
            12 if self.dice.once_in(2) => rules.bond_min = UNBOUNDED,
            12 => rules.stake_min = UNBOUNDED,
            13 => rules.expires = self.model.now + LONGEST_LIFE,
            14 => rules.window = LONGEST,
            15 => rules.delay = LONGEST,
            16 => rules.rounds = 1 + small,
            17 => rules.rounds = LAST_ROUND,
            18 => rules.per_nat_max = small,
            19 => rules.floor_share = 125_000 * small,
            _ => {}
        }
        rules
    }

    /// A round close to the task's current one.
    fn some_round(&mut self, t: usize) -> i128 {
        let (last, ..) = self.model.tasks[t].latest_settlement();
        if self.dice.once_in(150) {
            return LAST_ROUND;
        }
        let next = last + 1 + [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, -1, -2][self.dice.below(12)];
        next.clamp(0, LAST_ROUND)
    }

    fn pending_round(&mut self, t: usize) -> i128 {
        let pending = &self.model.tasks[t].pending;
        if pending.is_empty() || self.dice.once_in(6) {
            return self.some_round(t);
        }
        pending[self.dice.below(pending.len() as u64)].round
    }

    fn claim(&mut self, t: usize) -> Act {
        let task = &self.model.tasks[t];
        // Sometimes with a proof under a root that is not final yet.
        let tree = match task.pending.last() {
            Some(last) if self.dice.once_in(8) => last.totals,
            _ => task.totals,
        };
        let owed: Vec<usize> = (0..PEOPLE).filter(|n| tree[*n] != task.claimed[*n]).collect();
        let who = if owed.is_empty() || self.dice.once_in(5) {
            self.any_account()
        } else {
            owed[self.dice.below(owed.len() as u64)]
        };
        let (paid, debited) = tree[who];
        let totals = (paid + i128::from(self.dice.once_in(12)), debited);
        Act::Claim { t, who, totals, tree }
    }

    fn settlement(&mut self, t: usize) -> Pending {
        if self.posts_rapidly && !self.dice.once_in(8) {
            return self.next_settlement(t);
        }
        let task = &self.model.tasks[t];
        // Sometimes a settlement that was posted already, or a small variation of one.
        let standing = task.finals.values().chain(&task.pending);
        let standing: Vec<&Pending> = standing.collect();
        if !standing.is_empty() && self.dice.once_in(6) {
            let mut again = standing[self.dice.below(standing.len() as u64)].clone();
            again.window = 0;
            match self.dice.below(6) {
                0 => again.report.0[0] += 1,
                1 => again.data += 1,
                2 => again.previous = [(1, 1); PEOPLE],
                _ => {}
            }
            return again;
        }
        let mut new = self.next_settlement(t);
        match self.dice.below(45) {
            0 => new.payout_round += 7,
            1 => new.payout_round -= 1,
            2 => new.previous = task.totals,
            3 => new.previous = [(0, 0); PEOPLE],
            // The root promises more than the declared total.
            4 | 5 => new.data = (new.data - self.dice.below(120) as i128).max(0),
            6 => new.data = task.rules.data + 1,
            7 => new.infrastructure = task.rules.infrastructure + 1,
            8 => new.infrastructure = 0,
            9 => new.totals = [(0, 0); PEOPLE],
            10 => new.improvement_nano = (new.improvement_nano - 1).max(0),
            11 => new.score_pay = (new.score_pay - 1 - self.dice.below(20) as i128).max(0),
            12 => new.score_pay = new.data + 1,
            13 => new.round = (task.rules.rounds + 1).min(LAST_ROUND),
            // All that the coordinator's bond covers, or one more.
            14 | 15 => {
                let covered = task.covered().unwrap_or(task.rules.data);
                let one_more = i128::from(self.dice.once_in(2));
                new.data = (covered - new.infrastructure + one_more).max(0);
                (new.score_pay, new.improvement_nano) = (new.data, u64::MAX.into());
            }
            _ => {}
        }
        new.payout_round = new.payout_round.clamp(0, LAST_ROUND);
        new
    }

    /// A settlement that is mostly valid.
    fn next_settlement(&mut self, t: usize) -> Pending {
        let (last, previous, [data, mut infrastructure]) = self.model.tasks[t].latest_settlement();
        let mut totals = previous;
        let (pay_max, infrastructure_max) = if self.posts_rapidly { (2, 2) } else { (9, 4) };
        for (n, (paid, debited)) in totals.iter_mut().enumerate() {
            *paid += if self.dice.once_in(3) { 0 } else { self.dice.below(pay_max) as i128 };
            // Sometimes above the debit limit, which later rounds raise.
            let has_bond = self.model.tasks[t].bonds[n] > 0;
            if self.dice.once_in(if has_bond { 2 } else { 8 }) {
                *debited += self.dice.below(14) as i128;
            }
        }
        infrastructure += self.dice.below(infrastructure_max) as i128;
        if !self.posts_rapidly && self.dice.once_in(12) {
            let who = self.any_account();
            let (paid, debited) = totals[who];
            totals[who] = if self.dice.once_in(2) { (0, debited) } else { (paid, 0) };
        }
        let more: i128 = (0..PEOPLE).map(|n| totals[n].0 - previous[n].0).sum();
        let round =
            if self.posts_rapidly { (last + 1).min(LAST_ROUND) } else { self.some_round(t) };
        let data = (data + more).max(0);
        let rules = &self.model.tasks[t].rules;
        let floor_max = rules.data * rules.floor_share * round / (1_000_000 * rules.rounds.max(1));
        // Mostly the whole floor, and the improvement that just covers the rest.
        let score_pay = (data - floor_max).max(0) + i128::from(self.dice.once_in(4));
        let score_pay = score_pay.min(data);
        let covering = (score_pay * 1_000_000_000 + rules.per_nat_max - 1)
            .checked_div(rules.per_nat_max)
            .unwrap_or(0);
        Pending {
            round,
            payout_round: round,
            previous,
            totals,
            data,
            infrastructure,
            score_pay,
            improvement_nano: covering,
            report: Digest([6; 32]),
            window: 0,
        }
    }
}
