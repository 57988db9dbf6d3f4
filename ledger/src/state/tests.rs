//! The rules as scripts of actions, and their deadlines at the exact millisecond.

use std::sync::OnceLock;

use florin_protocol::merkle::{ClaimTotals, ClaimTree};
use florin_protocol::{
    ChainId, DATA_PER_ROUND_MIN, Digest, MarketId, Micro, Report, RoundNumber, WalletSigner,
};

use super::*;
use crate::action::Action;
use crate::api::{Claim, ClaimOutcome, PostOutcome, Settlement, Terms};
use crate::conformance::TestSigner;
use crate::entry::Cause;
use crate::limits::{PENDING_MAX, PLEDGES_MAX, TASK_RESPONSE_BYTES_MAX};

pub(super) const TASK: TaskId = TaskId([1; 32]);
const WINDOW: u64 = 100;
const DELAY: u64 = 300;
const EXPIRES: u64 = 5_000;

/// The coordinator's key: the only account that signs anything here.
pub(super) fn coordinator_signer() -> &'static TestSigner {
    static SIGNER: OnceLock<TestSigner> = OnceLock::new();
    SIGNER.get_or_init(|| TestSigner::new(COORDINATOR.into()).unwrap())
}

pub(super) fn address(n: u8) -> Address {
    if n == COORDINATOR { coordinator_signer().address() } else { Address([n; 20]) }
}

pub(super) const BUYER: u8 = 1;
pub(super) const COORDINATOR: u8 = 2;
pub(super) const ARBITER: u8 = 3;
pub(super) const ALICE: u8 = 4;
const BOB: u8 = 5;

/// A multiple of the smallest data pool, so that the tests use whole numbers.
pub(super) fn units(n: u128) -> Amount {
    Amount::from_units(n.saturating_mul(DATA_PER_ROUND_MIN.units()))
}

pub(super) fn in_units(amount: Amount) -> u128 {
    amount.units() / DATA_PER_ROUND_MIN.units()
}

fn funded_state() -> LedgerState {
    LedgerState::from_genesis(&(1..=5).map(|n| (address(n), units(1_000))).collect::<Vec<_>>())
}

pub(super) fn terms(task: TaskId) -> Terms {
    Terms {
        task,
        buyer: address(BUYER),
        coordinator: address(COORDINATOR),
        arbiter: address(ARBITER),
        data: units(300),
        infrastructure: units(100),
        rounds: 10,
        per_nat_max: units(1_000),
        floor_share: Micro::ONE,
        bond_min: units(20),
        debit_max: units(15),
        stake_min: units(50),
        challenge_ms: WINDOW,
        unbond_ms: DELAY,
        expires: Timestamp(EXPIRES),
    }
}

/// Alice's totals, paid and debited; the scripts pay and debit no other account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PaidAndDebited(pub(super) u128, pub(super) u128);

impl PaidAndDebited {
    pub(super) fn totals(self) -> ClaimTotals {
        ClaimTotals { paid: units(self.0), debited: units(self.1) }
    }
}

/// A round's settlement without debits, for a task without earlier totals: see [`continuing`].
pub(super) fn settlement(round: u32, total: u128) -> Settlement {
    settlement_with_totals(round, PaidAndDebited(total, 0))
}

/// A round's settlement with these totals, for a task without earlier totals: see [`continuing_totals`].
pub(super) fn settlement_with_totals(round: u32, sums: PaidAndDebited) -> Settlement {
    Settlement {
        task: TASK,
        payout: Report::settlement_id(TASK, RoundNumber(round)),
        round: RoundNumber(round),
        report: Digest([8; 32]),
        previous_root: Digest::default(),
        root: root(sums),
        data_total: units(sums.0),
        score_pay_total: Amount::ZERO,
        infrastructure_total: Amount::ZERO,
        improvement_total_nano: 0,
    }
}

/// The settlement, continuing the root of an earlier total.
pub(super) fn continuing(total: u128, settlement: Settlement) -> Settlement {
    continuing_totals(PaidAndDebited(total, 0), settlement)
}

pub(super) fn continuing_totals(sums: PaidAndDebited, settlement: Settlement) -> Settlement {
    Settlement { previous_root: root(sums), ..settlement }
}

fn root(sums: PaidAndDebited) -> Digest {
    if sums == PaidAndDebited::default() { Digest::default() } else { tree(sums).root() }
}

fn tree(sums: PaidAndDebited) -> ClaimTree {
    ClaimTree::new([(address(ALICE), sums.totals())])
}

