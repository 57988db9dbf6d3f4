//! Payouts after crashes: if any process is killed at any step of a round or its settlement, the
//! final balances are the same as in a run without a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use florin_participant::{Client, ClientConfig};
use florin_protocol::{Amount, TaskId, TaskPhase};

use crate::support::process::{PATIENCE, Process, until_within};
use crate::support::{On, TestMarket, TestPlan, on_both};

on_both!(
    a_participant_or_provider_killed_after_any_step_loses_nothing,
    a_coordinator_killed_in_any_phase_pays_the_same,
    killing_all_processes_in_every_round_pays_the_same,
);

type Balances = BTreeMap<&'static str, (Amount, Amount)>;

fn plan(on: On) -> TestPlan {
    TestPlan::honest(on, 2)
}

/// All final balances without a kill.
static UNDISTURBED: [LazyLock<Balances>; 2] =
    [LazyLock::new(|| undisturbed(On::Embedded)), LazyLock::new(|| undisturbed(On::Ethereum))];

fn undisturbed(on: On) -> Balances {
    let market = TestMarket::open(plan(on));
    let task = market.run();
    market.balances(task)
}

/// The distinct log lines of a process so far, without numbers.
fn steps(process: &Process) -> BTreeSet<String> {
    let plain = |line: &str| {
        let words = line.split_whitespace().filter(|word| !word.contains(|c: char| c.is_numeric()));
        words.take(4).collect::<Vec<_>>().join(" ")
    };
    process.log().lines().map(plain).filter(|step| !step.is_empty()).collect()
}

/// The first log line of a process at which it was not killed yet.
fn new_step(process: &Process, killed_for: &mut BTreeSet<String>) -> Option<String> {
    steps(process).into_iter().find(|step| killed_for.insert(step.clone()))
}

fn finish(market: &TestMarket, task: TaskId, all: &mut [Process]) {
    all.iter_mut().for_each(Process::finish);
    assert_eq!(market.view(task).phase, TaskPhase::Done);
    assert_eq!(market.balances(task), *UNDISTURBED[market.plan.on as usize]);
}

fn a_participant_or_provider_killed_after_any_step_loses_nothing(on: On) {
    let market = TestMarket::open(plan(on));
    let task = market.publish();
    let mut all = market.start_all(task);
    let mut killed_for = vec![BTreeSet::new(); all.len()];
    let mut kills = 0;
    until_within(4 * PATIENCE, "all processes exit", || {
        for (process, killed_for) in all.iter_mut().zip(&mut killed_for) {
            if process.runs() && new_step(process, killed_for).is_some() {
                process.restart();
                kills += 1;
            }
        }
        (!all.iter_mut().any(Process::runs)).then_some(())
    });
    eprintln!("{kills} kills: {killed_for:?}");
    assert!(kills >= 4 * 5, "every process must have been killed at many steps");
    // A process that was killed just before its exit has not reported it; it can simply be run
    // again.
    for process in &mut all {
        process.restart();
    }
    finish(&market, task, &mut all);
}

fn a_coordinator_killed_in_any_phase_pays_the_same(on: On) {
    let mut market = TestMarket::open(plan(on));
    let task = market.publish();
    let mut all = market.start_all(task);
    let (mut phases, mut killed_for) = (BTreeSet::new(), BTreeSet::new());
    let mut kills = 0;
    until_within(4 * PATIENCE, "the task is done", || {
        let phase = phase_of(&market, task);
        let fresh = phase.is_some_and(|phase| phases.insert(format!("{phase:?}")));
        let step = all.iter().find_map(|process| new_step(process, &mut killed_for));
        if fresh || step.is_some() {
            market.restart_coordinator();
            kills += 1;
        }
        (phase == Some((u32::MAX, TaskPhase::Done)) || !all.iter_mut().any(Process::runs))
            .then_some(())
    });
    eprintln!("{kills} kills: {phases:?} {killed_for:?}");
    assert!(kills >= 10, "the coordinator must have been killed at many steps");
    finish(&market, task, &mut all);
}

/// The current round and its phase; at the end the round does not matter.
fn phase_of(market: &TestMarket, task: TaskId) -> Option<(u32, TaskPhase)> {
    let config = ClientConfig::new(&market.url);
    let view = Client::connect(&config).ok()?.task(task).ok()?;
    Some((if view.phase == TaskPhase::Done { u32::MAX } else { view.round.0 }, view.phase))
}

fn killing_all_processes_in_every_round_pays_the_same(on: On) {
    let mut market = TestMarket::open(plan(on));
    let task = market.publish();
    let mut all = market.start_all(task);
    for round in 1..=2 {
        market.wait_for(task, round, TaskPhase::Committing);
        market.coordinator.kill();
        all.iter_mut().for_each(Process::kill);
        market.start_coordinator_again();
        all.iter_mut().for_each(Process::restart);
    }
    finish(&market, task, &mut all);
}
