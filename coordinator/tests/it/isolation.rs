//! Isolation between parties: missing blobs, silent senders, mass registrations and wrong records
//! of one party do not block the others.

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use axum::body::Body;
use florin_coordinator::{BLOCKING_THREADS_MAX, Valuer, ValuerError};
use florin_engine::{Effect, Event, EventStatus};
use florin_protocol::*;
use florin_store::BlobStore;
use florin_work::ValuationOutput;

use crate::support::*;
use crate::test_coordinator::*;

#[test]
fn a_task_with_another_tasks_holdout_root_gets_no_access_to_its_rows() {
    let mut world = EngineFixture::in_valuing(4);
    let spec = TaskSpec { salt: 77, buyer: address(99), ..spec() };
    let theirs = spec.id();
    world
        .apply(Event::TaskPublished {
            spec: spec.into(),
            model_bytes: MODEL_BYTES,
            update_bytes: MODEL_BYTES,
        })
        .unwrap();
    let digest = world.spec.base_model;
    world.apply(Event::BlobArrived { task: theirs, digest }).unwrap();
    // The rows were uploaded for the first task: the second task waits for its own upload.
    assert_eq!(world.engine.state().tasks[&theirs].phase(), TaskPhase::AwaitingBlobs);
    let view = world.engine.view(theirs, world.now).unwrap().view;
    assert!(view.holdout_missing && view.missing_blobs.is_empty());
    world.apply(Event::CloseRequested { task: theirs }).unwrap();
    assert_eq!(
        world.engine.disclosed_rows(theirs, RoundNumber(1)).unwrap_err().code,
        ErrorCode::NotFound,
        "the closed task never has a round"
    );
    world.engine.disclosed_rows(world.id, RoundNumber(1)).unwrap();
}

fn selected(world: &EngineFixture) -> BTreeSet<u8> {
    (1..=9).filter(|i| world.offer().cohort.contains(&address(*i))).collect()
}

/// Lets the running round time out, so that it is abandoned.
fn abandon_round(world: &mut EngineFixture) {
    let round = world.offer().scope.round;
    while world.engine.reported_round(world.id, round).is_err() {
        world.now = world.engine.next_deadline().unwrap();
        world.apply(Event::Tick).unwrap();
    }
}

#[test]
fn an_unresponsive_participant_is_selected_again_only_after_a_new_enrolment_and_a_round_off() {
    let mut spec = spec();
    spec.rounds.count = 9;
    let mut world = EngineFixture::with_published_spec(spec, 4);
    (1..=4).for_each(|i| drop(world.apply(world.enrol_event(i)).unwrap()));
    // 1 and 2 deliver; 3 commits and never uploads; 4 never responds.
    let play = |world: &mut EngineFixture, commit: &[u8], reveal: &[u8]| {
        let round = world.offer().scope.round;
        commit.iter().for_each(|i| drop(world.apply(world.commit_event(*i)).unwrap()));
        if !matches!(world.engine.state().tasks[&world.id].phase(), TaskPhase::Revealing) {
            world.now = world.engine.next_deadline().unwrap();
            world.apply(Event::Tick).unwrap();
        }
        reveal.iter().for_each(|i| drop(world.apply(world.reveal_event(*i)).unwrap()));
        if world.engine.state().tasks[&world.id].phase() == TaskPhase::Revealing {
            world.now = world.engine.next_deadline().unwrap();
            world.apply(Event::Tick).unwrap();
        }
        world.disclose();
        world.apply(world.valued_event()).unwrap();
        world.apply(Event::SettlementPosted { task: world.id, round }).unwrap();
    };
    play(&mut world, &[1, 2, 3], &[1, 2]);
    assert_eq!(selected(&world), [1, 2].into());
    // A new enrolment is not a repeat for them; for the others it is.
    assert_eq!(world.apply(world.enrol_event(3)).unwrap().status, EventStatus::New);
    assert_eq!(world.apply(world.enrol_event(3)).unwrap().status, EventStatus::Duplicate);
    assert_eq!(world.apply(world.enrol_event(1)).unwrap().status, EventStatus::Duplicate);
    play(&mut world, &[1, 2], &[1, 2]);
    assert_eq!((world.offer().scope.round, selected(&world)), (RoundNumber(3), [1, 2].into()));
    play(&mut world, &[1, 2], &[1, 2]);
    assert_eq!((world.offer().scope.round, selected(&world)), (RoundNumber(4), [1, 2, 3].into()));
}

