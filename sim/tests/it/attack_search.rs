//! The search selects the best deviation on some seeds and measures it on others.

use florin_sim::Scenario;
use florin_sim::results::Program;
use florin_sim::search::{SearchResults, search_deviations};

fn searched(rule: &str, cost: f64, threads: usize) -> SearchResults {
    let text = format!(
        "name = 'search'\nquestion = 'What pays?'\nrounds = 4\n[seeds]\nfirst = 1\ncount = 4\n\
         [learning]\nhidden = []\nholdout_rows = 240\nholdout_rows_per_round = \
         60\n[mechanism]\nrule = '{rule}'\n\
         [population.honest]\ncount = 4\nrows = [40, 60]\n\
         [population.other]\ncount = 1\nrows = [50, 50]\ncost = {{ per_step = {cost:?} }}\n\
         [search]\ngroup = 'other'\ncandidates = 5\nseeds = {{ first = 100, count = 2 }}\n\
         [[search.strategies]]\nname = 'lazy'\nstrategy = {{ kind = 'lazy', fraction = 1.0 }}\n\
         parameters = {{ 'strategy.fraction' = [0.0, 1.0] }}\n\
         [[search.strategies]]\nname = 'pair'\ncount = 2\nstrategy = {{ kind = 'collude', noise = \
         1.0, size = 2 }}\n\
         [[search.strategies]]\nname = 'wrong'\nstrategy = {{ kind = 'flip_labels', fraction = \
         1.0 }}"
    );
    let scenario = Scenario::read(&text, &[]).unwrap();
    search_deviations(&scenario, threads, &|_, _| {}).unwrap().unwrap()
}

#[test]
fn under_equal_pay_the_search_finds_the_lazy_deviation_and_measures_it_on_fresh_seeds() {
    let found = searched("equal", 5.0, 2);
    assert_eq!(found.candidates.len(), 5 + 1 + 1);
    let best = &found.strategies[found.best];
    assert_eq!(best.name, "lazy");
    let seeds: Vec<u64> = best.evaluations.iter().map(|fresh| fresh.seed).collect();
    assert_eq!(seeds, [1, 2, 3, 4], "disjoint from the selection seeds");
    // Less work costs less, and equal pay does not depend on it.
    assert!(best.gain.low().unwrap() > 0.0, "{:?}", best.gain);
    let epsilon = found.epsilon().unwrap();
    assert_eq!((epsilon.mean, epsilon.low()), (best.gain.mean, best.gain.low()));
    let most = found.candidates.iter().filter(|one| one.strategy_index == 0).map(|one| one.gain);
    assert_eq!(best.selection_gain, most.fold(f64::NEG_INFINITY, f64::max));
}

#[test]
fn florins_mechanism_leaves_no_gain_to_wrong_labels_and_the_search_is_reproducible() {
    let (one, two) = (searched("florin", 0.0, 1), searched("florin", 0.0, 3));
    let wrong = one.strategies.iter().find(|found| found.name == "wrong").unwrap();
    assert!(wrong.gain.mean < 0.0, "{:?}", wrong.gain);
    assert_eq!(one.candidates.len(), two.candidates.len());
    let program = Program { version: "1", commit: "abc" };
    assert_eq!(one.to_json(&program), two.to_json(&program));
    let folder = tempfile::tempdir().unwrap();
    one.write(folder.path(), &program).unwrap();
    let seeds = std::fs::read_to_string(folder.path().join("seeds.csv")).unwrap();
    assert!(seeds.contains("\n1@abc,1,lazy,"), "{seeds}");
}

#[test]
fn every_candidate_stays_within_its_parameter_range() {
    let found = searched("equal", 5.0, 2);
    for one in found.candidates.iter().filter(|one| one.strategy_index == 0) {
        assert_eq!(one.positions.len(), 1, "{one:?}");
        assert!((0.0..=1.0).contains(&one.positions[0]), "{one:?}");
    }
    let text = florin_sim::scenario::built_in("attacks").unwrap().text;
    for (start, inside) in [
        ("scale = 1.0 }", "scale = 3.5 }"),
        ("identities = 4, updates = \"same\"", "identities = 1, updates = \"same\""),
    ] {
        assert!(text.contains(start));
        let message = Scenario::read(&text.replace(start, inside), &[]).unwrap_err().to_string();
        assert!(
            message.contains("the first candidate has this value")
                && message.contains("[SCENARIO_VALUE]"),
            "{message}"
        );
    }
    let message = Scenario::read(&text.replace("scale = 1.0 }", "scale = 3.5 }"), &[]).unwrap_err();
    let message = message.to_string();
    assert!(
        message.contains("noise.strategy.scale = 3.5") && message.contains("[0.0, 3.0]"),
        "{message}"
    );
}

#[test]
fn selection_seeds_must_be_disjoint_from_evaluation_seeds() {
    let text = florin_sim::scenario::built_in("attacks").unwrap().text;
    let change = "search.seeds={first=5, count=2}".parse().unwrap();
    let message = Scenario::read(text, &[change]).unwrap_err().to_string();
    assert!(
        message.contains("search.seeds.first = 5") && message.contains("[SCENARIO_VALUE]"),
        "{message}"
    );
}

#[test]
fn a_strategy_of_a_search_can_read_updates_before_it_commits() {
    let text = "name = 'reader'\nquestion = 'What pays?'\nrounds = 4\n[seeds]\ncount = 1\n\
        [learning]\nhidden = [16]\nholdout_rows = 240\nholdout_rows_per_round = 60\n\
        [population.honest]\ncount = 4\nrows = [40, 60]\n\
        [population.other]\ncount = 1\nrows = [50, 50]\n\
        [search]\ngroup = 'other'\nseeds = { first = 100, count = 1 }\n\
        [[search.strategies]]\nname = 'of the previous round'\n\
        strategy = { kind = 'copy', noise = 0.0 }\n\
        [[search.strategies]]\nname = 'of the same round'\ncommit_reveal = false\n\
        strategy = { kind = 'copy', noise = 0.0 }";
    let scenario = Scenario::read(text, &[]).unwrap();
    let found = search_deviations(&scenario, 2, &|_, _| {}).unwrap().unwrap();
    let rejected: Vec<f64> = found.strategies.iter().map(|one| one.rejected.mean).collect();
    assert_eq!(rejected, [0.75, 1.0], "in the first round there is no previous update to copy");
}
