//! Spot checks: they detect forgeries in the sampled figures, and in everything that is checked in
//! full.

use florin_learning::Reference;
use florin_learning::data::{DataSource, load};
use florin_protocol::{
    CrossCheck, Micro, Report, RoundOutcome, ScoreEstimator, VoidReason, WorkResult,
};

use crate::tests::{TestRound, flipped, shift_gap, world, world_of, world_with};
use crate::{SpotCheckOptions, SpotCheckResult, escape_probability, spot_check_round};

fn spot_check(world: &TestRound, report: &Report, draws: u32, seed: u64) -> SpotCheckResult {
    let shown = world.disclosed_rows();
    let inputs = world.audit_inputs(report, &shown, &[]);
    spot_check_round(&inputs, SpotCheckOptions { draws, seed }, &mut Reference::new()).unwrap()
}

/// The report of a coordinator that forges the result and follows all other rules.
fn forged(world: &TestRound, forge: impl FnOnce(&mut WorkResult)) -> Report {
    let mut result = world.outcome().result;
    forge(&mut result);
    world.report(Ok(&result))
}

fn lines(found: &SpotCheckResult) -> Vec<&str> {
    found.mismatches.iter().map(|found| found.line.as_str()).collect()
}

/// Four honest senders, and two with flipped labels.
fn two_label_flippers() -> TestRound {
    let digits = load(&DataSource::Digits).unwrap();
    let shard = |i: usize| digits.slice(500 + 200 * i..700 + 200 * i).unwrap();
    let shards: Vec<_> =
        (0..6).map(|i| Some(if i < 4 { shard(i) } else { flipped(&shard(i)) })).collect();
    // Whichever rows are drawn, both are more than one standard error below zero.
    world_with(&digits, &shards, |spec| spec.budget.confidence_z = Micro::ONE)
}

#[test]
fn an_honest_report_has_no_differences_and_sample_sizes_are_reported() {
    let world = world();
    let report = forged(&world, |_| ());
    let found = spot_check(&world, &report, 2, 5);
    assert_eq!(found.mismatches, []);
    assert_eq!((found.scores, found.coalition_values.0), ((2, 4), 2));
    assert!(found.coalition_values.1 > 4, "{found:?}");
    let apart = found.cross_check_distance.unwrap();
    assert!(apart < 0.2, "{apart}");
    let all = spot_check(&world, &report, 1_000, 5);
    assert_eq!(all.mismatches, []);
    assert_eq!((all.scores.0, all.coalition_values.0), (4, all.coalition_values.1));
}

#[test]
fn a_forged_score_is_detected_when_it_is_sampled() {
    let world = world();
    let report = forged(&world, |result| {
        result.valuation.scores[1].score_nano += 1_000_000;
        shift_gap(&mut result.valuation, -1_000_000);
        result.valuation.scores[0].error_nano /= 2;
        result.valuation.evidence.derivatives_nano[3][0] = 50;
    });
    let all = spot_check(&world, &report, 1_000, 5);
    let named = [
        "valuation.scores[0].error_nano",
        "valuation.scores[1].score_nano",
        "valuation.evidence.derivatives_nano[3]",
    ];
    assert_eq!(lines(&all), named);
    // Each seed samples one score in four: on average three of four seeds find a forgery.
    let found = (0..40).filter(|seed| !spot_check(&world, &report, 1, *seed).mismatches.is_empty());
    let found = found.count();
    assert!((20..=38).contains(&found), "{found} of 40 draws");
}

#[test]
fn a_forged_coalition_value_contradicts_the_scores_and_is_detected_when_sampled() {
    let world = world();
    let report = forged(&world, |result| {
        let check = result.valuation.evidence.cross_check.as_mut().unwrap();
        check.table[2].value_nano += 2_000_000;
    });
    let all = spot_check(&world, &report, 1_000, 5);
    assert!(
        all.mismatches[0].line.starts_with("valuation.evidence.cross_check.scores_nano"),
        "{all:?}"
    );
    let last = all.mismatches.last().unwrap();
    assert_eq!(last.line, "valuation.evidence.cross_check.table[2].value_nano");
    let nothing_drawn = spot_check(&world, &report, 0, 5);
    assert_eq!(nothing_drawn.mismatches.len(), all.mismatches.len() - 1);
}

