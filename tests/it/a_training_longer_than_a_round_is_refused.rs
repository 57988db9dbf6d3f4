//! A participant whose training takes longer than a round of the task is refused before its deposit, unless it
//! accepts that.

use crate::support::market::digits_graph;
use crate::support::process::until;
use crate::support::{On, Process, TestMarket, TestPlan};

/// No training of the model is as short.
const TRAIN_MS: u64 = 1;

#[test]
fn a_training_longer_than_a_round_deposits_nothing_unless_accepted() {
    let mut plan = TestPlan::honest(On::Embedded, 1);
    plan.provider = false;
    plan.train_ms = TRAIN_MS;
    plan.graph = Some(digits_graph());
    let market = TestMarket::open(plan);
    let task = market.publish();
    let call = market.participant_call(&market.url, task, "ann");
    let start = |more: &[&str], name: &str| {
        let more = more.iter().map(|&word| word.to_owned());
        let call: Vec<String> = call.iter().cloned().chain(more).collect();
        Process::start_in(market.folder(), name, &call, &[])
    };
    let mut refused = start(&[], "ann-refused");
    assert_eq!(refused.wait().code(), Some(1), "{}", refused.log());
    let log = refused.log();
    assert!(log.contains("TRAINING_TOO_SLOW") && log.contains("a round has 1 ms"), "{log}");
    assert!(log.contains("--threads") && log.contains("nothing was bonded"), "{log}");
    assert!(!log.contains("bonded 1"), "{log}");
    let mut events = start(&["--json"], "ann-json");
    assert_eq!(events.wait().code(), Some(1), "{}", events.log());
    let log = events.log();
    assert!(log.contains("\"training_slow\"") && log.contains("\"round_ms\":1"), "{log}");
    assert!(!log.contains("\"bonded\""), "{log}");
    let accepted = start(&["--accept-slow-training"], "ann-accepted");
    until("ann's bond", || accepted.log().contains("at risk").then_some(()));
    assert!(accepted.log().contains("warning: a round's training takes"), "{}", accepted.log());
}
