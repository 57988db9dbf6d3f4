//! Isolation between parties: missing blobs, silent senders, mass registrations and wrong records
//! of one party do not block the others.

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use axum::body::Body;
use florin_coordinator::{Valuer, ValuerError, WAITING_THREADS_MAX};
use florin_engine::{Effect, Event, REGISTRATION_MS_MAX, REGISTRATIONS_MAX, TASKS_MAX, Verdict};
use florin_protocol::*;
use florin_store::Blobs;
use florin_work::ValuationOutput;

use crate::shop::*;
use crate::support::*;

#[test]
fn a_task_with_another_tasks_holdout_root_gets_no_access_to_its_rows() {
    let mut world = World::valuing(4);
    let spec = TaskSpec { salt: 77, buyer: address(99), ..spec() };
    let theirs = spec.id();
    world
        .tell(Event::Published {
            spec: spec.into(),
            model_bytes: MODEL_BYTES,
            update_bytes: MODEL_BYTES,
        })
        .unwrap();
    let digest = world.spec.base_model;
    world.tell(Event::BlobArrived { task: theirs, digest }).unwrap();
    // The rows were uploaded for the first task: the second task waits for its own upload.
    assert_eq!(world.engine.state().tasks[&theirs].phase(), TaskPhase::AwaitingBlobs);
    let (view, _) = world.engine.view(theirs, world.now).unwrap();
    assert!(view.holdout_missing && view.missing_blobs.is_empty());
    world.tell(Event::CloseRequested { task: theirs }).unwrap();
    assert_eq!(
        world.engine.shown(theirs, RoundNumber(1)).unwrap_err().code,
        ErrorCode::NotYetPublic
    );
    world.engine.shown(world.id, RoundNumber(1)).unwrap();
}

fn asked(world: &World) -> BTreeSet<u8> {
    (1..=9).filter(|i| world.offer().cohort.contains(&address(*i))).collect()
}

/// Lets the running round time out, so that it is abandoned.
fn let_it_fail(world: &mut World) {
    let round = world.offer().scope.round;
    while world.engine.past(world.id, round).is_err() {
        world.now = world.engine.next_deadline().unwrap();
        world.tell(Event::Tick).unwrap();
    }
}

#[test]
fn an_unresponsive_participant_is_selected_again_only_after_a_new_enrolment_and_a_round_off() {
    let mut spec = spec();
    spec.rounds.count = 9;
    let mut world = World::published_with(spec, 4);
    (1..=4).for_each(|i| drop(world.tell(world.enrolment(i)).unwrap()));
    // 1 and 2 deliver; 3 commits and never uploads; 4 never responds.
    let play = |world: &mut World, commit: &[u8], reveal: &[u8]| {
        let round = world.offer().scope.round;
        commit.iter().for_each(|i| drop(world.tell(world.committed(*i)).unwrap()));
        if !matches!(world.engine.state().tasks[&world.id].phase(), TaskPhase::Revealing) {
            world.now = world.engine.next_deadline().unwrap();
            world.tell(Event::Tick).unwrap();
        }
        reveal.iter().for_each(|i| drop(world.tell(world.revealed(*i)).unwrap()));
        if world.engine.state().tasks[&world.id].phase() == TaskPhase::Revealing {
            world.now = world.engine.next_deadline().unwrap();
            world.tell(Event::Tick).unwrap();
        }
        world.disclose();
        world.tell(world.valued()).unwrap();
        world.tell(Event::SettlementPosted { task: world.id, round }).unwrap();
    };
    play(&mut world, &[1, 2, 3], &[1, 2]);
    assert_eq!(asked(&world), [1, 2].into());
    // A new enrolment is not a repeat for them; for the others it is.
    assert_eq!(world.tell(world.enrolment(3)).unwrap().verdict, Verdict::New);
    assert_eq!(world.tell(world.enrolment(3)).unwrap().verdict, Verdict::Repeat);
    assert_eq!(world.tell(world.enrolment(1)).unwrap().verdict, Verdict::Repeat);
    play(&mut world, &[1, 2], &[1, 2]);
    assert_eq!((world.offer().scope.round, asked(&world)), (RoundNumber(3), [1, 2].into()));
    play(&mut world, &[1, 2], &[1, 2]);
    assert_eq!((world.offer().scope.round, asked(&world)), (RoundNumber(4), [1, 2, 3].into()));
}

