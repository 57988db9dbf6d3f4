//! Leases of compute by real processes: on both ledgers, with kills of every process, and with a provider that stops
//! and another one that continues. The result has the same digest each time, and every token is somewhere.

use std::collections::BTreeSet;

use florin_compute::{ComputeAccount, LeaseOutcome, OrderMoney, Phase, RecordedLease};
use florin_protocol::Digest;
use serde_json::json;

use crate::support::lease_run::{AUDITORS, LeaseRun, PATIENT, TestWindows, events, undisturbed};
use crate::support::process::{PATIENCE, Process, until, until_within};
use crate::support::{On, on_both};

on_both!(a_lease_is_computed_audited_and_paid);

/// The order takes bids of listed devices alone, and its provider lists the cores of this machine.
fn a_lease_is_computed_audited_and_paid(on: On) {
    let run = LeaseRun::open(on);
    run.write_order(1, PATIENT);
    run.take_listed_bids();
    let before = run.tokens();
    let mut provider = run.listed_provider();
    let _all = run.helpers();
    until("the devices are listed", || events(&provider).contains("listed").then_some(()));
    let id = run.place(None);
    let lease = run.wait_for_pay(id);
    assert_eq!(lease.lease().outcome(), Some(LeaseOutcome::Settled));
    assert_eq!(lease.lease().result(), Some(undisturbed()));
    assert!(!run.owed(&lease, "provider").is_zero() && !run.owed(&lease, "ann").is_zero());
    provider.ask_to_stop();
    provider.finish();
    let market = run.market.run_command(&["market", "--json"]).expect(0).json();
    let listing = &market["listings"][0];
    assert_eq!((&listing["leases"], &listing["phase"]), (&json!(1), &json!("listed")), "{market}");
    // A further provider looks at the history before it deposits.
    let list = run.market.file("list.toml");
    let look = ["provide", "--list", &list, "--dry-run"];
    eprintln!("{}", run.market.run_command_as("second", &look).expect(0).out);
    let look = [&look[..], &["--json"]].concat();
    let looked = run.market.run_command_as("second", &look).expect(0).json();
    let expected = &looked["expected"];
    assert_eq!((&expected["awards"], &expected["providers"]), (&json!(1), &json!(1)), "{looked}");
    assert!(expected["leases_at_a_time_ppm"].as_u64().unwrap() > 0, "{looked}");
    // The stake returns, and the fee of the probe is paid.
    let unlist = ["provide", "--list", &list, "--unlist", "--json"];
    let ended = run.market.run_command_as("provider", &unlist).expect(0);
    assert!(
        ended.out.contains("\"withdrawn\"") && ended.out.contains("\"returned\""),
        "{}",
        ended.out
    );
    assert_eq!(run.tokens(), before);
    let out = run.market.file("model.safetensors");
    let id = id.to_string();
    run.market.run_command(&["rent", "fetch", &id, "--out", &out]).expect(0);
    let statement = run.market.run_command(&["rent", "statement", &id, "--json"]).expect(0).json();
    assert!(statement.to_string().contains(&run.market.account("provider").to_string()));
    assert_eq!(market["orders"].as_array().unwrap().len(), 1, "{market}");
}

#[test]
fn a_daemon_killed_after_each_event_delivers_the_same_result() {
    let run = LeaseRun::open(On::Embedded);
    run.write_order(1, PATIENT);
    let before = run.tokens();
    let mut all = run.helpers();
    all.push(run.daemon("provider", "bid.toml"));
    let mut killed_for = vec![BTreeSet::new(); all.len()];
    let id = run.place(None);
    let mut kills = 0;
    until_within(4 * PATIENCE, "the lease is over", || {
        for (process, killed_for) in all.iter_mut().zip(&mut killed_for) {
            if events(process).into_iter().any(|event| killed_for.insert(event)) {
                process.restart();
                kills += 1;
            }
        }
        (run.view(id).phase == Phase::Over).then_some(())
    });
    let lease = run.wait_for_pay(id);
    eprintln!("{kills} kills: {killed_for:?}");
    assert!(kills >= 12, "each daemon must have been killed at many events");
    assert_eq!(lease.lease().outcome(), Some(LeaseOutcome::Settled));
    assert_eq!(lease.lease().result(), Some(undisturbed()));
    assert_eq!(run.tokens(), before);
}

#[test]
fn a_coordinator_killed_in_each_phase_settles_once() {
    let mut run = LeaseRun::open(On::Embedded);
    run.write_order(1, PATIENT);
    let before = run.tokens();
    let _all = (run.helpers(), run.daemon("provider", "bid.toml"));
    let id = run.place(None);
    let mut seen = BTreeSet::new();
    until_within(4 * PATIENCE, "the order is settled", || {
        let view = run.view(id);
        // Each third record, and each phase.
        if seen.insert((view.phase.name(), view.money as u8, view.records / 3)) {
            run.market.restart_coordinator();
        }
        (view.money == OrderMoney::Settled).then_some(())
    });
    let lease = run.wait_for_pay(id);
    eprintln!("{} kills: {seen:?}", seen.len());
    assert!(seen.len() >= 8, "the coordinator must have been killed in many phases");
    assert_eq!(lease.lease().outcome(), Some(LeaseOutcome::Settled));
    assert_eq!(lease.lease().result(), Some(undisturbed()));
    assert_eq!(run.tokens(), before);
}

