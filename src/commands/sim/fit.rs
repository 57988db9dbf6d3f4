//! Prints the data that a surrogate was fitted to, and its errors.

use florin_sim::results::{Results, format_count};
use florin_sim::surrogate::{Fit, Knot, MarketFit};

use crate::show::{BAD, DIM, GOOD, HEAD, NOTE};

/// One of every `SHOWN` knots of a curve is printed.
const SHOWN: usize = 3;

/// Prints nothing if all members really trained.
pub(super) fn print(results: &Results) {
    let Some(first) = results.fits.first().map(|fitted| &fitted.fit) else { return };
    anstream::println!(
        "\n{HEAD}scores are sampled from a surrogate{HEAD:#} {DIM}fitted to {} with {} and {}, \
         validated on {}{DIM:#}",
        format_count(first.seeds.len() as u64 * 2, "real simulation"),
        format_count(first.members.into(), "member"),
        format_count(first.rounds.into(), "round"),
        format_count(first.held_out.len() as u64, "other simulation")
    );
    for fitted in &results.fits {
        match &fitted.made_honest {
            None => anstream::println!("for the scenario itself:"),
            Some(group) => {
                anstream::println!("for the baseline in which {group} is honest:");
            }
        }
        one(&fitted.fit);
        print_extrapolation(fitted, results);
    }
    if results.scenario.rounds > first.rounds {
        anstream::println!(
            "{BAD}rounds after round {} are extrapolated and not validated{BAD:#}",
            first.rounds
        );
    }
}

/// Prints where the surrogate extrapolates beyond its fitted simulations.
fn print_extrapolation(fitted: &MarketFit, results: &Results) {
    let MarketFit { fit, lowest_loss, .. } = fitted;
    if fitted.extrapolates() {
        anstream::println!(
            "  {NOTE}losses down to {lowest_loss:.4} were sampled, but the fitted simulations end \
             at {:.4}: lower losses are extrapolated{NOTE:#}",
            fit.curve.lowest_loss()
        );
    }
    let groups = results.scenario.population.keys().zip(&fit.groups);
    for (name, _) in groups.filter(|(_, group)| group.variance.estimated_members == 0) {
        anstream::println!(
            "  {NOTE}no member of {name} submitted enough updates in the fitted simulations to be \
             distinguished: its members are sampled alike{NOTE:#}"
        );
    }
}

fn one(fit: &Fit) {
    if !fit.has_data() {
        anstream::println!(
            "  {BAD}no update of the fitted simulations had a positive value: the surrogate \
             cannot be fitted{BAD:#}"
        );
        return;
    }
    let (curve, errors) = (&fit.curve, &fit.errors);
    let of = |knot: &Knot| format!("{:.4} at {:.2}", knot.gain, knot.loss);
    let gains: Vec<String> = curve.knots.iter().step_by(SHOWN).map(of).collect();
    anstream::println!("  decrease of the loss per round, in nats, by loss: {}", gains.join(", "));
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    anstream::println!(
        "  errors: {} of the decrease of the loss, {} of the accuracy, {} of the spending",
        percent(errors.loss),
        percent(errors.accuracy),
        percent(errors.spent)
    );
    for (group, error) in &errors.earned {
        anstream::println!("  error of {group}: {} of the best group's earnings", percent(*error));
    }
    let (style, mark) = if fit.holds() { (GOOD, "passes") } else { (BAD, "FAILS") };
    anstream::println!(
        "  {style}the fit {mark}{style:#} {DIM}maximum error {}{DIM:#}",
        percent(fit.error_max)
    );
}