#[test]
fn no_participant_sits_out_if_there_are_too_few_others() {
    let mut world = World::opened(4);
    let_it_fail(&mut world);
    // No participant responded, as when the coordinator was offline: two that return form a round.
    world.tell(world.enrolment(2)).unwrap();
    assert_eq!(world.engine.state().tasks[&world.id].phase(), TaskPhase::Enrolling);
    world.tell(world.enrolment(3)).unwrap();
    assert_eq!((world.offer().scope.round, asked(&world)), (RoundNumber(2), [2, 3].into()));
}

#[test]
fn an_over_selected_participant_that_was_not_needed_does_not_sit_out() {
    let mut spec = spec();
    spec.rounds.cohort_target = 2;
    spec.rounds.over_selection = 2;
    spec.rounds.enrol_ms = 0;
    let mut world = World::published_with(spec, 4);
    (1..=2).for_each(|i| drop(world.tell(world.enrolment(i)).unwrap()));
    (3..=4).for_each(|i| drop(world.tell(world.enrolment(i)).unwrap()));
    (1..=2).for_each(|i| drop(world.tell(world.committed(i)).unwrap()));
    (1..=2).for_each(|i| drop(world.tell(world.revealed(i)).unwrap()));
    world.disclose();
    world.tell(world.valued()).unwrap();
    world.tell(Event::SettlementPosted { task: world.id, round: RoundNumber(1) }).unwrap();
    assert_eq!(asked(&world), [1, 2, 3, 4].into());
    // The target is reached: commits close before the others could commit.
    (3..=4).for_each(|i| drop(world.tell(world.committed(i)).unwrap()));
    assert_eq!(world.engine.state().tasks[&world.id].phase(), TaskPhase::Revealing);
    assert!(world.engine.state().tasks[&world.id].sitting_out.is_empty());
}

const OTHER: u8 = 204;

/// A round of four updates whose order two providers have requested.
fn two_providers() -> World {
    let mut world = World::revealing(4);
    let (task, other) = (world.id, address(OTHER));
    world.tell(Event::Registered(registration(OTHER, Role::Provider))).unwrap();
    world.tell(Event::ProviderReady { task, provider: address(PROVIDER) }).unwrap();
    (1..=4).for_each(|i| drop(world.tell(world.revealed(i)).unwrap()));
    world.disclose();
    for provider in [address(PROVIDER), other] {
        let ready = Event::ProviderReady { task, provider };
        assert_eq!(world.tell(ready.clone()).unwrap().verdict, Verdict::New);
        assert_eq!(world.tell(ready).unwrap().verdict, Verdict::Repeat);
    }
    world
}

fn wrong_record(world: &World) -> Signed<WorkRecord> {
    let mut record = world.record().body;
    record.result.valuation.total_nano += 1_000;
    node(PROVIDER).sign(record)
}

fn others_record(world: &World) -> Signed<WorkRecord> {
    node(OTHER).sign(WorkRecord { provider: address(OTHER), ..world.record().body })
}