pub(super) fn claim(sums: PaidAndDebited) -> Claim {
    let proof = tree(sums).proof(address(ALICE), sums.totals()).unwrap();
    Claim { task: TASK, account: address(ALICE), totals: sums.totals(), proof }
}

/// The outcome of a claim.
fn claimed(paid: u128, taken: u128) -> Result<TransactionOutcome, &'static str> {
    Ok(TransactionOutcome::Claimed(ClaimOutcome { paid: units(paid), taken: units(taken) }))
}

/// Executes an action and returns its outcome, or the refusal's code.
pub(super) fn execute(
    state: &mut LedgerState,
    at: u64,
    from: u8,
    action: Action,
) -> Result<TransactionOutcome, &'static str> {
    let market = MarketId { chain: ChainId(1), genesis: Digest([0; 32]) };
    let nonce = state.nonce(address(from));
    let before = state.clone();
    match apply(state, &Transaction { market, from: address(from), nonce, action }, Timestamp(at)) {
        Ok((movements, outcome)) => {
            assert!(movements.iter().all(|m| !m.amount.is_zero() && m.from != m.to));
            // A transaction that changes nothing uses no nonce.
            let used = u64::from(*state != before);
            assert_eq!(state.nonce(address(from)), nonce + used);
            Ok(outcome)
        }
        Err(ApplyError::Refused(refusal)) => {
            assert_eq!(*state, before, "{refusal} changed something");
            Err(refusal.code())
        }
        Err(ApplyError::Inconsistent(what)) => panic!("{what}"),
    }
}

pub(super) fn state_with_open_task() -> LedgerState {
    state_with_task(terms(TASK))
}

/// A ledger with this task; the coordinator's bond covers the whole deposit.
pub(super) fn state_with_task(terms: Terms) -> LedgerState {
    let (task, deposit) = (terms.task, terms.data.plus(terms.infrastructure).unwrap());
    let mut state = state_without_bond(terms);
    execute(&mut state, 0, COORDINATOR, Action::Bond { task, amount: deposit }).unwrap();
    state
}

pub(super) fn state_without_bond(terms: Terms) -> LedgerState {
    let mut state = funded_state();
    execute(&mut state, 0, BUYER, Action::OpenTask(terms)).unwrap();
    state
}

