//! Publishing the same file again is idempotent, even if its expiry is relative; a changed file is
//! a new task.

use florin_ledger::Terms;
use florin_protocol::{
    Amount, DATA_PER_ROUND_MIN, Digest, TaskId, TaskSpec, WalletSigner, blob_digest,
};

use crate::support::{On, TestMarket, TestPlan, on_both};

on_both!(
    publishing_again_locks_nothing_twice,
    a_refused_task_locks_nothing,
    a_task_id_that_another_account_took_costs_only_another_salt
);

fn publishing_again_locks_nothing_twice(on: On) {
    let market = TestMarket::open(TestPlan::honest(on, 1));
    let file = market.file("task.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let from_now = with_expiry(&text, "7 d");
    std::fs::write(&file, &from_now).unwrap();
    let left = || market.ledger().balance(market.account("buyer")).unwrap();
    let before = left();
    let task = market.publish();
    let after = left();
    let locked: Amount = "110".parse().unwrap();
    assert_eq!(before.minus(after), Ok(locked));
    assert_eq!((market.publish(), left()), (task, after));

    std::fs::write(&file, from_now.replace("name = \"Test\"", "name = \"Another\"")).unwrap();
    let again = ["task", "publish", &file, "--json"];
    let published = market.run_command_as("buyer", &again).expect(0);
    let other: TaskId = published.json()["task"].as_str().unwrap().parse().unwrap();
    let warning = published.json()["warnings"][0].as_str().unwrap().to_owned();
    assert!(warning.contains("[ANOTHER_TASK]"), "{warning}");
    assert!(warning.contains(&task.to_string()[..8]), "{warning}");
    assert_ne!(other, task);
    let both = left();
    assert_eq!(after.minus(both), Ok(locked));
    // The undone edit is the first task again.
    std::fs::write(&file, &from_now).unwrap();
    assert_eq!((market.publish(), left()), (task, both));

    // A task id may be shortened as long as it is unique.
    let short = &task.to_string()[..8];
    let shown = market.run_command(&["task", "show", short, "--json"]).expect(0).json();
    assert_eq!(shown["id"], task.to_string());
    assert_eq!(shown["money"]["deposited"], locked.units().to_string());
    market.run_command_as("buyer", &["task", "close", short]).expect(0);
    assert_eq!(after, left(), "the unspent budget is refunded");
    market
        .run_command_as("coordinator", &["task", "close", &other.to_string()])
        .refused(1, "UNAUTHORIZED");
}

/// The rows that valued the rounds of a task are public.
#[test]
fn a_holdout_of_an_earlier_task_is_doubtful() {
    let market = TestMarket::open(TestPlan::honest(On::Embedded, 1));
    let task = market.run();
    let file = market.file("task.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("name = \"Test\"", "name = \"Another\"")).unwrap();
    let again = ["task", "publish", &file, "--json"];
    let published = market.run_command_as("buyer", &again).expect(0).json();
    let warnings = published["warnings"].to_string();
    for code in ["[HOLDOUT_DISCLOSED]", "[ANOTHER_TASK]", &task.to_string()[..8]] {
        assert!(warnings.contains(code), "no {code} in {warnings}");
    }
}

/// The coordinator refuses some tasks that the buyer's program cannot judge, such as one that expires
/// before its first round can end.
fn a_refused_task_locks_nothing(on: On) {
    let market = TestMarket::open(TestPlan::honest(on, 1));
    let file = market.file("task.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, with_expiry(&text, "5 min")).unwrap();
    let left = || market.ledger().balance(market.account("buyer")).unwrap();
    let before = left();
    let publish = || market.run_command_as("buyer", &["task", "publish", &file]);
    publish().refused(1, "INVALID_TASK");
    assert_eq!(left(), before, "nothing is locked for a refused task");
    std::fs::write(&file, with_expiry(&text, "7 d")).unwrap();
    publish().expect(0);
    assert_eq!(before.minus(left()), Ok("110".parse().unwrap()));
}

/// An account that learns a task's id before its buyer can open any terms under it.
fn a_task_id_that_another_account_took_costs_only_another_salt(on: On) {
    let market = TestMarket::open(TestPlan::honest(on, 1));
    let file = market.file("task.toml");
    market.publish();
    let published = std::fs::read(market.file("task.published.json")).unwrap();
    let mut next: TaskSpec = serde_json::from_slice(&published).unwrap();
    next.salt = 77;
    next.base_model = Digest::default();
    next.base_model = blob_digest(&florin_work::derived_model(&next).unwrap());
    let thief = market.wallet("ann");
    let terms = Terms { buyer: thief.address(), ..Terms::from_spec(&next) };
    let cheap = Terms { data: DATA_PER_ROUND_MIN, infrastructure: Amount::ZERO, ..terms };
    market.ledger().open_task(&thief, &cheap).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let with_salt = |salt: u32| {
        let line = text.lines().find(|line| line.starts_with("salt = ")).unwrap();
        std::fs::write(&file, text.replace(line, &format!("salt = {salt}"))).unwrap();
    };
    let left = || market.ledger().balance(market.account("buyer")).unwrap();
    let before = left();
    let publish = || market.run_command_as("buyer", &["task", "publish", &file]);
    with_salt(77);
    let taken = publish().refused(1, "TASK_ID_TAKEN");
    assert!(taken.err.contains(&thief.address().to_string()), "{}", taken.err);
    assert_eq!(left(), before);
    with_salt(78);
    publish().expect(0);
    assert_eq!(before.minus(left()), Ok("110".parse().unwrap()));
}

/// The task file with another expiry.
fn with_expiry(text: &str, expires: &str) -> String {
    let line = text.lines().find(|line| line.starts_with("expires = ")).unwrap();
    text.replace(line, &format!("expires = \"{expires}\""))
}