#[test]
fn a_wrong_record_does_not_end_the_order_for_the_others() {
    let mut world = two_providers();
    let (task, order) = (world.id, world.order().digest());
    let record = wrong_record(&world);
    let wrong = record.body.digest();
    let applied = world.tell(Event::WorkRecorded { record, agrees: None }).unwrap();
    assert_eq!(applied.effects, [Effect::Value { task, round: RoundNumber(1) }]);
    let Event::Valued { round, result, .. } = world.valued() else { unreachable!() };
    let ours = Event::Valued { task, round, result, paid: None, wrong: vec![wrong] };
    world.tell(ours.clone()).unwrap();
    // The provider gets the verdict at once; the round waits for the other provider, and is not
    // computed again.
    let verdict = world.engine.work_verdict(order, wrong).unwrap();
    assert_eq!(verdict.unwrap_err().code, ErrorCode::WorkResultMismatch);
    assert!(world.engine.outstanding().is_empty());
    assert_eq!(world.tell(ours).unwrap().verdict, Verdict::Repeat);
    let record = others_record(&world);
    let right = record.body.digest();
    let unjudged = Event::WorkRecorded { record: record.clone(), agrees: None };
    assert_eq!(world.code(unjudged), ErrorCode::Internal);
    world.tell(Event::WorkRecorded { record, agrees: Some(true) }).unwrap();
    assert_eq!(world.engine.work_verdict(order, right), Some(Ok(5)));
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
        world.tell(Event::WorkRecorded { record, agrees: None }).unwrap();
        let Event::Valued { round, result, .. } = world.valued() else { unreachable!() };
        world.tell(Event::Valued { task, round, result, paid: None, wrong }).unwrap();
        assert!(world.engine.report(task, RoundNumber(1)).is_err());
        if late {
            let record = others_record(&world);
            world.now = due.saturating_add_ms(1);
            let refused = Event::WorkRecorded { record, agrees: Some(true) };
            assert_eq!(world.code(refused), ErrorCode::DeadlinePassed);
            assert_eq!(world.engine.next_deadline(), Some(world.now));
            world.tell(Event::Tick).unwrap();
        } else {
            let record = others_record(&world);
            world.tell(Event::WorkRecorded { record, agrees: Some(false) }).unwrap();
        }
        assert!(world.engine.report(task, RoundNumber(1)).unwrap().infrastructure.is_empty());
        // The engine does not wait again for a provider that did not answer until it requests work.
        let known = &world.engine.state().tasks[&task].providers;
        assert_eq!(known.contains(&address(OTHER)), !late);
        assert!(known.contains(&address(PROVIDER)));
    }
}

#[test]
fn a_registration_is_bound_to_its_node_key_and_renewable_only_after_half_its_lifetime() {
    let mut world = World::published(1);
    let sign = |seed, expires| {
        let node = node(seed);
        let wallet = Wallet::number(1);
        let said =
            Registration::sign(market(), &wallet, &node, Role::Participant, Timestamp(expires));
        Event::Registered(said.unwrap())
    };
    assert_eq!(world.code(sign(7, 1_000_001)), ErrorCode::ConflictingMessage);
    assert_eq!(world.code(sign(1, 10)), ErrorCode::DeadlinePassed);
    assert_eq!(world.code(sign(1, 1_001 + REGISTRATION_MS_MAX)), ErrorCode::LimitReached);
    assert_eq!(world.tell(sign(1, 2_000_000)).unwrap().verdict, Verdict::Repeat);
    assert_eq!(world.tell(sign(1, 999_999)).unwrap().verdict, Verdict::Repeat);
    world.now = Timestamp(500_501);
    assert_eq!(world.tell(sign(1, 2_000_000)).unwrap().verdict, Verdict::New);
    assert_eq!(world.tell(sign(1, 2_000_001)).unwrap().verdict, Verdict::Repeat);
    world.now = Timestamp(3_000_000);
    assert_eq!(world.code(sign(7, 4_000_000)), ErrorCode::ConflictingMessage);
    assert_eq!(world.engine.registration(address(1), None).unwrap().node_key, node(1).key());
}

#[test]
fn expired_registrations_are_evicted_unless_a_task_uses_them() {
    let mut world = World::published(1);
    world.tell(world.enrolment(1)).unwrap();
    let said = registration(2, Role::Participant);
    let mut wallet = |n: u32, expires: u64| {
        let mut bytes = [0xaa; 20];
        bytes[..4].copy_from_slice(&n.to_le_bytes());
        let said =
            Registration { wallet: Address(bytes), expires: Timestamp(expires), ..said.clone() };
        world.engine.apply(&Event::Registered(said), world.now).map(|applied| applied.verdict)
    };
    let room = u32::try_from(REGISTRATIONS_MAX).unwrap() - 2;
    for n in 0..room {
        wallet(n, 2_000_000).unwrap();
    }
    assert_eq!(wallet(room, 2_000_000).unwrap_err().code, ErrorCode::LimitReached);
    world.now = Timestamp(1_500_000);
    // Both the enrolled participant's and the provider's have expired; only the provider's is
    // evicted.
    let late = Registration { wallet: address(99), expires: Timestamp(3_000_000), ..said };
    world.tell(Event::Registered(late)).unwrap();
    world.engine.registration(address(1), None).unwrap();
    world.engine.registration(address(PROVIDER), None).unwrap_err();
}

