//! Invalid scenarios are refused with the key, the value and the permitted values.

use florin_sim::Scenario;
use florin_sim::scenario::{SettingOverride, built_in};

fn refused(changes: &[&str]) -> String {
    let changes: Vec<SettingOverride> = changes.iter().map(|text| text.parse().unwrap()).collect();
    let text = built_in("honest").unwrap().text;
    Scenario::read(text, &changes).unwrap_err().to_string()
}

#[test]
fn errors_name_the_unknown_key_or_the_invalid_value() {
    for (change, expected) in [
        ("rouns=3", "unknown field `rouns`"),
        ("population.honest.rowz=3", "unknown field `rowz`"),
        ("rounds=0", "rounds = 0: must be 1 to 10000 [SCENARIO_VALUE]"),
        ("rounds=many", "invalid type"),
        ("seeds.count=0", "seeds.count = 0"),
        ("population.honest.rows=[9, 3]", "population.honest.rows = [9, 3]"),
        ("population.honest.label_noise=2", "population.honest.label_noise = 2: must be 0 to 1"),
        ("population.honest.strategy={kind=\"fly\"}", "unknown variant `fly`"),
        (
            "population.honest.strategy={kind=\"sybil\", identities=17, updates=\"same\"}",
            "strategy.identities = 17",
        ),
        ("learning.holdout_rows_per_round=900", "each of 8 rounds uses up"),
        ("population.honest.count=100", "set learning.feature_noise above 0"),
        ("mechanism.rule=magic", "unknown variant `magic`"),
        ("task.cohort_min=65", "task.cohort_min = 65: must be 2 to task.cohort"),
        ("task.debit_max=6", "task (budget.bond_min) = 5"),
        (
            "criteria=[{measure=\"luck\", at_least=0}]",
            "criteria[0].measure = luck: unknown measure",
        ),
        ("criteria=[{measure=\"gini\"}]", "a criterion needs at_least or at_most"),
        (
            "criteria=[{measure=\"gini\", at_least=0.9, at_most=0.5}]",
            "criteria[0].at_least = 0.9: no value is in the bounds: must be at most at_most = 0.5",
        ),
        (
            "criteria=[{measure=\"late\", group=\"honest\", at_most=0.5}]",
            "criteria[0].measure = late: is measured only in groups with devices",
        ),
        (
            "criteria=[{measure=\"round_duration\", at_most=5}]",
            "criteria[0].measure = round_duration: is measured only with devices of a group",
        ),
        (
            "task.staleness={rounds=0, weight=\"inverse\"}",
            "task.staleness.rounds = 0: must be 1 to 64; without late updates leave out",
        ),
        ("name=a b", "name = a b"),
        (
            "population.honest.strategy={kind=\"copy_earlier_task\", copies=\"last_model\"}",
            "population = copy_earlier_task: copies an earlier task: set task.earlier_task",
        ),
        ("task.earlier_task=sold", "unknown variant `sold`"),
        (
            "population.honest.strategy={kind=\"honest\", fraction=1}",
            "unknown key population.honest.strategy.fraction",
        ),
        ("mechanism={rule=\"florin\", price=1}", "unknown key mechanism.price"),
        (
            "population.honest.online={pattern=\"always\", probability=1}",
            "honest.online.probability",
        ),
        (
            "population.honest.online={pattern=\"rounds\", first=3, last=2}",
            "population.honest.online.first = 3: must be 1 to 2",
        ),
        ("seeds.first=9223372036854775807", "seeds.first = 9223372036854775807: must leave room"),
        ("learning.hidden=[4096, 4096, 4096]", "too many numbers"),
    ] {
        let message = refused(&[change]);
        assert!(message.contains(expected), "{change}: {message}");
    }
}

