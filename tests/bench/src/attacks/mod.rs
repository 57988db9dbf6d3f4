//! `florin-bench attacks`: the ratio of an attacker's pay to the same member's honest pay.
//!
//! The laboratory simulates its scenario `protections` on the production code, with and without
//! each protection of a task. Every attack is compared with the same market in which the attacker
//! is honest.

mod learn;
mod noise;
mod separation;

use std::fmt;

use anyhow::Context;
use florin::show::{Cell, TextTable};
use florin_learning::parallel_map;
use florin_sim::measure::{ConfidenceInterval, confidence_interval, ratio};
use florin_sim::scenario::{SettingOverride, StrategyFamily, built_in};
use florin_sim::search::{SearchResults, StrategyResult, search_deviations};
use florin_sim::{Scenario, SimulationOutcome, run_experiment};

use super::Measurement;

/// The laboratory's scenario: the market, and the attacks in the order of the rows.
const SCENARIO: &str = "protections";
/// The group of the attacker.
const ATTACKER: &str = "attacker";
/// Default number of seeds per condition; the variable `FLORIN_BENCH_SEEDS` overrides it.
const SEEDS: u64 = 8;
/// Number of threads; each runs one task at a time.
const THREADS: usize = 2;
/// Maximum fraction of its pay that an honest member may lose to the protection without an attack.
const HONEST_LOSS_MAX: f64 = 0.05;

/// The limit of the payouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PayLimit {
    /// As in the demonstration: the price limits the first rounds, the budget the others.
    Demonstration,
    /// The price alone: payouts are proportional to scores.
    Priced,
}

/// A population of members.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Condition {
    /// The concentration of the Dirichlet distribution of labels; `None` for even rows.
    label_skew: Option<f64>,
    members: u32,
}

const CONDITIONS: [Condition; 4] = [
    Condition { label_skew: None, members: 8 },
    Condition { label_skew: None, members: 12 },
    Condition { label_skew: Some(1.0), members: 8 },
    Condition { label_skew: Some(1.0), members: 12 },
];

/// Rows of all members together: the digits that are neither holdout nor test rows.
const MEMBERS_ROWS: u32 = 987;

/// A set of protections to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProtectionStack {
    name: &'static str,
    clip: bool,
    reject_near_duplicates: bool,
}

/// The last entry is the default of a task.
const STACKS: [ProtectionStack; 4] = [
    ProtectionStack { name: "none", clip: false, reject_near_duplicates: false },
    ProtectionStack { name: "clip", clip: true, reject_near_duplicates: false },
    ProtectionStack { name: "repeats", clip: false, reject_near_duplicates: true },
    ProtectionStack { name: "default", clip: true, reject_near_duplicates: true },
];

/// Columns of the attacks table: one for each of [`STACKS`].
const HEADS: [&str; 5] =
    ["attacker's pay / its honest pay", ">none", ">clip", ">repeats", ">default"];

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.label_skew {
            None => write!(f, "iid, n={}", self.members),
            Some(skew) => write!(f, "dirichlet:{skew}, n={}", self.members),
        }
    }
}

impl Condition {
    /// The changes to the scenario's population: even shards have one size, skewed ones half to all
    /// of it. The attacker has an even shard of the mean size, so that its honest pay is not small.
    fn overrides(self) -> Vec<String> {
        let most = MEMBERS_ROWS / self.members;
        let least = if self.label_skew.is_some() { most.div_ceil(2) } else { most };
        let own = (least + most) / 2;
        let skew = self.label_skew.map(|skew| format!("population.honest.label_skew={skew}"));
        let all = [
            format!("population.honest.count={}", self.members - 1),
            format!("population.honest.rows=[{least}, {most}]"),
            format!("population.{ATTACKER}.rows=[{own}, {own}]"),
        ];
        all.into_iter().chain(skew).collect()
    }
}

impl PayLimit {
    /// The budget for data, in florins.
    const fn budget(self) -> u32 {
        match self {
            Self::Demonstration => 1_000,
            Self::Priced => 1_000_000,
        }
    }
}

/// One market: the scenario with these protections, members and budget.
fn scenario(
    stack: ProtectionStack,
    condition: Condition,
    limit: PayLimit,
    seeds: u64,
) -> anyhow::Result<Scenario> {
    let text = built_in(SCENARIO).context("the scenario of this benchmark is built in")?.text;
    let mut overrides = condition.overrides();
    overrides.extend([
        format!("task.clip={}", stack.clip),
        format!("task.reject_near_duplicates={}", stack.reject_near_duplicates),
        format!("task.budget={}", limit.budget()),
        format!("seeds.count={seeds}"),
    ]);
    let overrides: Result<Vec<SettingOverride>, _> =
        overrides.iter().map(|change| change.parse()).collect();
    Ok(Scenario::read(text, &overrides?)?)
}

pub(super) fn run() -> anyhow::Result<Vec<Measurement>> {
    let seeds = seeds()?;
    let mut rows = separation::run(seeds)?;
    for limit in [PayLimit::Demonstration, PayLimit::Priced] {
        anstream::println!("\nPay: {limit:?}; {seeds} seeds");
        rows.extend(losses(limit, seeds)?);
        rows.extend(attacks(limit, seeds)?);
    }
    Ok(rows)
}

