//! A participant whose memory is smaller than a step: it is quoted before the bond, trains by a plan to the
//! same update, or is refused without a deposit.

use crate::support::market::digits_graph;
use crate::support::process::until;
use crate::support::{On, Process, TestMarket, TestPlan};

/// The memory of a participant, as a share of the step's tensors.
const SHARE: f64 = 0.8;

fn market(rounds: u32) -> TestMarket {
    let mut plan = TestPlan::honest(On::Embedded, rounds);
    plan.provider = false;
    plan.target = 2;
    plan.graph = Some(digits_graph());
    TestMarket::open(plan)
}

fn start(market: &TestMarket, call: &[String], name: &str) -> Process {
    Process::start_in(market.folder(), name, call, &[])
}

/// The number of bytes behind a text of a log, such as `with 1.5 MiB`.
fn mib_after(log: &str, text: &str) -> f64 {
    let line = log.lines().find(|line| line.contains("of tensors at once")).unwrap();
    let rest = line.split_once(text).unwrap_or_else(|| panic!("{text:?} is not in {line}")).1;
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_member_with_little_memory_trains_by_a_plan_or_deposits_nothing() {
    let market = market(1);
    let task = market.publish();
    let call = |name: &str, more: &[&str]| {
        let mut call = market.participant_call(&market.url, task, name);
        call.extend(more.iter().map(|&word| word.to_owned()));
        call
    };
    // A kilobyte is too little for any plan: nothing is deposited.
    let tiny = call("ann", &["--virtual-workers", "1", "--memory", "0.000001"]);
    let mut refused = start(&market, &tiny, "ann-tiny");
    assert_eq!(refused.wait().code(), Some(1), "{}", refused.log());
    assert!(refused.log().contains("MEMORY_TOO_SMALL"), "{}", refused.log());
    assert!(!refused.log().contains("bonded"), "{}", refused.log());
    let mut ann = start(&market, &call("ann", &["--virtual-workers", "1"]), "ann");
    let log = until("the quote of ann's training", || {
        let log = ann.log();
        log.contains("of tensors at once").then_some(log)
    });
    // The model has batch norm, so that its batches cannot be computed in parts.
    let memory = format!("{:.6}", mib_after(&log, "with ") * SHARE / 1_024.0);
    let mut ben = start(&market, &call("ben", &["--memory", &memory]), "ben");
    ann.finish();
    ben.finish();
    let log = ben.log();
    assert!(log.contains("leave it and return"), "{log}");
    let report = market.report(task, 1);
    assert!(!report.account_totals[&market.account("ben")].data.is_zero(), "{log}");
}
