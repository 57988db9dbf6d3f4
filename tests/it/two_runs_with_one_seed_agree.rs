//! Two runs with the same seed have equal scores, payouts and balances; another seed gives
//! different ones.

use florin_protocol::Report;

use crate::support::{On, TestMarket, TestPlan, on_both};

on_both!(two_runs_with_one_seed_agree);

fn run(on: On, seed: u64) -> (Vec<Report>, String) {
    let mut plan = TestPlan::honest(on, 2);
    plan.seed = seed;
    plan.participants.push(("noah", Some("noise")));
    plan.target = 4;
    let market = TestMarket::open(plan);
    let task = market.run();
    let reports = (1..=2).map(|round| market.report(task, round)).collect();
    (reports, format!("{:?}", market.balances(task)))
}

fn two_runs_with_one_seed_agree(on: On) {
    let ((ours, balances), (theirs, again), (other, _)) = (run(on, 1), run(on, 1), run(on, 2));
    for (a, b) in ours.iter().zip(&theirs) {
        assert_eq!(a.valuation, b.valuation, "scores of round {}", a.scope.round);
        assert_eq!(a.lines, b.lines);
        assert_eq!((a.model, a.root), (b.model, b.root));
    }
    assert_eq!(balances, again);
    assert_ne!(ours[0].valuation, other[0].valuation);
}
