//! The limits on open tasks: the deadline of a task's blobs, the limits of one buyer, and the tasks
//! that give way in a full market.

use std::sync::OnceLock;

use florin_engine::state::TaskStage;
use florin_engine::{
    Applied, BEGUN_TASK_WEIGHT, BLOB_BYTES_PER_SECOND_MIN, BLOBS_MS, Effect, Engine, Event,
    EventStatus, INCOMPLETE_TASKS_PER_BUYER_MAX, TASKS_MAX, TASKS_PER_BUYER_MAX, holdout_bytes,
};
use florin_protocol::*;

use crate::support::*;
use crate::test_coordinator::*;

/// A market without tasks.
fn empty() -> EngineFixture {
    EngineFixture::new(lasting())
}

/// The fixture's task with an expiry that no test reaches.
fn lasting() -> TaskSpec {
    TaskSpec { expires: Timestamp(u64::MAX), ..spec() }
}

/// A task of a made-up buyer that locks this many FLN.
fn task_of(buyer: u32, salt: u64, locked: &str) -> TaskSpec {
    let mut bytes = [0xbb; 20];
    bytes[..4].copy_from_slice(&buyer.to_be_bytes());
    static SPEC: OnceLock<TaskSpec> = OnceLock::new();
    let mut spec = SPEC.get_or_init(lasting).clone();
    (spec.buyer, spec.salt) = (Address(bytes), salt);
    (spec.budget.data, spec.budget.infrastructure) = (fln(locked), Amount::ZERO);
    spec
}

fn publish_event(spec: &TaskSpec) -> Event {
    let spec = spec.clone().into();
    Event::TaskPublished { spec, model_bytes: MODEL_BYTES, update_bytes: MODEL_BYTES }
}

fn publish(world: &mut EngineFixture, spec: &TaskSpec) -> Result<Applied, ErrorCode> {
    world.apply(publish_event(spec)).map_err(|rejection| rejection.code)
}

/// Delivers a task's blobs.
fn complete(world: &mut EngineFixture, task: TaskId) {
    let digest = world.spec.base_model;
    world.apply(Event::BlobArrived { task, digest }).unwrap();
    world.apply(Event::HoldoutArrived { task, digest: blob_digest(&all_rows().0) }).unwrap();
}

fn end(world: &EngineFixture, task: TaskId) -> Option<TaskEnd> {
    world.engine.state().tasks[&task].end
}

#[test]
fn a_task_whose_blobs_do_not_come_in_time_is_closed_and_its_buyer_publishes_again() {
    let mut world = empty();
    let spec = world.spec.clone();
    publish(&mut world, &spec).unwrap();
    let (task, digest) = (spec.id(), spec.base_model);
    let bytes = MODEL_BYTES + holdout_bytes(&spec);
    assert_eq!(holdout_bytes(&spec), 32 + 100 * 65 * 4);
    let due = world.now.saturating_add_ms(BLOBS_MS + bytes * 1_000 / BLOB_BYTES_PER_SECOND_MIN);
    world.now = due;
    world.apply(Event::BlobArrived { task, digest }).unwrap();
    assert_eq!(world.apply(Event::Tick).unwrap().status, EventStatus::Duplicate, "in time");
    assert_eq!(world.engine.next_deadline(), Some(due.saturating_add_ms(1)));
    world.now = due.saturating_add_ms(1);
    assert_eq!(world.apply(Event::Tick).unwrap().effects, [Effect::CloseTask { task }]);
    assert_eq!(end(&world, task), Some(TaskEnd::BlobsMissing));
    let late = Event::HoldoutArrived { task, digest: blob_digest(&all_rows().0) };
    assert_eq!(world.rejection_code(late), ErrorCode::TaskClosed);
    assert_eq!(world.engine.spec_and_has_holdout(task).unwrap_err().code, ErrorCode::TaskClosed);
    world.apply(Event::TaskClosed { task, refund: fln("100") }).unwrap();
    let again = TaskSpec { salt: 1, ..spec };
    publish(&mut world, &again).unwrap();
    complete(&mut world, again.id());
    assert_eq!(end(&world, again.id()), None);
}

