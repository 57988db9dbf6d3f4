//! The holdout rows of a round: drawn when its reveals are closed, disclosed before the valuation,
//! and never used again.

use std::collections::BTreeSet;

use florin_engine::{Effect, Engine, Event, EventStatus};
use florin_protocol::*;

use crate::support::*;

fn rows_of(world: &EngineFixture) -> Vec<u32> {
    world.engine.state().tasks[&world.id].running().unwrap().drawn_rows.clone()
}

fn disclosed_rows(world: &EngineFixture, round: u32) -> Result<Digest, ErrorCode> {
    world.engine.disclosed_rows(world.id, RoundNumber(round)).map_err(|rejection| rejection.code)
}

/// Four participants commit and upload; the rows are drawn.
fn play_to_the_draw(world: &mut EngineFixture) {
    (1..=4).for_each(|i| drop(world.apply(world.commit_event(i)).unwrap()));
    (1..=4).for_each(|i| drop(world.apply(world.reveal_event(i)).unwrap()));
}

/// A task of `rounds` rounds, in its first round.
fn opened(rounds: u32) -> EngineFixture {
    let mut spec = spec();
    spec.rounds.count = rounds;
    let mut world = EngineFixture::with_published_spec(spec, 4);
    (1..=4).for_each(|i| drop(world.apply(world.enrol_event(i)).unwrap()));
    world
}

#[test]
fn no_rows_are_drawn_or_disclosed_while_updates_may_still_arrive() {
    let mut world = EngineFixture::with_open_round(4);
    let (task, round) = (world.id, RoundNumber(1));
    let early = Event::RowsDisclosed { task, round, rows: Digest([1; 32]) };
    for i in 1..=4 {
        assert_eq!(
            (rows_of(&world), disclosed_rows(&world, 1)),
            (vec![], Err(ErrorCode::NotYetPublic))
        );
        assert_eq!(world.rejection_code(early.clone()), ErrorCode::WorkOrderClosed);
        world.apply(world.commit_event(i)).unwrap();
    }
    for i in 1..=3 {
        world.apply(world.reveal_event(i)).unwrap();
        assert_eq!(
            (rows_of(&world), disclosed_rows(&world, 1)),
            (vec![], Err(ErrorCode::NotYetPublic))
        );
        assert_eq!(world.rejection_code(early.clone()), ErrorCode::WorkOrderClosed);
    }
    let applied = world.apply(world.reveal_event(4)).unwrap();
    assert_eq!(applied.effects, [Effect::DiscloseRows { task, round }]);
    assert_eq!(rows_of(&world).len(), 10);
    // Drawn, but not disclosed yet: there are no rows to read and no order to execute.
    assert_eq!(disclosed_rows(&world, 1), Err(ErrorCode::NotYetPublic));
    let unasked = Event::ProviderReady { task, provider: address(PROVIDER) };
    assert_eq!(world.apply(unasked.clone()).unwrap().status, EventStatus::New);
    assert!(world.engine.open_order(task, address(PROVIDER), world.now).is_none());
    assert_eq!(world.disclose(), []);
    assert_eq!(disclosed_rows(&world, 1), Ok(Digest([201; 32])));
    assert_eq!(world.apply(early).unwrap().status, EventStatus::Duplicate);
    assert_eq!(world.order().disclosed_rows, Digest([201; 32]));
    // The provider that was ready before gets the order, and the engine waits for it.
    assert!(world.engine.open_order(task, address(PROVIDER), world.now).is_some());
    assert_eq!(world.apply(unasked).unwrap().status, EventStatus::New);
    world.apply(world.valued_event()).unwrap();
}

#[test]
fn the_drawn_rows_are_reproducible_from_the_order() {
    let mut world = EngineFixture::in_valuing(4);
    let order = world.order().clone();
    let seed = round_seed(order.scope, &order.commits, &order.entries);
    assert_eq!(draw_rows(&world.spec.holdout, &[], seed).unwrap(), rows_of(&world));
    let drawn = rows_of(&world);
    world.apply(world.valued_event()).unwrap();
    let report = world.engine.report(world.id, RoundNumber(1)).unwrap();
    assert_eq!(report.holdout, HoldoutSample { seed, rows: drawn });
}

