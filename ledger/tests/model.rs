//! A few plain lines that keep their own integers, held against the real chain under long random histories, with the
//! chain reopened in between.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use florin_ledger::conformance::TestSigner;
use florin_ledger::{
    Claim, Genesis, Ledger, LedgerError, LocalChain, Posted, Settlement, SettlementStatus, Slash,
    Terms,
};
use florin_protocol::merkle::Tree;
use florin_protocol::{
    Address, Amount, ChainId, Digest, NodeSigner, PayoutId, Round, Signer, TaskId, Tick,
};

const PEOPLE: usize = 6;
const FUNDS: i64 = 2_000;
const START: u64 = 1_000;
const DATA: i64 = 300;
const INFRASTRUCTURE: i64 = 90;
const BOND_MIN: i64 = 20;
const DEBIT_MAX: i64 = 12;
const STAKE_MIN: i64 = 50;
const WINDOW: i64 = 100;
const DELAY: i64 = 250;
const LIFE: i64 = 3_000;
const BUYER: usize = 0;
const COORDINATOR: usize = 1;
const ARBITER: usize = 2;

/// What an operation came to: a number where there is one, or a refusal's code.
type Verdict = Result<i64, &'static str>;

#[derive(Clone, Default)]
struct Pending {
    round: i64,
    totals: [i64; PEOPLE],
    infrastructure: i64,
    debit: (usize, i64),
    window: i64,
}

#[derive(Clone, Default)]
struct Task {
    open: bool,
    closed: bool,
    expires: i64,
    locked: [i64; 2],
    paid: [i64; 2],
    owed: i64,
    totals: [i64; PEOPLE],
    round: i64,
    claimed: [i64; PEOPLE],
    bonds: [i64; PEOPLE],
    releases: [Option<i64>; PEOPLE],
    pledges: [Option<i64>; PEOPLE],
    pending: Vec<Pending>,
    finals: BTreeMap<i64, Pending>,
}

/// The books as one would keep them on paper.
#[derive(Clone, Default)]
struct Model {
    now: i64,
    wallets: [i64; PEOPLE],
    stakes: [i64; PEOPLE],
    stake_releases: [Option<i64>; PEOPLE],
    treasury: i64,
    tasks: [Task; 2],
}