#[test]
fn model_totals_and_exclusions_are_checked_without_samples() {
    let world = world();
    let mut report = forged(&world, |_| ());
    report.data_total = florin_protocol::Amount::ZERO;
    assert_eq!(spot_check(&world, &report, 0, 1).mismatches[0].line, "data_total");
    let report = forged(&world, |result| result.model = florin_protocol::Digest([7; 32]));
    assert_eq!(spot_check(&world, &report, 0, 1).mismatches[0].line, "model");
    let report = forged(&world, |result| result.valuation.scores[0].excluded = true);
    let line = &spot_check(&world, &report, 0, 1).mismatches[0].line;
    assert_eq!(line, "valuation.scores[0].excluded");
    let report = forged(&world, |result| result.valuation.evidence.derivatives_nano.clear());
    assert_eq!(spot_check(&world, &report, 9, 1).mismatches[0].line, "valuation");
}

#[test]
fn the_escape_probability_falls_with_every_sample() {
    assert_eq!(escape_probability(0.5, 0, 8), 1.0);
    // 4 of 8 are forged: 4/8 · 3/7 · 2/6.
    assert!((escape_probability(0.5, 3, 8) - 1.0 / 14.0).abs() < 1e-15);
    assert_eq!(escape_probability(0.5, 5, 8), 0.0);
    // At least one is forged.
    assert_eq!(escape_probability(0.01, 2, 8), 0.75);
    assert_eq!(escape_probability(0.01, 8, 8), 0.0);
    assert_eq!(escape_probability(0.0, 9, 20), 1.0);
    assert!(escape_probability(0.1, 20, 10_000) <= 0.9_f64.powi(20));
}