#[test]
fn finished_tasks_do_not_count_against_the_limit() {
    let mut world = World::new(spec());
    let publish = |world: &mut World, salt: usize| {
        let spec = TaskSpec { salt: salt as u64, ..spec() };
        let id = spec.id();
        let event = Event::Published {
            spec: spec.into(),
            model_bytes: MODEL_BYTES,
            update_bytes: MODEL_BYTES,
        };
        world.engine.apply(&event, world.now).map(|_| id).map_err(|refused| refused.code)
    };
    let first = publish(&mut world, 0).unwrap();
    for salt in 1..TASKS_MAX {
        publish(&mut world, salt).unwrap();
    }
    assert_eq!(publish(&mut world, TASKS_MAX), Err(ErrorCode::LimitReached));
    let closed = Event::Closed { task: first, refund: Amount::ZERO };
    world.engine.apply(&closed, world.now).unwrap();
    publish(&mut world, TASKS_MAX).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wallet_without_a_balance_or_stake_is_not_registered() {
    let dir = tempfile::tempdir().unwrap();
    let shop = Shop::open(dir.path(), digits_spec());
    shop.ledger.books.lock().unwrap().penniless.extend([address(1), address(PROVIDER)]);
    let body = |n, role| serde_json::to_vec(&registration(n, role)).unwrap();
    let poor = body(1, Role::Participant);
    assert_eq!(shop.code("POST", "registrations", poor).await, ErrorCode::NotFunded);
    // A wallet whose whole balance is staked is registered too.
    let () = shop.post("registrations", &registration(PROVIDER, Role::Provider)).await.unwrap();
    shop.ledger.books.lock().unwrap().penniless.clear();
    let () = shop.post("registrations", &registration(1, Role::Participant)).await.unwrap();
    shop.ledger.books.lock().unwrap().penniless.insert(address(1));
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
        let shop = Shop::open(&dir.path().join(spec.id().short()), spec);
        let body = serde_json::to_vec(&shop.spec).unwrap();
        assert_eq!(shop.code("POST", "tasks", body).await, ErrorCode::InvalidTask);
    }
    let small = Shop::open_with(&dir.path().join("small"), digits_spec(), |c| c.round_mib_max = 1);
    let _: TaskView = small.post("tasks", &small.spec).await.unwrap();
}

/// A body that announces its length and never arrives.
struct Silent(u64);

