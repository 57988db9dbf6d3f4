//! What everybody could read when a round began is nobody's work: public steps, and the updates of the round before.

use florin_learning::Reference;
use florin_protocol::*;

use crate::tests::{decoded, world};
use crate::*;

#[test]
fn the_step_of_the_round_before_is_nobodys_work() {
    let world = world();
    let base = check_model(&world.spec, &world.base).unwrap();
    let delta = decoded(&world.spec, &world.updates[0]).unwrap();
    let before: Vec<f32> = base.iter().zip(&delta).map(|(base, step)| base - step).collect();
    let previous = encode(&world.spec, &before);
    let (drawn, shown) = (world.drawn(), world.shown());
    let previous = vec![previous];
    let inputs = Inputs { previous: &previous, ..world.inputs(&drawn, &shown) };
    let scores = carry_out(&inputs, &mut Reference::new()).unwrap().result.valuation.scores;
    assert_eq!(scores[0].treatment.repeats.unwrap().of, Origin::PublicSteps);
    assert_eq!(scores[1].treatment.repeats, None);
    let report = world.report(Ok(&world.outcome().result));
    let inputs = AuditInputs { round: inputs, ..world.audited(&report, &shown, &[]) };
    let found = audit_round(&inputs, &mut Reference::new()).unwrap();
    assert_eq!(found[0].line, "earlier base models' bytes");
}

#[test]
fn what_somebody_sent_a_round_before_is_not_paid_again() {
    let world = world();
    let bytes = vec![world.updates[0].clone()];
    let (drawn, shown) = (world.drawn(), world.shown());
    let by = |sender| [(sender, blob_digest(&bytes[0]))];
    let named = by(Address([99; 20]));
    let last = LastUpdates { named: &named, bytes: &bytes };
    let inputs = Inputs { last, ..world.inputs(&drawn, &shown) };
    let scores = carry_out(&inputs, &mut Reference::new()).unwrap().result.valuation.scores;
    let repeat = Repeat { of: Origin::LastUpdate(Address([99; 20])), cosine: Micro::ONE };
    assert_eq!(scores[0].treatment.repeats, Some(repeat));
    assert_eq!(scores[1].treatment.repeats, None);
    // Its own is its own.
    let named = by(world.entries[0].sender);
    let inputs = Inputs { last: LastUpdates { named: &named, ..last }, ..inputs };
    let scores = carry_out(&inputs, &mut Reference::new()).unwrap().result.valuation.scores;
    assert_eq!(scores[0].treatment.repeats, None);
    let report = world.report(Ok(&world.outcome().result));
    let audited = AuditInputs { round: inputs, ..world.audited(&report, &shown, &[]) };
    let found = audit_round(&audited, &mut Reference::new()).unwrap();
    assert_eq!(found[0].line, "updates of the round before");
    let inputs = Inputs { last: LastUpdates { bytes: &NOTHING, ..last }, ..inputs };
    let error = carry_out(&inputs, &mut Reference::new()).unwrap_err();
    assert!(matches!(error, WorkError::Count { entries: 1, updates: 0 }), "{error}");
}

#[test]
fn a_round_is_held_against_what_others_worked_out_before_it() {
    let world = world();
    let rules = Protection { clip: Clip::Median, repeats: Repeats::SetAside };
    let mut report = world.report(Ok(&world.outcome().result));
    let all: Vec<_> = report.entries.iter().map(|e| (e.sender, e.update)).collect();
    assert_eq!(last_updates(rules, Some(&report), 1_000), all);
    assert_eq!(last_updates(rules, None, 1_000), []);
    assert_eq!(last_updates(rules, Some(&report), limits::LAST_UPDATES_BYTES_MAX), []);
    let counted = Protection { repeats: Repeats::Counted, ..rules };
    assert_eq!(last_updates(counted, Some(&report), 1_000), []);
    // Whoever sends a member's old update again does not make that member a copier.
    let scores = &mut report.valuation.as_mut().unwrap().scores;
    scores[0].treatment.repeats = Some(Repeat { of: Origin::PublicSteps, cosine: Micro::ONE });
    assert_eq!(last_updates(rules, Some(&report), 1_000), all[1..]);
    report.valuation = None;
    assert_eq!(last_updates(rules, Some(&report), 1_000), all);
}
