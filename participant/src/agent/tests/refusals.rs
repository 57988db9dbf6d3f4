//! Updates that the participant's program refuses to submit, and reasons to leave a task.

use super::*;

#[test]
fn a_training_that_raises_the_loss_or_is_not_finite_sends_no_update() {
    type Spoil = fn(f32) -> f32;
    let table: [(&str, Spoil); 3] = [
        ("a step far beyond the minimum, uphill", |value| -100.0 * value),
        ("not a number", |_| f32::NAN),
        ("an infinity", |_| f32::INFINITY),
    ];
    for (name, spoil) in table {
        let market = TestMarket::start(1, false);
        let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
        person.engine.spoils = Some(spoil);
        let failed = |event: &ParticipantEvent| {
            matches!(event, ParticipantEvent::RoundFailed { code: "TRAINING_DIVERGED", .. })
        };
        person.run_until(&market, failed).unwrap();
        assert_eq!(person.failed_round_codes(), ["TRAINING_DIVERGED"], "{name}");
        assert_eq!(market.request_count("POST", "/commits"), 0, "{name}");
        person.engine.spoils = None;
        assert!(person.run(&market, None).unwrap().finished, "{name}: the next rounds go on");
    }
}

#[test]
fn rows_of_another_scale_send_no_update() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let own = rows(40, 7);
    let features = own.features().iter().map(|value| value * 1e6).collect();
    // Labels without a pattern: no step fits all rows.
    let labels = (0..40).map(|row| row * row / 5 % 3).collect();
    person.data = Dataset::new(features, labels, 4, 3).unwrap();
    let mut why = String::new();
    person
        .run_until(&market, |event| match event {
            ParticipantEvent::RoundFailed { why: found, .. } => {
                why = found.clone();
                true
            }
            _ => false,
        })
        .unwrap();
    assert_eq!(person.failed_round_codes(), ["TRAINING_DIVERGED"], "{:?}", person.events);
    assert!(why.contains("another scale than the task's holdout"), "{why}");
    assert_eq!(market.request_count("POST", "/commits"), 0);
}

/// The holdout's rows as a participant's own, with their labels moved by `shift`.
fn with_shifted_labels(shift: u32) -> Dataset {
    let holdout = rows(180, 99);
    let labels = holdout.labels().iter().map(|label| (label + shift) % 3).collect();
    Dataset::new(holdout.features().to_vec(), labels, 4, 3).unwrap()
}

#[test]
fn rows_with_contradicting_labels_end_the_participation_with_an_alarm() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    person.data = with_shifted_labels(1);
    let done = person.run(&market, None).unwrap();
    assert!(!done.finished);
    assert_eq!((done.alarms, done.statements.len()), (1, 1), "it leaves after the first round");
    assert!(matches!(done.bond, BondStatus::Locked(_)), "the bond was requested: {:?}", done.bond);
    let found = person.events.iter().find_map(|event| match event {
        ParticipantEvent::LabelsContradict { matching, contradicting, .. } => {
            Some((*matching, *contradicting))
        }
        _ => None,
    });
    assert_eq!(found, Some((60, 60)), "all rows of the round");
}

#[test]
fn rows_with_the_same_labels_raise_no_alarm() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    person.data = with_shifted_labels(0);
    let done = person.run(&market, None).unwrap();
    assert!(done.finished);
    assert_eq!((done.alarms, done.statements.len()), (0, 3));
    assert_eq!(market.request_count("GET", "/holdout"), 3, "each round is compared");
}

#[test]
fn parameters_that_the_buyer_chose_are_refused_until_they_are_accepted_by_digest() {
    let model = Digest([5; 32]);
    let market = TestMarket::start_with(1, false, |spec| spec.base_model = model);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let error = person.run(&market, None).unwrap_err();
    assert_eq!(error.code(), "MODEL_NOT_DERIVED", "{error}");
    assert!(error.to_string().contains(&format!("--accept-model {model}")), "{error}");
    let account = person.wallet.address();
    assert!(market.ledger.bond_of(market.task, account).unwrap().amount.is_zero());
    assert_eq!(market.request_count("POST", "/register"), 0, "nothing is at risk");
    person.config.accepted_models = vec![Digest([6; 32])];
    let error = person.run(&market, None).unwrap_err();
    assert_eq!(error.code(), "MODEL_NOT_DERIVED", "another digest was accepted");
    person.config.accepted_models.push(model);
    // The market of this test has no such blob, so the participation ends when it trains.
    let error = person.run(&market, None).unwrap_err();
    assert_ne!(error.code(), "MODEL_NOT_DERIVED");
    assert!(!market.ledger.bond_of(market.task, account).unwrap().amount.is_zero());
}

#[test]
fn a_model_that_the_public_updates_do_not_give_ends_the_participation() {
    let market = TestMarket::start(1, false);
    market.inject(Fault::TrapModel);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let done = person.run(&market, None).unwrap();
    assert_eq!((done.finished, done.alarms), (false, 1));
    assert_eq!(person.engine.trained, 1, "no update shows what the trap would read");
    let alarm = person.events.iter().find_map(|event| match event {
        ParticipantEvent::ModelMismatch { round, first_mismatch } => {
            Some((*round, first_mismatch.line.clone()))
        }
        _ => None,
    });
    assert_eq!(alarm, Some((RoundNumber(1), "model".to_owned())));
    assert!(matches!(done.bond, BondStatus::Locked(_)), "the bond was requested: {:?}", done.bond);
    // A restart does not forget the alarm.
    let again = person.run(&market, None).unwrap();
    assert_eq!((again.finished, again.alarms, person.engine.trained), (false, 1, 1));
}

