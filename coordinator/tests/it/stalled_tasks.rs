//! A task that cannot continue ends, and its escrow is refunded.

use florin_engine::state::TaskStage;
use florin_engine::{Effect, Event};
use florin_protocol::*;

use crate::support::*;

/// How long the tasks of these tests wait for participants, in milliseconds.
const STALL_MS: u64 = 20_000;
/// How many abandoned rounds in a row end them.
const ABANDONED_ROUNDS_MAX: u32 = 8;

fn stalling(rounds: u32) -> TaskSpec {
    let mut spec = spec();
    spec.rounds.stall_ms = STALL_MS;
    spec.rounds.abandoned_max = ABANDONED_ROUNDS_MAX;
    spec.rounds.count = rounds;
    spec.expires = Timestamp(9_000_000);
    spec
}

fn task(world: &EngineFixture) -> &florin_engine::state::TaskState {
    &world.engine.state().tasks[&world.id]
}

fn waiting(world: &EngineFixture) -> Option<WaitingStatus> {
    world.engine.view(world.id, world.now).unwrap().view.waiting
}

/// Moves the clock to the engine's next deadline, and ticks.
fn tick(world: &mut EngineFixture) -> Vec<Effect> {
    world.now = world.engine.next_deadline().unwrap();
    world.apply(Event::Tick).unwrap().effects
}

#[test]
fn a_task_without_enough_participants_ends_after_its_stall_time() {
    let mut world = EngineFixture::with_published_spec(stalling(3), 4);
    world.apply(world.enrol_event(1)).unwrap();
    let opened = world.now;
    let target_until = opened.saturating_add_ms(world.spec.rounds.enrol_ms);
    let ends = target_until.saturating_add_ms(STALL_MS);
    let status = WaitingStatus {
        needed: 4,
        eligible: 1,
        bond_too_small: 0,
        inactive: 0,
        target_until,
        ends,
    };
    assert_eq!(waiting(&world), Some(status));
    world.now = ends;
    let _ = world.apply(Event::Tick);
    assert_eq!(waiting(&world), Some(WaitingStatus { needed: 2, ..status }), "in time");
    assert_eq!(tick(&mut world), [Effect::CloseTask { task: world.id }]);
    assert_eq!(world.now, ends.saturating_add_ms(1));
    assert_eq!(task(&world).end, Some(TaskEnd::Stalled));
    assert_eq!(world.rejection_code(world.enrol_event(2)), ErrorCode::TaskClosed);
    world.apply(Event::TaskClosed { task: world.id, refund: fln("110") }).unwrap();
    assert_eq!(task(&world).refund, Some(fln("110")));
    assert_eq!(waiting(&world), None);
}

#[test]
fn a_task_with_enough_participants_at_the_last_moment_starts() {
    let mut world = EngineFixture::with_published_spec(stalling(3), 4);
    world.apply(world.enrol_event(1)).unwrap();
    world.now = waiting(&world).unwrap().ends;
    world.apply(world.enrol_event(2)).unwrap();
    assert!(matches!(task(&world).stage, TaskStage::Committing(_)));
    assert_eq!(task(&world).end, None);
}

#[test]
fn a_task_without_a_stall_time_waits_until_it_expires() {
    let mut world = EngineFixture::with_published_task(4);
    world.apply(world.enrol_event(1)).unwrap();
    tick(&mut world);
    assert_eq!(task(&world).end, Some(TaskEnd::Expired));
    assert!(world.now.saturating_add_ms(world.spec.unbond_ms_min()) > world.spec.expires);
}