#[test]
fn another_salt_draws_other_rows() {
    let draw = |salt: u8| {
        let mut world = EngineFixture::with_open_round(4);
        let header = UpdateHeader { salt: Digest([salt; 32]), ..world.header(4) };
        let commitment = header.commitment();
        let commit = Commit { commitment, ..world.commit(4) };
        (1..=3).for_each(|i| drop(world.apply(world.commit_event(i)).unwrap()));
        let commit = Event::Committed { commit: node(4).sign(commit), bond: fln("5") };
        world.apply(commit).unwrap();
        (1..=3).for_each(|i| drop(world.apply(world.reveal_event(i)).unwrap()));
        world.apply(Event::Revealed(node(4).sign(header))).unwrap();
        rows_of(&world)
    };
    assert_eq!(draw(4), draw(4));
    assert_ne!(draw(4), draw(5));
}

#[test]
fn ten_rounds_use_a_hundred_rows_once_each_also_after_a_restart() {
    let mut world = opened(10);
    let mut used = BTreeSet::new();
    for round in 1..=10 {
        play_to_the_draw(&mut world);
        let drawn = rows_of(&world);
        assert!(drawn.iter().all(|row| used.insert(*row)), "round {round}: {drawn:?}");
        // The coordinator crashes here: replay of its journal draws the same rows.
        let mut again = Engine::new(market(), address(COORDINATOR));
        for (now, event) in &world.journal {
            again.apply(event, *now).unwrap();
        }
        world.engine = again;
        assert_eq!(rows_of(&world), drawn);
        let task = world.id;
        assert_eq!(
            world.engine.pending_effects().first(),
            Some(&Effect::DiscloseRows { task, round: RoundNumber(round) })
        );
        world.disclose();
        world.apply(world.valued_event()).unwrap();
        world.apply(Event::SettlementPosted { task, round: RoundNumber(round) }).unwrap();
    }
    assert_eq!(used.len(), 100);
}

#[test]
fn a_round_abandoned_after_its_draw_uses_up_its_rows_and_one_abandoned_before_does_not() {
    let mut world = opened(10);
    let task = world.id;
    play_to_the_draw(&mut world);
    let used = rows_of(&world);
    world.apply(Event::ValuationFailed { task, round: RoundNumber(1) }).unwrap();
    let report = world.engine.report(task, RoundNumber(1)).unwrap();
    assert_eq!(report.outcome, RoundOutcome::Abandoned(AbandonReason::ValuationFailed));
    assert_eq!(report.holdout.rows, used);
    // The rows were never disclosed, but the reveals determine them.
    assert_eq!(disclosed_rows(&world, 1), Err(ErrorCode::NotFound));
    // The round has receipts, so it is settled, without pay.
    world.apply(Event::SettlementPosted { task, round: RoundNumber(1) }).unwrap();
    play_to_the_draw(&mut world);
    assert!(rows_of(&world).iter().all(|row| !used.contains(row)));
    world.disclose();
    world.apply(world.valued_event()).unwrap();
    world.apply(Event::SettlementPosted { task, round: RoundNumber(2) }).unwrap();
    // No participant commits in round 3.
    world.now = world.offer().commit_by.saturating_add_ms(1);
    world.apply(Event::Tick).unwrap();
    let report = world.engine.report(task, RoundNumber(3)).unwrap();
    assert!(matches!(
        report.outcome,
        RoundOutcome::Abandoned(AbandonReason::TooFewUpdates { got: 0, .. })
    ));
    assert_eq!(
        (report.holdout.rows.len(), disclosed_rows(&world, 3)),
        (0, Err(ErrorCode::NotFound))
    );
}