#[test]
fn a_large_holdout_has_the_time_that_its_bytes_need() {
    let mut world = empty();
    let mut spec = world.spec.clone();
    spec.holdout.rows = 10_000_000;
    publish(&mut world, &spec).unwrap();
    let hours = world.engine.next_deadline().unwrap().ms_since(world.now) / 3_600_000;
    // 2.6 GB: an hour and 44 more.
    assert_eq!(hours, 45);
}

#[test]
fn a_buyer_has_a_limited_number_of_tasks_that_wait_for_their_blobs() {
    let mut world = empty();
    for salt in 0..INCOMPLETE_TASKS_PER_BUYER_MAX {
        publish(&mut world, &task_of(1, salt as u64, "50")).unwrap();
    }
    let next = task_of(1, 99, "50");
    assert_eq!(publish(&mut world, &next).unwrap_err(), ErrorCode::LimitReached);
    publish(&mut world, &task_of(2, 99, "50")).unwrap();
    let first = task_of(1, 0, "50").id();
    complete(&mut world, first);
    publish(&mut world, &next).unwrap();
    // When the others have ended for their blobs, the buyer has room again.
    assert_eq!(publish(&mut world, &task_of(1, 100, "50")).unwrap_err(), ErrorCode::LimitReached);
    world.now = world.engine.next_deadline().unwrap();
    world.apply(Event::Tick).unwrap();
    publish(&mut world, &task_of(1, 100, "50")).unwrap();
}

#[test]
fn a_buyer_has_a_limited_number_of_open_tasks() {
    let mut world = empty();
    for salt in 0..TASKS_PER_BUYER_MAX {
        let spec = task_of(1, salt as u64, "50");
        publish(&mut world, &spec).unwrap();
        complete(&mut world, spec.id());
    }
    let next = task_of(1, u64::MAX, "50");
    assert_eq!(publish(&mut world, &next).unwrap_err(), ErrorCode::LimitReached);
    publish(&mut world, &task_of(2, 0, "50")).unwrap();
    world.apply(Event::CloseRequested { task: task_of(1, 0, "50").id() }).unwrap();
    publish(&mut world, &next).unwrap();
}

/// A market with as many tasks as it runs, each of a buyer of its own.
fn full(locked: &str) -> EngineFixture {
    let mut world = empty();
    for buyer in 0..u32::try_from(TASKS_MAX).unwrap() {
        let event = publish_event(&task_of(buyer, 0, locked));
        world.engine.apply(&event, world.now).unwrap();
    }
    world
}

#[test]
fn in_a_full_market_the_task_with_the_least_money_gives_way_to_one_with_more() {
    let mut world = full("50");
    let newcomer = |locked| task_of(u32::MAX, 0, locked);
    assert_eq!(publish(&mut world, &newcomer("50")).unwrap_err(), ErrorCode::LimitReached);
    let applied = publish(&mut world, &newcomer("50.1")).unwrap();
    let [Effect::CloseTask { task: gone }] = applied.effects[..] else {
        panic!("{:?}", applied.effects)
    };
    assert_eq!(end(&world, gone), Some(TaskEnd::GaveWay));
    assert!(applied.changed_tasks.contains(&gone), "its followers see the end");
    let late = Event::HoldoutArrived { task: gone, digest: blob_digest(&all_rows().0) };
    assert_eq!(world.rejection_code(late), ErrorCode::TaskClosed);
    // The next one replaces another of the smallest, and the newcomer stays.
    let next = task_of(u32::MAX, 1, "51");
    publish(&mut world, &next).unwrap();
    assert_eq!(end(&world, newcomer("50.1").id()), None);
    let ended = world.engine.state().tasks.values().filter(|task| task.end.is_some()).count();
    assert_eq!(ended, 2);
}

