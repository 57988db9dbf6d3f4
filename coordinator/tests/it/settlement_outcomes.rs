//! The ledger's state decides: cancelled and refused settlements, tasks closed by other accounts,
//! and the root of claim proofs.

use std::time::Duration;

use florin_engine::{Effect, Event, EventStatus};
use florin_protocol::*;

use crate::crash_recovery::{new_ledger, start};
use crate::journal_replay::without_archive_effects;
use crate::rejection_codes::{proof, whole_task};
use crate::support::*;

fn phase(world: &EngineFixture) -> TaskPhase {
    world.engine.state().tasks[&world.id].phase()
}

/// Plays one round up to its report.
fn play(world: &mut EngineFixture) {
    for i in 1..=4 {
        world.apply(world.commit_event(i)).unwrap();
    }
    for i in 1..=4 {
        world.apply(world.reveal_event(i)).unwrap();
    }
    world.disclose();
    world.apply(world.valued_event()).unwrap();
}

/// Rounds 1 and 2 are posted; round 3 runs.
fn two_posted() -> EngineFixture {
    let mut world = EngineFixture::with_open_round(4);
    for round in 1..=2 {
        play(&mut world);
        let round = RoundNumber(round);
        world.apply(Event::SettlementPosted { task: world.id, round }).unwrap();
    }
    world
}

#[test]
fn a_cancelled_settlement_drops_the_running_round_and_earlier_rounds_are_still_paid() {
    let task = spec().id();
    let cancelled = Event::SettlementCancelled { task, round: RoundNumber(2) };
    for stage in 0..4 {
        let mut world = two_posted();
        if stage > 0 {
            (1..=4).for_each(|i| drop(world.apply(world.commit_event(i)).unwrap()));
        }
        if stage > 1 {
            (1..=4).for_each(|i| drop(world.apply(world.reveal_event(i)).unwrap()));
        }
        if stage > 2 {
            world.disclose();
            world.apply(world.valued_event()).unwrap();
            let post = Effect::PostSettlement { task, round: RoundNumber(3) };
            assert!(world.engine.pending_effects().contains(&post));
        }
        world.apply(cancelled.clone()).unwrap();
        assert_eq!(phase(&world), TaskPhase::Closing, "{stage}");
        let state = &world.engine.state().tasks[&task];
        assert!(state.running().is_none(), "{stage}");
        // No round from 2 on is posted or valued any more; round 1 continues.
        let first = Effect::FinalizeSettlement { task, round: RoundNumber(1) };
        assert_eq!(world.engine.pending_effects(), [first], "{stage}");
        let applied = world.apply(Event::SettlementFinal { task, round: RoundNumber(1) }).unwrap();
        assert_eq!(
            without_archive_effects(applied.effects),
            [Effect::CloseTask { task }],
            "{stage}"
        );
        assert_eq!(proof(&world, 1).round, RoundNumber(1));
        assert_eq!(world.apply(cancelled.clone()).unwrap().status, EventStatus::Duplicate);
    }
}

/// Values the round with one harmful update, whose sender is debited.
fn value_with_harm(world: &mut EngineFixture) {
    let Event::RoundValued { task, round, mut result, .. } = world.valued_event() else {
        unreachable!()
    };
    let score = &mut result.valuation.scores[0];
    (score.score_nano, score.excluded) = (-50_000_000, true);
    world
        .apply(Event::RoundValued { task, round, result, paid: None, wrong_records: vec![] })
        .unwrap();
}

