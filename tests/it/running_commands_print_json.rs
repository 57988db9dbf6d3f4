//! `florin participate --json` and `florin provide --json` print one object for each event, and
//! their failures are JSON like those of every command.

use florin_protocol::TaskId;
use serde_json::Value;

use crate::support::process::until;
use crate::support::{On, Process, TestMarket, TestPlan};

/// Starts a process with `--json`.
fn start(market: &TestMarket, name: &str, mut call: Vec<String>) -> Process {
    call.push("--json".to_owned());
    Process::start(market.folder(), name, &call)
}

/// The events of a process; each line is one object whose first key is `event`.
fn events(process: &Process, wallet: &str) -> Vec<Value> {
    let log = process.log();
    let event = |line: &str| {
        assert!(line.starts_with(r#"{"event":""#), "the event is first: {line}");
        let event: Value = serde_json::from_str(line).expect("one object per line");
        assert_eq!(event["wallet"], wallet, "{line}");
        event
    };
    log.lines().map(event).collect()
}

/// Asserts that events of these names occurred in this order, perhaps with others between them.
#[track_caller]
fn assert_order(events: &[Value], names: &[&str]) {
    let mut found = events.iter();
    for name in names {
        assert!(found.any(|event| event["event"] == *name), "no {name}, in order, in {events:#?}");
    }
}

#[test]
fn every_event_of_a_participant_and_a_provider_is_one_json_object() {
    let market = TestMarket::open(TestPlan::honest(On::Embedded, 1));
    let task = market.publish();
    let mut provider = start(&market, "provider", market.provider_call(&market.url, task));
    until("the provider is ready", || provider.log().contains(r#""event":"ready""#).then_some(()));
    let mut participants = ["ann", "ben", "cy"]
        .map(|name| start(&market, name, market.participant_call(&market.url, task, name)));
    participants.iter_mut().for_each(Process::finish);
    provider.finish();

    let found = events(&participants[0], "ann");
    assert_order(
        &found,
        &[
            "registered",
            "quoted",
            "bonded",
            "enrolled",
            "selected",
            "trained",
            "committed",
            "receipt_stored",
            "reported",
            "claimed",
            "finished",
            "summary",
        ],
    );
    let line = market.report(task, 1).line(market.account("ann")).cloned().unwrap();
    let reported = found.iter().find(|event| event["event"] == "reported").unwrap();
    assert_eq!(reported["payout"], line.payout.units().to_string());
    let summary = found.last().unwrap();
    assert_eq!((&summary["rounds"], &summary["alarms"]), (&1.into(), &0.into()));
    assert_eq!(summary["earned"], line.payout.units().to_string());
    assert_eq!(summary["withdrawn"], summary["earned"]);

    let found = events(&provider, "provider");
    assert_order(
        &found,
        &[
            "registered",
            "staked",
            "pledged",
            "ready",
            "work_ordered",
            "work_computed",
            "work_accepted",
            "claimed",
            "finished",
            "summary",
        ],
    );
    assert_eq!(found.last().unwrap()["account"], market.account("provider").to_string());

    failures_are_json(&market, task);
}

fn failures_are_json(market: &TestMarket, task: TaskId) {
    for call in [
        &["provide", "--max-stake", "1", "--task", "00"][..],
        &["participate", "--data", "digits", "--task", "00"],
    ] {
        let output = market.run_command_as("buyer", &[call, &["--json"]].concat());
        assert!(output.out.is_empty() && output.json_error().is_some(), "{output:?}");
        output.refused(2, "INVALID_ID");
    }
    let id = task.to_string();
    let call = ["participate", "--data", "digits", "--engine", "reference", "--task", &id];
    for (policy, exit, code) in
        [(&[][..], 2, "MAX_BOND_REQUIRED"), (&["--max-bond", "9"], 1, "TASK_CLOSED")]
    {
        let output = market.run_command_as("buyer", &[&call[..], policy, &["--json"]].concat());
        assert!(output.json_error().is_some(), "{output:?}");
        output.refused(exit, code);
    }
    let to = market.account("ann").to_string();
    let output = market.run_command_as("provider", &["transfer", &to, "100000", "--json"]);
    let error = output.json_error().expect("a JSON failure");
    let remedy = error["remedy"].as_str().expect("a remedy");
    assert!(remedy.contains("florin transfer 0x"), "{error}");
    output.refused(1, "INSUFFICIENT_FUNDS");
}
