//! Random play of a coordinator that takes pay by false roots, against three arbiters: for all of its
//! posts, claims and withdrawals, its bond bounds the amount that it takes while the arbiter acts in
//! time.

use florin_protocol::merkle::{ClaimTotals, ClaimTree};
use florin_protocol::{Digest, Report, RoundNumber};
use florin_testkit::figures::{Bar, figure};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::tests::*;
use super::*;
use crate::action::Action;
use crate::api::{Claim, Settlement, Slash, Terms};

/// The account to which false roots assign pay: the coordinator's second one.
const ACCOMPLICE: u8 = 5;
const WINDOW: u64 = 100;
const ROUNDS: u32 = 60;

/// How the arbiter of a play reacts to false settlements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arbiter {
    /// Cancels and slashes within the challenge window.
    Prompt,
    /// Acts within two windows of the post: cancels what is pending, slashes what is final.
    Late,
    /// Does nothing.
    Colluding,
}

/// One move of the coordinator, after a pause.
#[derive(Clone, Copy, Debug)]
enum Play {
    Deposit(u128),
    RequestReturn,
    Withdraw,
    /// A settlement that pays Alice this much more.
    Honest(u128),
    /// A settlement that pays the accomplice this much more.
    False(u128),
    Finalize,
    Claim,
    Announce,
    Close,
}

/// A posted false settlement to which the arbiter has not reacted.
#[derive(Clone, Copy, Debug)]
struct Theft {
    round: u32,
    amount: u128,
    /// When the arbiter acts.
    act_at: u64,
}

struct RandomPlay {
    state: LedgerState,
    arbiter: Arbiter,
    now: u64,
    round: u32,
    /// The totals of each posted settlement that may still become final: round, Alice's,
    /// the accomplice's.
    posted: Vec<(u32, u128, u128)>,
    thefts: Vec<Theft>,
    bond_max: u128,
    slashed: u128,
    /// The largest part of the bond that was posted and not final.
    pending_part_max: f64,
}

fn tree((alice, accomplice): (u128, u128)) -> ClaimTree {
    let leaves = [(ALICE, alice), (ACCOMPLICE, accomplice)].into_iter().filter(|leaf| leaf.1 > 0);
    ClaimTree::new(leaves.map(|(who, paid)| (address(who), paid_totals(paid))))
}

fn paid_totals(paid: u128) -> ClaimTotals {
    ClaimTotals { paid: units(paid), debited: Amount::ZERO }
}

fn root(totals: (u128, u128)) -> Digest {
    if totals == (0, 0) { Digest::default() } else { tree(totals).root() }
}

impl RandomPlay {
    fn new(arbiter: Arbiter) -> Self {
        let terms = Terms { rounds: ROUNDS, data: units(600), challenge_ms: WINDOW, ..terms(TASK) };
        let state = state_without_bond(terms);
        let (posted, thefts) = (vec![(0, 0, 0)], Vec::new());
        Self {
            state,
            arbiter,
            now: 0,
            round: 0,
            posted,
            thefts,
            bond_max: 0,
            slashed: 0,
            pending_part_max: 0.0,
        }
    }

