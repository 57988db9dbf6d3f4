//! `florin-bench rounds`: the market's selection beside random selection and the selectors of the
//! literature, with members of unequal speed, availability and data.
//!
//! Every task is simulated on the production code under virtual time. A figure is the median over
//! the seeds, of ratios where two tasks are compared: both have the same members.

mod attacks;
mod buffered;
mod market;
mod shared_market;
mod silos;
mod tasks;
mod trial;

use std::path::Path;

use florin::failure::Failure;
use florin::progress::progress_bar;
use florin_learning::parallel_map;
use florin_sim::{GraphTask, Scenario};
use indicatif::ProgressDrawTarget;

use super::Measurement;
use super::statistics::median;
use crate::arguments::{BenchPay, BenchRounds, check_only};
use market::{MarketKind, Rule, scenario};
use trial::{Trial, mean};

/// Progress of the simulations.
const BAR: &str = "{bar:40} {pos} of {len} tasks, {eta} left";
/// Number of threads; each simulates one task at a time.
const THREADS: usize = 2;
/// The part of random selection's final accuracy to which the time counts.
const TARGET: f64 = 0.9;
/// The least ratio of random selection's time to that of `fast`.
const FASTER_MIN: f64 = 2.0;
/// Points of accuracy that `performance` has beyond random selection, at least.
const GAINED_MIN: f64 = 1.0;
/// Gini coefficients of `fair_work`, variance of `fair_accuracy` and waste of `fast`, as parts of
/// those of random selection, at most.
const GINI_MAX: f64 = 0.5;
const VARIANCE_MAX: f64 = 0.7;
const WASTE_MAX: f64 = 0.5;

/// Runs the benchmark.
pub(super) fn run(seeds: &BenchPay, size: &BenchRounds) -> anyhow::Result<Vec<Measurement>> {
    let parts = [attacks::NAME, buffered::NAME, silos::NAME, tasks::NAME];
    let kinds = MarketKind::ALL.iter().map(|kind| kind.name());
    check_only(seeds.only.as_deref(), &kinds.chain(parts).collect::<Vec<_>>())?;
    let is_chosen =
        |name: &str| seeds.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    if is_chosen(silos::NAME) {
        silos::check(size)?;
    }
    let mut rows = Vec::new();
    for kind in MarketKind::ALL {
        if is_chosen(kind.name()) {
            rows.extend(compare(kind, seeds, size)?);
        }
    }
    if is_chosen(attacks::NAME) {
        rows.extend(attacks::run(seeds, size)?);
    }
    if is_chosen(buffered::NAME) {
        rows.extend(buffered::run(seeds, size)?);
    }
    if is_chosen(silos::NAME) {
        rows.extend(silos::run(seeds, size)?);
    }
    if is_chosen(tasks::NAME) {
        rows.extend(tasks::run(seeds, size));
    }
    Ok(rows)
}

/// Reads a scenario of the benchmark, with its files in `folder`.
///
/// # Errors
/// The cause with its key and value, for a size that no market has.
fn read_scenario(folder: &Path, text: &str) -> anyhow::Result<Scenario> {
    Scenario::read_in(folder, text, &[]).map_err(|error| {
        let message = format!("a scenario of the benchmark is not valid: {error}");
        Failure::input(error.code(), message).into()
    })
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
    let graph = kind.graph()?;
    let mut trials = run_all_of(jobs, graph.as_ref()).into_iter();
    let mut all = Vec::new();
    for rule in rules {
        let of_rule = trials.by_ref().take(usize::try_from(seeds.tasks)?);
        let trials = of_rule.collect::<anyhow::Result<Vec<Trial>>>()?;
        all.push(RuleTrials { rule: *rule, trials });
    }
    Ok(report(kind, &all))
}

/// Simulates all tasks of the scenarios' networks.
fn run_all(jobs: Vec<(Scenario, u64)>) -> Vec<anyhow::Result<Trial>> {
    run_all_of(jobs, None)
}

/// Simulates all tasks, with progress.
fn run_all_of(jobs: Vec<(Scenario, u64)>, graph: Option<&GraphTask>) -> Vec<anyhow::Result<Trial>> {
    let bar = progress_bar(ProgressDrawTarget::stderr(), BAR);
    bar.set_length(jobs.len() as u64);
    let trials = parallel_map(THREADS, jobs, |(scenario, seed)| {
        let trial = Trial::run(&scenario, graph, seed);
        bar.inc(1);
        trial
    });
    bar.finish_and_clear();
    trials
}

