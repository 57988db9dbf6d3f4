//! Markets for compute under virtual time: money, deviations and their limits.

use std::fs;

use super::*;
use crate::results::{Program, Verdict};
use crate::scenario::SettingOverride;

const PROGRAM: Program<'static> = Program { version: "1", commit: "unknown" };
const SMALL: &str = "name = 'small'\nquestion = 'Is it small?'\nmarket = 'compute'\nhours = 8\n\
    [seeds]\nfirst = 3\ncount = 3\n[order]\nsegments = 20\nsteps = 16\naudited = 0.1\n\
    [providers.honest]\ncount = 3\n[providers.cheats]\ncount = 2\n\
    [renters.buyers]\ncount = 2\norders_per_hour = 12\n\
    [auditors.pool]\ncount = 6\n[auditors.others]\ncount = 3\n";
const LISTING: &str = "listing={stake=5, fee=0.01, probe_minutes=30}";

fn read(changes: &[&str]) -> Result<ComputeScenario, String> {
    let changes: Vec<SettingOverride> = changes.iter().map(|text| text.parse().unwrap()).collect();
    let read = read_compute_scenario(SMALL, &changes);
    read.map(Option::unwrap).map_err(|error| error.to_string())
}

fn run(changes: &[&str]) -> ComputeResults {
    let scenario = read(changes).unwrap();
    let results = run_compute_experiment(&scenario, 2, &|_, _| {}).unwrap();
    for outcome in &results.outcomes {
        assert!(outcome.is_balanced, "seed {}: {changes:?}", outcome.seed);
    }
    results
}

fn mean(results: &ComputeResults, measure: &str, group: Option<&str>) -> f64 {
    let found = results.measure(measure, group);
    found.unwrap_or_else(|| panic!("{measure} of {group:?}")).interval.mean
}

fn strategy(text: &str) -> String {
    format!("providers.cheats.strategy={text}")
}

#[test]
fn honest_leases_are_settled_and_every_florin_has_an_owner() {
    let results = run(&[]);
    assert!(mean(&results, "jobs", None) > 60.0);
    assert_eq!(mean(&results, "completed", None), 1.0);
    for measure in ["slashed_leases", "defaulted_leases", "treasury"] {
        assert_eq!(mean(&results, measure, None), 0.0, "{measure}");
    }
    // Two segments of twenty, by two auditors each.
    assert!((mean(&results, "audited", None) - 0.2).abs() < 1e-9);
    for (group, _, _) in results.scenario.groups() {
        assert!(mean(&results, "profit", Some(group)) > 0.0, "{group}");
    }
    // A price is between the costs and the largest price.
    assert!((0.8..=4.0).contains(&mean(&results, "price", None)));
    assert!(results.measure("gain_together", None).is_none(), "all groups are honest");
}

#[test]
fn one_seed_has_one_outcome_on_any_number_of_threads() {
    let scenario = read(&["providers.honest.failures_per_hour=1", LISTING]).unwrap();
    let one = run_compute_experiment(&scenario, 1, &|_, _| {}).unwrap();
    let two = run_compute_experiment(&scenario, 2, &|_, _| {}).unwrap();
    assert_eq!(one.outcomes, two.outcomes);
    assert_ne!(one.outcomes[0].leases, one.outcomes[1].leases, "seeds differ");
    assert!(mean(&one, "defaulted_leases", None) > 0.0, "devices fail");
    assert!(mean(&one, "completed", None) > 0.9, "and other ones go on");
}

#[test]
fn a_deviation_is_compared_with_the_same_members_being_honest() {
    let results = run(&[&strategy("{kind='fakes', share=0.5}")]);
    let honest = run(&[]);
    let gain = mean(&results, "profit", Some("cheats")) - mean(&honest, "profit", Some("cheats"));
    assert!((mean(&results, "gain", Some("cheats")) - gain).abs() < 1e-9);
    assert!((mean(&results, "gain_together", None) - 2.0 * gain).abs() < 1e-9);
    assert!(gain < 0.0 && mean(&results, "slashed", Some("cheats")) > 0.0);
    assert_eq!(mean(&results, "slashed", Some("honest")), 0.0);
    // A slashed lease is placed again.
    assert!(mean(&results, "completed", None) > 0.95);
}

#[test]
fn a_deviation_that_changes_nothing_gains_nothing() {
    // The same jobs have the same noise, failures and draws, although renters that wash add others.
    let failing = "providers.honest.failures_per_hour=0.5";
    let results = run(&[&strategy("{kind='leaves', after=1.0}"), failing]);
    assert_eq!(mean(&results, "gain_together", None), 0.0);
    for outcome in &results.outcomes {
        for lease in &outcome.leases {
            assert!(lease.price.is_none_or(|price| price <= 4.0 + 1e-9), "{lease:?}");
        }
    }
}

