//! Finished rounds are archived as blobs: they leave the memory, and every request gets the same
//! response as before.

use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use florin_coordinator::check::check;
use florin_coordinator::host::archive;
use florin_coordinator::host::snapshotter::to_bytes;
use florin_engine::state::ReportedRound;
use florin_engine::{Effect, Engine, Event, RoundLocation};
use florin_protocol::*;

use crate::crash_recovery::records;
use crate::message_replays::{RecordedRound, first_round, json};
use crate::support::*;
use crate::test_coordinator::*;

/// Waits until every round of the task is archived.
async fn wait_until_archived(shop: &TestCoordinator) {
    let id = shop.id;
    let wait = async {
        loop {
            let whole =
                shop.host.read(move |engine, _| engine.state().tasks[&id].rounds_in_memory.len());
            if whole.await.unwrap() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.expect("a round stays in memory");
}

/// Plays a first round with a provider and a second one without, to the end of the task.
async fn two_rounds(folder: &Path) -> RecordedRound {
    let record = first_round(folder).await;
    let shop = &record.shop;
    shop.play_round().await;
    shop.wait_for_phase(TaskPhase::Valuing).await;
    // The provider does not request the order, so the order's deadline passes.
    let id = shop.id;
    let due = async {
        loop {
            let order = shop.host.read(move |engine, _| {
                let running = engine.state().tasks[&id].running();
                running.and_then(|running| running.work_order.as_ref()).map(|order| order.due)
            });
            match order.await.unwrap() {
                Some(due) => return due,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let due = tokio::time::timeout(Duration::from_secs(30), due).await.expect("no order");
    shop.clock.set(due.saturating_add_ms(1));
    shop.host.wake().await;
    shop.wait_for_phase(TaskPhase::Done).await;
    wait_until_archived(shop).await;
    record
}

/// Replays the journal without archiving any round.
fn replay_without_archiving(folder: &Path) -> Engine {
    let journal = std::fs::read(folder.join("journal")).unwrap();
    let mut engine = Engine::new(market(), address(COORDINATOR));
    let mut archived = 0;
    for record in records(&journal) {
        if matches!(record.event, Event::RoundArchived { .. }) {
            archived += 1;
        } else {
            engine.apply(&record.event, record.now).unwrap();
        }
    }
    assert_eq!(archived, 2, "each round is archived once");
    engine
}

/// Checks the response of every route of a round against the round itself.
async fn check_responses(shop: &TestCoordinator, past: &ReportedRound) {
    let round = past.report.scope.round;
    let signer = node(COORDINATOR);
    let headers: Vec<_> = past.updates.iter().map(|update| update.header.clone()).collect();
    let records: Vec<_> = past.records.iter().map(|record| record.signed.clone()).collect();
    let rows = shop.host.blobs().read(past.disclosed_rows.unwrap()).unwrap();
    for (what, expected) in [
        ("report", json(&signer.sign(past.report.clone()))),
        ("offer", json(&signer.sign(past.offer.clone()))),
        ("headers", json(&headers)),
        ("records", json(&records)),
        ("holdout", rows),
    ] {
        let path = format!("tasks/{}/rounds/{round}/{what}", shop.id);
        let (status, answer) = shop.send("GET", &path, Body::empty()).await;
        assert_eq!((status, answer), (StatusCode::OK, expected), "{what} of round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_an_archived_round_get_the_same_responses_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let RecordedRound { shop, messages } = two_rounds(dir.path()).await;
    let (ledger, id) = (shop.ledger.clone(), shop.id);
    shop.stop().await;
    let whole = replay_without_archiving(dir.path());
    let task = &whole.state().tasks[&id];
    assert_eq!(task.rounds.len(), 2);
    // The same after a restart from the journal.
    let shop = TestCoordinator::with(dir.path(), digits_spec(), ledger, work_valuer(), |_| {});
    for past in task.rounds_in_memory.values() {
        assert_eq!(past.records.len(), usize::from(past.report.scope.round == RoundNumber(1)));
        check_responses(&shop, past).await;
    }
    // A repeated upload or record gets the same receipt or verdict.
    let mut again = 0;
    for message in
        messages.iter().filter(|message| ["an update", "a work record"].contains(&message.kind))
    {
        let (status, answer) = shop.send("POST", &message.path, message.body.clone()).await;
        assert_eq!((status, &answer), (message.status, &message.answer), "{}", message.kind);
        again += 1;
    }
    assert_eq!(again, 5);
    for update in &task.rounds_in_memory[&RoundNumber(1)].updates {
        let path = format!("tasks/{id}/updates/offset");
        let state: UploadProgress = shop.post(&path, &update.header).await.unwrap();
        assert_eq!(
            (state.offset, state.bytes),
            (update.header.body.bytes, update.header.body.bytes)
        );
    }
    // An update that was never accepted is rejected as before.
    let other = UpdateHeader {
        rows: 7,
        ..task.rounds_in_memory[&RoundNumber(1)].updates[0].header.body.clone()
    };
    let i = (1..=4).find(|i| address(*i) == other.sender).unwrap();
    let refused = shop.upload(&other, &[], i).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::TaskClosed, "{refused}");
    // Claim proofs come from memory and do not need any blob.
    let proof: ClaimProof = shop.get(&format!("tasks/{id}/proof/{}", address(1))).await.unwrap();
    assert_eq!(proof.root, task.rounds_in_memory[&RoundNumber(2)].report.root);
    assert!(merkle::verify(proof.root, address(1), proof.totals, &proof.proof));
    shop.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_archive_blob_is_an_internal_error_and_is_found_by_a_check() {
    let dir = tempfile::tempdir().unwrap();
    let RecordedRound { shop, .. } = two_rounds(dir.path()).await;
    let (ledger, id) = (shop.ledger.clone(), shop.id);
    let archive = shop
        .host
        .read(move |engine, _| engine.archive_blob(id, RoundNumber(1)))
        .await
        .unwrap()
        .unwrap();
    shop.stop().await;
    let good = check(dir.path(), None, None).unwrap();
    assert!(good.is_intact(), "{good:?}");
    std::fs::remove_dir_all(dir.path().join("blobs/packs")).unwrap();
    let found = check(dir.path(), None, None).unwrap();
    let missing = found.parts.iter().find(|part| part.code == "BLOB_MISSING").unwrap();
    assert!(missing.message.contains("blobs are missing"), "{archive}: {missing:?}");
    let shop = TestCoordinator::with(dir.path(), digits_spec(), ledger, work_valuer(), |_| {});
    let code =
        shop.rejection_code("GET", &format!("tasks/{id}/rounds/1/report"), Body::empty()).await;
    assert_eq!(code, ErrorCode::Internal);
    // Claim proofs do not depend on it.
    let proof: ClaimProof = shop.get(&format!("tasks/{id}/proof/{}", address(1))).await.unwrap();
    assert!(merkle::verify(proof.root, address(1), proof.totals, &proof.proof));
    shop.stop().await;
}

#[test]
fn a_round_stays_in_memory_for_as_long_as_the_engine_needs_it() {
    let mut world = EngineFixture::in_valuing(4);
    let task = world.id;
    let keep = |round| Effect::ArchiveRound { task, round: RoundNumber(round) };
    let archived =
        |round| Event::RoundArchived { task, round: RoundNumber(round), digest: Digest([1; 32]) };
    let mut harmed = world.valued_event();
    if let Event::RoundValued { result, .. } = &mut harmed {
        let score = &mut result.valuation.scores[0];
        (score.score_nano, score.excluded) = (-50_000_000, true);
    }
    world.apply(harmed).unwrap();
    world.apply(Event::SettlementPosted { task, round: RoundNumber(1) }).unwrap();
    assert_eq!(
        world.rejection_code(archived(1)),
        ErrorCode::TooEarly,
        "the next round builds on it"
    );
    let cohort = world.offer().cohort.clone();
    let asked = || (1..=4).filter(|i| cohort.contains(&address(*i)));
    asked().for_each(|i| drop(world.apply(world.commit_event(i)).unwrap()));
    asked().for_each(|i| drop(world.apply(world.reveal_event(i)).unwrap()));
    world.disclose();
    world.apply(world.valued_event()).unwrap();
    assert_eq!(
        world.rejection_code(archived(1)),
        ErrorCode::TooEarly,
        "its settlement is not final"
    );
    let applied = world.apply(Event::SettlementFinal { task, round: RoundNumber(1) }).unwrap();
    assert_eq!(applied.effects, [Effect::ProveDebits { task, round: RoundNumber(1) }]);
    assert_eq!(world.rejection_code(archived(1)), ErrorCode::TooEarly, "its debits are not proven");
    let applied = world.apply(Event::DebitsProven { task, round: RoundNumber(1) }).unwrap();
    assert_eq!(applied.effects, [keep(1)]);
    let sequence = world.engine.state().tasks[&task].sequence;
    let applied = world.apply(archived(1)).unwrap();
    assert!(applied.changed_tasks.is_empty(), "archiving wakes no long poll");
    assert_eq!(world.engine.state().tasks[&task].sequence, sequence);
    assert!(matches!(
        world.engine.reported_round(task, RoundNumber(1)),
        Ok(RoundLocation::Archived(Digest([1, ..])))
    ));
    assert_eq!(world.rejection_code(archived(2)), ErrorCode::TooEarly);
    assert!(world.engine.report(task, RoundNumber(2)).is_ok());
    assert_eq!(world.engine.final_totals(task).unwrap().round, RoundNumber(1));
    // A cancelled settlement is not known to be final, but may become final after a reorganisation.
    world.apply(Event::SettlementPosted { task, round: RoundNumber(2) }).unwrap();
    world.apply(Event::SettlementCancelled { task, round: RoundNumber(2) }).unwrap();
    assert_eq!(world.rejection_code(archived(2)), ErrorCode::TooEarly);
    world.apply(Event::SettlementFinal { task, round: RoundNumber(2) }).unwrap();
    assert_eq!(world.engine.final_totals(task).unwrap().round, RoundNumber(2));
    world.apply(archived(2)).unwrap();
}

/// Bytes of the state after `rounds` rounds of four, each archived as soon as possible.
fn state_after(rounds: u32) -> usize {
    let mut spec = spec();
    spec.rounds.count = 100;
    spec.holdout.rows = 1_000;
    spec.expires = Timestamp(100_000_000);
    let mut world = EngineFixture::with_published_spec(spec, 4);
    for event in (1..=4).map(|i| world.enrol_event(i)).collect::<Vec<_>>() {
        world.apply(event).unwrap();
    }
    let task = world.id;
    for round in (1..=rounds).map(RoundNumber) {
        for i in 1..=4 {
            world.apply(world.commit_event(i)).unwrap();
        }
        for i in 1..=4 {
            world.apply(world.reveal_event(i)).unwrap();
        }
        world.disclose();
        world.apply(world.valued_event()).unwrap();
        world.apply(Event::SettlementPosted { task, round }).unwrap();
        world.apply(Event::SettlementFinal { task, round }).unwrap();
        for effect in world.engine.pending_effects() {
            if let Effect::ArchiveRound { task, round } = effect {
                let past = &world.engine.state().tasks[&task].rounds_in_memory[&round];
                let digest = blob_digest(&archive::to_bytes(past).unwrap());
                world.apply(Event::RoundArchived { task, round, digest }).unwrap();
            }
        }
    }
    assert!(world.engine.state().tasks[&task].rounds_in_memory.len() <= 1);
    to_bytes(world.engine.state()).unwrap().len()
}

#[test]
fn an_archived_round_adds_little_more_to_the_state_than_its_digests() {
    let (early, late) = (state_after(10), state_after(50));
    let each = (late - early) / 40;
    // Three digests and a flag for the round, its order, its final settlement, its ten rows; and
    // the digest of each blob.
    assert!(each <= 200 + 40 + 36 + 4 + 32 * 2, "{each} bytes a round");
}
