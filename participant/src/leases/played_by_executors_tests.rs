//! Whole leases whose segments executors compute: each fault of an executor costs time alone.

use std::collections::VecDeque;

use super::*;
use crate::leases::executors::DeviceSupply;
use crate::leases::executors::thread_backend::{ThreadBackend, ThreadFault};

const MACHINE: DeviceSupply =
    DeviceSupply::Machine { devices: 2, launches: true, leases_of_each: 1 };

fn run(market: &PlayedMarket, supply: DeviceSupply, backend: &ThreadBackend) -> RunningDaemon {
    let policy = LeasePolicy { executors: Some(supply), ..policy(PROVIDER) };
    let config = LeaseServeConfig { policy, ..market.config(PROVIDER) };
    let (url, sender) = (market.url.clone(), market.sender.clone());
    RunningDaemon::start_by(PROVIDER, config, &url, &market.host, sender, Some(backend.clone()))
}

/// Plays a lease to its end; returns the summary of the provider.
#[track_caller]
fn play(market: &mut PlayedMarket, supply: DeviceSupply, backend: &ThreadBackend) -> LeaseSummary {
    let others: Vec<RunningDaemon> = AUDITORS.map(|number| market.run(number, None)).into();
    let provider = run(market, supply, backend);
    market.wait_for(PROVIDER, is_returned);
    assert_eq!(market.outcome(), Some(LeaseOutcome::Settled));
    let summary = provider.stop();
    assert_eq!((summary.bids, summary.segments), (1, 8));
    assert!(!summary.paid.is_zero() && summary.lost.is_zero(), "{summary:?}");
    for other in others {
        // The auditors computed the drawn segments themselves, and found the same bits.
        assert_eq!(other.stop().audits, 2);
    }
    let folder = market.config(PROVIDER).folder.join("leases").join("executors");
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0, "no folder of an executor stays");
    summary
}

#[test]
fn an_executor_computes_a_lease_on_all_idle_devices() {
    let (mut market, backend) = (PlayedMarket::start(), ThreadBackend::default());
    play(&mut market, MACHINE, &backend);
    let plan = backend.plan.lock().unwrap();
    // A proof before the bid, and all devices. If the noise of such small steps makes two look slower, one is next.
    assert_eq!(plan.starts[..2], [1, 2]);
    let is_started = |event: &LeaseEvent| {
        matches!(event, LeaseEvent::ExecutorStarted { backend: "threads", devices: 2, .. })
    };
    assert_eq!(market.count(PROVIDER, is_started), 1, "a count is tried once");
}

#[test]
fn each_fault_of_an_executor_costs_time_alone() {
    let faults = [
        // The proof before the bid.
        ThreadFault::Sound,
        ThreadFault::Refused,
        ThreadFault::Failed,
        ThreadFault::Lost,
        ThreadFault::Damaged,
        ThreadFault::Lost,
    ];
    let (mut market, backend) = (PlayedMarket::start(), ThreadBackend::default());
    backend.plan.lock().unwrap().faults = VecDeque::from(faults);
    play(&mut market, MACHINE, &backend);
    // The first start that computed nothing ends the starts on several devices.
    assert_eq!(backend.plan.lock().unwrap().starts, [1, 2, 1, 1, 1, 1, 1]);
    let reasons: Vec<String> = market
        .seen
        .iter()
        .filter_map(|(_, event)| match event {
            LeaseEvent::OrderRetrying { code: "EXECUTOR_FAILED", why, .. } => Some(why.clone()),
            _ => None,
        })
        .collect();
    let has = |part: &str| reasons.iter().any(|why| why.contains(part));
    assert!(has("refused") && has("no device") && has("the end of its log"), "{reasons:#?}");
}

#[test]
fn a_daemon_whose_executors_fail_computes_the_lease_itself() {
    let (mut market, backend) = (PlayedMarket::start(), ThreadBackend::default());
    let faults =
        [ThreadFault::Sound, ThreadFault::Failed, ThreadFault::Damaged, ThreadFault::Failed];
    backend.plan.lock().unwrap().faults = VecDeque::from(faults);
    play(&mut market, MACHINE, &backend);
    assert_eq!(backend.plan.lock().unwrap().starts.len(), faults.len());
}

#[test]
fn a_queue_that_may_be_as_long_as_a_segment_refuses_the_order() {
    let (mut market, backend) = (PlayedMarket::start(), ThreadBackend::default());
    let supply = DeviceSupply::Batch { of_each: 1, queue_ms: 10_000 };
    let provider = run(&market, supply, &backend);
    market.wait_for(PROVIDER, |event| {
        matches!(event, LeaseEvent::OrderSkipped { reason, .. } if reason.contains("a segment may take"))
    });
    assert_eq!(provider.stop().bids, 0);
}

#[test]
fn a_batch_system_measures_the_step_before_the_bid() {
    let (mut market, backend) = (PlayedMarket::start(), ThreadBackend::default());
    let supply = DeviceSupply::Batch { of_each: 3, queue_ms: 1_000 };
    play(&mut market, supply, &backend);
    assert_eq!(backend.plan.lock().unwrap().starts, [3, 3], "a measurement, then the segments");
}

#[test]
fn a_measurement_that_fails_leaves_the_order_to_others() {
    let (mut market, backend) = (PlayedMarket::start(), ThreadBackend::default());
    backend.plan.lock().unwrap().faults = VecDeque::from([ThreadFault::Failed]);
    let supply = DeviceSupply::Batch { of_each: 1, queue_ms: 1_000 };
    let provider = run(&market, supply, &backend);
    market.wait_for(PROVIDER, |event| {
        matches!(event, LeaseEvent::OrderSkipped { reason, .. } if reason.contains("no device"))
    });
    assert_eq!(provider.stop().bids, 0);
    assert_eq!(market.gained(PROVIDER), 0);
}

#[test]
fn a_daemon_that_stops_ends_its_executors_and_goes_on_behind_the_last_state() {
    let (mut market, backend) = (PlayedMarket::start(), ThreadBackend::default());
    backend.plan.lock().unwrap().faults =
        VecDeque::from([ThreadFault::Sound, ThreadFault::Lost, ThreadFault::Stuck]);
    let others: Vec<RunningDaemon> = AUDITORS.map(|number| market.run(number, None)).into();
    let first = run(&market, MACHINE, &backend);
    market.wait_for(PROVIDER, |event| {
        matches!(event, LeaseEvent::SegmentDelivered { segment: 0, .. })
    });
    let is_started = |event: &LeaseEvent| matches!(event, LeaseEvent::ExecutorStarted { .. });
    while market.count(PROVIDER, is_started) < 3 {
        market.wait_for(PROVIDER, is_started);
    }
    first.stop();
    assert_eq!(backend.plan.lock().unwrap().cancelled, 1);
    let second = run(&market, MACHINE, &backend);
    market.wait_for(PROVIDER, is_returned);
    assert_eq!(market.outcome(), Some(LeaseOutcome::Settled));
    assert_eq!(second.stop().segments, 7);
    for other in others {
        other.stop();
    }
}
