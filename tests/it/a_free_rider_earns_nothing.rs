//! A free-rider earns nothing, whether it submits noise, flips labels, or submits the unchanged
//! model.

use florin_protocol::{Amount, Statement};

use crate::support::{On, TestMarket, TestPlan, on_both};

on_both!(a_free_rider_earns_nothing);

fn a_free_rider_earns_nothing(on: On) {
    let mut plan = TestPlan::honest(on, 3);
    plan.participants.extend([
        ("noah", Some("noise")),
        ("flo", Some("flip")),
        ("ida", Some("idle")),
    ]);
    plan.target = 6;
    let market = TestMarket::open(plan);
    let task = market.run();
    let last = market.report(task, 3);
    for name in ["noah", "flo", "ida"] {
        let account = market.account(name);
        let standing = last.account_totals[&account];
        assert_eq!(standing.data, Amount::ZERO, "{name}: {standing:?}");
        for round in 1..=3 {
            let statement = Statement::from_report(&market.report(task, round), account).unwrap();
            assert!(
                !statement.explanation.is_empty(),
                "{name} has an explanation for round {round}"
            );
        }
    }
    let idle = last.account_totals[&market.account("ida")];
    assert_eq!(
        (idle.score_sum_nano, idle.debited),
        (0, Amount::ZERO),
        "an unchanged model costs nothing"
    );
    for name in ["ann", "ben", "cy"] {
        assert!(
            !last.account_totals[&market.account(name)].data.is_zero(),
            "{name} is honest and is paid"
        );
    }
}
