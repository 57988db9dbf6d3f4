//! Tests of the checker, and of the schedules by the checker.

use super::super::{Order, Work, gpipe, messages, one_forward_one_backward};
use super::*;

fn shapes() -> impl Iterator<Item = PipelineShape> {
    (1..=4).flat_map(|parts| (1..=6).map(move |own| PipelineShape::new(parts, own).unwrap()))
}

fn all_messages(shape: PipelineShape, order: Order) -> Vec<Vec<PartAction>> {
    (0..shape.parts()).map(|part| messages(part, shape, order)).collect()
}

#[test]
fn one_forward_one_backward_with_enough_capacity_never_deadlocks() {
    for shape in shapes() {
        let parts = all_messages(shape, one_forward_one_backward);
        assert_eq!(can_deadlock(&parts, capacity_needed(shape)), Ok(None), "{shape:?}");
        assert_eq!(can_deadlock(&parts, 1), Ok(None), "one message is enough: {shape:?}");
    }
}

#[test]
fn the_capacity_needed_is_reached_and_never_exceeded() {
    for shape in shapes() {
        let parts = all_messages(shape, one_forward_one_backward);
        let parts: Vec<Vec<PartEvent>> = (0..)
            .zip(parts)
            .map(|(part, own)| own.into_iter().map(|action| PartEvent { part, action }).collect())
            .collect();
        let system = System::new(&parts, Matching::InOrder).unwrap();
        let mut most = 0;
        let found = system.explore(usize::MAX, &mut |counters| {
            let fills = system.channels.iter().map(|channel| channel.fill(counters));
            most = most.max(fills.max().unwrap_or(0));
        });
        assert_eq!(found, Ok(None));
        assert_eq!(most, capacity_needed(shape), "{shape:?}");
    }
}

#[test]
fn one_forward_one_backward_with_rendezvous_deadlocks_from_two_micro_batches_on() {
    for shape in shapes() {
        let found = can_deadlock(&all_messages(shape, one_forward_one_backward), 0).unwrap();
        let expected = shape.parts() > 1 && shape.micro_batches() > 1;
        assert_eq!(found.is_some(), expected, "{shape:?}");
        let gpipe = can_deadlock(&all_messages(shape, gpipe), 0);
        assert_eq!(gpipe, Ok(None), "all forward passes come first: {shape:?}");
    }
}

/// Both neighbours send first: part 0 its second activations, part 1 its first gradients.
#[test]
fn the_trace_of_a_rendezvous_ends_with_two_sends() {
    use MessageKind::{Activation, Gradient};
    let shape = PipelineShape::new(2, 2).unwrap();
    let parts = all_messages(shape, one_forward_one_backward);
    let found = can_deadlock(&parts, 0).unwrap().unwrap();
    let blocked = [
        PartEvent { part: 0, action: PartAction::Send { to: 1, kind: Activation, micro_batch: 1 } },
        PartEvent { part: 1, action: PartAction::Send { to: 0, kind: Gradient, micro_batch: 0 } },
    ];
    assert_eq!(found.blocked, blocked);
    // The trace can be executed, and leads to the blocked actions.
    let mut done = [0, 0];
    for event in &found.trace {
        let part = event.part as usize;
        assert_eq!(event.action, parts[part][done[part]]);
        done[part] += 1;
    }
    for (part, &done) in done.iter().enumerate() {
        assert_eq!(blocked[part].action, parts[part][done]);
    }
    let rendezvous = [
        PartEvent { part: 0, action: PartAction::Send { to: 1, kind: Activation, micro_batch: 0 } },
        PartEvent {
            part: 1,
            action: PartAction::Receive { from: 0, kind: Activation, micro_batch: 0 },
        },
    ];
    assert!(found.trace.windows(2).any(|pair| pair == rendezvous), "{:?}", found.trace);
}

/// The order of the messages of a pass, whose other parts come in ascending order.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Arrangement {
    /// By part and kind: receives and sends in ascending order.
    Ascending,
    /// As the other, but gradients are sent in descending order: to the nearest part first.
    NearestFirst,
    /// All sends go to the furthest part first.
    FurthestFirst,
}

