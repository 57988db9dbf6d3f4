//! The earlier updates that a round's updates are compared with: all updates disclosed since the
//! model last improved, regardless of the outcome of their rounds.

use florin_engine::{Engine, Event};
use florin_protocol::*;

use crate::support::*;

/// The outcome of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundEnd {
    /// Settled with this total value.
    Settled(i64),
    /// Abandoned.
    Abandoned,
}

/// Four participants commit, in descending order, and upload; the rows are disclosed. Returns the
/// earlier updates that the round is compared with.
fn play_to_the_order(world: &mut EngineFixture) -> Vec<(Address, Digest)> {
    (1..=4).rev().for_each(|i| drop(world.apply(world.commit_event(i)).unwrap()));
    (1..=4).for_each(|i| drop(world.apply(world.reveal_event(i)).unwrap()));
    world.disclose();
    world.order().earlier_updates.clone()
}

fn end(world: &mut EngineFixture, ends: RoundEnd) {
    let (task, round) = (world.id, world.offer().scope.round);
    match (ends, world.valued_event()) {
        (
            RoundEnd::Settled(total),
            Event::RoundValued { mut result, paid, wrong_records: wrong, .. },
        ) => {
            result.valuation.total_nano = total;
            world
                .apply(Event::RoundValued { task, round, result, paid, wrong_records: wrong })
                .unwrap();
            world.apply(Event::SettlementPosted { task, round }).unwrap();
        }
        _ => {
            // The round has receipts, so it is settled, without pay.
            world.apply(Event::ValuationFailed { task, round }).unwrap();
            world.apply(Event::SettlementPosted { task, round }).unwrap();
        }
    }
}

/// A round's updates, in the order of their commits.
fn sent(world: &EngineFixture, round: u32) -> Vec<(Address, Digest)> {
    let mut entries = world.engine.report(world.id, RoundNumber(round)).unwrap().entries.clone();
    entries.sort_by_key(|entry| entry.commit_position);
    assert_eq!(entries[0].sender, address(4), "participant 4 commits first");
    entries.iter().map(|entry| (entry.sender, entry.update)).collect()
}

#[test]
fn a_round_is_compared_with_every_update_since_the_last_productive_round() {
    let mut spec = spec();
    spec.rounds.count = 8;
    let mut world = EngineFixture::with_published_spec(spec, 4);
    (1..=4).for_each(|i| drop(world.apply(world.enrol_event(i)).unwrap()));
    // For each round its outcome, and the rounds that it is compared with.
    let settled = RoundEnd::Settled;
    let table: [(RoundEnd, &[u32]); 7] = [
        (RoundEnd::Abandoned, &[]),
        (settled(1_000), &[1]),
        (RoundEnd::Abandoned, &[2]),
        (settled(0), &[2, 3]),
        (settled(-1_000), &[2, 3, 4]),
        (settled(1_000), &[2, 3, 4, 5]),
        (settled(1_000), &[6]),
    ];
    for (round, (ends, against)) in (1..).zip(table) {
        let named = play_to_the_order(&mut world);
        let shown: Vec<_> = against.iter().flat_map(|earlier| sent(&world, *earlier)).collect();
        assert_eq!(named, shown, "round {round}");
        end(&mut world, ends);
    }
    // A restarted coordinator recovers the list from its journal.
    let mut again = Engine::new(market(), address(COORDINATOR));
    for (now, event) in &world.journal {
        again.apply(event, *now).unwrap();
    }
    world.engine = again;
    assert_eq!(play_to_the_order(&mut world), sent(&world, 7));
}

#[test]
fn after_many_unproductive_rounds_the_first_and_the_latest_are_compared() {
    let most = u32::try_from(limits::EARLIER_ROUNDS_MAX).unwrap();
    let mut spec = spec();
    (spec.rounds.count, spec.holdout.rows_per_round) = (most + 4, 8);
    let mut world = EngineFixture::with_published_spec(spec, 4);
    (1..=4).for_each(|i| drop(world.apply(world.enrol_event(i)).unwrap()));
    for round in 1..=most + 3 {
        let named = play_to_the_order(&mut world);
        // Of all earlier rounds the first, and as many of the latest as fit beside it.
        let latest = round.saturating_sub(most - 1).max(2)..round;
        let against = (1..round.min(2)).chain(latest);
        let shown: Vec<_> = against.flat_map(|earlier| sent(&world, earlier)).collect();
        assert_eq!(named, shown, "round {round}");
        end(&mut world, RoundEnd::Settled(i64::from(round == 1)));
    }
}
