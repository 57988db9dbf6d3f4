//! Participants that several tasks share: none is asked beyond its limit, also while its training goes
//! on between two rounds, and a task with more than enough leaves those to tasks that wait for them.

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

/// A task in which two members make a round, and two more may be late by one.
fn late_task(count: u32) -> TaskSpec {
    let mut spec = task(1, 2);
    (spec.rounds.count, spec.rounds.over_selection) = (count, 2);
    spec.rounds.staleness = StalenessRule { rounds: 1, weight: StalenessWeight::Inverse };
    spec
}

/// A market in which members 1 and 2 have committed to the first round of a task for late updates,
/// and members 3 to `members` train. Another task waits for member 3. Returns both.
fn late_world(count: u32, members: u8) -> (EngineFixture, TaskId, TaskId) {
    let mut world = EngineFixture::new(late_task(count));
    for member in 1..=9 {
        world.apply(Event::Registered(registration(member, Role::Participant))).unwrap();
    }
    let spec = world.spec.clone();
    let first = publish(&mut world, spec.clone());
    // All are enrolled when the round opens.
    (1..=members).for_each(|member| enrol(&mut world, first, member, 1));
    complete(&mut world, first);
    assert_eq!(cohort(&world, first), Some((1..=members).collect()));
    let second = publish(&mut world, task(2, 1));
    complete(&mut world, second);
    enrol(&mut world, second, 3, 1);
    (world.id, world.spec) = (first, spec);
    [1, 2].into_iter().for_each(|member| commit(&mut world, member));
    (world, first, second)
}

fn commit(world: &mut EngineFixture, member: u8) {
    world.apply(world.commit_event(member)).unwrap();
}

/// The running round ends with the updates of these members, which have committed.
fn settle(world: &mut EngineFixture, members: &[u8]) {
    for member in members {
        world.apply(world.reveal_event(*member)).unwrap();
    }
    world.disclose();
    world.apply(world.valued_event()).unwrap();
    let round = RoundNumber(world.engine.state().tasks[&world.id].rounds.len() as u32);
    world.apply(Event::SettlementPosted { task: world.id, round }).unwrap();
}

fn is_waiting(world: &EngineFixture, task: TaskId) -> bool {
    cohort(world, task).is_none()
}

#[test]
fn a_training_that_goes_on_is_work_between_two_rounds() {
    let (mut world, first, second) = late_world(3, 4);
    assert!(is_waiting(&world, second), "the commits have ended, and member 3 trains");
    for member in [1, 2] {
        world.apply(world.reveal_event(member)).unwrap();
        assert!(is_waiting(&world, second));
    }
    world.disclose();
    world.apply(world.valued_event()).unwrap();
    assert!(is_waiting(&world, second));
    world.apply(Event::SettlementPosted { task: first, round: RoundNumber(1) }).unwrap();
    let running = world.engine.state().tasks[&first].running().unwrap();
    let place = running.offer.cohort.binary_search(&address(3)).unwrap();
    assert_eq!(running.offer.reasons[place], SelectionReason::Continues);
    assert!(is_waiting(&world, second));
    commit(&mut world, 3);
    assert_eq!(cohort(&world, second), Some(vec![3]), "free after its late commit");
}

#[test]
fn a_training_that_can_count_no_more_holds_no_participant() {
    // Late by more than a round, it has failed.
    let (mut world, _, second) = late_world(3, 4);
    settle(&mut world, &[1, 2]);
    assert!(is_waiting(&world, second));
    [1, 2].into_iter().for_each(|member| commit(&mut world, member));
    assert_eq!(cohort(&world, second), Some(vec![3]));
    // No round comes after the last one.
    let (world, _, second) = late_world(1, 4);
    assert_eq!(cohort(&world, second), Some(vec![3]));
}

#[test]
fn a_task_that_waits_for_participants_holds_none() {
    let (mut world, first, second) = late_world(3, 3);
    // No update arrives: members 1 and 2 sit out, and too few are left for a round.
    world.now = world.now.saturating_add_ms(15_001);
    world.apply(Event::Tick).unwrap();
    world.apply(Event::Tick).unwrap();
    assert!(is_waiting(&world, first));
    assert_eq!(cohort(&world, second), Some(vec![3]));
}

#[test]
fn a_training_that_goes_on_is_left_to_no_other_task() {
    for salt in 10..20 {
        let (mut world, first, _) = late_world(3, 4);
        let spec = world.spec.clone();
        // More than enough are eligible for the next round of the first task, and the third task lacks
        // member 4.
        let third = publish(&mut world, task(salt, 2));
        complete(&mut world, third);
        [4, 5].into_iter().for_each(|member| enrol(&mut world, third, member, 1));
        (5..=9).for_each(|member| enrol(&mut world, first, member, 1));
        (world.id, world.spec) = (first, spec);
        settle(&mut world, &[1, 2]);
        let asked = cohort(&world, first).unwrap();
        assert!(asked.contains(&3) && asked.contains(&4), "{asked:?}");
        assert_eq!(standing(&world, first, 4), Standing::Eligible);
    }
}
