//! Selectors of the literature select among the members that are online, and leave trainings that go
//! on in the cohort.

use std::collections::BTreeSet;

use florin_sim::market::RoundTimeline;
use florin_sim::results::Program;
use florin_sim::{Scenario, SimulationOutcome, run_experiment, simulate};

const SELECTORS: [&str; 3] = ["oort", "tifl", "refl"];

fn text(task: &str, population: &str) -> String {
    format!(
        "name = 'selectors'\nquestion = 'Which ones?'\nrounds = 8\n[seeds]\nfirst = 1\ncount = 1\n\
         [learning]\nholdout_rows = 480\nholdout_rows_per_round = 60\nhidden = []\nepochs = 1\n\
         [task]\n{task}\n{population}"
    )
}

fn group(name: &str, count: u32, keys: &str) -> String {
    format!("[population.{name}]\ncount = {count}\nrows = [10, 10]\n{keys}\n")
}

fn played(task: &str, population: &str) -> SimulationOutcome {
    let scenario = Scenario::read(&text(task, population), &[]).unwrap();
    let outcome = simulate(&scenario, 1, 1).unwrap();
    assert!(outcome.balanced);
    outcome
}

#[test]
fn every_selected_member_is_online() {
    let population = group("members", 60, "online = { pattern = 'random', probability = 0.5 }");
    for selector in SELECTORS {
        let task = format!("cohort = 3\ntrain_s = 100\nselector = '{selector}'");
        let outcome = played(&task, &population);
        // The first round opens with three enrolled accounts, and a tier of them is too small.
        assert!(outcome.rounds.len() == 8 && outcome.market_cohorts <= 1, "{selector}");
        for round in &outcome.timelines[1..] {
            assert_eq!(round.commits.len(), round.cohort.len(), "{selector}: {round:?}");
        }
    }
}

#[test]
fn refl_prefers_members_that_are_online_now_and_not_later() {
    let leaving = group("b", 3, "online = { pattern = 'rounds', first = 1, last = 2 }");
    let away = group("c", 3, "online = { pattern = 'rounds', first = 3, last = 8 }");
    // The first round opens with the first three accounts.
    let outcome = played("cohort = 3\nselector = 'refl'", &(group("a", 6, "") + &leaving + &away));
    let members = outcome.members.iter().filter(|member| member.group == 1);
    assert_eq!(members.map(|member| member.selected).collect::<Vec<u32>>(), [1; 3]);
    let second = &outcome.timelines[1];
    assert_eq!((second.cohort.len(), second.commits.len()), (3, 3));
    let is_leaving =
        |account| (6..9).any(|number| account == florin_sim::market::account(number, 0));
    assert!(second.cohort.iter().all(|account| is_leaving(*account)), "{second:?}");
}

/// The members of a round that train and have not committed.
fn training(round: &RoundTimeline) -> BTreeSet<florin_protocol::Address> {
    round.spares.keys().copied().collect()
}

#[test]
fn trainings_that_go_on_stay_in_the_cohort_of_a_selector() {
    let population = group("fast", 15, "machine = { steps_per_second = 4.0 }")
        + &group("slow", 15, "machine = { steps_per_second = 0.5 }");
    let late = "staleness = { rounds = 8, weight = 'inverse_root' }";
    for selector in SELECTORS {
        let task = format!("cohort = 3\nover_selection = 5\n{late}\nselector = '{selector}'");
        let outcome = played(&task, &population);
        let mut continued = 0;
        for pair in outcome.timelines.windows(2) {
            let next: BTreeSet<_> = pair[1].cohort.iter().copied().collect();
            let goes_on = training(&pair[0]);
            assert!(goes_on.is_subset(&next), "{selector}: {goes_on:?} and {next:?}");
            assert!(next.len() == 8 || selector == "tifl", "all places are taken");
            continued += goes_on.len();
        }
        assert!(continued > 0, "{selector}");
        let mut late = outcome.timelines.iter().flat_map(|round| {
            round.commits.iter().filter(|(account, _)| round.begun.contains_key(account))
        });
        assert!(late.next().is_some(), "{selector}: a late update counts");
    }
}

#[test]
fn rounds_with_too_few_members_for_a_selector_are_counted_and_stated() {
    let task = "cohort = 4\ncohort_min = 3\nselector = 'tifl'";
    // Half of 20 members have tiers of two.
    let population = group("members", 20, "online = { pattern = 'random', probability = 0.5 }");
    let scenario = Scenario::read(&text(task, &population), &[]).unwrap();
    let results = run_experiment(&scenario, 1, &|_, _| {}).unwrap();
    let market_cohorts = results.outcomes[0].market_cohorts;
    assert!(market_cohorts > 4, "{market_cohorts}");
    let market = results.findings().pop().unwrap().text;
    let stated = format!(
        "In {market_cohorts} of 8 rounds the selector had fewer than cohort_min members, and the \
         market's cohort was asked."
    );
    assert!(market.ends_with(&stated), "{market}");
    let json = results.to_json(&Program { version: "1", commit: "0123456" });
    let expected =
        serde_json::json!({"selector": "tifl", "rounds": 8, "market_cohorts": market_cohorts});
    assert_eq!(json["selector"], expected);
}
