//! The provider in a test market: it is paid per unit, also after interruptions.

use florin_learning::{EngineKind, engine};

use super::*;
use crate::agent::{ParticipantConfig, ParticipantContext, ParticipationSummary, participate};
use crate::behaviour::Honest;
use crate::testing::{Fault, TestMarket, fln, rows, wallet};

const QUICK: Backoff = Backoff { initial_ms: 1, max_ms: 1, max_total_ms: 3 };

/// Runs a participant through the task in another thread.
fn participant(market: &TestMarket) -> std::thread::JoinHandle<ParticipationSummary> {
    participant_with(market, market.client())
}

fn participant_with(
    market: &TestMarket,
    client: Client,
) -> std::thread::JoinHandle<ParticipationSummary> {
    let ledger = std::sync::Arc::clone(&market.ledger);
    let config = ParticipantConfig {
        folder: market.folder.path().join("participant"),
        task: market.task,
        seed: 7,
        bond_max: None,
        pay_min: None,
        invitation: None,
        arbiters: ArbiterPolicy::default(),
        asks_for_arbiter: true,
        accepted_models: Vec::new(),
        continues_on_alarm: false,
        execution: Default::default(),
        processes: 1,
        accepts_slow_training: false,
        privacy: None,
        supervision: Default::default(),
        poll_ms: 1_000,
        backoff: QUICK,
    };
    std::thread::spawn(move || {
        let mut engine = engine(EngineKind::Reference, 1).unwrap();
        let (wallet, data, mut honest) = (wallet(4), rows(40, 4), Honest);
        let parts = ParticipantContext {
            wallet: &wallet,
            client: &client,
            ledger: ledger.as_ref(),
            engine: engine.as_mut(),
            data: &data,
            producer: None,
            behaviour: &mut honest,
            consent: &mut |_| true,
        };
        participate(&config, parts, &Shutdown::new(), &mut |_| ()).unwrap()
    })
}

fn config(market: &TestMarket) -> ProviderConfig {
    ProviderConfig {
        folder: market.folder.path().join("provider"),
        tasks: Some(vec![market.task]),
        stake_max: fln("100"),
        arbiters: ArbiterPolicy { accepted: vec![wallet(3).address()], ..ArbiterPolicy::default() },
        accepted_trainers: Vec::new(),
        until_done: true,
        poll_ms: 200,
        backoff: QUICK,
    }
}

fn run(
    market: &TestMarket,
    config: &ProviderConfig,
    stop_after: Option<usize>,
    events: &mut Vec<ParticipantEvent>,
) -> Result<ProviderSummary, ProviderError> {
    run_with(&market.client(), market, config, stop_after, events)
}

fn run_with(
    client: &Client,
    market: &TestMarket,
    config: &ProviderConfig,
    stop_after: Option<usize>,
    events: &mut Vec<ParticipantEvent>,
) -> Result<ProviderSummary, ProviderError> {
    let shutdown = Shutdown::new();
    let mut count = 0;
    let mut on_event = |event: &ParticipantEvent| {
        assert!(!event.to_string().is_empty());
        events.push(event.clone());
        count += 1;
        if Some(count) == stop_after {
            shutdown.request();
        }
    };
    let mut engine = engine(EngineKind::Reference, 1).unwrap();
    let wallet = wallet(5);
    let parts = ProviderContext {
        wallet: &wallet,
        client,
        ledger: market.ledger.as_ref(),
        engine: engine.as_mut(),
    };
    provide(config, parts, &shutdown, &mut on_event)
}

#[test]
fn verified_work_is_paid_per_unit() {
    let market = TestMarket::start(1, true);
    let other = participant(&market);
    let mut events = Vec::new();
    let done = run(&market, &config(&market), None, &mut events).unwrap();
    let paid = other.join().unwrap();
    assert!(paid.finished && done.finished);
    assert_eq!(done.orders, 3);
    assert_eq!(done.claimed, fln("0.1").mul_div_down(done.units.into(), 1).unwrap());
    assert!(done.units > 0);
    let me = wallet(5).address();
    assert_eq!(
        market.ledger.stake_of(me).unwrap().amount,
        fln("5"),
        "the stake stays on the ledger"
    );
    let left = fln("995").plus(done.claimed).unwrap();
    assert_eq!(market.ledger.balance(me).unwrap(), left);
    // The owner may withdraw it.
    let stake = withdraw_stake(market.ledger.as_ref(), &wallet(5)).unwrap();
    assert!(stake.amount.is_zero());
    let again = run(&market, &config(&market), None, &mut events).unwrap();
    assert_eq!((again.claimed, again.orders), (Amount::ZERO, 0));
}

