//! Splits of pay: set once, before the first bond, and paid by every claim.

use florin_protocol::merkle::{ClaimTotals, ClaimTree};
use florin_protocol::{Digest, Micro};
use proptest::prelude::*;

use super::tests::*;
use super::*;
use crate::action::Action;
use crate::api::{Claim, ClaimOutcome, MemberShare, Settlement, Terms};
use crate::limits::SPLIT_MEMBERS_MAX;
use crate::split::member_payments;

const DONE: Result<TransactionOutcome, &str> = Ok(TransactionOutcome::Done);

/// The members' accounts, beside Alice, which is a member too.
const FIRST: u8 = 0x21;
const SECOND: u8 = 0x22;

fn share(member: u8, share: u64) -> MemberShare {
    MemberShare { member: address(member), share: Micro(share) }
}

fn members() -> Vec<MemberShare> {
    vec![share(ALICE, 500_000), share(FIRST, 200_000), share(SECOND, 300_000)]
}

fn split(members: Vec<MemberShare>) -> Action {
    Action::SetSplit { task: TASK, members }
}

fn in_base_units(paid: u128, debited: u128) -> ClaimTotals {
    ClaimTotals { paid: Amount::from_units(paid), debited: Amount::from_units(debited) }
}

fn tree(totals: ClaimTotals) -> ClaimTree {
    ClaimTree::new([(address(ALICE), totals)])
}

/// Posts and finalises Alice's totals as the next round, and sends its claim.
fn settle_and_claim(
    state: &mut LedgerState,
    (round, at): (u32, u64),
    (before, totals): (ClaimTotals, ClaimTotals),
) -> Result<TransactionOutcome, &'static str> {
    let previous = if before.is_zero() { Digest::default() } else { tree(before).root() };
    let posted = Settlement {
        previous_root: previous,
        root: tree(totals).root(),
        data_total: totals.paid,
        ..settlement(round, 0)
    };
    execute(state, at, COORDINATOR, Action::Post(posted)).unwrap();
    execute(state, at + 101, ARBITER, Action::Finalize { task: TASK }).unwrap();
    send_claim(state, at + 101, totals)
}

/// The arbiter, which is no party of the split, sends Alice's claim.
fn send_claim(
    state: &mut LedgerState,
    at: u64,
    totals: ClaimTotals,
) -> Result<TransactionOutcome, &'static str> {
    let proof = tree(totals).proof(address(ALICE), totals).unwrap();
    let claim = Claim { task: TASK, account: address(ALICE), totals, proof };
    execute(state, at, ARBITER, Action::Claim(claim))
}

fn outcome(paid: u128, taken: u128) -> Result<TransactionOutcome, &'static str> {
    let (paid, taken) = (Amount::from_units(paid), Amount::from_units(taken));
    Ok(TransactionOutcome::Claimed(ClaimOutcome { paid, taken }))
}

fn balances(state: &LedgerState, of: &[u8]) -> Vec<u128> {
    of.iter().map(|who| state.balance(address(*who)).units()).collect()
}

#[test]
fn a_split_is_set_once_before_the_first_bond() {
    let task = TASK;
    let mut state = state_with_open_task();
    assert_eq!(state.split(TASK, address(ALICE)), vec![]);
    let elsewhere = Action::SetSplit { task: TaskId([9; 32]), members: members() };
    assert_eq!(execute(&mut state, 1, ALICE, elsewhere), Err("UNKNOWN_TASK"));
    assert_eq!(execute(&mut state, 1, ALICE, split(vec![])), Err("SPLIT_INVALID"));
    let crowd = vec![share(FIRST, 1); SPLIT_MEMBERS_MAX + 1];
    assert_eq!(execute(&mut state, 1, ALICE, split(crowd)), Err("LIMIT_EXCEEDED"));
    assert_eq!(execute(&mut state, 1, ALICE, split(members())), DONE);
    assert_eq!(state.split(TASK, address(ALICE)), members());
    assert_eq!(state.split(TASK, address(FIRST)), vec![], "it is Alice's alone");
    let other = vec![share(ALICE, 1_000_000)];
    assert_eq!(execute(&mut state, 2, ALICE, split(other.clone())), Err("SPLIT_FIXED"));
    let nonce = state.nonce(address(ALICE));
    assert_eq!(execute(&mut state, 2, ALICE, split(members())), DONE);
    assert_eq!(state.nonce(address(ALICE)), nonce, "the identical split changes nothing");
    execute(&mut state, 3, ALICE, Action::Bond { task, amount: units(20) }).unwrap();
    assert_eq!(execute(&mut state, 4, ALICE, split(other)), Err("SPLIT_FIXED"));
    assert_eq!(execute(&mut state, 4, ALICE, split(members())), DONE);
    assert_eq!(state.split(TASK, address(ALICE)), members());
    execute(&mut state, 5, COORDINATOR, Action::AnnounceClose { task }).unwrap();
    execute(&mut state, 105, COORDINATOR, Action::Close { task }).unwrap();
    assert_eq!(execute(&mut state, 106, ALICE, split(members())), Err("TASK_CLOSED"));
    assert_eq!(state.split(TASK, address(ALICE)), members());
}

