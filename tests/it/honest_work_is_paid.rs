//! Three participants train, the model improves, and each participant is paid for its updates.

use florin_protocol::{Amount, PayReason};

use crate::support::{On, TestMarket, TestPlan, on_both};

on_both!(honest_work_is_paid);

fn honest_work_is_paid(on: On) {
    let market = TestMarket::open(TestPlan::honest(on, 3));
    let task = market.run();
    let last = market.report(task, 3);
    let metrics = last.metrics.expect("the round was valued");
    assert!(metrics.correct_after * 2 > metrics.rows, "the model must learn: {metrics:?}");
    let ledger = market.ledger();
    for name in ["ann", "ben", "cy"] {
        let account = market.account(name);
        let standing = last.account_totals[&account];
        assert!(!standing.data.is_zero(), "{name} earned nothing: {standing:?}");
        assert_eq!(
            ledger.claimed_totals(task, account).unwrap().paid,
            standing.data,
            "{name} claimed all earnings"
        );
        let purse: Amount = "50".parse().unwrap();
        let held = purse.plus(standing.data).unwrap().minus(standing.debited).unwrap();
        assert_eq!(ledger.balance(account).unwrap(), held, "{name} has its pay and its bond");
        let paid = (1..=3).filter(|round| {
            market.report(task, *round).line(account).unwrap().reason == PayReason::Paid
        });
        assert!(paid.count() >= 1);
    }
    let log = market.coordinator.log();
    let replays = log.matches("valued by the transcript of a provider").count();
    assert_eq!(replays, 3, "the coordinator replays each round: {log}");
    let provider = market.account("provider");
    let earned = last.account_totals[&provider].infrastructure;
    assert!(!earned.is_zero(), "the provider is paid from the infrastructure pool");
    assert_eq!(ledger.claimed_totals(task, provider).unwrap().paid, earned);
    let output =
        market.run_command(&["statement", &task.to_string(), &market.account("ann").to_string()]);
    assert!(output.expect(0).out.contains("payable part of all scores"));
}
