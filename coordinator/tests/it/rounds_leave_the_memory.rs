//! Finished rounds are archived as blobs: they leave the memory, and every request gets the same
//! response as before.

use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use florin_coordinator::check::check;
use florin_coordinator::host::archive;
use florin_coordinator::host::keeper::to_bytes;
use florin_engine::state::Past;
use florin_engine::{Effect, Engine, Event, Found};
use florin_protocol::*;

use crate::replays_are_refused::{Record, first_round, json};
use crate::restart_continues::records;
use crate::shop::*;
use crate::support::*;

/// Waits until every round of the task is archived.
async fn all_kept(shop: &Shop) {
    let id = shop.id;
    let wait = async {
        loop {
            let whole = shop.host.read(move |engine, _| engine.state().tasks[&id].whole.len());
            if whole.await.unwrap() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.expect("a round stays in memory");
}

/// Plays a first round with a provider and a second one without, to the end of the task.
async fn two_rounds(folder: &Path) -> Record {
    let record = first_round(folder).await;
    let shop = &record.shop;
    shop.play_round().await;
    shop.until(TaskPhase::Valuing).await;
    // The provider does not request the order, so the order's deadline passes.
    let id = shop.id;
    let due = async {
        loop {
            let order = shop.host.read(move |engine, _| {
                let running = engine.state().tasks[&id].running();
                running.and_then(|running| running.order.as_ref()).map(|order| order.due)
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
    shop.until(TaskPhase::Done).await;
    all_kept(shop).await;
    record
}

/// Replays the journal without archiving any round.
fn everything(folder: &Path) -> Engine {
    let journal = std::fs::read(folder.join("journal")).unwrap();
    let mut engine = Engine::new(market(), address(COORDINATOR));
    let mut kept = 0;
    for record in records(&journal) {
        if matches!(record.event, Event::Kept { .. }) {
            kept += 1;
        } else {
            engine.apply(&record.event, record.now).unwrap();
        }
    }
    assert_eq!(kept, 2, "each round is archived once");
    engine
}

/// Checks the response of every route of a round against the round itself.
async fn answers_as_ever(shop: &Shop, past: &Past) {
    let round = past.report.scope.round;
    let signer = node(COORDINATOR);
    let headers: Vec<_> = past.updates.iter().map(|update| update.header.clone()).collect();
    let records: Vec<_> = past.records.iter().map(|(_, record)| record.clone()).collect();
    let rows = shop.host.blobs().read(past.shown.unwrap()).unwrap();
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
    let Record { shop, said } = two_rounds(dir.path()).await;
    let (ledger, id) = (shop.ledger.clone(), shop.id);
    shop.stop().await;
    let whole = everything(dir.path());
    let task = &whole.state().tasks[&id];
    assert_eq!(task.past.len(), 2);
    // The same after a restart from the journal.
    let shop = Shop::with(dir.path(), digits_spec(), ledger, work_valuer(), |_| {});
    for past in task.whole.values() {
        assert_eq!(past.records.len(), usize::from(past.report.scope.round == RoundNumber(1)));
        answers_as_ever(&shop, past).await;
    }
    // A repeated upload or record gets the same receipt or verdict.
    let mut again = 0;
    for said in said.iter().filter(|said| ["an update", "a work record"].contains(&said.what)) {
        let (status, answer) = shop.send("POST", &said.path, said.body.clone()).await;
        assert_eq!((status, &answer), (said.status, &said.answer), "{}", said.what);
        again += 1;
    }
    assert_eq!(again, 5);
    for update in &task.whole[&RoundNumber(1)].updates {
        let path = format!("tasks/{id}/updates/offset");
        let state: UploadProgress = shop.post(&path, &update.header).await.unwrap();
        assert_eq!(
            (state.offset, state.bytes),
            (update.header.body.bytes, update.header.body.bytes)
        );
    }
    // An update that was never accepted is rejected as before.
    let other =
        UpdateHeader { rows: 7, ..task.whole[&RoundNumber(1)].updates[0].header.body.clone() };
    let i = (1..=4).find(|i| address(*i) == other.sender).unwrap();
    let refused = shop.upload(&other, &[], i).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::TaskClosed, "{refused}");
    // Claim proofs come from memory and do not need any blob.
    let proof: ClaimProof = shop.get(&format!("tasks/{id}/proof/{}", address(1))).await.unwrap();
    assert_eq!(proof.root, task.whole[&RoundNumber(2)].report.root);
    assert!(merkle::verify(proof.root, address(1), proof.totals, &proof.proof));
    shop.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_archive_blob_is_an_internal_error_and_is_found_by_a_check() {
    let dir = tempfile::tempdir().unwrap();
    let Record { shop, .. } = two_rounds(dir.path()).await;
    let (ledger, id) = (shop.ledger.clone(), shop.id);
    let kept =
        shop.host.read(move |engine, _| engine.kept(id, RoundNumber(1))).await.unwrap().unwrap();
    shop.stop().await;
    let good = check(dir.path(), None, None).unwrap();
    assert!(good.is_good(), "{good:?}");
    std::fs::remove_dir_all(dir.path().join("blobs/packs")).unwrap();
    let found = check(dir.path(), None, None).unwrap();
    let missing = found.parts.iter().find(|part| part.code == "BLOB_MISSING").unwrap();
    assert!(missing.what.contains("blobs are missing"), "{kept}: {missing:?}");
    let shop = Shop::with(dir.path(), digits_spec(), ledger, work_valuer(), |_| {});
    let code = shop.code("GET", &format!("tasks/{id}/rounds/1/report"), Body::empty()).await;
    assert_eq!(code, ErrorCode::Internal);
    // Claim proofs do not depend on it.
    let proof: ClaimProof = shop.get(&format!("tasks/{id}/proof/{}", address(1))).await.unwrap();
    assert!(merkle::verify(proof.root, address(1), proof.totals, &proof.proof));
    shop.stop().await;
}

#[test]
fn a_round_stays_in_memory_for_as_long_as_the_engine_needs_it() {
    let mut world = World::valuing(4);
    let task = world.id;
    let keep = |round| Effect::Keep { task, round: RoundNumber(round) };
    let kept = |round| Event::Kept { task, round: RoundNumber(round), digest: Digest([1; 32]) };
    let mut harmed = world.valued();
    if let Event::Valued { result, .. } = &mut harmed {
        let score = &mut result.valuation.scores[0];
        (score.score_nano, score.excluded) = (-50_000_000, true);
    }
    world.tell(harmed).unwrap();
    world.tell(Event::SettlementPosted { task, round: RoundNumber(1) }).unwrap();
    assert_eq!(world.code(kept(1)), ErrorCode::TooEarly, "the next round builds on it");
    let cohort = world.offer().cohort.clone();
    let asked = || (1..=4).filter(|i| cohort.contains(&address(*i)));
    asked().for_each(|i| drop(world.tell(world.committed(i)).unwrap()));
    asked().for_each(|i| drop(world.tell(world.revealed(i)).unwrap()));
    world.disclose();
    world.tell(world.valued()).unwrap();
    assert_eq!(world.code(kept(1)), ErrorCode::TooEarly, "its settlement is not final");
    let applied = world.tell(Event::SettlementFinal { task, round: RoundNumber(1) }).unwrap();
    assert_eq!(applied.effects, [Effect::Prove { task, round: RoundNumber(1) }]);
    assert_eq!(world.code(kept(1)), ErrorCode::TooEarly, "its debits are not proven");
    let applied = world.tell(Event::DebitsProven { task, round: RoundNumber(1) }).unwrap();
    assert_eq!(applied.effects, [keep(1)]);
    let sequence = world.engine.state().tasks[&task].sequence;
    let applied = world.tell(kept(1)).unwrap();
    assert!(applied.changed.is_empty(), "archiving wakes no long poll");
    assert_eq!(world.engine.state().tasks[&task].sequence, sequence);
    assert!(matches!(world.engine.past(task, RoundNumber(1)), Ok(Found::Kept(Digest([1, ..])))));
    assert_eq!(world.code(kept(2)), ErrorCode::TooEarly);
    assert!(world.engine.report(task, RoundNumber(2)).is_ok());
    assert_eq!(world.engine.final_standings(task).unwrap().round, RoundNumber(1));
    // A cancelled settlement is not known to be final, but may become final after a reorganisation.
    world.tell(Event::SettlementPosted { task, round: RoundNumber(2) }).unwrap();
    world.tell(Event::SettlementCancelled { task, round: RoundNumber(2) }).unwrap();
    assert_eq!(world.code(kept(2)), ErrorCode::TooEarly);
    world.tell(Event::SettlementFinal { task, round: RoundNumber(2) }).unwrap();
    assert_eq!(world.engine.final_standings(task).unwrap().round, RoundNumber(2));
    world.tell(kept(2)).unwrap();
}

/// Bytes of the state after `rounds` rounds of four, each archived as soon as possible.
fn state_after(rounds: u32) -> usize {
    let mut spec = spec();
    spec.rounds.count = 100;
    spec.holdout.rows = 1_000;
    spec.expires = Timestamp(100_000_000);
    let mut world = World::published_with(spec, 4);
    for event in (1..=4).map(|i| world.enrolment(i)).collect::<Vec<_>>() {
        world.tell(event).unwrap();
    }
    let task = world.id;
    for round in (1..=rounds).map(RoundNumber) {
        for i in 1..=4 {
            world.tell(world.committed(i)).unwrap();
        }
        for i in 1..=4 {
            world.tell(world.revealed(i)).unwrap();
        }
        world.disclose();
        world.tell(world.valued()).unwrap();
        world.tell(Event::SettlementPosted { task, round }).unwrap();
        world.tell(Event::SettlementFinal { task, round }).unwrap();
        for effect in world.engine.outstanding() {
            if let Effect::Keep { task, round } = effect {
                let past = &world.engine.state().tasks[&task].whole[&round];
                let digest = blob_digest(&archive::to_bytes(past).unwrap());
                world.tell(Event::Kept { task, round, digest }).unwrap();
            }
        }
    }
    assert!(world.engine.state().tasks[&task].whole.len() <= 1);
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
