//! The short audit finds what it looks at, and everything that costs nothing to look at.

use florin_learning::Reference;
use florin_protocol::{Report, WorkResult};

use crate::tests::{World, world};
use crate::{Spot, Spotted, escape_probability, spot_check_round};

fn spotted(world: &World, report: &Report, draws: u32, seed: u64) -> Spotted {
    let shown = world.shown();
    let inputs = world.audited(report, &shown, &[]);
    spot_check_round(&inputs, Spot { draws, seed }, &mut Reference::new()).unwrap()
}

/// The report of a coordinator that forged the result, and did everything else by the rules.
fn forged(world: &World, forge: impl FnOnce(&mut WorkResult)) -> Report {
    let mut result = world.outcome().result;
    forge(&mut result);
    world.report(Ok(&result))
}

#[test]
fn an_honest_report_has_no_difference_and_says_what_was_looked_at() {
    let world = world();
    let report = forged(&world, |_| ());
    let found = spotted(&world, &report, 2, 5);
    assert_eq!(found.differences, []);
    assert_eq!((found.scores, found.worths.0), ((2, 4), 2));
    assert!(found.worths.1 > 4, "{found:?}");
    let apart = found.apart.unwrap();
    assert!(apart < 0.2, "{apart}");
    let all = spotted(&world, &report, 1_000, 5);
    assert_eq!(all.differences, []);
    assert_eq!((all.scores.0, all.worths.0), (4, all.worths.1));
}

#[test]
fn a_forged_figure_is_found_when_it_is_drawn() {
    let world = world();
    let report = forged(&world, |result| {
        result.valuation.scores[1].score_nano += 1_000_000;
        result.valuation.scores[0].error_nano /= 2;
        result.valuation.evidence.slopes_nano[3][0] = 50;
    });
    let all = spotted(&world, &report, 1_000, 5);
    let lines: Vec<&str> = all.differences.iter().map(|found| found.line.as_str()).collect();
    let named = [
        "valuation.scores[0].error_nano",
        "valuation.scores[1].score_nano",
        "valuation.evidence.slopes_nano[3]",
    ];
    assert_eq!(lines, named);
    // One score in four is drawn by each seed: three of four seeds find something, in the mean.
    let found = (0..40).filter(|seed| !spotted(&world, &report, 1, *seed).differences.is_empty());
    let found = found.count();
    assert!((20..=38).contains(&found), "{found} of 40 draws");
}

#[test]
fn a_forged_worth_does_not_give_the_stated_scores_and_is_found_when_drawn() {
    let world = world();
    let report = forged(&world, |result| {
        let check = result.valuation.evidence.check.as_mut().unwrap();
        check.table[2].worth_nano += 2_000_000;
    });
    let all = spotted(&world, &report, 1_000, 5);
    assert!(all.differences[0].line.starts_with("valuation.evidence.check.scores_nano"), "{all:?}");
    let last = all.differences.last().unwrap();
    assert_eq!(last.line, "valuation.evidence.check.table[2].worth_nano");
    let nothing_drawn = spotted(&world, &report, 0, 5);
    assert_eq!(nothing_drawn.differences.len(), all.differences.len() - 1);
}

#[test]
fn what_costs_nothing_is_always_looked_at() {
    let world = world();
    let mut report = forged(&world, |_| ());
    report.data_total = florin_protocol::Amount::ZERO;
    assert_eq!(spotted(&world, &report, 0, 1).differences[0].line, "data_total");
    let report = forged(&world, |result| result.model = florin_protocol::Digest([7; 32]));
    assert_eq!(spotted(&world, &report, 0, 1).differences[0].line, "model");
    let report = forged(&world, |result| result.valuation.scores[0].excluded = true);
    let line = &spotted(&world, &report, 0, 1).differences[0].line;
    assert_eq!(line, "valuation.scores[0].excluded");
    let report = forged(&world, |result| result.valuation.evidence.slopes_nano.clear());
    assert_eq!(spotted(&world, &report, 9, 1).differences[0].line, "valuation");
}

#[test]
fn the_probability_of_escaping_falls_with_every_draw() {
    assert_eq!(escape_probability(0.5, 0), 1.0);
    assert_eq!(escape_probability(0.5, 3), 0.125);
    assert_eq!(escape_probability(0.0, 9), 1.0);
}
