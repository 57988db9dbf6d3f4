//! The draw of cohorts: by salts, and not by what a participant or the coordinator can choose.

use std::collections::BTreeSet;

use florin_engine::Event;
use florin_protocol::*;

use crate::support::*;

/// A task for four of nine members, of which three are enrolled.
fn nine() -> EngineFixture {
    let spec = TaskSpec { expires: Timestamp(9_000_000), ..spec() };
    let mut world = EngineFixture::with_published_spec(spec, 9);
    (1..=3).for_each(|i| drop(world.apply(world.enrol_event(i)).unwrap()));
    world
}

fn open_with(mut world: EngineFixture, members: std::ops::RangeInclusive<u8>) -> EngineFixture {
    // The fourth enrolment opens the round.
    for i in members {
        world.apply(world.enrol_event(i)).unwrap();
    }
    world
}

fn in_cohort(world: &EngineFixture) -> Vec<u8> {
    (1..=9).filter(|i| world.offer().cohort.contains(&address(*i))).collect()
}

/// Plays the running round, `pause` milliseconds between any two events, with salts that follow
/// from `salt`. The late members enrol when the commits are closed.
fn play(world: &mut EngineFixture, pause: u64, salt: u8, late: &[u8]) {
    play_with(world, pause, salt, late, usize::MAX);
}

/// The same with at most this many commits; with fewer than the round waits for, it waits for its deadline.
fn play_with(world: &mut EngineFixture, pause: u64, salt: u8, late: &[u8], most: usize) {
    let mut cohort = in_cohort(world);
    cohort.truncate(most);
    let header = |world: &EngineFixture, i: u8| UpdateHeader {
        salt: Digest([salt ^ i; 32]),
        ..world.header(i)
    };
    let wait = |world: &mut EngineFixture| world.now = world.now.saturating_add_ms(pause);
    for i in &cohort {
        wait(world);
        let commitment = header(world, *i).commitment();
        let commit = Commit { commitment, ..world.commit(*i) };
        world.apply(Event::Committed { commit: node(*i).sign(commit), bond: fln("5") }).unwrap();
    }
    for i in late {
        world.apply(world.enrol_event(*i)).unwrap();
    }
    if most < usize::MAX {
        world.now = world.offer().commit_by.saturating_add_ms(1);
        world.apply(Event::Tick).unwrap();
    }
    for i in &cohort {
        wait(world);
        let header = header(world, *i);
        world.apply(Event::Revealed(node(*i).sign(header))).unwrap();
    }
    wait(world);
    world.disclose();
    wait(world);
    world.apply(world.valued_event()).unwrap();
    wait(world);
    let round = RoundNumber(world.engine.state().tasks[&world.id].rounds.len() as u32);
    world.apply(Event::SettlementPosted { task: world.id, round }).unwrap();
}

#[test]
fn the_first_cohort_follows_from_the_holdout_and_all_enrolled_accounts() {
    let world = open_with(nine(), 4..=4);
    let mut members: Vec<Address> = (1..=4).map(address).collect();
    members.sort_unstable();
    assert_eq!(world.offer().cohort, members, "there is no choice");
    // Here nine are enrolled when the blobs arrive and the round opens for three.
    let mut spec = spec();
    spec.rounds.cohort_target = 3;
    spec.rounds.count = 1;
    let mut world = EngineFixture::new(spec);
    for i in 1..=9 {
        world.apply(Event::Registered(registration(i, Role::Participant))).unwrap();
    }
    let publish = Event::TaskPublished {
        spec: world.spec.clone().into(),
        model_bytes: MODEL_BYTES,
        update_bytes: MODEL_BYTES,
    };
    world.apply(publish).unwrap();
    let (task, digest) = (world.id, world.spec.base_model);
    (1..=9).for_each(|i| drop(world.apply(world.enrol_event(i)).unwrap()));
    world.apply(Event::BlobArrived { task, digest }).unwrap();
    let holdout = blob_digest(&all_rows().0);
    world.apply(Event::HoldoutArrived { task, digest: holdout }).unwrap();
    let all: Vec<Address> = (1..=9).map(address).collect::<BTreeSet<_>>().into_iter().collect();
    let seed = first_cohort_seed(task, holdout, &all);
    let drawn = draw_cohort(seed, RoundNumber(1), all.iter().copied(), 3);
    assert_eq!(world.offer().cohort, drawn);
}