#[test]
fn losses_metrics_and_units_are_checked_without_samples() {
    let world = world();
    type ResultForgery = (&'static str, fn(&mut WorkResult));
    let forgeries: &[ResultForgery] = &[
        ("valuation.loss_before_nano", |r| r.valuation.loss_before_nano += 11),
        ("valuation.loss_after_nano", |r| r.valuation.loss_after_nano -= 11),
        ("valuation.total_nano", |r| {
            r.valuation.total_nano -= 11;
            r.valuation.stages[1].total_nano -= 11;
        }),
        ("valuation.gap_nano", |r| shift_gap(&mut r.valuation, 11)),
        ("valuation.stages", |r| r.valuation.stages.truncate(1)),
        ("valuation.stages[0].units", |r| r.valuation.stages[0].units += 1),
        ("valuation.stages[1].gap_nano", |r| r.valuation.stages[1].gap_nano += 11),
        ("valuation.stages[1].total_nano", |r| r.valuation.stages[1].total_nano += 11),
        ("valuation.model_loss_nano", |r| r.valuation.model_loss_nano -= 11),
        ("valuation.units", |r| r.valuation.units += 1),
        ("metrics.rows", |r| r.metrics.rows += 1),
        ("metrics.correct_before", |r| r.metrics.correct_before -= 1),
        ("metrics.correct_after", |r| r.metrics.correct_after += 1),
        ("metrics.loss_after_nano", |r| r.metrics.loss_after_nano -= 11),
        ("valuation.evidence.cross_check", |r| r.valuation.evidence.cross_check = None),
    ];
    for (line, forge) in forgeries {
        let report = forged(&world, forge);
        assert_eq!(lines(&spot_check(&world, &report, 0, 1)), [*line]);
        assert_eq!(world.audit(&report)[0].line, *line);
    }
}

#[test]
fn a_wrong_cross_check_is_named_and_the_other_checks_still_run() {
    let world = world();
    type Forgery = (&'static str, fn(&mut CrossCheck));
    let forgeries: &[Forgery] = &[
        ("version", |check| check.version += 1),
        ("seed", |check| check.seed += 1),
        ("passes", |check| check.passes += 1),
        ("table", |check| check.table.push(check.table[1].clone())),
        ("table", |check| check.table.clear()),
        ("table[1].members", |check| check.table[1].members = vec![900]),
        // The third sender is excluded.
        ("table[1].members", |check| check.table[1].members = vec![2]),
        ("table[1].members", |check| check.table.swap(1, 2)),
        ("scores_nano[1]", |check| check.scores_nano[1] += 11),
    ];
    for (line, forge) in forgeries {
        let report = forged(&world, |result| {
            forge(result.valuation.evidence.cross_check.as_mut().unwrap());
            result.valuation.scores[0].score_nano += 1_000;
            shift_gap(&mut result.valuation, -1_000);
        });
        let found = spot_check(&world, &report, 1_000, 1);
        let named = [format!("valuation.evidence.cross_check.{line}"), score_of(0)];
        assert_eq!(lines(&found), named);
    }
}

fn score_of(player: usize) -> String {
    format!("valuation.scores[{player}].score_nano")
}

#[test]
fn an_unexcluded_harmful_update_is_detected() {
    let world = world();
    let report = forged(&world, |result| result.valuation.scores[2].excluded = false);
    assert_eq!(lines(&spot_check(&world, &report, 0, 1)), ["valuation.scores[2].excluded"]);

    let world = two_label_flippers();
    let honest = world.outcome().result.valuation.scores;
    assert!(honest[4].excluded && honest[5].excluded, "{honest:?}");
    let report = forged(&world, |_| ());
    assert_eq!(spot_check(&world, &report, 1_000, 1).mismatches, []);
    let report = forged(&world, |result| {
        // Valued among the remaining updates the stated score is possible: only the first stage
        // detects it.
        let score = &mut result.valuation.scores[5];
        (score.excluded, score.score_nano) = (false, 1);
    });
    let found = spot_check(&world, &report, 1_000, 1);
    assert!(lines(&found).contains(&"valuation.scores[5].excluded"), "{found:?}");
}

#[test]
fn a_report_that_excludes_every_update_is_named_by_its_lines() {
    let world = world();
    for keep_check in [true, false] {
        let report = forged(&world, |result| {
            for score in &mut result.valuation.scores {
                (score.excluded, score.score_nano, score.error_nano) = (true, -1_000_000_000, 1);
            }
            if !keep_check {
                result.valuation.evidence.cross_check = None;
            }
        });
        let found = spot_check(&world, &report, 1_000, 1);
        for player in 0..4 {
            assert!(lines(&found).contains(&score_of(player).as_str()), "{found:?}");
        }
        let check = lines(&found).contains(&"valuation.evidence.cross_check");
        assert_eq!(check, keep_check, "{found:?}");
    }
}

#[test]
fn a_round_of_idle_members_has_no_differences() {
    let digits = load(&DataSource::Digits).unwrap();
    let world = world_of(&digits, &[None, None, None]);
    let report = forged(&world, |_| ());
    assert_eq!(spot_check(&world, &report, 1_000, 1).mismatches, []);
}

/// Most draws of rows that are searched for a round with wrong path scores.
const DRAWS_MAX: u64 = 64;

/// A round of large steps, in which scores of the path integral are wrong although their gap is
/// small.
#[test]
fn denied_scores_are_valued_by_coalitions_and_audit_without_differences() {
    let digits = load(&DataSource::Digits).unwrap();
    let shard = |i: usize| Some(digits.slice(500 + 200 * i..505 + 200 * i).unwrap());
    let path = ScoreEstimator::Path(3);
    let is_denied = |result: &florin_protocol::WorkResult| {
        let stages = result.valuation.stages.iter().map(|stage| stage.estimator);
        stages.eq([path, path, ScoreEstimator::Shapley])
    };
    // All bytes of a task seed the draw of its rows; some draws show such a round.
    let worlds = (0..DRAWS_MAX).map(|salt| {
        let shards: Vec<_> = (0..4).map(shard).collect();
        let world = world_with(&digits, &shards, |spec| {
            spec.salt = salt;
            spec.training.epochs = 3;
            spec.training.learning_rate = Micro(3_000_000);
        });
        let result = world.outcome().result;
        (world, result)
    });
    let mut denied = worlds.filter(|(_, result)| is_denied(result));
    let (world, result) = denied.next().expect("a draw with wrong scores and a small gap");
    let valuation = &result.valuation;
    let check = valuation.evidence.cross_check.as_ref().unwrap();
    let stages: u64 = valuation.stages.iter().map(|stage| stage.units).sum();
    // The table's empty coalition takes no pass, but the cross-check evaluates the base model.
    assert_eq!(valuation.units, 1 + stages + check.table.len() as u64);
    let report = world.report(Ok(&result));
    // Steps as large as these do not improve the model, which is what the right scores show.
    assert_eq!(report.outcome, RoundOutcome::Void(VoidReason::NoImprovement));
    assert_eq!(world.audit(&report), []);
    assert_eq!(lines(&spot_check(&world, &report, 5, 1)), Vec::<String>::new());

    let report = forged(&world, |result| result.valuation.stages.truncate(2));
    assert_eq!(world.audit(&report)[0].line, "valuation.stages");
}
