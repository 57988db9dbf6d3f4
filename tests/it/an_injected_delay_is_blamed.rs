//! A slow disk, and a slow node of the ledger: `florin trace show` blames the right one in every
//! round of a market of real processes.
#![cfg(target_os = "linux")]

use serde_json::Value;

use crate::support::process::until;
use crate::support::strace::FsyncInjection;
use crate::support::{On, TestMarket, TestPlan, florin, market::words};

/// Rounds, and rounds on Ethereum, where each takes tens of delayed requests.
const ROUNDS: u32 = 4;
const ROUNDS_ON_ETHEREUM: u32 = 2;
/// Microseconds by which each write to the coordinator's disk takes longer.
const DISK_DELAY: &str = "delay_exit=300000:when=1+";
/// Milliseconds by which each request to the ledger's node takes longer.
const LEDGER_DELAY_MS: u64 = 300;

/// A market whose coordinator writes traces, and the folder of the traces.
fn traced(on: On) -> (TestMarket, String) {
    let rounds = if on == On::Ethereum { ROUNDS_ON_ETHEREUM } else { ROUNDS };
    let plan = TestPlan { provider: false, ..TestPlan::honest(on, rounds) };
    let mut market = TestMarket::open(plan);
    let traces = market.file("traces");
    market.environment = vec![("FLORIN_TRACE".to_owned(), traces.clone())];
    market.restart_coordinator();
    (market, traces)
}

/// For each round, the cause of most of the coordinator's time.
fn causes(traces: &str) -> Vec<String> {
    let shown = florin(&words(&["trace", "show", traces, "--json"])).expect(0).json();
    let longest = |round: &Value| {
        let waits = round["waits"].as_array().unwrap();
        let own = waits.iter().filter(|wait| {
            ["disk", "ledger", "coordinator"].contains(&wait["cause"].as_str().unwrap())
        });
        let longest = own.max_by_key(|wait| wait["ns"].as_i64()).unwrap();
        assert!(longest["ns"].as_i64().unwrap() > 200_000_000, "{round}");
        longest["cause"].as_str().unwrap().to_owned()
    };
    shown["rounds"].as_array().unwrap().iter().map(longest).collect()
}

#[test]
fn a_slow_disk_is_blamed_in_every_round() {
    let (market, traces) = traced(On::Embedded);
    let task = market.publish();
    let Some(delays) = FsyncInjection::attach(market.folder(), &market.coordinator, DISK_DELAY)
    else {
        return;
    };
    let mut all = market.start_all(task);
    all.iter_mut().for_each(crate::support::Process::finish);
    drop(delays);
    assert_eq!(causes(&traces), ["disk"; ROUNDS as usize]);
}

#[test]
fn a_slow_node_of_the_ledger_is_blamed_in_every_round() {
    let (market, traces) = traced(On::Ethereum);
    let task = market.publish();
    let mut all = market.start_all(task);
    until("an open round", || (market.view(task).round.0 > 0).then_some(()));
    if let Some(gate) = &market.gate {
        gate.delay(LEDGER_DELAY_MS);
    }
    all.iter_mut().for_each(crate::support::Process::finish);
    let causes = causes(&traces);
    // The first round may have begun without the delay.
    assert_eq!(causes[1..], ["ledger"; ROUNDS_ON_ETHEREUM as usize - 1], "{causes:?}");
}