#[test]
fn an_account_that_takes_part_sets_no_split() {
    let task = TASK;
    let late = Err("SPLIT_TOO_LATE");
    let mut state = state_with_open_task();
    execute(&mut state, 1, ALICE, Action::Bond { task, amount: units(20) }).unwrap();
    assert_eq!(execute(&mut state, 2, ALICE, split(members())), late);
    execute(&mut state, 2, ALICE, Action::Unbond { task }).unwrap();
    assert_eq!(execute(&mut state, 3, ALICE, split(members())), late);
    execute(&mut state, 302, ALICE, Action::WithdrawBond { task }).unwrap();
    // It has left without pay.
    assert_eq!(execute(&mut state.clone(), 303, ALICE, split(members())), DONE);
    for totals in [in_base_units(1, 0), in_base_units(0, 1)] {
        let mut state = state.clone();
        settle_and_claim(&mut state, (1, 400), (in_base_units(0, 0), totals)).unwrap();
        assert_eq!(execute(&mut state, 600, ALICE, split(members())), late, "{totals:?}");
    }
}

#[test]
fn a_claim_pays_the_members_and_debits_the_silo() {
    let task = TASK;
    let mut state = state_with_open_task();
    execute(&mut state, 1, ALICE, split(members())).unwrap();
    execute(&mut state, 1, ALICE, Action::Bond { task, amount: units(20) }).unwrap();
    let [alice, ..] = balances(&state, &[ALICE])[..] else { panic!() };
    let bond = || state.bond(TASK, address(ALICE)).amount.units();
    let held = bond();
    let first = in_base_units(1_700_001, 5);
    let none = in_base_units(0, 0);
    let paid = settle_and_claim(&mut state, (1, 10), (none, first));
    assert_eq!(paid, outcome(1_700_001, 5));
    // One whole turn, the first 700,000 units of the next, and one unit of the third member's.
    let gained = [alice + 1_000_000, 400_000, 300_001];
    assert_eq!(balances(&state, &[ALICE, FIRST, SECOND]), gained);
    assert_eq!(state.bond(TASK, address(ALICE)).amount.units(), held - 5);
    assert_eq!(state.account_balance(Account::Treasury).units(), 5);
    assert_eq!(send_claim(&mut state, 112, first), Err("NOTHING_TO_CLAIM"));
    // A claim of debits alone moves no pay.
    let second = in_base_units(1_700_001, 6);
    assert_eq!(settle_and_claim(&mut state, (2, 200), (first, second)), outcome(0, 1));
    let third = in_base_units(1_700_003, 6);
    assert_eq!(settle_and_claim(&mut state, (3, 400), (second, third)), outcome(2, 0));
    assert_eq!(balances(&state, &[FIRST, SECOND]), [400_000, 300_003]);
    let totals = state.claimed_totals(TASK, address(ALICE));
    assert_eq!(totals, third, "the totals are the silo's");
    // The bond returns to the silo.
    execute(&mut state, 600, ALICE, Action::Unbond { task }).unwrap();
    execute(&mut state, 900, ALICE, Action::WithdrawBond { task }).unwrap();
    assert_eq!(balances(&state, &[ALICE]), [alice + 1_000_000 + held - 6]);
}

#[test]
fn the_largest_deposit_is_split_without_a_remainder() {
    let largest = u128::MAX - 3;
    let rich = [(address(BUYER), Amount::from_units(largest))];
    let mut state = LedgerState::from_genesis(&rich);
    let terms = Terms {
        data: Amount::from_units(largest),
        infrastructure: Amount::ZERO,
        arbiter: address(COORDINATOR),
        ..terms(TASK)
    };
    execute(&mut state, 0, BUYER, Action::OpenTask(terms)).unwrap();
    execute(&mut state, 1, ALICE, split(members())).unwrap();
    let totals = in_base_units(largest, 0);
    let paid = settle_and_claim(&mut state, (10, 10), (in_base_units(0, 0), totals));
    assert_eq!(paid, outcome(largest, 0));
    let turns = largest / 1_000_000;
    let begun = largest % 1_000_000;
    assert_eq!(begun, 211_452);
    let expected = [turns * 500_000 + begun, turns * 200_000, turns * 300_000];
    assert_eq!(balances(&state, &[ALICE, FIRST, SECOND]), expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn claims_after_each_round_and_one_at_the_end_pay_alike(
        steps in prop::collection::vec(1u128..3_000_000, 1..8),
    ) {
        let mut often = state_with_open_task();
        execute(&mut often, 1, ALICE, split(members())).unwrap();
        let start = balances(&often, &[ALICE]);
        let mut once = often.clone();
        let mut before = in_base_units(0, 0);
        for (round, step) in (1u32..).zip(&steps) {
            let totals = in_base_units(before.paid.units() + step, 0);
            let at = u64::from(round) * 200;
            let paid = settle_and_claim(&mut often, (round, at), (before, totals));
            prop_assert_eq!(paid, outcome(*step, 0));
            before = totals;
        }
        settle_and_claim(&mut once, (1, 10), (in_base_units(0, 0), before)).unwrap();
        let accounts = [ALICE, FIRST, SECOND];
        prop_assert_eq!(balances(&often, &accounts), balances(&once, &accounts));
        let expected = member_payments(&members(), Amount::ZERO, before.paid).unwrap();
        let mut gained = balances(&once, &accounts);
        gained[0] -= start[0];
        prop_assert_eq!(gained, expected.iter().map(|part| part.units()).collect::<Vec<_>>());
    }
}
