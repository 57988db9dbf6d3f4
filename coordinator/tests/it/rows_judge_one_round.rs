//! The holdout rows of a round: drawn when its reveals are closed, disclosed before the valuation,
//! and never used again.

use std::collections::BTreeSet;

use florin_engine::{Effect, Engine, Event, Verdict};
use florin_protocol::*;

use crate::support::*;

fn rows_of(world: &World) -> Vec<u32> {
    world.engine.state().tasks[&world.id].running().unwrap().drawn.clone()
}

fn shown(world: &World, round: u32) -> Result<Digest, ErrorCode> {
    world.engine.shown(world.id, RoundNumber(round)).map_err(|rejection| rejection.code)
}

/// Four participants commit and upload; the rows are drawn.
fn play_to_the_draw(world: &mut World) {
    (1..=4).for_each(|i| drop(world.tell(world.committed(i)).unwrap()));
    (1..=4).for_each(|i| drop(world.tell(world.revealed(i)).unwrap()));
}

/// A task of `rounds` rounds, in its first round.
fn opened(rounds: u32) -> World {
    let mut spec = spec();
    spec.rounds.count = rounds;
    let mut world = World::published_with(spec, 4);
    (1..=4).for_each(|i| drop(world.tell(world.enrolment(i)).unwrap()));
    world
}

#[test]
fn no_rows_are_drawn_or_disclosed_while_updates_may_still_arrive() {
    let mut world = World::opened(4);
    let (task, round) = (world.id, RoundNumber(1));
    let early = Event::Disclosed { task, round, shown: Digest([1; 32]) };
    for i in 1..=4 {
        assert_eq!((rows_of(&world), shown(&world, 1)), (vec![], Err(ErrorCode::NotYetPublic)));
        assert_eq!(world.code(early.clone()), ErrorCode::WorkOrderClosed);
        world.tell(world.committed(i)).unwrap();
    }
    for i in 1..=3 {
        world.tell(world.revealed(i)).unwrap();
        assert_eq!((rows_of(&world), shown(&world, 1)), (vec![], Err(ErrorCode::NotYetPublic)));
        assert_eq!(world.code(early.clone()), ErrorCode::WorkOrderClosed);
    }
    let applied = world.tell(world.revealed(4)).unwrap();
    assert_eq!(applied.effects, [Effect::Disclose { task, round }]);
    assert_eq!(rows_of(&world).len(), 10);
    // Drawn, but not disclosed yet: there are no rows to read and no order to execute.
    assert_eq!(shown(&world, 1), Err(ErrorCode::NotYetPublic));
    let unasked = Event::ProviderReady { task, provider: address(PROVIDER) };
    assert_eq!(world.tell(unasked.clone()).unwrap().verdict, Verdict::New);
    assert!(world.engine.open_order(task, address(PROVIDER), world.now).is_none());
    assert_eq!(world.disclose(), []);
    assert_eq!(shown(&world, 1), Ok(Digest([201; 32])));
    assert_eq!(world.tell(early).unwrap().verdict, Verdict::Repeat);
    assert_eq!(world.order().disclosed_rows, Digest([201; 32]));
    // The provider that was ready before gets the order, and the engine waits for it.
    assert!(world.engine.open_order(task, address(PROVIDER), world.now).is_some());
    assert_eq!(world.tell(unasked).unwrap().verdict, Verdict::New);
    world.tell(world.valued()).unwrap();
}

#[test]
fn the_drawn_rows_are_reproducible_from_the_order() {
    let mut world = World::valuing(4);
    let order = world.order().clone();
    let seed = round_seed(order.scope, &order.commits, &order.entries);
    assert_eq!(draw_rows(&world.spec.holdout, &[], seed).unwrap(), rows_of(&world));
    let drawn = rows_of(&world);
    world.tell(world.valued()).unwrap();
    let report = world.engine.report(world.id, RoundNumber(1)).unwrap();
    assert_eq!(report.holdout, HoldoutSample { seed, rows: drawn });
}

#[test]
fn another_salt_draws_other_rows() {
    let draw = |salt: u8| {
        let mut world = World::opened(4);
        let header = UpdateHeader { salt: Digest([salt; 32]), ..world.header(4) };
        let commitment = header.commitment();
        let commit = Commit { commitment, ..world.commit(4) };
        (1..=3).for_each(|i| drop(world.tell(world.committed(i)).unwrap()));
        let commit = Event::Committed { commit: node(4).sign(commit), bond: fln("5") };
        world.tell(commit).unwrap();
        (1..=3).for_each(|i| drop(world.tell(world.revealed(i)).unwrap()));
        world.tell(Event::Revealed(node(4).sign(header))).unwrap();
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
            world.engine.outstanding().first(),
            Some(&Effect::Disclose { task, round: RoundNumber(round) })
        );
        world.disclose();
        world.tell(world.valued()).unwrap();
        world.tell(Event::SettlementPosted { task, round: RoundNumber(round) }).unwrap();
    }
    assert_eq!(used.len(), 100);
}

#[test]
fn a_round_abandoned_after_its_draw_uses_up_its_rows_and_one_abandoned_before_does_not() {
    let mut world = opened(10);
    let task = world.id;
    play_to_the_draw(&mut world);
    let used = rows_of(&world);
    world.tell(Event::ValuationFailed { task, round: RoundNumber(1) }).unwrap();
    let report = world.engine.report(task, RoundNumber(1)).unwrap();
    assert_eq!(report.outcome, RoundOutcome::Abandoned(AbandonReason::ValuationFailed));
    assert_eq!(report.holdout.rows, used);
    // The rows were never disclosed, but the reveals determine them.
    assert_eq!(shown(&world, 1), Err(ErrorCode::NotFound));
    play_to_the_draw(&mut world);
    assert!(rows_of(&world).iter().all(|row| !used.contains(row)));
    world.disclose();
    world.tell(world.valued()).unwrap();
    world.tell(Event::SettlementPosted { task, round: RoundNumber(2) }).unwrap();
    // No participant commits in round 3.
    world.now = world.offer().commit_by.saturating_add_ms(1);
    world.tell(Event::Tick).unwrap();
    let report = world.engine.report(task, RoundNumber(3)).unwrap();
    assert!(matches!(
        report.outcome,
        RoundOutcome::Abandoned(AbandonReason::TooFewUpdates { got: 0, .. })
    ));
    assert_eq!((report.holdout.rows.len(), shown(&world, 3)), (0, Err(ErrorCode::NotFound)));
}