#[test]
fn a_surrogate_refuses_each_key_that_it_does_not_use() {
    let staleness = "task.staleness={ rounds = 8, weight = \"inverse_root\" }";
    for (changes, key) in [
        (vec!["task.selector=refl"], "task.selector"),
        (vec!["task.selection.knob=fast"], "task.selection"),
        (vec!["task.over_selection=2"], "task.over_selection"),
        (vec!["task.deadline={ quantile = 0.9 }"], "task.deadline"),
        (vec![staleness], "task.staleness"),
        (vec![staleness, "task.stale_weights=refl"], "task.stale_weights"),
        (vec!["population.honest.quote=0.1"], "population.honest.quote"),
    ] {
        let message = refused(&[changes, vec!["mode=surrogate"]].concat());
        let expected = "has no effect in mode = surrogate: leave it out, or use mode = real";
        assert!(message.starts_with(&format!("{key} = ")), "{key}: {message}");
        assert!(message.contains(expected), "{key}: {message}");
    }
}

#[test]
fn tiers_below_cohort_min_are_refused() {
    let tifl = |count: u32| {
        let text = format!(
            "name = 'a'\nquestion = 'Which tier?'\nrounds = 2\n[task]\ncohort = 4\ncohort_min = 3\n\
             selector = 'tifl'\n[population.members]\ncount = {count}\nrows = [10, 10]\n"
        );
        Scenario::read(&text, &[]).map_err(|error| error.to_string())
    };
    let message = tifl(14).unwrap_err();
    let expected = "task.selector = tifl: selects a tier, a fifth of the members: of 14 that is \
        fewer than task.cohort_min = 3; have at least 15 members, or lower task.cohort_min";
    assert!(message.contains(expected), "{message}");
    assert!(tifl(15).is_ok());
}

#[test]
fn the_remedy_for_stale_weights_without_late_updates_works() {
    let message = refused(&["task.stale_weights=refl"]);
    let (_, remedy) = message.split_once("add ").unwrap();
    let change = remedy.trim_end_matches(" [SCENARIO_VALUE]");
    let changes: Vec<SettingOverride> =
        ["task.stale_weights=refl", change].iter().map(|text| text.parse().unwrap()).collect();
    let text = built_in("honest").unwrap().text;
    assert!(Scenario::read(text, &changes).is_ok(), "{change}");
}

#[test]
fn scenarios_beyond_memory_or_supply_limits_are_refused() {
    let message = refused(&["learning.feature_noise=0.1", "population.honest.rows=[2, 1000000]"]);
    assert!(
        message.contains("population = 10000000: members may have at most 2000000 rows"),
        "{message}"
    );
    let rows = "population.honest.rows=[2, 190000]";
    let message = refused(&["learning.feature_noise=0.1", rows, "task.bond_per_row=1e9"]);
    assert!(
        message.contains("task.bond_per_row") && message.contains("florins: at most 1e15"),
        "{message}"
    );
}

#[test]
fn an_error_points_to_the_line_or_the_set_option() {
    let text =
        "name = 'a'\nquestion = 'Where?'\nrounds = 2\n[population.honest]\ncount = 2\nrowz = 3\n";
    let change: SettingOverride = "rounds=3".parse().unwrap();
    let in_text = Scenario::read(text, &[change]).unwrap_err().to_string();
    assert!(in_text.contains("line 6") && in_text.contains("rowz"), "{in_text}");
    let message = refused(&["rounds=3", "population.honest.rowz=3", "seeds.count=2"]);
    assert!(message.contains("--set population.honest.rowz=3: "), "{message}");
    // A change may supply a key that the text lacks.
    let short = "name = 'a'\nquestion = 'Where?'\n[population.honest]\ncount = 2\n";
    assert_eq!(Scenario::read(short, &["rounds=3".parse().unwrap()]).unwrap().rounds, 3);
}

#[test]
fn set_options_change_the_scenario() {
    let text = built_in("honest").unwrap().text;
    let changes = ["rounds=3", "mechanism.rule=rows", "task.budget=7"];
    let changes: Vec<SettingOverride> = changes.iter().map(|text| text.parse().unwrap()).collect();
    let scenario = Scenario::read(text, &changes).unwrap();
    assert_eq!(scenario.rounds, 3);
    assert_eq!(scenario.mechanism.name(), "rows");
    assert_eq!(scenario.task.budget, 7.0);
}
