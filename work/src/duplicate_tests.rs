//! Near-duplicates of public vectors: global model deltas and updates of earlier rounds.

use florin_learning::Reference;
use florin_protocol::*;

use crate::tests::{decoded, world};
use crate::*;

#[test]
fn a_replayed_global_model_delta_is_rejected() {
    let world = world();
    let base = decode_model(&world.spec, &world.base).unwrap();
    let delta = decoded(&world.spec, &world.updates[0]).unwrap();
    let before: Vec<f32> = base.iter().zip(&delta).map(|(base, step)| base - step).collect();
    let previous = encode_parameters(&world.spec, &before);
    let (drawn, shown) = (world.drawn(), world.disclosed_rows());
    let previous = vec![previous];
    let inputs = ValuationInputs { previous_models: &previous, ..world.inputs(&drawn, &shown) };
    let scores =
        value_and_aggregate(&inputs, &mut Reference::new()).unwrap().result.valuation.scores;
    assert_eq!(scores[0].preprocessing.duplicate_of.unwrap().source, DuplicateSource::GlobalDeltas);
    assert_eq!(scores[1].preprocessing.duplicate_of, None);
    let report = world.report(Ok(&world.outcome().result));
    let inputs = AuditInputs { round: inputs, ..world.audit_inputs(&report, &shown, &[]) };
    let found = audit_round(&inputs, &mut Reference::new()).unwrap();
    assert_eq!(found[0].line, "earlier base models' bytes");
}

#[test]
fn a_copy_of_an_earlier_rounds_update_is_rejected() {
    let world = world();
    let bytes = vec![world.updates[0].clone()];
    let (drawn, shown) = (world.drawn(), world.disclosed_rows());
    let by = |sender| [(sender, blob_digest(&bytes[0]))];
    let named = by(Address([99; 20]));
    let last = EarlierUpdateBlobs { ids: &named, bytes: &bytes };
    let inputs = ValuationInputs { earlier_updates: last, ..world.inputs(&drawn, &shown) };
    let scores =
        value_and_aggregate(&inputs, &mut Reference::new()).unwrap().result.valuation.scores;
    let repeat = DuplicateMatch {
        source: DuplicateSource::EarlierRound(Address([99; 20])),
        cosine: Micro::ONE,
    };
    assert_eq!(scores[0].preprocessing.duplicate_of, Some(repeat));
    assert_eq!(scores[1].preprocessing.duplicate_of, None);
    // A sender may repeat its own update.
    let named = by(world.entries[0].sender);
    let inputs =
        ValuationInputs { earlier_updates: EarlierUpdateBlobs { ids: &named, ..last }, ..inputs };
    let scores =
        value_and_aggregate(&inputs, &mut Reference::new()).unwrap().result.valuation.scores;
    assert_eq!(scores[0].preprocessing.duplicate_of, None);
    let report = world.report(Ok(&world.outcome().result));
    let audited = AuditInputs { round: inputs, ..world.audit_inputs(&report, &shown, &[]) };
    let found = audit_round(&audited, &mut Reference::new()).unwrap();
    assert_eq!(found[0].line, "updates of earlier rounds");
    let inputs = ValuationInputs {
        earlier_updates: EarlierUpdateBlobs { bytes: &NO_BLOBS, ..last },
        ..inputs
    };
    let error = value_and_aggregate(&inputs, &mut Reference::new()).unwrap_err();
    assert!(matches!(error, WorkError::Count { entries: 1, updates: 0 }), "{error}");
}

const RULES: PreprocessingRules = PreprocessingRules::DEFAULT;

/// The senders of the earlier updates with which the next round is compared; `bytes` is the size of
/// an update.
fn senders(reports: &[Report], bytes: u64) -> Vec<u8> {
    let held = EarlierUpdates::from_reports(reports).reference_updates(RULES, bytes);
    held.iter().map(|(sender, _)| sender.0[0]).collect()
}