/// Values round 1, in which participant 1 sends a harmful update, and loses more of its bond than
/// the minimum allows.
fn with_a_debited_member() -> EngineFixture {
    let mut spec = stalling(3);
    spec.budget.bond_min = fln("5");
    spec.rounds.cohort_min = 3;
    let mut world = EngineFixture::with_published_spec(spec, 4);
    (1..=3).for_each(|i| drop(world.apply(world.enrol_event(i)).unwrap()));
    tick(&mut world);
    (1..=3).for_each(|i| drop(world.apply(world.commit_event(i)).unwrap()));
    (1..=3).for_each(|i| drop(world.apply(world.reveal_event(i)).unwrap()));
    world.disclose();
    let mut result = world.result();
    for score in &mut result.valuation.scores {
        score.preprocessing.weight = 100;
        if score.account == address(1) {
            (score.score_nano, score.excluded) = (-40_000_000, true);
        }
    }
    let round = world.order().scope.round;
    let (task, result) = (world.id, result.into());
    let event = Event::RoundValued { task, round, result, paid: None, wrong_records: Vec::new() };
    world.apply(event).unwrap();
    let report = world.engine.report(world.id, round).unwrap();
    assert!(!report.line(address(1)).unwrap().debit.is_zero(), "{report:?}");
    world
}

#[test]
fn a_debited_member_below_the_minimum_stalls_the_task_after_its_settlement() {
    let mut world = with_a_debited_member();
    let (task_id, round) = (world.id, RoundNumber(1));
    world.apply(Event::SettlementPosted { task: task_id, round }).unwrap();
    let status = waiting(&world).unwrap();
    assert_eq!((status.needed, status.eligible, status.bond_too_small), (3, 2, 1));
    assert_eq!(status.ends, world.now.saturating_add_ms(STALL_MS));
    // The settlement is still in its challenge window: the task is closed only after it.
    let end = RoundNumber(2);
    assert_eq!(tick(&mut world), [Effect::PostSettlement { task: task_id, round: end }]);
    assert_eq!(task(&world).end, Some(TaskEnd::Stalled));
    world.apply(Event::SettlementPosted { task: task_id, round: end }).unwrap();
    assert!(matches!(task(&world).stage, TaskStage::Closing));
    for round in [round, end] {
        world.apply(Event::SettlementFinal { task: task_id, round }).unwrap();
    }
    let proven = Event::DebitsProven { task: task_id, round: end };
    let close = world.apply(proven).unwrap().effects;
    assert!(close.contains(&Effect::CloseTask { task: task_id }), "{close:?}");
}

#[test]
fn a_debited_member_that_tops_up_its_bond_continues_the_task() {
    let mut world = with_a_debited_member();
    world.apply(Event::SettlementPosted { task: world.id, round: RoundNumber(1) }).unwrap();
    let Event::Enrolled { enrol, .. } = world.enrol_event(1) else { unreachable!() };
    world.apply(Event::Enrolled { enrol, bond: fln("10") }).unwrap();
    assert!(matches!(task(&world).stage, TaskStage::Committing(_)));
}

/// Opens round after round without a commit, and returns the number of rounds when the task ends.
fn abandon_all(spec: TaskSpec) -> (usize, Option<TaskEnd>) {
    let mut world = EngineFixture::with_published_spec(spec, 4);
    while task(&world).end.is_none() {
        for i in 1..=4 {
            if !task(&world).is_over() {
                world.apply(world.enrol_event(i)).unwrap();
            }
        }
        tick(&mut world);
    }
    (task(&world).rounds.len(), task(&world).end)
}

#[test]
fn abandoned_rounds_in_a_row_end_the_task() {
    let limit = ABANDONED_ROUNDS_MAX as usize;
    assert_eq!(abandon_all(stalling(10)), (limit, Some(TaskEnd::RoundsAbandoned)));
    assert_eq!(abandon_all(stalling(5)), (5, Some(TaskEnd::Completed)));
    let mut patient = stalling(10);
    patient.rounds.abandoned_max = 0;
    assert_eq!(abandon_all(patient), (10, Some(TaskEnd::Completed)));
}

#[test]
fn a_stalled_task_is_the_same_after_a_replay() {
    let mut world = with_a_debited_member();
    world.apply(Event::SettlementPosted { task: world.id, round: RoundNumber(1) }).unwrap();
    tick(&mut world);
    let mut again = florin_engine::Engine::new(market(), address(COORDINATOR));
    for (at, event) in &world.journal {
        again.apply(event, *at).unwrap();
    }
    assert_eq!(again.state(), world.engine.state());
}

