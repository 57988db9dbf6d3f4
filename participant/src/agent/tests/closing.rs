//! A close that the coordinator announces while a round runs: receipts object to it.

use florin_ledger::Refusal;

use super::concurrent::wait_until;
use super::*;

#[test]
fn a_receipt_of_an_unsettled_round_objects_to_an_announced_close() {
    let market = TestMarket::start(2, false);
    let (ledger, task, coordinator) = (market.ledger.as_ref(), market.task, wallet(2));
    ledger.bond(&coordinator, task, fln("7")).unwrap();
    let bond = ledger.bond_of(task, coordinator.address()).unwrap().amount;
    let before = ledger.treasury().unwrap();
    let closes_at = || ledger.task(task).unwrap().unwrap().closes_at;
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    // It outlasts the requests without an answer.
    person.config.backoff = Backoff { initial_ms: 1, max_ms: 10, max_total_ms: 60_000 };
    let mut other = TestParticipant::new(&market, 5, BehaviourKind::Honest);
    let folder = market.folder.path().join("4");
    let receipt = folder.join(task.to_string()).join("1/receipt.json");
    let done = std::thread::scope(|scope| {
        let running = scope.spawn(|| person.run(&market, None).unwrap());
        let committed =
            |event: &ParticipantEvent| matches!(event, ParticipantEvent::Committed { .. });
        other.run_until(&market, committed).unwrap();
        wait_until(|| receipt.exists());
        // Round 1 waits for the other update; the coordinator wants to keep what it has, and
        // answers no participant any more.
        market.inject(Fault::Unavailable);
        ledger.announce_close(&coordinator, task).unwrap();
        wait_until(|| closes_at().is_none());
        market.clear_faults();
        let early = ledger.close(&coordinator, task).unwrap_err();
        assert!(matches!(early, LedgerError::Refused(Refusal::TooEarly { .. })), "{early}");
        assert_eq!(ledger.treasury().unwrap().minus(before), Ok(bond));
        // It settles the round after all, with a new bond.
        ledger.bond(&coordinator, task, bond).unwrap();
        assert!(other.run(&market, None).unwrap().finished);
        running.join().unwrap()
    });
    assert!(done.finished);
    let objected = person.events.iter().filter_map(|event| match event {
        ParticipantEvent::CloseObjected { round, taken } => Some((*round, *taken)),
        _ => None,
    });
    assert_eq!(objected.collect::<Vec<_>>(), [(RoundNumber(1), bond)]);
    let announced = person.events.iter();
    let announced =
        announced.filter(|event| matches!(event, ParticipantEvent::CloseAnnounced { .. }));
    assert_eq!(announced.count(), 1);
    // Every round is settled now, and no receipt objects.
    assert_eq!(object_from_receipts(ledger, &wallet(9), task, &folder).unwrap(), None);
}

#[test]
fn no_update_is_sent_while_a_close_is_announced() {
    let market = TestMarket::start(1, false);
    let (ledger, task) = (market.ledger.as_ref(), market.task);
    ledger.announce_close(&wallet(2), task).unwrap();
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let announced =
        |event: &ParticipantEvent| matches!(event, ParticipantEvent::CloseAnnounced { .. });
    person.run_until(&market, announced).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            market.pass_commit_deadline();
        });
    });
    let trained = |event: &ParticipantEvent| matches!(event, ParticipantEvent::Trained { .. });
    assert!(!person.events.iter().any(trained), "{:?}", person.events);
    assert_eq!(market.request_count("POST", "/commits"), 0);
}
