//! The agent in a test market: what it earns, how it recovers, and what it rejects.

mod bonds;
mod closing;
mod concurrent;
mod counting_engine;
mod privacy;
mod producing;
mod refusals;
mod residual;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use florin_learning::engine::TrainingQuote;
use florin_learning::{Dataset, EngineKind, Execution, Precision, engine};
use florin_protocol::{
    Canonical, NodeSigner, Registration, Role, RoundOutcome, TaskPhase, Timestamp, UpdateHeader,
    VoidReason, blob_digest, pay::PayReason,
};

use super::*;
use crate::behaviour::{BehaviourKind, Honest};
use crate::client::ClientConfig;
use crate::guard::SigningGuard;
use crate::testing::{Fault, TestMarket, fln, rows, wallet};
use counting_engine::CountingEngine;

/// A policy that accepts these wallets.
fn arbiters(wallets: &[u8]) -> ArbiterPolicy {
    let accepted = wallets.iter().map(|number| wallet(*number).address()).collect();
    ArbiterPolicy { accepted, trusts_coordinator: false }
}

/// One participant of a test market: wallet `number` with 40 rows.
struct TestParticipant {
    wallet: Wallet,
    data: Dataset,
    producer: Option<RowFeed>,
    engine: CountingEngine,
    behaviour: Box<dyn Behaviour>,
    config: ParticipantConfig,
    /// Whether it agrees to deposit the bond.
    agrees: bool,
    events: Vec<ParticipantEvent>,
}

impl TestParticipant {
    fn new(market: &TestMarket, number: u8, kind: BehaviourKind) -> Self {
        Self {
            wallet: wallet(number),
            data: rows(40, number.into()),
            producer: None,
            engine: CountingEngine::new(),
            behaviour: kind.behaviour(),
            config: ParticipantConfig {
                folder: market.folder.path().join(number.to_string()),
                task: market.task,
                seed: 7,
                bond_max: None,
                pay_min: None,
                invitation: None,
                arbiters: arbiters(&[3]),
                asks_for_arbiter: false,
                accepted_models: Vec::new(),
                continues_on_alarm: false,
                execution: Default::default(),
                processes: 1,
                accepts_slow_training: false,
                privacy: None,
                supervision: Default::default(),
                poll_ms: 2_000,
                backoff: Backoff { initial_ms: 1, max_ms: 1, max_total_ms: 3 },
            },
            agrees: true,
            events: Vec::new(),
        }
    }

    /// Runs until the end, or until the event number `stop_after`.
    fn run(
        &mut self,
        market: &TestMarket,
        stop_after: Option<usize>,
    ) -> Result<ParticipationSummary, AgentError> {
        let mut count = 0;
        self.run_until(market, |_| {
            count += 1;
            Some(count) == stop_after
        })
    }

    /// Runs until the end, or until the first event for which `is_last` is true.
    fn run_until(
        &mut self,
        market: &TestMarket,
        mut is_last: impl FnMut(&ParticipantEvent) -> bool,
    ) -> Result<ParticipationSummary, AgentError> {
        let client = Client::connect(&ClientConfig::new(&market.url))?;
        let shutdown = Shutdown::new();
        let events = &mut self.events;
        let mut on_event = |event: &ParticipantEvent| {
            assert!(!event.to_string().is_empty());
            events.push(event.clone());
            if is_last(event) {
                shutdown.request();
            }
        };
        let parts = ParticipantContext {
            wallet: &self.wallet,
            client: &client,
            ledger: market.ledger.as_ref(),
            engine: &mut self.engine,
            data: &self.data,
            producer: self.producer.as_ref(),
            behaviour: self.behaviour.as_mut(),
            consent: &mut |_| self.agrees,
        };
        // Watchdog: stops an endless run, so that the test fails instead of hanging.
        let watch = shutdown.clone();
        let watchdog = std::thread::spawn(move || {
            watch.wait(Duration::from_secs(20));
            watch.request();
        });
        let done = participate(&self.config, parts, &shutdown, &mut on_event);
        shutdown.request();
        watchdog.join().unwrap();
        done
    }

