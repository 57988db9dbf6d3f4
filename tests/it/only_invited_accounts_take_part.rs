//! A task by invitation admits one account for each invitation, and no account bonds in vain.

use florin_protocol::{TaskId, TaskPhase};

use crate::support::{On, Process, TestMarket, TestPlan};

/// A task by invitation for two participants.
fn open() -> TestMarket {
    let mut plan = TestPlan::honest(On::Embedded, 1);
    plan.provider = false;
    plan.target = 2;
    let market = TestMarket::open(plan);
    market.change_task(&[("admission = \"open\"", "admission = \"invitation\"")]);
    market
}

fn call(market: &TestMarket, task: TaskId, name: &str, invitation: Option<&str>) -> Vec<String> {
    let mut call = market.participant_call(&market.url, task, name);
    call.extend(invitation.into_iter().flat_map(|text| ["--invitation", text]).map(str::to_owned));
    call
}

#[test]
fn an_invitation_admits_one_account() {
    let market = open();
    let task = market.publish();
    let id = task.to_string();
    market.run_command_as("ann", &["task", "invite", &id]).refused(1, "UNAUTHORIZED");
    let invite = ["task", "invite", &id, "--count", "2", "--json"];
    let invitations = market.run_command_as("buyer", &invite).expect(0).json();
    let text = |at: usize| invitations[at]["invitation"].as_str().unwrap();
    let file = market.file("invitation");
    std::fs::write(&file, format!("{}\n", text(1))).unwrap();

    let run =
        |name, invitation| crate::support::process::florin(&call(&market, task, name, invitation));
    run("ben", None).refused(1, "NOT_ADMITTED");
    run("ben", Some("florin-invitation-00")).refused(2, "INVALID_INVITATION");
    let mut ann =
        Process::start(market.folder(), "ann", &call(&market, task, "ann", Some(text(0))));
    market.wait_for_enrolled(task, 1);
    run("ben", Some(text(0))).refused(1, "INVITATION_USED");
    let bond = market.ledger().bond_of(task, market.account("ben")).unwrap();
    assert!(bond.amount.is_zero(), "a refused account has bonded nothing");
    let mut ben = Process::start(market.folder(), "ben", &call(&market, task, "ben", Some(&file)));
    ann.finish();
    ben.finish();
    assert_eq!(market.view(task).phase, TaskPhase::Done);
    assert_eq!(market.report(task, 1).entries.len(), 2);
}

#[test]
fn an_allow_list_admits_its_accounts() {
    let market = open();
    let accounts = format!(
        "accounts = [\"{}\", \"{}\"]\nadmission = \"allow_list\"",
        market.account("cy"),
        market.account("ann")
    );
    market.change_task(&[("admission = \"invitation\"", &accounts)]);
    let task = market.publish();
    let shown = market.run_command(&["task", "show", &task.to_string()]).expect(0);
    assert!(shown.out.contains("the 2 accounts of the task's allow list"), "{}", shown.out);
    let refused = crate::support::process::florin(&call(&market, task, "ben", None));
    refused.refused(1, "NOT_ADMITTED");
    let mut greedy = call(&market, task, "ann", None);
    greedy.extend(["--min-pay", "999"].map(str::to_owned));
    crate::support::process::florin(&greedy).refused(1, "PAY_TOO_LOW");
    let bond = market.ledger().bond_of(task, market.account("ann")).unwrap();
    assert!(bond.amount.is_zero(), "nothing is bonded for too little pay");
    let mut all = ["ann", "cy"].map(|name| market.participant(task, name));
    all.iter_mut().for_each(Process::finish);
    market
        .run_command_as("buyer", &["task", "invite", &task.to_string()])
        .refused(2, "NO_INVITATIONS");
}
