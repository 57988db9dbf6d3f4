//! Pay that is final on the chain needs no coordinator: the reports that a participant stored prove
//! its totals.

use florin_ledger::Ledger;
use florin_protocol::{Report, Signed};

use crate::support::market::words;
use crate::support::process::{Process, florin, until};
use crate::support::{On, TestMarket, TestPlan};

#[test]
fn a_claim_needs_only_the_stored_reports_and_a_node() {
    let mut plan = TestPlan::honest(On::Ethereum, 20);
    plan.provider = false;
    let mut market = TestMarket::open(plan);
    market.change_task(&[("challenge = \"100 ms\"", "challenge = \"5 s\"")]);
    let task = market.publish();
    let mut members = market.start_all(task);
    let ledger = market.chain().ledger();
    let ann = market.account("ann");
    let reports = market.folder().join("ann.state").join(task.to_string());
    // Stopped before its first pay is final.
    let report = until("a stored report that pays Ann", || {
        let rounds = (1..=20).rev().map(|round| reports.join(format!("{round}/report.json")));
        let text = rounds.into_iter().find_map(|file| std::fs::read_to_string(file).ok())?;
        let report: Signed<Report> = serde_json::from_str(&text).unwrap();
        let totals = report.body.account_totals.get(&ann)?;
        (!totals.data.is_zero()).then_some(report.body)
    });
    members.iter_mut().for_each(Process::kill);
    let claimed = || ledger.claimed_totals(task, ann).unwrap().paid;
    assert!(claimed().is_zero(), "the claim below is the first");
    until("its final root", || (market.books(task).root == report.root).then_some(()));
    market.coordinator.kill();

    let chain = market.chain();
    let mut call = words(&["claim", &task.to_string()[..12], "--json", "--from-state"]);
    call.extend(words(&["--wallet", &market.file("ann.json")]));
    call.extend(words(&["--passphrase-file", &market.file("passphrase")]));
    florin(&call).refused(2, "NO_MARKET");
    call.extend(words(&["--deployment", chain.deployment_file().to_str().unwrap()]));
    florin(&call).refused(2, "NO_NODE");
    call.extend(words(&["--rpc", &chain.anvil.rpc]));
    let paid = florin(&call).expect(0).json();
    assert_eq!(claimed(), report.account_totals[&ann].data);
    assert_eq!(paid["paid"], claimed().units().to_string());
    assert_eq!(paid["account"], ann.to_string());
    let again = florin(&call).expect(0).json();
    assert_eq!(again["paid"], "0");
    let elsewhere = call.iter().map(|word| match word.as_str() {
        "--from-state" => format!("--from-state={}", market.file("nowhere")),
        word => word.to_owned(),
    });
    florin(&elsewhere.collect::<Vec<_>>()).refused(2, "FILE_NOT_FOUND");
}