    fn failed_round_codes(&self) -> Vec<&'static str> {
        let code = |event: &ParticipantEvent| match event {
            ParticipantEvent::RoundFailed { code, .. } => Some(*code),
            _ => None,
        };
        self.events.iter().filter_map(code).collect()
    }
}

#[test]
fn an_honest_participant_is_paid_and_withdraws_its_bond() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let done = person.run(&market, None).unwrap();
    assert!(done.finished);
    assert_eq!((done.statements.len(), done.alarms), (3, 0));
    assert!(done.claimed > Amount::ZERO, "{:#?}", done.statements);
    assert_eq!(done.bond, BondStatus::Returned(fln("2")), "40 rows at 0.05");
    let balance = market.ledger.balance(person.wallet.address()).unwrap();
    assert_eq!(balance, fln("1000").plus(done.claimed).unwrap());
    let earned = Amount::total(done.statements.iter().map(|s| s.payout)).unwrap();
    assert_eq!(done.claimed, earned);
    assert_eq!(person.engine.trained, 3);
    // Idempotent: a second run changes nothing.
    let again = person.run(&market, None).unwrap();
    assert_eq!((again.claimed, again.bond), (Amount::ZERO, BondStatus::None));
    assert_eq!(again.statements, done.statements);
    assert_eq!(market.ledger.balance(person.wallet.address()).unwrap(), balance);
}