fn seeds() -> anyhow::Result<u64> {
    match std::env::var("FLORIN_BENCH_SEEDS") {
        Ok(text) => Ok(text.parse()?),
        Err(_) => Ok(SEEDS),
    }
}

/// Runs all jobs on [`THREADS`] threads; the results are in the order of the jobs.
pub(super) fn parallel<J: Sync, R: Send>(
    jobs: &[J],
    run: impl Fn(&J) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    parallel_map(THREADS, jobs.iter().collect(), run).into_iter().collect()
}

/// The outcomes of a market in which the attacker is honest.
fn honest_outcomes(mut scenario: Scenario) -> anyhow::Result<Vec<SimulationOutcome>> {
    let attacker = scenario.population.get_mut(ATTACKER).context("the scenario has an attacker")?;
    attacker.strategy = florin_sim::strategy::Strategy::Honest;
    Ok(run_experiment(&scenario, THREADS, &|_, _| {})?.outcomes)
}

/// The loss of honest members by each protection without an attack: in total, and of the member
/// that loses most among those that earn at least half of the mean.
fn losses(limit: PayLimit, seeds: u64) -> anyhow::Result<Vec<Measurement>> {
    let mut table =
        TextTable::new(&["without attack", ">pay retained", ">least retained", ">rejected"]);
    let mut rows = Vec::new();
    for stack in STACKS {
        for condition in CONDITIONS {
            let bare = honest_outcomes(scenario(STACKS[0], condition, limit, seeds)?)?;
            let protected = honest_outcomes(scenario(stack, condition, limit, seeds)?)?;
            let (mut retained, mut least, mut rejected) = (Vec::new(), Vec::new(), 0);
            for (with, without) in protected.iter().zip(&bare) {
                let sum = |played: &SimulationOutcome| {
                    played.members.iter().map(|member| member.earned).sum::<f64>()
                };
                retained.push(sum(with) / sum(without));
                let half = sum(without) / f64::from(condition.members) / 2.0;
                let each = with.members.iter().zip(&without.members);
                let each = each.filter(|(_, bare)| bare.earned >= half);
                least.push(each.map(|(a, b)| a.earned / b.earned).fold(f64::INFINITY, f64::min));
                rejected += with.rounds.iter().map(|round| round.near_duplicates).sum::<usize>();
            }
            let (retained, least) = (confidence_interval(&retained), confidence_interval(&least));
            table.row([
                format!("{}, {condition}", stack.name).into(),
                format_interval(&retained).into(),
                format_interval(&least).into(),
                rejected.to_string().into(),
            ]);
            if stack == STACKS[STACKS.len() - 1] {
                let name = format!("pay retained by honest members, {condition}");
                let bar = 1.0 - HONEST_LOSS_MAX;
                rows.push(Measurement::at_least(name, retained.mean, "×", bar));
            }
        }
    }
    table.print();
    Ok(rows)
}

/// Every attack under each stack of protections, under the condition in which it pays most.
fn attacks(limit: PayLimit, seeds: u64) -> anyhow::Result<Vec<Measurement>> {
    let mut per_stack = Vec::new();
    for stack in STACKS {
        let all = CONDITIONS.map(|condition| search(&scenario(stack, condition, limit, seeds)?));
        per_stack.push(all.into_iter().collect::<anyhow::Result<Vec<SearchResults>>>()?);
    }
    let if_cut = if_cut_at_zero(limit, seeds)?;
    let mut table = TextTable::new(&HEADS);
    let mut rows = Vec::new();
    for (at, attack) in families(&scenario(STACKS[0], CONDITIONS[0], limit, seeds)?).enumerate() {
        let worst = per_stack.iter().map(|all| worst(all, at));
        let worst = worst.collect::<anyhow::Result<Vec<(ConfidenceInterval, Condition)>>>()?;
        let mut line: Vec<Cell> = vec![attack.name.as_str().into()];
        line.extend(worst.iter().map(|(pay, _)| Cell::from(format_interval(pay))));
        table.row(line);
        let (pay, condition) = worst.last().context("there is a stack of protections")?;
        let name = format!("{} ({condition})", attack.name);
        let bar = 1.0 + half_width(pay);
        rows.push(Measurement::at_most(name, pay.mean, "× honest pay", bar));
        if let Some((_, pay)) = if_cut.iter().find(|(name, _)| *name == attack.name) {
            let name = format!("{}, if negative scores were cut at zero", attack.name);
            rows.push(Measurement::plain(name, *pay, "× honest pay"));
        }
    }
    table.print();
    Ok(rows)
}

fn families(scenario: &Scenario) -> impl Iterator<Item = StrategyFamily> {
    scenario
        .search
        .iter()
        .flat_map(|search| &search.strategies)
        .cloned()
        .collect::<Vec<_>>()
        .into_iter()
}

fn search(scenario: &Scenario) -> anyhow::Result<SearchResults> {
    let found = search_deviations(scenario, THREADS, &|_, _| {})?;
    found.context("the scenario has a search")
}

