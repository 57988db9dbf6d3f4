//! A buyer closes a task that has an independent arbiter, before its last round: the coordinator
//! announces the close on the ledger, and the budget returns after the challenge window.

use crate::support::process::{Process, until};
use crate::support::{On, TestMarket, TestPlan, on_both};

on_both!(an_early_close_is_announced_and_refunds_after_the_window);

fn an_early_close_is_announced_and_refunds_after_the_window(on: On) {
    let mut plan = TestPlan::honest(on, 20);
    plan.provider = false;
    plan.others = vec!["arbiter"];
    let market = TestMarket::open(plan);
    let arbiter = market.account("arbiter").to_string();
    market.change_task(&[
        ("trust = \"coordinator\"", &format!("arbiter = \"{arbiter}\"")),
        ("challenge = \"100 ms\"", "challenge = \"10 s\""),
    ]);
    // Its bond covers all rounds that end within one window; with too little a settlement waits.
    let coordinator = market.account("coordinator").to_string();
    market.run_command_as("buyer", &["transfer", &coordinator, "200"]).expect(0);
    let task = market.publish();
    let id = task.to_string();
    let mut members =
        ["ann", "ben", "cy"].map(|name| market.participant_under(&arbiter, task, name));
    until("two reports", || (market.view(task).reported >= 2).then_some(()));
    // The command waits for the refund.
    let mut close = market.start_as("buyer", &["task", "close", &id]);
    let at = until("an announced close", || market.books(task).closes_at);
    assert!(!market.books(task).closed);
    let shown = market.run_command(&["task", "show", &id]).expect(0);
    assert!(shown.out.contains("announced the close"), "{}", shown.out);
    let json = market.run_command(&["task", "show", &id, "--json"]).expect(0).json();
    assert_eq!(json["money"]["closes_at"], at.0, "{json}");
    let closed = until("the close", || Some(market.books(task)).filter(|books| books.closed));
    assert!(market.ledger().now().unwrap() >= at);
    assert!(!closed.refunded.is_zero() && closed.closes_at.is_none());
    close.finish();
    members.iter_mut().for_each(Process::finish);
    assert!(members.iter().any(|member| member.log().contains("will close the task")));
    assert!(
        !members.iter().any(|member| member.log().contains("objected")),
        "nothing is unsettled"
    );
}
