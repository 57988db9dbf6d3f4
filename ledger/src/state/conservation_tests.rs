//! A task whose balances do not add up: no action on it is executed, whichever balance is wrong.

use florin_protocol::{ChainId, Digest, MarketId};

use super::tests::*;
use super::*;
use crate::action::Action;
use crate::api::Slash;

/// Executes setup actions at time 0.
fn state_after(actions: Vec<(u8, Action)>) -> LedgerState {
    let mut state = state_with_open_task();
    for (from, action) in actions {
        execute(&mut state, 0, from, action).unwrap();
    }
    state
}

/// Every action that affects a task, with a state that accepts it, and its time and sender.
fn actions() -> Vec<(LedgerState, u64, u8, Action)> {
    let task = TASK;
    let evidence = Digest([6; 32]);
    let bond = || (ALICE, Action::Bond { task, amount: units(20) });
    let post = || (COORDINATOR, Action::Post(settlement(1, 30)));
    let pledged =
        || vec![(ALICE, Action::Stake { amount: units(60) }), (ALICE, Action::Pledge { task })];
    let slash = |stake| {
        Action::Slash(Slash { task, account: address(ALICE), stake, amount: units(5), evidence })
    };
    let payout = settlement(1, 30).payout;
    let mut settled = state_after(vec![bond(), post()]);
    execute(&mut settled, 101, ALICE, Action::Finalize { task }).unwrap();
    let next = continuing(30, settlement(2, 40));
    let announce = || (COORDINATOR, Action::AnnounceClose { task });
    let last = || (COORDINATOR, Action::Post(settlement(10, 30)));
    vec![
        (state_after(vec![]), 50, ALICE, Action::Bond { task, amount: units(20) }),
        (state_after(vec![bond()]), 50, ARBITER, slash(false)),
        (state_after(pledged()), 50, ARBITER, slash(true)),
        (state_after(vec![]), 50, COORDINATOR, Action::Post(settlement(1, 30))),
        (settled.clone(), 102, COORDINATOR, Action::Post(next)),
        (state_after(vec![post()]), 50, ARBITER, Action::Cancel { task, payout }),
        (state_after(vec![post()]), 101, ALICE, Action::Finalize { task }),
        (settled, 102, ALICE, Action::Claim(claim(PaidAndDebited(30, 0)))),
        (state_after(vec![announce()]), 102, COORDINATOR, Action::Close { task }),
        (state_after(vec![last()]), 102, COORDINATOR, Action::Close { task }),
        (
            state_after(vec![bond(), (ALICE, Action::Unbond { task })]),
            10_000,
            ALICE,
            Action::WithdrawBond { task },
        ),
    ]
}

#[test]
fn no_action_on_a_task_whose_balances_do_not_add_up_is_executed() {
    let market = MarketId { chain: ChainId(1), genesis: Digest([0; 32]) };
    let one = Amount::from_units(1);
    let accounts = [
        Account::Escrow(TASK, Pool::Data),
        Account::Escrow(TASK, Pool::Infrastructure),
        Account::Owed(TASK),
    ];
    for (state, at, from, action) in actions() {
        let text = action.summary();
        execute(&mut state.clone(), at, from, action.clone()).unwrap();
        for account in accounts {
            let mut wrong = state.clone();
            let balance = wrong.account_balance(account).plus(one).unwrap();
            wrong.books.insert(account, balance);
            let before = wrong.clone();
            let nonce = wrong.nonce(address(from));
            let transaction =
                Transaction { market, from: address(from), nonce, action: action.clone() };
            let result = apply(&mut wrong, &transaction, Timestamp(at));
            let Err(ApplyError::Inconsistent(what)) = result else {
                panic!("{text}, one unit more in {account}: {result:?}");
            };
            assert!(what.contains("deposited"), "{text}, one unit more in {account}: {what}");
            assert_eq!(wrong, before);
        }
    }
}
