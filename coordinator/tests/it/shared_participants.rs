//! Participants that several tasks share: none is asked beyond its limit, and a task with more than
//! enough leaves those to tasks that wait for them.

use florin_engine::Event;
use florin_protocol::*;

use crate::support::*;

/// A task for `target` participants, which needs all of them.
fn task(salt: u64, target: u32) -> TaskSpec {
    let mut spec = TaskSpec { salt, ..spec() };
    (spec.rounds.cohort_target, spec.rounds.cohort_min) = (target, target);
    spec
}

/// Publishes another task in the same market; its blobs have not arrived.
fn publish(world: &mut EngineFixture, spec: TaskSpec) -> TaskId {
    (world.id, world.spec) = (spec.id(), spec);
    let (spec, bytes) = (world.spec.clone().into(), MODEL_BYTES);
    world.apply(Event::TaskPublished { spec, model_bytes: bytes, update_bytes: bytes }).unwrap();
    world.id
}

/// The blobs of the task arrive.
fn complete(world: &mut EngineFixture, task: TaskId) {
    let digest = world.engine.state().tasks[&task].spec.base_model;
    world.apply(Event::BlobArrived { task, digest }).unwrap();
    let digest = blob_digest(&all_rows().0);
    world.apply(Event::HoldoutArrived { task, digest }).unwrap();
}

fn enrol(world: &mut EngineFixture, task: TaskId, member: u8, at_once: u32) {
    let plain =
        EnrolRequest::without_invitation(market(), task, address(member), Timestamp(1_000_000));
    let enrol = node(member).sign(EnrolRequest { at_once, ..plain });
    world.apply(Event::Enrolled { enrol, bond: fln("5") }).unwrap();
}

/// The members of a running round's cohort.
fn cohort(world: &EngineFixture, task: TaskId) -> Option<Vec<u8>> {
    let running = world.engine.state().tasks[&task].running()?;
    Some((1..=9).filter(|member| running.is_in_cohort(address(*member))).collect())
}

fn standing(world: &EngineFixture, task: TaskId, member: u8) -> Standing {
    let running = world.engine.state().tasks[&task].running().unwrap();
    running.candidates.accounts[&address(member)].standing
}

/// A market with members and a complete task for `target` of them.
fn market_with(target: u32) -> (EngineFixture, TaskId) {
    let world = EngineFixture::with_published_spec(task(1, target), 9);
    let first = world.id;
    (world, first)
}

#[test]
fn an_account_is_busy_for_other_tasks_until_its_commit() {
    let (mut world, first) = market_with(2);
    [1, 2].into_iter().for_each(|member| enrol(&mut world, first, member, 1));
    assert_eq!(cohort(&world, first), Some(vec![1, 2]));
    let spec = task(2, 2);
    let second = publish(&mut world, spec);
    complete(&mut world, second);
    [1, 2, 3].into_iter().for_each(|member| enrol(&mut world, second, member, 1));
    assert_eq!(cohort(&world, second), None, "one of three is free");
    world.id = first;
    let applied = world.apply(world.commit_event(1)).unwrap();
    assert_eq!(cohort(&world, second), Some(vec![1, 3]));
    assert!(applied.changed_tasks.contains(&second) && applied.changed_tasks.contains(&first));
    assert_eq!(standing(&world, second, 2), Standing::Busy(first));
    assert_eq!(standing(&world, second, 1), Standing::Eligible);
}

#[test]
fn an_account_without_a_limit_is_asked_by_all_tasks() {
    let (mut world, first) = market_with(2);
    [1, 2].into_iter().for_each(|member| enrol(&mut world, first, member, 0));
    let spec = task(2, 2);
    let second = publish(&mut world, spec);
    complete(&mut world, second);
    enrol(&mut world, second, 1, 0);
    // Its limit of two leaves room for one more round.
    enrol(&mut world, first, 2, 2);
    enrol(&mut world, second, 2, 2);
    assert_eq!(cohort(&world, second), Some(vec![1, 2]));
}

#[test]
fn a_commit_deadline_that_passes_makes_its_accounts_free() {
    let (mut world, first) = market_with(2);
    [1, 2].into_iter().for_each(|member| enrol(&mut world, first, member, 1));
    let spec = task(2, 2);
    let second = publish(&mut world, spec);
    complete(&mut world, second);
    [1, 2].into_iter().for_each(|member| enrol(&mut world, second, member, 1));
    assert_eq!(cohort(&world, second), None);
    world.now = world.now.saturating_add_ms(10_001);
    world.apply(Event::Tick).unwrap();
    assert_eq!(cohort(&world, second), Some(vec![1, 2]));
}

/// A market in which member 3 works, so that the task for members 1, 2 and 3 waits; then a task for
/// two of six members opens. Returns the waiting and the open task.
fn three_tasks(salt: u64, waited_ms: u64) -> (EngineFixture, TaskId, TaskId) {
    let (mut world, first) = market_with(1);
    enrol(&mut world, first, 3, 1);
    let scarce = publish(&mut world, task(2, 3));
    complete(&mut world, scarce);
    [1, 2, 3].into_iter().for_each(|member| enrol(&mut world, scarce, member, 1));
    assert_eq!(cohort(&world, scarce), None);
    let open = publish(&mut world, task(salt, 2));
    (1..=6).for_each(|member| enrol(&mut world, open, member, 1));
    world.now = world.now.saturating_add_ms(waited_ms);
    complete(&mut world, open);
    world.id = first;
    (world, scarce, open)
}

#[test]
fn a_task_with_more_than_enough_leaves_those_that_a_scarce_one_needs() {
    for salt in 10..30 {
        let (mut world, scarce, open) = three_tasks(salt, 0);
        let asked = cohort(&world, open).unwrap();
        assert!(asked.iter().all(|member| *member > 3), "{asked:?}");
        assert_eq!(standing(&world, open, 1), Standing::Reserved(scarce));
        world.apply(world.commit_event(3)).unwrap();
        assert_eq!(cohort(&world, scarce), Some(vec![1, 2, 3]));
    }
}

#[test]
fn a_reservation_ends_after_the_time_of_a_round() {
    let (world, _, open) = three_tasks(10, 22_001);
    assert_eq!(standing(&world, open, 1), Standing::Eligible);
    let (world, scarce, open) = three_tasks(10, 22_000);
    assert_eq!(standing(&world, open, 1), Standing::Reserved(scarce));
}