#[test]
fn no_participant_sits_out_if_there_are_too_few_others() {
    let mut world = EngineFixture::with_open_round(4);
    abandon_round(&mut world);
    // No participant responded, as when the coordinator was offline: two that return form a round.
    world.apply(world.enrol_event(2)).unwrap();
    assert_eq!(world.engine.state().tasks[&world.id].phase(), TaskPhase::Enrolling);
    world.apply(world.enrol_event(3)).unwrap();
    assert_eq!((world.offer().scope.round, selected(&world)), (RoundNumber(2), [2, 3].into()));
}

#[test]
fn an_over_selected_participant_that_was_not_needed_does_not_sit_out() {
    let mut spec = spec();
    spec.rounds.cohort_target = 2;
    spec.rounds.over_selection = 2;
    spec.rounds.enrol_ms = 0;
    let mut world = EngineFixture::with_published_spec(spec, 4);
    (1..=2).for_each(|i| drop(world.apply(world.enrol_event(i)).unwrap()));
    (3..=4).for_each(|i| drop(world.apply(world.enrol_event(i)).unwrap()));
    (1..=2).for_each(|i| drop(world.apply(world.commit_event(i)).unwrap()));
    (1..=2).for_each(|i| drop(world.apply(world.reveal_event(i)).unwrap()));
    world.disclose();
    world.apply(world.valued_event()).unwrap();
    world.apply(Event::SettlementPosted { task: world.id, round: RoundNumber(1) }).unwrap();
    assert_eq!(selected(&world), [1, 2, 3, 4].into());
    // The target is reached: commits close before the others could commit.
    (3..=4).for_each(|i| drop(world.apply(world.commit_event(i)).unwrap()));
    assert_eq!(world.engine.state().tasks[&world.id].phase(), TaskPhase::Revealing);
    assert!(world.engine.state().tasks[&world.id].sitting_out.is_empty());
}

const OTHER: u8 = 204;

/// A round of four updates whose order two providers have requested.
fn two_providers() -> EngineFixture {
    let mut world = EngineFixture::in_revealing(4);
    let (task, other) = (world.id, address(OTHER));
    world.apply(Event::Registered(registration(OTHER, Role::Provider))).unwrap();
    world.apply(Event::ProviderReady { task, provider: address(PROVIDER) }).unwrap();
    (1..=4).for_each(|i| drop(world.apply(world.reveal_event(i)).unwrap()));
    world.disclose();
    for provider in [address(PROVIDER), other] {
        let ready = Event::ProviderReady { task, provider };
        assert_eq!(world.apply(ready.clone()).unwrap().status, EventStatus::New);
        assert_eq!(world.apply(ready).unwrap().status, EventStatus::Duplicate);
    }
    world
}

fn wrong_record(world: &EngineFixture) -> Signed<WorkRecord> {
    let mut record = world.record().body;
    record.result.valuation.total_nano += 1_000;
    node(PROVIDER).sign(record)
}

fn others_record(world: &EngineFixture) -> Signed<WorkRecord> {
    node(OTHER).sign(WorkRecord { provider: address(OTHER), ..world.record().body })
}

#[test]
fn a_wrong_record_does_not_end_the_order_for_the_others() {
    let mut world = two_providers();
    let (task, order) = (world.id, world.order().digest());
    let record = wrong_record(&world);
    let wrong = record.body.digest();
    let applied = world.apply(Event::WorkRecordReceived { record, agrees: None }).unwrap();
    assert_eq!(applied.effects, [Effect::ValueRound { task, round: RoundNumber(1) }]);
    let Event::RoundValued { round, result, .. } = world.valued_event() else { unreachable!() };
    let ours = Event::RoundValued { task, round, result, paid: None, wrong_records: vec![wrong] };
    world.apply(ours.clone()).unwrap();
    // The provider gets the verdict at once; the round waits for the other provider, and is not
    // computed again.
    let verdict = world.engine.record_outcome(order, wrong).unwrap();
    assert_eq!(verdict.unwrap_err().code, ErrorCode::WorkResultMismatch);
    assert!(world.engine.pending_effects().is_empty());
    assert_eq!(world.apply(ours).unwrap().status, EventStatus::Duplicate);
    let record = others_record(&world);
    let right = record.body.digest();
    let unjudged = Event::WorkRecordReceived { record: record.clone(), agrees: None };
    assert_eq!(world.rejection_code(unjudged), ErrorCode::Internal);
    world.apply(Event::WorkRecordReceived { record, agrees: Some(true) }).unwrap();
    assert_eq!(world.engine.record_outcome(order, right), Some(Ok(5)));
    let report = world.engine.report(task, RoundNumber(1)).unwrap();
    assert_eq!(report.infrastructure[0].provider, address(OTHER));
}

