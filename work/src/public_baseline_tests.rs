//! Tests of the public baseline.

use florin_learning::data::load;
use florin_learning::{DataSource, Reference};
use florin_protocol::{Micro, Report, blob_digest};

use crate::round::{ValuationInputs, WorkError, compare_results, value_and_aggregate};
use crate::tests::{TestRound, shard, world_with};
use crate::{SpotCheckOptions, ValuationOutput, audit_round, baseline_rows, spot_check_round};

/// Rows that two earlier rounds disclosed; the round's own are drawn from the others.
fn earlier(world: &TestRound) -> (Vec<u32>, Vec<Vec<u8>>) {
    let drawn = world.drawn();
    let each = drawn.len();
    let unused: Vec<u32> = (0..500).filter(|row| !drawn.contains(row)).take(2 * each).collect();
    let disclose = |rows: &[u32]| world.committed.disclose(rows).unwrap().to_bytes();
    let rounds = unused.chunks(each).map(disclose).collect();
    (unused, rounds)
}

fn world(epochs: u32) -> TestRound {
    let digits = load(&DataSource::Digits).unwrap();
    let shards = [0, 1, 2].map(|at| Some(shard(&digits, at)));
    world_with(&digits, &shards, |spec| spec.rounds.baseline_epochs = epochs)
}

fn value(world: &TestRound, rounds: &[Vec<u8>]) -> Result<ValuationOutput, WorkError> {
    let (drawn, shown) = (world.drawn(), world.disclosed_rows());
    let rounds: Vec<&[u8]> = rounds.iter().map(Vec::as_slice).collect();
    let inputs =
        ValuationInputs { earlier_rows: &rounds.as_slice(), ..world.inputs(&drawn, &shown) };
    value_and_aggregate(&inputs, &mut Reference::new())
}

#[test]
fn the_model_also_trains_on_disclosed_rows() {
    let world = world(2);
    let (rows, rounds) = earlier(&world);
    let done = value(&world, &rounds).unwrap();
    let baseline = done.result.baseline.unwrap();
    assert_eq!(baseline.rows as usize, rows.len() + world.drawn().len());
    assert!(baseline.is_adopted());
    assert_eq!(baseline.loss_before_nano, done.result.valuation.model_loss_nano);
    assert!(done.result.metrics.loss_after_nano < done.result.valuation.model_loss_nano);
    assert_eq!(done.result.model, blob_digest(&done.model));
    // The first round has its own rows only.
    let first = value(&world, &[]).unwrap().result;
    assert_eq!(first.baseline.unwrap().rows as usize, world.drawn().len());
    // Pay is the same with and without the baseline.
    let without = value(&self::world(0), &[]).unwrap().result;
    assert_eq!(without.baseline, None);
    let scores = |result: &florin_protocol::WorkResult| {
        result.valuation.scores.iter().map(|score| score.score_nano).collect::<Vec<_>>()
    };
    assert_eq!(scores(&first), scores(&done.result));
    assert_ne!(first.model, without.model);
}

/// Every machine must compute these bits.
#[test]
fn the_model_of_a_baseline_matches_the_recorded_digest() {
    let world = world(2);
    let (_, rounds) = earlier(&world);
    let model = value(&world, &rounds).unwrap().result.model;
    assert_eq!(model.to_string(), RECORDED);
}

const RECORDED: &str = "154077ae2b8affd4063565f76e6dda891390ecc08f88ba132670c98bbbdd9c81";

#[test]
fn a_step_that_raises_the_loss_or_diverges_is_not_kept() {
    let mut world = world(2);
    let (_, rounds) = earlier(&world);
    let kept = value(&world, &rounds).unwrap();
    // A decay that forgets almost everything in each step, and one that makes the parameters grow.
    for (rate, diverges) in [(900_000, false), (100_000_000, true)] {
        world.spec.training.weight_decay = Micro::ONE;
        world.spec.training.learning_rate = Micro(rate);
        let done = value(&world, &rounds).unwrap();
        let baseline = done.result.baseline.unwrap();
        assert!(!baseline.is_adopted(), "{baseline:?}");
        assert_eq!(baseline.validation_loss_nano.is_none(), diverges, "{baseline:?}");
        assert_ne!(done.result.model, kept.result.model);
        let aggregated = done.result.valuation.model_loss_nano;
        assert_eq!(done.result.metrics.loss_after_nano, aggregated, "the aggregated model stays");
    }
}

