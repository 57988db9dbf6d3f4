//! Members that come and go, members that choose fast rounds, and late updates by a rule of the literature.

use florin_sim::population::Population;
use florin_sim::results::Results;
use florin_sim::{Scenario, run_experiment};

fn scenario(task: &str, population: &str) -> Scenario {
    let text = format!(
        "name = 'unequal'\nquestion = 'What do they earn?'\nrounds = 8\n[seeds]\nfirst = 1\ncount = 2\n\
         [learning]\nholdout_rows = 480\nholdout_rows_per_round = 60\nhidden = [16]\n[task]\n{task}\n{population}"
    );
    Scenario::read(&text, &[]).unwrap()
}

fn group(name: &str, count: u32, keys: &str) -> String {
    format!("[population.{name}]\ncount = {count}\nrows = [20, 20]\n{keys}\n")
}

fn run(scenario: &Scenario) -> Results {
    let results = run_experiment(scenario, 2, &|_, _| {}).unwrap();
    assert!(results.outcomes.iter().all(|played| played.balanced), "the total changed");
    results
}

/// The share of members that are online at each of some moments.
fn online(population: &Population, scenario: &Scenario, hours: &[u64]) -> Vec<Vec<bool>> {
    let online = &scenario.population.values().next().unwrap().online;
    let at = |hour: &u64| {
        let is_online = |member: &florin_sim::population::Member| {
            member.is_online(online, 1, hour * 3_600_000, 7)
        };
        population.members.iter().map(is_online).collect()
    };
    hours.iter().map(at).collect()
}

#[test]
fn members_with_churn_come_and_go_in_spells() {
    let churn = "online = { pattern = 'churn', online_hours = 5, offline_hours = 15 }";
    let scenario = scenario("", &group("churning", 40, churn));
    let population = Population::draw(&scenario, 1).unwrap();
    let hours: Vec<u64> = (0..400).collect();
    let found = online(&population, &scenario, &hours);
    let share = found.iter().flatten().filter(|is| **is).count() as f64 / 16_000.0;
    assert!((share - 0.25).abs() < 0.05, "a quarter of the time: {share}");
    // A spell of 5 hours ends within an hour with a probability of 1 − e^(−1/5), about a fifth.
    let pairs = || found.windows(2).flat_map(|pair| pair[0].iter().zip(&pair[1]));
    let (was, left) =
        (pairs().filter(|(was, _)| **was), pairs().filter(|(was, is)| **was && !**is));
    let leaves = left.count() as f64 / was.count() as f64;
    assert!((leaves - 0.18).abs() < 0.04, "{leaves}");
    assert_eq!(found, online(&population, &scenario, &hours), "the same again");
}

#[test]
fn a_member_that_hoards_fast_rounds_works_in_half_of_them() {
    let machine = "machine = { steps_per_second = 1.0, spread = 1.0 }";
    let task = "cohort = 4\nselection = { knob = 'fast', explore = 0.5 }";
    let of = |strategy: &str| {
        let hoarding = format!("{machine}\nstrategy = {{ kind = '{strategy}' }}");
        let population = group("honest", 8, machine) + &group("other", 4, &hoarding);
        let results = run(&scenario(task, &population));
        results.measure("profit", Some("other")).unwrap().interval.mean
    };
    let (honest, hoarding) = (of("honest"), of("hoard"));
    assert!(hoarding > 0.0 && hoarding < honest, "{hoarding} and {honest}");
}

#[test]
fn lines_can_spread_less_than_machines() {
    let spread = |keys: &str| {
        let machine = format!("machine = {{ spread = 1.0{keys} }}");
        let scenario = scenario("", &group("members", 30, &machine));
        let population = Population::draw(&scenario, 1).unwrap();
        let lines: Vec<f64> =
            population.members.iter().map(|own| own.bytes_per_second.ln()).collect();
        let mean = lines.iter().sum::<f64>() / 30.0;
        (lines.iter().map(|own| (own - mean).powi(2)).sum::<f64>() / 29.0).sqrt()
    };
    assert!(spread("") > 0.6);
    assert!(spread(", line_spread = 0.1") < 0.2);
}

#[test]
fn late_updates_can_have_the_weights_of_refl() {
    let machines = group("fast", 6, "machine = { steps_per_second = 4.0 }")
        + &group("slow", 6, "machine = { steps_per_second = 1.0 }");
    let task = |more: &str| {
        format!(
            "cohort = 3\nover_selection = 6\nstaleness = {{ rounds = 8, weight = 'inverse' }}\n{more}"
        )
    };
    let accuracy = |more: &str| {
        let results = run(&scenario(&task(more), &machines));
        results.measure("accuracy", None).unwrap().interval.mean
    };
    let (ours, refl) = (accuracy(""), accuracy("stale_weights = 'refl'"));
    assert!(refl > 0.3 && (refl - ours).abs() > 1e-9, "{refl} and {ours}");
    let text = "name = 'a'\nquestion = 'b?'\nrounds = 3\n[task]\nstale_weights = 'refl'\n[population.a]\ncount = 3\n";
    let refused = Scenario::read(text, &[]).unwrap_err().to_string();
    assert!(refused.contains("task.stale_weights = refl"), "{refused}");
}