    fn act(&mut self, from: u8, action: Action) -> Result<TransactionOutcome, &'static str> {
        execute(&mut self.state, self.now, from, action)
    }

    fn bond(&self) -> u128 {
        in_units(self.state.bond(TASK, address(COORDINATOR)).amount)
    }

    /// Drops the totals of settlements that were cancelled.
    fn forget_cancelled(&mut self) {
        let state = &self.state;
        self.posted.retain(|(round, ..)| {
            let payout = Report::settlement_id(TASK, RoundNumber(*round));
            *round == 0 || state.settlement_status(TASK, payout) != SettlementStatus::Unknown
        });
    }

    fn post(&mut self, honest: u128, stolen: u128) {
        let (_, alice, accomplice) = *self.posted.last().unwrap();
        let totals = (alice + honest, accomplice + stolen);
        self.round += 1;
        let settlement = Settlement {
            previous_root: root((alice, accomplice)),
            root: root(totals),
            data_total: units(totals.0 + totals.1),
            ..settlement(self.round, 0)
        };
        let task = self.state.task(TASK).unwrap();
        let release = self.state.bond(TASK, address(COORDINATOR)).release;
        let covered = if release.is_some() { 0 } else { self.bond() };
        let pending = totals.0 + totals.1 - in_units(task.data_paid);
        match self.act(COORDINATOR, Action::Post(settlement)) {
            Ok(_) => {
                assert!(pending <= covered, "{pending} posted and not final, {covered} covered");
                let part = pending as f64 / covered.max(1) as f64;
                self.pending_part_max = self.pending_part_max.max(part);
                self.posted.push((self.round, totals.0, totals.1));
                if stolen > 0 {
                    let delay = match self.arbiter {
                        Arbiter::Prompt => 1 + u64::from(self.round) * 37 % WINDOW,
                        _ => 1 + u64::from(self.round) * 37 % (2 * WINDOW - 1),
                    };
                    let act_at = self.now + delay;
                    self.thefts.push(Theft { round: self.round, amount: stolen, act_at });
                }
            }
            Err("TOO_SMALL") => assert!(pending > covered, "{pending} fit in {covered}"),
            Err(code) => assert!(["INVALID_SETTLEMENT", "TASK_CLOSED"].contains(&code), "{code}"),
        }
    }

    /// The arbiter's reaction to every theft whose moment has come.
    fn judge(&mut self, until: u64) {
        while self.arbiter != Arbiter::Colluding {
            let next = self.thefts.iter().position(|theft| theft.act_at <= until);
            let Some(next) = next else { break };
            let theft = self.thefts.remove(next);
            self.now = self.now.max(theft.act_at);
            let payout = Report::settlement_id(TASK, RoundNumber(theft.round));
            let was_cancelled = self.act(ARBITER, Action::Cancel { task: TASK, payout });
            let is_final = was_cancelled == Err("WINDOW_CLOSED");
            assert!(!is_final || self.arbiter == Arbiter::Late, "{theft:?} at {}", self.now);
            if is_final {
                let (account, evidence) = (address(COORDINATOR), Digest([1; 32]));
                let amount = units(theft.amount);
                let slash = Slash { task: TASK, account, stake: false, amount, evidence };
                if let Ok(TransactionOutcome::Moved(taken)) =
                    self.act(ARBITER, Action::Slash(slash))
                {
                    self.slashed += in_units(taken);
                }
            }
            self.forget_cancelled();
        }
    }

    fn claim(&mut self) {
        let root_now = self.state.task(TASK).unwrap().root;
        let of_root =
            self.posted.iter().find(|(_, alice, other)| root((*alice, *other)) == root_now);
        let Some((_, alice, other)) = of_root.copied().filter(|(_, _, other)| *other > 0) else {
            return;
        };
        let totals = paid_totals(other);
        let account = address(ACCOMPLICE);
        let proof = tree((alice, other)).proof(account, totals).unwrap();
        let claimed =
            self.act(ACCOMPLICE, Action::Claim(Claim { task: TASK, account, totals, proof }));
        assert!(claimed.is_ok() || claimed == Err("NOTHING_TO_CLAIM"), "{claimed:?}");
    }

    fn step(&mut self, pause: u64, play: Play) {
        let at = self.now + pause;
        self.judge(at);
        self.now = self.now.max(at);
        let task = TASK;
        let was_open = !self.state.task(TASK).unwrap().closed;
        let before = self.bond();
        match play {
            Play::Deposit(n) => _ = self.act(COORDINATOR, Action::Bond { task, amount: units(n) }),
            Play::RequestReturn => _ = self.act(COORDINATOR, Action::Unbond { task }),
            Play::Withdraw => {
                let withdrawn = self.act(COORDINATOR, Action::WithdrawBond { task });
                assert!(!was_open || withdrawn.is_err(), "the bond left an open task");
            }
            Play::Honest(n) => self.post(n, 0),
            Play::False(n) => self.post(0, n),
            Play::Finalize => _ = self.act(ACCOMPLICE, Action::Finalize { task }),
            Play::Claim => self.claim(),
            Play::Announce => _ = self.act(COORDINATOR, Action::AnnounceClose { task }),
            Play::Close => _ = self.act(COORDINATOR, Action::Close { task }),
        }
        assert!(!was_open || self.bond() >= before);
        self.bond_max = self.bond_max.max(self.bond());
    }

    /// Everything that the coordinator can still do: it lets every window pass, claims, closes and
    /// withdraws. Then the gain of its two accounts.
    fn end(&mut self) -> i128 {
        for play in
            [Play::Finalize, Play::Claim, Play::Announce, Play::Close, Play::Withdraw, Play::Claim]
        {
            self.step(2 * WINDOW + 1, play);
        }
        let [coordinator, accomplice] = [COORDINATOR, ACCOMPLICE].map(address);
        assert_eq!(self.bond(), 0, "an honest close returns the bond");
        let have =
            in_units(self.state.balance(coordinator)) + in_units(self.state.balance(accomplice));
        i128::try_from(have).unwrap() - 2_000
    }
}

