//! A model held against the real chain under long random histories, with the chain reopened in between.

mod books;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use florin_ledger::conformance::TestSigner;
use florin_ledger::{
    Claim, Claimed, Genesis, Ledger, LedgerError, LocalChain, Posted, Settlement, SettlementStatus,
    Slash, Terms,
};
use florin_protocol::merkle::{self, Tree};
use florin_protocol::{
    Address, Amount, ChainId, DUST_PER_ROUND, Digest, NodeSigner, PayoutId, Report, Round, Signer,
    TaskId, Tick,
};

use books::{
    ARBITER, BOND_MIN, BUYER, COORDINATOR, DATA, DEBIT_MAX, DELAY, FUNDS, INFRASTRUCTURE, LIFE,
    Model, PEOPLE, Pending, STAKE_MIN, Totals, Verdict, WINDOW,
};

const START: u64 = 1_000;

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

/// The model counts in smallest data pools.
fn units(n: i64) -> Amount {
    Amount::from_units(u128::try_from(n).unwrap() * DUST_PER_ROUND.units())
}

fn number(amount: Amount) -> i64 {
    i64::try_from(amount.units() / DUST_PER_ROUND.units()).unwrap()
}

fn leaf((paid, debited): (i64, i64)) -> merkle::Totals {
    merkle::Totals { paid: units(paid), debited: units(debited) }
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
    Report::payout_id(task_id(t), Round(u32::try_from(round).unwrap()))
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

    fn tree(&self, all: &Totals) -> Tree {
        let leaves = all.iter().zip(&self.people).filter(|(totals, _)| **totals != (0, 0));
        Tree::new(leaves.map(|(totals, person)| (person.address(), leaf(*totals))))
    }

    /// Carries one random operation out on both sides.
    fn step(&mut self, dice: &mut Dice) -> (String, Verdict, Verdict) {
        let from = dice.roll(PEOPLE as u64);
        let t = usize::from(dice.roll(6) == 0);
        match dice.roll(24) {
            kind @ 0..11 => self.own_money(dice, kind, from, t),
            11..=14 => self.post(dice, from, t),
            kind => self.task_money(dice, kind, from, t),
        }
    }

    fn own_money(
        &mut self,
        dice: &mut Dice,
        kind: usize,
        from: usize,
        t: usize,
    ) -> (String, Verdict, Verdict) {
        let (who, amount) = (dice.roll(PEOPLE as u64), dice.amount());
        let from = match kind {
            2 if from < 4 => BUYER,
            6 => self.some_debtor(dice, t),
            _ => from,
        };
        let terms = self.terms(t);
        let (chain, by, task) = (self.chain.as_ref().unwrap(), &self.people[from], task_id(t));
        let done = |_| 0;
        let model = &mut self.model;
        match kind {
            0 | 1 => {
                let to = self.people[who].address();
                let answer = verdict(chain.transfer(by, to, units(amount)), done);
                (format!("{from} pays {who} {amount}"), answer, model.transfer(from, who, amount))
            }
            2 => {
                let answer = verdict(chain.open_task(by, &terms), done);
                (format!("{from} opens {t}"), answer, model.open_task(from, t))
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
            _ => {
                let answer = verdict(chain.withdraw_stake(by), number);
                (format!("{from} withdraws its stake"), answer, model.withdraw_stake(from))
            }
        }
    }

    fn task_money(
        &mut self,
        dice: &mut Dice,
        kind: usize,
        from: usize,
        t: usize,
    ) -> (String, Verdict, Verdict) {
        let (who, task) = (dice.roll(PEOPLE as u64), task_id(t));
        let (chain, by) = (self.chain.as_ref().unwrap(), &self.people[from]);
        match kind {
            15 | 16 => {
                let answer = verdict(chain.finalize(by, task), |n| n as i64);
                let model = &mut self.model;
                let expected = model.open(t).map(|()| model.settle(t));
                (format!("{from} finalises {t}"), answer, expected)
            }
            17..=19 => {
                let totals = self.model.tasks[t].totals;
                let (paid, debited) = totals[who];
                let own = (paid + i64::from(dice.roll(8) == 0), debited);
                let account = self.people[who].address();
                let proof = self.tree(&totals).proof(account, leaf(own)).unwrap_or_default();
                let claim = Claim { task, account, totals: leaf(own), proof };
                let both = |moved: Claimed| number(moved.paid) + 1_000 * number(moved.taken);
                let answer = verdict(chain.claim(by, &claim), both);
                let expected = self.model.claim(t, who, own);
                let verb = if expected.is_ok_and(|n| n >= 1_000) { "debits" } else { "claims" };
                (format!("{from} {verb} {own:?} for {who} from {t}"), answer, expected)
            }
            20 if dice.roll(10) == 0 => {
                let answer = verdict(chain.close(by, task), number);
                (format!("{from} closes {t}"), answer, self.model.close(from, t))
            }
            20 | 21 => {
                let from = if from < 5 { ARBITER } else { from };
                let pending = &self.model.tasks[t].pending;
                let round = match pending.len() as u64 {
                    0 => self.some_round(dice, t),
                    waiting => pending[dice.roll(waiting)].round,
                };
                let answer = chain.cancel(&self.people[from], task, payout(t, round));
                let what = format!("{from} cancels round {round} of {t}");
                (what, verdict(answer, |_| 0), self.model.cancel(from, t, round))
            }
            _ => {
                let from = if from < 4 { ARBITER } else { from };
                let (account, amount) = (self.people[who].address(), dice.amount());
                let stake = dice.roll(2) == 0;
                let (amount_units, evidence) = (units(amount), Digest([4; 32]));
                let slash = Slash { task, account, stake, amount: amount_units, evidence };
                let answer = verdict(chain.slash(&self.people[from], &slash), number);
                let what = format!("{from} slashes {amount} of {who} in {t}, stake {stake}");
                (what, answer, self.model.slash(from, t, who, stake, amount))
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
        (last + 1 - [0, 0, 0, 1, 2][dice.roll(5)]).max(0)
    }

    /// Often somebody who has asked a bond back: there is more to go wrong.
    fn some_debtor(&self, dice: &mut Dice, t: usize) -> usize {
        let leaving = self.model.tasks[t].releases.iter().position(Option::is_some);
        let anybody = dice.roll(PEOPLE as u64);
        leaving.filter(|_| dice.roll(2) == 0).unwrap_or(anybody)
    }

    fn post(&mut self, dice: &mut Dice, from: usize, t: usize) -> (String, Verdict, Verdict) {
        let from = if from < 5 { COORDINATOR } else { from };
        let task = &self.model.tasks[t];
        let (mut totals, mut infrastructure) = match task.pending.last() {
            Some(last) => (last.totals, last.infrastructure),
            None => (task.totals, task.paid[1]),
        };
        // Now and then the settlement that it continues is not the last that stands.
        let previous = match dice.roll(9) {
            0 => task.totals,
            1 => [(0, 0); PEOPLE],
            _ => totals,
        };
        for (paid, debited) in &mut totals {
            *paid += dice.roll(9) as i64;
            // Now and then more than a round may take, which the next rounds make good.
            *debited += if dice.roll(3) == 0 { dice.roll(14) as i64 } else { 0 };
        }
        infrastructure += dice.roll(4) as i64;
        if dice.roll(12) == 0 {
            let who = dice.roll(PEOPLE as u64);
            totals[who] = if dice.roll(2) == 0 { (0, totals[who].1) } else { (totals[who].0, 0) };
        }
        let round = self.some_round(dice, t);
        let mut new = Pending { round, previous, totals, infrastructure, window: 0 };
        if let Some(same) = task.pending.iter().find(|p| p.round == round && dice.roll(2) == 0) {
            new = Pending { window: 0, ..same.clone() };
        }
        let settlement = Settlement {
            task: task_id(t),
            payout: payout(t, round),
            round: Round(u32::try_from(round).unwrap()),
            report: Digest([6; 32]),
            previous_root: self.tree(&new.previous).root(),
            root: self.tree(&new.totals).root(),
            data_total: units(new.totals.iter().map(|(paid, _)| paid).sum()),
            infrastructure_total: units(new.infrastructure),
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
                let claimed = chain.claimed(task_id(t), owner).unwrap();
                assert_eq!(claimed, leaf(task.claimed[n]), "claimed by {n} in {t}");
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
    for verb in
        ["pays", "bonds", "posts", "finalises", "claims", "debits", "slashes", "pledges", "cancels"]
    {
        assert!(done.contains_key(verb), "nobody {verb}: {done:?}");
    }
}