#[test]
fn records_have_transcripts_where_the_coordinator_takes_them() {
    for takes_them in [true, false] {
        let market = TestMarket::start(1, true);
        if !takes_them {
            market.inject(Fault::NoTranscripts);
        }
        let other = participant(&market);
        let done = run(&market, &config(&market), None, &mut Vec::new()).unwrap();
        other.join().unwrap();
        assert_eq!(done.orders, 3, "each record has its verdict");
        assert_eq!(market.request_count("POST", "work/transcripts"), 3);
        let alone = market.request_count("POST", " work");
        assert_eq!(alone, if takes_them { 0 } else { 3 });
    }
}

#[test]
fn a_provider_fetches_each_blob_once() {
    let market = TestMarket::start(1, true);
    let other = participant(&market);
    run(&market, &config(&market), None, &mut Vec::new()).unwrap();
    other.join().unwrap();
    // Three rounds had one base model and one update each.
    assert_eq!(market.fetched_digests("work/blob ").len(), 6);
}

#[test]
fn a_provider_restarted_after_any_event_stakes_once_and_is_paid_the_same() {
    let count = {
        let market = TestMarket::start(1, true);
        let other = participant(&market);
        let mut events = Vec::new();
        run(&market, &config(&market), None, &mut events).unwrap();
        other.join().unwrap();
        events.len()
    };
    for stop in 1..count {
        let market = TestMarket::start(1, true);
        let other = participant(&market);
        let mut events = Vec::new();
        let first = run(&market, &config(&market), Some(stop), &mut events).unwrap();
        let second = run(&market, &config(&market), None, &mut events).unwrap();
        other.join().unwrap();
        assert_eq!(first.orders + second.orders, 3, "stopped after {stop}");
        let staked = events.iter().filter(|e| matches!(e, ParticipantEvent::Staked { .. })).count();
        assert_eq!(staked, 1, "stopped after {stop}");
        let worked =
            events.iter().filter(|e| matches!(e, ParticipantEvent::WorkComputed { .. })).count();
        assert_eq!(worked, 3, "stopped after {stop}: no order is executed twice");
        let claimed = first.claimed.plus(second.claimed).unwrap();
        let units = first.units + second.units;
        assert_eq!(claimed, fln("0.1").mul_div_down(units.into(), 1).unwrap());
    }
}

/// A coordinator that restarts often, or a proxy with a short timeout, cuts every long poll but
/// answers all other requests. A provider that backs off further and further would miss orders.
#[test]
fn a_provider_whose_long_polls_are_cut_is_paid_the_same() {
    let market = TestMarket::start(1, true);
    market.inject(Fault::CutLongPolls);
    let other = participant(&market);
    let mut events = Vec::new();
    let done = run(&market, &config(&market), None, &mut events).unwrap();
    other.join().unwrap();
    assert!(done.finished);
    assert_eq!((done.orders, done.claimed.is_zero()), (3, false));
}

#[test]
fn a_provider_whose_registration_gave_way_registers_again_and_is_paid() {
    let market = TestMarket::start(1, true);
    market.inject(Fault::FullMarket);
    let other = participant(&market);
    let mut events = Vec::new();
    let done = run(&market, &config(&market), None, &mut events).unwrap();
    assert!(other.join().unwrap().finished && done.finished);
    assert_eq!((done.orders, done.claimed.is_zero()), (3, false), "{events:?}");
    let registered =
        |event: &&ParticipantEvent| matches!(event, ParticipantEvent::Registered { .. });
    // At the start, and before a request for work, a blob and a record.
    assert_eq!(events.iter().filter(registered).count(), 4, "{events:?}");
}

/// Signed messages expire ten minutes after the coordinator's time at first contact.
#[test]
fn messages_are_re_signed_after_the_coordinators_clock_jumps() {
    let market = TestMarket::start(1, true);
    let (client, others) = (market.client(), market.client());
    market.inject(Fault::ClockAhead);
    let other = participant_with(&market, others);
    let mut events = Vec::new();
    let done = run_with(&client, &market, &config(&market), None, &mut events).unwrap();
    assert!(other.join().unwrap().finished && done.finished);
    assert_eq!((done.orders, done.claimed.is_zero()), (3, false), "{events:?}");
}