#[test]
fn work_that_is_late_costs_and_work_that_is_not_done_costs_nothing() {
    // Segments of shared devices miss their deadlines.
    let busy = ["renters.buyers.orders_per_hour=60", "order.slack=1.0"];
    let late = run(&[&busy[..], &[&strategy("{kind='overbooks', factor=4}")]].concat());
    assert!(mean(&late, "defaulted", Some("cheats")) > 0.0);
    assert!(mean(&late, "cost", Some("cheats")) > 0.0);
    let replays = run(&[&strategy("{kind='replays'}")]);
    assert_eq!(mean(&replays, "cost", Some("cheats")), 0.0);
    // Results that no provider computed are worth nothing, even if no audit is drawn.
    let fakes = run(&[&strategy("{kind='fakes', share=1.0}"), "coordinator=never_draws"]);
    assert!(mean(&fakes, "fake_results", None) > 0.0 && mean(&fakes, "gain_together", None) > 0.0);
    let honest = run(&["coordinator=never_draws"]);
    let buyers = |results: &ComputeResults| mean(results, "profit", Some("buyers"));
    assert!(buyers(&fakes) < buyers(&honest));
}

#[test]
fn strategies_of_providers_do_what_their_names_say() {
    let slashed = |changes: &[&str]| mean(&run(changes), "slashed", Some("cheats"));
    let works = |results: &ComputeResults| mean(results, "works", Some("cheats"));
    let replays = run(&[&strategy("{kind='replays'}")]);
    assert!((mean(&replays, "slashed", Some("cheats")) - works(&replays)).abs() < 1e-9);
    let leaves = run(&[&strategy("{kind='leaves', after=0.5}")]);
    // Half of the last segment is the whole one.
    assert!(mean(&leaves, "defaulted", Some("cheats")) > 0.8 * works(&leaves));
    assert!(mean(&leaves, "completed", None) > 0.95);
    // Checkpoints speak for a provider that is gone; its silence costs the stake otherwise.
    let gone = |checkpoints: bool| {
        let text =
            format!("{{kind='leaves', after=0.5, returns=false, checkpoints={checkpoints}}}");
        run(&[&strategy(&text)])
    };
    let (with, without) = (gone(true), gone(false));
    assert_eq!(mean(&with, "slashed", Some("cheats")), 0.0);
    assert!(mean(&with, "defaulted", Some("cheats")) > 0.8 * works(&with));
    assert!(mean(&with, "earned", Some("cheats")) > mean(&without, "earned", Some("cheats")));
    assert!(mean(&without, "slashed", Some("cheats")) > 0.8 * works(&without));
    assert!(mean(&with, "completed", None) > mean(&without, "completed", None));
    for kind in ["never_funds", "never_opens"] {
        let results = run(&[&strategy(&format!("{{kind='{kind}'}}"))]);
        assert_eq!(works(&results), 0.0, "{kind}");
        assert!(mean(&results, "earned", Some("cheats")) < 0.0, "{kind}: its bonds");
    }
    let guessed = "{kind='grinds', share=0.2, salts=50, knows_beacon=false}";
    let known = "{kind='grinds', share=0.2, salts=50, knows_beacon=true}";
    assert!(slashed(&[&strategy(guessed)]) > 0.0);
    assert_eq!(slashed(&[&strategy(known)]), 0.0, "the coordinator's beacon is all that it lacks");
    let twice =
        run(&[&strategy("{kind='overbooks', factor=2}"), "renters.buyers.orders_per_hour=30"]);
    let once = run(&["renters.buyers.orders_per_hour=30"]);
    assert!(works(&twice) > works(&once));
}

#[test]
fn listings_end_whose_probes_are_late_or_whose_leases_are_slow() {
    let of = |changes: &[&str], group: &str| {
        let results = run(&[changes, &[LISTING]].concat());
        let of = |measure| mean(&results, measure, Some(group));
        (of("listed"), of("slashed"), of("works"))
    };
    let (listed, slashed, works) = of(&[], "cheats");
    assert!((listed, slashed) == (1.0, 0.0) && works > 0.0);
    // Each further listing fails its first probe, too.
    assert_eq!(of(&[&strategy("{kind='sells', times=2}")], "cheats"), (0.0, 0.0, 0.0));
    let card = "{kind='inflates', factor=1.5, card=true}";
    assert_eq!(of(&[&strategy(card)], "cheats"), (0.0, 0.0, 0.0), "its first probe is late");
    let bids = strategy("{kind='inflates', factor=1.5}");
    assert!(of(&[&bids], "cheats").1 > 0.0, "its leases take its stake");
    assert_eq!(of(&[&bids], "honest").1, 0.0);
    let (relayed, ..) = of(&[&strategy("{kind='relays'}")], "cheats");
    assert!(relayed <= 0.5, "one machine proves one of two listings at most: {relayed}");
}