/// Large steps end at random: cross-validation of the smaller trainings may succeed although the last
/// training fails.
#[test]
fn an_adopted_step_lowers_the_loss_of_the_rounds_own_rows() {
    let mut world = world(1);
    let (_, rounds) = earlier(&world);
    let mut adopted = 0;
    for rate in (1..=40).map(|step| Micro(step * 2_000_000)) {
        world.spec.training.learning_rate = rate;
        let done = value(&world, &rounds).unwrap().result;
        let (baseline, aggregated) = (done.baseline.unwrap(), done.valuation.model_loss_nano);
        if baseline.is_adopted() {
            adopted += 1;
            assert!(done.metrics.loss_after_nano < aggregated, "{rate}: {baseline:?}");
        } else {
            assert_eq!(done.metrics.loss_after_nano, aggregated, "{rate}: {baseline:?}");
        }
    }
    assert!((1..40).contains(&adopted), "{adopted}");
}

#[test]
fn rows_that_the_task_did_not_commit_to_are_refused() {
    let world = world(2);
    let (_, mut rounds) = earlier(&world);
    let last = rounds[1].len() - 1;
    rounds[1][last] ^= 1;
    let error = value(&world, &rounds).unwrap_err();
    assert!(matches!(error, WorkError::Disclosure(_)), "{error}");
}

#[test]
fn an_audit_recomputes_the_baseline() {
    let world = world(2);
    let (rows, rounds) = earlier(&world);
    let done = value(&world, &rounds).unwrap();
    let report = world.report(Ok(&done.result));
    let audit = |report: &Report, rows: &[u32], rounds: &[Vec<u8>]| {
        let shown = world.disclosed_rows();
        let rounds: Vec<&[u8]> = rounds.iter().map(Vec::as_slice).collect();
        let rounds = rounds.as_slice();
        let inputs = world.audit_inputs(report, &shown, rows);
        let round = ValuationInputs { earlier_rows: &rounds, ..inputs.round };
        let found = audit_round(&crate::AuditInputs { round, ..inputs }, &mut Reference::new());
        found.unwrap().into_iter().map(|found| found.line).collect::<Vec<_>>()
    };
    // The draw of the round does not know of the earlier rounds that this test invents.
    let of_baseline = |found: Vec<String>| {
        found.into_iter().filter(|line| !line.starts_with("holdout.rows")).collect::<Vec<_>>()
    };
    assert_eq!(of_baseline(audit(&report, &rows, &rounds)), [""; 0]);
    assert_eq!(of_baseline(audit(&report, &rows, &rounds[..1])), ["rows of earlier rounds"]);
    let spot = |report: &Report| {
        let shown = world.disclosed_rows();
        let rounds: Vec<&[u8]> = rounds.iter().map(Vec::as_slice).collect();
        let rounds = rounds.as_slice();
        let inputs = world.audit_inputs(report, &shown, &rows);
        let round = ValuationInputs { earlier_rows: &rounds, ..inputs.round };
        let inputs = crate::AuditInputs { round, ..inputs };
        let options = SpotCheckOptions { draws: 1, seed: 1 };
        let checked = spot_check_round(&inputs, options, &mut Reference::new()).unwrap();
        checked.mismatches.into_iter().map(|found| found.line).collect::<Vec<_>>()
    };
    assert_eq!(of_baseline(spot(&report)), [""; 0]);
    let mut without = done.result.clone();
    without.baseline = None;
    assert_eq!(of_baseline(spot(&world.report(Ok(&without)))), ["baseline"]);
    let mut swapped = rounds;
    swapped.swap(0, 1);
    assert_eq!(of_baseline(audit(&report, &rows, &swapped)), ["rows of earlier rounds"]);
    let mut forged = done.result.clone();
    forged.baseline.as_mut().unwrap().rows += 1;
    assert_eq!(compare_results(&done.result, &forged).unwrap_err().line, "baseline");
    forged.baseline = None;
    assert_eq!(compare_results(&done.result, &forged).unwrap_err().line, "baseline");
}

#[test]
fn the_latest_rounds_train_the_baseline() {
    let mut world = world(2);
    world.spec.holdout.rows_per_round = 2;
    let drawn: Vec<u32> = (0..70).collect();
    assert_eq!(baseline_rows(&world.spec, &drawn), &drawn[6..]);
    assert_eq!(baseline_rows(&world.spec, &drawn[..4]), &drawn[..4]);
    world.spec.rounds.baseline_epochs = 0;
    assert_eq!(baseline_rows(&world.spec, &drawn), &[0; 0]);
}
