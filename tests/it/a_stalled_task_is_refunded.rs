//! A task that cannot continue ends, and its escrow is refunded; before that, `task show` prints the
//! participants that it waits for.

use florin_protocol::{TaskEnd, TaskPhase};

use crate::support::process::until;
use crate::support::{On, TestMarket, TestPlan, on_both};

on_both!(a_task_with_too_few_participants_ends_and_is_refunded);

fn a_task_with_too_few_participants_ends_and_is_refunded(on: On) {
    let mut plan = TestPlan::honest(on, 2);
    plan.provider = false;
    let market = TestMarket::open(plan);
    market.change_task(&[
        ("cohort_min = 1", "cohort_min = 3"),
        ("enrol = \"600000 ms\"", "enrol = \"10 ms\""),
        ("stall = \"1 d\"", "stall = \"12 s\""),
    ]);
    let balance = |name| market.ledger().balance(market.account(name)).unwrap();
    let before = ["buyer", "ann"].map(balance);
    let task = market.publish();
    let mut ann = market.participant(task, "ann");
    market.wait_for_enrolled(task, 1);
    let shown = market.run_command(&["task", "show", &task.to_string()]).expect(0);
    let expected = "waits for 2 more eligible participants: 1 enrolled, 3 needed";
    assert!(shown.out.replace("\n", " ").contains(expected), "{}", shown.out);
    until("the end of the task", || (market.view(task).phase == TaskPhase::Done).then_some(()));
    ann.finish();
    let view = market.view(task);
    assert_eq!((view.end, view.reported), (Some(TaskEnd::Stalled), 0));
    let books = market.books(task);
    assert!(books.closed && books.data_locked.is_zero(), "{books:?}");
    assert_eq!(["buyer", "ann"].map(balance), before, "escrow and bond are back");
    let shown = market.run_command(&["task", "show", &task.to_string()]).expect(0);
    assert!(shown.out.contains("No more rounds start"), "{}", shown.out);
}
