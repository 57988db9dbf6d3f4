//! `florin-bench rounds`: the market's selection beside random selection and the selectors of the
//! literature, with members of unequal speed, availability and data.
//!
//! Every task is simulated on the production code under virtual time. A figure is the median over
//! the seeds, of ratios where two tasks are compared: both have the same members.

mod market;
mod trial;

use florin::progress::progress_bar;
use florin_learning::parallel_map;
use indicatif::ProgressDrawTarget;

use super::Measurement;
use crate::arguments::{BenchPay, BenchRounds};
use market::{MarketKind, Rule, scenario};
use trial::{Trial, mean};

/// Progress of the simulations.
const BAR: &str = "{bar:40} {pos} of {len} tasks, {eta} left";
/// Number of threads; each simulates one task at a time.
const THREADS: usize = 2;
/// The part of random selection's final accuracy to which the time counts.
const TARGET: f64 = 0.9;

/// Runs the benchmark.
pub(super) fn run(seeds: &BenchPay, size: &BenchRounds) -> anyhow::Result<Vec<Measurement>> {
    let mut rows = Vec::new();
    for kind in MarketKind::ALL {
        if seeds.only.as_ref().is_none_or(|only| kind.name().contains(only.as_str())) {
            rows.extend(compare(kind, seeds, size)?);
        }
    }
    anyhow::ensure!(!rows.is_empty(), "no market's name contains the text of --only");
    Ok(rows)
}

/// The trials of one rule, seed by seed.
struct RuleTrials {
    rule: Rule,
    trials: Vec<Trial>,
}

fn compare(
    kind: MarketKind,
    seeds: &BenchPay,
    size: &BenchRounds,
) -> anyhow::Result<Vec<Measurement>> {
    let rules = kind.rules();
    let mut jobs = Vec::new();
    for rule in rules {
        let scenario = scenario(kind, *rule, size)?;
        let all = seeds.first_seed..seeds.first_seed + seeds.tasks;
        jobs.extend(all.map(|seed| (scenario.clone(), seed)));
    }
    let bar = progress_bar(ProgressDrawTarget::stderr(), BAR);
    bar.set_length(jobs.len() as u64);
    let trials = parallel_map(THREADS, jobs, |(scenario, seed)| {
        let trial = Trial::run(&scenario, seed);
        bar.inc(1);
        trial
    });
    bar.finish_and_clear();
    let mut trials = trials.into_iter();
    let mut all = Vec::new();
    for rule in rules {
        let of_rule = trials.by_ref().take(usize::try_from(seeds.tasks)?);
        let trials = of_rule.collect::<anyhow::Result<Vec<Trial>>>()?;
        all.push(RuleTrials { rule: *rule, trials });
    }
    Ok(report(kind, &all))
}

fn report(kind: MarketKind, all: &[RuleTrials]) -> Vec<Measurement> {
    let Some(random) = all.iter().find(|of| of.rule == Rule::Random) else { return Vec::new() };
    let mut rows = Vec::new();
    for of in all {
        let name = |what: &str| format!("{}, {}: {what}", kind.name(), of.rule.name());
        let pairs = || of.trials.iter().zip(&random.trials);
        let plain = |what: &str, value, unit: &str| Measurement::plain(name(what), value, unit);
        let to_target = |one: &Trial, reference: &Trial| {
            one.time_to(reference.final_accuracy() * TARGET).unwrap_or(f64::INFINITY)
        };
        let faster =
            median(pairs().map(|(one, other)| to_target(other, other) / to_target(one, other)));
        let accuracy = mean(of.trials.iter().map(Trial::final_accuracy)) * 100.0;
        let gained =
            median(pairs().map(|(one, other)| one.final_accuracy() - other.final_accuracy()));
        rows.push(plain("time to 90 % of random's accuracy, random over this", faster, "x"));
        rows.push(plain("final accuracy", accuracy, "%"));
        rows.push(plain("final accuracy beyond random", gained * 100.0, "points"));
        let ratio = |of: fn(&Trial) -> f64| {
            median(pairs().map(|(one, other)| of(one) / of(other).max(1e-12)))
        };
        rows.push(plain("Gini of work", median(of.trials.iter().map(Trial::gini_of_work)), ""));
        rows.push(plain("Gini of work over random's", ratio(Trial::gini_of_work), ""));
        rows.push(plain("Gini of pay over random's", ratio(Trial::gini_of_pay), ""));
        rows.push(plain("variance of own accuracy over random's", ratio(Trial::own_variance), ""));
        rows.push(plain("wasted work", median(of.trials.iter().map(Trial::wasted)) * 100.0, "%"));
        let hours = median(of.trials.iter().map(|one| one.curve.last().map_or(0.0, |at| at.0)));
        rows.push(plain("virtual time", hours / 3_600.0, "h"));
        let balanced = of.trials.iter().all(|trial| trial.outcome.balanced);
        if !balanced {
            rows.push(Measurement::failed(name("money balances"), 0.0, ""));
        }
    }
    rows
}

/// The median of some values.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
