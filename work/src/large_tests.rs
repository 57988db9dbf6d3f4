//! A cohort beyond the size in which every participant has a slope for every row.

use std::cell::RefCell;

use florin_contribution::{Closures, RoundRules, RoundValuation, value_round};
use florin_learning::data::{DataSource, load};
use florin_learning::{AffineLoss, Reference};
use florin_protocol::limits::CHECK_COHORT_MAX;
use florin_protocol::{Report, Valuation};

use crate::round::{Opened, TOLERANCE_NANO};
use crate::tests::{World, flipped, world_of};
use crate::{Spot, Spotted, spot_check_round};

const MEMBERS: usize = CHECK_COHORT_MAX + 2;
const ROWS: usize = 19;
/// The second learns wrong labels, the third changes nothing, all others are honest.
const LIAR: usize = 1;
const IDLE: usize = 2;

fn crowd() -> World {
    let digits = load(&DataSource::Digits).unwrap();
    let shard = |i: usize| digits.slice(500 + ROWS * i..500 + ROWS * (i + 1)).unwrap();
    let shards: Vec<_> = (0..MEMBERS)
        .map(|i| match i {
            LIAR => Some(flipped(&shard(i))),
            IDLE => None,
            _ => Some(shard(i)),
        })
        .collect();
    world_of(&digits, &shards)
}

/// The same round with a slope for every row and participant.
fn row_by_row(world: &World) -> RoundValuation {
    let (drawn, shown) = (world.drawn(), world.shown());
    let inputs = world.inputs(&drawn, &shown);
    let opened = Opened::read(&inputs).unwrap();
    let (slices, mut engine) = (opened.slices(), Reference::new());
    let (model, base) = (&opened.model, &opened.base);
    let affine = AffineLoss::new(model, base, &slices, &opened.holdout, &mut engine).unwrap();
    let affine = RefCell::new(affine);
    let mut source = Closures::new(
        MEMBERS,
        |coefficients: &[f64]| affine.borrow_mut().losses(coefficients),
        |coefficients: &[f64]| affine.borrow_mut().slopes(coefficients),
    );
    let rules = RoundRules { z_micro: inputs.spec.budget.withheld.0, nodes: 3 };
    value_round(&mut source, &opened.held.rows, rules).unwrap()
}

fn spotted(world: &World, report: &Report) -> Spotted {
    let shown = world.shown();
    let inputs = world.audited(report, &shown, &[]);
    spot_check_round(&inputs, Spot { draws: 5, seed: 3 }, &mut Reference::new()).unwrap()
}

#[test]
fn groups_of_rows_give_the_scores_that_single_rows_give_and_errors_of_their_size() {
    let world = crowd();
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
    // The spread of 32 groups of rows estimates the same error with a deviation of an eighth, the same rows for all.
    ratios.sort_by(f64::total_cmp);
    assert!(ratios[0] > 0.5 && ratios[ratios.len() - 1] < 1.7, "{ratios:?}");
    let median = ratios[ratios.len() / 2];
    assert!((0.7..1.4).contains(&median), "{median}");
    let idle = &valuation.scores[IDLE];
    assert_eq!((idle.score_nano, idle.error_nano), (0, 0));
    assert!(valuation.scores[LIAR].score_nano < 0, "{:?}", valuation.scores[LIAR]);
}

#[test]
fn a_large_cohort_costs_a_few_passes_and_can_be_audited_in_full_and_in_part() {
    let world = crowd();
    let result = world.outcome().result;
    let valuation = &result.valuation;
    assert!(valuation.units < 20, "{} passes for {MEMBERS}", valuation.units);
    assert!(valuation.evidence.check.is_none(), "such a cohort has no second opinion");
    assert_eq!(valuation.evidence.slopes_nano.len(), MEMBERS);
    let report = world.report(Ok(&result));
    assert_eq!(world.audit(&report), []);
    let found = spotted(&world, &report);
    assert_eq!((found.differences, found.scores), (vec![], (5, MEMBERS)));

    let mut forged = result;
    for score in &mut forged.valuation.scores {
        score.score_nano += 1_000;
        // A careful forger: otherwise the gap gives it away, whatever is drawn.
        if !score.excluded {
            forged.valuation.gap_nano -= 1_000;
        }
    }
    let report = world.report(Ok(&forged));
    assert_eq!(world.audit(&report)[0].line, "valuation.gap_nano");
    assert_eq!(spotted(&world, &report).differences.len(), 5);
}