#[test]
fn later_cohorts_follow_from_salts_and_not_from_the_clock() {
    let cohort = |pause, salt| {
        let mut world = open_with(nine(), 4..=9);
        play(&mut world, pause, salt, &[]);
        let report = world.engine.report(world.id, RoundNumber(1)).unwrap();
        let seed = round_seed(report.scope, &report.commits, &report.entries);
        let drawn = draw_cohort(seed, RoundNumber(2), (1..=9).map(address), 4);
        assert_eq!(world.offer().cohort, drawn);
        in_cohort(&world)
    };
    let first = cohort(0, 1);
    for pause in 1..20 {
        assert_eq!(cohort(pause, 1), first, "the coordinator chooses its moments");
    }
    let different = (2..20).filter(|salt| cohort(0, *salt) != first).count();
    assert!(different > 10, "{different} of 18 other salts draw another cohort");
}

#[test]
fn an_account_that_enrols_when_the_salts_are_known_takes_only_places_that_are_left() {
    // Five members, of which four are drawn: the fifth enrols before round 1's commits close.
    let mut selected = BTreeSet::new();
    for salt in 0..20 {
        let mut world = open_with(nine(), 4..=5);
        play(&mut world, 0, salt, &[6, 7, 8, 9]);
        selected.extend(in_cohort(&world));
    }
    assert_eq!(selected, (1..=5).collect());
    // Without the fifth, one of four members is silent: newcomers fill the places that are left.
    let mut world = open_with(nine(), 4..=4);
    let cohort = in_cohort(&world);
    for i in &cohort[..3] {
        world.apply(world.commit_event(*i)).unwrap();
    }
    world.now = world.engine.next_deadline().unwrap();
    world.apply(Event::Tick).unwrap();
    world.apply(world.enrol_event(8)).unwrap();
    for i in &cohort[..3] {
        world.apply(world.reveal_event(*i)).unwrap();
    }
    world.disclose();
    world.apply(world.valued_event()).unwrap();
    world.apply(Event::SettlementPosted { task: world.id, round: RoundNumber(1) }).unwrap();
    assert!(world.offer().cohort.contains(&address(8)));
    // In the next draw it is a member like the others.
    assert!(world.engine.state().tasks[&world.id].newcomers.contains(&address(8)));
    play(&mut world, 0, 3, &[]);
    assert!(world.engine.state().tasks[&world.id].newcomers.is_empty());
}

/// An attacker searches for addresses whose tickets would be small if the task's id were the seed,
/// as it once was.
#[test]
fn a_search_for_addresses_by_the_tasks_id_gains_nothing() {
    let (tasks, honest, asked) = (40u64, 9, 3);
    let mut taken = 0;
    for salt in 0..tasks {
        let mut spec = TaskSpec { salt, ..spec() };
        spec.rounds.cohort_target = asked;
        spec.rounds.cohort_min = 2;
        let mut world = EngineFixture::new(spec);
        let candidates = (0..2_000u32).map(|n| {
            let mut bytes = [0xcc; 20];
            bytes[..4].copy_from_slice(&n.to_be_bytes());
            Address(bytes)
        });
        let searched = draw_cohort(Digest(world.id.0), RoundNumber(1), candidates, 3);
        let members = (1..=honest).map(address).chain(searched.clone());
        let publish = Event::TaskPublished {
            spec: world.spec.clone().into(),
            model_bytes: MODEL_BYTES,
            update_bytes: MODEL_BYTES,
        };
        world.apply(publish).unwrap();
        let (task, digest) = (world.id, world.spec.base_model);
        for wallet in members {
            let registration = Registration { wallet, ..registration(1, Role::Participant) };
            world.apply(Event::Registered(registration)).unwrap();
            let enrol =
                EnrolRequest::without_invitation(market(), task, wallet, Timestamp(1_000_000));
            world.apply(Event::Enrolled { enrol: node(1).sign(enrol), bond: fln("5") }).unwrap();
        }
        world.apply(Event::BlobArrived { task, digest }).unwrap();
        world.apply(Event::HoldoutArrived { task, digest: blob_digest(&all_rows().0) }).unwrap();
        taken += searched.iter().filter(|who| world.offer().cohort.contains(who)).count();
    }
    // A quarter of 120 places is expected; the bound is 5 standard deviations. The search would
    // have taken all of them.
    assert!((8..=52).contains(&taken), "{taken} of {} places", tasks * u64::from(asked));
}

