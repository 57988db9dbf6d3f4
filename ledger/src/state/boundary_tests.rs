//! Each limit of an amount or a duration at its last valid value, and one above it.

use florin_protocol::limits::PHASE_MS_MAX;
use florin_protocol::{DATA_PER_ROUND_MIN, Digest};

use super::tests::*;
use super::*;
use crate::action::Action;
use crate::api::{Settlement, Slash, Terms};

type Outcome = Result<TransactionOutcome, &'static str>;

const DONE: Outcome = Ok(TransactionOutcome::Done);

/// The outcome of an action of a new ledger with one open task, at time 0.
fn outcome(from: u8, action: Action) -> Outcome {
    execute(&mut state_with_open_task(), 0, from, action)
}

fn other(change: impl FnOnce(&mut Terms)) -> Action {
    let mut terms = terms(TaskId([9; 32]));
    change(&mut terms);
    Action::OpenTask(terms)
}

#[test]
fn durations_and_the_smallest_data_pool_are_valid_up_to_their_limits() {
    let most = PHASE_MS_MAX;
    assert_eq!(outcome(BUYER, other(|terms| terms.challenge_ms = most)), DONE);
    assert_eq!(outcome(BUYER, other(|terms| terms.unbond_ms = most)), DONE);
    let long = Err("LIMIT_EXCEEDED");
    assert_eq!(outcome(BUYER, other(|terms| terms.challenge_ms = most + 1)), long);
    assert_eq!(outcome(BUYER, other(|terms| terms.unbond_ms = most + 1)), long);
    let least = DATA_PER_ROUND_MIN;
    let below = Amount::from_units(least.units() - 1);
    assert_eq!(outcome(BUYER, other(|terms| terms.data = least)), DONE);
    assert_eq!(outcome(BUYER, other(|terms| terms.data = below)), Err("TOO_SMALL"));
}

#[test]
fn a_whole_balance_can_be_spent_and_no_unit_more() {
    let more = units(1_000).plus(Amount::from_units(1)).unwrap();
    let to = address(BUYER);
    for (amount, expected) in [(units(1_000), DONE), (more, Err("INSUFFICIENT_FUNDS"))] {
        let spent = [
            outcome(ALICE, Action::Transfer { to, amount }),
            outcome(ALICE, Action::Bond { task: TASK, amount }),
            outcome(ALICE, Action::Stake { amount }),
        ];
        assert_eq!(spent, [expected; 3], "{amount}");
    }
}

#[test]
fn each_movement_takes_from_one_account_and_gives_to_another() {
    let mut state = state_with_open_task();
    let (alice, amount) = (address(ALICE), units(30));
    let balance = |state: &LedgerState| in_units(state.balance(alice));
    let transfer = Action::Transfer { to: address(ARBITER), amount };
    execute(&mut state, 0, ALICE, transfer).unwrap();
    assert_eq!((balance(&state), in_units(state.balance(address(ARBITER)))), (970, 1_030));
    execute(&mut state, 0, ALICE, Action::Bond { task: TASK, amount }).unwrap();
    assert_eq!((balance(&state), in_units(state.bond(TASK, alice).amount)), (940, 30));
    execute(&mut state, 0, ALICE, Action::Stake { amount }).unwrap();
    assert_eq!((balance(&state), in_units(state.stake(alice).amount)), (910, 30));
    execute(&mut state, 0, ALICE, Action::Unstake).unwrap();
    let moved = execute(&mut state, 0, ALICE, Action::WithdrawStake);
    assert_eq!(moved, Ok(TransactionOutcome::Moved(amount)));
    assert_eq!((balance(&state), state.stake(alice).amount), (940, Amount::ZERO));
    // The budget of the task is in its two pools.
    let task = state.task(TASK).unwrap();
    assert_eq!([task.data_locked, task.infrastructure_locked].map(in_units), [300, 100]);
    assert_eq!(in_units(state.balance(address(BUYER))), 600);
}