#[test]
fn strategies_of_auditors_renters_and_the_coordinator() {
    let auditors = |kind: &str| run(&[&format!("auditors.others.strategy={{kind='{kind}'}}")]);
    for kind in ["makes_up", "accuses", "silent"] {
        let results = auditors(kind);
        assert!(mean(&results, "gain_together", None) < 0.0, "{kind}");
        assert_eq!(mean(&results, "slashed_leases", None), 0.0, "{kind}: no honest stake is lost");
    }
    let copies = mean(&auditors("copies"), "gain_together", None);
    assert!(copies > 0.0, "open: honest providers give their ends away");
    let alone = strategy("{kind='fakes', share=0.2}");
    let helped = run(&[
        &alone,
        "auditors.others.strategy={kind='colludes', providers='cheats'}",
        "auditors.pool.count=1",
    ]);
    let unhelped = run(&[&alone, "auditors.pool.count=1"]);
    let slashed = |results: &ComputeResults| mean(results, "slashed", Some("cheats"));
    assert!(slashed(&helped) < slashed(&unhelped));
    let draws = run(&["coordinator=never_draws"]);
    assert_eq!(mean(&draws, "audited", None), 0.0);
    assert!(mean(&draws, "gain", Some("honest")) > -1e-9, "providers are paid all the same");
    let disputes = run(&[
        "renters.buyers={count=2, orders_per_hour=12, data_class='private', strategy={kind='disputes'}}",
    ]);
    assert!(mean(&disputes, "gain_together", None) < 0.0);
    assert_eq!(mean(&disputes, "slashed_leases", None), 0.0);
    let shills = run(&["renters.buyers.strategy={kind='shills', levels=[0.3, 0.4]}"]);
    assert!(mean(&shills, "treasury", None) > 0.0, "closed bids lose their bonds");
    let washes = run(&[
        LISTING,
        "renters.own={count=1, orders_per_hour=3, strategy={kind='washes', providers='cheats'}}",
    ]);
    assert!(mean(&washes, "gain_together", None) < 0.0);
    let own = washes.outcomes.iter().flat_map(|outcome| &outcome.leases);
    let own: Vec<_> = own.filter(|lease| lease.renter == "own").collect();
    assert!(!own.is_empty() && own.iter().all(|lease| lease.provider != "honest"));
}

#[test]
fn invalid_scenarios_are_refused_with_the_key() {
    for (change, expected) in [
        ("hours=0", "hours = 0: must be 1 to 10000 [SCENARIO_VALUE]"),
        ("hourz=1", "unknown field `hourz`"),
        ("order.segments=1", "order.segments = 1: must be 2 to 1000"),
        ("order.audited=0.5", "order.audited = 0.5: must be 0.01 to 0.333"),
        ("renters.buyers.load=[900.0, 0.0, 0.0]", "orders of all hours times order.segments"),
        ("renters.buyers.strategy={kind='shills', levels=[]}", "give 1 to 64 prices"),
        ("providers.cheats.devices=0", "providers.cheats.devices = 0"),
        ("providers.cheats.strategy={kind='flies'}", "unknown variant `flies`"),
        ("providers.cheats.strategy={kind='fakes', share=2.0}", "strategy.share = 2"),
        ("providers.cheats.strategy={kind='replays', share=2.0}", "unknown"),
        ("renters.honest={count=1, orders_per_hour=1}", "two groups have this name"),
        ("renters.buyers.orders_per_hour=1000000", "at most 100000 in all"),
        ("renters.buyers.strategy={kind='disputes'}", "set data_class = \"private\""),
        (
            "auditors.others.strategy={kind='colludes', providers='pool'}",
            "must name a group of providers",
        ),
        ("criteria=[{measure='accuracy', at_least=1}]", "criteria[0].measure = accuracy"),
        ("criteria=[{measure='gain', group='others2', at_least=1}]", "unknown group"),
        ("seeds.count=0", "seeds.count = 0"),
        ("listing={stake=0, fee=1, probe_minutes=1}", "listing.stake = 0"),
    ] {
        let error = read(&[change]).unwrap_err();
        assert!(error.contains(expected), "{change}: {error}");
    }
    assert!(read_compute_scenario("market = 'tasks'", &[]).unwrap().is_none());
    let error = crate::Scenario::read(SMALL, &[]).unwrap_err().to_string();
    assert!(error.contains("only `florin sim run`"), "{error}");
}