/// (time, sender, action, expected result)
type ScriptLine = (u64, u8, Action, Result<TransactionOutcome, &'static str>);

fn run_script(state: &mut LedgerState, lines: Vec<ScriptLine>) {
    for (n, (at, from, action, expected)) in lines.into_iter().enumerate() {
        let text = format!("line {n}, at {at}: {}", action.summary());
        assert_eq!(execute(state, at, from, action), expected, "{text}");
    }
}

#[test]
fn windows_and_delays_end_at_the_exact_moment() {
    let task = TASK;
    let first = || settlement(1, 30);
    let payout = first().payout;
    let done = Ok(TransactionOutcome::Done);
    let mut state = state_with_open_task();
    run_script(
        &mut state,
        vec![
            (
                10,
                COORDINATOR,
                Action::Post(first()),
                Ok(TransactionOutcome::Posted(PostOutcome::Posted)),
            ),
            // Posted at 10, window 100: the last moment to cancel is 110, the first to finalise is
            // 111.
            (110, ALICE, Action::Finalize { task }, Ok(TransactionOutcome::Finalised(0))),
            (110, COORDINATOR, Action::Close { task }, Err("SETTLEMENT_PENDING")),
            (110, ARBITER, Action::Cancel { task, payout }, done),
            (
                110,
                COORDINATOR,
                Action::Post(first()),
                Ok(TransactionOutcome::Posted(PostOutcome::Posted)),
            ),
            (211, ARBITER, Action::Cancel { task, payout }, Err("WINDOW_CLOSED")),
            (211, ALICE, Action::Finalize { task }, Ok(TransactionOutcome::Finalised(1))),
            (211, ALICE, Action::Claim(claim(PaidAndDebited(30, 0))), claimed(30, 0)),
            // Unbonded at 300, at risk for 300; the settlement posted at 110 could be proven long
            // before the end.
            (300, ALICE, Action::Bond { task, amount: units(20) }, done),
            (300, ALICE, Action::Unbond { task }, done),
            (599, ALICE, Action::WithdrawBond { task }, Err("TOO_EARLY")),
            (600, ALICE, Action::WithdrawBond { task }, Ok(TransactionOutcome::Moved(units(20)))),
            // The task expires at 5,000: the last moment to post; any account may close it from
            // then on.
            (5_000, BOB, Action::Close { task }, Err("TOO_EARLY")),
            (
                5_000,
                COORDINATOR,
                Action::Post(continuing(30, settlement(2, 40))),
                Ok(TransactionOutcome::Posted(PostOutcome::Posted)),
            ),
            (
                5_001,
                COORDINATOR,
                Action::Post(continuing(40, settlement(3, 40))),
                Err("INVALID_SETTLEMENT"),
            ),
            (5_001, BOB, Action::Close { task }, Err("SETTLEMENT_PENDING")),
            (5_101, BOB, Action::Close { task }, Ok(TransactionOutcome::Moved(units(360)))),
        ],
    );
    assert_eq!(state.balance(address(BUYER)), units(960));
}

/// The moments at which a bond is free, for several times of posting, exact to the millisecond.
#[test]
fn a_bond_is_free_once_settlements_posted_before_its_release_can_be_proven() {
    let task = TASK;
    let done = Ok(TransactionOutcome::Done);
    // Unbonded at 1,000: released at 1,300. The challenge window is 100.
    for (posts, free) in [
        (vec![], 1_300),
        (vec![1_000], 1_300),
        (vec![1_100], 1_300),
        (vec![1_101], 1_301),
        (vec![1_299], 1_499),
        (vec![1_300], 1_500),
        // Posted after the release: no effect on the bond.
        (vec![1_301], 1_500),
        (vec![1_499], 1_500),
        (vec![1_101, 1_250], 1_450),
        (vec![1_299, 1_301, 1_450, 1_498], 1_500),
    ] {
        let mut state = state_with_open_task();
        execute(&mut state, 900, ALICE, Action::Bond { task, amount: units(20) }).unwrap();
        execute(&mut state, 1_000, ALICE, Action::Unbond { task }).unwrap();
        for (round, at) in (1u32..).zip(&posts) {
            let new = settlement_with_totals(round, PaidAndDebited(0, u128::from(round)));
            let new = continuing_totals(PaidAndDebited(0, u128::from(round - 1)), new);
            let posted = execute(&mut state, *at, COORDINATOR, Action::Post(new));
            assert_eq!(
                posted,
                Ok(TransactionOutcome::Posted(PostOutcome::Posted)),
                "{posts:?} at {at}"
            );
        }
        let withdrawal = withdrawal(&state);
        let early = apply(&mut state, &withdrawal, Timestamp(free - 1)).unwrap_err();
        let expected = Refusal::TooEarly { at: Timestamp(free), now: Timestamp(free - 1) };
        assert_eq!(early, ApplyError::Refused(expected), "{posts:?}");
        let out = execute(&mut state, free, ALICE, Action::WithdrawBond { task });
        assert_eq!(out, Ok(TransactionOutcome::Moved(units(20))), "{posts:?}");
    }
    // In a closed task neither a release nor a request is needed; only the last settlement delays
    // the withdrawal.
    for (post, close, free) in [(None, 1_010, 1_010), (Some(1_000), 1_101, 1_200)] {
        let mut state = state_with_open_task();
        execute(&mut state, 900, ALICE, Action::Bond { task, amount: units(20) }).unwrap();
        match post {
            Some(at) => {
                let new = Action::Post(settlement_with_totals(10, PaidAndDebited(0, 1)));
                execute(&mut state, at, COORDINATOR, new).unwrap();
            }
            None => {
                execute(&mut state, 900, COORDINATOR, Action::AnnounceClose { task }).unwrap();
            }
        }
        execute(&mut state, close, COORDINATOR, Action::Close { task }).unwrap();
        assert_eq!(execute(&mut state, close, ALICE, Action::Unbond { task }), done);
        if free > close {
            let early = execute(&mut state, free - 1, ALICE, Action::WithdrawBond { task });
            assert_eq!(early, Err("TOO_EARLY"));
        }
        let out = execute(&mut state, free, ALICE, Action::WithdrawBond { task });
        assert_eq!(out, Ok(TransactionOutcome::Moved(units(20))), "{post:?}");
    }
}

fn withdrawal(state: &LedgerState) -> Transaction {
    let market = MarketId { chain: ChainId(1), genesis: Digest([0; 32]) };
    let (from, action) = (address(ALICE), Action::WithdrawBond { task: TASK });
    Transaction { market, from, nonce: state.nonce(from), action }
}

#[test]
fn a_debit_can_be_proven_until_the_last_moment_before_the_bond_is_free() {
    let task = TASK;
    let mut state = state_with_open_task();
    let taken = |n| claimed(0, n);
    run_script(
        &mut state,
        vec![
            (0, ALICE, Action::Bond { task, amount: units(20) }, Ok(TransactionOutcome::Done)),
            (0, ALICE, Action::Unbond { task }, Ok(TransactionOutcome::Done)),
            // At the moment of the release: the latest settlement that affects the bond.
            (
                300,
                COORDINATOR,
                Action::Post(settlement_with_totals(1, PaidAndDebited(0, 5))),
                Ok(TransactionOutcome::Posted(PostOutcome::Posted)),
            ),
            (400, BOB, Action::Finalize { task }, Ok(TransactionOutcome::Finalised(0))),
            (401, BOB, Action::Finalize { task }, Ok(TransactionOutcome::Finalised(1))),
            (499, ALICE, Action::WithdrawBond { task }, Err("TOO_EARLY")),
            (499, BOB, Action::Claim(claim(PaidAndDebited(0, 5))), taken(5)),
            (500, ALICE, Action::WithdrawBond { task }, Ok(TransactionOutcome::Moved(units(15)))),
        ],
    );
    assert_eq!(state.account_balance(Account::Treasury), units(5));
}

#[test]
fn debits_take_at_most_the_bond_and_at_most_the_limit_of_the_rounds() {
    let task = TASK;
    let posted = Ok(TransactionOutcome::Posted(PostOutcome::Posted));
    let post = |round, before, debited| {
        Action::Post(continuing_totals(
            PaidAndDebited(0, before),
            settlement_with_totals(round, PaidAndDebited(0, debited)),
        ))
    };
    let take = |debited| Action::Claim(claim(PaidAndDebited(0, debited)));
    let mut state = state_with_open_task();
    run_script(
        &mut state,
        vec![
            (0, ALICE, Action::Bond { task, amount: units(20) }, Ok(TransactionOutcome::Done)),
            (0, COORDINATOR, post(1, 0, 15), posted),
            (1, COORDINATOR, post(2, 15, 31), posted),
            (101, BOB, Action::Finalize { task }, Ok(TransactionOutcome::Finalised(1))),
            (101, BOB, take(15), claimed(0, 15)),
            (101, BOB, take(15), Err("NOTHING_TO_CLAIM")),
            (102, BOB, Action::Finalize { task }, Ok(TransactionOutcome::Finalised(1))),
            // The proof under round 1's root is outdated; 31 exceeds the debit limit of 2 rounds.
            (102, BOB, take(15), Err("INVALID_PROOF")),
            (102, BOB, take(31), Err("INVALID_SETTLEMENT")),
            (102, COORDINATOR, post(3, 31, 14), posted),
            (203, BOB, Action::Finalize { task }, Ok(TransactionOutcome::Finalised(1))),
            (203, BOB, take(14), Err("INVALID_SETTLEMENT")),
            (203, COORDINATOR, post(4, 14, 60), posted),
            (304, BOB, Action::Finalize { task }, Ok(TransactionOutcome::Finalised(1))),
            (304, BOB, take(60), claimed(0, 5)),
            (304, BOB, take(60), Err("NOTHING_TO_CLAIM")),
        ],
    );
    assert_eq!(state.account_balance(Account::Treasury), units(20));
    assert_eq!(state.bond(task, address(ALICE)).amount, Amount::ZERO);
    // A new bond does not pay for a debit that exceeded the old one.
    let again = Action::Bond { task, amount: units(20) };
    execute(&mut state, 305, ALICE, again).unwrap();
    assert_eq!(execute(&mut state, 305, BOB, take(60)), Err("NOTHING_TO_CLAIM"));
}

#[test]
fn a_debit_limit_that_overflows_is_no_limit() {
    let most = Amount::from_units(u128::MAX);
    let mut state = state_with_open_task();
    state.tasks.get_mut(&TASK).unwrap().terms.debit_max = most;
    let sums = PaidAndDebited(0, 1_000_000);
    run_script(
        &mut state,
        vec![
            (
                0,
                COORDINATOR,
                Action::Post(settlement_with_totals(2, sums)),
                Ok(TransactionOutcome::Posted(PostOutcome::Posted)),
            ),
            (101, BOB, Action::Finalize { task: TASK }, Ok(TransactionOutcome::Finalised(1))),
            (101, BOB, Action::Claim(claim(sums)), claimed(0, 0)),
        ],
    );
}

#[test]
fn closing_a_task_returns_every_movement_with_its_cause() {
    let mut state = state_with_open_task();
    let action = Action::Bond { task: TASK, amount: units(20) };
    execute(&mut state, 0, ALICE, action).unwrap();
    execute(
        &mut state,
        0,
        COORDINATOR,
        Action::Post(settlement_with_totals(10, PaidAndDebited(30, 5))),
    )
    .unwrap();
    let market = MarketId { chain: ChainId(1), genesis: Digest([0; 32]) };
    let nonce = state.nonce(address(COORDINATOR));
    let from = address(COORDINATOR);
    let close = Transaction { market, from, nonce, action: Action::Close { task: TASK } };
    let (movements, outcome) = apply(&mut state, &close, Timestamp(101)).unwrap();
    let actual: Vec<_> = movements.iter().map(|m| (m.cause, in_units(m.amount))).collect();
    let expected = [(Cause::Settled, 30), (Cause::Refunded, 270), (Cause::Refunded, 100)];
    assert_eq!(actual, expected);
    assert_eq!(outcome, TransactionOutcome::Moved(units(370)));
    // In a closed task, final payouts and debits can still be claimed.
    let claim = Action::Claim(claim(PaidAndDebited(30, 5)));
    let claim =
        Transaction { market, from: address(BOB), nonce: state.nonce(address(BOB)), action: claim };
    let (movements, _) = apply(&mut state, &claim, Timestamp(102)).unwrap();
    let actual: Vec<_> = movements.iter().map(|m| (m.cause, in_units(m.amount))).collect();
    assert_eq!(actual, [(Cause::Claimed, 30), (Cause::Debited, 5)]);
}

#[test]
fn a_settlement_must_continue_the_root_of_the_latest_settlement() {
    let (task, posted) = (TASK, Ok(TransactionOutcome::Posted(PostOutcome::Posted)));
    let wrong = || Err("INVALID_SETTLEMENT");
    let post = |before, round, total| Action::Post(continuing(before, settlement(round, total)));
    let payout = |round| settlement(round, 0).payout;
    let named = |task, round| Settlement {
        payout: Report::settlement_id(task, RoundNumber(round)),
        ..settlement(1, 10)
    };
    let mut state = state_with_open_task();
    run_script(
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
            (1, ARBITER, Action::Cancel { task, payout: payout(2) }, Ok(TransactionOutcome::Done)),
            // Round 3 continued round 2, which was cancelled: neither it nor a later round may be
            // posted on that root.
            (2, COORDINATOR, post(20, 3, 30), wrong()),
            (2, COORDINATOR, post(20, 4, 30), wrong()),
            (2, COORDINATOR, post(10, 2, 15), posted),
            (2, COORDINATOR, post(20, 3, 30), wrong()),
            (200, BOB, Action::Finalize { task }, Ok(TransactionOutcome::Finalised(2))),
            // A final settlement must be continued too, and a repeated post of it is recognised.
            (200, COORDINATOR, post(10, 3, 30), wrong()),
            (
                200,
                COORDINATOR,
                post(10, 2, 15),
                Ok(TransactionOutcome::Posted(PostOutcome::AlreadyPosted)),
            ),
            (200, COORDINATOR, post(15, 3, 30), posted),
            (200, COORDINATOR, post(10, 3, 30), Err("CONFLICTING_SETTLEMENT")),
        ],
    );
}