/// A rule beside random selection with the same members: how many times faster it reaches the target
/// of random's accuracy, and the points of final accuracy that it has beyond random.
fn beyond_random(of: &RuleTrials, random: &RuleTrials) -> (f64, f64) {
    let pairs = || of.trials.iter().zip(&random.trials);
    let to_target = |one: &Trial, reference: &Trial| {
        one.time_to(reference.final_accuracy() * TARGET).unwrap_or(f64::INFINITY)
    };
    let times = pairs().map(|(one, other)| to_target(other, other) / to_target(one, other));
    let gains = pairs().map(|(one, other)| one.final_accuracy() - other.final_accuracy());
    (median(times), median(gains) * 100.0)
}

fn report(kind: MarketKind, all: &[RuleTrials]) -> Vec<Measurement> {
    let Some(random) = of_rule(all, Rule::Random) else { return Vec::new() };
    let oort = of_rule(all, Rule::Oort).map(|oort| beyond_random(oort, random));
    let (oort_faster, oort_gained) = oort.unwrap_or_default();
    let mut rows = Vec::new();
    for of in all {
        let name = |what: &str| format!("{}, {}: {what}", kind.name(), of.rule.name());
        let pairs = || of.trials.iter().zip(&random.trials);
        let plain = |what: &str, value, unit: &str| Measurement::plain(name(what), value, unit);
        let (faster, gained) = beyond_random(of, random);
        let accuracy = mean(of.trials.iter().map(Trial::final_accuracy)) * 100.0;
        let is = |rule| of.rule == rule;
        let plain_or = |what: &str, value, unit: &str, at_least: Option<f64>| match at_least {
            Some(bar) => Measurement::at_least(name(what), value, unit, bar),
            None => plain(what, value, unit),
        };
        let has_speeds = matches!(kind, MarketKind::Speeds | MarketKind::Graph);
        let in_speeds = has_speeds && is(Rule::Fast);
        let in_skewed = kind == MarketKind::Skewed && is(Rule::Performance);
        let bar = in_speeds.then_some(FASTER_MIN.max(oort_faster));
        rows.push(plain_or(
            "time to 90 % of random's accuracy, random over this",
            faster,
            "x",
            bar,
        ));
        rows.push(plain("final accuracy", accuracy, "%"));
        let bar = in_skewed.then_some(GAINED_MIN.max(oort_gained));
        let bar = if is(Rule::FairAccuracy) { Some(-1.0) } else { bar };
        rows.push(plain_or("final accuracy beyond random", gained, "points", bar));
        let ratio = |of: fn(&Trial) -> f64| {
            median(pairs().map(|(one, other)| of(one) / of(other).max(1e-12)))
        };
        let plain_or = |what: &str, value, at_most: Option<f64>| match at_most {
            Some(bar) => Measurement::at_most(name(what), value, "", bar),
            None => plain(what, value, ""),
        };
        let bar = is(Rule::FairWork).then_some(GINI_MAX);
        rows.push(plain("Gini of work", median(of.trials.iter().map(Trial::gini_of_work)), ""));
        rows.push(plain_or("Gini of work over random's", ratio(Trial::gini_of_work), bar));
        rows.push(plain_or("Gini of pay over random's", ratio(Trial::gini_of_pay), bar));
        if is(Rule::FairWork) {
            let least = pairs()
                .map(|(one, other)| one.gini_of_equalised_pay() / other.gini_of_pay().max(1e-12));
            let label = "  with equal pay in a round, dealt when all pay is known";
            rows.push(plain(label, median(least), ""));
        }
        let bar = is(Rule::FairAccuracy).then_some(VARIANCE_MAX);
        rows.push(plain_or(
            "variance of own accuracy over random's",
            ratio(Trial::own_variance),
            bar,
        ));
        let bar = in_speeds.then_some(WASTE_MAX);
        rows.push(plain_or("wasted work over random's", ratio(Trial::wasted), bar));
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

/// The trials of a rule, if it is compared here.
fn of_rule(all: &[RuleTrials], rule: Rule) -> Option<&RuleTrials> {
    all.iter().find(|of| of.rule == rule)
}
