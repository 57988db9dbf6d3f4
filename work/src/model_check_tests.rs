//! Tests of the check of a round's model without its scores.

use florin_learning::{DataSource, data::load};
use florin_protocol::{AbandonReason, Digest, Micro, Report, RoundOutcome, blob_digest};

use crate::tests::{TestRound, shard, world, world_with};
use crate::{ModelCheck, check_model, encode_parameters};

fn check(world: &TestRound, report: &Report) -> ModelCheck {
    check_model(&world.audit_inputs(report, &world.disclosed_rows(), &[])).unwrap()
}

fn lines(checked: &ModelCheck) -> Vec<&str> {
    checked.mismatches.iter().map(|differs| differs.line.as_str()).collect()
}

fn world_with_baseline() -> TestRound {
    let digits = load(&DataSource::Digits).unwrap();
    let shards = [0, 1, 2].map(|at| Some(shard(&digits, at)));
    world_with(&digits, &shards, |spec| spec.rounds.baseline_epochs = 2)
}

#[test]
fn an_honest_model_is_recomputed_bit_for_bit() {
    for world in [world(), world_with_baseline()] {
        let outcome = world.outcome();
        let checked = check(&world, &world.report(Ok(&outcome.result)));
        assert_eq!(lines(&checked), [""; 0]);
        assert_eq!(checked.model, Some(outcome.model));
    }
    assert!(world_with_baseline().outcome().result.baseline.unwrap().is_adopted());
}

/// Every report is consistent in itself: only the bytes of updates and rows show the forgery.
#[test]
fn a_model_that_the_updates_do_not_give_is_detected() {
    let (world, with_baseline) = (world(), world_with_baseline());
    let honest = world.outcome().result;
    let forged = |change: &dyn Fn(&mut florin_protocol::WorkResult)| {
        let mut result = honest.clone();
        change(&mut result);
        check(&world, &world.report(Ok(&result)))
    };
    let trap = blob_digest(&encode_parameters(&world.spec, &[0.5; 650]));
    assert_eq!(lines(&forged(&|result| result.model = trap)), ["model"]);
    let heavier = |result: &mut florin_protocol::WorkResult| {
        result.valuation.scores[1].preprocessing.norm_factor = Micro(1_100_000);
    };
    assert_eq!(lines(&forged(&heavier)), ["valuation.scores[1].preprocessing.norm_factor"]);
    let honest = with_baseline.outcome().result;
    let mut without = honest.clone();
    without.baseline = None;
    let checked = check(&with_baseline, &with_baseline.report(Ok(&without)));
    assert_eq!(lines(&checked), ["baseline"]);
    let mut excluded = honest;
    excluded.valuation.scores[0].excluded = true;
    excluded.valuation.evidence.cross_check = None;
    let report = with_baseline.report(Ok(&excluded));
    assert_eq!(report.outcome, RoundOutcome::Settled);
    let checked = check(&with_baseline, &report);
    assert_eq!(lines(&checked), ["baseline", "model"], "the model has an excluded update");
}

#[test]
fn other_update_bytes_are_detected() {
    let mut world = world();
    let report = world.report(Ok(&world.outcome().result));
    world.updates[0] = world.updates[1].clone();
    let checked = check(&world, &report);
    assert_eq!(lines(&checked), ["entries[0].update's bytes"]);
    assert_eq!(checked.model, None);
}

#[test]
fn an_abandoned_round_leaves_the_model() {
    let world = world();
    let mut report = world.report(Err(AbandonReason::ValuationFailed));
    assert_eq!(lines(&check(&world, &report)), [""; 0]);
    report.model = Digest([7; 32]);
    assert_eq!(lines(&check(&world, &report)), ["model"]);
}
