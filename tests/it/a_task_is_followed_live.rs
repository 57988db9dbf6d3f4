//! `florin task follow` prints each change of a task and ends with it. A participant that comes
//! too late gets an error.

use florin_protocol::{Amount, TaskId, TaskPhase};
use serde_json::Value;

use crate::support::market::words;
use crate::support::process::until;
use crate::support::{On, Process, TestMarket, TestPlan};

/// Follows a task until it is done.
fn follow(market: &TestMarket, task: TaskId, name: &str, more: &[&str]) -> Process {
    let id = task.to_string();
    let call = [&["task", "follow", &id, "--market", &market.url], more].concat();
    let process = Process::start(market.folder(), name, &words(&call));
    until("the first line", || (!process.log().is_empty()).then_some(()));
    process
}

#[test]
fn each_change_is_one_line_until_the_task_is_done() {
    let market = TestMarket::open(TestPlan::honest(On::Embedded, 2));
    let task = market.publish();
    let mut text = follow(&market, task, "follow-text", &[]);
    let mut json = follow(&market, task, "follow-json", &["--json"]);
    market.start_all(task).iter_mut().for_each(Process::finish);
    [&mut text, &mut json].into_iter().for_each(Process::finish);

    let text = text.log();
    for part in ["round 1 reported: loss", "round 2 reported: loss", "3 enrolled", "score "] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    let last = text.lines().last().unwrap();
    assert!(last.contains("done") && last.contains("0.0000 FLN left"), "{last}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.windows(2).all(|pair| pair[0] != pair[1]), "only changes are printed: {text}");

    let json = json.log();
    assert!(
        json.lines().all(|line| line.starts_with(r#"{"event":""#)),
        "the event is first: {json}"
    );
    let events: Vec<Value> =
        json.lines().map(|line| serde_json::from_str(line).expect("one object per line")).collect();
    let rounds: Vec<&Value> = events.iter().filter(|event| event["event"] == "round").collect();
    for (number, event) in (1..=2).zip(&rounds) {
        let report = market.report(task, number);
        let paid = Amount::total(report.lines.iter().map(|line| line.payout)).unwrap();
        assert_eq!(event["paid"], paid.units().to_string());
        assert_eq!(event["updates"].as_array().unwrap().len(), 3);
    }
    assert_eq!(rounds.len(), 2);
    let last = events.last().unwrap();
    assert_eq!((&last["locked"], &last["reported"]), (&"0".into(), &2.into()));
    assert_eq!(last["phase"], serde_json::to_value(TaskPhase::Done).unwrap());

    every_line_of_a_participant_has_its_name(&market);
    a_participant_that_comes_too_late_gets_an_error(&market, task);
}

fn every_line_of_a_participant_has_its_name(market: &TestMarket) {
    let log = std::fs::read_to_string(market.file("ann.log")).unwrap();
    let events = log.lines().filter(|line| line.contains("round 1"));
    let names: Vec<bool> = events.map(|line| line.starts_with("ann: ")).collect();
    assert!(names.len() > 2 && names.iter().all(|named| *named), "{log}");
    assert!(log.contains("florin task follow"), "{log}");
}

fn a_participant_that_comes_too_late_gets_an_error(market: &TestMarket, task: TaskId) {
    let id = task.to_string();
    let call = ["participate", "--task", &id, "--data", "digits", "--engine", "reference"];
    let output = market.run_command_as("buyer", &[&call[..], &["--max-bond", "9"]].concat());
    assert!(!output.out.contains("round 1"), "no report is read: {output:?}");
    output.refused(1, "TASK_CLOSED");
    // Its own participants may run the command again.
    let mut again = market.participant(task, "ann");
    again.finish();
    let misfit = market.file("misfit.csv");
    std::fs::write(&misfit, "a,b,label\n1,2,0\n3,4,1\n").unwrap();
    let data = format!("csv:{misfit}#label");
    let call = ["participate", "--task", &id, "--data", &data, "--max-bond", "9"];
    market.run_command_as("buyer", &call).refused(2, "DATA_MISMATCH");
    market.run_command(&["audit", &id, "--round", "9"]).refused(2, "ROUNDS_OUT_OF_RANGE");
    let to = market.account("ann").to_string();
    let output = market.run_command_as("provider", &["transfer", &to, "100000"]);
    assert!(output.err.contains("florin transfer 0x"), "the remedy is named: {output:?}");
    output.refused(1, "INSUFFICIENT_FUNDS");
}