/// The pay of hedges, without protections, if negative scores were cut at zero instead of debited:
/// the mean under the condition in which they pay most.
fn if_cut_at_zero(limit: PayLimit, seeds: u64) -> anyhow::Result<Vec<(String, f64)>> {
    let mut best: Vec<(String, f64)> = Vec::new();
    for condition in CONDITIONS {
        let mut cut = scenario(STACKS[0], condition, limit, seeds)?;
        cut.mechanism = florin_sim::mechanism::Mechanism::CutAtZero;
        if let Some(search) = &mut cut.search {
            search.strategies.retain(|family| family.name.starts_with("hedge"));
        }
        for (at, result) in search(&cut)?.strategies.iter().enumerate() {
            let pay = relative_pay(result)?.mean;
            match best.get_mut(at) {
                Some((_, most)) => *most = most.max(pay),
                None => best.push((result.name.clone(), pay)),
            }
        }
    }
    Ok(best)
}

/// The attacker's pay relative to its honest pay, per unit of bond: the ratio of the means over all
/// seeds.
fn relative_pay(result: &StrategyResult) -> anyhow::Result<ConfidenceInterval> {
    let of = |value: fn(&florin_sim::search::SeedEvaluation) -> f64| -> Vec<f64> {
        result.evaluations.iter().map(value).collect()
    };
    let pay = ratio(&of(|seed| seed.profit), &of(|seed| seed.honest));
    let pay = pay.with_context(|| {
        format!("{}: honest pay is not significantly positive; take more seeds", result.name)
    })?;
    Ok(pay.scaled(1.0 / result.strategy.bond_multiple(MEMBERS_ROWS.into())))
}

/// The condition under which an attack pays most, by the lower bound of its relative pay.
fn worst(all: &[SearchResults], at: usize) -> anyhow::Result<(ConfidenceInterval, Condition)> {
    let mut worst: Option<(ConfidenceInterval, Condition)> = None;
    for (found, condition) in all.iter().zip(CONDITIONS) {
        let pay = relative_pay(found.strategies.get(at).context("every attack has a result")?)?;
        let low = |pay: &ConfidenceInterval| pay.mean - half_width(pay);
        if worst.as_ref().is_none_or(|(old, _)| low(&pay) > low(old)) {
            worst = Some((pay, condition));
        }
    }
    worst.context("there is a condition")
}

/// Distance between the mean and the lower bound; infinite for a single seed.
fn half_width(interval: &ConfidenceInterval) -> f64 {
    interval.low().map_or(f64::INFINITY, |low| interval.mean - low)
}

fn format_interval(interval: &ConfidenceInterval) -> String {
    format!("{:.2} ± {:.2}", interval.mean, half_width(interval))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_market_of_the_benchmark_is_a_valid_scenario() {
        for (stack, condition) in STACKS.iter().flat_map(|s| CONDITIONS.map(|c| (*s, c))) {
            for limit in [PayLimit::Demonstration, PayLimit::Priced] {
                let market = scenario(stack, condition, limit, 2).unwrap();
                assert_eq!(market.task.clip, stack.clip);
                assert_eq!(market.task.reject_near_duplicates, stack.reject_near_duplicates);
                assert_eq!(market.task.budget, f64::from(limit.budget()));
                let members: u32 = market.population.values().map(|group| group.count).sum();
                assert_eq!(members, condition.members);
                assert_eq!(families(&market).count(), 36);
            }
        }
        assert_eq!(
            CONDITIONS.map(|one| one.to_string())[..3],
            ["iid, n=8", "iid, n=12", "dirichlet:1, n=8"]
        );
    }

    #[test]
    fn a_copy_of_the_same_round_is_paid_only_without_the_rejection_of_near_duplicates() {
        let pay = |stack| {
            let mut market = scenario(stack, CONDITIONS[0], PayLimit::Demonstration, 1).unwrap();
            market.rounds = 4;
            let attacks = &mut market.search.as_mut().unwrap().strategies;
            attacks.retain(|attack| attack.name == "plagiarise, noise 0 %");
            let found = search(&market).unwrap();
            relative_pay(&found.strategies[0]).unwrap().mean
        };
        let [none, _, _, default] = STACKS.map(pay);
        assert!(none > 0.7, "{none}");
        assert_eq!(default, 0.0);
    }

    #[test]
    fn pay_is_relative_to_honest_pay_and_to_the_bond() {
        let mut market = scenario(STACKS[3], CONDITIONS[0], PayLimit::Demonstration, 1).unwrap();
        market.rounds = 4;
        let attacks = &mut market.search.as_mut().unwrap().strategies;
        attacks.retain(|attack| attack.name.starts_with("replicate ×4, per unit of bond"));
        let found = search(&market).unwrap().strategies.remove(0);
        let sum = |value: fn(&florin_sim::search::SeedEvaluation) -> f64| -> f64 {
            found.evaluations.iter().map(value).sum()
        };
        let expected = sum(|seed| seed.profit) / sum(|seed| seed.honest) / 4.0;
        assert!((relative_pay(&found).unwrap().mean - expected).abs() < 1e-12);
    }
}
