//! What a surrogate was drawn from, and how far it can be trusted.

use florin_sim::results::{Results, counted};
use florin_sim::surrogate::{Fit, Fitted, Knot};

use crate::show::{BAD, DIM, GOOD, HEAD, NOTE};

/// Every so many of a curve's knots are shown.
const SHOWN: usize = 3;

/// Nothing where everybody really trained.
pub(super) fn print(results: &Results) {
    let Some(first) = results.fits.first().map(|fitted| &fitted.fit) else { return };
    anstream::println!(
        "\n{HEAD}scores were drawn from curves{HEAD:#} {DIM}fitted to {} of {} and {}, held \
         against {}{DIM:#}",
        counted(first.seeds.len() as u64 * 2, "real game"),
        counted(first.members.into(), "member"),
        counted(first.rounds.into(), "round"),
        counted(first.held_out.len() as u64, "other")
    );
    for fitted in &results.fits {
        match &fitted.made_honest {
            None => anstream::println!("as it is:"),
            Some(group) => {
                anstream::println!("with {group} honest, which gains are measured from:");
            }
        }
        one(&fitted.fit);
        beyond(fitted, results);
    }
    if results.scenario.rounds > first.rounds {
        anstream::println!(
            "{BAD}rounds after number {} are drawn on: nothing was held against them{BAD:#}",
            first.rounds
        );
    }
}

/// What the small games say nothing of.
fn beyond(fitted: &Fitted, results: &Results) {
    let Fitted { fit, lowest_loss, .. } = fitted;
    if fitted.is_drawn_on() {
        anstream::println!(
            "  {NOTE}losses down to {lowest_loss:.4} were drawn, and the fitted games end at {:.4}: what is below is \
             drawn on{NOTE:#}",
            fit.curve.lowest()
        );
    }
    let groups = results.scenario.population.keys().zip(&fit.groups);
    for (name, _) in groups.filter(|(_, group)| group.spreads.told_apart == 0) {
        anstream::println!(
            "  {NOTE}nobody of {name} sent enough in the small games to be told from the others: its members are drawn \
             alike{NOTE:#}"
        );
    }
}

fn one(fit: &Fit) {
    if !fit.is_of_something() {
        anstream::println!(
            "  {BAD}no update of the small games was worth anything: nothing could be fitted{BAD:#}"
        );
        return;
    }
    let (curve, errors) = (&fit.curve, &fit.errors);
    let of = |knot: &Knot| format!("{:.4} off one of {:.2}", knot.gain, knot.loss);
    let gains: Vec<String> = curve.knots.iter().step_by(SHOWN).map(of).collect();
    anstream::println!("  a round takes nats off the loss: {}", gains.join(", "));
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    anstream::println!(
        "  off by {} of the fall of the loss, {} of accuracy, {} of what is spent",
        percent(errors.loss),
        percent(errors.accuracy),
        percent(errors.spent)
    );
    for (group, error) in &errors.earned {
        anstream::println!("  off by {} of the best group's earnings: {group}", percent(*error));
    }
    let (style, mark) = if fit.holds() { (GOOD, "holds") } else { (BAD, "MISSES") };
    anstream::println!(
        "  {style}the fit {mark}{style:#} {DIM}at most {} is let pass{DIM:#}",
        percent(fit.error_max)
    );
}