#[test]
fn results_are_written_with_a_page_and_criteria() {
    let criterion = "criteria=[{measure='gain_together', statistic='upper', at_most=-1000}, {measure='balanced', at_least=1}]";
    let results = run(&[criterion, &strategy("{kind='fakes', share=0.5}")]);
    assert_eq!(results.verdict(), Verdict::Failed);
    assert_eq!(results.criteria[1].verdict, Verdict::Passed);
    let folder = tempfile::tempdir().unwrap();
    results.write(folder.path(), &PROGRAM).unwrap();
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let again = read_compute_scenario(&read("scenario.toml"), &[]).unwrap().unwrap();
    assert_eq!(again, results.scenario);
    let leases: usize = results.outcomes.iter().map(|outcome| outcome.leases.len()).sum();
    assert_eq!(read("leases.csv").lines().count(), leases + 1);
    let members: usize = results.outcomes.iter().map(|outcome| outcome.members.len()).sum();
    assert_eq!(read("members.csv").lines().count(), members + 1);
    let page = read("report.html");
    for part in ["Profit by group", "Gain by group", "Price", "All measures", "failed"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(read("profit.svg").starts_with("<svg"));
    let json: serde_json::Value = serde_json::from_str(&read("results.json")).unwrap();
    assert_eq!(json["passed"], false);
    assert_eq!(json["criteria"][0]["open"], false);
}

/// A gain that no rule prevents is printed as open, and fails no run; a criterion that holds is passed all the same.
#[test]
fn an_open_criterion_fails_no_scenario() {
    let criteria = "criteria=[{measure='gain_together', statistic='upper', at_most=-1000, open=true}, \
                    {measure='balanced', at_least=1, open=true}]";
    let mut results = run(&[criteria, &strategy("{kind='fakes', share=0.5}")]);
    let verdicts: Vec<Verdict> = results.criteria.iter().map(|one| one.verdict).collect();
    assert_eq!(verdicts, [Verdict::Open, Verdict::Passed]);
    assert_eq!(results.verdict(), Verdict::Passed);
    let folder = tempfile::tempdir().unwrap();
    results.write(folder.path(), &PROGRAM).unwrap();
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(read("scenario.toml").contains("open = true"));
    assert!(read("report.html").contains("open: not shown to hold"));
    let json: serde_json::Value = serde_json::from_str(&read("results.json")).unwrap();
    assert_eq!(json["passed"], true);
    let of =
        |at: usize| (json["criteria"][at]["passed"].clone(), json["criteria"][at]["open"].clone());
    assert_eq!([of(0), of(1)], [(false.into(), true.into()), (true.into(), false.into())]);
    // Another criterion decides.
    results.criteria[1].verdict = Verdict::Failed;
    assert_eq!(results.verdict(), Verdict::Failed);
}

#[test]
fn the_members_of_a_task_pay_for_their_trainings_by_their_pay_for_data() {
    let text = crate::scenario::built_in("compute-two-streams").unwrap().text;
    let change = "seeds.count=2".parse().unwrap();
    let scenario = read_compute_scenario(text, &[change]).unwrap().unwrap();
    let results = run_compute_experiment(&scenario, 2, &|_, _| {}).unwrap();
    let task = crate::Scenario::read(crate::scenario::built_in("honest").unwrap().text, &[]);
    let task = task.unwrap();
    for (outcome, values) in results.outcomes.iter().zip(&results.values) {
        assert!(outcome.is_balanced);
        let of_task = crate::simulate(&task, outcome.seed, 1).unwrap();
        let earned: f64 = of_task.members.iter().map(|member| member.earned).sum();
        let rounds: u32 = of_task.members.iter().map(|member| member.rounds).sum();
        let value = |measure| {
            let found =
                values.iter().find(|(key, _)| key.measure == measure && key.group.is_none());
            *found.unwrap().1
        };
        assert!((value("data_paid") - earned).abs() < 1e-9);
        assert_eq!(value("jobs"), f64::from(rounds), "an order for each accepted update");
        let members = outcome.members.iter().filter(|member| member.group == "members");
        let kept: f64 = members.map(|member| member.earned).sum();
        assert!((kept - (earned - value("infrastructure_paid"))).abs() < 1e-9);
        assert!(value("infrastructure_paid") > 0.0 && kept > 0.0);
    }
    for (change, expected) in [
        ("task.scenario=compute-fakes", "only `florin sim run`"),
        ("task.scenario=x", "there is no scenario x"),
        ("task.renters=pool", "must name a group of renters"),
        ("renters.members.count=9", "must be 10: each member of the task is a renter"),
    ] {
        let error =
            read_compute_scenario(text, &[change.parse().unwrap()]).unwrap_err().to_string();
        assert!(error.contains(expected), "{change}: {error}");
    }
}