#[test]
fn a_pledged_stake_is_free_after_the_delay_of_its_task_and_not_before() {
    let mut state = state_with_open_task();
    let (stake, early) = (Action::Stake { amount: units(60) }, Err("TOO_EARLY"));
    let mut at = |at, action| execute(&mut state, at, ALICE, action);
    at(0, stake.clone()).unwrap();
    at(0, Action::Pledge { task: TASK }).unwrap();
    // A deposit cancels the request for its return.
    at(0, Action::Unstake).unwrap();
    at(0, stake).unwrap();
    assert_eq!(at(1_000, Action::WithdrawStake), Err("NOT_FOUND"));
    at(1_000, Action::Unstake).unwrap();
    assert_eq!(at(1_000, Action::WithdrawStake), early);
    assert_eq!(at(1_299, Action::WithdrawStake), early);
    assert_eq!(at(1_300, Action::WithdrawStake), Ok(TransactionOutcome::Moved(units(120))));
    assert_eq!(at(1_300, Action::WithdrawStake), Err("NOT_FOUND"));
    assert_eq!(
        (state.balance(address(ALICE)), state.is_pledged(TASK, address(ALICE))),
        (units(1_000), false)
    );
}

#[test]
fn a_used_up_pledge_ends_and_a_bond_needs_a_request() {
    let mut state = state_with_open_task();
    let (task, account, evidence) = (TASK, address(ALICE), Digest([6; 32]));
    execute(&mut state, 0, ALICE, Action::Stake { amount: units(60) }).unwrap();
    execute(&mut state, 0, ALICE, Action::Pledge { task }).unwrap();
    for (amount, still) in [(units(49), true), (units(1), false)] {
        let slash = Slash { task, account, stake: true, amount, evidence };
        assert_eq!(
            execute(&mut state, 0, BUYER, Action::Slash(slash.clone())),
            Err("UNAUTHORIZED")
        );
        let taken = execute(&mut state, 0, ARBITER, Action::Slash(slash));
        assert_eq!(taken, Ok(TransactionOutcome::Moved(amount)));
        assert_eq!(state.is_pledged(task, account), still);
    }
    execute(&mut state, 0, ALICE, Action::Bond { task, amount: units(20) }).unwrap();
    let withdrawn = execute(&mut state, 10_000, ALICE, Action::WithdrawBond { task });
    assert_eq!(withdrawn, Err("NOT_FOUND"));
}

#[test]
fn the_smallest_bond_and_stake_are_enough_and_no_unit_less() {
    let less = |amount: Amount| Amount::from_units(amount.units() - 1);
    for (amount, expected) in [(units(20), DONE), (less(units(20)), Err("TOO_SMALL"))] {
        assert_eq!(outcome(ALICE, Action::Bond { task: TASK, amount }), expected);
    }
    for (amount, expected) in [(units(50), DONE), (less(units(50)), Err("TOO_SMALL"))] {
        let mut state = state_with_open_task();
        execute(&mut state, 0, ALICE, Action::Stake { amount }).unwrap();
        assert_eq!(execute(&mut state, 0, ALICE, Action::Pledge { task: TASK }), expected);
    }
}

/// The outcome of a first settlement with these totals.
fn posted(data: Amount, infrastructure: Amount, root: Digest) -> Outcome {
    let first = settlement(1, 0);
    let settlement =
        Settlement { data_total: data, infrastructure_total: infrastructure, root, ..first };
    outcome(COORDINATOR, Action::Post(settlement))
}

#[test]
fn a_settlement_may_pay_the_whole_deposit_of_each_pool_and_no_unit_more() {
    let root = Digest([7; 32]);
    let more = |amount: Amount| amount.plus(Amount::from_units(1)).unwrap();
    let (data, infrastructure) = (units(300), units(100));
    assert!(posted(data, infrastructure, root).is_ok());
    assert_eq!(posted(more(data), infrastructure, root), Err("INVALID_SETTLEMENT"));
    assert_eq!(posted(data, more(infrastructure), root), Err("INVALID_SETTLEMENT"));
}

#[test]
fn an_empty_root_pays_nothing_from_either_pool() {
    let (empty, zero, one) = (Digest::default(), Amount::ZERO, units(1));
    assert!(posted(zero, zero, empty).is_ok());
    for (data, infrastructure) in [(one, zero), (zero, one), (one, one)] {
        assert_eq!(posted(data, infrastructure, empty), Err("INVALID_SETTLEMENT"));
        assert!(posted(data, infrastructure, Digest([7; 32])).is_ok());
    }
}