#[test]
fn debits_are_proven_by_the_last_final_root_and_before_the_close() {
    let mut world = EngineFixture::in_valuing(4);
    let task = world.id;
    value_with_harm(&mut world);
    world.apply(Event::SettlementPosted { task, round: RoundNumber(1) }).unwrap();
    world.apply(Event::CloseRequested { task }).unwrap();
    let cohort = world.offer().cohort.clone();
    let asked = || (1..=4).filter(|i| cohort.contains(&address(*i)));
    asked().for_each(|i| drop(world.apply(world.commit_event(i)).unwrap()));
    asked().for_each(|i| drop(world.apply(world.reveal_event(i)).unwrap()));
    world.disclose();
    world.apply(world.valued_event()).unwrap();
    world.apply(Event::SettlementPosted { task, round: RoundNumber(2) }).unwrap();
    // Round 3 pays what was withheld.
    world.apply(Event::SettlementPosted { task, round: RoundNumber(3) }).unwrap();
    let prove = |round| Effect::ProveDebits { task, round: RoundNumber(round) };
    let applied = world.apply(Event::SettlementFinal { task, round: RoundNumber(1) }).unwrap();
    assert_eq!(applied.effects, [prove(1)]);
    // Rounds 2 and 3 have no new debits; their roots prove the debits of round 1.
    let applied = world.apply(Event::SettlementFinal { task, round: RoundNumber(2) }).unwrap();
    assert_eq!(without_archive_effects(applied.effects), [prove(2)], "no close yet");
    world.apply(Event::SettlementFinal { task, round: RoundNumber(3) }).unwrap();
    assert_eq!(without_archive_effects(world.engine.pending_effects()), [prove(3)]);
    let applied = world.apply(Event::DebitsProven { task, round: RoundNumber(3) }).unwrap();
    assert_eq!(without_archive_effects(applied.effects), [Effect::CloseTask { task }]);
    let late = Event::DebitsProven { task, round: RoundNumber(1) };
    assert_eq!(world.apply(late).unwrap().status, EventStatus::Duplicate);
}

#[test]
fn debits_are_proven_after_another_account_closed_the_task() {
    let mut world = EngineFixture::in_valuing(4);
    let (task, round) = (world.id, RoundNumber(1));
    value_with_harm(&mut world);
    world.apply(Event::SettlementPosted { task, round }).unwrap();
    world.apply(Event::TaskClosed { task, refund: fln("1") }).unwrap();
    world.apply(Event::SettlementFinal { task, round }).unwrap();
    let bond = Effect::ReturnBond { task };
    assert_eq!(world.engine.pending_effects(), [Effect::ProveDebits { task, round }, bond]);
    world.apply(Event::DebitsProven { task, round }).unwrap();
    assert_eq!(without_archive_effects(world.engine.pending_effects()), [bond]);
}

#[test]
fn a_refused_settlement_ends_the_task() {
    let mut world = two_posted();
    play(&mut world);
    let (task, round) = (world.id, RoundNumber(3));
    world.apply(Event::SettlementRejected { task, round }).unwrap();
    assert_eq!(phase(&world), TaskPhase::Closing);
    let finalize = |round| Effect::FinalizeSettlement { task, round: RoundNumber(round) };
    assert_eq!(world.engine.pending_effects(), [finalize(1), finalize(2)]);
    let again = Event::SettlementRejected { task, round };
    assert_eq!(world.apply(again).unwrap().status, EventStatus::Duplicate);
    let never = Event::SettlementRejected { task, round: RoundNumber(4) };
    assert_eq!(world.rejection_code(never), ErrorCode::WrongRound);
}

#[test]
fn claim_proofs_use_the_settlements_that_another_accounts_close_made_final() {
    let mut world = whole_task();
    let task = world.id;
    world.apply(Event::SettlementFinal { task, round: RoundNumber(1) }).unwrap();
    world.apply(Event::TaskClosed { task, refund: fln("1") }).unwrap();
    assert_eq!(phase(&world), TaskPhase::Done);
    // The coordinator queries whether they are final, now and after a restart.
    let finalize = |round| Effect::FinalizeSettlement { task, round: RoundNumber(round) };
    let bond = Effect::ReturnBond { task };
    let pending = without_archive_effects(world.engine.pending_effects());
    assert_eq!(pending, [finalize(2), finalize(3), bond]);
    world.apply(Event::SettlementFinal { task, round: RoundNumber(3) }).unwrap();
    assert_eq!(proof(&world, 1).round, RoundNumber(3));
    assert_eq!(without_archive_effects(world.engine.pending_effects()), [bond]);
    assert_eq!(phase(&world), TaskPhase::Done);
}

#[test]
fn a_final_settlement_counts_even_after_it_was_reported_cancelled() {
    let mut world = whole_task();
    let task = world.id;
    world.apply(Event::SettlementCancelled { task, round: RoundNumber(1) }).unwrap();
    let last = Event::SettlementFinal { task, round: RoundNumber(3) };
    world.apply(last.clone()).unwrap();
    assert_eq!(proof(&world, 1).round, RoundNumber(3));
    assert_eq!(world.apply(last).unwrap().status, EventStatus::Duplicate);
    let never = Event::SettlementFinal { task, round: RoundNumber(4) };
    assert_eq!(world.rejection_code(never), ErrorCode::WrongRound);
    // Final before the reply to its post: the next round opens.
    let mut world = EngineFixture::with_open_round(4);
    play(&mut world);
    world.apply(Event::SettlementFinal { task, round: RoundNumber(1) }).unwrap();
    assert_eq!(world.offer().scope.round, RoundNumber(2));
}

