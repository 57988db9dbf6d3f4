//! A cohort too large for a derivative per row and participant.

use std::cell::RefCell;

use florin_contribution::{ClosureSource, RoundRules, RoundValuation, value_round};
use florin_learning::data::{DataSource, load};
use florin_learning::{AffineLoss, Reference};
use florin_protocol::limits::CROSS_CHECK_COHORT_MAX;
use florin_protocol::{Report, Valuation};

use crate::round::{DecodedRound, TOLERANCE_NANO};
use crate::tests::{TestRound, flipped, shift_gap, world_of};
use crate::{SpotCheckOptions, SpotCheckResult, spot_check_round};

const MEMBERS: usize = CROSS_CHECK_COHORT_MAX + 2;
const ROWS: usize = 19;
/// The second member trains on flipped labels, the third is idle, all others are honest.
const LABEL_FLIPPER: usize = 1;
const IDLE: usize = 2;

fn large_cohort() -> TestRound {
    let digits = load(&DataSource::Digits).unwrap();
    let shard = |i: usize| digits.slice(500 + ROWS * i..500 + ROWS * (i + 1)).unwrap();
    let shards: Vec<_> = (0..MEMBERS)
        .map(|i| match i {
            LABEL_FLIPPER => Some(flipped(&shard(i))),
            IDLE => None,
            _ => Some(shard(i)),
        })
        .collect();
    world_of(&digits, &shards)
}

/// The same round with a derivative per row and participant.
fn row_by_row(world: &TestRound) -> RoundValuation {
    let (drawn, shown) = (world.drawn(), world.disclosed_rows());
    let inputs = world.inputs(&drawn, &shown);
    let opened = DecodedRound::decode(&inputs).unwrap();
    let (slices, mut engine) = (opened.slices(), Reference::new());
    let (model, base) = (&opened.model, &opened.base);
    let affine = AffineLoss::new(model, base, &slices, &opened.holdout, &mut engine).unwrap();
    let affine = RefCell::new(affine);
    let mut source = ClosureSource::new(
        MEMBERS,
        |coefficients: &[f64]| affine.borrow_mut().losses(coefficients),
        |coefficients: &[f64]| affine.borrow_mut().directional_derivatives(coefficients),
    );
    let z_micro = inputs.spec.budget.confidence_z.0;
    let is_resolved = florin_protocol::void::is_gap_resolved;
    let rules = RoundRules { z_micro, nodes: Some(3), seed: 0, is_resolved };
    value_round(&mut source, &opened.updates.rows, rules).unwrap()
}

fn spot_check(world: &TestRound, report: &Report) -> SpotCheckResult {
    let shown = world.disclosed_rows();
    let inputs = world.audit_inputs(report, &shown, &[]);
    spot_check_round(&inputs, SpotCheckOptions { draws: 5, seed: 3 }, &mut Reference::new())
        .unwrap()
}

#[test]
fn row_groups_give_equal_scores_and_similar_standard_errors_to_single_rows() {
    let world = large_cohort();
    let valuation: Valuation = world.outcome().result.valuation;
    let by_row = row_by_row(&world);
    assert_eq!(valuation.scores.len(), MEMBERS);
    assert!(valuation.total_nano.abs_diff(by_row.total_nano) <= TOLERANCE_NANO);
    let mut ratios = Vec::new();
    for (score, row) in valuation.scores.iter().zip(&by_row.rows) {
        assert_eq!(score.excluded, row.excluded, "{score:?} {row:?}");
        assert!(score.score_nano.abs_diff(row.score_nano) <= TOLERANCE_NANO, "{score:?} {row:?}");
        if row.error_nano > 0 {
            ratios.push(score.error_nano as f64 / row.error_nano as f64);
        }
    }
    // The spread of 32 groups of rows estimates the same standard error with a deviation of an
    // eighth; all members share the rows.
    ratios.sort_by(f64::total_cmp);
    assert!(ratios[0] > 0.5 && ratios[ratios.len() - 1] < 1.7, "{ratios:?}");
    let median = ratios[ratios.len() / 2];
    assert!((0.7..1.4).contains(&median), "{median}");
    let idle = &valuation.scores[IDLE];
    assert_eq!((idle.score_nano, idle.error_nano), (0, 0));
    // Whether 19 wrong labels among 1,254 rows harm the round depends on the drawn rows, but they
    // are worth significantly less than right ones.
    let flipper = &valuation.scores[LABEL_FLIPPER];
    let sum: i64 = valuation.scores.iter().map(|score| score.score_nano).sum();
    let below = sum / MEMBERS as i64 - flipper.score_nano;
    assert!(below > 2 * flipper.error_nano as i64, "{below} {flipper:?}");
}

#[test]
fn a_large_cohort_takes_few_passes_and_supports_audit_and_spot_check() {
    let world = large_cohort();
    let result = world.outcome().result;
    let valuation = &result.valuation;
    assert!(valuation.units < 20, "{} passes for {MEMBERS}", valuation.units);
    assert!(valuation.evidence.cross_check.is_none(), "a large cohort has no cross-check");
    assert_eq!(valuation.evidence.derivatives_nano.len(), MEMBERS);
    let report = world.report(Ok(&result));
    assert_eq!(world.audit(&report), []);
    let found = spot_check(&world, &report);
    assert_eq!((found.mismatches, found.scores), (vec![], (5, MEMBERS)));

    let mut forged = result;
    let stay = forged.valuation.scores.iter().filter(|score| !score.excluded).count();
    forged.valuation.scores.iter_mut().for_each(|score| score.score_nano += 1_000);
    // A careful forger: otherwise the efficiency gap exposes it without samples.
    shift_gap(&mut forged.valuation, -1_000 * stay as i64);
    let report = world.report(Ok(&forged));
    assert_eq!(world.audit(&report)[0].line, "valuation.gap_nano");
    assert_eq!(spot_check(&world, &report).mismatches.len(), 5);
}
