//! Several tasks with common members: their completion in the order of arrival, and by the market's
//! sharing of participants; and the accounts and buyers that deviate from its rule.

use super::Measurement;
use super::attacks::{GAIN_MAX, Gain, upper_bound_of};
use super::shared_market::{Conduct, Order, SharedMarket, SharedOutcome};
use super::trial::mean;
use crate::arguments::{BenchPay, BenchRounds};
use crate::statistics::median;

/// The name of these measurements for `--only`.
pub(super) const NAME: &str = "tasks";

/// Simulates all seeds.
pub(super) fn run(seeds: &BenchPay, size: &BenchRounds) -> Vec<Measurement> {
    let all = seeds.first_seed..seeds.first_seed + seeds.tasks;
    let markets: Vec<SharedMarket> = all.map(|seed| SharedMarket::new(seed, size)).collect();
    let run = |order, conduct| -> Vec<SharedOutcome> {
        markets.iter().map(|market| market.outcome(order, conduct)).collect()
    };
    let honest = run(Order::Scarcity, Conduct::Honest);
    let mut rows = compare_orders(&run(Order::Arrival, Conduct::Honest), &honest);
    for conduct in Conduct::ATTACKS {
        let trials = run(Order::Scarcity, conduct);
        let reference = match conduct {
            // An account may be silent without this rule: what its limit adds is measured.
            Conduct::SilentLimited => run(Order::Scarcity, Conduct::Silent),
            _ => honest.clone(),
        };
        rows.extend(attack(conduct, &reference, &trials));
    }
    rows
}

/// The ratios of the tasks' completion in the order of arrival to that by the market's rule.
fn compare_orders(arrival: &[SharedOutcome], shared: &[SharedOutcome]) -> Vec<Measurement> {
    let ratio = |of: &dyn Fn(&[f64]) -> f64| {
        let pairs = arrival.iter().zip(shared);
        median(pairs.map(|(arrival, shared)| of(&arrival.completed) / of(&shared.completed)))
    };
    let name = |what: &str| format!("{NAME}, {what}: arrival order over scarcest first");
    let gained = ratio(&|times| mean(times.iter().copied()));
    let last = |times: &[f64]| times.last().copied().unwrap_or_default();
    let first = |times: &[f64]| times.first().copied().unwrap_or_default();
    vec![
        Measurement::at_least(name("mean completion"), gained, "x", 1.0),
        Measurement::plain(name("last completion"), ratio(&|times| largest(times)), "x"),
        Measurement::plain(name("the scarcest task"), ratio(&last), "x"),
        Measurement::plain(name("the most abundant task"), ratio(&first), "x"),
    ]
}

/// The gain of a tenth of the members that deviate, and the delay of the tasks, in percent of the
/// reference with the same seeds.
fn attack(
    conduct: Conduct,
    reference: &[SharedOutcome],
    trials: &[SharedOutcome],
) -> Vec<Measurement> {
    let name = |what: &str| format!("{NAME}, {}: {what}", conduct.name());
    let change = |of: &dyn Fn(&SharedOutcome) -> f64| {
        let (all, before) = (trials.iter().map(of), reference.iter().map(of));
        upper_bound_of(&before.collect::<Vec<f64>>(), &all.collect::<Vec<f64>>())
    };
    let mut rows = Vec::new();
    let mut push = |what: &str, Gain { mean, upper }: Gain| {
        rows.push(Measurement::plain(name(what), mean, "%"));
        let label = name(&format!("upper bound of the {what}"));
        rows.push(match conduct {
            // Silence without a limit is older than the rule: it is here for comparison.
            Conduct::Silent => Measurement::plain(label, upper, "%"),
            _ => Measurement::at_most(label, upper, "%", GAIN_MAX),
        });
    };
    if conduct == Conduct::Several {
        push("gain of pay", change(&|of| of.paid_to_deviating));
        push("gain of pay for each training", change(&|of| of.pay_for_a_training()));
    }
    push("mean delay of the tasks", change(&|of| mean(of.completed.iter().copied())));
    push("delay of the scarcest task", change(&|of| of.completed.last().copied().unwrap_or(0.0)));
    rows
}

fn largest(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}