#[test]
fn a_restart_after_any_event_gives_the_same_result() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let whole = person.run(&market, None).unwrap();
    let steps = person.events.len();
    assert!(steps > 15, "{steps}");
    for stop in 1..steps {
        let market = TestMarket::start(1, false);
        let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
        let first = person.run(&market, Some(stop)).unwrap();
        let done = if first.finished { first.clone() } else { person.run(&market, None).unwrap() };
        assert!(done.finished, "stopped after {stop}");
        assert_eq!(done.statements, whole.statements, "stopped after {stop}");
        let drawn = match first.finished {
            true => first.claimed,
            false => first.claimed.plus(done.claimed).unwrap(),
        };
        assert_eq!(drawn, whole.claimed, "stopped after {stop}");
        let balance = market.ledger.balance(person.wallet.address()).unwrap();
        assert_eq!(balance, fln("1000").plus(whole.claimed).unwrap(), "stopped after {stop}");
        assert_eq!(person.engine.trained, 3, "stopped after {stop}: nothing is trained twice");
        let bonds =
            person.events.iter().filter(|e| matches!(e, ParticipantEvent::Bonded { .. })).count();
        assert_eq!(bonds, 1, "stopped after {stop}: bonded once");
        assert!(
            person.failed_round_codes().is_empty(),
            "stopped after {stop}: {:?}",
            person.failed_round_codes()
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_update_bytes() {
    let digest = |seed| {
        let market = TestMarket::start(1, false);
        let mut person = TestParticipant::new(&market, 4, BehaviourKind::Noise);
        person.config.seed = seed;
        person.run(&market, None).unwrap();
        let client = market.client();
        let reports = (1..=3).map(|r| client.report(market.task, RoundNumber(r)).unwrap().body);
        reports.map(|report| report.entries[0].update).collect::<Vec<_>>()
    };
    assert_eq!(digest(1), digest(1));
    assert_ne!(digest(1), digest(2));
}

#[test]
fn another_wallet_trains_with_another_seed() {
    let update = |number| {
        let market = TestMarket::start(1, false);
        let mut person = TestParticipant::new(&market, number, BehaviourKind::Honest);
        person.data = rows(40, 4);
        let trained = |event: &ParticipantEvent| matches!(event, ParticipantEvent::Trained { .. });
        person.run_until(&market, trained).unwrap();
        let path = person.config.folder.join(market.task.to_string()).join("1/update.safetensors");
        std::fs::read(path).unwrap()
    };
    assert_eq!(update(4), update(4));
    assert_ne!(update(4), update(5), "the same rows and the same public values");
}

#[test]
fn experiments_emit_an_event_and_earn_nothing() {
    for kind in [BehaviourKind::Idle, BehaviourKind::Noise, BehaviourKind::Flipped] {
        let market = TestMarket::start(1, false);
        let mut person = TestParticipant::new(&market, 4, kind);
        let done = person.run(&market, None).unwrap();
        let experiment = ParticipantEvent::Experiment { behaviour: kind.as_str() };
        assert_eq!(person.events[0], experiment);
        assert!(experiment.to_string().starts_with("EXPERIMENT"));
        let reports: Vec<Report> = (1..=3)
            .map(|r| market.client().report(market.task, RoundNumber(r)).unwrap().body)
            .collect();
        match kind {
            BehaviourKind::Idle => {
                assert!(reports.iter().all(|r| r.lines[0].reason == PayReason::Idle));
                assert_eq!(person.engine.trained, 0);
            }
            BehaviourKind::Flipped => {
                // No other update remains, so the round is void and debits nothing.
                let harmful =
                    |r: &Report| r.score(person.wallet.address()).is_some_and(|s| s.excluded);
                let void = RoundOutcome::Void(VoidReason::NoUpdateRemains);
                assert!(reports.iter().any(harmful), "{reports:?}");
                for report in reports.iter().filter(|report| harmful(report)) {
                    assert_eq!(report.outcome, void);
                    assert_eq!(report.model, report.base_model);
                    assert!(report.lines.iter().all(|line| line.debit.is_zero()));
                }
            }
            _ => {}
        }
        if kind != BehaviourKind::Noise {
            assert_eq!(done.claimed, Amount::ZERO, "{kind}");
        }
        let debited = Amount::total(done.statements.iter().map(|s| s.debit)).unwrap();
        let left = fln("2").minus(debited).unwrap();
        let expected = if left.is_zero() { BondStatus::None } else { BondStatus::Returned(left) };
        assert_eq!(done.bond, expected, "{kind}");
    }
}

#[test]
fn a_forged_receipt_is_rejected() {
    for (lie, code) in [
        (Fault::ForgedReceipt, "INVALID_SIGNATURE"),
        (Fault::OtherReceipt, "UNEXPECTED_CONTENT"),
        (Fault::ForgedWalletSignature, "UNEXPECTED_CONTENT"),
    ] {
        let market = TestMarket::start(1, false);
        market.inject(lie);
        let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
        let error = person.run(&market, None).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        market.clear_faults();
        let done = person.run(&market, None).unwrap();
        assert!(done.finished);
    }
}

#[test]
fn a_report_that_omits_a_receipted_update_raises_an_alarm() {
    let market = TestMarket::start(1, false);
    market.inject(Fault::LostUpdate);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    person.config.continues_on_alarm = true;
    let done = person.run(&market, None).unwrap();
    let ignored =
        person.events.iter().filter(|e| matches!(e, ParticipantEvent::ReceiptNotHonoured { .. }));
    assert_eq!(ignored.count(), 3);
    assert!(done.alarms >= 3);
    let receipt = person.config.folder.join(market.task.to_string()).join("1/receipt.json");
    assert!(receipt.exists(), "the receipt stays on disk as evidence");
}

#[test]
fn a_report_with_a_wrong_payout_raises_an_alarm() {
    let market = TestMarket::start(1, false);
    market.inject(Fault::WrongPayout);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    person.config.continues_on_alarm = true;
    let done = person.run(&market, None).unwrap();
    assert_eq!(done.alarms, 3);
    let first = person.events.iter().find_map(|event| match event {
        ParticipantEvent::ReportInconsistent { first_mismatch: first, .. } => {
            Some(first.line.clone())
        }
        _ => None,
    });
    assert_eq!(first.as_deref(), Some("lines[0].payout"));
}

#[test]
fn an_offer_with_a_wrong_base_model_gets_no_commit() {
    let market = TestMarket::start(1, false);
    market.inject(Fault::WrongBase);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let error = person.run(&market, None).unwrap_err();
    assert_eq!(error.code(), "INVALID_OFFER", "{error}");
    assert_eq!(person.engine.trained, 1, "the agent trained only in round 1");
    assert_eq!(market.request_count("POST", "/commits"), 1);
}

#[test]
fn an_offer_with_too_small_a_pool_gets_no_commit() {
    let market = TestMarket::start(1, false);
    market.inject(Fault::SmallPool);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let error = person.run(&market, None).unwrap_err();
    assert_eq!(error.code(), "INVALID_OFFER", "{error}");
    assert_eq!((person.engine.trained, market.request_count("POST", "/commits")), (0, 0));
}

#[test]
fn an_unavailable_coordinator_is_retried_until_the_back_off_ends() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let client = market.client();
    market.inject(Fault::Unavailable);
    let parts = ParticipantContext {
        wallet: &person.wallet,
        client: &client,
        ledger: market.ledger.as_ref(),
        engine: &mut person.engine,
        data: &person.data,
        producer: None,
        behaviour: &mut Honest,
        consent: &mut |_| true,
    };
    let mut retries = 0;
    let mut on_event = |event: &ParticipantEvent| {
        retries += u32::from(matches!(event, ParticipantEvent::Retrying { .. }))
    };
    let error = participate(&person.config, parts, &Shutdown::new(), &mut on_event).unwrap_err();
    assert_eq!((error.code(), retries), ("COORDINATOR_UNAVAILABLE", 3));
}

#[test]
fn a_different_update_is_not_signed_for_the_same_round() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    // Registered, quoted, bonded, enrolled, selected, trained; the next step records the commit.
    person.run(&market, Some(6)).unwrap();
    assert!(matches!(person.events.last(), Some(ParticipantEvent::Stopped)));
    let path = person.config.folder.join(market.task.to_string()).join("1/update.safetensors");
    let trained = std::fs::read(&path).unwrap();
    let view = market.client().task(market.task).unwrap();
    let offer = view.offer.unwrap().body;
    let mut guard =
        SigningGuard::open(&person.config.folder.join("guard"), person.wallet.node_signer())
            .unwrap();
    guard.sign_update(header(&person, &offer, &trained)).unwrap();
    drop(guard);
    std::fs::write(&path, florin_work::encode_parameters(&market.spec, &[0.0; 15])).unwrap();
    // Read, and failed: the guard has recorded the first update.
    person.run(&market, Some(5)).unwrap();
    assert_eq!(person.failed_round_codes(), ["DOUBLE_SIGN"], "{:?}", person.events);
    assert_eq!(market.request_count("POST", "/commits"), 0);
    // The signed bytes are still accepted.
    std::fs::write(&path, trained).unwrap();
    assert!(person.run(&market, None).unwrap().finished);
}

