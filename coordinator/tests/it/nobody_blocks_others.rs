//! One party's cheap trick costs the others nothing: hidden blobs, silent senders, greedy registrations, bad records.

use florin_coordinator::engine::{Event, Visibility};
use florin_protocol::*;

use crate::rules_refuse_by_name::whole_task;
use crate::support::*;

/// A stranger's cheap task that is judged by `holdout`.
fn strangers_task(holdout: Digest) -> (TaskId, Event) {
    let mut spec = TaskSpec { salt: 77, buyer: address(99), ..spec() };
    spec.base_model = Digest([78; 32]);
    spec.holdout.digest = holdout;
    (spec.id(), Event::Published { spec: spec.into(), model_bytes: MODEL_BYTES })
}

#[test]
fn nobody_hides_a_model_or_an_update_by_calling_it_a_holdout() {
    let mut world = whole_task();
    let past = &world.engine.state().tasks[&world.id].past[0];
    let known = [
        ("a base model", world.spec.base_model),
        ("a round's model", past.report.model),
        ("an update", past.report.entries[0].update),
        ("published rows", world.spec.holdout.digest),
        ("its own base model", Digest([78; 32])),
    ];
    for (name, digest) in known {
        assert_eq!(world.code(strangers_task(digest).1), Code::Conflicting, "{name}");
    }
    let mut running = World::valuing(4);
    let update = running.order().entries[0].update;
    assert_eq!(running.code(strangers_task(update).1), Code::Conflicting);
}

#[test]
fn a_holdout_that_was_never_delivered_hides_nothing_and_is_never_public() {
    let mut world = World::valuing(4);
    // Known to a provider before the report that makes it public.
    let model = world.result().model;
    let (task, event) = strangers_task(model);
    world.tell(event).unwrap();
    assert_eq!(world.engine.visibility(model), Visibility::NotYet);
    world.tell(world.valued()).unwrap();
    assert_eq!(world.engine.visibility(model), Visibility::Public);
    let secret = Digest([79; 32]);
    let mut spec = TaskSpec { salt: 80, buyer: address(99), ..spec() };
    spec.holdout.digest = secret;
    let ended = spec.id();
    let event = Event::Published { spec: spec.into(), model_bytes: MODEL_BYTES };
    world.tell(event).unwrap();
    for task in [task, ended] {
        world.tell(Event::CloseRequested { task }).unwrap();
    }
    assert_ne!(world.engine.visibility(secret), Visibility::Public);
}