#[test]
fn a_close_drops_a_settlement_that_was_never_posted() {
    let mut world = two_posted();
    play(&mut world);
    let task = world.id;
    world.apply(Event::TaskClosed { task, refund: fln("1") }).unwrap();
    world.apply(Event::SettlementFinal { task, round: RoundNumber(2) }).unwrap();
    world.apply(Event::SettlementCancelled { task, round: RoundNumber(3) }).unwrap();
    let bond = Effect::ReturnBond { task };
    assert_eq!(without_archive_effects(world.engine.pending_effects()), [bond]);
    assert_eq!((phase(&world), proof(&world, 1).round), (TaskPhase::Done, RoundNumber(2)));
}

#[test]
fn the_last_round_opens_only_if_it_can_become_final_before_the_expiry() {
    let mut spec = spec();
    spec.budget.challenge_ms = 100_000;
    spec.budget.unbond_ms = spec.unbond_ms_min();
    let last = Timestamp(spec.expires.0 - 22_000 - SETTLEMENT_MARGIN_MS - 100_000);
    for (late, opens) in [(0, true), (1, false)] {
        let mut world = EngineFixture::with_published_spec(spec.clone(), 4);
        world.apply(world.enrol_event(1)).unwrap();
        world.now = last.saturating_add_ms(late);
        let answer = world.apply(world.enrol_event(2)).map(|_| phase(&world));
        assert_eq!(
            answer.is_ok_and(|phase| phase == TaskPhase::Committing),
            opens,
            "{late} ms late"
        );
    }
}

/// Cancels the pending settlements, as an arbiter does; returns whether there were any.
fn cancel_pending(ledger: &FakeLedger) -> bool {
    let mut books = ledger.state.lock().unwrap();
    let task = books.tasks.get_mut(&spec().id()).unwrap();
    !std::mem::take(&mut task.pending).is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_settlement_is_detected_long_before_its_challenge_window_ends() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = new_ledger();
    ledger.state.lock().unwrap().tasks.get_mut(&spec().id()).unwrap().terms.challenge_ms =
        3_600_000;
    let host = start(dir.path(), &ledger, 0);
    let mut cancelled = false;
    let ended = async {
        loop {
            let phase = host.phase().await.map(|(phase, _)| phase);
            if phase == Some(TaskPhase::Done) {
                return;
            }
            cancelled |= cancel_pending(&ledger);
            // From then on no messages arrive: only polling the ledger can detect the cancellation.
            if !cancelled {
                host.send_events(phase).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(20), ended).await;
    ended.expect("the cancellation is not detected");
    assert!(ledger.state.lock().unwrap().final_settlements.is_empty());
    assert!(!cancel_pending(&ledger), "a settlement was posted again");
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_post_after_the_expiry_is_not_retried_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = new_ledger();
    ledger.state.lock().unwrap().now = spec().expires.saturating_add_ms(1);
    let host = start(dir.path(), &ledger, 0);
    assert_eq!(host.play().await.0.len(), 1);
    assert_eq!(ledger.state.lock().unwrap().posts, 1);
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_closed_by_another_account_has_proofs_from_its_last_final_root() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = new_ledger();
    ledger.state.lock().unwrap().tasks.get_mut(&spec().id()).unwrap().terms.challenge_ms =
        3_600_000;
    let host = start(dir.path(), &ledger, 0);
    let posted = || !ledger.state.lock().unwrap().tasks[&spec().id()].pending.is_empty();
    while !posted() {
        host.send_events(host.phase().await.map(|(phase, _)| phase)).await;
    }
    host.stop().await;
    {
        let mut books = ledger.state.lock().unwrap();
        let task = books.tasks.get_mut(&spec().id()).unwrap();
        task.closed = true;
        let done = std::mem::take(&mut task.pending);
        books.final_settlements.extend(done.into_iter().map(|pending| pending.settlement));
    }
    let host = start(dir.path(), &ledger, 0);
    host.play().await;
    let root = ledger.state.lock().unwrap().final_settlements.last().unwrap().root;
    let id = host.id;
    let proved = async {
        loop {
            let known = host.host.read(move |engine, _| engine.final_totals(id).map(|r| r.root));
            if known.await.unwrap() == Ok(root) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), proved)
        .await
        .expect("no proof of the final root");
    host.stop().await;
}
