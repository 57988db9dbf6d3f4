//! The rules as a table, and at the exact moments.

use florin_protocol::merkle::Tree;
use florin_protocol::{ChainId, DUST_PER_ROUND, Digest, Market, Report, Round};

use super::*;
use crate::action::Action;
use crate::api::{Claim, Posted, Settlement, Terms};
use crate::entry::Cause;
use crate::limits::{DEBITS_MAX, PENDING_MAX, PLEDGES_MAX, TASK_ANSWER_BYTES_MAX};

pub(super) const TASK: TaskId = TaskId([1; 32]);
const WINDOW: u64 = 100;
const DELAY: u64 = 300;
const EXPIRES: u64 = 5_000;

pub(super) fn who(n: u8) -> Address {
    Address([n; 20])
}

pub(super) const BUYER: u8 = 1;
pub(super) const COORDINATOR: u8 = 2;
pub(super) const ARBITER: u8 = 3;
const ALICE: u8 = 4;
const BOB: u8 = 5;

/// So many times the smallest data pool: whole numbers for everybody.
pub(super) fn units(n: u128) -> Amount {
    Amount::from_units(n.saturating_mul(DUST_PER_ROUND.units()))
}

pub(super) fn number(amount: Amount) -> u128 {
    amount.units() / DUST_PER_ROUND.units()
}

fn world() -> State {
    State::begin(&(1..=5).map(|n| (who(n), units(1_000))).collect::<Vec<_>>())
}

pub(super) fn terms(task: TaskId) -> Terms {
    Terms {
        task,
        buyer: who(BUYER),
        coordinator: who(COORDINATOR),
        arbiter: who(ARBITER),
        data: units(300),
        infrastructure: units(100),
        bond_min: units(20),
        debit_max: units(15),
        stake_min: units(50),
        challenge_ms: WINDOW,
        unbond_ms: DELAY,
        expires: Tick(EXPIRES),
    }
}

/// A round's settlement after one that led to nobody being paid anything: see [`after`].
pub(super) fn settlement(round: u32, total: u128, debits: Vec<(Address, Amount)>) -> Settlement {
    Settlement {
        task: TASK,
        payout: Report::payout_id(TASK, Round(round)),
        round: Round(round),
        report: Digest([8; 32]),
        previous_root: Digest::default(),
        root: root(total),
        data_total: units(total),
        infrastructure_total: Amount::ZERO,
        debits,
    }
}

/// The settlement as one that continues such a total.
pub(super) fn after(total: u128, settlement: Settlement) -> Settlement {
    Settlement { previous_root: root(total), ..settlement }
}

fn root(total: u128) -> Digest {
    if total == 0 { Digest::default() } else { tree(total).root() }
}

fn tree(total: u128) -> Tree {
    Tree::new([(who(ALICE), units(total))])
}

pub(super) fn claim(total: u128) -> Claim {
    let proof = tree(total).proof(who(ALICE), units(total)).unwrap();
    Claim { task: TASK, account: who(ALICE), total: units(total), proof }
}

/// Carries an action out and says what came of it: a refusal's code, or the outcome.
pub(super) fn act(
    state: &mut State,
    at: u64,
    from: u8,
    action: Action,
) -> Result<Outcome, &'static str> {
    let market = Market { chain: ChainId(1), genesis: Digest([0; 32]) };
    let nonce = state.nonce(who(from));
    let before = state.clone();
    match apply(state, &Transaction { market, from: who(from), nonce, action }, Tick(at)) {
        Ok((movements, outcome)) => {
            assert!(movements.iter().all(|m| !m.amount.is_zero() && m.from != m.to));
            // What changes nothing uses no nonce either.
            let used = u64::from(*state != before);
            assert_eq!(state.nonce(who(from)), nonce + used);
            Ok(outcome)
        }
        Err(ApplyError::Refused(refusal)) => {
            assert_eq!(*state, before, "{refusal} changed something");
            Err(refusal.code())
        }
        Err(ApplyError::Broken(what)) => panic!("{what}"),
    }
}

pub(super) fn open_world() -> State {
    let mut state = world();
    act(&mut state, 0, BUYER, Action::OpenTask(terms(TASK))).unwrap();
    state
}