/// The actions of all parts with values that skip parts sent directly, from part `a` to part `c`.
fn direct(
    shape: PipelineShape,
    skips: &[(u32, u32)],
    order: Order,
    arrangement: Arrangement,
) -> Vec<Vec<PartAction>> {
    let is_joined = |a: u32, c: u32| c == a + 1 || skips.contains(&(a, c));
    let of_part = |part: u32| {
        let earlier: Vec<u32> = (0..part).filter(|&a| is_joined(a, part)).collect();
        let later: Vec<u32> = (part + 1..shape.parts()).filter(|&c| is_joined(part, c)).collect();
        let of_work = |work: Work| {
            let (from, to, kind, micro_batch) = match work {
                Work::Forward(own) => (&earlier, &later, MessageKind::Activation, own),
                Work::Backward(own) => (&later, &earlier, MessageKind::Gradient, own),
            };
            let mut to = to.clone();
            match arrangement {
                Arrangement::Ascending => {}
                Arrangement::NearestFirst => to.sort_by_key(|to| to.abs_diff(part)),
                Arrangement::FurthestFirst => {
                    to.sort_by_key(|to| std::cmp::Reverse(to.abs_diff(part)));
                }
            }
            let receives = from.iter().map(|&from| PartAction::Receive { from, kind, micro_batch });
            let sends = to.into_iter().map(|to| PartAction::Send { to, kind, micro_batch });
            receives.chain([PartAction::Compute(work)]).chain(sends).collect::<Vec<_>>()
        };
        order(part, shape).into_iter().flat_map(of_work).collect()
    };
    (0..shape.parts()).map(of_part).collect()
}

/// All sets of skips.
fn skip_sets(parts: u32) -> Vec<Vec<(u32, u32)>> {
    let all: Vec<(u32, u32)> =
        (0..parts).flat_map(|a| (a + 2..parts).map(move |c| (a, c))).collect();
    let set = |bits: u32| {
        let is_in = |at: &usize| bits >> at & 1 == 1;
        (0..all.len()).filter(is_in).map(|at| all[at]).collect()
    };
    (0..1 << all.len()).map(set).collect()
}

/// All pipelines of up to 4 parts and 3 micro-batches with all sets of skips.
fn with_skips() -> impl Iterator<Item = (PipelineShape, Vec<(u32, u32)>)> {
    let shapes = shapes().filter(|shape| shape.micro_batches() <= 3);
    shapes.flat_map(|shape| skip_sets(shape.parts()).into_iter().map(move |set| (shape, set)))
}

#[test]
fn direct_skips_with_capacity_never_deadlock() {
    let arrangements =
        [Arrangement::Ascending, Arrangement::NearestFirst, Arrangement::FurthestFirst];
    for (shape, skips) in with_skips() {
        for (order, arrangement) in [one_forward_one_backward as Order, gpipe]
            .into_iter()
            .flat_map(|order| arrangements.map(|arrangement| (order, arrangement)))
        {
            let parts = direct(shape, &skips, order, arrangement);
            for capacity in [1, capacity_needed(shape).max(1)] {
                let found = can_deadlock(&parts, capacity);
                assert_eq!(found, Ok(None), "{shape:?} {skips:?} {arrangement:?} {capacity}");
            }
        }
    }
}

/// Messages by part and kind are not enough: the last part sends a gradient to part 0 first, which
/// waits for that of part 1, which waits for the last part.
#[test]
fn direct_skips_with_rendezvous_must_be_sent_to_the_nearest_part_first() {
    for (shape, skips) in with_skips() {
        for (arrangement, is_free) in [
            (Arrangement::NearestFirst, true),
            (Arrangement::Ascending, skips.is_empty()),
            (Arrangement::FurthestFirst, skips.is_empty()),
        ] {
            let found = can_deadlock(&direct(shape, &skips, gpipe, arrangement), 0).unwrap();
            assert_eq!(found.is_none(), is_free, "{shape:?} {skips:?} {arrangement:?}");
            let parts = direct(shape, &skips, one_forward_one_backward, arrangement);
            let found = can_deadlock(&parts, 0).unwrap();
            let is_short = shape.parts() == 1 || shape.micro_batches() == 1;
            assert_eq!(found.is_none(), is_free && is_short, "{shape:?} {skips:?} {arrangement:?}");
        }
    }
}

