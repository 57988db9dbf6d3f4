//! Late updates: a training that was not over when its round's commits ended counts in a later one.

use florin_engine::Event;
use florin_protocol::*;

use crate::support::*;

/// Four members, of which two make a round and two more may be late by at most `rounds`.
fn open(rounds: u32) -> EngineFixture {
    let mut spec = TaskSpec { expires: Timestamp(9_000_000), ..spec() };
    spec.rounds.cohort_target = 2;
    spec.rounds.over_selection = 2;
    spec.rounds.staleness = StalenessRule { rounds, weight: StalenessWeight::Inverse };
    let mut world = EngineFixture::new(spec);
    for i in 1..=4 {
        world.apply(Event::Registered(registration(i, Role::Participant))).unwrap();
    }
    let publish = Event::TaskPublished {
        spec: world.spec.clone().into(),
        model_bytes: MODEL_BYTES,
        update_bytes: MODEL_BYTES,
    };
    world.apply(publish).unwrap();
    // All four are enrolled when the round opens.
    (1..=4).for_each(|i| drop(world.apply(world.enrol_event(i)).unwrap()));
    let (task, digest) = (world.id, world.spec.base_model);
    world.apply(Event::BlobArrived { task, digest }).unwrap();
    let digest = blob_digest(&all_rows().0);
    world.apply(Event::HoldoutArrived { task, digest }).unwrap();
    world
}

/// The members of the cohort, ascending by number.
fn cohort(world: &EngineFixture) -> Vec<u8> {
    (1..=4).filter(|i| world.offer().cohort.contains(&address(*i))).collect()
}

fn reason(world: &EngineFixture, member: u8) -> SelectionReason {
    let place = world.offer().cohort.binary_search(&address(member)).unwrap();
    world.offer().reasons[place]
}

/// An update from a base model.
fn header(world: &EngineFixture, member: u8, base_model: Digest) -> UpdateHeader {
    UpdateHeader { base_model, ..world.header(member) }
}

/// Plays the running round with the updates of these members.
fn play(world: &mut EngineFixture, updates: &[(u8, Digest)]) {
    for (member, base) in updates {
        let commitment = header(world, *member, *base).commitment();
        let commit = Commit { commitment, ..world.commit(*member) };
        world
            .apply(Event::Committed { commit: node(*member).sign(commit), bond: fln("5") })
            .unwrap();
    }
    for (member, base) in updates {
        let header = header(world, *member, *base);
        world.apply(Event::Revealed(node(*member).sign(header))).unwrap();
    }
    world.disclose();
    world.apply(world.valued_event()).unwrap();
    let round = RoundNumber(world.engine.state().tasks[&world.id].rounds.len() as u32);
    world.apply(Event::SettlementPosted { task: world.id, round }).unwrap();
}

#[test]
fn a_late_update_counts_in_the_next_round_with_its_staleness() {
    let mut world = open(1);
    let first = world.offer().base_model;
    let [one, two, late, other] = cohort(&world)[..] else { panic!("all four are selected") };
    play(&mut world, &[(one, first), (two, first)]);
    assert_ne!(world.offer().base_model, first, "the model changed");
    assert_eq!(reason(&world, late), SelectionReason::Continues);
    assert_eq!(reason(&world, one), SelectionReason::Drawn);
    let second = world.offer().base_model;
    play(&mut world, &[(late, first), (one, second)]);
    let report = world.engine.report(world.id, RoundNumber(2)).unwrap();
    let staleness = |member| {
        let entry = report.entries.iter().find(|entry| entry.sender == address(member)).unwrap();
        entry.staleness
    };
    assert_eq!((staleness(late), staleness(one)), (1, 0));
    // The fourth was late by more than a round: it sits out until it enrols again.
    assert!(!cohort(&world).contains(&other), "{:?}", cohort(&world));
    assert!(cohort(&world).contains(&late));
}

#[test]
fn a_newer_model_in_the_header_makes_no_update_less_stale() {
    for names_newer in [false, true] {
        let mut world = open(2);
        let first = world.offer().base_model;
        let members = cohort(&world);
        play(&mut world, &[(members[0], first), (members[1], first)]);
        let second = world.offer().base_model;
        let named = if names_newer { second } else { first };
        play(&mut world, &[(members[2], named), (members[0], second)]);
        let report = world.engine.report(world.id, RoundNumber(2)).unwrap();
        let late = report.entries.iter().find(|entry| entry.sender == address(members[2]));
        assert_eq!(late.unwrap().staleness, 1, "names the newer model: {names_newer}");
    }
}

#[test]
fn a_base_model_that_is_too_old_is_rejected() {
    let mut world = open(1);
    let first = world.offer().base_model;
    let members = cohort(&world);
    play(&mut world, &[(members[0], first), (members[1], first)]);
    let second = world.offer().base_model;
    play(&mut world, &[(members[2], first), (members[3], second)]);
    let member = cohort(&world)[0];
    let commitment = header(&world, member, first).commitment();
    for i in cohort(&world).into_iter().take(2) {
        let commit =
            Commit { commitment: header(&world, i, first).commitment(), ..world.commit(i) };
        world.apply(Event::Committed { commit: node(i).sign(commit), bond: fln("5") }).unwrap();
    }
    assert_eq!(header(&world, member, first).commitment(), commitment);
    let reveal = Event::Revealed(node(member).sign(header(&world, member, first)));
    assert_eq!(world.rejection_code(reveal), ErrorCode::WrongBaseModel);
    let reveal = Event::Revealed(node(member).sign(header(&world, member, second)));
    world.apply(reveal).unwrap();
}

#[test]
fn without_the_rule_no_late_update_counts() {
    let mut world = open(0);
    let first = world.offer().base_model;
    let members = cohort(&world);
    play(&mut world, &[(members[0], first), (members[1], first)]);
    assert!(cohort(&world).iter().all(|i| reason(&world, *i) != SelectionReason::Continues));
    let commit = Commit {
        commitment: header(&world, members[2], first).commitment(),
        ..world.commit(members[2])
    };
    world
        .apply(Event::Committed { commit: node(members[2]).sign(commit), bond: fln("5") })
        .unwrap();
    world.apply(world.commit_event(members[3])).unwrap();
    let reveal = Event::Revealed(node(members[2]).sign(header(&world, members[2], first)));
    assert_eq!(world.rejection_code(reveal), ErrorCode::WrongBaseModel);
}