#[test]
fn an_action_that_changes_nothing_leaves_the_state_unchanged() {
    const STRANGER: u8 = 77;
    let (task, other) = (TASK, TaskId([2; 32]));
    let mut state = state_with_open_task();
    let free = Terms { stake_min: Amount::ZERO, bond_min: Amount::ZERO, ..terms(other) };
    let first = || Action::Post(settlement(1, 10));
    let posted = Ok(TransactionOutcome::Posted(PostOutcome::Posted));
    let done = Ok(TransactionOutcome::Done);
    run_script(
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
    run_script(
        &mut state,
        vec![
            (1, STRANGER, Action::Finalize { task }, Ok(TransactionOutcome::Finalised(0))),
            (1, STRANGER, Action::Bond { task: other, amount: Amount::ZERO }, done),
            (1, STRANGER, Action::Pledge { task: other }, Err("TOO_SMALL")),
            (1, STRANGER, Action::Unstake, Err("NOT_FOUND")),
            (1, ALICE, Action::Unbond { task }, done),
            (1, ALICE, Action::Pledge { task }, done),
            (1, COORDINATOR, first(), Ok(TransactionOutcome::Posted(PostOutcome::AlreadyPosted))),
        ],
    );
    assert_eq!(state, before);
    // Finalising a due settlement changes the state, for any sender.
    let due = execute(&mut state, 101, STRANGER, Action::Finalize { task });
    assert_eq!((due, state.nonce(address(STRANGER))), (Ok(TransactionOutcome::Finalised(1)), 1));
}

#[test]
fn the_largest_task_state_stays_below_the_response_limit() {
    let mut state = state_with_open_task();
    let most = Amount::from_units(u128::MAX);
    execute(&mut state, 0, COORDINATOR, Action::Post(settlement(1, 10))).unwrap();
    let mut task = state.task(TASK).unwrap();
    let mut widest = task.pending.pop().unwrap();
    widest.final_at = Timestamp(u64::MAX);
    widest.settlement.round = RoundNumber(u32::MAX);
    (widest.settlement.data_total, widest.settlement.infrastructure_total) = (most, most);
    task.pending = vec![widest; PENDING_MAX];
    let bytes = serde_json::to_vec(&task).unwrap().len();
    assert!(bytes < TASK_RESPONSE_BYTES_MAX, "{bytes} bytes");
    assert!(
        bytes > TASK_RESPONSE_BYTES_MAX / 2,
        "the limit is far above the maximum: {bytes} bytes"
    );
}

#[test]
fn a_root_that_promises_more_than_its_totals_is_not_paid() {
    let mut state = state_with_open_task();
    let lie = Settlement { root: tree(PaidAndDebited(250, 0)).root(), ..settlement(1, 30) };
    run_script(
        &mut state,
        vec![
            (
                0,
                COORDINATOR,
                Action::Post(lie),
                Ok(TransactionOutcome::Posted(PostOutcome::Posted)),
            ),
            (101, BOB, Action::Finalize { task: TASK }, Ok(TransactionOutcome::Finalised(1))),
            (101, ALICE, Action::Claim(claim(PaidAndDebited(250, 0))), Err("INVALID_SETTLEMENT")),
        ],
    );
}

#[test]
fn requests_beyond_a_limit_are_refused() {
    let mut state = state_with_open_task();
    let endless = Terms { challenge_ms: u64::MAX, ..terms(TaskId([9; 32])) };
    let boundless = Terms { data: units(u128::MAX), ..terms(TaskId([9; 32])) };
    let own = Terms { arbiter: address(BUYER), ..terms(TaskId([9; 32])) };
    let dust = DATA_PER_ROUND_MIN.minus(Amount::from_units(1)).unwrap();
    let dust = Terms { data: dust, ..terms(TaskId([9; 32])) };
    run_script(
        &mut state,
        vec![
            (0, BUYER, Action::OpenTask(endless), Err("LIMIT_EXCEEDED")),
            (0, BUYER, Action::OpenTask(boundless), Err("LIMIT_EXCEEDED")),
            (0, BUYER, Action::OpenTask(own), Err("INVALID_ARGUMENT")),
            (0, BUYER, Action::OpenTask(dust), Err("TOO_SMALL")),
        ],
    );
    let many = Terms { rounds: 1_000, ..terms(TASK) };
    let mut state = state_with_task(many);
    for round in 1..=PENDING_MAX as u32 {
        let settlement = settlement(round, 0);
        execute(&mut state, 0, COORDINATOR, Action::Post(settlement)).unwrap();
    }
    let more = settlement(65, 0);
    assert_eq!(execute(&mut state, 0, COORDINATOR, Action::Post(more)), Err("LIMIT_EXCEEDED"));
    let all = Ok(TransactionOutcome::Finalised(PENDING_MAX as u64));
    assert_eq!(execute(&mut state, 101, BOB, Action::Finalize { task: TASK }), all);
    execute(&mut state, 101, ALICE, Action::Stake { amount: units(60) }).unwrap();
    for n in 0..=PLEDGES_MAX as u64 {
        let mut id = [2; 32];
        id[..8].copy_from_slice(&n.to_be_bytes());
        let small = Terms { data: units(1), infrastructure: units(0), ..terms(TaskId(id)) };
        execute(&mut state, 101, BUYER, Action::OpenTask(small)).unwrap();
        let pledged = execute(&mut state, 101, ALICE, Action::Pledge { task: TaskId(id) });
        let full = n == PLEDGES_MAX as u64;
        assert_eq!(
            pledged,
            if full { Err("LIMIT_EXCEEDED") } else { Ok(TransactionOutcome::Done) }
        );
    }
}