#[test]
fn a_task_that_has_begun_gives_way_after_its_round_and_only_to_much_more_money() {
    let mut world = EngineFixture::with_open_round(4);
    let begun = world.id;
    assert_eq!(world.engine.state().tasks[&begun].spec.budget.data, fln("90"));
    // The others have more money than the task would need to stay: 10 times 100 FLN.
    for buyer in 1..u32::try_from(TASKS_MAX).unwrap() {
        let event = publish_event(&task_of(buyer, 0, "2000"));
        world.engine.apply(&event, world.now).unwrap();
    }
    assert_eq!(BEGUN_TASK_WEIGHT, 10);
    let newcomer = |locked| task_of(u32::MAX, 0, locked);
    assert_eq!(publish(&mut world, &newcomer("1000")).unwrap_err(), ErrorCode::LimitReached);
    let applied = publish(&mut world, &newcomer("1000.1")).unwrap();
    assert_eq!(applied.effects, [], "its round goes on");
    assert_eq!(end(&world, begun), Some(TaskEnd::GaveWay));
    assert!(matches!(world.engine.state().tasks[&begun].stage, TaskStage::Committing(_)));
    (1..=4).for_each(|i| drop(world.apply(world.commit_event(i)).unwrap()));
    (1..=4).for_each(|i| drop(world.apply(world.reveal_event(i)).unwrap()));
    world.disclose();
    world.apply(world.valued_event()).unwrap();
    world.apply(Event::SettlementPosted { task: begun, round: RoundNumber(1) }).unwrap();
    // The last report pays what round 1 withheld.
    world.apply(Event::SettlementPosted { task: begun, round: RoundNumber(2) }).unwrap();
    assert_eq!(world.engine.state().tasks[&begun].phase(), TaskPhase::Closing);
}

#[test]
fn finished_tasks_do_not_count_against_the_limit() {
    let mut world = full("50");
    let first = task_of(0, 0, "50").id();
    let next = task_of(u32::MAX, 0, "50");
    assert_eq!(publish(&mut world, &next).unwrap_err(), ErrorCode::LimitReached);
    let closed = Event::TaskClosed { task: first, refund: Amount::ZERO };
    world.engine.apply(&closed, world.now).unwrap();
    publish(&mut world, &next).unwrap();
}

#[test]
fn tasks_that_gave_way_follow_from_the_journal() {
    let mut world = empty();
    for buyer in 0..=u32::try_from(TASKS_MAX).unwrap() {
        let locked = (1 + buyer / 2).to_string();
        let _ = publish(&mut world, &task_of(buyer, 0, &locked)).unwrap();
    }
    let ended = world.engine.state().tasks.values().filter(|task| task.end.is_some()).count();
    assert_eq!(ended, 1);
    let mut replayed = Engine::new(market(), address(COORDINATOR));
    for (at, event) in &world.journal {
        replayed.apply(event, *at).unwrap();
    }
    assert_eq!(replayed.state(), world.engine.state());
}

/// The way of a buyer that never uploads: the coordinator closes the task on the ledger.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_escrow_of_a_task_without_blobs_returns_to_its_buyer() {
    let dir = tempfile::tempdir().unwrap();
    let spec = TaskSpec { expires: Timestamp(u64::MAX), ..digits_spec() };
    let shop = TestCoordinator::open(dir.path(), spec);
    let _: TaskView = shop.post("tasks", &shop.spec).await.unwrap();
    assert_eq!(shop.view().await.phase, TaskPhase::AwaitingBlobs);
    shop.clock.set(Timestamp(2 * BLOBS_MS));
    shop.wait_for_phase(TaskPhase::Done).await;
    let view = shop.view().await;
    assert_eq!((view.end, view.reported), (Some(TaskEnd::BlobsMissing), 0));
    let state = shop.ledger.state.lock().unwrap().tasks[&shop.id].clone();
    assert_eq!((state.closed, state.refunded), (true, shop.spec.budget.data));
    let path = format!("tasks/{}/holdout", shop.id);
    assert_eq!(shop.rejection_code("PUT", &path, holdout()).await, ErrorCode::TaskClosed);
    shop.stop().await;
}