fn header(person: &TestParticipant, offer: &Offer, bytes: &[u8]) -> UpdateHeader {
    UpdateHeader {
        scope: offer.scope,
        sender: person.wallet.address(),
        offer: offer.digest(),
        base_model: offer.base_model,
        rows: person.data.rows() as u64,
        update: blob_digest(bytes),
        bytes: bytes.len() as u64,
        salt: florin_protocol::Digest([1; 32]),
        expires: offer.reveal_by,
    }
}

#[test]
fn diverged_training_fails_one_round_and_costs_no_bond() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    person.engine.fails = true;
    // Registered, quoted, bonded, enrolled, selected, and the round failed.
    person.run(&market, Some(6)).unwrap();
    assert_eq!(person.failed_round_codes(), ["TRAINING_DIVERGED"]);
    assert_eq!(market.request_count("POST", "/commits"), 0);
    person.engine.fails = false;
    assert!(person.run(&market, None).unwrap().finished);
}

#[test]
fn unsuitable_data_and_limits_fail_before_bonding() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    person.data = Dataset::new(vec![0.0; 10], vec![0, 1], 5, 3).unwrap();
    assert_eq!(person.run(&market, None).unwrap_err().code(), "DATA_MISMATCH");
    person.data = Dataset::new(Vec::new(), Vec::new(), 4, 3).unwrap();
    assert_eq!(person.run(&market, None).unwrap_err().code(), "DATA_MISMATCH");
    person.data = rows(10, 1);
    person.config.execution.precision = Precision::Bf16;
    assert_eq!(person.run(&market, None).unwrap_err().code(), "PRECISION_UNSUPPORTED");
    person.config.execution = Execution::default();
    person.config.bond_max = Some(fln("0.5"));
    assert_eq!(person.run(&market, None).unwrap_err().code(), "BOND_LIMIT_TOO_LOW");
    let bond = market.ledger.bond_of(market.task, person.wallet.address()).unwrap();
    assert!(bond.amount.is_zero());
    let second =
        SigningGuard::open(&person.config.folder.join("guard"), wallet(4).node_signer()).unwrap();
    assert_eq!(person.run(&market, None).unwrap_err().code(), "DATA_FOLDER_IN_USE");
    drop(second);
}