/// Kills a provider between two of the ten segments of its lease.
fn kill_halfway(run: &LeaseRun, id: Digest, provider: &mut Process) {
    until_within(4 * PATIENCE, "some segments", || {
        let view = run.view(id);
        assert!(view.phase != Phase::Over, "the provider has delivered everything");
        (view.delivered >= 2).then(|| provider.kill())
    });
}

/// The segments that a provider delivered that was killed halfway.
fn delivered_halfway(lease: &RecordedLease) -> u32 {
    let Some(LeaseOutcome::Defaulted { delivered }) = lease.lease().outcome() else {
        panic!("{:?}", lease.lease().outcome());
    };
    assert!((2..10).contains(&delivered));
    delivered
}

/// Another provider computes the rest of an order, with the result of an undisturbed run; both are paid.
fn continue_elsewhere(run: &LeaseRun, lease: &RecordedLease, delivered: u32) -> Process {
    let second = run.daemon("second", "bid.toml");
    run.write_order(1, PATIENT);
    let rest = run.place(Some(lease.lease().id()));
    let other = run.wait_for_pay(rest);
    assert_eq!(other.lease().outcome(), Some(LeaseOutcome::Settled));
    assert_eq!(other.lease().order().segments, 10 - delivered);
    assert_eq!(other.lease().result(), Some(undisturbed()));
    let [one, two] = [run.owed(lease, "provider"), run.owed(&other, "second")];
    assert!(!one.is_zero() && !two.is_zero());
    second
}

#[test]
fn an_order_goes_on_with_another_provider_after_the_last_delivered_segment() {
    let run = LeaseRun::open(On::Embedded);
    run.write_order(1, TestWindows { segment: 5, ..PATIENT });
    let before = run.tokens();
    let _helpers = run.helpers();
    let mut first = run.daemon("provider", "bid.toml");
    let id = run.place(None);
    kill_halfway(&run, id, &mut first);
    until_within(4 * PATIENCE, "the provider is late", || {
        (run.view(id).phase != Phase::Running).then_some(())
    });
    // It comes back, opens what it has delivered, and is paid for that.
    first.restart();
    let lease = run.wait_for_pay(id);
    let delivered = delivered_halfway(&lease);
    first.kill();
    let _second = continue_elsewhere(&run, &lease, delivered);
    assert_eq!(run.tokens(), before);
}

/// Its machine is gone: its states and its wallet with it.
#[test]
fn a_provider_that_never_comes_back_is_paid_and_another_one_continues() {
    let run = LeaseRun::open(On::Embedded);
    let windows = TestWindows { segment: 5, ..PATIENT };
    run.write_order(1, windows);
    run.shorten_audits();
    let before = run.tokens();
    let _helpers = run.helpers();
    let mut first = run.daemon("provider", "bid.toml");
    let id = run.place(None);
    kill_halfway(&run, id, &mut first);
    let lease = run.wait_until_over(id);
    let delivered = delivered_halfway(&lease);
    let lost =
        lease.lease().books().balance(ComputeAccount::Forfeited(run.market.account("provider")));
    assert_eq!(lost, lease.lease().order().deposits.default_fine);
    let _second = continue_elsewhere(&run, &lease, delivered);
    // The wallet was on another disk: its pay waits for it.
    first.restart();
    run.wait_for_pay(id);
    assert_eq!(run.tokens(), before);
}

/// Audits of a lease may miss every fake segment: the order is placed again until one is drawn.
#[test]
fn a_provider_that_skips_segments_loses_its_stake_in_a_dispute() {
    let run = LeaseRun::open(On::Embedded);
    let before = run.tokens();
    let _helpers = run.helpers();
    let mut lazy = run.lazy("provider");
    let slashed = (1..=8).find_map(|nonce| {
        run.write_order(nonce, TestWindows { bid: 10, ..PATIENT });
        let id = run.place(None);
        let lease = run.wait_for_pay(id);
        match lease.lease().outcome() {
            Some(LeaseOutcome::Slashed { segment }) => Some((id, lease, segment)),
            outcome => {
                assert_eq!(outcome, Some(LeaseOutcome::Settled), "a lazy provider is on time");
                // No audit has drawn a fake segment: the result is wrong, and is paid.
                assert_ne!(lease.lease().result(), Some(undisturbed()));
                None
            }
        }
    });
    let (id, lease, segment) = slashed.expect("one of eight audits draws a fake segment");
    // Every second segment is fake.
    assert_eq!(segment % 2, 1, "{segment}");
    let order = lease.lease().order();
    let stake = order.deposits.stake;
    assert_eq!(run.market.ledger().treasury().unwrap(), stake);
    let bounties = AUDITORS.map(|name| run.owed(&lease, name));
    assert!(bounties.iter().any(|owed| *owed >= order.bounty()), "{bounties:?}");
    assert!(run.owed(&lease, "provider").is_zero());
    assert_eq!(run.tokens(), before);
    let statement = run.market.run_command(&["rent", "statement", &id.to_string()]).expect(0);
    assert!(statement.out.contains(&format!("segment {segment}")), "{}", statement.out);
    // Another provider computes the same order.
    lazy.kill();
    let _honest = run.daemon("second", "bid.toml");
    run.write_order(99, TestWindows { bid: 10, ..PATIENT });
    let lease = run.wait_for_pay(run.place(None));
    assert_eq!(lease.lease().result(), Some(undisturbed()));
}