/// Values and settles round 1 of three, in which all of the score of each participant is positive
/// and a part of it is withheld.
fn with_withheld_pay() -> EngineFixture {
    let mut world = EngineFixture::with_published_spec(stalling(3), 4);
    (1..=4).for_each(|i| drop(world.apply(world.enrol_event(i)).unwrap()));
    (1..=4).for_each(|i| drop(world.apply(world.commit_event(i)).unwrap()));
    (1..=4).for_each(|i| drop(world.apply(world.reveal_event(i)).unwrap()));
    world.disclose();
    let mut result = world.result();
    for score in &mut result.valuation.scores {
        score.preprocessing.weight = 100;
        (score.score_nano, score.error_nano) = (30_000_000, 5_000_000);
    }
    let (task, result) = (world.id, result.into());
    let round = RoundNumber(1);
    let event = Event::RoundValued { task, round, result, paid: None, wrong_records: Vec::new() };
    world.apply(event).unwrap();
    world
}

#[test]
fn a_task_that_is_closed_early_first_pays_what_was_withheld() {
    let mut world = with_withheld_pay();
    let (task_id, first, end) = (world.id, RoundNumber(1), RoundNumber(2));
    let before = world.engine.report(task_id, first).unwrap().clone();
    assert!(before.lines.iter().all(|line| line.increment < 30_000_000), "{before:?}");
    world.apply(Event::CloseRequested { task: task_id }).unwrap();
    let effects = world.apply(Event::SettlementPosted { task: task_id, round: first }).unwrap();
    assert!(
        effects
            .effects
            .iter()
            .any(|e| matches!(e, Effect::PostSettlement { round, .. } if *round == end)),
        "{effects:?}"
    );
    let report = world.engine.report(task_id, end).unwrap().clone();
    assert_eq!(report.outcome, RoundOutcome::Abandoned(AbandonReason::TaskEnded));
    assert_eq!(report.final_lines.len(), 4);
    for line in &report.final_lines {
        let own = &report.account_totals[&line.account];
        assert_eq!(own.paid_score_nano, 30_000_000, "nothing is withheld any more");
        assert!(!line.payout.is_zero());
    }
    assert!(!task(&world).is_over());
    world.apply(Event::SettlementPosted { task: task_id, round: end }).unwrap();
    assert!(matches!(task(&world).stage, TaskStage::Closing), "no third report");
    assert_eq!(task(&world).rounds.len(), 2);
    for round in [first, end] {
        world.apply(Event::SettlementFinal { task: task_id, round }).unwrap();
    }
    assert_eq!(task(&world).end, Some(TaskEnd::ClosedByBuyer));
}

#[test]
fn a_stalled_task_pays_what_was_withheld_and_an_invalid_one_does_not() {
    let mut world = with_withheld_pay();
    let (task, round) = (world.id, RoundNumber(1));
    world.apply(Event::SettlementCancelled { task, round }).unwrap_err();
    world.apply(Event::SettlementPosted { task, round }).unwrap();
    world.apply(Event::SettlementCancelled { task, round }).unwrap();
    assert_eq!(world.engine.state().tasks[&task].rounds.len(), 1);
    assert_eq!(world.engine.state().tasks[&task].end, Some(TaskEnd::SettlementInvalid));

    let mut world = with_withheld_pay();
    world.apply(Event::SettlementPosted { task, round }).unwrap();
    while world.engine.state().tasks[&task].end.is_none() {
        tick(&mut world);
    }
    let ended = RoundOutcome::Abandoned(AbandonReason::TaskEnded);
    let last = world.engine.state().tasks[&task].rounds.len();
    let last = RoundNumber(u32::try_from(last).unwrap());
    assert_eq!(world.engine.report(task, last).unwrap().outcome, ended);
}