impl axum::body::HttpBody for Silent {
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
async fn await_large_holdout(shop: &Shop) -> (String, u64) {
    let mut second = digits_spec();
    second.salt = 2;
    second.holdout = Holdout { root: Digest([3; 32]), rows: 100_000, per_round: 100 };
    shop.ledger.open(&second);
    let _: TaskView = shop.post("tasks", &second).await.unwrap();
    (format!("tasks/{}/holdout", second.id()), 32 + 100_000 * (64 + 1) * 4)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_uploads_do_not_block_updates() {
    let dir = tempfile::tempdir().unwrap();
    let shop = Shop::open_with(dir.path(), digits_spec(), |config| config.in_flight_mib = 1);
    let shop = std::sync::Arc::new(shop);
    shop.publish().await;
    let (path, bytes) = await_large_holdout(&shop).await;
    let silent: Vec<_> = (0..70)
        .map(|_| {
            let (shop, path) = (shop.clone(), path.clone());
            tokio::spawn(async move { shop.send("PUT", &path, Body::new(Silent(bytes))).await.0 })
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
    let shop = Shop::open_with(dir.path(), digits_spec(), |config| config.body_ms = 300);
    shop.publish().await;
    let (path, bytes) = await_large_holdout(&shop).await;
    for (length, code) in [(bytes + 1, ErrorCode::TooLarge), (bytes - 1, ErrorCode::Truncated)] {
        assert_eq!(shop.code("PUT", &path, Body::new(Silent(length))).await, code);
    }
    assert_eq!(shop.code("PUT", &path, vec![0; 100]).await, ErrorCode::Truncated);
    // By its size alone the body would have almost seven minutes.
    let cut = shop.code("PUT", &path, Body::new(Silent(bytes)));
    let cut = tokio::time::timeout(Duration::from_secs(10), cut).await;
    assert_eq!(cut.expect("a silent body is not cut off"), ErrorCode::Truncated);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_content_length_is_rejected_without_waiting_for_the_body() {
    let dir = tempfile::tempdir().unwrap();
    let shop = Shop::open(dir.path(), digits_spec());
    let _: TaskView = shop.post("tasks", &shop.spec).await.unwrap();
    let path = format!("tasks/{}/holdout", shop.id);
    let length = holdout().len() as u64;
    assert_eq!(length, 32 + 300 * (64 + 1) * 4);
    let longer = shop.code("PUT", &path, Body::new(Silent(length + 1)));
    let code = tokio::time::timeout(Duration::from_secs(10), longer).await;
    assert_eq!(code.expect("the server waited for the body"), ErrorCode::TooLarge);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_provider_is_paid_after_the_firsts_wrong_record() {
    let dir = tempfile::tempdir().unwrap();
    let shop = Shop::open(dir.path(), digits_spec());
    shop.publish().await;
    let () = shop.post("registrations", &registration(OTHER, Role::Provider)).await.unwrap();
    let stake = shop.ledger.books.lock().unwrap().stakes[&address(PROVIDER)];
    shop.ledger.books.lock().unwrap().stakes.insert(address(OTHER), stake);
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
    let inputs = florin_work::ValuationInputs {
        spec: &shop.spec,
        base: base_model(),
        row_indices: &drawn(&shop.spec, &order, &[]),
        disclosed_rows: &blobs.read(order.disclosed_rows).unwrap(),
        entries: &order.entries,
        updates: &updates,
        previous_models: &florin_work::NO_BLOBS,
        earlier_updates: florin_work::EarlierUpdateBlobs::NONE,
        scratch_space: &florin_learning::mapped::UNLIMITED_MEMORY,
    };
    let mut engine = florin_learning::engine(florin_learning::EngineKind::Reference, 1).unwrap();
    let result = florin_work::value_and_aggregate(&inputs, engine.as_mut()).unwrap().result;
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

async fn shop_report(shop: &Shop) -> Report {
    let path = format!("tasks/{}/rounds/1/report", shop.id);
    shop.get::<Signed<Report>>(&path).await.unwrap().body
}

/// A valuer that panics.
struct Panics;

impl Valuer for Panics {
    fn carry_out(
        &mut self,
        _: &WorkOrder,
        _: &[u32],
        _: &TaskSpec,
        _: &Blobs,
    ) -> Result<ValuationOutput, ValuerError> {
        panic!("planted: the valuation panics")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_the_valuer_abandons_the_round_and_the_next_one_starts() {
    let dir = tempfile::tempdir().unwrap();
    let spec = digits_spec();
    let shop = Shop::with(dir.path(), spec.clone(), funded(&spec), Box::new(Panics), |_| {});
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
    assert_eq!(shop.until(TaskPhase::Committing).await.round, RoundNumber(2));
    shop.stop().await;
}

#[test]
fn an_unresponsive_ledger_does_not_block_blob_downloads() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(WAITING_THREADS_MAX)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let shop = Arc::new(Shop::open(dir.path(), digits_spec()));
        shop.publish().await;
        let ((hung, hangs), (answer, answers)) = (mpsc::channel(), mpsc::channel());
        let ledger = Arc::clone(&shop.ledger);
        let stuck = std::thread::spawn(move || {
            let _books = ledger.books.lock().unwrap();
            hung.send(()).unwrap();
            answers.recv().unwrap();
        });
        hangs.recv().unwrap();
        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..3 * WAITING_THREADS_MAX {
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
