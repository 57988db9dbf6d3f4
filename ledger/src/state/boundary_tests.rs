//! Each limit of an amount or a duration at its last valid value, and one above it.

use florin_protocol::limits::{PHASE_MS_MAX, TASK_MS_MAX};
use florin_protocol::{DATA_PER_ROUND_MIN, Digest, Micro};

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
    assert_eq!(outcome(BUYER, other(|terms| terms.challenge_ms = 1)), DONE);
    let none = outcome(BUYER, other(|terms| terms.challenge_ms = 0));
    assert_eq!(none, Err("INVALID_ARGUMENT"));
    // 366 days after the ledger's time, which is 0.
    assert_eq!(outcome(BUYER, other(|terms| terms.expires = Timestamp(TASK_MS_MAX))), DONE);
    let late = outcome(BUYER, other(|terms| terms.expires = Timestamp(TASK_MS_MAX + 1)));
    assert_eq!(late, long);
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

/// The outcome of a settlement of the last round with these totals.
fn posted(data: Amount, infrastructure: Amount, root: Digest) -> Outcome {
    let first = settlement(10, 0);
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

/// The outcome of a first settlement under these terms, and the root of another tree.
fn posted_under(terms: Terms, settlement: Settlement) -> Outcome {
    let settlement = Settlement { root: Digest([7; 32]), ..settlement };
    execute(&mut state_with_task(terms), 0, COORDINATOR, Action::Post(settlement))
}

#[test]
fn limits_of_the_totals_grow_with_the_rounds_and_are_rounded_down() {
    let seven = Terms { rounds: 7, ..terms(TASK) };
    let (data, infrastructure) = (seven.data.units(), seven.infrastructure.units());
    for round in 1..=7u32 {
        let limit = |pool: u128| Amount::from_units(pool * u128::from(round) / 7);
        let all = Settlement {
            data_total: limit(data),
            infrastructure_total: limit(infrastructure),
            ..settlement(round, 0)
        };
        assert!(posted_under(seven.clone(), all).is_ok(), "round {round}");
        let above = |total: Amount| total.plus(Amount::from_units(1)).unwrap();
        for more in [
            Settlement { data_total: above(all.data_total), ..all },
            Settlement { infrastructure_total: above(all.infrastructure_total), ..all },
        ] {
            let refused = posted_under(seven.clone(), more);
            assert_eq!(refused, Err("INVALID_SETTLEMENT"), "round {round}");
        }
    }
    for round in [0, 8] {
        let refused = posted_under(seven.clone(), settlement(round, 0));
        assert_eq!(refused, Err("INVALID_SETTLEMENT"), "round {round}");
    }
}

#[test]
fn pay_for_scores_follows_the_improvement_and_other_pay_the_floor() {
    // 300 units in 10 rounds: 60 up to round 2, and a quarter of it, 15, without improvement.
    let rules = Terms { floor_share: Micro(250_000), per_nat_max: units(30), ..terms(TASK) };
    let unit = Amount::from_units(1);
    let paid = |data: Amount, scores: Amount, improvement_total_nano| {
        let first = settlement(2, 0);
        let paid = Settlement { data_total: data, score_pay_total: scores, ..first };
        posted_under(rules.clone(), Settlement { improvement_total_nano, ..paid })
    };
    let wrong = Err("INVALID_SETTLEMENT");
    assert!(paid(units(60), units(45), 1_500_000_000).is_ok());
    assert_eq!(paid(units(60), units(45), 1_499_999_999), wrong, "less improvement");
    assert_eq!(paid(units(60), units(45).minus(unit).unwrap(), u64::MAX), wrong, "more floor");
    assert!(paid(units(15), Amount::ZERO, 0).is_ok(), "the floor alone");
    assert_eq!(paid(units(15), unit, 0), wrong, "a unit for no improvement");
    assert_eq!(paid(units(15), units(16), u64::MAX), wrong, "more for scores than for data");
    assert!(paid(Amount::ZERO, Amount::ZERO, u64::MAX).is_ok());
}

#[test]
fn a_price_beyond_the_range_of_an_amount_is_no_limit() {
    let rules = Terms { per_nat_max: Amount::from_units(u128::MAX), ..terms(TASK) };
    assert_eq!(rules.score_pay_max(u64::MAX), Amount::from_units(u128::MAX));
    assert_eq!(rules.score_pay_max(1_000_000_000), Amount::from_units(u128::MAX));
    assert_eq!(rules.score_pay_max(0), Amount::ZERO);
}

#[test]
fn rounds_and_floor_share_of_a_task_are_valid_up_to_their_limits() {
    assert_eq!(outcome(BUYER, other(|terms| terms.rounds = 1)), DONE);
    assert_eq!(outcome(BUYER, other(|terms| terms.rounds = u32::MAX)), DONE);
    assert_eq!(outcome(BUYER, other(|terms| terms.rounds = 0)), Err("INVALID_ARGUMENT"));
    assert_eq!(outcome(BUYER, other(|terms| terms.floor_share = Micro(1_000_000))), DONE);
    let above = outcome(BUYER, other(|terms| terms.floor_share = Micro(1_000_001)));
    assert_eq!(above, Err("INVALID_ARGUMENT"));
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