/// The report of a round with updates of the senders `by`, in commit order, and v(N) =
/// `total_nano`.
fn report_with(by: &[u8], total_nano: i64) -> Report {
    let world = world();
    let mut report = world.report(Ok(&world.outcome().result));
    let entry = report.entries[0].clone();
    let orders = by.iter().zip(1..);
    let entries = orders.map(|(by, order)| {
        let sender = Address([*by; 20]);
        UpdateEntry { sender, commit_position: order, update: Digest([*by; 32]), ..entry.clone() }
    });
    report.entries = entries.collect();
    report.entries.sort_by_key(|entry| entry.sender);
    let valuation = report.valuation.as_mut().unwrap();
    valuation.total_nano = total_nano;
    report.outcome = match total_nano > 0 {
        true => RoundOutcome::Settled,
        false => RoundOutcome::Void(VoidReason::NoImprovement),
    };
    let score = valuation.scores[0];
    let scores = report.entries.iter();
    valuation.scores = scores.map(|entry| UpdateScore { account: entry.sender, ..score }).collect();
    report
}

#[test]
fn updates_are_compared_with_all_updates_since_the_last_productive_round() {
    let unvalued = |report: &Report| Report {
        valuation: None,
        outcome: RoundOutcome::Abandoned(AbandonReason::ValuationFailed),
        ..report.clone()
    };
    let (first, second) = (report_with(&[3, 1], 10), report_with(&[4, 2, 5], 20));
    assert!(senders(&[], 1).is_empty());
    // In commit order, and nothing from before the last productive round.
    assert_eq!(senders(std::slice::from_ref(&first), 1), [3, 1]);
    assert_eq!(senders(&[first.clone(), second.clone()], 1), [4, 2, 5]);
    // An unproductive or abandoned round does not improve the model.
    for nothing in [report_with(&[4, 2, 5], 0), report_with(&[4, 2, 5], -7), unvalued(&second)] {
        let mut reports = vec![first.clone(), nothing.clone()];
        assert_eq!(senders(&reports, 1), [3, 1, 4, 2, 5]);
        reports.push(nothing);
        assert_eq!(senders(&reports, 1), [3, 1, 4, 2, 5, 4, 2, 5]);
        reports.push(second.clone());
        assert_eq!(senders(&reports, 1), [4, 2, 5]);
    }
    // Also if no round has been productive yet.
    assert_eq!(senders(&[unvalued(&first), unvalued(&second)], 1), [3, 1, 4, 2, 5]);
}

#[test]
fn rejected_copies_are_not_compared_and_accepting_duplicates_disables_it() {
    let mut report = report_with(&[3, 1], 10);
    let scores = &mut report.valuation.as_mut().unwrap().scores;
    // Repeating a member's old update does not make that member a copier.
    scores[0].preprocessing.duplicate_of =
        Some(DuplicateMatch { source: DuplicateSource::GlobalDeltas, cosine: Micro::ONE });
    let report = std::slice::from_ref(&report);
    assert_eq!(senders(report, 1), [3]);
    let counted = PreprocessingRules { near_duplicates: DuplicatePolicy::Accept, ..RULES };
    assert_eq!(EarlierUpdates::from_reports(report).reference_updates(counted, 1), []);
}

#[test]
fn failed_rounds_evict_neither_the_last_productive_round_nor_the_latest_ones() {
    let numbered = |n: u8| Report { valuation: None, ..report_with(&[n], 0) };
    let mut reports = vec![report_with(&[100, 101], 10)];
    reports.extend((1..=10).map(numbered));
    assert_eq!(senders(&reports, 1), [100, 101, 4, 5, 6, 7, 8, 9, 10]);
    // Memory for five updates: the first round and the latest three. For one: the first round does
    // not fit, the latest does.
    let room = |updates: u64| limits::EARLIER_UPDATES_BYTES_MAX / updates;
    assert_eq!(senders(&reports, room(5)), [100, 101, 8, 9, 10]);
    assert_eq!(senders(&reports, room(1)), [10]);
    assert!(senders(&reports, limits::EARLIER_UPDATES_BYTES_MAX + 1).is_empty());
}
