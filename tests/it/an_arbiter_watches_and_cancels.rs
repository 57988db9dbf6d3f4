//! An independent arbiter watches a task, cancels a settlement, and slashes a bond, as a process of
//! its own.

use crate::support::process::{Process, until};
use crate::support::{On, TestMarket, TestPlan, on_both};

on_both!(an_independent_arbiter_watches_cancels_and_slashes);

fn an_independent_arbiter_watches_cancels_and_slashes(on: On) {
    let mut plan = TestPlan::honest(on, 20);
    plan.provider = false;
    plan.participants.truncate(2);
    plan.target = 2;
    plan.others = vec!["arbiter"];
    let market = TestMarket::open(plan);
    let arbiter = market.account("arbiter").to_string();
    market.change_task(&[
        ("trust = \"coordinator\"", &format!("arbiter = \"{arbiter}\"")),
        ("challenge = \"100 ms\"", "challenge = \"10 m\""),
    ]);
    let task = market.publish();
    let id = task.to_string();
    let mut watch = market.start_as("arbiter", &["arbiter", "watch", "--task", &id]);
    let mut members = ["ann", "ben"].map(|name| market.participant_under(&arbiter, task, name));
    until("two audited rounds", || (watch.log().matches("agrees").count() >= 2).then_some(()));

    let cancel = ["arbiter", "cancel", "--task", &id, "--round", "2", "--reason", "a test"];
    let refused = market.run_command_as("arbiter", &cancel).expect(2);
    assert!(refused.err.contains("CONFIRMATION_REQUIRED"), "{}", refused.err);
    let foreign = market.run_command_as("buyer", &[&cancel[..], &["--yes"]].concat()).expect(1);
    assert!(foreign.err.contains("NOT_ARBITER"), "{}", foreign.err);
    let done =
        market.run_command_as("arbiter", &[&cancel[..], &["--yes", "--json"]].concat()).expect(0);
    assert_eq!(done.json()["cancelled"][0], 2, "{}", done.out);
    let evidence = done.json()["evidence"].as_str().unwrap().to_owned();
    let text = std::fs::read_to_string(&evidence).unwrap();
    assert!(text.contains("a test"), "{text}");
    // No settlement follows a cancelled one; that of round 1 is within its window.
    until("one pending settlement", || (market.books(task).pending.len() == 1).then_some(()));
    assert_eq!(market.books(task).pending[0].settlement.round.0, 1);
    until("the end of the task", || market.view(task).end);

    let ann = market.account("ann").to_string();
    let slash = ["arbiter", "slash", "--task", &id, "--account", &ann, "--amount", "1"];
    let slash = [&slash[..], &["--evidence", &evidence, "--yes", "--json"]].concat();
    let slashed = market.run_command_as("arbiter", &slash).expect(0);
    assert_eq!(slashed.json()["taken"], "1000000000000000000", "{}", slashed.out);
    // The events and the ledger's state agree about the slash.
    market.run_command(&["ledger", "verify"]).expect(0);

    members.iter_mut().for_each(Process::kill);
    watch.ask_to_stop();
    watch.finish();
}