#[test]
fn an_order_ends_when_every_provider_has_answered_or_its_deadline_has_passed() {
    for late in [false, true] {
        let mut world = two_providers();
        let (task, due) = (world.id, world.order().due);
        let record = wrong_record(&world);
        let wrong = vec![record.body.digest()];
        world.apply(Event::WorkRecordReceived { record, agrees: None }).unwrap();
        let Event::RoundValued { round, result, .. } = world.valued_event() else { unreachable!() };
        world
            .apply(Event::RoundValued { task, round, result, paid: None, wrong_records: wrong })
            .unwrap();
        assert!(world.engine.report(task, RoundNumber(1)).is_err());
        if late {
            let record = others_record(&world);
            world.now = due.saturating_add_ms(1);
            let refused = Event::WorkRecordReceived { record, agrees: Some(true) };
            assert_eq!(world.rejection_code(refused), ErrorCode::DeadlinePassed);
            assert_eq!(world.engine.next_deadline(), Some(world.now));
            world.apply(Event::Tick).unwrap();
        } else {
            let record = others_record(&world);
            world.apply(Event::WorkRecordReceived { record, agrees: Some(false) }).unwrap();
        }
        assert!(world.engine.report(task, RoundNumber(1)).unwrap().infrastructure.is_empty());
        // The engine does not wait again for a provider that did not answer until it requests work.
        let known = &world.engine.state().tasks[&task].providers;
        assert_eq!(known.contains(&address(OTHER)), !late);
        assert!(known.contains(&address(PROVIDER)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wallet_without_a_balance_or_stake_is_not_registered() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open(dir.path(), digits_spec());
    shop.ledger
        .state
        .lock()
        .unwrap()
        .accounts_without_balance
        .extend([address(1), address(PROVIDER)]);
    let body = |n, role| serde_json::to_vec(&registration(n, role)).unwrap();
    let poor = body(1, Role::Participant);
    assert_eq!(shop.rejection_code("POST", "registrations", poor).await, ErrorCode::NotFunded);
    // A wallet whose whole balance is staked is registered too.
    let () = shop.post("registrations", &registration(PROVIDER, Role::Provider)).await.unwrap();
    shop.ledger.state.lock().unwrap().accounts_without_balance.clear();
    let () = shop.post("registrations", &registration(1, Role::Participant)).await.unwrap();
    shop.ledger.state.lock().unwrap().accounts_without_balance.insert(address(1));
    let () = shop.post("registrations", &registration(1, Role::Participant)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_above_the_size_limits_is_not_published() {
    let dir = tempfile::tempdir().unwrap();
    let mut large = digits_spec();
    large.model = ModelArchitecture::Mlp { inputs: 64, hidden: vec![60_000, 1_000], classes: 10 };
    large.rounds.cohort_target = 64;
    let mut rows = digits_spec();
    rows.holdout.rows = 10_000_000;
    for spec in [large, rows] {
        let shop = TestCoordinator::open(&dir.path().join(spec.id().short()), spec);
        let body = serde_json::to_vec(&shop.spec).unwrap();
        assert_eq!(shop.rejection_code("POST", "tasks", body).await, ErrorCode::InvalidTask);
    }
    let small = TestCoordinator::open_with(&dir.path().join("small"), digits_spec(), |c| {
        c.round_mib_max = 1
    });
    let _: TaskView = small.post("tasks", &small.spec).await.unwrap();
}

/// A body that announces its length and never arrives.
struct StalledBody(u64);

impl axum::body::HttpBody for StalledBody {
    type Data = axum::body::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Self::Data>, Self::Error>>> {
        std::task::Poll::Pending
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.0)
    }
}

/// Publishes a second task that waits for a holdout of 100,000 rows; returns the holdout's path and
/// length.
async fn await_large_holdout(shop: &TestCoordinator) -> (String, u64) {
    let mut second = digits_spec();
    second.salt = 2;
    second.holdout = Holdout { root: Digest([3; 32]), rows: 100_000, rows_per_round: 100 };
    shop.ledger.open(&second);
    let _: TaskView = shop.post("tasks", &second).await.unwrap();
    (format!("tasks/{}/holdout", second.id()), 32 + 100_000 * (64 + 1) * 4)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_uploads_do_not_block_updates() {
    let dir = tempfile::tempdir().unwrap();
    let shop =
        TestCoordinator::open_with(dir.path(), digits_spec(), |config| config.in_flight_mib = 1);
    let shop = std::sync::Arc::new(shop);
    shop.publish().await;
    let (path, bytes) = await_large_holdout(&shop).await;
    let silent: Vec<_> = (0..70)
        .map(|_| {
            let (shop, path) = (shop.clone(), path.clone());
            tokio::spawn(
                async move { shop.send("PUT", &path, Body::new(StalledBody(bytes))).await.0 },
            )
        })
        .collect();
    while silent.iter().filter(|put| put.is_finished()).count() < 6 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for i in 1..=4 {
        shop.enrol(i).await.unwrap();
    }
    let round = shop.play_round();
    let receipts = tokio::time::timeout(Duration::from_secs(15), round).await;
    assert_eq!(receipts.expect("silent uploads block the updates").len(), 4);
    silent.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_of_the_wrong_length_or_without_throughput_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open_with(dir.path(), digits_spec(), |config| config.body_ms = 300);
    shop.publish().await;
    let (path, bytes) = await_large_holdout(&shop).await;
    for (length, code) in [(bytes + 1, ErrorCode::TooLarge), (bytes - 1, ErrorCode::Truncated)] {
        assert_eq!(shop.rejection_code("PUT", &path, Body::new(StalledBody(length))).await, code);
    }
    assert_eq!(shop.rejection_code("PUT", &path, vec![0; 100]).await, ErrorCode::Truncated);
    // By its size alone the body would have almost seven minutes.
    let cut = shop.rejection_code("PUT", &path, Body::new(StalledBody(bytes)));
    let cut = tokio::time::timeout(Duration::from_secs(10), cut).await;
    assert_eq!(cut.expect("a silent body is not cut off"), ErrorCode::Truncated);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_content_length_is_rejected_without_waiting_for_the_body() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open(dir.path(), digits_spec());
    let _: TaskView = shop.post("tasks", &shop.spec).await.unwrap();
    let path = format!("tasks/{}/holdout", shop.id);
    let length = holdout().len() as u64;
    assert_eq!(length, 32 + 300 * (64 + 1) * 4);
    let longer = shop.rejection_code("PUT", &path, Body::new(StalledBody(length + 1)));
    let code = tokio::time::timeout(Duration::from_secs(10), longer).await;
    assert_eq!(code.expect("the server waited for the body"), ErrorCode::TooLarge);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_provider_is_paid_after_the_firsts_wrong_record() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open(dir.path(), digits_spec());
    shop.publish().await;
    let () = shop.post("registrations", &registration(OTHER, Role::Provider)).await.unwrap();
    let stake = shop.ledger.state.lock().unwrap().stakes[&address(PROVIDER)];
    shop.ledger.state.lock().unwrap().stakes.insert(address(OTHER), stake);
    let (task, expires) = (shop.id, Timestamp(1_000_000));
    let query = |n| {
        let provider = address(n);
        node(n).sign(WorkRequest { market: market(), task, provider, expires })
    };
    let body = serde_json::to_vec(&query(PROVIDER)).unwrap();
    let _ = shop.send("POST", "work/next", body).await;
    for i in 1..=4 {
        shop.enrol(i).await.unwrap();
    }
    shop.play_round().await;
    let order: Signed<WorkOrder> =
        shop.post("work/next?wait_ms=5000", &query(PROVIDER)).await.unwrap();
    let same: Signed<WorkOrder> = shop.post("work/next", &query(OTHER)).await.unwrap();
    assert_eq!(order, same);
    let blobs = shop.host.blobs();
    let order = order.body;
    let updates: Vec<_> = order.entries.iter().map(|e| blobs.read(e.update).unwrap()).collect();
    let rows = blobs.read(order.disclosed_rows).unwrap();
    let result = value_order(&shop.spec, &order, (&rows, &updates));
    let right =
        WorkRecord { market: market(), order: order.digest(), provider: address(OTHER), result };
    let mut wrong = WorkRecord { provider: address(PROVIDER), ..right.clone() };
    wrong.result.metrics.correct_after += 100;
    let wrong = node(PROVIDER).sign(wrong);
    let refused = shop.post::<WorkAcceptance>("work", &wrong).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::WorkResultMismatch);
    assert_eq!(shop.view().await.reported, 0);
    let verdict: WorkAcceptance = shop.post("work", &node(OTHER).sign(right)).await.unwrap();
    assert_eq!(verdict.units, shop_report(&shop).await.infrastructure[0].units);
    assert_eq!(shop_report(&shop).await.infrastructure[0].provider, address(OTHER));
}

async fn shop_report(shop: &TestCoordinator) -> Report {
    let path = format!("tasks/{}/rounds/1/report", shop.id);
    shop.get::<Signed<Report>>(&path).await.unwrap().body
}

/// A valuer that panics.
struct PanickingValuer;

impl Valuer for PanickingValuer {
    fn value_and_aggregate(
        &mut self,
        _: &WorkOrder,
        _: &[u32],
        _: &TaskSpec,
        _: &BlobStore,
    ) -> Result<ValuationOutput, ValuerError> {
        panic!("planted: the valuation panics")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_the_valuer_abandons_the_round_and_the_next_one_starts() {
    let dir = tempfile::tempdir().unwrap();
    let spec = digits_spec();
    let shop = TestCoordinator::with(
        dir.path(),
        spec.clone(),
        funded(&spec),
        Box::new(PanickingValuer),
        |_| {},
    );
    shop.publish().await;
    for i in 1..=4 {
        shop.enrol(i).await.unwrap();
    }
    shop.play_round().await;
    let mut view = shop.view().await;
    while view.reported == 0 {
        let path = format!("tasks/{}?after={}&wait_ms=5000", shop.id, view.sequence);
        view = shop.get(&path).await.unwrap();
    }
    let report = shop_report(&shop).await;
    assert_eq!(report.outcome, RoundOutcome::Abandoned(AbandonReason::ValuationFailed));
    assert_eq!(shop.wait_for_phase(TaskPhase::Committing).await.round, RoundNumber(2));
    shop.stop().await;
}

#[test]
fn an_unresponsive_ledger_does_not_block_blob_downloads() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let shop = Arc::new(TestCoordinator::open(dir.path(), digits_spec()));
        shop.publish().await;
        let ((hung, hangs), (answer, answers)) = (mpsc::channel(), mpsc::channel());
        let ledger = Arc::clone(&shop.ledger);
        let stuck = std::thread::spawn(move || {
            let _books = ledger.state.lock().unwrap();
            hung.send(()).unwrap();
            answers.recv().unwrap();
        });
        hangs.recv().unwrap();
        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..3 * BLOCKING_THREADS_MAX {
            let shop = Arc::clone(&shop);
            asking.spawn(async move { shop.enrol(1).await });
        }
        // By now the requests have reached the ledger, as far as its permits allow.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let path = format!("blobs/{}", shop.spec.base_model);
        let blob = shop.send("GET", &path, Body::empty());
        let came = tokio::time::timeout(Duration::from_secs(10), blob).await;
        answer.send(()).unwrap();
        stuck.join().unwrap();
        while let Some(enrolled) = asking.join_next().await {
            enrolled.unwrap().unwrap();
        }
        assert_eq!(came.expect("the blob waits for the ledger").0, axum::http::StatusCode::OK);
        Arc::into_inner(shop).unwrap().stop().await;
    });
}
