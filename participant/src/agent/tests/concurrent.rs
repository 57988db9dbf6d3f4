//! Events beside the rounds: removal from the cohort, slow participants, and claims before the end
//! of the task.

use super::*;
use crate::claim_summary::ClaimSummary;

/// Polls until a condition that another thread fulfils holds.
pub(super) fn wait_until(holds: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("the condition never held");
}

#[test]
fn a_removed_participant_enrols_again_and_continues() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let fails = Arc::clone(&person.engine.fails_next);
    fails.store(true, Ordering::SeqCst);
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_until(|| !fails.load(Ordering::SeqCst));
            market.pass_commit_deadline();
        });
        person.run(&market, None).unwrap()
    });
    assert_eq!(person.failed_round_codes(), ["TRAINING_DIVERGED"]);
    assert!(done.finished, "{:?}", person.events);
    assert_eq!(market.request_count("POST", "/enrol"), 2);
    assert_eq!((done.statements.len(), done.alarms), (3, 0));
    assert_eq!(done.statements[0].payout, Amount::ZERO, "the first round was abandoned");
    assert!(!done.claimed.is_zero());
    let enrolled = person.events.iter().filter(|e| matches!(e, ParticipantEvent::Enrolled { .. }));
    assert_eq!(enrolled.count(), 1, "enrolling again emits no event");
}

#[test]
fn enrolment_is_retried_until_the_coordinator_sees_the_bond() {
    let market = TestMarket::start(1, false);
    market.inject(Fault::LaggingNode);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    assert!(person.run(&market, None).unwrap().finished, "{:?}", person.events);
    assert_eq!(market.request_count("POST", "/enrol"), 3);
    let bonded = person.events.iter().filter(|e| matches!(e, ParticipantEvent::Bonded { .. }));
    assert_eq!(bonded.count(), 1, "the bond is deposited once");
}

#[test]
fn a_participant_whose_registration_gave_way_registers_again_and_is_paid() {
    let market = TestMarket::start(1, false);
    market.inject(Fault::FullMarket);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let done = person.run(&market, None).unwrap();
    assert!(done.finished && !done.claimed.is_zero(), "{:?}", person.events);
    assert_eq!(person.failed_round_codes(), [""; 0]);
    // At the start, and before an enrolment, a commit and an update.
    assert_eq!(market.request_count("POST", "registrations"), 4);
}

#[test]
fn final_pay_is_claimed_while_the_round_waits_for_others() {
    let market = TestMarket::start(2, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let mut other = TestParticipant::new(&market, 5, BehaviourKind::Honest);
    let me = person.wallet.address();
    let drawn = || market.ledger.claimed_totals(market.task, me).unwrap().paid;
    let done = std::thread::scope(|scope| {
        let running = scope.spawn(|| person.run(&market, None).unwrap());
        // Until it has read the first report and is selected again.
        let asked_twice = |event: &ParticipantEvent| {
            matches!(event, ParticipantEvent::Selected { round: RoundNumber(2), .. })
        };
        other.run_until(&market, asked_twice).unwrap();
        wait_until(|| !drawn().is_zero());
        assert!(market.client().task(market.task).unwrap().phase != TaskPhase::Done);
        assert!(other.run(&market, None).unwrap().finished);
        running.join().unwrap()
    });
    assert!(done.finished);
    let earned = Amount::total(done.statements.iter().map(|s| s.payout)).unwrap();
    assert_eq!((done.claimed, drawn()), (earned, earned));
}

#[test]
fn a_stopped_participant_can_claim_final_pay_at_any_time() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let (client, me) = (market.client(), person.wallet.address());
    let ledger = market.ledger.as_ref();
    let claim = || claim(&client, ledger, &wallet(9), market.task, me).unwrap();
    assert_eq!(claim(), ClaimSummary::default(), "nothing is final yet");
    let reported = |event: &ParticipantEvent| matches!(event, ParticipantEvent::Reported { .. });
    let stopped = person.run_until(&market, reported).unwrap();
    assert!(!stopped.finished && stopped.claimed.is_zero());
    let first = claim();
    assert!(!first.paid.is_zero());
    assert_eq!(first.paid, stopped.statements[0].payout);
    assert_eq!(claim(), ClaimSummary { totals: first.totals, ..ClaimSummary::default() });
    let done = person.run(&market, None).unwrap();
    let earned = Amount::total(done.statements.iter().map(|s| s.payout)).unwrap();
    assert_eq!(first.paid.plus(done.claimed).unwrap(), earned);
    let totals = florin_protocol::merkle::ClaimTotals { paid: earned, debited: Amount::ZERO };
    assert_eq!(claim(), ClaimSummary { totals, ..ClaimSummary::default() });
}

#[test]
fn a_proof_of_an_older_root_is_a_transient_error() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    person
        .run_until(&market, |event| {
            matches!(event, ParticipantEvent::Selected { round: RoundNumber(3), .. })
        })
        .unwrap();
    let (client, ledger, me) = (market.client(), market.ledger.as_ref(), person.wallet.address());
    market.inject(Fault::OldProof);
    let error = claim(&client, ledger, &wallet(4), market.task, me).unwrap_err();
    let passes = crate::retry::Transient::is_transient(&error);
    assert_eq!((error.code(), passes), ("PROOF_NOT_CURRENT", true), "{error}");
    market.clear_faults();
    let drawn = claim(&client, ledger, &wallet(4), market.task, me).unwrap();
    assert!(!drawn.paid.is_zero());
}

#[test]
fn stored_reports_prove_final_pay_without_the_coordinator() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let (ledger, me, task) = (market.ledger.as_ref(), person.wallet.address(), market.task);
    let folder = market.folder.path().join("4");
    let claim = || claim_from_reports(ledger, &wallet(9), (task, me), &folder);
    assert_eq!(claim().unwrap(), ClaimSummary::default(), "nothing is final yet");
    let reported = |event: &ParticipantEvent| matches!(event, ParticipantEvent::Reported { .. });
    let stopped = person.run_until(&market, reported).unwrap();
    let requests = market.request_count("", "");
    // A report that was changed on disk does not lead to the ledger's root.
    let file = folder.join(task.to_string()).join("1/report.json");
    let whole = std::fs::read_to_string(&file).unwrap();
    let earned = serde_json::to_string(&stopped.statements[0].payout).unwrap();
    assert!(whole.contains(&earned));
    let more = serde_json::to_string(&Amount::from_units(1_000_000)).unwrap();
    std::fs::write(&file, whole.replace(&earned, &more)).unwrap();
    assert_eq!(claim().unwrap_err().code(), "REPORT_MISSING");
    std::fs::write(&file, whole).unwrap();
    let drawn = claim().unwrap();
    assert!(!drawn.paid.is_zero());
    assert_eq!(drawn.paid, stopped.statements[0].payout);
    let again = claim().unwrap();
    assert_eq!(again, ClaimSummary { totals: drawn.totals, ..ClaimSummary::default() });
    assert_eq!(market.request_count("", ""), requests, "the coordinator is not asked");
    std::fs::remove_file(&file).unwrap();
    let error = claim().unwrap_err();
    assert!(!crate::retry::Transient::is_transient(&error));
    assert_eq!(error.code(), "REPORT_MISSING", "{error}");
}