impl Model {
    fn pay(&mut self, who: usize, amount: i64) -> Result<(), &'static str> {
        if self.wallets[who] < amount {
            return Err("INSUFFICIENT_FUNDS");
        }
        self.wallets[who] -= amount;
        Ok(())
    }

    fn open(&self, t: usize) -> Result<(), &'static str> {
        if self.tasks[t].open { Ok(()) } else { Err("UNKNOWN_TASK") }
    }

    fn transfer(&mut self, from: usize, to: usize, amount: i64) -> Verdict {
        if from == to || amount == 0 {
            return Err("MEANINGLESS");
        }
        self.pay(from, amount)?;
        self.wallets[to] += amount;
        Ok(0)
    }

    fn open_task(&mut self, from: usize, t: usize) -> Verdict {
        if from != BUYER {
            return Err("NOT_ALLOWED");
        }
        if self.tasks[t].open {
            return Err("TASK_EXISTS");
        }
        self.pay(from, DATA + INFRASTRUCTURE)?;
        let expires = self.now + LIFE;
        self.tasks[t] =
            Task { open: true, expires, locked: [DATA, INFRASTRUCTURE], ..Task::default() };
        Ok(0)
    }

    fn bond(&mut self, from: usize, t: usize, amount: i64) -> Verdict {
        self.open(t)?;
        if self.tasks[t].closed {
            return Err("TASK_CLOSED");
        }
        if self.wallets[from] < amount {
            return Err("INSUFFICIENT_FUNDS");
        }
        if self.tasks[t].bonds[from] + amount < BOND_MIN {
            return Err("TOO_SMALL");
        }
        self.pay(from, amount)?;
        self.tasks[t].bonds[from] += amount;
        self.tasks[t].releases[from] = None;
        Ok(0)
    }

    fn unbond(&mut self, from: usize, t: usize) -> Verdict {
        self.open(t)?;
        if self.tasks[t].bonds[from] == 0 {
            return Err("NOT_FOUND");
        }
        self.tasks[t].releases[from].get_or_insert(self.now + DELAY);
        Ok(0)
    }

    fn withdraw_bond(&mut self, from: usize, t: usize) -> Verdict {
        self.open(t)?;
        let task = &mut self.tasks[t];
        if task.bonds[from] == 0 {
            return Err("NOT_FOUND");
        }
        if !task.closed {
            match task.releases[from] {
                None => return Err("NOT_FOUND"),
                Some(at) if self.now < at => return Err("TOO_EARLY"),
                Some(_) => {}
            }
        }
        let amount = std::mem::take(&mut task.bonds[from]);
        task.releases[from] = None;
        self.wallets[from] += amount;
        Ok(amount)
    }

    fn stake(&mut self, from: usize, amount: i64) -> Verdict {
        if amount == 0 {
            return Err("MEANINGLESS");
        }
        self.pay(from, amount)?;
        self.stakes[from] += amount;
        self.stake_releases[from] = None;
        Ok(0)
    }

    fn pledge(&mut self, from: usize, t: usize) -> Verdict {
        self.open(t)?;
        if self.tasks[t].closed {
            return Err("TASK_CLOSED");
        }
        if self.tasks[t].pledges[from].is_some() {
            return Ok(0);
        }
        if self.stakes[from] < STAKE_MIN {
            return Err("TOO_SMALL");
        }
        // A closed task's pledge is forgotten when the next one is made.
        for task in self.tasks.iter_mut().filter(|task| task.closed) {
            task.pledges[from] = None;
        }
        self.tasks[t].pledges[from] = Some(0);
        self.stake_releases[from] = None;
        Ok(0)
    }

    fn unstake(&mut self, from: usize) -> Verdict {
        if self.stakes[from] == 0 {
            return Err("NOT_FOUND");
        }
        let risky = |task: &Task| task.open && !task.closed && task.pledges[from].is_some();
        let delay = if self.tasks.iter().any(risky) { DELAY } else { 0 };
        self.stake_releases[from].get_or_insert(self.now + delay);
        Ok(0)
    }

    fn withdraw_stake(&mut self, from: usize) -> Verdict {
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

    fn post(&mut self, from: usize, t: usize, new: &Pending) -> Verdict {
        self.open(t)?;
        if from != COORDINATOR {
            return Err("NOT_ALLOWED");
        }
        let now = self.now;
        let task = &mut self.tasks[t];
        let standing = task.finals.get(&new.round).into_iter();
        let standing = standing.chain(task.pending.iter().filter(|p| p.round == new.round));
        if let Some(other) = standing.last() {
            let same = (other.totals, other.infrastructure, other.debit);
            let same = same == (new.totals, new.infrastructure, new.debit);
            return if same { Ok(1) } else { Err("CONFLICTING_SETTLEMENT") };
        }
        if task.closed {
            return Err("TASK_CLOSED");
        }
        let (round, data, infrastructure) = match task.pending.last() {
            Some(last) => (last.round, last.totals.iter().sum(), last.infrastructure),
            None => (task.round, task.paid[0], task.paid[1]),
        };
        let total: i64 = new.totals.iter().sum();
        let wrong = now > task.expires
            || new.round <= round
            || total < data
            || total > DATA
            || new.infrastructure < infrastructure
            || new.infrastructure > INFRASTRUCTURE
            || (total == 0 && new.infrastructure > 0)
            || new.debit.1 > DEBIT_MAX;
        if wrong {
            return Err("BAD_SETTLEMENT");
        }
        task.pending.push(Pending { window: now + WINDOW, ..new.clone() });
        Ok(0)
    }

    fn cancel(&mut self, from: usize, t: usize, round: i64) -> Verdict {
        self.open(t)?;
        if from != ARBITER {
            return Err("NOT_ALLOWED");
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

    fn settle(&mut self, t: usize) -> i64 {
        let task = &mut self.tasks[t];
        let mut count = 0;
        while task.pending.first().is_some_and(|p| self.now > p.window) {
            let p = task.pending.remove(0);
            let paid = [p.totals.iter().sum(), p.infrastructure];
            for pool in 0..2 {
                task.locked[pool] -= paid[pool] - task.paid[pool];
                task.owed += paid[pool] - task.paid[pool];
            }
            task.paid = paid;
            task.totals = p.totals;
            task.round = p.round;
            let (who, debit) = p.debit;
            let debit = debit.min(task.bonds[who]);
            task.bonds[who] -= debit;
            self.treasury += debit;
            task.finals.insert(p.round, p);
            count += 1;
        }
        count
    }

    fn claim(&mut self, t: usize, who: usize, total: i64) -> Verdict {
        self.open(t)?;
        let task = &mut self.tasks[t];
        if total == 0 || task.totals[who] != total {
            return Err("BAD_PROOF");
        }
        let amount = total - task.claimed[who];
        if amount <= 0 {
            return Err("NOTHING_TO_CLAIM");
        }
        if amount > task.owed {
            return Err("BAD_SETTLEMENT");
        }
        task.claimed[who] = total;
        task.owed -= amount;
        self.wallets[who] += amount;
        Ok(amount)
    }

    fn close(&mut self, from: usize, t: usize) -> Verdict {
        self.open(t)?;
        if self.tasks[t].closed {
            return Err("TASK_CLOSED");
        }
        if from != COORDINATOR && self.now <= self.tasks[t].expires {
            return Err("TOO_EARLY");
        }
        if self.tasks[t].pending.last().is_some_and(|p| self.now <= p.window) {
            return Err("SETTLEMENT_PENDING");
        }
        self.settle(t);
        let task = &mut self.tasks[t];
        let rest: i64 = std::mem::take(&mut task.locked).iter().sum();
        task.closed = true;
        self.wallets[BUYER] += rest;
        Ok(rest)
    }

    fn slash(&mut self, from: usize, t: usize, who: usize, stake: bool, amount: i64) -> Verdict {
        self.open(t)?;
        if from != ARBITER {
            return Err("NOT_ALLOWED");
        }
        let task = &mut self.tasks[t];
        if task.closed {
            return Err("TASK_CLOSED");
        }
        if amount == 0 {
            return Err("MEANINGLESS");
        }
        let taken = if stake {
            let Some(before) = task.pledges[who] else { return Err("NOT_FOUND") };
            let taken = amount.min(self.stakes[who]).min(STAKE_MIN - before);
            if taken == 0 {
                return Err("NOT_FOUND");
            }
            self.stakes[who] -= taken;
            let used_up = before + taken == STAKE_MIN;
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

    fn supply(&self) -> i64 {
        let tasks = self.tasks.iter().map(|task| {
            task.locked.iter().sum::<i64>() + task.owed + task.bonds.iter().sum::<i64>()
        });
        let people = self.wallets.iter().sum::<i64>() + self.stakes.iter().sum::<i64>();
        people + self.treasury + tasks.sum::<i64>()
    }
}

/// The seed is all there is to repeat a run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides) as usize
    }

    fn amount(&mut self) -> i64 {
        match self.roll(12) {
            0 => 0,
            1 => FUNDS + 1,
            _ => self.roll(80) as i64,
        }
    }
}

/// The real chain beside the model, and everybody's keys.
struct Both {
    chain: Option<LocalChain>,
    model: Model,
    now: Arc<AtomicU64>,
    people: Vec<TestSigner>,
}

fn operator() -> NodeSigner {
    NodeSigner::from_seed(&[3; 32])
}

fn units(n: i64) -> Amount {
    Amount::from_units(u128::try_from(n).unwrap())
}

fn number(amount: Amount) -> i64 {
    i64::try_from(amount.units()).unwrap()
}

fn verdict<T>(answer: Result<T, LedgerError>, value: impl Fn(T) -> i64) -> Verdict {
    match answer {
        Ok(answer) => Ok(value(answer)),
        Err(LedgerError::Refused(refusal)) => Err(refusal.code()),
        Err(other) => panic!("{other}"),
    }
}

fn task_id(t: usize) -> TaskId {
    TaskId([t as u8 + 1; 32])
}

fn payout(t: usize, round: i64) -> PayoutId {
    let mut id = [t as u8 + 1; 32];
    id[..8].copy_from_slice(&round.to_be_bytes());
    PayoutId(id)
}

impl Both {
    fn new(path: &Path) -> Self {
        let people: Vec<TestSigner> =
            (0..PEOPLE as u64).map(|n| TestSigner::new(n).unwrap()).collect();
        let genesis = Genesis {
            chain_id: ChainId(5),
            operator: Address([1; 20]),
            operator_key: operator().key(),
            allocations: people.iter().map(|p| (p.address(), units(FUNDS))).collect(),
            created: Tick(START),
        };
        LocalChain::create(path, &genesis).unwrap();
        let model = Model { wallets: [FUNDS; PEOPLE], now: START as i64, ..Model::default() };
        Self { chain: None, model, now: Arc::new(AtomicU64::new(START)), people }
    }

    fn reopen(&mut self, path: &Path) {
        drop(self.chain.take());
        let now = Arc::clone(&self.now);
        let clock = Arc::new(move || Tick(now.load(Ordering::SeqCst)));
        self.chain = Some(LocalChain::open(path, operator(), clock).unwrap());
    }

    fn chain(&self) -> &LocalChain {
        self.chain.as_ref().unwrap()
    }

    fn wait(&mut self, ms: usize) {
        self.model.now += ms as i64;
        self.now.fetch_add(ms as u64, Ordering::SeqCst);
    }

    fn tree(&self, totals: &[i64; PEOPLE]) -> Tree {
        let leaves = totals.iter().zip(&self.people).filter(|(total, _)| **total > 0);
        Tree::new(leaves.map(|(total, person)| (person.address(), units(*total))))
    }

    /// Carries one random operation out on both sides.
    fn step(&mut self, dice: &mut Dice) -> (String, Verdict, Verdict) {
        let from = dice.roll(PEOPLE as u64);
        let (who, amount) = (dice.roll(PEOPLE as u64), dice.amount());
        let t = usize::from(dice.roll(6) == 0);
        let done = |_| 0;
        let (chain, by, task) = (self.chain.as_ref().unwrap(), &self.people[from], task_id(t));
        let model = &mut self.model;
        match dice.roll(22) {
            0 | 1 => {
                let to = self.people[who].address();
                let answer = verdict(chain.transfer(by, to, units(amount)), done);
                (format!("{from} pays {who} {amount}"), answer, model.transfer(from, who, amount))
            }
            2 => {
                let by = &self.people[if from < 4 { BUYER } else { from }];
                let terms = self.terms(t);
                let from = if from < 4 { BUYER } else { from };
                let answer = verdict(self.chain().open_task(by, &terms), done);
                (format!("{from} opens {t}"), answer, self.model.open_task(from, t))
            }
            3 | 4 => {
                let answer = verdict(chain.bond(by, task, units(amount)), done);
                (format!("{from} bonds {amount} in {t}"), answer, model.bond(from, t, amount))
            }
            5 => {
                let answer = verdict(chain.unbond(by, task), done);
                (format!("{from} unbonds {t}"), answer, model.unbond(from, t))
            }
            6 => {
                let answer = verdict(chain.withdraw_bond(by, task), number);
                (format!("{from} withdraws from {t}"), answer, model.withdraw_bond(from, t))
            }
            7 => {
                let answer = verdict(chain.stake(by, units(amount)), done);
                (format!("{from} stakes {amount}"), answer, model.stake(from, amount))
            }
            8 => {
                let answer = verdict(chain.pledge(by, task), done);
                (format!("{from} pledges to {t}"), answer, model.pledge(from, t))
            }
            9 => {
                let answer = verdict(chain.unstake(by), done);
                (format!("{from} unstakes"), answer, model.unstake(from))
            }
            10 => {
                let answer = verdict(chain.withdraw_stake(by), number);
                (format!("{from} withdraws its stake"), answer, model.withdraw_stake(from))
            }
            11..=14 => self.post(dice, from, t),
            15 => {
                let from = if from < 4 { ARBITER } else { from };
                let round = self.some_round(dice, t);
                let by = &self.people[from];
                let answer = verdict(self.chain().cancel(by, task, payout(t, round)), done);
                let what = format!("{from} cancels round {round} of {t}");
                (what, answer, self.model.cancel(from, t, round))
            }
            16 | 17 => {
                let answer = verdict(chain.finalize(by, task), |n| n as i64);
                let expected = model.open(t).map(|()| model.settle(t));
                (format!("{from} finalises {t}"), answer, expected)
            }
            18 | 19 => {
                let totals = model.tasks[t].totals;
                let total = totals[who] + i64::from(dice.roll(8) == 0);
                let account = self.people[who].address();
                let proof = self.tree(&totals).proof(account, units(total)).unwrap_or_default();
                let claim = Claim { task, account, total: units(total), proof };
                let answer = verdict(self.chain().claim(&self.people[from], &claim), number);
                let what = format!("{from} claims {total} for {who} from {t}");
                (what, answer, self.model.claim(t, who, total))
            }
            20 if dice.roll(6) == 0 => {
                let answer = verdict(chain.close(by, task), number);
                (format!("{from} closes {t}"), answer, model.close(from, t))
            }
            _ => {
                let from = if from < 4 { ARBITER } else { from };
                let (account, stake) = (self.people[who].address(), amount % 2 == 0);
                let amount_units = units(amount);
                let evidence = Digest([4; 32]);
                let slash = Slash { task, account, stake, amount: amount_units, evidence };
                let answer = verdict(chain.slash(&self.people[from], &slash), number);
                let what = format!("{from} slashes {amount} of {who} in {t}, stake {stake}");
                (what, answer, model.slash(from, t, who, stake, amount))
            }
        }
    }

    fn terms(&self, t: usize) -> Terms {
        Terms {
            task: task_id(t),
            buyer: self.people[BUYER].address(),
            coordinator: self.people[COORDINATOR].address(),
            arbiter: self.people[ARBITER].address(),
            data: units(DATA),
            infrastructure: units(INFRASTRUCTURE),
            bond_min: units(BOND_MIN),
            debit_max: units(DEBIT_MAX),
            stake_min: units(STAKE_MIN),
            challenge_ms: WINDOW as u64,
            unbond_ms: DELAY as u64,
            expires: Tick((self.model.now + LIFE) as u64),
        }
    }

    fn some_round(&self, dice: &mut Dice, t: usize) -> i64 {
        let task = &self.model.tasks[t];
        let last = task.pending.last().map_or(task.round, |p| p.round);
        last + 1 - dice.roll(4) as i64
    }

    fn post(&mut self, dice: &mut Dice, from: usize, t: usize) -> (String, Verdict, Verdict) {
        let from = if from < 5 { COORDINATOR } else { from };
        let task = &self.model.tasks[t];
        let (mut totals, mut infrastructure) = match task.pending.last() {
            Some(last) => (last.totals, last.infrastructure),
            None => (task.totals, task.paid[1]),
        };
        for total in &mut totals {
            *total += dice.roll(9) as i64;
        }
        infrastructure += dice.roll(4) as i64;
        if dice.roll(12) == 0 {
            totals[dice.roll(PEOPLE as u64)] = 0;
        }
        let round = self.some_round(dice, t).max(0);
        let debit = (dice.roll(PEOPLE as u64), dice.roll(14) as i64);
        let mut new = Pending { round, totals, infrastructure, debit, window: 0 };
        if let Some(same) = task.pending.iter().find(|p| p.round == round && dice.roll(2) == 0) {
            new = Pending { window: 0, ..same.clone() };
        }
        let settlement = Settlement {
            task: task_id(t),
            payout: payout(t, round),
            round: Round(u32::try_from(round).unwrap()),
            report: Digest([6; 32]),
            root: self.tree(&new.totals).root(),
            data_total: units(new.totals.iter().sum()),
            infrastructure_total: units(new.infrastructure),
            debits: vec![(self.people[new.debit.0].address(), units(new.debit.1))],
        };
        let answer = self.chain().post(&self.people[from], &settlement);
        let answer = verdict(answer, |posted| i64::from(posted == Posted::Already));
        let what = format!("{from} posts round {round} of {t}");
        (what, answer, self.model.post(from, t, &new))
    }

    /// Everything that can be read is what the model says.
    fn compare(&self) {
        let (chain, model) = (self.chain(), &self.model);
        assert_eq!(number(chain.treasury().unwrap()), model.treasury, "treasury");
        for (n, person) in self.people.iter().enumerate() {
            let owner = person.address();
            assert_eq!(number(chain.balance(owner).unwrap()), model.wallets[n], "wallet {n}");
            let stake = chain.stake_of(owner).unwrap();
            let release = stake.release.map(|at| at.0 as i64);
            let stake = (number(stake.amount), release);
            assert_eq!(stake, (model.stakes[n], model.stake_releases[n]), "stake {n}");
            for (t, task) in model.tasks.iter().enumerate() {
                let bond = chain.bond_of(task_id(t), owner).unwrap();
                let release = bond.release.map(|at| at.0 as i64);
                let bond = (number(bond.amount), release);
                assert_eq!(bond, (task.bonds[n], task.releases[n]), "bond {n} in {t}");
                let claimed = number(chain.claimed(task_id(t), owner).unwrap());
                assert_eq!(claimed, task.claimed[n], "claimed by {n} in {t}");
                let pledged = chain.pledged(task_id(t), owner).unwrap();
                assert_eq!(pledged, task.pledges[n].is_some(), "pledge of {n} to {t}");
            }
        }
        for (t, task) in model.tasks.iter().enumerate() {
            let Some(books) = chain.task(task_id(t)).unwrap() else {
                assert!(!task.open);
                continue;
            };
            let locked = [books.data_locked, books.infrastructure_locked].map(number);
            let paid = [books.data_paid, books.infrastructure_paid].map(number);
            assert_eq!((locked, paid), (task.locked, task.paid), "task {t}");
            assert_eq!((number(books.owed), books.closed), (task.owed, task.closed), "task {t}");
            assert_eq!(books.pending.len(), task.pending.len(), "pending in {t}");
            for (p, found) in task.pending.iter().zip(&books.pending) {
                assert_eq!(found.final_at.0 as i64, p.window);
                let status = chain.settlement(task_id(t), payout(t, p.round)).unwrap();
                assert_eq!(status, SettlementStatus::Pending);
            }
        }
        assert_eq!(model.supply(), FUNDS * PEOPLE as i64, "the model itself");
    }
}

fn seed() -> u64 {
    let seed = match std::env::var("FLORIN_SEED") {
        Ok(text) => text.parse().expect("FLORIN_SEED must be a number"),
        Err(_) => RandomState::new().build_hasher().finish(),
    };
    println!("FLORIN_SEED={seed}");
    seed
}

#[test]
fn the_chain_does_what_the_model_says_whatever_happens() {
    let mut dice = Dice(seed());
    let (mut done, mut refused) = (BTreeMap::new(), BTreeMap::new());
    for life in 0..6 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut both = Both::new(&path);
        both.reopen(&path);
        for n in 0..700 {
            if dice.roll(60) == 0 {
                both.reopen(&path);
            }
            let ms = dice.roll(20);
            both.wait(ms);
            let (what, got, expected) = both.step(&mut dice);
            assert_eq!(got, expected, "life {life}, step {n}: {what}");
            both.compare();
            match got {
                Ok(_) => *done.entry(what.split(' ').nth(1).unwrap().to_owned()).or_insert(0) += 1,
                Err(code) => *refused.entry(code).or_insert(0) += 1,
            }
        }
        drop(both);
        let found = LocalChain::verify(&path).unwrap();
        assert!(found.transactions > 50);
    }
    println!("done: {done:?}");
    println!("refused: {refused:?}");
    // A history in which hardly anything happens would prove nothing.
    for verb in ["pays", "bonds", "posts", "finalises", "claims", "slashes", "pledges", "cancels"] {
        assert!(done.contains_key(verb), "nobody {verb}: {done:?}");
    }
}