#[test]
fn a_pending_stake_withdrawal_is_cancelled_by_staking_again() {
    let market = TestMarket::start(1, true);
    let mut events = Vec::new();
    // Registered, staked, pledged.
    run(&market, &config(&market), Some(3), &mut events).unwrap();
    market.ledger.unstake(&wallet(5)).unwrap();
    assert!(market.ledger.stake_of(wallet(5).address()).unwrap().release.is_some());
    run(&market, &config(&market), Some(1), &mut events).unwrap();
    let stake = market.ledger.stake_of(wallet(5).address()).unwrap();
    assert_eq!((stake.release, stake.amount > fln("5")), (None, true));
}

#[test]
fn a_task_above_the_stake_limit_is_skipped() {
    let market = TestMarket::start(1, true);
    let config = ProviderConfig { stake_max: fln("4"), ..config(&market) };
    let mut events = Vec::new();
    // Registered, and skipped; then shutdown is requested.
    let done = run(&market, &config, Some(2), &mut events).unwrap();
    assert!(!done.finished);
    assert!(matches!(&events[1], ParticipantEvent::TaskSkipped { .. }), "{events:?}");
    assert!(market.ledger.stake_of(wallet(5).address()).unwrap().amount.is_zero());
}

#[test]
fn a_task_of_an_arbiter_that_is_not_accepted_is_skipped() {
    let market = TestMarket::start(1, true);
    let trusting = ArbiterPolicy { trusts_coordinator: true, ..ArbiterPolicy::default() };
    let config = ProviderConfig { arbiters: trusting, ..config(&market) };
    let mut events = Vec::new();
    run(&market, &config, Some(2), &mut events).unwrap();
    let flag = format!("--arbiter {}", wallet(3).address());
    assert!(
        matches!(&events[1], ParticipantEvent::TaskSkipped { why, .. } if why.contains(&flag)),
        "{events:?}"
    );
    assert!(market.ledger.stake_of(wallet(5).address()).unwrap().amount.is_zero());
}

#[test]
fn a_slashed_stake_is_not_deposited_again_beyond_the_limit() {
    let market = TestMarket::start(1, true);
    let config = ProviderConfig { stake_max: fln("8"), ..config(&market) };
    let mut events = Vec::new();
    // Registered, staked, pledged.
    run(&market, &config, Some(3), &mut events).unwrap();
    let account = wallet(5).address();
    let (amount, evidence) = (fln("5"), florin_protocol::Digest([1; 32]));
    let slash = florin_ledger::Slash { task: market.task, account, stake: true, amount, evidence };
    assert_eq!(market.ledger.slash(&wallet(3), &slash).unwrap(), fln("5"));
    let mut events = Vec::new();
    run(&market, &config, Some(1), &mut events).unwrap();
    assert!(matches!(&events[0], ParticipantEvent::TaskSkipped { .. }), "{events:?}");
    assert_eq!(market.ledger.balance(account).unwrap(), fln("995"), "5 of 8 FLN are lost");
    let config = ProviderConfig { stake_max: fln("10"), ..config };
    let mut events = Vec::new();
    run(&market, &config, Some(1), &mut events).unwrap();
    assert_eq!(events[0], ParticipantEvent::Staked { added: fln("5"), stake: fln("5") });
}

#[test]
fn an_invalid_task_is_skipped() {
    let market = TestMarket::start_with(1, true, |spec| spec.budget.unbond_ms = 239_999);
    let mut events = Vec::new();
    run(&market, &config(&market), Some(2), &mut events).unwrap();
    assert!(
        matches!(&events[1], ParticipantEvent::TaskSkipped { why, .. } if why.contains("budget.unbond_ms")),
        "{events:?}"
    );
    assert!(market.ledger.stake_of(wallet(5).address()).unwrap().amount.is_zero());
}

#[test]
fn all_paying_tasks_are_served_by_default() {
    let market = TestMarket::start(1, true);
    let config = ProviderConfig { tasks: None, ..config(&market) };
    let mut events = Vec::new();
    run(&market, &config, Some(4), &mut events).unwrap();
    assert_eq!(events[2], ParticipantEvent::Pledged { task: market.task });
    assert_eq!(events[3], ParticipantEvent::Ready { task: market.task });
    assert_eq!(
        market.request_count("POST", "work/next"),
        1,
        "ready after the first answered query"
    );
}

#[test]
fn the_scratch_file_is_in_the_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    let room = scratch_space(folder.path());
    assert_eq!((room.folder.as_path(), room.memory_max), (folder.path(), SCRATCH_MEMORY_MAX));
}