#[test]
fn swapped_receives_of_a_direct_skip_are_found() {
    let shape = PipelineShape::new(3, 3).unwrap();
    let mut parts = direct(shape, &[(0, 2)], one_forward_one_backward, Arrangement::NearestFirst);
    let capacity = capacity_needed(shape);
    assert_eq!(can_deadlock(&parts, capacity), Ok(None));
    let skip = |micro_batch: u32| PartAction::Receive {
        from: 0,
        kind: MessageKind::Activation,
        micro_batch,
    };
    let places: Vec<usize> = (0..2)
        .map(|own| parts[2].iter().position(|&action| action == skip(own)).unwrap())
        .collect();
    parts[2].swap(places[0], places[1]);
    let found = can_deadlock(&parts, capacity).unwrap().unwrap();
    assert!(found.blocked.contains(&PartEvent { part: 2, action: skip(1) }), "{:?}", found.blocked);
}

#[test]
fn a_missing_message_is_a_deadlock() {
    let shape = PipelineShape::new(2, 1).unwrap();
    let mut parts = all_messages(shape, gpipe);
    parts[0].retain(|action| !matches!(action, PartAction::Send { .. }));
    let found = can_deadlock(&parts, 1).unwrap().unwrap();
    assert_eq!(found.blocked.len(), 2);
}

/// Both parts send two messages before they receive.
#[test]
fn a_send_waits_for_room_in_its_channel() {
    let exchange = |other: u32| {
        let kind = MessageKind::Activation;
        let sends =
            (0..2).map(move |micro_batch| PartAction::Send { to: other, kind, micro_batch });
        let receives =
            (0..2).map(|micro_batch| PartAction::Receive { from: other, kind, micro_batch });
        sends.chain(receives).collect::<Vec<_>>()
    };
    let parts = [exchange(1), exchange(0)];
    let blocked = |capacity| {
        let found = can_deadlock(&parts, capacity).unwrap();
        found.map(|found| found.blocked.iter().map(|event| event.action).collect::<Vec<_>>())
    };
    assert_eq!(blocked(0), Some(vec![parts[0][0], parts[1][0]]));
    assert_eq!(blocked(1), Some(vec![parts[0][1], parts[1][1]]));
    assert_eq!(blocked(2), None);
}

#[test]
fn checks_are_bounded() {
    let to = |to| {
        vec![vec![PartAction::Send { to, kind: MessageKind::Activation, micro_batch: 0 }], vec![]]
    };
    for other in [0, 2, u32::MAX] {
        let wrong = CheckError::NoSuchPart { part: 0, other, parts: 2 };
        assert_eq!(can_deadlock(&to(other), 1), Err(wrong));
    }
    let parts = vec![vec![]; PARTS_MAX as usize + 1];
    let wrong = CheckError::TooManyParts { parts: parts.len() };
    assert_eq!(can_deadlock(&parts, 1), Err(wrong));
    // 33 to the power of 4 states.
    let parts = vec![vec![PartAction::Compute(Work::Forward(0)); 32]; 4];
    assert_eq!(can_deadlock(&parts, 1), Err(CheckError::TooManyStates));
    assert_eq!(can_deadlock(&parts[..3], 1), Ok(None));
}

#[test]
fn the_capacity_of_both_ends_is_never_exceeded() {
    use super::super::PartPlacement::EndsTogether;
    for processes in 2..=4 {
        for micro_batches in 1..=6 {
            let shape = PipelineShape::new(EndsTogether.parts(processes), micro_batches).unwrap();
            let all: Vec<_> = (0..processes).map(|own| EndsTogether.actions(own, shape)).collect();
            let system = System::new(&all, Matching::ByTag).unwrap();
            let mut most = 0;
            let found = system.explore(usize::MAX, &mut |counters| {
                let fills = system.channels.iter().map(|channel| channel.fill(counters));
                most = most.max(fills.max().unwrap_or(0));
            });
            assert_eq!(found, Ok(None));
            println!("{shape:?}: {most} of {}", EndsTogether.capacity(shape));
            assert!(most <= EndsTogether.capacity(shape), "{shape:?}: {most}");
        }
    }
}
