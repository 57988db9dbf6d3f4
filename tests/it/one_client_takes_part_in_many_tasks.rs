//! One client with a policy: it joins the two tasks that fit and pay, leaves the third alone with a
//! reason, and is paid by both; a kill in between deposits no second bond.

use std::collections::BTreeMap;
use std::fmt::Write;

use florin_protocol::{Amount, TaskId, TaskPhase};
use serde_json::Value;

use crate::support::process::until;
use crate::support::{On, TestMarket, TestPlan};

/// Rows of the second set, of which the holdout has the last sixty.
const ROWS: usize = 180;
const HOLDOUT: usize = 60;

/// Two overlapping clusters with four features.
fn table() -> String {
    let mut text = "a,b,c,d,label\n".to_owned();
    for row in 0..ROWS {
        let label = row % 2;
        let noise = |at: usize| ((row * (7 + at) + at * 13) % 17) as f64 / 17.0 - 0.5;
        let centre = if label == 1 { 0.8 } else { -0.8 };
        let [a, b, c, d] = [0, 1, 2, 3].map(|at| centre * f64::from(at < 2) + noise(at));
        writeln!(text, "{a:.3},{b:.3},{c:.3},{d:.3},{label}").unwrap();
    }
    text
}

fn policy(market: &TestMarket) {
    let text = "bond_max = \"40\"\npay_per_hour_min = \"1\"\n\n\
                [[data]]\nsource = \"digits\"\nrows = \"0..120\"\nschemas = [\"64x10\"]\n\n\
                [[data]]\nsource = \"csv:table.csv#label\"\nrows = \"0..120\"\n\
                names = [\"Clus*\"]\n";
    std::fs::write(market.file("policy.toml"), text).unwrap();
}

/// The events with this name, by task.
fn events(log: &str, name: &str) -> BTreeMap<String, usize> {
    let mut count = BTreeMap::new();
    for line in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if line["event"] == name {
            *count.entry(line["task"].as_str().unwrap().to_owned()).or_default() += 1;
        }
    }
    count
}

fn publish_all(market: &TestMarket) -> [TaskId; 3] {
    std::fs::write(market.file("table.csv"), table()).unwrap();
    let digits = market.publish();
    market.change_task(&[
        ("name = \"Test\"", "name = \"Dust\""),
        ("data = \"100\"", "data = \"0.01\""),
    ]);
    let dust = market.publish();
    let rows = format!("rows = \"{}..{ROWS}\"", ROWS - HOLDOUT);
    market.change_task(&[
        ("name = \"Dust\"", "name = \"Clusters\""),
        ("data = \"0.01\"", "data = \"60\""),
        ("inputs = 64", "inputs = 4"),
        ("width = 64", "width = 4"),
        ("classes = 10", "classes = 2"),
        ("source = \"digits\"", "source = \"csv:table.csv#label\""),
        ("rows = \"1497..1797\"", &rows),
    ]);
    [digits, market.publish(), dust]
}

#[test]
fn one_client_takes_part_in_the_tasks_that_fit_and_pay() {
    let plan = TestPlan {
        participants: Vec::new(),
        others: vec!["ann"],
        provider: false,
        target: 1,
        ..TestPlan::honest(On::Embedded, 2)
    };
    let market = TestMarket::open(plan);
    let [digits, clusters, dust] = publish_all(&market);
    policy(&market);
    let file = market.file("policy.toml");
    let call =
        ["participate", "--all", "--policy", &file, "--engine", "reference", "--trust-coordinator"];
    let shown = market.run_command_as("ann", &[&call[..], &["--dry-run"]].concat()).expect(0).out;
    assert!(shown.contains("PAY_TOO_LOW") && shown.contains("Clusters"), "{shown}");
    let found = market.run_command_as("ann", &[&call[..], &["--dry-run", "--json"]].concat());
    let found = found.expect(0).json();
    let decisions: BTreeMap<String, (String, Value)> = found["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            let text = |key: &str| one[key].as_str().unwrap().to_owned();
            (text("task"), (text("decision"), one["code"].clone()))
        })
        .collect();
    let decision = |task: TaskId| decisions[&task.to_string()].clone();
    assert_eq!(decision(digits), ("join".to_owned(), Value::Null), "{found}");
    assert_eq!(decision(clusters), ("join".to_owned(), Value::Null), "{found}");
    assert_eq!(decision(dust), ("refuse".to_owned(), "PAY_TOO_LOW".into()), "{found}");

    let mut ann = market.start_as("ann", &[&call[..], &["--json"]].concat());
    until("both tasks have an update", || {
        (events(&ann.log(), "committed").len() == 2).then_some(())
    });
    ann.restart();
    for task in [digits, clusters] {
        market.wait_for(task, 9, TaskPhase::Done);
    }
    until("all is paid and returned", || (events(&ann.log(), "finished").len() == 2).then_some(()));
    ann.ask_to_stop();
    ann.finish();
    let (log, ledger, account) = (ann.log(), market.ledger(), market.account("ann"));
    let once: BTreeMap<String, usize> =
        [digits, clusters].map(|task| (task.to_string(), 1)).into_iter().collect();
    assert_eq!(events(&log, "bonded"), once, "{log}");
    let mut paid = Amount::ZERO;
    for task in [digits, clusters] {
        let claimed = ledger.claimed_totals(task, account).unwrap();
        assert!(!claimed.paid.is_zero() && claimed.debited.is_zero(), "{log}");
        assert!(ledger.bond_of(task, account).unwrap().amount.is_zero());
        paid = paid.plus(claimed.paid).unwrap();
    }
    assert_eq!(ledger.balance(account).unwrap(), paid.plus("50".parse().unwrap()).unwrap());
    assert_eq!(market.view(dust).enrolled, 0);
}
