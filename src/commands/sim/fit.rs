//! What a surrogate was drawn from, and how far it can be trusted.

use florin_sim::results::Results;

use crate::show::{BAD, DIM, GOOD, HEAD};

/// Nothing where everybody really trained.
pub(super) fn print(results: &Results) {
    let Some(fit) = &results.fit else { return };
    let errors = &fit.errors;
    let (style, mark) = if fit.holds() { (GOOD, "holds") } else { (BAD, "MISSES") };
    anstream::println!(
        "\n{HEAD}scores were drawn from curves{HEAD:#} {DIM}fitted to {} real games of {} members and {} rounds, held \
         against {} others{DIM:#}",
        fit.seeds.len() * 2,
        fit.members,
        fit.rounds,
        fit.held_out.len()
    );
    let curve = &fit.curve;
    anstream::println!(
        "a round takes {:.3} × (loss − {:.3})^{:.2} × (1 − loss / {:.2}) × (1 − {:.2} / updates) nats off the loss",
        curve.pace,
        curve.floor,
        curve.power,
        curve.top,
        curve.crowd
    );
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    anstream::println!(
        "off by {} of the fall of the loss, {} of accuracy, {} of what is spent",
        percent(errors.loss),
        percent(errors.accuracy),
        percent(errors.spent)
    );
    for (group, error) in &errors.earned {
        anstream::println!("off by {} of the best group's earnings: {group}", percent(*error));
    }
    anstream::println!(
        "{style}the fit {mark}{style:#} {DIM}at most {} is let pass{DIM:#}",
        percent(fit.error_max)
    );
    if results.scenario.rounds > fit.rounds {
        anstream::println!(
            "{BAD}rounds after the {}th are drawn on: nothing was held against them{BAD:#}",
            fit.rounds
        );
    }
}