#[test]
fn a_report_that_the_ledger_does_not_hold_ends_the_participation() {
    let lines = |fault: Fault, challenge_ms: u64| {
        let market = TestMarket::start_with(1, false, |spec| {
            spec.budget.challenge_ms = challenge_ms;
            spec.budget.unbond_ms += challenge_ms;
        });
        market.inject(fault);
        let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
        let done = person.run(&market, None).unwrap();
        assert_eq!((done.finished, done.alarms), (false, 1), "{fault:?}");
        assert_eq!(person.engine.trained, 1, "{fault:?}: the next model gets no update");
        // A restart does not forget the alarm.
        let again = person.run(&market, None).unwrap();
        assert_eq!((again.alarms, person.engine.trained), (1, 1), "{fault:?}");
        let line = person.events.iter().find_map(|event| match event {
            ParticipantEvent::LedgerMismatch { first_mismatch } => {
                Some(first_mismatch.line.clone())
            }
            _ => None,
        });
        line.unwrap()
    };
    assert_eq!(lines(Fault::OtherReport, 1_000_000), "ledger.pending[1].report");
    assert_eq!(lines(Fault::NeverPosted, 1), "ledger.settlements[1]");
    assert_eq!(lines(Fault::OtherTotals, 1), "ledger.root");
}

#[test]
fn each_update_is_fetched_once_and_later_base_models_are_recomputed() {
    let market = TestMarket::start_with(2, false, |spec| spec.rounds.cohort_min = 2);
    let run = |number| {
        let mut person = TestParticipant::new(&market, number, BehaviourKind::Honest);
        person.run(&market, None).unwrap()
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run(5));
        assert!(run(4).finished);
        assert!(other.join().unwrap().finished);
    });
    let fetched = market.fetched_digests("blobs/");
    let count = |digest: Digest| fetched.iter().filter(|name| **name == digest.to_string()).count();
    for round in (1..=3).map(RoundNumber) {
        let report = market.client().report(market.task, round).unwrap().body;
        for entry in &report.entries {
            assert_eq!(count(entry.update), 2, "{round}: once by each participant");
        }
        let expected = if round.0 == 1 { 2 } else { 0 };
        assert_eq!(count(report.base_model), expected, "{round}");
    }
}

#[test]
fn an_arbiter_that_is_not_accepted_gets_no_bond() {
    let run = |arbiter: u8, policy: ArbiterPolicy, asks: bool| {
        let market =
            TestMarket::start_with(1, false, |spec| spec.arbiter = wallet(arbiter).address());
        let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
        person.config.arbiters = policy;
        person.config.asks_for_arbiter = asks;
        let done = person.run(&market, None);
        let bonds = person.events.iter().any(|e| matches!(e, ParticipantEvent::Bonded { .. }));
        assert_eq!(bonds, done.is_ok());
        done.map(|done| done.finished).map_err(|error| (error.code(), error.to_string()))
    };
    let trusting = ArbiterPolicy { trusts_coordinator: true, ..ArbiterPolicy::default() };
    let (code, text) = run(3, ArbiterPolicy::default(), false).unwrap_err();
    assert_eq!(code, "ARBITER_NOT_ACCEPTED");
    assert!(text.contains(&format!("--arbiter {}", wallet(3).address())), "{text}");
    let (code, text) = run(2, arbiters(&[3]), false).unwrap_err();
    assert_eq!(code, "ARBITER_NOT_ACCEPTED", "the coordinator is not accepted by default");
    assert!(text.contains("--trust-coordinator"), "{text}");
    assert_eq!(run(3, trusting.clone(), false).unwrap_err().0, "ARBITER_NOT_ACCEPTED");
    assert_eq!(run(2, trusting, false), Ok(true));
    assert_eq!(run(2, arbiters(&[2]), false), Ok(true));
    assert_eq!(run(3, ArbiterPolicy::default(), true), Ok(true), "the user answered yes");
}

#[test]
fn an_alarm_ends_the_participation_until_the_user_asks_to_go_on() {
    let market = TestMarket::start(1, false);
    market.inject(Fault::WrongPayout);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let done = person.run(&market, None).unwrap();
    assert_eq!((done.finished, done.alarms, person.engine.trained), (false, 1, 1));
    assert!(matches!(done.bond, BondStatus::Locked(_)), "the bond was requested: {:?}", done.bond);
    let folder = person.config.folder.join(market.task.to_string()).join("1");
    assert!(folder.join("disputed_report.json").exists(), "the evidence stays on disk");
    // A restart does not forget the alarm.
    let again = person.run(&market, None).unwrap();
    assert_eq!((again.finished, again.alarms, person.engine.trained), (false, 1, 1));
    person.config.continues_on_alarm = true;
    let done = person.run(&market, None).unwrap();
    assert!(done.finished);
    assert!(folder.join("report.json").exists());
}