/// (when, who, what, what comes of it)
type Line = (u64, u8, Action, Result<Outcome, &'static str>);

fn play(state: &mut State, lines: Vec<Line>) {
    for (n, (at, from, action, expected)) in lines.into_iter().enumerate() {
        let text = format!("line {n}, at {at}: {}", action.summary());
        assert_eq!(act(state, at, from, action), expected, "{text}");
    }
}

#[test]
fn windows_and_delays_end_at_the_exact_moment() {
    let task = TASK;
    let first = || settlement(1, 30, vec![]);
    let payout = first().payout;
    let done = Ok(Outcome::Done);
    let mut state = open_world();
    play(
        &mut state,
        vec![
            (10, COORDINATOR, Action::Post(first()), Ok(Outcome::Posted(Posted::New))),
            // Posted at 10, open for 100: the last moment to cancel is 110, the first to finalise 111.
            (110, ALICE, Action::Finalize { task }, Ok(Outcome::Finalised(0))),
            (110, COORDINATOR, Action::Close { task }, Err("SETTLEMENT_PENDING")),
            (110, ARBITER, Action::Cancel { task, payout }, done),
            (110, COORDINATOR, Action::Post(first()), Ok(Outcome::Posted(Posted::New))),
            (211, ARBITER, Action::Cancel { task, payout }, Err("WINDOW_CLOSED")),
            (211, ALICE, Action::Finalize { task }, Ok(Outcome::Finalised(1))),
            (211, ALICE, Action::Claim(claim(30)), Ok(Outcome::Moved(units(30)))),
            // Asked back at 300, at risk for 300.
            (300, ALICE, Action::Bond { task, amount: units(20) }, done),
            (300, ALICE, Action::Unbond { task }, done),
            (599, ALICE, Action::WithdrawBond { task }, Err("TOO_EARLY")),
            (600, ALICE, Action::WithdrawBond { task }, Ok(Outcome::Moved(units(20)))),
            // It expires at 5,000: posting ends then, and closing by anybody begins after it.
            (5_000, BOB, Action::Close { task }, Err("TOO_EARLY")),
            (
                5_000,
                COORDINATOR,
                Action::Post(after(30, settlement(2, 40, vec![]))),
                Ok(Outcome::Posted(Posted::New)),
            ),
            (
                5_001,
                COORDINATOR,
                Action::Post(after(40, settlement(3, 40, vec![]))),
                Err("BAD_SETTLEMENT"),
            ),
            (5_001, BOB, Action::Close { task }, Err("SETTLEMENT_PENDING")),
            (5_101, BOB, Action::Close { task }, Ok(Outcome::Moved(units(360)))),
        ],
    );
    assert_eq!(state.balance(who(BUYER)), units(960));
}

#[test]
fn debits_of_one_settlement_after_another_never_take_more_than_the_bond() {
    let task = TASK;
    let debit = |round, n| settlement(round, 0, vec![(who(ALICE), units(n)), (who(BOB), units(n))]);
    let posted = Ok(Outcome::Posted(Posted::New));
    let mut state = open_world();
    play(
        &mut state,
        vec![
            (0, ALICE, Action::Bond { task, amount: units(20) }, Ok(Outcome::Done)),
            (0, COORDINATOR, Action::Post(debit(1, 15)), posted),
            (1, COORDINATOR, Action::Post(debit(2, 15)), posted),
            (2, COORDINATOR, Action::Post(debit(3, 15)), posted),
            (2, COORDINATOR, Action::Post(debit(4, 16)), Err("BAD_SETTLEMENT")),
            (500, BOB, Action::Finalize { task }, Ok(Outcome::Finalised(3))),
        ],
    );
    assert_eq!(state.held(Account::Treasury), units(20));
    assert_eq!(state.bond(task, who(ALICE)).amount, Amount::ZERO);
}

#[test]
fn every_movement_of_a_close_is_told_with_its_cause() {
    let mut state = open_world();
    let action = Action::Bond { task: TASK, amount: units(20) };
    act(&mut state, 0, ALICE, action).unwrap();
    let debits = vec![(who(ALICE), units(5))];
    act(&mut state, 0, COORDINATOR, Action::Post(settlement(1, 30, debits))).unwrap();
    let market = Market { chain: ChainId(1), genesis: Digest([0; 32]) };
    let nonce = state.nonce(who(COORDINATOR));
    let from = who(COORDINATOR);
    let close = Transaction { market, from, nonce, action: Action::Close { task: TASK } };
    let (movements, outcome) = apply(&mut state, &close, Tick(101)).unwrap();
    let told: Vec<_> = movements.iter().map(|m| (m.cause, number(m.amount))).collect();
    let expected =
        [(Cause::Settled, 30), (Cause::Debited, 5), (Cause::Refunded, 270), (Cause::Refunded, 100)];
    assert_eq!(told, expected);
    assert_eq!(outcome, Outcome::Moved(units(370)));
}

#[test]
fn a_settlement_stands_only_on_the_one_it_was_worked_out_from() {
    let (task, posted) = (TASK, Ok(Outcome::Posted(Posted::New)));
    let wrong = || Err("BAD_SETTLEMENT");
    let post = |before, round, total| Action::Post(after(before, settlement(round, total, vec![])));
    let payout = |round| settlement(round, 0, vec![]).payout;
    let named = |task, round| Settlement {
        payout: Report::payout_id(task, Round(round)),
        ..settlement(1, 10, vec![])
    };
    let mut state = open_world();
    play(
        &mut state,
        vec![
            (0, COORDINATOR, Action::Post(named(TASK, 2)), wrong()),
            (0, COORDINATOR, Action::Post(named(TaskId([2; 32]), 1)), wrong()),
            (0, COORDINATOR, post(5, 1, 10), wrong()),
            (0, COORDINATOR, post(0, 1, 10), posted),
            (0, COORDINATOR, post(0, 2, 20), wrong()),
            (0, COORDINATOR, post(20, 2, 20), wrong()),
            (0, COORDINATOR, post(10, 2, 20), posted),
            (0, COORDINATOR, post(20, 3, 30), posted),
            (1, ARBITER, Action::Cancel { task, payout: payout(2) }, Ok(Outcome::Done)),
            // Round 3 paid what round 2 should not have: neither it nor a later round may carry that on.
            (2, COORDINATOR, post(20, 3, 30), wrong()),
            (2, COORDINATOR, post(20, 4, 30), wrong()),
            (2, COORDINATOR, post(10, 2, 15), posted),
            (2, COORDINATOR, post(20, 3, 30), wrong()),
            (200, BOB, Action::Finalize { task }, Ok(Outcome::Finalised(2))),
            // What is final is continued too, and the same again is still the same.
            (200, COORDINATOR, post(10, 3, 30), wrong()),
            (200, COORDINATOR, post(10, 2, 15), Ok(Outcome::Posted(Posted::Already))),
            (200, COORDINATOR, post(15, 3, 30), posted),
            (200, COORDINATOR, post(10, 3, 30), Err("CONFLICTING_SETTLEMENT")),
        ],
    );
}

#[test]
fn a_bond_that_a_pending_settlement_debits_cannot_leave() {
    let (task, moved) = (TASK, |n| Ok(Outcome::Moved(units(n))));
    let debit = |round, n| Action::Post(settlement(round, 0, vec![(who(ALICE), units(n))]));
    let withdraw = || Action::WithdrawBond { task };
    let posted = Ok(Outcome::Posted(Posted::New));
    let mut state = open_world();
    play(
        &mut state,
        vec![
            (0, ALICE, Action::Bond { task, amount: units(20) }, Ok(Outcome::Done)),
            (0, BOB, Action::Bond { task, amount: units(20) }, Ok(Outcome::Done)),
            (0, ALICE, Action::Unbond { task }, Ok(Outcome::Done)),
            (0, BOB, Action::Unbond { task }, Ok(Outcome::Done)),
            (299, COORDINATOR, debit(1, 5), posted),
            (300, ALICE, withdraw(), Err("SETTLEMENT_PENDING")),
            (300, BOB, withdraw(), moved(20)),
            (400, BOB, Action::Finalize { task }, Ok(Outcome::Finalised(1))),
            // A debit of nothing takes nothing.
            (400, COORDINATOR, debit(2, 0), posted),
            (400, ALICE, withdraw(), moved(15)),
        ],
    );
    assert_eq!(state.held(Account::Treasury), units(5));
}

#[test]
fn what_changes_nothing_leaves_no_trace() {
    const NOBODY: u8 = 77;
    let (task, other) = (TASK, TaskId([2; 32]));
    let mut state = open_world();
    let free = Terms { stake_min: Amount::ZERO, bond_min: Amount::ZERO, ..terms(other) };
    let first = || Action::Post(settlement(1, 10, vec![]));
    let posted = Ok(Outcome::Posted(Posted::New));
    let done = Ok(Outcome::Done);
    play(
        &mut state,
        vec![
            (0, BUYER, Action::OpenTask(free), done),
            (0, ALICE, Action::Bond { task, amount: units(20) }, done),
            (0, ALICE, Action::Stake { amount: units(60) }, done),
            (0, ALICE, Action::Pledge { task }, done),
            (0, ALICE, Action::Unbond { task }, done),
            (0, COORDINATOR, first(), posted),
        ],
    );
    let before = state.clone();
    play(
        &mut state,
        vec![
            (1, NOBODY, Action::Finalize { task }, Ok(Outcome::Finalised(0))),
            (1, NOBODY, Action::Bond { task: other, amount: Amount::ZERO }, done),
            (1, NOBODY, Action::Pledge { task: other }, Err("TOO_SMALL")),
            (1, NOBODY, Action::Unstake, Err("NOT_FOUND")),
            (1, ALICE, Action::Unbond { task }, done),
            (1, ALICE, Action::Pledge { task }, done),
            (1, COORDINATOR, first(), Ok(Outcome::Posted(Posted::Already))),
        ],
    );
    assert_eq!(state, before);
    // What is due changes something, whoever asks for it.
    let due = act(&mut state, 101, NOBODY, Action::Finalize { task });
    assert_eq!((due, state.nonce(who(NOBODY))), (Ok(Outcome::Finalised(1)), 1));
}

#[test]
fn the_longest_books_of_a_task_have_a_bounded_answer() {
    let mut state = open_world();
    let most = Amount::from_units(u128::MAX);
    act(&mut state, 0, COORDINATOR, Action::Post(settlement(1, 10, vec![]))).unwrap();
    let mut task = state.task(TASK).unwrap();
    let mut widest = task.pending.pop().unwrap();
    widest.final_at = Tick(u64::MAX);
    widest.settlement.round = Round(u32::MAX);
    (widest.settlement.data_total, widest.settlement.infrastructure_total) = (most, most);
    widest.settlement.debits = vec![(Address([0xff; 20]), most); DEBITS_MAX];
    task.pending = vec![widest; PENDING_MAX];
    let bytes = serde_json::to_vec(&task).unwrap().len();
    assert!(bytes < TASK_ANSWER_BYTES_MAX, "{bytes} bytes");
    assert!(bytes > TASK_ANSWER_BYTES_MAX / 2, "the limit is far from what can be: {bytes} bytes");
}

#[test]
fn a_root_that_promises_more_than_its_totals_pays_only_what_is_there() {
    let mut state = open_world();
    let lie = Settlement { root: tree(250).root(), ..settlement(1, 30, vec![]) };
    play(
        &mut state,
        vec![
            (0, COORDINATOR, Action::Post(lie), Ok(Outcome::Posted(Posted::New))),
            (101, BOB, Action::Finalize { task: TASK }, Ok(Outcome::Finalised(1))),
            (101, ALICE, Action::Claim(claim(250)), Err("BAD_SETTLEMENT")),
        ],
    );
}

#[test]
fn what_goes_beyond_a_limit_is_refused() {
    let mut state = open_world();
    let crowd = (0..=DEBITS_MAX).map(|n| {
        let mut address = [0; 20];
        address[..8].copy_from_slice(&(n as u64).to_be_bytes());
        (Address(address), units(1))
    });
    let crowded = settlement(1, 0, crowd.collect());
    let endless = Terms { challenge_ms: u64::MAX, ..terms(TaskId([9; 32])) };
    let boundless = Terms { data: units(u128::MAX), ..terms(TaskId([9; 32])) };
    let own = Terms { arbiter: who(BUYER), ..terms(TaskId([9; 32])) };
    let dust = DUST_PER_ROUND.minus(Amount::from_units(1)).unwrap();
    let dust = Terms { data: dust, ..terms(TaskId([9; 32])) };
    play(
        &mut state,
        vec![
            (0, COORDINATOR, Action::Post(crowded), Err("LIMIT_REACHED")),
            (0, BUYER, Action::OpenTask(endless), Err("LIMIT_REACHED")),
            (0, BUYER, Action::OpenTask(boundless), Err("LIMIT_REACHED")),
            (0, BUYER, Action::OpenTask(own), Err("MEANINGLESS")),
            (0, BUYER, Action::OpenTask(dust), Err("TOO_SMALL")),
        ],
    );
    for round in 1..=PENDING_MAX as u32 {
        let settlement = settlement(round, 0, vec![]);
        act(&mut state, 0, COORDINATOR, Action::Post(settlement)).unwrap();
    }
    let more = settlement(5_000, 0, vec![]);
    assert_eq!(act(&mut state, 0, COORDINATOR, Action::Post(more)), Err("LIMIT_REACHED"));
    let all = Ok(Outcome::Finalised(PENDING_MAX as u64));
    assert_eq!(act(&mut state, 101, BOB, Action::Finalize { task: TASK }), all);
    act(&mut state, 101, ALICE, Action::Stake { amount: units(60) }).unwrap();
    for n in 0..=PLEDGES_MAX as u64 {
        let mut id = [2; 32];
        id[..8].copy_from_slice(&n.to_be_bytes());
        let small = Terms { data: units(1), infrastructure: units(0), ..terms(TaskId(id)) };
        act(&mut state, 101, BUYER, Action::OpenTask(small)).unwrap();
        let pledged = act(&mut state, 101, ALICE, Action::Pledge { task: TaskId(id) });
        let full = n == PLEDGES_MAX as u64;
        assert_eq!(pledged, if full { Err("LIMIT_REACHED") } else { Ok(Outcome::Done) });
    }
}
