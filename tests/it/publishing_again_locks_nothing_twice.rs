//! Publishing again locks nothing twice: the same file is the same task, also where its expiry counts from now; a
//! changed file is another one.

use florin_protocol::Amount;

use crate::support::{On, Plan, TestMarket, on_both};

on_both!(publishing_again_locks_nothing_twice);

fn publishing_again_locks_nothing_twice(on: On) {
    let market = TestMarket::open(Plan::honest(on, 1));
    let file = market.file("task.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let from_now = text.replace("\"2100-01-01\"", "\"7 d\"");
    std::fs::write(&file, &from_now).unwrap();
    let left = || market.ledger().balance(market.account("buyer")).unwrap();
    let before = left();
    let task = market.publish();
    let after = left();
    let locked: Amount = "110".parse().unwrap();
    assert_eq!(before.minus(after), Ok(locked));
    assert_eq!((market.publish(), left()), (task, after));

    std::fs::write(&file, from_now.replace("name = \"Test\"", "name = \"Another\"")).unwrap();
    let other = market.publish();
    assert_ne!(other, task);
    assert_eq!(after.minus(left()), Ok(locked));

    // Ids may be shortened, as far as they mean one task.
    let short = &task.to_string()[..8];
    let shown = market.ask(&["task", "show", short, "--json"]).expect(0).json();
    assert_eq!(shown["id"], task.to_string());
    assert_eq!(shown["money"]["deposited"], locked.units().to_string());
    market.ask_as("buyer", &["task", "close", short]).expect(0);
    assert_eq!(after, left(), "what was not spent is back");
    market.ask_as("coordinator", &["task", "close", &other.to_string()]).refused(1, "NOT_ALLOWED");
}