#[test]
fn a_task_that_is_over_is_refused_to_a_stranger_and_resumed_by_its_participants() {
    let market = TestMarket::start(1, false);
    let mut member = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    assert!(member.run(&market, None).unwrap().finished);
    let mut stranger = TestParticipant::new(&market, 5, BehaviourKind::Honest);
    let error = stranger.run(&market, None).unwrap_err();
    assert_eq!(error.code(), "TASK_CLOSED");
    assert!(error.to_string().contains("florin task list"), "{error}");
    assert!(stranger.events.is_empty(), "{:?}", stranger.events);
    // A participant that lost its files has earnings on the ledger.
    std::fs::remove_dir_all(&member.config.folder).unwrap();
    assert!(member.run(&market, None).unwrap().finished);
}

#[test]
fn a_bond_limit_reduces_the_counted_rows() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    person.config.bond_max = Some(fln("1"));
    person.run(&market, None).unwrap();
    let report = market.client().report(market.task, RoundNumber(1)).unwrap().body;
    assert_eq!((report.entries[0].rows_declared, report.entries[0].rows_counted), (40, 20));
    let covered = person
        .events
        .iter()
        .any(|e| matches!(e, ParticipantEvent::BondCoverage { covered: 20, .. }));
    assert!(covered);
    assert_ne!(report.digest(), report.previous_report);
}

#[test]
fn an_invalid_task_is_rejected_before_bonding() {
    let rules: [fn(&mut TaskSpec); 2] =
        [|spec| spec.arbiter = spec.buyer, |spec| spec.budget.unbond_ms = 239_999];
    for rule in rules {
        let market = TestMarket::start_with(1, false, rule);
        let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
        let error = person.run(&market, None).unwrap_err();
        assert_eq!(error.code(), "INVALID_TASK", "{error}");
        let me = person.wallet.address();
        assert!(market.ledger.bond_of(market.task, me).unwrap().amount.is_zero());
        assert_eq!(market.request_count("POST", ""), 0, "no request was posted to the coordinator");
    }
}

#[test]
fn a_node_key_conflict_names_both_keys() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let first = NodeSigner::from_seed(&[8; 32]);
    let registration = Registration::sign(
        market.spec.market,
        &wallet(4),
        &first,
        Role::Participant,
        Timestamp(99),
    );
    market.client().register(&registration.unwrap()).unwrap();
    let error = person.run(&market, None).unwrap_err();
    assert_eq!(error.code(), "CONFLICTING_MESSAGE");
    let (message, ours) = (error.to_string(), person.wallet.node_signer().key());
    for part in [first.key().to_string(), ours.to_string(), "another wallet".to_owned()] {
        assert!(message.contains(&part), "{part} in {message}");
    }
    let me = person.wallet.address();
    assert!(market.ledger.bond_of(market.task, me).unwrap().amount.is_zero());
}

#[test]
fn the_required_bond_covers_all_rows_and_the_minimum() {
    let spec = crate::testing::spec();
    for (rows, limit, bond) in [
        (1, None, "1"),
        (20, None, "1"),
        (21, None, "1.05"),
        (100, None, "5"),
        (100, Some("2"), "2"),
        (1, Some("2"), "1"),
    ] {
        let limit = limit.map(fln);
        assert_eq!(joining::required_bond(&spec, rows, limit), fln(bond), "{rows} rows");
    }
}
