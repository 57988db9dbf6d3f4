//! The balance equation holds after every round, for the task and for the whole supply, to the last
//! unit.

use florin_ledger::TaskState;
use florin_protocol::{Amount, TaskPhase};

use crate::support::process::until;
use crate::support::{On, TestMarket, TestPlan, florin, on_both};

on_both!(the_books_balance);

fn equation_holds(books: &TaskState) -> bool {
    let deposited = books.terms.data.plus(books.terms.infrastructure).unwrap();
    let parts = [
        books.data_paid,
        books.infrastructure_paid,
        books.refunded,
        books.data_locked,
        books.infrastructure_locked,
    ];
    Amount::total(parts).unwrap() == deposited
}

fn the_books_balance(on: On) {
    let mut plan = TestPlan::honest(on, 3);
    plan.participants.push(("flo", Some("flip")));
    plan.target = 4;
    let mut market = TestMarket::open(plan);
    let task = market.publish();
    let mut all = market.start_all(task);
    let mut looks = 0;
    until("the task is done", || {
        assert!(equation_holds(&market.books(task)), "{:?}", market.books(task));
        looks += 1;
        (market.view(task).phase == TaskPhase::Done).then_some(())
    });
    eprintln!("looked {looks} times");
    all.iter_mut().for_each(crate::support::Process::finish);
    let books = market.books(task);
    assert!(equation_holds(&books) && books.closed);
    assert_eq!(books.data_locked.plus(books.infrastructure_locked), Ok(Amount::ZERO));
    assert_eq!(books.owed, Amount::ZERO, "all earnings are claimed");
    let held = market.balances(task).into_values().map(|(wallet, risk)| wallet.plus(risk).unwrap());
    let supply = Amount::total(held).unwrap().plus(market.ledger().treasury().unwrap()).unwrap();
    let names = 3 + market.plan.participants.len() as u64;
    let made = 1_000 + 50 * (names - 1);
    assert_eq!(supply, made.to_string().parse().unwrap(), "no token appears or vanishes");
    market.coordinator.kill();
    let output = match &market.chain {
        None => florin(&["ledger", "verify", "--data", &market.file("coordinator")]),
        Some(chain) => {
            let file = market.file("deployment.toml");
            let rpc = ["--rpc", &chain.anvil.rpc];
            florin(&[&["ledger", "verify", "--deployment", &file], &rpc[..]].concat())
        }
    };
    let finished = output.expect(0);
    assert!(finished.out.contains("OK."), "{finished:?}");
}