fn any_play() -> impl Strategy<Value = (u64, Play)> {
    let play = prop_oneof![
        4 => (0u128..60).prop_map(Play::Deposit),
        1 => Just(Play::RequestReturn),
        1 => Just(Play::Withdraw),
        4 => (0u128..20).prop_map(Play::Honest),
        6 => (1u128..30).prop_map(Play::False),
        4 => Just(Play::Finalize),
        3 => Just(Play::Claim),
        1 => prop_oneof![
            18 => Just(Play::Finalize),
            1 => Just(Play::Announce),
            1 => Just(Play::Close)
        ],
    ];
    (prop_oneof![3 => 0u64..40, 1 => 90u64..230], play)
}

/// A runner whose seed is printed; `FLORIN_SEED` reproduces an earlier run.
fn seeded_runner() -> TestRunner {
    let seed = std::env::var("FLORIN_SEED").map_or_else(
        |_| std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0),
        |text| text.parse().unwrap(),
    );
    println!("FLORIN_SEED={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let dice = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::default() }, dice)
}

/// The gain, the largest bond, the slashed amount, and the largest part of the bond that was posted
/// and not final, of random plays.
fn play(arbiter: Arbiter) -> Vec<(i128, u128, u128, f64)> {
    let mut runner = seeded_runner();
    let plays = prop::collection::vec(any_play(), 1..160);
    let games = (0..400).map(|_| {
        let mut game = RandomPlay::new(arbiter);
        for (pause, play) in plays.new_tree(&mut runner).unwrap().current() {
            game.step(pause, play);
        }
        (game.end(), game.bond_max, game.slashed, game.pending_part_max)
    });
    games.collect()
}

#[test]
fn a_coordinator_takes_nothing_under_an_arbiter_that_cancels_in_the_window() {
    let games = play(Arbiter::Prompt);
    let gain = games.iter().map(|(gain, ..)| *gain).max().unwrap();
    let name = "gain of a coordinator, arbiter cancels in the window, 400 random plays";
    figure(name, gain as f64, "FLN", Bar::AtMost(0.0));
    assert!(games.iter().all(|(gain, ..)| *gain == 0));
}

#[test]
fn a_coordinator_takes_at_most_its_bond_under_an_arbiter_that_slashes_in_time() {
    let games = play(Arbiter::Late);
    for (gain, bond_max, ..) in &games {
        assert!(*gain <= i128::try_from(*bond_max).unwrap(), "{gain} with a bond of {bond_max}");
    }
    let shares = games.iter().map(|(gain, bond, ..)| *gain as f64 / (*bond).max(1) as f64);
    let name = "gain of a coordinator, arbiter slashes within two windows, parts of its bond";
    figure(name, shares.fold(0.0, f64::max), "", Bar::AtMost(1.0));
    // The plays reach what they are about.
    let late_slashes = games.iter().filter(|(_, _, slashed, _)| *slashed > 0).count();
    assert!(late_slashes > 50, "{late_slashes} games with a slash after a final theft");
}

#[test]
fn a_coordinator_with_a_colluding_arbiter_posts_no_more_than_its_bond_covers() {
    let games = play(Arbiter::Colluding);
    let parts = games.iter().map(|(_, _, _, covered)| *covered);
    let name = "posted and not final pay, arbiter colludes, parts of the coordinator's bond";
    figure(name, parts.fold(0.0, f64::max), "", Bar::AtMost(1.0));
    assert!(games.iter().filter(|(gain, ..)| *gain > 0).count() > 50);
}