#[test]
fn every_knob_selects_by_the_published_candidates_and_the_reports() {
    for knob in SelectionKnob::ALL {
        let mut spec = TaskSpec { expires: Timestamp(9_000_000), ..spec() };
        spec.rounds.selection = Selection { knob, explore: Micro(250_000) };
        spec.rounds.deadline =
            DeadlineRule::Predicted { quantile: Micro::ONE, slack: Micro(3_000_000) };
        let mut world = EngineFixture::with_published_spec(spec, 9);
        (1..=9).for_each(|i| drop(world.apply(world.enrol_event(i)).unwrap()));
        let mut history = TaskHistory::default();
        for number in 1..=3 {
            let round = RoundNumber(number);
            let offer = world.offer().clone();
            let candidates =
                world.engine.running_candidates(world.id, round).unwrap().unwrap().clone();
            assert_eq!(offer.candidates, candidates.digest(), "{knob:?}");
            let rules = &world.spec.rounds.clone();
            let selected = select_cohort(rules, round, &candidates, &history);
            let (cohort, reasons): (Vec<_>, Vec<_>) =
                selected.into_iter().map(|one| (one.account, one.reason)).unzip();
            assert_eq!((&offer.cohort, &offer.reasons), (&cohort, &reasons), "{knob:?}");
            let allowed = commit_deadline_ms(rules, round, &candidates, &history, &cohort);
            assert_eq!(offer.commit_by, offer.opened.saturating_add_ms(allowed), "{knob:?}");
            play(&mut world, 7, number as u8, &[]);
            let report = world.engine.report(world.id, round).unwrap();
            // Each event of `play` takes 7 ms.
            let times: Vec<u64> =
                report.times.commits.iter().map(|at| at.ms_since(offer.opened)).collect();
            let expected: Vec<u64> = (1..=cohort.len() as u64).map(|i| 7 * i).collect();
            assert_eq!((times.len(), times.iter().max()), (cohort.len(), expected.last()));
            assert_eq!(Some(&report.times.commits_closed), report.times.commits.iter().max());
            history.add_round(rules.staleness, report);
        }
    }
}

/// Two of the four that were asked commit before the deadline: the next round asks all that are left, and not
/// four again.
#[test]
fn where_members_are_away_the_next_round_asks_more() {
    for knob in [SelectionKnob::FairWork, SelectionKnob::Fast] {
        let mut spec = TaskSpec { expires: Timestamp(9_000_000), ..spec() };
        spec.rounds.selection = Selection { knob, explore: Micro::ZERO };
        spec.rounds.over_selection = 4;
        let mut world = EngineFixture::with_published_spec(spec, 9);
        (1..=9).for_each(|i| drop(world.apply(world.enrol_event(i)).unwrap()));
        let first = world.offer().cohort.len();
        play_with(&mut world, 7, 1, &[], 2);
        assert_eq!((first, world.offer().cohort.len()), (4, 7), "{knob:?}");
        assert_eq!(world.offer().scope.round, RoundNumber(2));
    }
}
